"""Changes of a subscription's plan: now, by calendar days; at a renewal, for the whole period; or with the next period.

What a preview says is what the change then does: both compute the same `Change` from the same rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

from django.db import transaction
from django.utils.translation import gettext as _

from accounts.models import User
from billing import ledger, proration, subscriptions
from billing.errors import ChangeMoved, ChangeRefused
from billing.models import Plan, Subscription, SubscriptionPeriod
from billing.periods import Period, period_at
from billing.proration import Terms


@dataclass(frozen=True, slots=True)
class Change:
    """What a change of plan does. Credits are micro-credits of the period that runs from `effective_at` on; `used` of them is used.

    `restarts`: the old period ends and a new one begins, because the reset period changes. `price_difference` is what the
    subscription's invoices come to more (or, below 0, less) than without the change, up to the end of both periods.
    """

    subscription: UUID
    plan_now: str
    plan_after: str
    effective_at: datetime
    restarts: bool
    period_now: Period
    period_after: Period
    days_left: int
    days: int
    quota_now: int
    used: int
    remaining_now: int
    quota_after: int
    remaining_after: int
    price_now: Decimal
    price_after: Decimal
    currency: str

    @property
    def price_difference(self) -> Decimal:
        return self.price_after - self.price_now

    @property
    def promise(self) -> str:
        """What somebody agrees to, as text to be compared: all but the use, which goes on meanwhile, and the second."""
        agreed = (self.plan_now, self.plan_after, self.restarts, self.days_left, self.days, self.price_difference, self.currency)
        return "|".join(str(part) for part in agreed)


@dataclass(frozen=True, slots=True)
class _Computed:
    change: Change
    terms: Terms
    """Of the period that runs now, after the change."""
    next_terms: Terms | None
    """Of the period that begins now, if one does."""


def preview_change(subscription: Subscription, plan: Plan, *, now: datetime) -> Change:
    """What `change_plan` would do now; changes nothing but that a missing period's row is made. Raises what it raises."""
    return _compute(subscription, plan, _running(subscription, now), now).change


def preview_next(subscription: Subscription, plan: Plan, *, now: datetime) -> Change:
    """What `change_next` would do: this period stays as it is, the next one is the new plan's in full."""
    _check(subscription, plan)
    row = _running(subscription, now)
    terms = subscriptions.terms_of(row)
    quota, price = plan.quota or 0, proration.money(plan.price or Decimal(0))
    old_price = terms.newest.price or Decimal(0)
    after = period_at(
        subscriptions.local_day(subscription.organization, row.ends_at)
        if plan.reset_period != subscription.plan.reset_period
        else subscription.anchor,
        plan.reset_period,
        subscription.organization.timezone,
        row.ends_at,
    )
    return Change(
        subscription=subscription.uuid,
        plan_now=terms.newest.name,
        plan_after=plan.name,
        effective_at=row.ends_at,
        restarts=plan.reset_period != subscription.plan.reset_period,
        period_now=Period(row.starts_at, row.ends_at),
        period_after=after,
        days_left=0,
        days=terms.days,
        quota_now=row.quota,
        used=0,
        remaining_now=row.quota - row.used_from_quota,
        quota_after=quota,
        remaining_after=quota,
        price_now=proration.money(old_price),
        price_after=price,
        currency=plan.currency,
    )


def preview_renewal(subscription: Subscription, plan: Plan, *, now: datetime) -> Change:
    """What `renew_on` would do. Raises what it raises."""
    if plan.reset_period != subscription.plan.reset_period:
        return preview_next(subscription, plan, now=now)
    _check(subscription, plan)
    row = _running(subscription, now)
    old = subscriptions.terms_of(row)
    return _change(subscription, plan, row, old, old.renewed(subscriptions.segment_of(plan, old.first_day)), now)


def change_plan(subscription: Subscription, plan: Plan, *, by: User | None, now: datetime, promise: str = "") -> Change:
    """Puts the subscription on `plan` now, by calendar days of the organization's zone; holds on the very next request.

    With the same reset period the period goes on, what was used stays, and quota and price are the days' shares of both plans. With
    another one the period ends now and a new one begins; what was used beyond the old plan's days counts in it, so nothing is
    granted twice. Raises PlanNotActivatable, ChangeRefused, and ChangeMoved if a preview's `promise` was another.
    """
    with transaction.atomic():
        own, row = _locked(subscription, now)
        computed = _compute(own, plan, row, now)
        _keep_promise(promise, computed.change)
        before = own.plan
        subscriptions.forget_ahead(own, max(now, row.starts_at))
        own.plan, own.next_plan, own.next_plan_at = plan, None, None
        if computed.next_terms is not None:
            own.anchor = subscriptions.local_day(own.organization, now)
            row.ends_at = computed.change.effective_at
        own.save(update_fields=["plan", "anchor", "next_plan", "next_plan_at"])
        reason = f"{before.name} to {plan.name}"
        _set_terms(row, computed.terms, plan if computed.next_terms is None else row.plan, reason, by)
        if computed.next_terms is not None:
            fresh = SubscriptionPeriod.objects.create(
                organization_id=own.organization_id,
                subscription=own,
                plan=plan,
                starts_at=computed.change.period_after.start,
                ends_at=computed.change.period_after.end,
                quota=computed.next_terms.quota(0),
                terms=proration.to_json(computed.next_terms),
            )
            subscriptions.grant(own.organization_id, [fresh], reason=reason, actor_id=by.pk if by else None)
        _record(own, "subscription.plan_changed", computed.change, by)
    return computed.change


