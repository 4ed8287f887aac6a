"""Subscriptions and their periods."""

from datetime import UTC, date, datetime, timedelta
from threading import Barrier, Thread

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F

from billing import rolling, subscriptions, tasks
from billing.errors import AlreadySubscribed, PlanNotActivatable
from billing.models import Plan, Subscription, SubscriptionPeriod
from config.clock import utc_now
from tests import factories

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)

pytestmark = pytest.mark.django_db


def plan(slug: str) -> Plan:
    return Plan.objects.get(slug=slug)


@pytest.mark.parametrize(
    ("slug", "reset_period", "quota"),
    [
        ("free", "monthly", 100_000_000_000),
        ("plus", "weekly", 1_000_000_000_000),
        ("pro", "weekly", 20_000_000_000_000),
        ("business", "weekly", 50_000_000_000_000),
        ("enterprise", "monthly", None),
    ],
)
def test_the_seeded_plans(slug: str, reset_period: str, quota: int | None) -> None:
    assert (plan(slug).reset_period, plan(slug).quota) == (reset_period, quota)
    assert plan(slug).note.startswith("Ours")


def test_a_start_opens_the_current_period_and_is_heard_of() -> None:
    organization = factories.organization(plan=None, timezone="Asia/Tokyo")
    late = datetime(2026, 11, 30, 16, tzinfo=UTC)
    subscription = subscriptions.start(organization, plan("plus"), now=late)
    assert subscription.anchor == date(2026, 12, 1)
    period = subscription.periods.get()
    assert (period.starts_at, period.ends_at) == (datetime(2026, 11, 30, 15, tzinfo=UTC), datetime(2026, 12, 7, 15, tzinfo=UTC))
    assert (period.quota, period.used_from_quota) == (1_000_000_000_000, 0)
    before = organization.config_version
    organization.refresh_from_db()
    assert organization.config_version == before + 1


def test_a_plan_without_a_quota_cannot_be_started() -> None:
    organization = factories.organization(plan=None)
    with pytest.raises(PlanNotActivatable, match="Enterprise has no quota yet"):
        subscriptions.start(organization, plan("enterprise"), now=NOW)
    assert not Subscription.objects.for_organization(organization).exists()


def test_one_active_subscription_and_one_seat_for_each_member() -> None:
    organization = factories.organization(plan=None)
    first, second = factories.member(organization), factories.member(organization)
    own = subscriptions.start(organization, plan("plus"), now=NOW)
    subscriptions.start(organization, plan("pro"), now=NOW, member=first)
    subscriptions.start(organization, plan("pro"), now=NOW, member=second)
    with pytest.raises(AlreadySubscribed):
        subscriptions.start(organization, plan("pro"), now=NOW)
    with pytest.raises(AlreadySubscribed):
        subscriptions.start(organization, plan("plus"), now=NOW, member=first)
    assert Subscription.objects.for_organization(organization).count() == 3
    subscriptions.end(own, now=NOW)
    subscriptions.start(organization, plan("pro"), now=NOW)
    assert Subscription.objects.for_organization(organization).active().count() == 3


def test_a_seat_is_for_ones_own_member() -> None:
    stranger = factories.member(factories.organization(plan=None))
    organization = factories.organization(plan=None)
    with pytest.raises(ValueError, match="another organization"):
        subscriptions.start(organization, plan("plus"), now=NOW, member=stranger)
    assert not Subscription.objects.for_organization(organization).exists()


def test_an_end_holds_once_and_keeps_what_was_used() -> None:
    organization = factories.organization(plan=None)
    subscription = subscriptions.start(organization, plan("plus"), now=NOW)
    subscriptions.end(subscription, now=NOW + timedelta(hours=1))
    subscriptions.end(subscription, now=NOW + timedelta(hours=2))
    assert subscription.ended_at == NOW + timedelta(hours=1)
    assert subscription.periods.count() == 1


def test_the_next_period_is_opened_once() -> None:
    """E13 for periods: what is repeated grants one allowance."""
    organization = factories.organization(plan=None)
    subscription = subscriptions.start(organization, plan("plus"), now=NOW)
    end = subscription.periods.get().ends_at
    rolling.open_due_periods(end - timedelta(microseconds=1))
    assert subscription.periods.count() == 1
    for _ in range(2):
        rolling.open_due_periods(end)
    assert [period.starts_at for period in subscription.periods.order_by("starts_at")] == [end - timedelta(days=7), end]


def test_ended_subscriptions_open_no_periods() -> None:
    organization = factories.organization(plan=None)
    subscription = subscriptions.start(organization, plan("plus"), now=NOW)
    subscriptions.end(subscription, now=NOW)
    rolling.open_due_periods(NOW + timedelta(days=30))
    assert subscription.periods.count() == 1


def test_the_task_opens_what_is_due_and_may_run_twice() -> None:
    organization = factories.organization(plan=None)
    subscription = subscriptions.start(organization, plan("plus"), now=utc_now() - timedelta(days=9))
    tasks.open_next_periods()
    assert subscription.periods.count() == 2
    tasks.open_next_periods()
    assert subscription.periods.count() == 2


def test_the_database_forbids_a_negative_rest_outside_the_overdraft() -> None:
    """A3: remaining 3, two charges of 2: the second would go below zero and is refused by the constraint, remaining 1."""
    period = subscriptions.start(factories.organization(plan=None), plan("plus"), now=NOW).periods.get()
    SubscriptionPeriod.objects.filter(pk=period.pk).update(quota=3)
    row = SubscriptionPeriod.objects.filter(pk=period.pk)
    row.update(used_from_quota=F("used_from_quota") + 2)
    with pytest.raises(IntegrityError, match="period_quota_not_overdrawn"), transaction.atomic():
        row.update(used_from_quota=F("used_from_quota") + 2)
    row.update(overdraft=F("overdraft") + 2)
    period.refresh_from_db()
    assert (period.quota - period.used_from_quota, period.overdraft) == (1, 2)


@pytest.mark.django_db(transaction=True)
def test_of_two_charges_at_once_one_is_refused() -> None:
    """A3: remaining 3, two simultaneous charges of 2: one succeeds, one is refused, remaining 1."""
    period = subscriptions.start(factories.organization(plan=None), plan("plus"), now=NOW).periods.get()
    SubscriptionPeriod.objects.filter(pk=period.pk).update(quota=3)
    barrier, outcomes = Barrier(2), []

    def charge() -> None:
        try:
            barrier.wait(10)
            SubscriptionPeriod.objects.filter(pk=period.pk).update(used_from_quota=F("used_from_quota") + 2)
        except IntegrityError:
            outcomes.append("refused")
        else:
            outcomes.append("charged")
        finally:
            connection.close()

    threads = [Thread(target=charge) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == ["charged", "refused"]
    period.refresh_from_db()
    assert period.quota - period.used_from_quota == 1
