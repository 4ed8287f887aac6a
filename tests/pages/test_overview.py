"""Overview: each role sees its own scope, all totals are one number, nothing of a prompt or of another team is shown."""

import json
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.models import Member
from billing import overview, reports
from billing.models import Subscription, SubscriptionPeriod
from billing.overview import Whose
from config.clock import utc_now
from quotas import drawn, limits, overview_parts
from quotas.alerts.models import Alert
from quotas.models import Refusal
from tests import factories
from tests.pages import made

pytestmark = pytest.mark.django_db
CREDIT = made.CREDIT


class World:
    """Two teams with a developer each, and one without a team; 3, 5 and 7 credits used today."""

    def __init__(self) -> None:
        self.organization = factories.organization(timezone="UTC")
        self.quality = factories.team(self.organization, "Quality")
        self.platform = factories.team(self.organization, "Platform")
        self.members = {
            "tomasz": factories.member(self.organization, team=self.quality),
            "anselm": factories.member(self.organization, team=self.platform),
            "lena": factories.member(self.organization),
        }
        self.rows = {}
        for (name, member), credits in zip(self.members.items(), (3, 5, 7), strict=True):
            key = factories.api_key(member)
            self.rows[name] = made.used(key.row, credits * CREDIT, at=utc_now() - timedelta(seconds=2), model=f"model-{credits}")

    def member(self, role: str, team: Any = None) -> Member:
        return factories.member(self.organization, role=role, team=team)


@pytest.fixture
def world() -> World:
    return World()


def page_of(member: Member) -> str:
    answered = made.signed_in(member).get(made.path(member, "overview"))
    assert answered.status_code == 200
    return answered.content.decode()


def seen(page: str) -> set[str]:
    return set(re.findall(r'data-request="([^"]+)"', page))


def test_everybodys_use_is_seen_by_owner_and_lead_of_the_whole(world: World) -> None:
    for role in ("owner", "lead"):
        page = page_of(world.member(role))
        assert seen(page) == {row.request_id for row in world.rows.values()}
        assert '<dd class="value">15.00<span class="unit">credits</span></dd>' in page


def test_a_lead_with_a_team_sees_that_team_only(world: World) -> None:
    page = page_of(world.member("lead", world.quality))
    assert seen(page) == {world.rows["tomasz"].request_id}
    assert '<dd class="value">3.00<span class="unit">credits</span></dd>' in page
    assert "by the Quality team" in page
    for name in ("anselm", "lena"):
        assert str(world.members[name]) not in page
        assert world.rows[name].model_served not in page


def test_what_somebody_used_before_they_joined_the_team_stays_with_the_other(world: World) -> None:
    Member.objects.filter(pk=world.members["anselm"].pk).update(team=world.quality)
    page = page_of(world.member("lead", world.quality))
    assert seen(page) == {world.rows["tomasz"].request_id}


def test_a_developer_sees_their_own_use_only(world: World) -> None:
    page = page_of(world.members["lena"])
    assert seen(page) == {world.rows["lena"].request_id}
    assert '<dd class="value">7.00<span class="unit">credits</span></dd>' in page
    assert "Who uses it" not in page
    for name in ("tomasz", "anselm"):
        assert str(world.members[name]) not in page


def test_finance_sees_sums_and_no_single_request_and_no_key(world: World) -> None:
    page = page_of(world.member("finance"))
    assert seen(page) == set()
    assert '<dd class="value">15.00<span class="unit">credits</span></dd>' in page
    for member in world.members.values():
        assert member.api_keys.get().public_id not in page
    assert "/key" not in page


def test_no_upstream_account_is_named(world: World) -> None:
    account, _ = factories.openai_account(world.organization, label="Mira's secret Plus")
    key = world.members["tomasz"].api_keys.get()
    made.used(key, CREDIT, account_id=account.pk)
    for member in (world.members["tomasz"], world.member("lead"), world.member("owner"), world.member("finance")):
        page = page_of(member)
        assert "Plus" not in page
        assert str(account.uuid) not in page


