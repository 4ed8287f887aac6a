"""A change of the organization's zone: days are counted anew, what was used stays used, and nobody gets a second quota."""

import threading
import time
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import connections

from accounts import job_running
from accounts.errors import ZoneUnknown
from accounts.models import AuditEvent, Job, Organization
from billing import changes, rolling, subscriptions
from billing.models import Plan, Subscription, SubscriptionPeriod, UsageHour
from billing.periods import day_start
from config import scope
from config.clock import utc_now
from quotas import reconcile, windows, zones
from tests import factories
from tests.pages import made
from tests.quotas import tenancy
from tests.quotas.tenancy import CREDIT, Tenant
from tests.quotas.test_rebuild import spend

pytestmark = pytest.mark.django_db(transaction=True)

EAST, WEST = "Pacific/Kiritimati", "Pacific/Pago_Pago"
"""Fourteen hours ahead of UTC, and eleven behind."""


@pytest.fixture
def tenant() -> Tenant:
    return tenancy.make(team=True)


def zone_of(tenant: Tenant) -> ZoneInfo:
    return ZoneInfo(Organization.objects.get(pk=tenant.organization.pk).timezone)


def used_since(tenant: Tenant, window: str, now: float) -> int:
    """What the log holds of the calendar window that `now` is in, read by hand."""
    zone = zone_of(tenant)
    first = windows.first_day(window, datetime.fromtimestamp(now, zone).date().toordinal())
    days = ((datetime.fromtimestamp(row.admitted_at.timestamp(), zone).date().toordinal(), row.credits) for row in tenant.log())
    return sum(credits for day, credits in days if day >= first)


def test_each_calendar_window_holds_what_was_used_in_it_by_the_new_clock(tenant: Tenant) -> None:
    for window in ("day", "week", "month", "7d", "1d", "period"):
        tenant.set_limit("100000", window=window)
    now = time.time()
    # One request an hour, each of another size, so that an hour more or less shows.
    for hours in range(60, -1, -1):
        spend(tenant, hours + 1, at=now - hours * 3600)
    tenant.drain()
    before = {state.window: state.used for state in tenant.usage().limits}
    plan = tenant.usage().plan
    for zone in (EAST, WEST, "UTC"):
        zones.change(tenant.organization, zone, by=None, now=utc_now())
        usage = tenant.usage()
        found = {state.window: state.used for state in usage.limits}
        for window in ("day", "week", "month"):
            assert found[window] == used_since(tenant, window, now), (zone, window)
        assert {name: found[name] for name in ("7d", "1d", "period")} == {name: before[name] for name in ("7d", "1d", "period")}
        assert (usage.plan.used, usage.plan.starts_at) == (plan.used, plan.starts_at)
        assert reconcile.reconcile(tenant.organization.pk).differences == ()
    assert found == before
    resets = {state.window: state.resets_at for state in tenant.usage().limits}
    today = utc_now().date()
    assert resets["day"] == int(day_start(today + timedelta(days=1), ZoneInfo("UTC")).timestamp())


def test_a_limit_that_was_used_up_today_is_so_after_the_change_and_its_reset_moves(tenant: Tenant) -> None:
    tenant.set_limit("10", window="day")
    spend(tenant, 10)
    tenant.drain()
    zones.change(tenant.organization, EAST, by=None, now=utc_now())
    [state] = tenant.usage().limits
    assert (state.used, state.remaining) == (10 * CREDIT, 0)
    tomorrow = datetime.now(ZoneInfo(EAST)).date() + timedelta(days=1)
    assert state.resets_at == int(day_start(tomorrow, ZoneInfo(EAST)).timestamp())


def test_what_runs_meanwhile_is_counted_once(tenant: Tenant) -> None:
    tenant.set_limit("100", window="day")
    now = time.time()
    spend(tenant, 3, at=now)
    running = spend(tenant, 5, at=now, state="L")
    zones.change(tenant.organization, EAST, by=None, now=utc_now())
    usage = tenant.usage()
    assert (usage.live, usage.plan.used, usage.plan.held) == (1, 3 * CREDIT, 5 * CREDIT)
    assert tenant.probe.settle(running, time.time(), 4 * CREDIT, 10, ack=now, body=tenant.body())[0] == "OK"
    tenant.drain()
    assert tenant.usage().plan.used == 7 * CREDIT
    # It was admitted in a day of the old calendar; the reconciler, asked for two minutes later, knows where it belongs.
    reconcile.reconcile(tenant.organization.pk, repair=True)
    assert reconcile.reconcile(tenant.organization.pk).differences == ()
    assert tenant.usage().limits[0].used == 7 * CREDIT


