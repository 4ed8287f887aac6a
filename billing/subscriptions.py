"""Starts, suspends and ends subscriptions and seats, and opens their periods. Nobody waits for a period's row: the path derives
periods on read.

What changes a subscription takes the organization's row (`snapshot.bump`), then the ledger's lock, then rows: as everywhere.
"""

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import IntegrityError, transaction
from django.db.models import Count, F
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import Member, Organization, User
from billing import ledger, proration
from billing.errors import AlreadySubscribed, ChangeRefused, PlanNotActivatable
from billing.models import LedgerEntry, Plan, Subscription, SubscriptionPeriod
from billing.periods import Period, among, period_at
from billing.proration import Segment, Terms
from config import snapshot

ALLOWANCE = LedgerEntry.Kind.ALLOWANCE.value


def start(
    organization: Organization, plan: Plan, *, now: datetime, member: Member | None = None, anchor: date | None = None
) -> Subscription:
    """Puts the organization (or one member, with a seat) on a plan and opens the current period.

    `anchor` is a day in the organization's zone, by default today's. Raises PlanNotActivatable for a plan without a quota and
    AlreadySubscribed where an active subscription exists; a member of another organization is a ValueError.
    """
    check_activatable(plan)
    if member is not None and member.organization_id != organization.pk:
        raise ValueError("the member belongs to another organization")
    try:
        with transaction.atomic():
            snapshot.bump(organization.pk)
            subscription = Subscription.objects.create(
                organization=organization,
                member=member,
                plan=plan,
                anchor=anchor or local_day(organization, now),
                started_at=now,
            )
            open_period(subscription, now)
    except IntegrityError as error:
        if "subscription_one_active_per_subject" not in str(error):
            raise
        raise AlreadySubscribed(_("%(value)s has an active subscription already.") % {"value": member or organization}) from error
    return subscription


def end(subscription: Subscription, *, now: datetime) -> None:
    """Ends it now, and its period with it; what was used stays, what is left expires. A second call changes nothing."""
    with transaction.atomic():
        is_over = Subscription.objects.filter(pk=subscription.pk).exclude(ended_at=None).exists()
        own = subscription if is_over else locked(subscription)
        if not is_over and own.ended_at is None:
            own.ended_at, own.next_plan, own.next_plan_at = now, None, None
            own.save(update_fields=["ended_at", "next_plan", "next_plan_at"])
            forget_ahead(own, now)
            # The newest: a change in this very second may have begun it for the next one.
            row = own.periods.filter(ends_at__gt=now).first()
            if row is not None and row.terms.get("until") is None:
                # The day of the end was begun, so it is paid.
                terms = terms_of(row).ended(local_day(own.organization, now) + timedelta(days=1))
                row.ends_at, row.terms = max(now, row.starts_at + timedelta(seconds=1)), proration.to_json(terms)
                row.save(update_fields=["ends_at", "terms"])
    subscription.refresh_from_db(fields=["ended_at", "next_plan", "next_plan_at"])


def suspend(subscription: Subscription, *, by: User | None, now: datetime) -> Subscription:
    """Requests that draw on it are refused from the next one on. Its periods go on. A second time changes nothing."""
    return _set_suspended(subscription, now, by=by)


def resume(subscription: Subscription, *, by: User | None) -> Subscription:
    """The reverse. A second time changes nothing."""
    return _set_suspended(subscription, None, by=by)


def set_overage_cap(subscription: Subscription, cap: int | None, *, by: User | None) -> Subscription:
    """Most micro-credits of a period on invoice, in place of the plan's; None: the plan's again, 0: none."""
    with transaction.atomic():
        own = locked(subscription)
        if own.overage_cap != cap:
            record(own, "subscription.overage_cap", by=by, data={"before": own.overage_cap, "after": cap})
            own.overage_cap = cap
            own.save(update_fields=["overage_cap"])
    return own


