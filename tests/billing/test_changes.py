"""Changes of plan: previewed, by calendar days, never granting twice."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest

from accounts.models import AuditEvent, Organization
from billing import changes, invoicing, rolling, snapshots, subscriptions
from billing.errors import ChangeMoved, ChangeRefused, PlanNotActivatable
from billing.models import LedgerEntry, Plan, Subscription, SubscriptionPeriod
from tests import factories
from tests.billing.plans import CREDIT, allowance, plan

pytestmark = pytest.mark.django_db

PARIS = "Europe/Paris"
MARCH_1 = datetime(2026, 2, 28, 23, tzinfo=UTC)
MARCH_16 = datetime(2026, 3, 16, 11, 30, tzinfo=UTC)
APRIL_1 = datetime(2026, 3, 31, 22, tzinfo=UTC)


def subscribed(to: Plan, *, now: datetime = MARCH_1, timezone: str = PARIS) -> Subscription:
    return subscriptions.start(factories.organization(plan=None, timezone=timezone), to, now=now)


def current(subscription: Subscription, now: datetime) -> SubscriptionPeriod:
    return subscription.periods.get(starts_at__lte=now, ends_at__gt=now)


def use(period: SubscriptionPeriod, credits: int) -> None:
    SubscriptionPeriod.objects.filter(pk=period.pk).update(used_from_quota=credits * CREDIT)


def version(subscription: Subscription) -> int:
    return Organization.objects.get(pk=subscription.organization_id).config_version


def test_a_change_in_mid_period_takes_each_days_share() -> None:
    """E15: March in Paris, half used; 16 of 31 days are left, though one day has 23 hours."""
    subscription = subscribed(plan(310, price="31.00", name="Small"))
    use(current(subscription, MARCH_16), 155)
    large = plan(620, price="62.00", name="Large")
    change = changes.change_plan(subscription, large, by=None, now=MARCH_16)
    assert (change.days_left, change.days, change.restarts) == (16, 31, False)
    assert (change.quota_now, change.used, change.remaining_now) == (310 * CREDIT, 155 * CREDIT, 155 * CREDIT)
    assert (change.quota_after, change.remaining_after) == ((150 + 320) * CREDIT, 315 * CREDIT)
    assert (change.price_now, change.price_after, change.price_difference) == (
        Decimal("31.00"), Decimal("47.00"), Decimal("16.00"),
    )  # fmt: skip
    period = current(subscription, MARCH_16)
    assert (period.starts_at, period.ends_at, period.plan) == (MARCH_1, APRIL_1, large)
    assert (period.quota, period.used_from_quota, allowance(period)) == (470 * CREDIT, 155 * CREDIT, 470 * CREDIT)
    subscription.refresh_from_db()
    assert subscription.plan == large


@pytest.mark.parametrize(("quota", "reset"), [(620, "monthly"), (31, "monthly"), (70, "weekly")])
def test_the_change_does_exactly_what_its_preview_said(quota: int, reset: str) -> None:
    subscription = subscribed(plan(310, price="10.00"))
    use(current(subscription, MARCH_16), 200)
    to = plan(quota, reset=reset, price="20.00")
    before = version(subscription)
    preview = changes.preview_change(subscription, to, now=MARCH_16)
    assert (version(subscription), subscription.periods.count(), allowance(current(subscription, MARCH_16))) == (
        before, 1, 310 * CREDIT,
    )  # fmt: skip
    assert changes.change_plan(subscription, to, by=None, now=MARCH_16, promise=preview.promise) == preview
    period = current(subscription, MARCH_16)
    assert (period.starts_at, period.ends_at) == (preview.period_after.start, preview.period_after.end)
    assert period.quota == preview.quota_after == allowance(period)
    assert period.quota - period.used_from_quota == preview.remaining_after
    assert version(subscription) == before + 1


def test_a_preview_of_yesterday_is_not_what_is_confirmed_today() -> None:
    subscription = subscribed(plan(310, price="31.00"))
    to = plan(620, price="62.00")
    preview = changes.preview_change(subscription, to, now=MARCH_16 - timedelta(days=1))
    with pytest.raises(ChangeMoved):
        changes.change_plan(subscription, to, by=None, now=MARCH_16, promise=preview.promise)
    subscription.refresh_from_db()
    assert subscription.plan != to
    assert current(subscription, MARCH_16).quota == 310 * CREDIT == allowance(current(subscription, MARCH_16))


def test_a_smaller_plan_never_takes_back_what_was_used() -> None:
    subscription = subscribed(plan(310))
    use(current(subscription, MARCH_16), 300)
    change = changes.change_plan(subscription, plan(31), by=None, now=MARCH_16)
    period = current(subscription, MARCH_16)
    assert (change.quota_after, change.remaining_after) == (300 * CREDIT, 0)
    assert (period.quota, allowance(period)) == (300 * CREDIT, 300 * CREDIT)


def test_going_to_and_fro_grants_nothing_more() -> None:
    """The days' share is remembered below what was used, or each turn would add to it."""
    small, large = plan(31), plan(310)
    subscription = subscribed(large)
    use(current(subscription, MARCH_16), 300)
    for to in (small, large) * 3:
        subscription.refresh_from_db()
        changes.change_plan(subscription, to, by=None, now=MARCH_16)
    period = current(subscription, MARCH_16)
    assert (period.quota, allowance(period)) == (310 * CREDIT, 310 * CREDIT)


