"""The plan that the organization draws on, its period, seats, and a change of plan. Amounts are decimal text.

A change is previewed first; what the preview promised is what is done, or nothing. Calls that change anything are done once for
each Idempotency-Key.
"""

from datetime import datetime
from typing import Any

from django.http import Http404
from django.urls import path

from accounts import api_tokens
from accounts.permissions import Action
from api.base import REQUIRED, Call, Resource, operation
from api.fields import Choice, Flag, Moment, Query, Shape, Text, Told, Uuid, Whole, iso
from billing import changes, credits, plans, statement
from billing.changes import Change
from billing.models import Plan, Subscription, SubscriptionPeriod

TAG = "Plan"
NOW, NEXT = "now", "next"
WHEN = [(NOW, "By calendar days, from now on"), (NEXT, "With the next period")]


class PlanShape(Shape):
    """What a subscription grants in each period."""

    slug = Told()
    name = Told()
    quota = Told(allow_null=True, help_text="Credits of a period; null: unset, so it cannot be chosen.")
    reset_period = Choice(choices=Plan.ResetPeriod.choices)
    price = Told(allow_null=True, help_text="Of a period; null: none is set.")
    currency = Told()
    overage_policy = Choice(choices=Plan.OveragePolicy.choices)
    overage_price = Told(allow_null=True, help_text="Of one credit on the invoice.")
    is_current = Flag()


class PlansShape(Shape):
    plans = PlanShape(many=True)


class PeriodShape(Shape):
    """What a period grants and what was drawn, by the ledger. Limits count what runs now, too: see `status`."""

    start = Moment()
    end = Moment()
    plan = Told()
    quota = Told()
    used_from_quota = Told()
    left = Told()
    used_from_purchased = Told()
    overage = Told()
    overdraft = Told()
    requests = Whole(min_value=None)
    tokens = Whole(min_value=None)


class SubscriptionShape(Shape):
    """What the organization draws on. Members with a seat draw on that alone."""

    id = Uuid()
    plan = PlanShape()
    started_at = Moment()
    suspended_at = Moment(allow_null=True)
    overage_cap = Told(allow_null=True, help_text="Most credits of a period on the invoice; null: the plan's.")
    next_plan = PlanShape(allow_null=True)
    next_plan_at = Moment(allow_null=True, help_text="When it takes over.")
    period = PeriodShape()


class CurrentPlan(Shape):
    subscription = SubscriptionShape(allow_null=True, help_text="null: no plan, so requests of members without a seat are refused.")


class SeatShape(Shape):
    """A member's own plan, and its current period."""

    id = Uuid()
    member_id = Uuid()
    member = Told()
    plan = Told()
    suspended_at = Moment(allow_null=True)
    period = PeriodShape()


class ChangeQuery(Query):
    plan = Text(max_length=40, help_text="Its slug.")
    when = Choice(choices=WHEN, required=False, help_text="now without a word.")


class ChangeBody(Shape):
    """The change that a preview showed."""

    plan = Text(max_length=40, help_text="Its slug.")
    when = Choice(choices=WHEN)
    promise = Text(max_length=500, help_text="As the preview told it; where it is another by now, nothing is done.")


class ChangeShape(Shape):
    """What a change of plan does. Credits are of the period that runs from `effective_at` on."""

    plan_now = Told()
    plan_after = Told()
    when = Choice(choices=WHEN)
    effective_at = Moment()
    restarts = Flag(help_text="The running period ends, because the reset period changes.")
    period_start = Moment()
    period_end = Moment()
    days_left = Whole()
    days = Whole()
    quota_now = Told()
    used = Told()
    remaining_now = Told()
    quota_after = Told()
    remaining_after = Told()
    price_now = Told()
    price_after = Told()
    price_difference = Told()
    currency = Told()
    promise = Told(help_text="To be sent with the change.")


class CurrentPlanView(Resource):
    @operation(
        "getPlan",
        tag=TAG,
        summary="Get the organization's plan and its current period",
        scope=api_tokens.MONEY_READ,
        action=Action.SEE_MONEY,
        answers=CurrentPlan,
    )
    def get(self, call: Call) -> Any:
        call.demand(Action.SEE_MONEY)
        subscription = statement.subscription_of(call.member.organization)
        return {"subscription": _subscription(subscription, call.now) if subscription is not None else None}


class Plans(Resource):
    @operation(
        "listPlans",
        tag=TAG,
        summary="List the plans that can be chosen",
        description="And the current one.",
        scope=api_tokens.MONEY_READ,
        action=Action.MANAGE_ORGANIZATION,
        answers=PlansShape,
    )
    def get(self, call: Call) -> Any:
        call.demand(Action.MANAGE_ORGANIZATION)
        subscription = statement.subscription_of(call.member.organization)
        if subscription is None:
            return {"plans": []}
        offered = [subscription.plan, *plans.offered(subscription)]
        return {"plans": [_plan(one, is_current=one.pk == subscription.plan_id) for one in offered]}