def add_seat(member: Member, plan: Plan, *, by: User | None, now: datetime, anchor: date | None = None) -> Subscription:
    """Gives a member a seat: from the next request on they draw on it alone. Raises what `start` raises, and ChangeRefused."""
    if member.removed_at is not None:
        raise ChangeRefused(_("The member has been removed."))
    with transaction.atomic():
        seat = start(member.organization, plan, now=now, member=member, anchor=anchor)
        record(seat, "seat.added", by=by, data={"member": str(member.uuid), "plan": plan.slug})
    return seat


def end_seat(member: Member, *, by: User | None, now: datetime) -> Subscription | None:
    """Ends the member's seat: the next request draws on the organization's subscription. None where there is no seat."""
    with transaction.atomic():
        seat = Subscription.objects.active().filter(member=member).select_related("organization", "plan").first()
        if seat is not None:
            end(seat, now=now)
            record(seat, "seat.ended", by=by, data={"member": str(member.uuid)})
    return seat


# ------------------------------------------------------------------------------------------------------------- periods


def period_of(subscription: Subscription, now: datetime) -> Period:
    """The period of `now`: its row's, else by the calendar of the organization's zone, from the plan that holds then."""
    plan, anchor = plan_at(subscription, now)
    derived = period_at(anchor, plan.reset_period, subscription.organization.timezone, now)
    near = subscription.periods.filter(starts_at__lt=derived.end, ends_at__gt=derived.start).order_by("starts_at")
    return among([Period(*bounds) for bounds in near.values_list("starts_at", "ends_at")], derived, now)


def plan_at(subscription: Subscription, now: datetime) -> tuple[Plan, date]:
    """The plan in force at `now` and its anchor: the next plan's once its period has begun, whether or not somebody rolled it."""
    if subscription.next_plan is None or subscription.next_plan_at is None or now < subscription.next_plan_at:
        return subscription.plan, subscription.anchor
    following = subscription.next_plan
    if following.reset_period == subscription.plan.reset_period:
        return following, subscription.anchor
    return following, local_day(subscription.organization, subscription.next_plan_at)


def open_period(subscription: Subscription, now: datetime, *, starts_at: datetime | None = None) -> SubscriptionPeriod:
    """The row of the period that `now` lies in, made if it is missing, its allowance posted. Safe to repeat and to race.

    `starts_at`: what the engine counted by, kept as the row's start even where the calendar has since changed.
    """
    with transaction.atomic():
        ledger.lock(subscription.organization_id)
        period = period_of(subscription, now)
        row, is_new = SubscriptionPeriod.objects.get_or_create(
            subscription=subscription,
            starts_at=starts_at or period.start,
            defaults=new_row(subscription, plan_at(subscription, now)[0], period),
        )
        if is_new:
            grant(subscription.organization_id, [row])
    return row


def new_row(subscription: Subscription, plan: Plan, period: Period) -> dict[str, object]:
    """The other columns of a period's new row."""
    zone = ZoneInfo(subscription.organization.timezone)
    first, after = period.start.astimezone(zone).date(), period.end.astimezone(zone).date()
    terms = Terms(first_day=first, days=max(1, (after - first).days), segments=(segment_of(plan, first),))
    return {
        "organization_id": subscription.organization_id,
        "plan": plan,
        "ends_at": period.end,
        "quota": terms.quota(0),
        "terms": proration.to_json(terms),
    }


def terms_of(row: SubscriptionPeriod) -> Terms:
    """What was in force in a period; of a row older than such records, its plan's terms with the quota that it has."""
    if row.terms:
        return proration.from_json(row.terms)
    zone = ZoneInfo(row.subscription.organization.timezone)
    first, after = row.starts_at.astimezone(zone).date(), row.ends_at.astimezone(zone).date()
    segment = segment_of(row.plan or row.subscription.plan, first, quota=row.quota)
    return Terms(first_day=first, days=max(1, (after - first).days), segments=(segment,))