def test_the_burn_of_the_organizations_quota_is_shown_to_who_sees_all_of_it(world: World) -> None:
    for member, sees in (
        (world.member("owner"), True),
        (world.member("lead"), True),
        (world.member("finance"), True),
        (world.member("lead", world.quality), False),
        (world.members["lena"], False),
    ):
        page = page_of(member)
        assert ('id="burn-data"' in page) is sees
        assert ("Used so far against an even pace" in page) is sees
    assert "Too early to tell whether it lasts." in page_of(world.member("owner"))
    factories.subscription(world.organization, plan="pro", member=world.members["lena"])
    seat = json.loads(page_of(world.members["lena"]).split('id="burn-data" type="application/json">')[1].split("</script>")[0])
    assert seat["quota"] == 20_000_000
    assert max(amount for amount in seat["used"] if amount is not None) == 7


def test_what_was_refused_today_is_told_with_its_largest_reasons(world: World) -> None:
    now = utc_now()
    for name, count, fields in (
        ("tomasz", 20, {"metric": "requests_per_minute", "limit": 60}),
        ("anselm", 3, {"metric": "credits", "window": "day", "limit": 5}),
    ):
        key = world.members[name].api_keys.get()
        Refusal.objects.create(
            organization=world.organization,
            team_id=key.member.team_id,
            member_id=key.member_id,
            key_id=key.pk,
            minute=now.replace(second=0, microsecond=0),
            last_at=now,
            code="limit_reached",
            scope="member",
            count=count,
            **fields,
        )
    page = page_of(world.member("owner"))
    assert '<dt>Refused today</dt><dd class="value">23</dd><dd class="note">20 by 60 / min, 3 by daily limit' in page
    assert '<dd class="value">20</dd><dd class="note">20 by 60 / min ·' in page_of(world.member("lead", world.quality))
    assert '<dt>Refused today</dt><dd class="value">0</dd><dd class="note">nothing</dd>' in page_of(world.members["lena"])
    assert "Refused today" not in page_of(world.member("finance"))


def test_who_uses_most_stands_beside_what_is_left_of_their_limit(world: World) -> None:
    tomasz = world.members["tomasz"]
    assert tomasz.user is not None
    for window, amount in (("day", "100"), ("30d", "200")):
        limits.set_limit(
            world.organization, scope="member", of=tomasz.user.email, metric="credits", window=window, amount=amount, by=None
        )
    page = page_of(world.member("owner"))
    assert page.count(" % of limit left") == 1
    assert " % of limit left" not in page_of(world.member("finance"))


def test_all_totals_are_one_number(world: World) -> None:
    page = page_of(world.member("owner"))
    chart = json.loads(page.split('id="stack-data" type="application/json">')[1].split("</script>")[0])
    assert sum(sum(series["values"]) for series in chart["series"]) == 15
    assert len(chart["x"]) == 30
    assert [series["name"] for series in chart["series"]] == ["model-7", "model-5", "model-3"]
    assert "<span>All members</span><strong>15.00</strong>" in page
    today = page.split("Credits per day by model, table")[1].split("</table>")[0].split("<tr>")[-1]
    assert re.findall(r'<td class="num">([^<]+)</td>', today) == ["7.00", "5.00", "3.00", "15.00"]


def test_the_quota_of_the_organization_is_shown_whoever_has_a_seat(world: World) -> None:
    lead = world.member("lead")
    factories.subscription(world.organization, plan="pro", member=lead)
    page = page_of(lead)
    assert "of 1,000,000 credits" in page
    factories.subscription(world.organization, plan="pro", member=world.members["lena"])
    assert "of 20,000,000 credits" in page_of(world.members["lena"])


def test_days_are_the_organizations_days() -> None:
    """Half past twelve at night in Berlin belongs to the new day there, and to the old one in UTC."""
    organization = factories.organization(timezone="Europe/Berlin")
    key = factories.api_key(factories.member(organization)).row
    day = utc_now().astimezone(ZoneInfo("Europe/Berlin")).date() - timedelta(days=1)
    midnight = overview.midnight(day, ZoneInfo("Europe/Berlin"))
    made.used(key, 2 * CREDIT, at=midnight + timedelta(minutes=30))
    made.used(key, 3 * CREDIT, at=midnight - timedelta(minutes=30))
    days = overview.days_by_model(Whose(organization), until=day, count=2)
    assert days.days == (day - timedelta(days=1), day)
    assert days.totals == (3 * CREDIT, 2 * CREDIT)
    assert days.requests == (1, 1)


