"""Usage report: each role its scope, one total on page and in files, ranges, files that stream."""

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext

from accounts.models import Member, Organization
from billing import report_page
from config.clock import utc_now
from tests import factories
from tests.flows.tenants import in_thread
from tests.pages import made

pytestmark = pytest.mark.django_db
CREDIT = made.CREDIT


class World:
    """Two teams with a developer each, and one without a team; 3, 5 and 7 credits used just now."""

    def __init__(self) -> None:
        self.organization = factories.organization(timezone="Europe/Berlin")
        self.account, _ = factories.openai_account(self.organization, label="Mira's Plus")
        self.quality = factories.team(self.organization, "Quality")
        self.platform = factories.team(self.organization, "Platform")
        self.members = {
            "tomasz": factories.member(self.organization, team=self.quality),
            "anselm": factories.member(self.organization, team=self.platform),
            "lena": factories.member(self.organization),
        }
        for (name, member), credits in zip(self.members.items(), (3, 5, 7), strict=True):
            key = factories.api_key(member, name=f"{name}'s").row
            made.used(key, credits * CREDIT + 1, at=utc_now(), model=f"model-{credits}", account_id=self.account.pk)

    def member(self, role: str, team: Any = None) -> Member:
        return factories.member(self.organization, role=role, team=team)


@pytest.fixture
def world() -> World:
    return World()


def url(member: Member, page: str = "usage", **query: str) -> str:
    return made.path(member, page) + (f"?{urlencode(query)}" if query else "")


def page_of(member: Member, *, status: int = 200, **query: str) -> str:
    answered = made.signed_in(member).get(url(member, **query))
    assert answered.status_code == status
    return str(answered.content.decode())


def file_of(member: Member, page: str, **query: str) -> list[dict[str, str]]:
    answered = made.signed_in(member).get(url(member, page, **query))
    assert answered.status_code == 200
    content = b"".join(answered.streaming_content).decode("utf-8-sig")  # type: ignore[arg-type]
    return list(csv.DictReader(io.StringIO(content, newline=""), strict=True))


def total(page: str) -> str:
    (found,) = re.findall(r'id="total">([^<]+)<span class="micro">([^<]+)</span>', page)
    return "".join(found)


@pytest.mark.parametrize(
    ("who", "expected"),
    [("developer", "3.000001"), ("team lead", "5.000001"), ("lead", "15.000003"), ("finance", "15.000003"), ("owner", "15.000003")],
)
def test_each_role_sees_its_scope_with_one_total_everywhere(world: World, who: str, expected: str) -> None:
    """J1, I3: page, every grouping, sums file and requests file."""
    member = {
        "developer": world.members["tomasz"],
        "team lead": world.member("lead", world.platform),
    }.get(who) or world.member(who)
    groupings = re.findall(r'href="[^"]*by=(\w+)"', page_of(member).split('aria-label="Group by"')[1].split("</nav>")[0])
    assert groupings == ["day", "team", "member", "key", "model", *(["account"] if who in ("lead", "finance", "owner") else [])]
    for by in groupings:
        page = page_of(member, by=by)
        assert total(page) == expected, by
        assert f'<strong>{expected[:-7]}<span class="micro">{expected[-7:]}</span> credits</strong> so far' in page
        *lines, closing = file_of(member, "usage/totals.csv", by=by)
        assert (closing["record"], closing["credits"]) == ("total", expected), by
        assert len(re.findall(r'<tr><th scope="row">', page)) == len(lines) + 1
    assert file_of(member, "usage/requests.csv")[-1]["credits"] == expected
    for name, other in world.members.items():
        if who in ("developer", "team lead") and str(other) != str(member) and not (who == "team lead" and name == "anselm"):
            assert str(other) not in page_of(member, by="member")


def test_no_upstream_account_is_told_to_who_has_no_pool(world: World) -> None:
    """J3: finance sees its id, so that the grouping adds up; developers and team leads nothing."""
    for member in (world.members["tomasz"], world.member("lead", world.platform)):
        client = made.signed_in(member)
        assert client.get(url(member, "usage/totals.csv", by="account")).status_code == 403
        page = page_of(member, status=400, by="account")
        assert "Plus" not in page
        assert str(world.account.uuid) not in page
    finance = page_of(world.member("finance"), by="account")
    assert str(world.account.uuid) in finance
    assert "Plus" not in finance
    assert "Mira&#x27;s Plus" in page_of(world.member("lead"), by="account")


def test_finance_sees_keys_by_name_without_their_public_ids(world: World) -> None:
    page = page_of(world.member("finance"), by="key")
    assert "tomasz&#x27;s" in page
    for member in world.members.values():
        assert member.api_keys.get().public_id not in page
    assert world.members["lena"].api_keys.get().public_id in page_of(world.member("owner"), by="key")


