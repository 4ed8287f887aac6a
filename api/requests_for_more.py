"""Requests for more of a limit: asked for oneself, withdrawn, approved or denied by who may set the limit."""

from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.urls import path

from accounts import api_tokens, managing, permissions
from accounts.models import Member
from accounts.permissions import Action, Reach
from api.base import OPTIONAL, Call, Resource, operation
from api.fields import Amount, Choice, Moment, Query, Shape, Text, Told, Uuid, amount_text, iso
from api.keys import WINDOWS
from quotas import requests
from quotas.models import Limit, LimitRequest

TAG = "Limits"


class LimitRequestShape(Shape):
    """A member asks for more than a limit gives, until a moment."""

    id = Uuid()
    member_id = Uuid()
    member = Told(help_text="The member's name.")
    limit_id = Uuid(allow_null=True, help_text="null: the limit is gone.")
    metric = Choice(choices=Limit.Metric.values)
    window = Choice(choices=WINDOWS, allow_null=True)
    extra = Told(help_text="Decimal credits, or a count.")
    until = Moment()
    note = Told()
    status = Choice(choices=LimitRequest.Status.values)
    decided_at = Moment(allow_null=True)
    decision_note = Told()
    created_at = Moment()


class NewLimitRequest(Shape):
    limit_id = Uuid(help_text="A limit that holds the caller.")
    extra = Amount(help_text="How much more: decimal credits, or a count; above 0.")
    until = Moment(help_text=f"At most {requests.MOST_DAYS} days on.")
    note = Text(max_length=requests.NOTE_LENGTH, required=False, allow_blank=True)


class Approval(Shape):
    note = Text(max_length=requests.NOTE_LENGTH, required=False, allow_blank=True)


class Denial(Shape):
    note = Text(max_length=requests.NOTE_LENGTH, help_text="Why: the member reads it.")


class RequestQuery(Query):
    status = Choice(choices=LimitRequest.Status.values, required=False)
    member_id = Uuid(required=False)


EXAMPLE = {
    "id": "9d1c2a55-0b2c-4f80-8f6e-4f0a7c1b3d21",
    "member_id": "5f0c1c1e-6f0e-4a6e-9f3e-0c5d7f2b8a11",
    "member": "Ada",
    "limit_id": "c4c5f3d2-6c4c-4b8f-8f60-3f5a3a3cf5a9",
    "metric": "credits",
    "window": "day",
    "extra": "20",
    "until": "2026-11-09T00:00:00Z",
    "note": "Release week",
    "status": "pending",
    "decided_at": None,
    "decision_note": "",
    "created_at": "2026-11-02T09:00:00Z",
}


def shown(row: LimitRequest) -> dict[str, Any]:
    """`LimitRequestShape` of a row with its member and limit."""
    return {
        "id": str(row.uuid),
        "member_id": str(row.member.uuid),
        "member": str(row.member),
        "limit_id": str(row.limit.uuid) if row.limit is not None else None,
        "metric": row.metric,
        "window": row.window or None,
        "extra": amount_text(row.metric, row.asked_amount),
        "until": iso(row.until),
        "note": row.note,
        "status": row.status,
        "decided_at": iso(row.decided_at),
        "decision_note": row.decision_note,
        "created_at": iso(row.created_at),
    }


def rows(reader: Member) -> QuerySet[LimitRequest]:
    related = ("organization", "member__user", "member__team", "limit")
    return LimitRequest.objects.filter(organization=reader.organization).select_related(*related)


def visible(reader: Member) -> QuerySet[LimitRequest]:
    """One's own, and those of whose limits one sets."""
    reach = permissions.reach(reader, Action.SET_LIMITS)
    if reach is Reach.WHOLE:
        return rows(reader)
    seen = Q(member=reader)
    if reach is Reach.SCOPE:
        seen |= Q(member__team=reader.team)
    return rows(reader).filter(seen)


def find(call: Call, uuid: UUID) -> LimitRequest:
    found = call.owned(rows(call.member), uuid)
    if found.member_id != call.member.pk:
        call.demand(Action.SET_LIMITS, of=found.member)
    return found


def _again(call: Call, row: LimitRequest) -> dict[str, Any]:
    return shown(rows(call.member).get(pk=row.pk))


