"""Alerts: what is told, once, and to whom; the walks that look."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections

from accounts import keys, members
from accounts.models import AuditEvent, Organization
from config import redis as weir_redis
from config import scope, snapshot
from config.clock import utc_now
from config.redis import client
from quotas import admission, limits
from quotas.alerts import tasks, telling
from quotas.alerts.found import Found, line_of
from quotas.alerts.models import Alert, AlertDelivery
from quotas.alerts.rules import Holding
from quotas.models import Drift
from tests import factories
from tests.pages import made
from tests.quotas.alerting import World, said
from tests.quotas.tenancy import CREDIT, credits_of, request_id

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world() -> World:
    return World()


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