def test_the_navigation_leads_here(world: World) -> None:
    for role, title in (("finance", "Money"), ("owner", "Money"), ("lead", "Money"), ("developer", "You")):
        member = world.member(role)
        section = page_of(member).split(f"<h2>{title}</h2>")[1].split("</section>")[0]
        assert f'href="{url(member)}" aria-current="page"' in section


def test_nothing_used_says_so_and_still_has_its_files() -> None:
    member = factories.member(factories.organization(), role="owner")
    page = page_of(member)
    assert "<strong>Nothing was used</strong> by everybody in this time." in page
    assert "<table" not in page
    assert [row["record"] for row in file_of(member, "usage/requests.csv")] == ["total"]
    assert {row["credits"] for row in file_of(member, "usage/totals.csv", by="day")} == {"0"}


# ---------------------------------------------------------------------------------------------------------------- ranges


def berlin() -> tuple[Organization, Any]:
    organization = factories.organization(timezone="Europe/Berlin")
    return organization, factories.api_key(factories.member(organization)).row


def test_a_range_of_ones_own_takes_whole_days_of_the_organization() -> None:
    """E16: 1 on the 23rd, 2 on the 24th; the 24th is 2."""
    organization, key = berlin()
    zone = ZoneInfo("Europe/Berlin")
    for at, amount in (
        (datetime(2026, 9, 23, 23, 59, 59, tzinfo=zone), 1),
        (datetime(2026, 9, 24, tzinfo=zone), 2),
        (datetime(2026, 9, 25, tzinfo=zone), 4),
    ):
        made.used(key, amount * CREDIT, at=at)
    owner = factories.member(organization, role="owner")
    query = {"range": "custom", "from": "2026-09-24", "to": "2026-09-24"}
    page = page_of(owner, by="day", **query)
    assert total(page) == "2.000000"
    assert "Thu 24 Sep" in page
    assert '<strong>2<span class="micro">.000000</span> credits</strong> used by everybody' in page
    assert [row["credits"] for row in file_of(owner, "usage/requests.csv", **query)] == ["2", "2"]
    assert total(page_of(owner, range="month", month="2026-09")) == "7.000000"
    assert page_of(owner, range="month", month="2026-09", by="day").count('<th scope="row">') == 31


def test_the_links_ask_for_what_is_shown() -> None:
    organization, key = berlin()
    made.used(key, CREDIT, at=datetime(2026, 9, 24, 12, tzinfo=UTC))
    owner = factories.member(organization, role="owner")
    page = page_of(owner, range="month", month="2026-09", by="key")
    links = [link.replace("&amp;", "&") for link in re.findall(r'href="([^"]*usage/[^"]*)"', page)]
    assert len(links) == 5
    for link in links:
        assert "month=2026-09" in link
        content = b"".join(made.signed_in(owner).get(link).streaming_content)  # type: ignore[arg-type]
        assert b"\r\ntotal,1," in content
        assert content.startswith(b"\xef\xbb\xbf") == ("bom=1" in link)


def test_this_period_and_the_last_one_are_the_plans() -> None:
    organization = factories.organization()
    key = factories.api_key(factories.member(organization)).row
    period = organization.subscriptions.get().periods.get()
    made.used(key, CREDIT, at=period.starts_at)
    made.used(key, 2 * CREDIT, at=period.starts_at - timedelta(seconds=1))
    owner = factories.member(organization, role="owner")
    assert total(page_of(owner)) == "1.000000"
    assert total(page_of(owner, range="previous")) == "2.000000"


