"""The organization's sign-in provider (OpenID Connect). Its client secret goes in and never out.

Setting it looks the issuer's host up and a test asks the issuer, so neither is a call that is done once by an Idempotency-Key.
"""

from typing import Any

from django.http import Http404
from django.urls import path
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts import api_tokens, identity, identity_tokens
from accounts.errors import IdentityError
from accounts.identity import Asked
from accounts.models import IdentityProvider, Member
from accounts.permissions import Action
from api.base import Call, Resource, operation
from api.fields import Choice, Flag, ListOf, Moment, Shape, Text, Told, Uuid, Whole, iso

TAG = "Settings"


@extend_schema_field(
    {"type": "object", "additionalProperties": {"type": "string", "enum": list(Member.Role.values)}, "maxProperties": 200}
)
class RoleMap(serializers.DictField):
    """Value of the claim -> role."""

    def __init__(self, **options: Any) -> None:
        super().__init__(child=Choice(choices=Member.Role.choices), **options)


class ProviderShape(Shape):
    id = Uuid()
    name = Told()
    issuer = Told()
    client_id = Told()
    has_secret = Flag()
    email_domains = ListOf(child=Told(), help_text="Whose addresses it speaks for.")
    role_claim = Told(allow_null=True)
    role_map = RoleMap()
    default_role = Choice(choices=Member.Role.choices, allow_null=True, help_text="null: nobody else comes in.")
    is_active = Flag()
    is_required = Flag(help_text="Members of its domains sign in there only; owners keep their password.")
    created_at = Moment()


class ProviderBody(Shape):
    """The whole of it: what is left out is as for a new one, but the secret, which stays."""

    name = Text(max_length=40)
    issuer = Text(max_length=300)
    client_id = Text(max_length=191)
    client_secret = Text(max_length=1000, required=False, write_only=True)
    email_domains = ListOf(child=Text(max_length=253), min_length=1)
    role_claim = Text(max_length=80, required=False, allow_null=True)
    role_map = RoleMap(required=False)
    default_role = Choice(choices=Member.Role.choices, required=False, allow_null=True)
    is_active = Flag(required=False)
    is_required = Flag(required=False)


class ProviderTest(Shape):
    """What the issuer answered."""

    trouble = Told(allow_null=True, help_text="Why people could not sign in by it.")
    keys = Whole(allow_null=True, help_text="How many keys it signs with.")


class Provider(Resource):
    @operation(
        "getIdentityProvider",
        tag=TAG,
        summary="Get the sign-in provider",
        scope=api_tokens.SETTINGS_READ,
        action=Action.MANAGE_ORGANIZATION,
        answers=ProviderShape,
        errors=(404,),
    )
    def get(self, call: Call) -> Any:
        return _told(_found(call))

    @operation(
        "setIdentityProvider",
        tag=TAG,
        summary="Set the sign-in provider up, or change it",
        description="With another issuer or client all links to persons end, and the sessions that it vouched for. Test it then.",
        scope=api_tokens.SETTINGS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        body=ProviderBody,
        answers=ProviderShape,
        examples={
            "Groups": {
                "name": "Company",
                "issuer": "https://id.example.com",
                "client_id": "weir",
                "client_secret": "…",
                "email_domains": ["example.com"],
                "role_claim": "groups",
                "role_map": {"weir-owners": "owner"},
                "default_role": "developer",
            }
        },
    )
    def put(self, call: Call) -> Any:
        body = call.body
        asked = Asked(
            name=body["name"],
            issuer=body["issuer"],
            client_id=body["client_id"],
            client_secret=body.get("client_secret"),
            email_domains=tuple(body["email_domains"]),
            role_claim=body.get("role_claim") or "",
            role_map=body.get("role_map", {}),
            default_role=body.get("default_role") or "",
            is_active=body.get("is_active", True),
            is_required=body.get("is_required", False),
        )
        identity.set_provider(call.member.organization, asked, by=call.by)
        return _told(_found(call))

    @operation(
        "removeIdentityProvider",
        tag=TAG,
        summary="Remove the sign-in provider",
        description="With its secret and its links; who came in by it is signed out.",
        scope=api_tokens.SETTINGS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        errors=(404,),
    )
    def delete(self, call: Call) -> None:
        _found(call)
        identity.remove_provider(call.member.organization, by=call.by)


class TestedProvider(Resource):
    @operation(
        "testIdentityProvider",
        tag=TAG,
        summary="Ask the sign-in provider what it is",
        description="Fetches its discovery document and its keys, as they are saved here.",
        scope=api_tokens.SETTINGS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        answers=ProviderTest,
        errors=(404,),
    )
    def post(self, call: Call) -> Any:
        row = _found(call)
        try:
            keys = identity_tokens.keys_of(identity_tokens.discover(row.issuer))
        except IdentityError as error:
            return {"trouble": error.message, "keys": None}
        return {"trouble": None, "keys": len(keys)}


def _found(call: Call) -> IdentityProvider:
    row = identity.of(call.member.organization)
    if row is None:
        raise Http404
    return row


def _told(row: IdentityProvider) -> dict[str, Any]:
    return {
        "id": str(row.uuid),
        **{name: getattr(row, name) for name in ("name", "issuer", "client_id", "email_domains", "role_map")},
        "has_secret": bool(row.client_secret),
        "role_claim": row.role_claim or None,
        "default_role": row.default_role or None,
        "is_active": row.is_active,
        "is_required": row.is_required,
        "created_at": iso(row.created_at),
    }


urls = [
    path("settings/identity-provider", Provider.as_view(), name="api_identity_provider"),
    path("settings/identity-provider/test", TestedProvider.as_view(), name="api_identity_provider_test"),
]
