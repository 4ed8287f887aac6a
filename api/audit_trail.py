"""The audit trail: who did what to which object, the newest first, each event a link of a chain. For owners."""

from typing import Any

from django.urls import path
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts import api_tokens, audit
from accounts.models import AuditEvent
from accounts.permissions import Action
from api.base import Call, Resource, operation
from api.fields import Moment, Query, Shape, Text, Told, Uuid, Whole, iso

TAG = "Audit trail"


@extend_schema_field({"type": "object", "additionalProperties": True})
class Facts(serializers.DictField):
    """What an event holds: names and values by name, whatever its action tells."""


class EventShape(Shape):
    id = Uuid()
    number = Whole(allow_null=True, help_text="In the organization's chain: 1, 2, 3, …")
    at = Moment()
    action = Told()
    actor = Told()
    object_type = Told()
    object_id = Told()
    facts = Facts()
    previous = Told(allow_null=True, help_text="Digest of the event before; of the first, zeros.")
    digest = Told(allow_null=True, help_text="SHA-256 over the event and `previous`.")


class EventQuery(Query):
    action = Text(max_length=60, required=False, help_text="Such as account.added.")
    actor = Text(max_length=254, required=False, help_text="An e-mail address, as it was.")
    object_type = Text(max_length=40, required=False)
    object_id = Text(max_length=64, required=False)
    start = Moment(required=False)
    end = Moment(required=False)


class HeadShape(Shape):
    """The newest event. Note `head` down elsewhere: whoever writes the trail anew has another one."""

    number = Whole()
    digest = Told()
    head = Told()


class Events(Resource):
    @operation(
        "listAuditEvents",
        tag=TAG,
        summary="List the audit trail",
        description="The newest first. No event holds a secret.",
        scope=api_tokens.SETTINGS_READ,
        action=Action.MANAGE_ORGANIZATION,
        query=EventQuery,
        answers=EventShape,
        is_list=True,
    )
    def get(self, call: Call) -> Any:
        rows = AuditEvent.objects.filter(organization=call.member.organization)
        columns = {"action": "action", "actor": "actor_label", "object_type": "object_type", "object_id": "object_id"}
        columns |= {"start": "created_at__gte", "end": "created_at__lt"}
        rows = rows.filter(**{columns[name]: value for name, value in call.query.items()})
        return call.page(rows, _told, is_newest_first=True)


class Head(Resource):
    @operation(
        "getAuditHead",
        tag=TAG,
        summary="Get the head of the audit trail",
        scope=api_tokens.SETTINGS_READ,
        action=Action.MANAGE_ORGANIZATION,
        answers=HeadShape,
    )
    def get(self, call: Call) -> Any:
        found = audit.head(call.member.organization)
        return {"number": found.number, "digest": found.digest, "head": found.text}


def _told(row: AuditEvent) -> dict[str, Any]:
    return {
        "id": str(row.uuid),
        "number": row.number,
        "at": iso(row.created_at),
        "action": row.action,
        "actor": row.actor_label,
        "object_type": row.object_type,
        "object_id": row.object_id,
        "facts": row.data,
        "previous": row.previous,
        "digest": row.digest,
    }


urls = [
    path("audit-events", Events.as_view(), name="api_audit_events"),
    path("audit-head", Head.as_view(), name="api_audit_head"),
]