def test_rivals_that_spend_through_three_changes_lose_and_win_nothing(tenant: Tenant) -> None:
    tenant.set_limit("100000", window="day")
    spend(tenant, 1)
    done, stop = list[str](), threading.Event()

    def spends() -> None:
        try:
            while not stop.is_set():
                with scope.everything():
                    done.append(spend(tenant, 1))
        finally:
            connections.close_all()

    def spend_on() -> None:
        # A view of the old calendar is refused as stale: what a process does then is load and ask again.
        while not stop.is_set():
            try:
                spends()
            except AssertionError:
                continue

    rivals = [threading.Thread(target=spend_on) for _ in range(3)]
    for rival in rivals:
        rival.start()
    try:
        for zone in (EAST, WEST, "Asia/Kolkata"):
            time.sleep(0.2)
            zones.change(tenant.organization, zone, by=None, now=utc_now())
    finally:
        stop.set()
        for rival in rivals:
            rival.join(30)
    tenant.drain()
    assert len(done) > 3
    reconcile.reconcile(tenant.organization.pk, repair=True)
    assert reconcile.reconcile(tenant.organization.pk).differences == ()
    usage = tenant.usage()
    logged = sum(row.credits for row in tenant.log())
    assert (usage.plan.used, usage.live) == (logged, 0)
    assert logged >= (len(done) + 1) * CREDIT


class TestPeriods:
    def running(self, tenant: Tenant) -> SubscriptionPeriod:
        now = utc_now()
        return SubscriptionPeriod.objects.get(organization=tenant.organization, starts_at__lte=now, ends_at__gt=now)

    def test_the_running_one_keeps_its_start_and_what_was_used_and_ends_with_the_same_local_day(self, tenant: Tenant) -> None:
        spend(tenant, 5)
        tenant.drain()
        before = self.running(tenant)
        [told] = zones.preview(tenant.organization, "America/New_York", now=utc_now())
        zones.change(tenant.organization, "America/New_York", by=None, now=utc_now())
        after = self.running(tenant)
        assert (after.pk, after.starts_at, after.quota, after.used_from_quota) == (
            before.pk,
            before.starts_at,
            before.quota,
            5 * CREDIT,
        )
        assert after.ends_at == day_start(before.ends_at.date(), ZoneInfo("America/New_York"))
        assert (told.member, told.ended_at, told.ends_at) == ("", before.ends_at, after.ends_at)
        assert after.ends_at - before.ends_at in (timedelta(hours=4), timedelta(hours=5))
        # The next one begins where it ends, and is a whole one: no quota for the hours between.
        own = Subscription.objects.get(organization=tenant.organization)
        following = subscriptions.period_of(own, after.ends_at)
        assert following.start == after.ends_at
        assert following.end == day_start(before.ends_at.date() + timedelta(days=7), ZoneInfo("America/New_York"))
        [entry] = AuditEvent.objects.filter(organization=tenant.organization, action="organization.zone_changed")
        assert entry.data == {"before": "UTC", "after": "America/New_York"}

    def test_one_whose_end_would_be_past_ends_when_it_would_have(self, tenant: Tenant) -> None:
        row = self.running(tenant)
        now = row.ends_at - timedelta(hours=1)
        zones.change(tenant.organization, EAST, by=None, now=now)
        row.refresh_from_db()
        assert row.ends_at == now + timedelta(hours=1)
        own = Subscription.objects.get(organization=tenant.organization)
        following = subscriptions.period_of(own, row.ends_at)
        assert following.start == row.ends_at
        assert following.end == day_start(row.ends_at.date() + timedelta(days=7), ZoneInfo(EAST))

    def test_there_and_back_leaves_everything_as_it_was(self, tenant: Tenant) -> None:
        before = self.running(tenant)
        for zone in (WEST, EAST, "UTC"):
            zones.change(tenant.organization, zone, by=None, now=utc_now())
        after = self.running(tenant)
        assert (after.pk, after.starts_at) == (before.pk, before.starts_at)
        assert after.ends_at == before.ends_at or before.ends_at - utc_now() < timedelta(hours=14)

    def test_no_way_through_the_zones_moves_the_end_past_the_last_hour_of_its_day(self, tenant: Tenant) -> None:
        """Else a period would never end, and what it owes would never be asked for."""
        row = self.running(tenant)
        last = day_start(row.ends_at.date(), ZoneInfo(WEST))
        zones.change(tenant.organization, WEST, by=None, now=utc_now())
        for _ in range(3):
            row.refresh_from_db()
            for zone in (EAST, "Pacific/Auckland", "Asia/Kolkata", WEST):
                zones.change(tenant.organization, zone, by=None, now=row.ends_at - timedelta(hours=1))
        row.refresh_from_db()
        assert row.ends_at == last

    def test_what_was_opened_ahead_is_opened_anew_and_a_next_plan_follows_the_end(self, tenant: Tenant) -> None:
        own = Subscription.objects.select_related("organization", "plan").get(organization=tenant.organization)
        changes.change_next(own, Plan.objects.get(slug="pro"), by=None, now=utc_now())
        row = self.running(tenant)
        with scope.everything():
            rolling.open_due_periods(utc_now(), ahead=row.ends_at - utc_now() + timedelta(hours=1))
        assert SubscriptionPeriod.objects.filter(subscription=own).count() == 2
        zones.change(tenant.organization, WEST, by=None, now=utc_now())
        row.refresh_from_db()
        own.refresh_from_db()
        assert own.next_plan_at == row.ends_at == day_start(row.starts_at.date() + timedelta(days=7), ZoneInfo(WEST))
        assert SubscriptionPeriod.objects.filter(subscription=own).count() == 1
        with scope.everything():
            rolling.open_due_periods(utc_now(), ahead=row.ends_at - utc_now() + timedelta(hours=1))
        newest = SubscriptionPeriod.objects.filter(subscription=own).latest("starts_at")
        assert (newest.starts_at, newest.plan) == (row.ends_at, Plan.objects.get(slug="pro"))

    def test_a_seat_keeps_its_own(self, tenant: Tenant) -> None:
        seat = subscriptions.add_seat(tenant.member, Plan.objects.get(slug="pro"), by=None, now=utc_now())
        spend(tenant, 2)
        tenant.drain()
        zones.change(tenant.organization, WEST, by=None, now=utc_now())
        plan = tenant.usage().plan
        assert (plan.subject, plan.used) == ("member", 2 * CREDIT)
        row = seat.periods.get()
        assert row.ends_at == day_start(row.starts_at.date() + timedelta(days=7), ZoneInfo(WEST))