def test_a_developer_with_a_seat_sees_the_seats_period() -> None:
    organization = factories.organization(plan=None)
    member = factories.member(organization)
    factories.subscription(organization, plan="free", member=member)
    made.used(factories.api_key(member).row, CREDIT, at=utc_now())
    period = organization.subscriptions.get().periods.get()
    page = page_of(member)
    assert f'datetime="{period.starts_at.isoformat()}"' in page
    assert total(page) == "1.000000"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"range": "custom", "from": "2026-11-31", "to": "2026-12-01"}, "from &#x27;2026-11-31&#x27; is not a day"),
        ({"range": "custom", "from": "2026-12-02", "to": "2026-12-01"}, "is empty"),
        ({"range": "custom", "from": "1000-01-01", "to": "9999-12-31"}, "is not a day"),
        ({"range": "custom", "from": "2001-01-01", "to": "2026-12-01"}, "at most 1830 days"),
        ({"range": "custom", "from": "2026-12-01"}, "its first and its last day"),
        ({"range": "month", "month": "2026-13"}, "is not a day"),
        ({"range": "month", "month": "<script>"}, "&lt;script&gt;"),
        ({"range": "weather"}, "is no range"),
        ({"by": "<b>"}, "not summed by &lt;b&gt;"),
        ({"range": "custom", "from": "\0", "to": "\0"}, "is not a day"),
    ],
)
def test_a_range_that_cannot_be_is_told_and_the_page_stays(world: World, query: dict[str, str], says: str) -> None:
    owner = world.member("owner")
    page = page_of(owner, status=400, **query)
    assert says in page
    assert "Shown is the current period." in page
    assert total(page) == "15.000003"
    if "range" in query:
        for file in ("usage/requests.csv", "usage/totals.csv"):
            answered = made.signed_in(owner).get(url(owner, file, **query))
            assert (answered.status_code, answered["Content-Type"]) == (400, "text/plain; charset=utf-8")
    else:
        assert made.signed_in(owner).get(url(owner, "usage/totals.csv", **query)).status_code == 404


def test_a_foreign_report_is_as_missing(world: World) -> None:
    """J5."""
    stranger = factories.member(factories.organization(), role="owner")
    client = made.signed_in(stranger)
    for page in ("usage", "usage/totals.csv?by=member", "usage/requests.csv"):
        foreign = client.get(f"/o/{world.organization.slug}/{page}")
        missing = client.get(f"/o/no-such-organization/{page}")
        assert (foreign.status_code, foreign.content) == (404, missing.content)
        assert Client().get(f"/o/{world.organization.slug}/{page}").status_code == 302


# ----------------------------------------------------------------------------------------------------------------- files


@pytest.mark.django_db(transaction=True)
async def test_a_file_streams_to_a_client_of_the_asgi_server() -> None:
    """The header's piece comes by itself; type, name and policy of the answer; the rows see their organization only."""
    world = await in_thread(World)
    owner = await in_thread(world.member, "owner")
    client = AsyncClient()
    await in_thread(client.force_login, owner.user)
    answered: Any = await client.get(url(owner, "usage/requests.csv"))
    assert answered.is_async
    assert answered["Content-Type"] == "text/csv; charset=utf-8"
    assert re.fullmatch(
        r'attachment; filename="[a-z0-9-]+-usage-\d{4}-\d\d-\d\d-\d{4}-\d\d-\d\d\.csv"', answered["Content-Disposition"]
    )
    assert (answered["X-Accel-Buffering"], answered["Cache-Control"]) == ("no", "no-store")
    assert answered["X-Content-Type-Options"] == "nosniff"
    pieces = [piece async for piece in answered.streaming_content]
    assert pieces[0].startswith(b"record,rows,admitted_at,")
    assert pieces[0].count(b"\r\n") == 1
    assert b"".join(pieces).count(b"\r\nusage,1,") == 3
    assert pieces[-1].startswith(b"total,3,")


def test_head_and_post_make_no_file(world: World) -> None:
    owner = world.member("owner")
    client = made.signed_in(owner)
    for page in ("usage/requests.csv", "usage/totals.csv"):
        assert client.head(url(owner, page)).status_code == 405
        assert client.post(url(owner, page)).status_code == 405


@pytest.mark.parametrize("by", ["day", "team", "member", "key", "model", "account"])
def test_the_number_of_queries_does_not_grow(world: World, by: str) -> None:
    """H5, H6: a report is a handful of queries."""
    owner = world.member("owner")
    client = made.signed_in(owner)
    client.get(url(owner, by=by))
    with CaptureQueriesContext(connection) as few:
        client.get(url(owner, by=by))
    for number in range(12):
        key = factories.api_key(factories.member(world.organization, team=factories.team(world.organization))).row
        made.used(key, number * CREDIT, at=utc_now(), model=f"n-{number}")
    with CaptureQueriesContext(connection) as many:
        assert client.get(url(owner, by=by)).status_code == 200
    assert len(many) == len(few) < 16


def test_many_lines_are_cut_on_the_page_and_not_in_the_total(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "MOST_LINES", 1)
    page = page_of(world.member("owner"), by="member")
    assert '<th scope="row">2 more</th>' in page
    assert total(page) == "15.000003"


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [(1, 3, "33.3 %"), (2, 3, "66.7 %"), (0, 5, "0.0 %"), (5, 5, "100.0 %"), (1, 0, "–"), (-1, 4, "−25.0 %")],
)
def test_a_share_has_one_decimal(part: int, whole: int, shown: str) -> None:
    assert report_page._percent(part, whole) == shown
