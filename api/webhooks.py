"""Endpoints of webhooks: added, tested, given another secret, resumed and removed by owners.

Their URLs go in and never out: who knows a chat's webhook may write into the chat. A secret is in the answer that made it, only.
What looks a host up or posts to it is no transaction, so it takes no Idempotency-Key: names are unique, and `seen` guards rotation.
"""

from typing import Any
from uuid import UUID

from django.urls import path

from accounts import api_tokens
from accounts.permissions import Action
from api.alerts import DeliveryShape, delivered
from api.base import Call, Resource, operation
from api.fields import Choice, Moment, Shape, Text, Told, Uuid, Whole, iso
from api.idempotency import Answer
from quotas.alerts import board, delivery, endpoints
from quotas.alerts.models import WebhookEndpoint

TAG = "Webhooks"
ONCE = "It is in this answer only: it is kept nowhere that it could be read."


class EndpointShape(Shape):
    """Where every alert is posted to."""

    id = Uuid()
    name = Told()
    format = Choice(choices=WebhookEndpoint.Format.choices)
    origin = Told(help_text="What is told of its URL.")
    created_at = Moment()
    disabled_at = Moment(allow_null=True, help_text="Since when nothing is posted to it.")
    disabled_reason = Told(allow_null=True)
    taken_at = Moment(allow_null=True, help_text="When it took something last.")
    failed = Whole(help_text="Deliveries that were given up, or fail now.")
    secret_version = Told(help_text="Another one after each rotation.")
    previous_until = Moment(allow_null=True, help_text="Until then messages are signed with the secret before, too.")


class MadeEndpoint(EndpointShape):
    """An endpoint with its secret."""

    secret = Told(allow_null=True, help_text="Signs what is posted; null where messages are not signed.")
    secret_note = Told()


class EndpointBody(Shape):
    name = Text(max_length=80)
    url = Text(max_length=endpoints.LONGEST_URL, write_only=True)
    format = Choice(choices=WebhookEndpoint.Format.choices)


class RotateBody(Shape):
    seen = Text(max_length=40, required=False, help_text="`secret_version` of the secret that is to be replaced: once only.")


class Endpoints(Resource):
    @operation(
        "listEndpoints",
        tag=TAG,
        summary="List webhook endpoints",
        scope=api_tokens.ALERTS_READ,
        action=Action.MANAGE_ORGANIZATION,
        answers=EndpointShape,
        is_list=True,
    )
    def get(self, call: Call) -> Any:
        return call.page(board.endpoint_rows(call.member.organization), _told)

    @operation(
        "addEndpoint",
        tag=TAG,
        summary="Add a webhook endpoint",
        description="Alerts told from now on are posted to it. Its host is looked up: it must be a public one.",
        scope=api_tokens.ALERTS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        body=EndpointBody,
        answers=MadeEndpoint,
        status=201,
        examples={"Signed": {"name": "Operations", "url": "https://hooks.example.com/weir", "format": "standard"}},
    )
    def post(self, call: Call) -> Any:
        return Answer(201, _made(call, endpoints.add(call.member.organization, **call.body, by=call.by, now=call.now)))


class OneEndpoint(Resource):
    @operation(
        "getEndpoint",
        tag=TAG,
        summary="Get a webhook endpoint",
        scope=api_tokens.ALERTS_READ,
        action=Action.MANAGE_ORGANIZATION,
        answers=EndpointShape,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        return _told(_endpoint(call, uuid))

    @operation(
        "removeEndpoint",
        tag=TAG,
        summary="Remove a webhook endpoint",
        description="With its secrets; what was sent to it stays in the list of deliveries.",
        scope=api_tokens.ALERTS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
    )
    def delete(self, call: Call, uuid: UUID) -> None:
        endpoints.remove(_endpoint(call, uuid), by=call.by, now=call.now)


class EndpointTest(Resource):
    @operation(
        "testEndpoint",
        tag=TAG,
        summary="Post a test to an endpoint, now",
        description="Once: what it answered is told, and it is not tried again.",
        scope=api_tokens.ALERTS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        answers=DeliveryShape,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        found = call.owned(WebhookEndpoint.objects.present().select_related("organization"), uuid)
        sent = delivery.test(found, now=call.now)
        return delivered(board.shown_delivery(sent, call.member, call.now))


class EndpointSecret(Resource):
    @operation(
        "rotateEndpointSecret",
        tag=TAG,
        summary="Give an endpoint another secret",
        description="For a day messages are signed with the old one too.",
        scope=api_tokens.ALERTS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        body=RotateBody,
        answers=MadeEndpoint,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        made = endpoints.rotate(_endpoint(call, uuid), by=call.by, now=call.now, seen=call.body.get("seen"))
        return _made(call, made)


class ResumedEndpoint(Resource):
    @operation(
        "resumeEndpoint",
        tag=TAG,
        summary="Post to a disabled endpoint again",
        description="Alerts told from now on. One that is not disabled stays as it is.",
        scope=api_tokens.ALERTS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        answers=EndpointShape,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        endpoints.resume(_endpoint(call, uuid), by=call.by)
        return _told(_endpoint(call, uuid))


def _endpoint(call: Call, uuid: UUID) -> WebhookEndpoint:
    """With `last_at` and `failed`; 404 for another organization's, and for one that was removed."""
    return call.owned(board.endpoint_rows(call.member.organization), uuid)


def _told(row: Any) -> dict[str, Any]:
    """`EndpointShape` of a row of `board.endpoint_rows`."""
    return {
        "id": str(row.uuid),
        "name": row.name,
        "format": row.format,
        "origin": row.origin,
        "created_at": iso(row.created_at),
        "disabled_at": iso(row.disabled_at),
        "disabled_reason": row.disabled_reason or None,
        "taken_at": iso(row.last_at),
        "failed": row.failed,
        "secret_version": endpoints.version(row),
        "previous_until": iso(row.previous_until),
    }


def _made(call: Call, made: endpoints.Made) -> dict[str, Any]:
    note = ONCE if made.secret else "Messages to a chat are not signed."
    return {**_told(_endpoint(call, made.endpoint.uuid)), "secret": made.secret or None, "secret_note": note}


urls = [
    path("webhook-endpoints", Endpoints.as_view(), name="api_endpoints"),
    path("webhook-endpoints/<uuid:uuid>", OneEndpoint.as_view(), name="api_endpoint"),
    path("webhook-endpoints/<uuid:uuid>/test", EndpointTest.as_view(), name="api_endpoint_test"),
    path("webhook-endpoints/<uuid:uuid>/secret", EndpointSecret.as_view(), name="api_endpoint_secret"),
    path("webhook-endpoints/<uuid:uuid>/resume", ResumedEndpoint.as_view(), name="api_endpoint_resume"),
]
