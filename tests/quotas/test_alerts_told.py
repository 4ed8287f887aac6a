"""Alerts: what other kinds there are, and in which words each is told."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from accounts import members
from config import scope
from config.clock import utc_now
from quotas.alerts import rules, telling
from quotas.alerts.found import Found
from quotas.alerts.models import Alert
from quotas.alerts.rules import Holding, Trouble
from quotas.models import Drift, Refusal
from routing import accounts as pool_accounts
from tests import factories
from tests.pages import made
from tests.quotas.alerting import World, said
from tests.quotas.tenancy import CREDIT

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world() -> World:
    return World()


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
