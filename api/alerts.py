"""Alerts: what was told, to whom, by which rules; the forecast of the quota. Endpoints of webhooks are in `api.webhooks`."""

from typing import Any
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.urls import path

from accounts import api_tokens
from accounts.permissions import Action
from api.base import Call, Resource, operation
from api.fields import Choice, Flag, ListOf, Moment, Query, Shape, Told, Uuid, Whole, iso
from billing import credits
from quotas import forecast
from quotas.alerts import audience, board, telling
from quotas.alerts.board import Sent, Shown
from quotas.alerts.models import Alert, AlertDelivery

TAG = "Alerts"
OPEN, ACKNOWLEDGED, OVER = "open", "acknowledged", "over"
VERDICTS = {
    forecast.TOO_EARLY: "too_early",
    forecast.LASTS: "lasts",
    forecast.PROBABLY: "probably_runs_out",
    forecast.RUNS_OUT: "runs_out",
}


class AlertShape(Shape):
    """Something that was told once: by kind, line, what it is about, and period."""

    id = Uuid()
    kind = Choice(choices=Alert.Kind.choices)
    line = Whole(help_text="Percent used: 80, 95 or 100; 0 where there are no lines.")
    state = Choice(choices=[OPEN, ACKNOWLEDGED, OVER])
    is_urgent = Flag(help_text="Nothing gets better by itself.")
    title = Told()
    details = ListOf(child=Told())
    step = Told(help_text="What to do next.")
    link = Told(help_text="The page where.")
    team_id = Uuid(allow_null=True)
    member_id = Uuid(allow_null=True, help_text="Whom it is about.")
    key_id = Uuid(allow_null=True)
    limit_id = Uuid(allow_null=True)
    told = Told(help_text="Who was told; of others nothing for who sees only their own.")
    told_at = Moment()
    ended_at = Moment(allow_null=True)
    acknowledged_at = Moment(allow_null=True)
    acknowledged_by = Told(allow_null=True)
    may_acknowledge = Flag()


class AlertQuery(Query):
    state = Choice(choices=[OPEN, ACKNOWLEDGED, OVER], required=False)
    kind = Choice(choices=Alert.Kind.choices, required=False)


class DeliveryShape(Shape):
    """One message to one member or endpoint, however often it is tried; its id is the message's in every try."""

    id = Uuid()
    alert_id = Uuid(allow_null=True, help_text="null: a test.")
    title = Told()
    channel = Choice(choices=AlertDelivery.Channel.choices)
    to = Told()
    endpoint_id = Uuid(allow_null=True)
    status = Choice(choices=AlertDelivery.Status.choices)
    attempts = Whole()
    response_code = Whole(allow_null=True)
    duration_ms = Whole(allow_null=True)
    error = Told(allow_null=True)
    created_at = Moment()
    tried_at = Moment(allow_null=True)
    next_try_at = Moment(allow_null=True)


class DeliveryQuery(Query):
    status = Choice(choices=AlertDelivery.Status.choices, required=False)


class RuleShape(Shape):
    """A kind of alerts, and whether it is told of."""

    kind = Choice(choices=Alert.Kind.choices)
    is_on = Flag()
    when = Told()
    subject = Told()
    audience = Told(help_text="Who gets an e-mail. Webhooks get all.")
    told_this_month = Whole(help_text="Of those that the caller sees.")


class RulesShape(Shape):
    rules = RuleShape(many=True)


class RuleChange(Shape):
    is_on = Flag()


class ForecastShape(Shape):
    """Does the organization's quota last to its reset? As a range: at the quickest, the mean and the slowest pace seen."""

    left = Told(help_text="Credits.")
    limit = Told(help_text="Credits.")
    percent_left = Whole(help_text="Rounded down.")
    resets_at = Moment(allow_null=True)
    verdict = Choice(choices=list(VERDICTS.values()), allow_null=True)
    days_of_use = Whole(allow_null=True, help_text="Complete days that it is made of.")
    soonest = Moment(allow_null=True, help_text="When nothing is left at the quickest pace; null: it lasts.")
    around = Moment(allow_null=True, help_text="At the mean one.")
    latest = Moment(allow_null=True, help_text="At the slowest.")
    trouble = Told(allow_null=True, help_text="Why nobody can tell.")