def renew_on(subscription: Subscription, plan: Plan, *, by: User | None, now: datetime) -> Change:
    """Renews on other terms: what was used stays, what remains is the new quota less that, and the reset stays where it is.

    The plan's quota and price hold for the whole period. A plan with another reset period takes over with the next one instead.
    Raises PlanNotActivatable, ChangeRefused.
    """
    if plan.reset_period != subscription.plan.reset_period:
        return change_next(subscription, plan, by=by, now=now)
    with transaction.atomic():
        own, row = _locked(subscription, now)
        _check(own, plan)
        old = subscriptions.terms_of(row)
        terms = old.renewed(subscriptions.segment_of(plan, old.first_day))
        change = _change(own, plan, row, old, terms, now)
        before = own.plan
        subscriptions.forget_ahead(own, max(now, row.starts_at))
        own.plan, own.next_plan, own.next_plan_at = plan, None, None
        own.save(update_fields=["plan", "next_plan", "next_plan_at"])
        _set_terms(row, terms, plan, f"Renewed: {before.name} to {plan.name}", by)
        _record(own, "subscription.renewed", change, by)
    return change


def change_next(subscription: Subscription, plan: Plan, *, by: User | None, now: datetime, promise: str = "") -> Change:
    """Lets `plan` take over with the next period, by itself. Raises what `change_plan` raises."""
    with transaction.atomic():
        own, row = _locked(subscription, now)
        change = preview_next(own, plan, now=now)
        _keep_promise(promise, change)
        subscriptions.forget_ahead(own, max(now, row.starts_at))
        own.next_plan, own.next_plan_at = plan, row.ends_at
        own.save(update_fields=["next_plan", "next_plan_at"])
        _record(own, "subscription.next_plan", change, by)
    return change


def keep_plan(subscription: Subscription, *, by: User | None, now: datetime) -> None:
    """Takes back what `change_next` set. Without it, changes nothing."""
    with transaction.atomic():
        own, row = _locked(subscription, now)
        if own.next_plan is not None:
            subscriptions.record(own, "subscription.next_plan", by=by, data={"before": own.next_plan.slug, "after": None})
            subscriptions.forget_ahead(own, max(now, row.starts_at))
            own.next_plan, own.next_plan_at = None, None
            own.save(update_fields=["next_plan", "next_plan_at"])


def take_over(subscription: Subscription, now: datetime) -> bool:
    """Makes the next plan the plan, once its period has begun; the path has gone by it from that moment on. True if it did."""
    with transaction.atomic():
        return _take_over(subscriptions.locked(subscription), now)


def carry_over(rows: Sequence[SubscriptionPeriod]) -> None:
    """For periods that a change of the reset period ended: what was drawn beyond their days by the time they close counts in the
    period that followed, also what the change did not know of yet. The caller holds the organization's row and the ledger's lock.
    """
    for row in rows:
        cut = subscriptions.terms_of(row)
        following = SubscriptionPeriod.objects.filter(subscription=row.subscription, starts_at=row.ends_at, closed_at=None)
        after = following.select_for_update(of=("self",), no_key=True).select_related("subscription__organization", "plan").first()
        if cut.until is None or after is None:
            continue
        # It may be among those that close, and pass on in its turn what comes to it here.
        after = next((one for one in rows if one.pk == after.pk), after)
        terms = subscriptions.terms_of(after)
        carried = max(0, row.used_from_quota - cut.entitlement)
        if carried > terms.carried:
            _set_terms(after, replace(terms, carried=carried), after.plan, f"Drawn before from {row.plan}", None)


# ----------------------------------------------------------------------------------------------------------- computing


def _compute(subscription: Subscription, plan: Plan, row: SubscriptionPeriod, now: datetime) -> _Computed:
    _check(subscription, plan)
    today = subscriptions.local_day(subscription.organization, now)
    terms = subscriptions.terms_of(row)
    if plan.reset_period == subscription.plan.reset_period:
        after = terms.changed(subscriptions.segment_of(plan, today))
        return _Computed(_change(subscription, plan, row, terms, after, now), after, None)
    # Periods are told apart by the second they begin at, so the new one begins at a whole one, later than the old.
    begins = max(now.replace(microsecond=0), row.starts_at + timedelta(seconds=1))
    cut = terms.ended(today)
    derived = period_at(today, plan.reset_period, subscription.organization.timezone, begins)
    fresh = Terms(
        first_day=today,
        days=(subscriptions.local_day(subscription.organization, derived.end) - today).days,
        segments=(subscriptions.segment_of(plan, today),),
        carried=max(0, row.used_from_quota - cut.entitlement),
    )
    change = replace(
        _change(subscription, plan, row, terms, fresh, now),
        effective_at=begins,
        restarts=True,
        period_after=Period(begins, derived.end),
        used=0,
        quota_after=fresh.quota(0),
        remaining_after=fresh.quota(0),
        price_after=cut.price() + fresh.price(),
    )
    return _Computed(change, cut, fresh)