def test_a_month_is_the_most_that_is_read() -> None:
    organization = factories.organization()
    assert len(overview.days_by_model(Whose(organization), until=utc_now().date(), count=400).days) == 31


def test_small_models_are_summed_as_other() -> None:
    organization = factories.organization()
    key = factories.api_key(factories.member(organization)).row
    for number in range(1, 8):
        made.used(key, number * CREDIT, model=f"m{number}")
    days = overview.days_by_model(Whose(organization), until=utc_now().date(), count=2)
    assert [name for name, _ in days.series] == ["m7", "m6", "m5", "m4", "other"]
    assert sum(days.series[-1][1]) == 6 * CREDIT
    assert days.total == 28 * CREDIT


def test_an_amended_orphan_is_one_row_with_its_whole_price() -> None:
    organization = factories.organization()
    key = factories.api_key(factories.member(organization)).row
    orphan = made.used(key, 2 * CREDIT, status="orphaned", is_estimated=True)
    made.used(key, -500_000, request_id=orphan.request_id, part=1, at=orphan.admitted_at, counted_requests=0)
    rows = overview.newest(Whose(organization), now=utc_now())
    assert [(row.request_id, row.credits) for row in rows] == [(orphan.request_id, 1_500_000)]
    days = overview.days_by_model(Whose(organization), until=utc_now().date(), count=2)
    assert days.total == 1_500_000
    assert sum(days.requests) == 1


def test_the_newest_rows_are_bounded_and_in_order() -> None:
    organization = factories.organization()
    key = factories.api_key(factories.member(organization)).row
    now = utc_now()
    made_rows = [made.used(key, CREDIT, at=now - timedelta(minutes=number)) for number in range(25)]
    rows = overview.newest(Whose(organization), now=now, count=100)
    assert [row.request_id for row in rows] == [row.request_id for row in made_rows[:20]]


def test_days_without_use_say_so() -> None:
    member = factories.member(factories.organization(), role="owner")
    page = page_of(member)
    assert "Nothing was used in these 30 days" in page
    assert "No requests yet" in page
    assert '<dd class="value">0<span class="unit">credits</span></dd>' in page


def test_without_a_plan_the_page_still_shows_the_use() -> None:
    member = factories.member(factories.organization(plan=None), role="owner")
    page = page_of(member)
    assert "What is left of the plan quota cannot be told now: Your organization has no active plan." in page


@pytest.mark.parametrize("role", ["owner", "finance", "developer"])
def test_the_number_of_queries_does_not_grow(role: str) -> None:
    organization = factories.organization()
    member = factories.member(organization, role=role)
    client = made.signed_in(member)
    first = factories.api_key(factories.member(organization)).row
    made.used(first, CREDIT)
    client.get(made.path(member, "overview"))
    with CaptureQueriesContext(connection) as few:
        client.get(made.path(member, "overview"))
    for number in range(15):
        key = factories.api_key(factories.member(organization, team=factories.team(organization))).row
        made.used(key, number * CREDIT, model=f"model-{number}")
    with CaptureQueriesContext(connection) as many:
        assert client.get(made.path(member, "overview")).status_code == 200
    assert len(many) == len(few)


def test_chart_days_are_midnights_in_utc() -> None:
    from quotas import pages

    days = overview.Days((date(2026, 11, 1), date(2026, 11, 2)), (("m", (CREDIT, 0)),), (1, 0))
    assert pages._chart(days) == {
        "x": [int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()), int(datetime(2026, 11, 2, tzinfo=UTC).timestamp())],
        "series": [{"name": "m", "values": [1.0, 0.0]}],
    }