EXAMPLE = {
    "id": "9b4f6a2e-6f6f-4b7e-8c0a-0f6f3f0a8d11",
    "kind": "limit",
    "line": 80,
    "state": OPEN,
    "is_urgent": False,
    "title": "Ada: 20 % of the daily credit limit left",
    "details": ["800 of 1,000 credits used", "resets 24 Nov, 00:00"],
    "step": "Set the limit",
    "link": "https://weir.example/o/acme/members",
    "team_id": None,
    "member_id": "5f0c1c1e-6f0e-4a6e-9f3e-0c5d7f2b8a11",
    "key_id": None,
    "limit_id": "1c1d2a8a-5d52-4f9c-8f0e-7a4c6a5b3f10",
    "told": "e-mailed to you and Ada",
    "told_at": "2026-11-23T15:02:11Z",
    "ended_at": None,
    "acknowledged_at": None,
    "acknowledged_by": None,
    "may_acknowledge": True,
}


class Alerts(Resource):
    @operation(
        "listAlerts",
        tag=TAG,
        summary="List alerts",
        description="Those in the caller's reach, the newest first: of a developer, what is about them.",
        scope=api_tokens.ALERTS_READ,
        action=Action.SEE_ALERTS,
        query=AlertQuery,
        answers=AlertShape,
        is_list=True,
        example=EXAMPLE,
    )
    def get(self, call: Call) -> Any:
        rows = board.seen(call.member)
        state = call.query.get("state")
        if state == OPEN:
            rows = rows.open()
        elif state == ACKNOWLEDGED:
            rows = rows.exclude(acknowledged_at=None)
        elif state == OVER:
            rows = rows.filter(acknowledged_at=None).exclude(ended_at=None)
        if "kind" in call.query:
            rows = rows.filter(kind=call.query["kind"])
        return call.page(rows, lambda row: _told(board.shown(row, call.member, call.now)), is_newest_first=True)