def test_another_reset_period_ends_this_one_now_and_begins_a_new_one() -> None:
    subscription = subscribed(plan(310, price="31.00"))
    use(current(subscription, MARCH_16), 100)
    weekly = plan(70, reset="weekly", price="7.00")
    change = changes.change_plan(subscription, weekly, by=None, now=MARCH_16)
    old, new = subscription.periods.order_by("starts_at")
    assert (old.starts_at, old.ends_at, new.starts_at) == (MARCH_1, MARCH_16, MARCH_16)
    assert new.ends_at == datetime(2026, 3, 22, 23, tzinfo=UTC)
    assert (old.quota, allowance(old)) == (150 * CREDIT, 150 * CREDIT)
    assert (new.quota, allowance(new), new.used_from_quota) == (70 * CREDIT, 70 * CREDIT, 0)
    assert (change.price_now, change.price_after) == (Decimal("31.00"), Decimal("22.00"))
    subscription.refresh_from_db()
    assert subscription.anchor == date(2026, 3, 16)
    following = subscriptions.period_of(subscription, new.ends_at)
    assert (following.start, following.end) == (new.ends_at, datetime(2026, 3, 29, 22, tzinfo=UTC))


def test_no_change_of_the_reset_period_grants_twice() -> None:
    """Weekly and monthly by turns on one day: all that can be used is what the last plan grants, however often."""
    weekly, monthly = plan(100, reset="weekly"), plan(400)
    subscription = subscribed(weekly, timezone="UTC", now=datetime(2026, 3, 16, tzinfo=UTC))
    now = datetime(2026, 3, 16, 8, tzinfo=UTC)
    spent = 0
    for turn, to in enumerate((monthly, weekly) * 3):
        period = current(subscription, now)
        use(period, period.quota // CREDIT)
        spent += period.quota
        now += timedelta(minutes=1 + turn)
        subscription.refresh_from_db()
        changes.change_plan(subscription, to, by=None, now=now)
    period = current(subscription, now)
    assert spent + period.quota == 400 * CREDIT
    assert sum(allowance(one) for one in subscription.periods.all()) == 400 * CREDIT
    starts = list(subscription.periods.order_by("starts_at").values_list("starts_at", "ends_at"))
    assert all(end == start for (_, end), (start, _) in pairwise(starts))


def test_what_the_change_did_not_know_of_is_carried_over_when_the_old_period_closes() -> None:
    """Nothing is granted twice by changing while the drain stands still: 200 of the old plan's 150 were drawn."""
    subscription = subscribed(plan(310))
    changes.change_plan(subscription, plan(70, reset="weekly"), by=None, now=MARCH_16)
    old, new = subscription.periods.order_by("starts_at")
    SubscriptionPeriod.objects.filter(pk=old.pk).update(quota=200 * CREDIT, used_from_quota=200 * CREDIT)
    before = version(subscription)
    invoicing.close_due(subscription.organization_id, now=MARCH_16 + timedelta(minutes=15))
    new.refresh_from_db()
    assert (new.quota, allowance(new), version(subscription)) == (20 * CREDIT, 20 * CREDIT, before + 1)
    SubscriptionPeriod.objects.filter(pk=new.pk).update(used_from_quota=5 * CREDIT)
    subscription.refresh_from_db()
    change = changes.change_plan(subscription, plan(140, reset="weekly"), by=None, now=MARCH_16 + timedelta(minutes=16))
    assert (change.quota_after, change.remaining_after) == (90 * CREDIT, 85 * CREDIT)


def test_a_change_in_the_very_second_a_period_began_begins_the_next_second() -> None:
    """The engine tells periods apart by the second that they begin at."""
    subscription = subscribed(plan(310))
    changes.change_plan(subscription, plan(70, reset="weekly"), by=None, now=MARCH_1)
    starts = list(subscription.periods.order_by("starts_at").values_list("starts_at", "ends_at"))
    assert starts[0] == (MARCH_1, MARCH_1 + timedelta(seconds=1))
    assert starts[1][0] == MARCH_1 + timedelta(seconds=1)


def test_a_renewal_on_smaller_terms_keeps_use_and_reset() -> None:
    """E21: weekly 50, used 15; it renews as weekly 25: used 15, remaining 10, reset unchanged; the audit trail tells."""
    subscription = subscribed(plan(50, reset="weekly", name="Fifty"), timezone="UTC")
    now = MARCH_1 + timedelta(days=3)
    before = current(subscription, now)
    use(before, 15)
    change = changes.renew_on(subscription, plan(25, reset="weekly", name="Twenty-five"), by=None, now=now)
    period = current(subscription, now)
    assert (period.pk, period.ends_at, period.used_from_quota) == (before.pk, before.ends_at, 15 * CREDIT)
    assert period.quota - period.used_from_quota == change.remaining_after == 10 * CREDIT
    assert allowance(period) == 25 * CREDIT
    event = AuditEvent.objects.get(organization=subscription.organization, action="subscription.renewed")
    assert (event.data["before"], event.data["after"], event.data["quota"]) == ("Fifty", "Twenty-five", [50 * CREDIT, 25 * CREDIT])


def test_a_renewal_with_another_reset_period_waits_for_the_next_one() -> None:
    subscription = subscribed(plan(50, reset="weekly"), timezone="UTC")
    monthly = plan(200)
    change = changes.renew_on(subscription, monthly, by=None, now=MARCH_16)
    period = current(subscription, MARCH_16)
    assert (period.quota, change.effective_at) == (50 * CREDIT, period.ends_at)
    subscription.refresh_from_db()
    assert (subscription.next_plan, subscription.next_plan_at) == (monthly, period.ends_at)


def test_the_next_plan_takes_over_by_itself() -> None:
    """E20: nobody waits for Celery: path and drain go by the next plan from the first instant of its period."""
    small, large = plan(100, name="Small"), plan(300, name="Large", fast_allowed=False)
    subscription = subscribed(small)
    changes.change_next(subscription, large, by=None, now=MARCH_16)
    (snapshot,) = snapshots.load(subscription.organization_id).subscriptions
    before, after = snapshot.at(APRIL_1 - timedelta(seconds=1)), snapshot.at(APRIL_1)
    assert (before.plan_slug, before.quota_at(MARCH_1), before.fast_allowed) == (small.slug, 100 * CREDIT, True)
    assert (after.plan_slug, after.quota_at(APRIL_1), after.fast_allowed) == (large.slug, 300 * CREDIT, False)
    assert after.period_at(APRIL_1).start == APRIL_1
    subscription.refresh_from_db()
    row = subscriptions.open_period(subscription, APRIL_1)
    assert (row.plan, row.quota, allowance(row)) == (large, 300 * CREDIT, 300 * CREDIT)
    assert subscription.plan == small
    rolling.open_due_periods(APRIL_1)
    subscription.refresh_from_db()
    assert (subscription.plan, subscription.next_plan, subscription.next_plan_at) == (large, None, None)
    assert subscription.periods.count() == 2
    (snapshot,) = snapshots.load(subscription.organization_id).subscriptions
    assert (snapshot.plan_slug, snapshot.quota_at(APRIL_1), snapshot.following) == (large.slug, 300 * CREDIT, None)


def test_a_next_plan_with_another_reset_period_begins_where_the_old_one_ends() -> None:
    subscription = subscribed(plan(100, reset="weekly"), timezone="UTC", now=datetime(2026, 3, 4, tzinfo=UTC))
    monthly = plan(400)
    changes.change_next(subscription, monthly, by=None, now=datetime(2026, 3, 5, tzinfo=UTC))
    edge = datetime(2026, 3, 11, tzinfo=UTC)
    (snapshot,) = snapshots.load(subscription.organization_id).subscriptions
    period = snapshot.at(edge).period_at(edge)
    assert (period.start, period.end) == (edge, datetime(2026, 4, 11, tzinfo=UTC))
    rolling.open_due_periods(edge, ahead=timedelta(hours=6))
    row = current(subscription, edge)
    assert (row.starts_at, row.ends_at, row.quota) == (period.start, period.end, 400 * CREDIT)


def test_a_next_plan_can_be_taken_back() -> None:
    subscription = subscribed(plan(100))
    changes.change_next(subscription, plan(300), by=None, now=MARCH_16)
    changes.keep_plan(subscription, by=None, now=MARCH_16)
    subscription.refresh_from_db()
    assert (subscription.next_plan, subscription.next_plan_at) == (None, None)
    rolling.open_due_periods(APRIL_1)
    assert current(subscription, APRIL_1).quota == 100 * CREDIT


def test_what_was_opened_ahead_follows_a_change() -> None:
    subscription = subscribed(plan(100))
    rolling.open_due_periods(APRIL_1 - timedelta(hours=1), ahead=timedelta(hours=6))
    assert subscription.periods.get(starts_at=APRIL_1).granted == 0
    weekly = plan(70, reset="weekly")
    changes.change_plan(subscription, weekly, by=None, now=APRIL_1 - timedelta(minutes=30))
    rolling.open_due_periods(APRIL_1)
    assert not subscription.periods.filter(starts_at=APRIL_1).exists()
    assert current(subscription, APRIL_1).plan == weekly


@pytest.mark.parametrize("kind", ["unset", "same", "ended", "currency", "overage"])
def test_a_change_that_cannot_be_changes_nothing(kind: str) -> None:
    own = plan(100, price="1.00")
    subscription = subscribed(own)
    to = plan(200, price="2.00", currency="EUR") if kind == "currency" else plan(200)
    if kind == "unset":
        Plan.objects.filter(pk=to.pk).update(base_quota=None)
    elif kind == "overage":
        Plan.objects.filter(pk=to.pk).update(overage_policy="invoice", overage_price=None)
    elif kind == "same":
        to = own
    elif kind == "ended":
        subscriptions.end(subscription, now=MARCH_16)
    to.refresh_from_db()
    entries = LedgerEntry.objects.filter(organization=subscription.organization).count()
    for change in (changes.change_plan, changes.renew_on, changes.change_next):
        with pytest.raises(PlanNotActivatable if kind in ("unset", "overage") else ChangeRefused):
            change(subscription, to, by=None, now=MARCH_16)
    subscription.refresh_from_db()
    assert (subscription.plan, subscription.next_plan) == (own, None)
    assert LedgerEntry.objects.filter(organization=subscription.organization).count() == entries


def test_a_seat_changes_alone() -> None:
    organization = factories.organization(plan=None, timezone=PARIS)
    own = subscriptions.start(organization, plan(310), now=MARCH_1)
    seat = subscriptions.add_seat(factories.member(organization), plan(310), by=None, now=MARCH_1)
    changes.change_plan(seat, plan(620), by=None, now=MARCH_16)
    assert current(seat, MARCH_16).quota == 470 * CREDIT
    assert current(own, MARCH_16).quota == 310 * CREDIT


# ----------------------------------------------------------------------------------------------- changes within one second


@pytest.mark.parametrize("first_at", [MARCH_1, MARCH_16])
def test_changes_back_and_forth_in_one_second_grant_and_cost_what_the_last_one_does(first_at: datetime) -> None:
    month, week = plan(310, price="31.00"), plan(70, price="7.00", reset="weekly")
    subscription = subscribed(month)
    for number, to in enumerate((week, month, week, month)):
        at = first_at + timedelta(milliseconds=200 * number)
        subscription.refresh_from_db()
        preview = changes.preview_change(subscription, to, now=at)
        assert changes.change_plan(subscription, to, by=None, now=at) == preview
    subscription.refresh_from_db()
    later = first_at + timedelta(seconds=10)
    period = current(subscription, later)
    assert (period.plan, period.quota, allowance(period)) == (month, 310 * CREDIT, 310 * CREDIT)
    rows = list(subscription.periods.order_by("starts_at"))
    assert all(one.ends_at == other.starts_at for one, other in pairwise(rows))
    # What the first change cut off counts by its days; all between it and the last are of no day.
    assert [row.quota for row in rows[1:-1]] == [0] * (len(rows) - 2)
    # The path knows the same periods.
    (known,) = snapshots.load(subscription.organization_id).subscriptions
    assert (known.period_at(later).start, known.quota_at(period.starts_at)) == (period.starts_at, 310 * CREDIT)


def test_an_end_in_the_second_of_a_change_ends_what_the_change_began() -> None:
    week = plan(70, reset="weekly")
    subscription = subscribed(plan(310))
    changes.change_plan(subscription, week, by=None, now=MARCH_1)
    subscriptions.end(subscription, now=MARCH_1 + timedelta(milliseconds=500))
    assert max(subscription.periods.values_list("ends_at", flat=True)) == MARCH_1 + timedelta(seconds=2)


def test_what_is_told_late_is_carried_through_all_periods_that_close_together() -> None:
    """Two changes within a minute; what ran during them is booked afterwards, and counts in the period that goes on."""
    month, week = plan(310), plan(70, reset="weekly")
    subscription = subscribed(month)
    old = current(subscription, MARCH_16)
    changes.change_plan(subscription, week, by=None, now=MARCH_16)
    subscription.refresh_from_db()
    changes.change_plan(subscription, month, by=None, now=MARCH_16 + timedelta(seconds=30))
    SubscriptionPeriod.objects.filter(pk=old.pk).update(quota=200 * CREDIT, granted=200 * CREDIT)
    use(old, 200)
    after = current(subscription, MARCH_16 + timedelta(minutes=20))
    assert after.quota == 310 * CREDIT
    invoicing.close_due(subscription.organization_id, now=MARCH_16 + timedelta(minutes=20))
    after.refresh_from_db()
    # 15 of 31 days granted 150; the other 50 count here.
    assert (after.quota, allowance(after)) == (260 * CREDIT, 260 * CREDIT)