def segment_of(plan: Plan, day: date, *, quota: int | None = None) -> Segment:
    """The plan's terms as they are now. A plan whose quota was unset grants nothing: unset is never unlimited."""
    return Segment(
        day=day,
        plan=plan.slug,
        name=plan.name,
        quota=(plan.quota or 0) if quota is None else quota,
        price=plan.price,
        overage_price=plan.overage_price,
        currency=plan.currency,
    )


def grant(organization_id: int, rows: Sequence[SubscriptionPeriod], *, reason: str = "", actor_id: int | None = None) -> int:
    """Brings the allowance that stands in the ledger to the periods' quotas; how many entries. Safe to repeat.

    The caller's transaction holds the ledger's lock. The first entry of a period is `allowance:<uuid>`, corrections are numbered.
    """
    due = [row for row in rows if row.granted != row.quota]
    if not due:
        return 0
    ids = [row.pk for row in due]
    earlier = LedgerEntry.objects.filter(period_id__in=ids, kind=ALLOWANCE).order_by().values_list("period_id")
    counts = dict(earlier.annotate(Count("pk")))
    posted = ledger.post(
        organization_id,
        [
            ledger.Entry(
                kind=ALLOWANCE,
                amount=row.quota - row.granted,
                reference=f"allowance:{row.uuid}" + (f":{counts[row.pk]}" if row.pk in counts else ""),
                occurred_at=row.starts_at,
                period_id=row.pk,
                member_id=row.subscription.member_id,
                actor_id=actor_id,
                reason=reason,
            )
            for row in due
        ],
    )
    SubscriptionPeriod.objects.filter(pk__in=ids).update(granted=F("quota"))
    for row in due:
        row.granted = row.quota
    return posted


# --------------------------------------------------------------------------------------------------- shared with changes


def check_activatable(plan: Plan) -> None:
    """Raises PlanNotActivatable: unset is neither unlimited nor free."""
    if plan.quota is None:
        raise PlanNotActivatable(
            _("The plan %(name)s has no quota yet. Set one before it is used.") % {"name": plan.name}, plan=plan.slug
        )
    if plan.overage_policy == Plan.OveragePolicy.INVOICE and plan.overage_price is None:
        raise PlanNotActivatable(
            _("The plan %(name)s puts overage on the invoice and has no price for it yet. Set one before it is used.")
            % {"name": plan.name},
            plan=plan.slug,
        )


def local_day(organization: Organization, now: datetime) -> date:
    """The day it is in the organization's zone."""
    return now.astimezone(ZoneInfo(organization.timezone)).date()


def locked(subscription: Subscription) -> Subscription:
    """A fresh row, locked in the caller's transaction; everybody's snapshots are outdated by the commit."""
    snapshot.bump(subscription.organization_id)
    ledger.lock(subscription.organization_id)
    rows = Subscription.objects.select_related("organization", "plan", "next_plan", "member")
    return rows.select_for_update(of=("self",), no_key=True).get(pk=subscription.pk)


def forget_ahead(subscription: Subscription, now: datetime) -> None:
    """Rows that were opened ahead and have not begun go: nothing refers to them yet, and they are opened again as they then are."""
    subscription.periods.filter(starts_at__gt=now, granted=0, requests=0, entries=None).delete()


def record(subscription: Subscription, action: str, *, by: User | None, data: dict[str, object]) -> None:
    """In the audit trail, amounts as numbers of micro-credits."""
    audit.record(
        subscription.organization,
        actor=by,
        action=action,
        object_type="subscription",
        object_id=str(subscription.uuid),
        data=data,
    )


def pages(rows: Iterable[Subscription], size: int = 500) -> Iterable[list[Subscription]]:
    """The rows in lists of at most `size`."""
    page: list[Subscription] = []
    for row in rows:
        page.append(row)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page


def _set_suspended(subscription: Subscription, at: datetime | None, *, by: User | None) -> Subscription:
    with transaction.atomic():
        own = locked(subscription)
        if (own.suspended_at is None) != (at is None):
            own.suspended_at = at
            own.save(update_fields=["suspended_at"])
            record(own, "subscription.resumed" if at is None else "subscription.suspended", by=by, data={})
    return own
