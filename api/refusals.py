"""Why requests were refused: one row per key, code, limit and minute, with how many there were."""

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from django.urls import path
from rest_framework import serializers

from accounts import api_tokens, managing, permissions
from accounts.models import ApiKey, Member
from accounts.permissions import Action, Reach
from api.base import Call, Resource, operation
from api.fields import Moment, Query, Shape, Told, Uuid, amount_text, iso
from quotas.models import Refusal

TAG = "Requests"


class RefusedRequests(Shape):
    """Requests that were refused within a minute for one reason. Amounts are decimal credits, or counts, as text."""

    id = Uuid()
    code = Told(help_text="As the client was told.")
    message = Told()
    count = serializers.IntegerField(help_text="How many there were.")
    last_at = Moment()
    member_id = Uuid(allow_null=True)
    member = Told(allow_null=True)
    key_id = Uuid(allow_null=True)
    key = Told(allow_null=True)
    model = Told(allow_null=True)
    scope = Told(allow_null=True, help_text="Whose limit it was; null: it was no limit.")
    metric = Told(allow_null=True)
    window = Told(allow_null=True)
    limit_id = Uuid(allow_null=True)
    limit = Told(allow_null=True)
    used = Told(allow_null=True)
    held = Told(allow_null=True)
    needed = Told(allow_null=True)
    resets_at = Moment(allow_null=True)


class RefusalQuery(Query):
    member_id = Uuid(required=False)


EXAMPLE = {
    "id": "1f6a2c8e-2b8f-4b55-bf3b-6f8e0d9c7a31",
    "code": "limit_reached",
    "message": "Your daily limit would be passed.",
    "count": 3,
    "last_at": "2026-11-02T09:00:41Z",
    "member_id": "5f0c1c1e-6f0e-4a6e-9f3e-0c5d7f2b8a11",
    "member": "Ada",
    "key_id": "0a4f6c1e-54d4-4b0e-9d4a-4a6f9b8a7e01",
    "key": "laptop",
    "model": "gpt-5.5",
    "scope": "member",
    "metric": "credits",
    "window": "day",
    "limit_id": "c4c5f3d2-6c4c-4b8f-8f60-3f5a3a3cf5a9",
    "limit": "50",
    "used": "49.8",
    "held": "0",
    "needed": "0.9",
    "resets_at": "2026-11-03T00:00:00Z",
}


def visible(reader: Member) -> QuerySet[Refusal]:
    """In the reader's reach. Of a team, what was refused while the member was in it, as with the request log."""
    rows = Refusal.objects.filter(organization=reader.organization)
    reach = permissions.reach(reader, Action.SEE_REQUESTS)
    if reach is Reach.WHOLE:
        return rows
    return rows.filter(team_id=reader.team_id) if reach is Reach.SCOPE else rows.filter(member_id=reader.pk)


def shown(rows: Sequence[Refusal], reader: Member) -> list[dict[str, Any]]:
    """`RefusedRequests` of each. Two queries."""
    found = Member.objects.for_organization(reader.organization).select_related("user")
    members = {one.pk: one for one in found.filter(pk__in={row.member_id for row in rows})}
    own = ApiKey.objects.for_organization(reader.organization).filter(pk__in={row.key_id for row in rows})
    keys = {one.pk: one for one in own}
    return [_shown(row, members.get(row.member_id), keys.get(row.key_id)) for row in rows]


def _shown(row: Refusal, member: Member | None, key: ApiKey | None) -> dict[str, Any]:
    def amount(value: int | None) -> str | None:
        return None if value is None or not row.metric else amount_text(row.metric, value)

    return {
        "id": str(row.uuid),
        "code": row.code,
        "message": row.message,
        "count": row.count,
        "last_at": iso(row.last_at),
        "member_id": str(member.uuid) if member is not None else None,
        "member": str(member) if member is not None else None,
        "key_id": str(key.uuid) if key is not None else None,
        "key": key.name if key is not None else None,
        "model": row.model or None,
        "scope": row.scope or None,
        "metric": row.metric or None,
        "window": row.window or None,
        "limit_id": str(row.limit_uuid) if row.limit_uuid is not None else None,
        "limit": amount(row.limit),
        "used": amount(row.used),
        "held": amount(row.held),
        "needed": amount(row.need),
        "resets_at": iso(row.resets_at),
    }


class Refusals(Resource):
    @operation(
        "listRefusals",
        tag=TAG,
        summary="List refusals",
        description="One's own; a lead's scope's; an owner's all; the newest first.",
        scope=api_tokens.REQUESTS_READ,
        action=Action.SEE_REQUESTS,
        query=RefusalQuery,
        answers=RefusedRequests,
        is_list=True,
        example=EXAMPLE,
        errors=(404,),
    )
    def get(self, call: Call) -> Any:
        found = visible(call.member)
        if "member_id" in call.query:
            of = managing.find(call.member, call.query["member_id"], action=Action.SEE_REQUESTS)
            found = found.filter(member_id=of.pk)
        return call.page(found, together=lambda page: shown(page, call.member), is_newest_first=True)


urls = [path("refusals", Refusals.as_view(), name="api_refusals")]