class TestHourlySums:
    def days(self, organization: Organization) -> dict[str, int]:
        whole = Organization.objects.get(pk=organization.pk)
        zone = ZoneInfo(whole.timezone)
        today = utc_now().astimezone(zone).date()
        first = today - timedelta(days=3)
        found = {}
        for number in range(4):
            day = first + timedelta(days=number)
            start, end = day_start(day, zone), day_start(day + timedelta(days=1), zone)
            found[day.isoformat()] = sum(
                UsageHour.objects.filter(organization=whole, hour__gte=start, hour__lt=end).values_list("credits", flat=True)
            )
        return found

    def test_those_of_a_zone_off_by_half_an_hour_are_made_anew(self) -> None:
        organization = factories.organization()
        key = factories.api_key(factories.member(organization)).row
        rows = [made.used(key, number, at=utc_now() - timedelta(minutes=20 * number)) for number in range(1, 150)]
        zones.change(organization, "Asia/Kolkata", by=None, now=utc_now())
        job = Job.objects.get(organization=organization)
        assert (job.kind, job.title) == (zones.HOURS, "Hourly sums by the clock of Asia/Kolkata")
        job_running.run(job.pk)
        job.refresh_from_db()
        assert (job.state, job.result["hours"]) == ("done", UsageHour.objects.filter(organization=organization).count())
        expected: dict[str, int] = dict.fromkeys(self.days(organization), 0)
        for row in rows:
            expected[row.admitted_at.astimezone(ZoneInfo("Asia/Kolkata")).date().isoformat()] += row.credits
        assert self.days(organization) == expected
        assert all(hour.hour.minute == 30 for hour in UsageHour.objects.filter(organization=organization))

    def test_those_of_a_whole_hour_stay(self) -> None:
        organization = factories.organization()
        key = factories.api_key(factories.member(organization)).row
        made.used(key, 5)
        zones.change(organization, "Asia/Tokyo", by=None, now=utc_now())
        assert not Job.objects.filter(organization=organization).exists()
        assert sum(self.days(organization).values()) == 5


def test_the_same_zone_changes_nothing_and_what_is_no_zone_is_refused() -> None:
    organization = factories.organization(timezone="Europe/Berlin")
    before = organization.config_version
    zones.change(organization, "Europe/Berlin", by=None, now=utc_now())
    with pytest.raises(ZoneUnknown):
        zones.change(organization, "Mars/Olympus", by=None, now=utc_now())
    organization.refresh_from_db()
    assert (organization.config_version, organization.timezone) == (before, "Europe/Berlin")
    assert not AuditEvent.objects.filter(organization=organization, action="organization.zone_changed").exists()
