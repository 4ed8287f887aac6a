"""Alerts: what is told, once, to whom, and in which words."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections

from accounts import keys, members
from accounts.models import AuditEvent, Organization
from config import redis as weir_redis
from config import scope, snapshot
from config.clock import utc_now
from config.redis import client
from quotas import admission, limits
from quotas.alerts import rules, tasks, telling, wording
from quotas.alerts.found import Found, line_of
from quotas.alerts.models import Alert, AlertDelivery
from quotas.alerts.rules import Holding, Trouble
from quotas.models import Drift, Refusal
from routing import accounts as pool_accounts
from tests import factories
from tests.pages import made
from tests.quotas.alerting import World
from tests.quotas.tenancy import CREDIT, credits_of, request_id

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world() -> World:
    return World()


def said(world: World, alert: Alert, who: str | None = "owner") -> tuple[str, str, str]:
    """Title, details and next step, as somebody reads them."""
    row = Alert.objects.select_related(*telling.audience.RELATED).get(pk=alert.pk)
    found = wording.words(row, reader=world[who] if who else None, now=utc_now())
    return found.title, found.detail, f"{found.step} {found.path.replace(f'/o/{world.organization.slug}', '')}"


class TestLines:
    @pytest.mark.parametrize(
        ("used", "limit", "line"),
        [(799, 1000, 0), (800, 1000, 80), (949, 1000, 80), (950, 1000, 95), (999, 1000, 95), (1000, 1000, 100), (1300, 1000, 100),
         (0, 0, 0), (5, 0, 0), (4, 5, 80), (0, 5, 0)],
    )  # fmt: skip
    def test_a_line_is_reached_by_the_exact_amounts(self, used: int, limit: int, line: int) -> None:
        assert line_of(used, limit) == line

    def test_thirty_requests_past_a_line_make_one_alert(self, world: World) -> None:
        """M1: one 80 % alert in the period, however many requests and looks there are."""
        world.limit("1000")
        world.spend(79.9, times=10)
        assert world.look() == []
        for _ in range(30):
            world.spend(1)
            world.look()
        (alert,) = world.alerts()
        assert (alert.kind, alert.line, alert.scope) == ("limit", 80, f"limit:{alert.limit_uuid}")
        assert AlertDelivery.objects.filter(alert=alert).count() == 4

    def test_a_jump_tells_the_highest_line_only(self, world: World) -> None:
        world.limit("100")
        world.spend(97)
        (alert,) = world.look()
        assert alert.line == 95
        assert [one.line for one in world.alerts()] == [95]
        world.spend(3)
        (alert,) = world.look()
        assert alert.line == 100
        assert [(one.line, one.ended_at is None) for one in world.alerts()] == [(95, False), (100, True)]
        assert world.look() == []

    def test_two_workers_that_see_the_crossing_at_once_make_one_alert(self, world: World) -> None:
        """M2: one, with one delivery to each who is told; ten times over, all at the same moment."""
        world.limit("100")
        world.spend(85)
        start, found, errors = threading.Barrier(4), [], []

        def work() -> None:
            try:
                with scope.organization(world.organization.pk):
                    start.wait()
                    for _ in range(5):
                        found.extend(telling.look(world.organization.pk, now=utc_now()))
            except BaseException as error:
                errors.append(error)
            finally:
                connections.close_all()

        workers = [threading.Thread(target=work) for _ in range(4)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        assert errors == []
        (alert,) = world.alerts()
        assert [one.pk for one in found] == [alert.pk]
        assert AlertDelivery.objects.filter(alert=alert).count() == 4

    def test_the_unique_row_alone_tells_once(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """M2: also where no lock puts the workers in order."""
        monkeypatch.setattr(telling, "_lock", lambda organization_id: None)
        holds = Holding([Found("drift", "books", "day:1", facts={"differences": 1, "standing": 0})], {"drift"})
        start, found, errors = threading.Barrier(4), [], []

        def work() -> None:
            try:
                with scope.organization(world.organization.pk):
                    start.wait()
                    found.extend(telling.tell(world.organization, holds, now=utc_now()))
            except BaseException as error:
                errors.append(error)
            finally:
                connections.close_all()

        workers = [threading.Thread(target=work) for _ in range(4)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        assert (errors, len(found), len(world.alerts())) == ([], 1, 1)
        assert AlertDelivery.objects.filter(alert=found[0]).count() == 2

    def test_a_slower_look_tells_no_lower_line_and_ends_nothing(self, world: World) -> None:
        limit = world.limit("100")
        before = utc_now() - timedelta(seconds=1)
        world.spend(96)
        assert [one.line for one in world.look()] == [95]
        facts = {"level": "member", "metric": "credits", "window": "day", "used": 82 * CREDIT, "limit": 100 * CREDIT}
        (told,) = world.alerts()
        slower = Found("limit", told.scope, told.period, 80, member_id=world.member.pk, limit_uuid=limit.uuid, facts=facts)
        assert telling.tell(world.organization, Holding([slower], {"limit"}), now=before) == []
        assert telling.tell(world.organization, Holding([], {"limit"}), now=before) == []
        (told,) = world.alerts()
        assert (told.line, told.ended_at) == (95, None)

    @pytest.mark.parametrize("window", ["5h", "1d", "7d", "30d", "day", "week", "month", "period"])
    @pytest.mark.parametrize("level", ["organization", "team", "member", "key"])
    def test_every_level_and_window_has_lines(self, world: World, level: str, window: str) -> None:
        world.limit("10", scope=level, window=window)
        world.spend(8)
        (alert,) = world.look()
        ids = {"organization": None, "team": world.team.pk, "member": world.member.pk, "key": world.key.row.pk}
        assert (alert.kind, alert.line) == ("limit", 80)
        named = {name for name in ("team", "member", "key") if getattr(alert, f"{name}_id") is not None}
        assert named == {level} - {"organization"}
        assert ids[level] in (None, getattr(alert, f"{level}_id", None))
        assert (alert.facts["used"], alert.facts["limit"], alert.facts["window"]) == (8 * CREDIT, 10 * CREDIT, window)
        assert (alert.facts["resets_at"] is None) == (window in ("5h", "1d", "7d", "30d"))

    @pytest.mark.parametrize(("metric", "amount"), [("tokens", "100"), ("requests", "5")])
    def test_every_metric_that_is_used_up_has_lines(self, world: World, metric: str, amount: str) -> None:
        """Of credits, a thousandth of a credit is one token here."""
        world.limit(amount, metric=metric)
        world.spend(0.02, times=4)
        (alert,) = world.look()
        assert (alert.line, alert.facts["metric"]) == (80, metric)

    def test_rates_have_none_and_a_limit_that_blocks_has_none(self, world: World) -> None:
        world.limit("5", metric="requests_per_minute", window="")
        world.spend(1, times=5)
        world.limit("0")
        assert world.look() == []

    def test_what_is_held_is_not_counted(self, world: World) -> None:
        """A line that was told must not turn out to be wrong when a running request costs less than it might have."""
        world.limit("100")
        loaded = snapshot.load(world.organization.pk)

        async def run() -> None:
            redis = client()
            await admission.admit(
                redis, loaded, world.key_of(loaded), request_id=request_id(), need=credits_of(90), about=world.about
            )
            await redis.close()

        asyncio.run(run())
        assert world.look() == []

    def test_the_next_period_is_told_anew_and_the_old_alert_ends(self, world: World) -> None:
        told_of = [Found("limit", "limit:x", f"day:{day}", 80, facts={}) for day in (1, 2)]
        now = utc_now()
        first = telling.tell(world.organization, Holding(told_of[:1], {"limit"}), now=now)
        assert telling.tell(world.organization, Holding(told_of[:1], {"limit"}), now=now) == []
        second = telling.tell(world.organization, Holding(told_of[1:], {"limit"}), now=now + timedelta(hours=1))
        assert (len(first), len(second)) == (1, 1)
        assert [(one.period, one.ended_at is None) for one in world.alerts()] == [("day:1", False), ("day:2", True)]

    def test_what_rolls_is_told_again_only_after_it_was_below_the_lines(self, world: World) -> None:
        """Its slice of time ends while it stands: nothing new was crossed."""
        now, kinds = utc_now(), {"limit"}

        def rolling(number: int, line: int = 80) -> Holding:
            return Holding([Found("limit", "limit:x", f"5h:{number}", line, facts={}, is_rolling=True)], kinds)

        def tell(holds: Holding, hours: int) -> list[int]:
            return [one.line for one in telling.tell(world.organization, holds, now=now + timedelta(hours=hours))]

        assert tell(rolling(1), 0) == [80]
        assert tell(rolling(2), 5) == []
        assert tell(rolling(2, 95), 6) == [95]
        assert tell(rolling(3, 80), 10) == []
        assert tell(Holding([], kinds), 11) == []
        assert all(one.ended_at for one in world.alerts())
        assert tell(rolling(3), 12) == [80]
        assert tell(Holding([], kinds), 13) == []
        assert tell(rolling(3), 14) == []

    def test_what_falls_below_and_comes_back_in_its_period_is_open_again_and_not_told(self, world: World) -> None:
        limit = world.limit("100")
        world.spend(85)
        assert len(world.look()) == 1
        until = utc_now() + timedelta(hours=1)
        boost = limits.boost(limit, extra=900 * CREDIT, until=until, reason="", by=None, now=utc_now())
        assert world.look() == []
        assert world.alerts()[0].ended_at is not None
        limits.end_boost(boost, by=None, now=utc_now())
        assert world.look() == []
        (alert,) = world.alerts()
        assert alert.ended_at is None

    def test_limits_of_who_has_left_and_of_revoked_keys_are_not_told(self, world: World) -> None:
        world.limit("10", scope="key")
        world.limit("10")
        world.spend(9)
        keys.revoke(world.key.row, by=None, now=utc_now())
        members.remove(world.member, by=None, now=utc_now())
        assert world.look() == []

    def test_a_suspended_organization_is_left_alone(self, world: World) -> None:
        world.limit("10")
        world.spend(9)
        Organization.objects.filter(pk=world.organization.pk).update(is_active=False)
        assert world.look() == []

    def test_what_cannot_be_asked_ends_nothing_and_the_rest_is_told(self, world: World, settings: Any) -> None:
        """While Redis is away."""
        kept = settings.REDIS_URL
        world.limit("10")
        world.spend(9)
        assert len(world.look()) == 1
        Drift.objects.create(
            organization=world.organization, found_at=utc_now(), kind="cell", record="o", field="f1", expected=1, counted=2
        )

        settings.REDIS_URL = "redis://127.0.0.1:9/0"
        weir_redis.sync_client.cache_clear()
        try:
            (alert,) = world.look()
        finally:
            settings.REDIS_URL = kept
            weir_redis.sync_client.cache_clear()
        assert alert.kind == "drift"
        assert [(one.kind, one.ended_at) for one in world.alerts()] == [("limit", None), ("drift", None)]


class TestQuota:
    def test_the_plans_quota_has_lines_and_says_what_happens_at_its_end(self) -> None:
        world = World(plan="free")
        world.spend(80_000)
        (alert,) = world.look()
        assert (alert.kind, alert.line, alert.scope, alert.member_id) == ("quota", 80, "plan:o", None)
        title, detail, step = said(world, alert)
        assert title == "The plan’s quota: at most 20 % left"
        assert detail.startswith("20,000 of 100,000 credits left · resets ")
        assert detail.endswith(" · next told at 5 % left")
        assert step == "Change plan /invoices/plan"
        assert said(world, alert, "lead")[2] == "See what is left /overview"
        world.spend(20_000)
        (alert,) = world.look()
        title, detail, _ = said(world, alert)
        assert (alert.line, title) == (100, "The plan’s quota: nothing left")
        assert detail.startswith("0 of 100,000 credits left · requests are refused until ")

    def test_a_seats_quota_is_told_to_who_has_the_seat(self, world: World) -> None:
        factories.subscription(world.organization, plan="free", member=world.member)
        world.spend(96_000)
        (alert,) = world.look()
        assert (alert.line, alert.scope, alert.member_id) == (95, f"plan:m{world.member.pk}", world.member.pk)
        assert world.told(alert) == {"developer", "team lead", "lead", "owner"}
        assert said(world, alert, "developer")[0] == "Your seat’s quota: at most 5 % left"
        assert said(world, alert, "owner")[0] == "Tomasz Wrona’s seat: at most 5 % left"


class TestWho:
    @pytest.mark.parametrize(
        ("level", "told"),
        [
            ("organization", {"lead", "owner"}),
            ("team", {"team lead", "lead", "owner"}),
            ("member", {"developer", "team lead", "lead", "owner"}),
            ("key", {"developer", "team lead", "lead", "owner"}),
        ],
    )
    def test_leads_of_the_scope_and_owners_and_the_member_for_own_limits(self, world: World, level: str, told: set[str]) -> None:
        world.limit("10", scope=level)
        world.spend(8)
        (alert,) = world.look()
        assert world.told(alert) == told

    def test_a_lead_who_is_held_is_told_once(self, world: World) -> None:
        lead = world["team lead"]
        assert lead.user is not None
        limits.set_limit(
            world.organization, scope="member", of=lead.user.email, metric="credits", window="day", amount="10", by=None
        )
        world.member, world.key = lead, factories.api_key(lead)
        world.spend(8)
        (alert,) = world.look()
        assert sorted(world.told(alert)) == ["lead", "owner", "team lead"]

    def test_who_was_invited_and_has_not_come_is_not_told(self, world: World) -> None:
        type(world["lead"]).objects.filter(pk=world["lead"].pk).update(is_awaited=True)
        world.limit("10", scope="organization")
        world.spend(8)
        (alert,) = world.look()
        assert world.told(alert) == {"owner"}

    def test_a_kind_that_is_off_is_not_told_until_it_is_on_again(self, world: World) -> None:
        telling.set_rule(world.organization, "limit", is_on=False, by=None)
        world.limit("10")
        world.spend(8)
        assert world.look() == []
        telling.set_rule(world.organization, "limit", is_on=True, by=None)
        assert len(world.look()) == 1
        events = AuditEvent.objects.filter(organization=world.organization, action="alert.rule_set").order_by("pk")
        assert [event.data for event in events] == [{"is_on": False}, {"is_on": True}]


class TestWords:
    def test_a_daily_limit_says_whose_it_is_what_is_left_and_when_it_resets(self, world: World) -> None:
        limit = world.limit("1000")
        world.spend(960)
        (alert,) = world.look()
        assert said(world, alert, "team lead")[0] == "Tomasz Wrona: at most 5 % of the daily limit left"
        title, detail, step = said(world, alert, "developer")
        assert title == "You: at most 5 % of the daily limit left"
        assert detail.startswith("40.00 of 1,000 credits left · resets ")
        assert detail.endswith(", 00:00 · next told at nothing left")
        assert step == f"Ask for more /key?ask={limit.uuid}"
        assert said(world, alert)[2] == f"Change limit /members/{world.member.uuid}?edit={limit.uuid}"

    @pytest.mark.parametrize(
        ("level", "metric", "window", "title"),
        [
            ("key", "credits", "7d", "The key laptop: at most 20 % of the 7-day limit left"),
            ("team", "requests", "week", "The Quality team: at most 20 % of the weekly limit of requests left"),
        ],
    )
    def test_other_levels_and_metrics_are_named(self, world: World, level: str, metric: str, window: str, title: str) -> None:
        world.limit("5", scope=level, metric=metric, window=window)
        world.spend(1, times=4)
        (alert,) = world.look()
        assert said(world, alert)[0] == title
        assert ("comes back bit by bit" in said(world, alert)[1]) == (window == "7d")

    def test_a_former_members_name_is_not_kept(self, world: World) -> None:
        world.limit("10")
        world.spend(8)
        (alert,) = world.look()
        members.remove(world.member, by=None, now=utc_now())
        assert said(world, alert)[0] == "former member 1: at most 20 % of the daily limit left"
        assert "Tomasz" not in str(Alert.objects.filter(pk=alert.pk).values())


class TestAnomaly:
    NOW = datetime(2026, 11, 18, 14, 30, tzinfo=UTC)

    def hours(self, world: World, credits: float, *, count: int, ago: int = 24) -> None:
        """Active hours of so many credits each, a day apart."""
        for number in range(count):
            made.used(world.key.row, int(credits * CREDIT), at=self.NOW - timedelta(hours=ago + 24 * number))

    def last(self, world: World, credits: float) -> None:
        made.used(world.key.row, int(credits * CREDIT), at=self.NOW - timedelta(minutes=20))

    def found(self, world: World) -> list[Found]:
        with scope.organization(world.organization.pk):
            return rules.burning.anomalies(world.organization, now=self.NOW)

    @pytest.mark.parametrize(("last", "is_told"), [(39.9, False), (40, True), (400, True)])
    def test_from_four_times_the_median_of_active_hours_on(self, last: float, is_told: bool) -> None:
        world = World(plan="free")
        world.limit("1000")
        self.hours(world, 10, count=6)
        self.last(world, last)
        assert bool(self.found(world)) == is_told

    @pytest.mark.parametrize(("limit", "is_told"), [("4000", True), ("4001", False)])
    def test_only_from_a_hundredth_of_the_tightest_limit_on(self, limit: str, is_told: bool) -> None:
        world = World(plan="free")
        world.limit(limit, scope="team")
        world.limit("50000", scope="member", window="month")
        self.hours(world, 10, count=6)
        self.last(world, 40)
        assert bool(self.found(world)) == is_told

    @pytest.mark.parametrize(("count", "is_told"), [(4, False), (5, True)])
    def test_under_five_active_hours_nothing_is_said(self, count: int, is_told: bool) -> None:
        world = World(plan="free")
        world.limit("100")
        self.hours(world, 1, count=count)
        self.last(world, 90)
        assert bool(self.found(world)) == is_told

    def test_hours_of_more_than_fourteen_days_ago_and_the_last_one_do_not_count(self) -> None:
        world = World(plan="free")
        world.limit("100")
        self.hours(world, 1, count=4)
        self.hours(world, 1, count=3, ago=24 * 15)
        self.last(world, 90)
        assert self.found(world) == []

    def test_it_is_told_to_leads_with_how_much_and_how_much_is_usual_once_a_day(self) -> None:
        world = World(plan="free")
        world.limit("1000")
        for credits in (1, 2, 10, 20, 30, 40):
            self.hours(world, credits, count=1, ago=24 + credits)
        self.last(world, 91)
        (found,) = self.found(world)
        assert found.facts == {"credits": 91 * CREDIT, "usual": 15 * CREDIT, "tenths": 60, "hours": 6}
        (alert,) = telling.tell(world.organization, Holding([found], {"anomaly"}), now=self.NOW)
        assert world.told(alert) == {"team lead", "lead", "owner"}
        title, detail, step = said(world, alert)
        assert title == "Tomasz Wrona burned 6.0 times their usual hour"
        assert detail == "91.00 credits in an hour, usually about 15.00 · from 6 active hours in 14 days"
        assert step == f"See requests /requests?member={world.member.uuid}"
        assert said(world, alert, "developer")[0] == "You burned 6.0 times your usual hour"
        assert telling.tell(world.organization, Holding(self.found(world), {"anomaly"}), now=self.NOW) == []


class TestOverage:
    def test_a_quota_that_will_not_last_is_told_to_finance_too_as_a_range(self) -> None:
        world = World(plan="free")
        now = utc_now()
        for days in range(1, 8):
            made.used(world.key.row, 9_000 * CREDIT, at=now - timedelta(days=days))
        with scope.organization(world.organization.pk):
            found = rules.burning.overages(world.organization, now=now)
        (one,) = found
        assert (one.kind, one.scope) == ("overage", "plan:o")
        (alert,) = telling.tell(world.organization, Holding([one], {"overage"}), now=now)
        assert world.told(alert) == {"lead", "owner", "finance"}
        title, detail, _ = said(world, alert)
        assert title.startswith("The plan’s quota will probably run out around ")
        assert "from the last 7 days" in detail
        assert one.facts["low"] == one.facts["expected"] == one.facts["high"]

    def test_each_seat_is_told_by_its_own_use_and_the_plan_by_the_rest(self) -> None:
        world = World(plan="plus")
        now = utc_now()
        factories.subscription(world.organization, plan="free", member=world.member)
        other = factories.api_key(world["colleague"])
        for days in range(1, 8):
            made.used(world.key.row, 9_000 * CREDIT, at=now - timedelta(days=days), source=f"m{world.member.pk}")
            made.used(other.row, CREDIT, at=now - timedelta(days=days))
        with scope.organization(world.organization.pk):
            (one,) = rules.burning.overages(world.organization, now=now)
        assert (one.scope, one.member_id, one.facts["days"]) == (f"plan:m{world.member.pk}", world.member.pk, 7)
        (alert,) = telling.tell(world.organization, Holding([one], {"overage"}), now=now)
        assert world.told(alert) == {"developer", "team lead", "lead", "owner", "finance"}
        assert said(world, alert, "developer")[0].startswith("Your seat’s quota will probably run out around ")

    def test_thin_data_and_a_quota_that_lasts_are_not_told(self) -> None:
        world = World(plan="free")
        now = utc_now()
        for days in range(1, 5):
            made.used(world.key.row, 9_000 * CREDIT, at=now - timedelta(days=days))
        with scope.organization(world.organization.pk):
            assert rules.burning.overages(world.organization, now=now) == []
        other = World(plan="plus")
        for days in range(1, 8):
            made.used(other.key.row, CREDIT, at=now - timedelta(days=days))
        with scope.organization(other.organization.pk):
            assert rules.burning.overages(other.organization, now=now) == []


class TestEvents:
    def test_an_account_that_needs_sign_in_is_told_once_each_time(self, world: World) -> None:
        account, _ = factories.openai_account(world.organization, label="Dario’s key")
        pool_accounts.need_sign_in(account.pk, "the key was revoked")
        (alert,) = world.look()
        assert world.told(alert) == {"lead", "owner"}
        assert said(world, alert) == (
            "Dario’s key needs sign-in", "the key was revoked · its requests go to other accounts", "Give its key /pool"
        )  # fmt: skip
        assert world.look() == []
        type(account).objects.filter(pk=account.pk).update(status="active")
        assert world.look() == []
        assert world.alerts()[0].ended_at is not None
        pool_accounts.need_sign_in(account.pk, "again")
        (again,) = world.look()
        assert again.pk != alert.pk

    def test_requests_that_no_account_can_serve_are_told_once_a_day_and_model(self, world: World) -> None:
        for number, model in enumerate(["gpt-9", "gpt-9", "o7"]):
            now = utc_now()
            Refusal.objects.create(
                organization=world.organization,
                member_id=world.member.pk,
                key_id=world.key.row.pk,
                minute=now + timedelta(minutes=number),
                code="no_account_available",
                model=model,
                message="No account of the pool serves this model.",
                count=3,
                last_at=now,
            )
        first, second = sorted(world.look(), key=lambda one: one.scope)
        assert (first.facts["model"], first.facts["refused"], second.facts["refused"]) == ("gpt-9", 6, 3)
        assert said(world, first)[:2] == (
            "No account of the pool can serve gpt-9",
            "6 requests of 1 member refused · No account of the pool serves this model",
        )
        assert world.look() == []

    def test_usage_that_cannot_be_is_told_once_a_day(self, world: World) -> None:
        made.used(world.key.row, 5 * CREDIT, is_implausible=True)
        (alert,) = world.look()
        made.used(world.key.row, 5 * CREDIT, is_implausible=True)
        assert world.look() == []
        assert world.told(alert) == {"lead", "owner"}
        title, detail, _ = said(world, alert)
        assert title == "1 answer reported usage that cannot be"
        assert detail.startswith("booked at the amounts that were held, 5.00 credits")

    def test_what_the_reconciler_stored_is_told(self, world: World) -> None:
        for number in range(2):
            Drift.objects.create(
                organization=world.organization,
                found_at=utc_now(),
                kind="cell",
                record="o",
                field=f"f{number}",
                expected=1,
                counted=2,
                repaired_at=utc_now(),
            )
        (alert,) = world.look()
        assert said(world, alert)[:2] == (
            "2 differences between the books", "all were put right · counters, log and ledger are compared every hour"
        )  # fmt: skip

    def test_what_happened_stays_open_for_a_week_unless_it_is_acknowledged(self, world: World) -> None:
        made.used(world.key.row, 5 * CREDIT, is_implausible=True)
        (alert,) = world.look()
        world.look(now=utc_now() + timedelta(days=6))
        assert world.alerts()[0].ended_at is None
        assert telling.acknowledge(alert, by=world["owner"], now=utc_now())
        assert not telling.acknowledge(alert, by=world["lead"], now=utc_now())
        alert.refresh_from_db()
        assert alert.acknowledged_by == world["owner"]
        world.look(now=utc_now() + timedelta(days=8))
        assert world.alerts()[0].ended_at is not None

    def test_accounts_are_told_by_whoever_knows_them(self, world: World) -> None:
        """The seam: quotas does not know routing; `config` puts the two together at start."""
        kept = list(rules._troubles)
        try:
            trouble = Trouble(str(uuid4()), "A", "", is_sign_in=True, since=utc_now())
            rules.register_troubles(lambda organization_id: [trouble])
            (alert,) = world.look()
            assert said(world, alert)[2] == "Sign in again /pool"
        finally:
            rules._troubles[:] = kept


class TestTasks:
    @pytest.fixture
    def sent(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """What tasks ask workers for."""
        calls: list[Any] = []
        monkeypatch.setattr(tasks.glance, "delay", lambda *args: calls.append(("glance", *args)))
        monkeypatch.setattr(tasks.look, "delay", lambda *args: calls.append(("look", *args)))
        monkeypatch.setattr(tasks.deliver, "delay", lambda *args: calls.append(("deliver", *args)))
        return calls

    def test_a_walk_asks_for_pages_of_all_or_of_those_that_used_anything_lately(self, world: World, sent: list[Any]) -> None:
        quiet = World()
        world.spend(1)
        world.drain()
        asked = tasks.watch()
        pages = [page for name, page in sent if name == "glance"]
        ids = [one for page in pages for one in page]
        assert len(ids) == asked
        assert world.organization.pk in ids
        assert quiet.organization.pk not in ids
        sent.clear()
        tasks.watch_everybody()
        pages = [page for name, page in sent if name == "look"]
        assert {world.organization.pk, quiet.organization.pk} <= {one for page in pages for one in page}
        assert max(len(page) for page in pages) <= tasks.PAGE

    def test_one_organizations_fault_leaves_the_others_theirs(
        self, world: World, sent: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.limit("10")
        world.spend(9)
        broken = World()
        real = telling.look

        def look(organization_id: int, **options: Any) -> list[Alert]:
            if organization_id == broken.organization.pk:
                raise RuntimeError("broken")
            return real(organization_id, **options)

        monkeypatch.setattr(telling, "look", look)
        assert tasks.look([broken.organization.pk, world.organization.pk]) == 1
        assert sent == [("deliver", world.organization.pk)]

    def test_what_is_older_than_any_period_is_forgotten(self, world: World) -> None:
        made.used(world.key.row, 5 * CREDIT, is_implausible=True)
        (alert,) = world.look()
        long_ago = utc_now() - timedelta(days=telling.KEPT_DAYS + 1)
        Alert.objects.filter(pk=alert.pk).update(told_at=long_ago, ended_at=long_ago)
        assert tasks.forget_old() >= 1
        assert world.alerts() == []
        assert weir_redis.sync_client().ping()