class OneAlert(Resource):
    @operation(
        "getAlert",
        tag=TAG,
        summary="Get an alert",
        scope=api_tokens.ALERTS_READ,
        action=Action.SEE_ALERTS,
        answers=AlertShape,
        example=EXAMPLE,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        return _told(board.shown(_alert(call, uuid), call.member, call.now))


class AcknowledgedAlert(Resource):
    @operation(
        "acknowledgeAlert",
        tag=TAG,
        summary="Acknowledge an alert",
        description="By who looks after what it is about. It is not told again in its period; a second time changes nothing.",
        scope=api_tokens.ALERTS_WRITE,
        action=Action.SEE_ALERTS,
        answers=AlertShape,
        example={**EXAMPLE, "state": ACKNOWLEDGED, "acknowledged_at": "2026-11-23T15:10:00Z", "acknowledged_by": "Grace"},
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        found = _alert(call, uuid)
        if not audience.may_acknowledge(call.member, found):
            raise PermissionDenied
        telling.acknowledge(found, by=call.member, now=call.now)
        return _told(board.shown(_alert(call, uuid), call.member, call.now))


class Deliveries(Resource):
    @operation(
        "listAlertDeliveries",
        tag=TAG,
        summary="List deliveries of alerts",
        description="E-mails and webhooks, the newest first, of alerts that the caller sees; none for who sees only their own.",
        scope=api_tokens.ALERTS_READ,
        action=Action.SEE_ALERTS,
        query=DeliveryQuery,
        answers=DeliveryShape,
        is_list=True,
    )
    def get(self, call: Call) -> Any:
        rows = board.deliveries(call.member)
        if "status" in call.query:
            rows = rows.filter(status=call.query["status"])
        return call.page(rows, lambda row: delivered(board.shown_delivery(row, call.member, call.now)), is_newest_first=True)


class Rules(Resource):
    @operation(
        "listAlertRules",
        tag=TAG,
        summary="List the kinds of alerts",
        scope=api_tokens.ALERTS_READ,
        action=Action.SEE_ALERTS,
        answers=RulesShape,
    )
    def get(self, call: Call) -> Any:
        return {"rules": [_rule(one) for one in board.rules(call.member, now=call.now)]}


class OneRule(Resource):
    @operation(
        "setAlertRule",
        tag=TAG,
        summary="Say whether a kind of alerts is told of",
        description="From now on; what is open stays so.",
        scope=api_tokens.ALERTS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        body=RuleChange,
        answers=RuleShape,
        examples={"Not told of": {"is_on": False}},
    )
    def put(self, call: Call, kind: str) -> Any:
        if kind not in Alert.Kind.values:
            raise Http404
        telling.set_rule(call.member.organization, kind, is_on=call.body["is_on"], by=call.by)
        return next(_rule(one) for one in board.rules(call.member, now=call.now) if one.kind == kind)


class QuotaForecast(Resource):
    @operation(
        "getQuotaForecast",
        tag=TAG,
        summary="Ask whether the quota lasts",
        description="The organization's; for who sees the whole of it.",
        scope=api_tokens.ALERTS_READ,
        action=Action.SEE_ALERTS,
        answers=ForecastShape,
    )
    def get(self, call: Call) -> Any:
        found = board.outlook(call.member, now=call.now)
        if found is None:
            raise PermissionDenied
        seen = found.outlook
        return {
            "left": credits.text(found.left),
            "limit": credits.text(found.limit),
            "percent_left": found.percent,
            "resets_at": iso(found.resets_at),
            "verdict": VERDICTS[seen.verdict] if seen is not None else None,
            "days_of_use": seen.days if seen is not None else None,
            "soonest": iso(found.soonest),
            "around": iso(found.around),
            "latest": iso(found.latest),
            "trouble": found.trouble or None,
        }


def _alert(call: Call, uuid: UUID) -> Alert:
    """404 for another organization's, 403 for one that is not the caller's to see."""
    row = board.seen(call.member).filter(uuid=uuid).first()
    if row is None:
        call.owned(Alert.objects.all(), uuid)
        raise PermissionDenied
    return row


def _told(one: Shown) -> dict[str, Any]:
    row = one.row
    return {
        "id": str(row.uuid),
        "kind": row.kind,
        "line": row.line,
        "state": ACKNOWLEDGED if row.acknowledged_at is not None else OVER if row.ended_at is not None else OPEN,
        "is_urgent": one.is_urgent,
        "title": one.words.title,
        "details": list(one.words.details),
        "step": one.words.step,
        "link": one.words.link,
        "team_id": str(row.team.uuid) if row.team is not None else None,
        "member_id": str(row.member.uuid) if row.member is not None else None,
        "key_id": str(row.key.uuid) if row.key is not None else None,
        "limit_id": str(row.limit_uuid) if row.limit_uuid is not None else None,
        "told": one.told,
        "told_at": iso(row.told_at),
        "ended_at": iso(row.ended_at),
        "acknowledged_at": iso(row.acknowledged_at),
        "acknowledged_by": str(row.acknowledged_by) if row.acknowledged_by is not None else None,
        "may_acknowledge": one.may_acknowledge,
    }


def delivered(one: Sent) -> dict[str, Any]:
    """`DeliveryShape`."""
    row = one.row
    return {
        "id": str(row.uuid),
        "alert_id": str(row.alert.uuid) if row.alert is not None else None,
        "title": one.title,
        "channel": row.channel,
        "to": one.to,
        "endpoint_id": str(row.endpoint.uuid) if row.endpoint is not None else None,
        "status": row.status,
        "attempts": row.attempts,
        "response_code": row.response_code,
        "duration_ms": row.duration_ms,
        "error": row.error or None,
        "created_at": iso(row.created_at),
        "tried_at": iso(row.tried_at),
        "next_try_at": iso(row.next_try_at),
    }


def _rule(one: board.Rule) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "is_on": one.is_on,
        "when": one.when,
        "subject": one.subject,
        "audience": one.emailed,
        "told_this_month": one.told,
    }


urls = [
    path("alerts", Alerts.as_view(), name="api_alerts"),
    path("alerts/<uuid:uuid>", OneAlert.as_view(), name="api_alert"),
    path("alerts/<uuid:uuid>/acknowledge", AcknowledgedAlert.as_view(), name="api_alert_acknowledge"),
    path("alert-deliveries", Deliveries.as_view(), name="api_alert_deliveries"),
    path("alert-rules", Rules.as_view(), name="api_alert_rules"),
    path("alert-rules/<str:kind>", OneRule.as_view(), name="api_alert_rule"),
    path("quota-forecast", QuotaForecast.as_view(), name="api_quota_forecast"),
]