class TestLook:
    """The one read of the rollups says what the reports say."""

    def test_it_says_what_the_reports_say(self, world: World) -> None:
        now = utc_now()
        today = reports.day_of(now, ZoneInfo("UTC"))
        key = world.members["tomasz"].api_keys.get()
        for days, credits in ((1, 2), (3, 4), (33, 8), (45, 16)):
            made.used(key, credits * CREDIT, at=now - timedelta(days=days), model="model-3")
        factories.subscription(world.organization, plan="pro", member=world.members["lena"])
        chosen = [today - timedelta(days=index) for index in reversed(range(3))]
        for whose in (
            Whose(world.organization),
            Whose(world.organization, team_id=world.quality.pk),
            Whose(world.organization, member_id=world.members["anselm"].pk),
        ):
            seated = [world.members["lena"].pk] if whose == Whose(world.organization) else []
            look = overview.look(whose, chosen, since=today - timedelta(days=35), until=today, recent=30, seated=seated)
            days = overview.days_by_model(whose, until=today, count=3)
            assert look.days == days
            start = overview.midnight(chosen[0], ZoneInfo("UTC"))
            assert list(look.spenders) == overview.spenders(whose, start=start, end=now)
            assert look.recent == overview.days_by_model(whose, until=today, count=30).totals
            assert (look.today, look.today_requests) == (days.totals[-1], days.requests[-1])
        everybody = overview.look(
            Whose(world.organization),
            chosen,
            since=today - timedelta(days=35),
            until=today,
            recent=30,
            seated=[world.members["lena"].pk],
        )
        start = overview.midnight(today - timedelta(days=35), ZoneInfo("UTC"))
        assert list(everybody.drawn.values()) == drawn.between(world.organization, None, start, now)

    def test_a_period_and_the_one_before_can_be_chosen(self, world: World) -> None:
        owner = world.member("owner")
        client = made.signed_in(owner)

        def shown(query: str) -> tuple[str, int]:
            page = client.get(made.path(owner, "overview") + query).content.decode()
            [name] = re.findall(r'<a href="\?range=(\w+)" aria-current="true">', page)
            chart = json.loads(page.split('id="stack-data" type="application/json">')[1].split("</script>")[0])
            return name, len(chart["x"])

        assert shown("") == ("30d", 30)
        assert shown("?range=no-such")[0] == "30d"
        assert shown("?range=last")[0] == "30d"
        name, days = shown("?range=period")
        assert (name, 1 <= days <= 31) == ("period", True)
        current = SubscriptionPeriod.objects.filter(organization=world.organization).order_by("-starts_at").first()
        subscription = Subscription.objects.get(organization=world.organization, member=None)
        before = (current.starts_at if current else utc_now() - timedelta(days=days - 1)).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        SubscriptionPeriod.objects.create(
            organization=world.organization,
            subscription=subscription,
            plan=subscription.plan,
            starts_at=before - timedelta(days=21),
            ends_at=before - timedelta(days=14),
            quota=CREDIT,
        )
        assert shown("?range=last") == ("last", 7)


def test_what_is_open_stands_in_one_line_the_worst_first(world: World) -> None:
    now = utc_now()
    owner = world.member("owner")
    assert 'id="strip" data-part="alerts"></div>' in page_of(owner)
    anomaly = {"tenths": 53, "hours": 12, "credits": CREDIT, "usual": CREDIT}
    for kind, facts in (("anomaly", anomaly), ("account", {"label": "Ada's Plus", "reason": "revoked", "is_sign_in": True})):
        Alert.objects.create(
            organization=world.organization,
            kind=kind,
            scope=f"{kind}:x",
            period="p",
            told_at=now,
            facts=facts,
            member=world.members["lena"] if kind == "anomaly" else None,
        )
    page = page_of(owner)
    [strip] = re.findall(r'id="strip" data-part="alerts">(.*?)</div></div>', page, re.S)
    assert 'class="alert bad"' in strip
    assert "1 more is open" in strip
    assert f"/o/{world.organization.slug}/alerts" in strip
    assert "needs sign-in" in strip
    # A developer sees only their own.
    assert "needs sign-in" not in page_of(world.members["lena"])
    assert 'id="strip" data-part="alerts"></div>' in page_of(world.members["anselm"])


def test_the_pool_is_told_to_who_sees_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    at = utc_now() + timedelta(hours=5)
    reset = overview_parts.PoolReset("Ada's Plus", at, 5, 7 * CREDIT)
    monkeypatch.setattr(
        overview_parts, "_find_pool", [lambda _id, _now: overview_parts.PoolLook(25 * CREDIT, 100 * CREDIT, (reset,), True)]
    )
    page = page_of(world.member("owner"))
    assert "Pool left this week" in page
    assert '<dd class="value">25 %</dd>' in page
    assert "Next pool resets" in page
    assert "+7.00" in page
    for member in (world.members["lena"], world.member("finance"), world.member("lead", world.quality)):
        said = page_of(member)
        assert "Pool left" not in said
        assert "Plus" not in said
