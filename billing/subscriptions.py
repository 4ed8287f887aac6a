"""Starts and ends subscriptions, and opens their periods. Nobody waits for a period's row: the path derives periods on read."""

from datetime import date, datetime
from zoneinfo import ZoneInfo

from django.db import IntegrityError, transaction

from accounts.models import Member, Organization
from billing.errors import AlreadySubscribed, PlanNotActivatable
from billing.models import Plan, Subscription, SubscriptionPeriod
from billing.periods import Period, period_at
from config import snapshot


def start(
    organization: Organization, plan: Plan, *, now: datetime, member: Member | None = None, anchor: date | None = None
) -> Subscription:
    """Puts the organization (or one member, with a seat) on a plan and opens the current period.

    `anchor` is a day in the organization's zone, by default today's. Raises PlanNotActivatable for a plan without a quota and
    AlreadySubscribed where an active subscription exists; a member of another organization is a ValueError.
    """
    if plan.quota is None:
        raise PlanNotActivatable(f"The plan {plan.name} has no quota yet. Set one before it is used.", plan=plan.slug)
    if member is not None and member.organization_id != organization.pk:
        raise ValueError("the member belongs to another organization")
    try:
        with transaction.atomic():
            subscription = Subscription.objects.create(
                organization=organization,
                member=member,
                plan=plan,
                anchor=anchor or now.astimezone(ZoneInfo(organization.timezone)).date(),
                started_at=now,
            )
            open_period(subscription, now)
            snapshot.bump(organization.pk)
    except IntegrityError as error:
        if "subscription_one_active_per_subject" not in str(error):
            raise
        raise AlreadySubscribed(f"{member or organization} has an active subscription already.") from error
    return subscription


def end(subscription: Subscription, *, now: datetime) -> None:
    """Ends it now; what was used stays. A second call changes nothing."""
    with transaction.atomic():
        ended = Subscription.objects.filter(pk=subscription.pk, ended_at=None).update(ended_at=now)
        if ended:
            snapshot.bump(subscription.organization_id)
    subscription.refresh_from_db(fields=["ended_at"])


def period_of(subscription: Subscription, now: datetime) -> Period:
    """The period of `now`, by the calendar of the organization's zone."""
    return period_at(subscription.anchor, subscription.plan.reset_period, subscription.organization.timezone, now)


def open_period(subscription: Subscription, now: datetime, *, starts_at: datetime | None = None) -> SubscriptionPeriod:
    """The row of the period that `now` lies in, made if it is missing. Safe to repeat and to race.

    `starts_at`: what the engine counted by, kept as the row's start even where the calendar has since changed.
    """
    period = period_of(subscription, now)
    row, _ = SubscriptionPeriod.objects.get_or_create(
        subscription=subscription,
        starts_at=starts_at or period.start,
        defaults={
            "organization_id": subscription.organization_id,
            "plan": subscription.plan,
            "ends_at": period.end,
            "quota": subscription.plan.quota or 0,
        },
    )
    return row


def open_due_periods(now: datetime) -> int:
    """Opens the current period of every active subscription that lacks it; how many were made. Safe to repeat."""
    made = 0
    current = (
        Subscription.objects.active()
        .exclude(periods__starts_at__lte=now, periods__ends_at__gt=now)
        .select_related("organization", "plan")
        .order_by("pk")
    )
    for subscription in current.iterator(chunk_size=500):
        open_period(subscription, now)
        made += 1
    return made
