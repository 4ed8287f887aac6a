"""Walks over due periods: by the calendar, once, in pages, with nobody waiting."""

import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from threading import Barrier, Thread
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.db.models import Count, F, Sum

from accounts import members
from accounts.models import Member, Organization, User
from billing import ledger, rolling, subscriptions, tasks
from billing.models import CreditLot, Invoice, LedgerEntry, Subscription, SubscriptionPeriod
from config.clock import utc_now
from tests import factories
from tests.billing.plans import CREDIT, allowance, expired, plan

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 1, tzinfo=UTC)


def local(zone: str, *when: int) -> datetime:
    return datetime(*when, tzinfo=ZoneInfo(zone)).astimezone(UTC)  # type: ignore[misc,arg-type]


@pytest.mark.usefixtures("nobody_else")
@pytest.mark.parametrize("day", [29, 30, 31])
@pytest.mark.parametrize("year", [2027, 2028])
def test_the_last_days_of_a_month_are_clamped_and_come_back(day: int, year: int) -> None:
    """E1, E7: anchored on the 29th, 30th or 31st: February's last day, then the anchor's own again."""
    zone = "Europe/Paris"
    organization = factories.organization(plan=None, timezone=zone)
    subscription = subscriptions.start(organization, plan(100), now=local(zone, year, 1, day, 9), anchor=date(year, 1, day))
    for month in range(2, 6):
        rolling.open_due_periods(local(zone, year, month, 28) + timedelta(days=4))
        subscription.refresh_from_db()
    february = 29 if year == 2028 else 28
    starts = subscription.periods.order_by("starts_at").values_list("starts_at", flat=True)
    assert [start.astimezone(ZoneInfo(zone)).date() for start in starts] == [
        date(year, 1, day), date(year, 2, min(day, february)), date(year, 3, day), date(year, 4, min(day, 30)),
        date(year, 5, day),
    ][: len(starts)]  # fmt: skip
    assert len(starts) == 5
    ends = subscription.periods.order_by("starts_at").values_list("ends_at", flat=True)
    assert list(ends)[:-1] == list(starts)[1:]


def test_tokyo_resets_at_its_own_midnight() -> None:
    """E2: reset at 2026-08-01T00:00+09:00; at 2026-07-31T15:00:01Z the new period holds."""
    organization = factories.organization(plan=None, timezone="Asia/Tokyo")
    subscription = subscriptions.start(organization, plan(100), now=datetime(2026, 7, 10, tzinfo=UTC), anchor=date(2026, 7, 1))
    assert subscriptions.period_of(subscription, datetime(2026, 7, 31, 14, 59, 59, tzinfo=UTC)).end == local(
        "Asia/Tokyo", 2026, 8, 1
    )
    period = subscriptions.open_period(subscription, datetime(2026, 7, 31, 15, 0, 1, tzinfo=UTC))
    assert period.starts_at == local("Asia/Tokyo", 2026, 8, 1)


def test_a_grant_inside_the_period_grants_the_allowance_no_second_time() -> None:
    """E11: monthly 100, a grant of 50 on day 10: 150 together, not 250."""
    organization = factories.organization(plan=None)
    subscription = subscriptions.start(organization, plan(100), now=START)
    ledger.grant(
        organization, 50 * CREDIT, expires_at=START + timedelta(days=90), reason="Top-up", actor=None, reference="top-up",
        now=START + timedelta(days=10),
    )  # fmt: skip
    rolling.open_due_periods(START + timedelta(days=10))
    lots = sum(CreditLot.objects.filter(organization=organization).values_list("amount", flat=True))
    assert allowance(subscription.periods.get()) + lots == 150 * CREDIT


def test_the_first_allowance_is_posted_once() -> None:
    """E13: put on a plan at the anchor's own instant: one period, one allowance, its reference said once."""
    organization = factories.organization(plan=None)
    subscription = subscriptions.start(organization, plan(100), now=START, anchor=START.date())
    for _ in range(2):
        rolling.open_due_periods(START)
        subscriptions.open_period(subscription, START)
    period = subscription.periods.get()
    (entry,) = LedgerEntry.objects.filter(organization=organization)
    assert (entry.reference, entry.kind, entry.amount) == (f"allowance:{period.uuid}", "allowance", 100 * CREDIT)
    assert (entry.debit, entry.credit, entry.occurred_at) == ("allowance", "issued", START)


def test_what_happens_at_the_very_start_belongs_to_the_new_period() -> None:
    """E12: [start, end)."""
    organization = factories.organization(plan=None)
    subscription = subscriptions.start(organization, plan(100), now=START)
    edge = subscription.periods.get().ends_at
    assert subscriptions.period_of(subscription, edge).start == edge
    assert subscriptions.period_of(subscription, edge - timedelta(microseconds=1)).end == edge


def test_a_period_opened_ahead_is_granted_when_it_begins() -> None:
    organization = factories.organization(plan=None)
    subscription = subscriptions.start(organization, plan(100, reset="weekly"), now=START)
    edge = subscription.periods.get().ends_at
    rolling.open_due_periods(edge - timedelta(hours=2), ahead=timedelta(hours=6))
    ahead = subscription.periods.get(starts_at=edge)
    assert (ahead.quota, allowance(ahead)) == (100 * CREDIT, 0)
    rolling.open_due_periods(edge, ahead=timedelta(hours=6))
    assert (subscription.periods.count(), allowance(ahead)) == (2, 100 * CREDIT)