class PlanChange(Resource):
    @operation(
        "previewPlanChange",
        tag=TAG,
        summary="Preview a change of plan",
        description="What it grants, costs and leaves. Nothing is changed.",
        scope=api_tokens.MONEY_READ,
        action=Action.MANAGE_ORGANIZATION,
        query=ChangeQuery,
        answers=ChangeShape,
        errors=(404, 409),
    )
    def get(self, call: Call) -> Any:
        subscription, plan = _chosen(call, call.query["plan"])
        when = call.query.get("when", NOW)
        preview = changes.preview_change if when == NOW else changes.preview_next
        return _change(preview(subscription, plan, now=call.now), when)

    @operation(
        "changePlan",
        tag=TAG,
        summary="Change the plan as previewed",
        description="Holds on the very next request. 409 with the code `change_moved`: preview it again.",
        scope=api_tokens.MONEY_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        body=ChangeBody,
        answers=ChangeShape,
        idempotency=REQUIRED,
        errors=(404,),
        examples={"With the next period": {"plan": "pro_100", "when": NEXT, "promise": "Plus|Pro 100|…"}},
    )
    def post(self, call: Call) -> Any:
        subscription, plan = _chosen(call, call.body["plan"])
        when = call.body["when"]
        change = changes.change_plan if when == NOW else changes.change_next
        return _change(change(subscription, plan, by=call.by, now=call.now, promise=call.body["promise"]), when)


class KeptPlan(Resource):
    @operation(
        "keepPlan",
        tag=TAG,
        summary="Take back the plan that was to take over",
        description="Without one nothing is changed.",
        scope=api_tokens.MONEY_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        answers=CurrentPlan,
        idempotency=REQUIRED,
        errors=(404,),
    )
    def post(self, call: Call) -> Any:
        call.demand(Action.MANAGE_ORGANIZATION)
        subscription = statement.subscription_of(call.member.organization)
        if subscription is None:
            raise Http404
        changes.keep_plan(subscription, by=call.by, now=call.now)
        kept = statement.subscription_of(call.member.organization)
        return {"subscription": _subscription(kept, call.now) if kept is not None else None}


class Seats(Resource):
    @operation(
        "listSeats",
        tag=TAG,
        summary="List seats",
        description="Members who draw on a plan of their own.",
        scope=api_tokens.MONEY_READ,
        action=Action.SEE_MONEY,
        answers=SeatShape,
        is_list=True,
    )
    def get(self, call: Call) -> Any:
        call.demand(Action.SEE_MONEY)
        return call.page(statement.seat_rows(call.member.organization, call.now), _seat)


def _chosen(call: Call, slug: str) -> tuple[Subscription, Plan]:
    """By comparing among the plans whose names the organization may know. Raises Http404."""
    call.demand(Action.MANAGE_ORGANIZATION)
    subscription = statement.subscription_of(call.member.organization)
    plan = next((one for one in plans.choices(subscription) if one.slug == slug), None)
    if subscription is None or plan is None:
        raise Http404
    return subscription, plan


def _plan(plan: Plan, *, is_current: bool) -> dict[str, Any]:
    return {
        "slug": plan.slug,
        "name": plan.name,
        "quota": credits.text(plan.quota) if plan.quota is not None else None,
        "reset_period": plan.reset_period,
        "price": str(plan.price) if plan.price is not None else None,
        "currency": plan.currency,
        "overage_policy": plan.overage_policy,
        "overage_price": str(plan.overage_price) if plan.overage_price is not None else None,
        "is_current": is_current,
    }


def _subscription(row: Subscription, now: datetime) -> dict[str, Any]:
    return {
        "id": str(row.uuid),
        "plan": _plan(row.plan, is_current=True),
        "started_at": iso(row.started_at),
        "suspended_at": iso(row.suspended_at),
        "overage_cap": credits.text(row.overage_cap) if row.overage_cap is not None else None,
        "next_plan": _plan(row.next_plan, is_current=False) if row.next_plan is not None else None,
        "next_plan_at": iso(row.next_plan_at),
        "period": _period(statement.current_period(row, now), row.plan),
    }


def _period(row: SubscriptionPeriod, plan: Plan) -> dict[str, Any]:
    amounts = ("quota", "used_from_quota", "used_from_purchased", "overage", "overdraft")
    return {
        "start": iso(row.starts_at),
        "end": iso(row.ends_at),
        "plan": (row.plan or plan).name,
        **{name: credits.text(getattr(row, name)) for name in amounts},
        "left": credits.text(row.quota - row.used_from_quota),
        "requests": row.requests,
        "tokens": row.tokens,
    }


def _seat(row: SubscriptionPeriod) -> dict[str, Any]:
    subscription = row.subscription
    member = subscription.member
    assert member is not None, "a seat is a member's"
    return {
        "id": str(subscription.uuid),
        "member_id": str(member.uuid),
        "member": str(member),
        "plan": subscription.plan.name,
        "suspended_at": iso(subscription.suspended_at),
        "period": _period(row, subscription.plan),
    }


def _change(change: Change, when: str) -> dict[str, Any]:
    amounts = ("quota_now", "used", "remaining_now", "quota_after", "remaining_after")
    return {
        "plan_now": change.plan_now,
        "plan_after": change.plan_after,
        "when": when,
        "effective_at": iso(change.effective_at),
        "restarts": change.restarts,
        "period_start": iso(change.period_after.start),
        "period_end": iso(change.period_after.end),
        "days_left": change.days_left,
        "days": change.days,
        **{name: credits.text(getattr(change, name)) for name in amounts},
        **{name: str(getattr(change, name)) for name in ("price_now", "price_after", "price_difference")},
        "currency": change.currency,
        "promise": change.promise,
    }


urls = [
    path("plan", CurrentPlanView.as_view(), name="api_plan"),
    path("plan/keep", KeptPlan.as_view(), name="api_plan_keep"),
    path("plan/change", PlanChange.as_view(), name="api_plan_change"),
    path("plans", Plans.as_view(), name="api_plans"),
    path("seats", Seats.as_view(), name="api_seats"),
]
