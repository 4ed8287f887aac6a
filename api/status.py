"""GET /api/v1/status: where the member stands in the period they draw on."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.urls import path
from rest_framework import serializers

from accounts import api_tokens
from accounts.models import Member
from api.base import Call, Resource, operation
from api.fields import Moment, Shape, Told
from billing import balances, labels, usage_report
from billing.credits import text
from billing.labels import Sight
from quotas import drawn, forecast, remaining
from quotas.errors import NoActivePlan
from quotas.standing import PlanState

TOP_MODELS = 5


class StatusPeriod(Shape):
    """The period of the quota that the member draws on. Credits are decimal text."""

    start = Moment()
    end = Moment()
    quota_limit = Told()
    quota_used = Told()
    quota_remaining = Told()
    percent_used = serializers.FloatField()


class TopModel(Shape):
    model = Told()
    credits_consumed = Told()
    percent_of_total = serializers.FloatField()


class Projection(Shape):
    """Credits above the quota at the period's end; null while there are too few days to tell."""

    low = Told(allow_null=True)
    expected = Told(allow_null=True)
    high = Told(allow_null=True)


class StatusShape(Shape):
    """Where the member stands."""

    member = Told()
    current_period = StatusPeriod(allow_null=True, help_text="null: there is no plan to draw on.")
    purchased_credits = Told()
    top_models = TopModel(many=True)
    daily_burn_rate = Told(allow_null=True, help_text="Credits a day, of complete days; null before the first.")
    projected_overage = Projection()


class Status(Resource):
    @operation(
        "getStatus",
        tag="Usage",
        summary="What is left, and how fast it goes",
        description=(
            "Takes a gateway key too: then it is about the key's member alone. `current_period`, `daily_burn_rate` and "
            "`projected_overage` are about the quota that the member draws on (their seat's, else the organization's), "
            "`top_models` about the usage in the caller's reach."
        ),
        scope=api_tokens.STATUS,
        action=None,
        answers=StatusShape,
        takes_keys=True,
    )
    def get(self, call: Call) -> Any:
        now, member = call.now, call.member
        # No upstream account is named (J3).
        sight = labels.sight(member) if call.token is not None else labels.own_sight(member)
        try:
            plan: PlanState | None = remaining.standing(member, now=now).plan
        except NoActivePlan:
            plan = None
        balance = balances.balance(member.organization_id)
        return {
            "member": member.user.email if member.user is not None else str(member),
            "current_period": _period(plan, member) if plan is not None else None,
            "purchased_credits": text(max(0, balance.granted - balance.drawn)),
            "top_models": _top_models(sight, member, plan, now),
            **_burn(member, plan, now),
        }


def _period(plan: PlanState, member: Member) -> dict[str, Any]:
    zone = ZoneInfo(member.organization.timezone)
    return {
        "start": datetime.fromtimestamp(plan.starts_at, zone).isoformat(),
        "end": datetime.fromtimestamp(plan.ends_at, zone).isoformat(),
        "quota_limit": text(plan.quota),
        "quota_used": text(plan.used),
        "quota_remaining": text(plan.remaining),
        "percent_used": _percent(plan.used, plan.quota),
    }


def _top_models(sight: Sight, member: Member, plan: PlanState | None, now: datetime) -> list[dict[str, Any]]:
    if plan is None:
        chosen = usage_report.this_period(sight, member, now)
    else:
        start, end = (datetime.fromtimestamp(second, UTC) for second in (plan.starts_at, plan.ends_at))
        chosen = usage_report.between(start, end, ZoneInfo(member.organization.timezone))
    report = usage_report.report(sight, "model", chosen, now=now)
    return [
        {
            "model": line.names[0],
            "credits_consumed": text(line.sums.credits),
            "percent_of_total": _percent(line.sums.credits, report.total.credits),
        }
        for line in report.lines[:TOP_MODELS]
    ]


def _burn(member: Member, plan: PlanState | None, now: datetime) -> dict[str, Any]:
    """Null where there is no complete day yet, or too few for a forecast."""
    if plan is None:
        return {"daily_burn_rate": None, "projected_overage": {"low": None, "expected": None, "high": None}}
    seat = member.pk if plan.subject == "member" else None
    days = forecast.since_first_use(drawn.by_day(member.organization, seat, now=now))
    rate = forecast.burn_rate(days)
    found = forecast.overage(
        days, used=plan.used + plan.overdraft, quota=plan.quota, seconds_left=plan.ends_at - int(now.timestamp())
    )
    projected = (None, None, None) if found is None else tuple(text(one) for one in (found.low, found.expected, found.high))
    return {
        "daily_burn_rate": None if rate is None else text(rate),
        "projected_overage": dict(zip(("low", "expected", "high"), projected, strict=True)),
    }


def _percent(part: int, whole: int) -> float:
    """With one decimal, half up; 0 of nothing. A share, not an amount: amounts are decimal text."""
    return (part * 2000 + whole) // (2 * whole) / 10 if whole > 0 else 0.0


urls = [path("status", Status.as_view(), name="api_status")]