class Requests(Resource):
    @operation(
        "listLimitRequests",
        tag=TAG,
        summary="List requests for more",
        description="One's own, and those of whose limits one sets; the newest first.",
        scope=api_tokens.LIMITS_READ,
        action=Action.USE_KEYS,
        query=RequestQuery,
        answers=LimitRequestShape,
        is_list=True,
        example=EXAMPLE,
        errors=(404,),
    )
    def get(self, call: Call) -> Any:
        found = visible(call.member)
        if "status" in call.query:
            found = found.filter(status=call.query["status"])
        if "member_id" in call.query:
            found = found.filter(member=managing.find(call.member, call.query["member_id"], action=Action.USE_KEYS))
        return call.page(found, shown, is_newest_first=True)

    @operation(
        "askForMore",
        tag=TAG,
        summary="Ask for more of a limit, for oneself",
        description="One request for a limit waits at a time. `GET /limits` tells which hold the caller.",
        scope=api_tokens.LIMITS_WRITE,
        action=Action.USE_KEYS,
        body=NewLimitRequest,
        answers=LimitRequestShape,
        status=201,
        idempotency=OPTIONAL,
        examples={
            "Until Monday": {
                "limit_id": "c4c5f3d2-6c4c-4b8f-8f60-3f5a3a3cf5a9",
                "extra": "20",
                "until": "2026-11-09T00:00:00Z",
                "note": "Release week",
            }
        },
        example=EXAMPLE,
        errors=(404,),
    )
    def post(self, call: Call) -> Any:
        asked = call.body
        limit = call.owned(Limit.objects.all(), asked["limit_id"])
        made = requests.ask(
            call.member,
            limit,
            extra=asked["extra"],
            until=requests.checked_until(asked["until"], now=call.now, zone=ZoneInfo(call.member.organization.timezone)),
            note=asked.get("note", ""),
            by=call.by,
            now=call.now,
        )
        return _again(call, made)


class OneRequest(Resource):
    @operation(
        "getLimitRequest",
        tag=TAG,
        summary="Get a request for more",
        scope=api_tokens.LIMITS_READ,
        action=Action.USE_KEYS,
        answers=LimitRequestShape,
        example=EXAMPLE,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        return shown(find(call, uuid))


class Withdraw(Resource):
    @operation(
        "withdrawLimitRequest",
        tag=TAG,
        summary="Take one's own request back",
        scope=api_tokens.LIMITS_WRITE,
        action=Action.USE_KEYS,
        answers=LimitRequestShape,
        idempotency=OPTIONAL,
        example={**EXAMPLE, "status": "withdrawn", "decided_at": "2026-11-02T10:00:00Z"},
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        found = find(call, uuid)
        if found.member_id != call.member.pk:
            raise PermissionDenied
        return _again(call, requests.withdraw(found, by=call.by, now=call.now))


class Approve(Resource):
    @operation(
        "approveLimitRequest",
        tag=TAG,
        summary="Give what was asked for",
        description="It makes a boost that holds on the very next request and ends by itself. Of two who decide, one does.",
        scope=api_tokens.LIMITS_WRITE,
        action=Action.SET_LIMITS,
        body=Approval,
        answers=LimitRequestShape,
        idempotency=OPTIONAL,
        examples={"With a word": {"note": "Until the release."}},
        example={**EXAMPLE, "status": "approved", "decided_at": "2026-11-02T10:00:00Z"},
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        found = find(call, uuid)
        requests.approve(found, decider=call.member, note=call.body.get("note", ""), now=call.now)
        return _again(call, found)


class Deny(Resource):
    @operation(
        "denyLimitRequest",
        tag=TAG,
        summary="Refuse, with a word about why",
        scope=api_tokens.LIMITS_WRITE,
        action=Action.SET_LIMITS,
        body=Denial,
        answers=LimitRequestShape,
        idempotency=OPTIONAL,
        examples={"With a word": {"note": "The budget of this week is used up."}},
        example={**EXAMPLE, "status": "denied", "decided_at": "2026-11-02T10:00:00Z", "decision_note": "Used up."},
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        found = find(call, uuid)
        return _again(call, requests.deny(found, decider=call.member, note=call.body["note"], now=call.now))


urls = [
    path("limit-requests", Requests.as_view(), name="api_limit_requests"),
    path("limit-requests/<uuid:uuid>", OneRequest.as_view(), name="api_limit_request"),
    path("limit-requests/<uuid:uuid>/withdraw", Withdraw.as_view(), name="api_limit_request_withdraw"),
    path("limit-requests/<uuid:uuid>/approve", Approve.as_view(), name="api_limit_request_approve"),
    path("limit-requests/<uuid:uuid>/deny", Deny.as_view(), name="api_limit_request_deny"),
]