def test_the_seat_of_a_removed_member_ends() -> None:
    organization = factories.organization(plan=None)
    member = factories.member(organization)
    seat = subscriptions.add_seat(member, plan(100), by=None, now=START)
    stays = subscriptions.add_seat(factories.member(organization), plan(100), by=None, now=START)
    members.remove(member, by=None, now=START)
    rolling.open_due_periods(START + timedelta(days=1))
    seat.refresh_from_db()
    stays.refresh_from_db()
    assert (seat.ended_at, stays.ended_at) == (START + timedelta(days=1), None)


def test_the_tasks_wait_a_little_before_they_close() -> None:
    organization = factories.organization(plan=None)
    subscription = subscriptions.start(organization, plan(100, price="1.00"), now=START)
    rolling.close_due_periods(subscription.periods.get().ends_at + timedelta(minutes=14), grace=tasks.GRACE)
    assert not Invoice.objects.for_organization(organization).exists()
    now = subscription.periods.get().ends_at + timedelta(minutes=15)
    rolling.close_due_periods(now, grace=tasks.GRACE)
    assert Invoice.objects.for_organization(organization).get().issued_at == now


def test_the_tasks_may_run_twice() -> None:
    organization = factories.organization(plan=None)
    subscription = subscriptions.start(organization, plan(100, price="1.00"), now=utc_now() - timedelta(days=40))
    for _ in range(2):
        tasks.open_next_periods()
        tasks.close_ended_periods()
    assert subscription.periods.count() == 2
    assert Invoice.objects.for_organization(organization).count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.alone
def test_five_thousand_seats_due_at_once_are_one_sweep() -> None:
    """E20: 5,000 members due at 00:00, 4 workers: one sweep, in pages, each period once; reading waits for none of it."""
    # Long ago, so that nothing that other tests have committed is due.
    start = datetime(2020, 3, 1, tzinfo=UTC)
    organization = factories.organization(plan=None)
    seat_plan = plan(1, reset="weekly", price="1.00")
    people = Member.objects.bulk_create(
        [
            Member(organization=organization, user=user, role="developer")
            for user in User.objects.bulk_create(
                [User(email=f"{number}@{organization.slug}.example", password="!") for number in range(5000)]
            )
        ]
    )
    seats = Subscription.objects.bulk_create(
        [
            Subscription(organization=organization, member=member, plan=seat_plan, anchor=start.date(), started_at=start)
            for member in people
        ]
    )
    made = _together(lambda: rolling.open_due_periods(start))
    assert sorted(made) == [0, 0, 0, 5000]
    edge = start + timedelta(days=7)
    began = time.monotonic()
    assert subscriptions.period_of(seats[0], edge).start == edge
    assert time.monotonic() - began < 1
    closed = _together(lambda: rolling.close_due_periods(edge))
    assert sorted(closed) == [0, 0, 0, 5000]
    rows = SubscriptionPeriod.objects.filter(organization=organization)
    assert rows.exclude(closed_at=edge).count() == 0
    assert rows.values("subscription").annotate(count=Count("pk")).filter(count__gt=1).count() == 0
    assert rows.exclude(granted=F("quota")).count() == 0
    kinds = LedgerEntry.objects.filter(organization=organization).order_by().values_list("kind").annotate(Count("pk"))
    assert dict(kinds) == {"allowance": 5000, "expiry": 5000}
    invoice = Invoice.objects.for_organization(organization).get()
    assert (invoice.lines.count(), str(invoice.total)) == (5000, "5000.00")
    assert expired(rows[0]) == CREDIT
    Subscription.objects.for_organization(organization).update(ended_at=edge)


def _together(walk: Any, workers: int = 4) -> list[int]:
    barrier, results = Barrier(workers), []

    def run() -> None:
        try:
            barrier.wait(20)
            results.append(walk())
        finally:
            connection.close()

    threads = [Thread(target=run) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


def test_periods_that_nobody_opened_in_their_time_are_opened_and_invoiced() -> None:
    """No worker ran for three weeks and nothing was used: each of them is owed like any other."""
    organization = factories.organization(plan=None)
    weekly = plan(100, reset="weekly", price="25.00")
    subscription = subscriptions.start(organization, weekly, now=START, anchor=START.date())
    later = START + timedelta(days=23)
    assert rolling.open_due_periods(later) == 3
    starts = subscription.periods.order_by("starts_at").values_list("starts_at", flat=True)
    assert list(starts) == [START + timedelta(days=7 * number) for number in range(4)]
    assert rolling.open_due_periods(later) == 0
    assert rolling.close_due_periods(later) == 3
    assert Invoice.objects.for_organization(organization).aggregate(sum=Sum("total"))["sum"] == Decimal("75.00")
    assert [allowance(period) for period in subscription.periods.order_by("starts_at")] == [100 * CREDIT] * 4


def test_one_organizations_trouble_does_not_keep_the_others_from_theirs(caplog: pytest.LogCaptureFixture) -> None:
    broken, whole = factories.organization(plan=None), factories.organization(plan=None)
    for organization in (broken, whole):
        subscriptions.start(organization, plan(100, reset="weekly"), now=START, anchor=START.date())
    # Stands for whatever may be wrong with one organization.
    Organization.objects.filter(pk=broken.pk).update(timezone="Mars/Olympus")
    later = START + timedelta(days=8)
    rolling.open_due_periods(later)
    rolling.close_due_periods(later)

    def states(organization: Organization) -> list[bool]:
        rows = SubscriptionPeriod.objects.filter(organization=organization).order_by("starts_at")
        return [row.closed_at is not None for row in rows]

    assert states(whole) == [True, False]
    assert states(broken) == [False]
    told = [record for record in caplog.records if record.message == "a part of a walk failed"]
    assert {vars(record)["organization_id"] for record in told} == {broken.pk}