def _change(subscription: Subscription, plan: Plan, row: SubscriptionPeriod, terms: Terms, after: Terms, now: datetime) -> Change:
    period = Period(row.starts_at, row.ends_at)
    quota = after.quota(row.used_from_quota)
    return Change(
        subscription=subscription.uuid,
        plan_now=terms.newest.name,
        plan_after=plan.name,
        effective_at=now,
        restarts=False,
        period_now=period,
        period_after=period,
        days_left=terms.left_on(subscriptions.local_day(subscription.organization, now)),
        days=terms.days,
        quota_now=row.quota,
        used=row.used_from_quota,
        remaining_now=row.quota - row.used_from_quota,
        quota_after=quota,
        remaining_after=quota - row.used_from_quota,
        price_now=terms.price(),
        price_after=after.price(),
        currency=plan.currency,
    )


def _check(subscription: Subscription, plan: Plan) -> None:
    subscriptions.check_activatable(plan)
    if subscription.ended_at is not None:
        raise ChangeRefused(_("The subscription has ended."))
    if subscription.plan_id == plan.pk:
        raise ChangeRefused(_("The subscription is on %(name)s already.") % {"name": plan.name})
    if subscription.plan.currency != plan.currency and subscription.plan.price is not None and plan.price is not None:
        raise ChangeRefused(
            _("%(name)s is priced in %(currency)s, %(name2)s in %(currency2)s: end the one, then start the other.")
            % {
                "name": plan.name,
                "currency": plan.currency,
                "name2": subscription.plan.name,
                "currency2": subscription.plan.currency,
            }
        )


# ------------------------------------------------------------------------------------------------------------- writing


def _keep_promise(promise: str, change: Change) -> None:
    if promise and promise != change.promise:
        raise ChangeMoved(_("Meanwhile the terms of this change are others. Look at the new preview."))


def _locked(subscription: Subscription, now: datetime) -> tuple[Subscription, SubscriptionPeriod]:
    """The subscription and the row of its current period, both locked; a next plan that was due has taken over."""
    own = subscriptions.locked(subscription)
    if own.ended_at is not None:
        raise ChangeRefused(_("The subscription has ended."))
    _take_over(own, now)
    row = _running(own, now)
    rows = SubscriptionPeriod.objects.select_related("plan", "subscription__plan", "subscription__organization")
    return own, rows.select_for_update(of=("self",), no_key=True).get(pk=row.pk)


def _running(subscription: Subscription, now: datetime) -> SubscriptionPeriod:
    """The row that goes on: of `now`, or what a change of the reset period in this very second has begun for the next one."""
    row = subscriptions.open_period(subscription, now)
    while subscriptions.terms_of(row).until is not None:
        after = subscription.periods.filter(starts_at=row.ends_at).first()
        if after is None:
            break
        row = after
    return row


def _take_over(own: Subscription, now: datetime) -> bool:
    if own.next_plan is None or own.next_plan_at is None or now < own.next_plan_at or own.ended_at is not None:
        return False
    before = own.plan.slug
    own.plan, own.anchor = subscriptions.plan_at(own, now)
    own.next_plan, own.next_plan_at = None, None
    own.save(update_fields=["plan", "anchor", "next_plan", "next_plan_at"])
    subscriptions.record(own, "subscription.plan_taken_over", by=None, data={"before": before, "after": own.plan.slug})
    return True


def _set_terms(row: SubscriptionPeriod, terms: Terms, plan: Plan | None, reason: str, by: User | None) -> None:
    """Writes the terms, the quota that follows from them, and the difference in the ledger."""
    row.plan, row.terms, row.quota = plan, proration.to_json(terms), terms.quota(row.used_from_quota)
    row.save(update_fields=["plan", "terms", "quota", "ends_at"])
    ledger.lock(row.organization_id)
    subscriptions.grant(row.organization_id, [row], reason=reason, actor_id=by.pk if by else None)


def _record(subscription: Subscription, action: str, change: Change, by: User | None) -> None:
    data: dict[str, object] = {
        "before": change.plan_now,
        "after": change.plan_after,
        "effective_at": change.effective_at.isoformat(),
        "quota": [change.quota_now, change.quota_after],
        "used": change.used,
        "price_difference": f"{change.price_difference} {change.currency}",
    }
    subscriptions.record(subscription, action, by=by, data=data)
