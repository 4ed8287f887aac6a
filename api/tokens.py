"""Tokens of this API: listed, issued and revoked. A token makes others of its own member's, within what it may do itself."""

from typing import Any
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.urls import path

from accounts import api_tokens, permissions
from accounts.models import ApiToken
from accounts.permissions import Action
from api.base import OPTIONAL, Call, Resource, operation
from api.fields import Choice, Flag, ListOf, Moment, Query, Shape, Text, Told, Uuid, iso
from api.idempotency import Answer

TAG = "Tokens"
ONCE = "It is in this answer only: it is kept nowhere."


class TokenShape(Shape):
    """A token acts as one member, within its scopes; what the member's role allows is asked at every call."""

    id = Uuid()
    name = Told()
    public_id = Told(help_text="What its text begins with, after wt_.")
    member_id = Uuid()
    member = Told()
    scopes = ListOf(child=Choice(choices=api_tokens.SCOPES))
    created_at = Moment()
    expires_at = Moment(allow_null=True)
    revoked_at = Moment(allow_null=True)
    last_used_at = Moment(allow_null=True, help_text="To the minute; null before its first call.")
    is_this = Flag(help_text="It is the one that asks.")


class IssuedTokenShape(TokenShape):
    """A token that was made just now."""

    secret = Told(allow_null=True, help_text="The whole of it; null when the answer is given again.")
    secret_note = Told()


class TokenBody(Shape):
    name = Text(max_length=80)
    scopes = ListOf(child=Choice(choices=api_tokens.SCOPES), min_length=1, help_text="Some of those of the token that asks.")
    expires_at = Moment(required=False, help_text="Without it: when the token that asks ends.")


class TokenQuery(Query):
    revoked = Flag(required=False, help_text="Only revoked ones, or only others.")


class Tokens(Resource):
    @operation(
        "listTokens",
        tag=TAG,
        summary="List tokens of the API",
        description="Owners see everybody's, others their own; the newest first.",
        scope=api_tokens.SETTINGS_READ,
        action=None,
        query=TokenQuery,
        answers=TokenShape,
        is_list=True,
    )
    def get(self, call: Call) -> Any:
        rows = _rows(call)
        if not permissions.can(call.member, Action.MANAGE_ORGANIZATION):
            rows = rows.filter(member=call.member)
        if "revoked" in call.query:
            rows = rows.filter(revoked_at__isnull=not call.query["revoked"])
        return call.page(rows, lambda row: _told(call, row), is_newest_first=True)

    @operation(
        "issueToken",
        tag=TAG,
        summary="Issue a token",
        description="It acts as the same member, with no scope that the token that asks has not, and no longer.",
        scope=api_tokens.SETTINGS_WRITE,
        action=None,
        body=TokenBody,
        answers=IssuedTokenShape,
        status=201,
        idempotency=OPTIONAL,
        examples={"For a dashboard": {"name": "Dashboard", "scopes": ["status:read", "usage:read"]}},
    )
    def post(self, call: Call) -> Any:
        assert call.token is not None, "keys are not taken here"
        expires_at = call.body.get("expires_at", call.token.expires_at)
        api_tokens.check_within(call.token, scopes=call.body["scopes"], expires_at=expires_at)
        made = api_tokens.issue(
            call.member, name=call.body["name"], scopes=call.body["scopes"], expires_at=expires_at, by=call.by, now=call.now
        )
        row = _rows(call).get(pk=made.token.pk)
        return Answer(201, {**_told(call, row), "secret": made.secret, "secret_note": ONCE}, secrets=("secret",))


class OneToken(Resource):
    @operation(
        "getToken",
        tag=TAG,
        summary="Get a token",
        scope=api_tokens.SETTINGS_READ,
        action=None,
        answers=TokenShape,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        return _told(call, _token(call, uuid))

    @operation(
        "revokeToken",
        tag=TAG,
        summary="Revoke a token",
        description="It ends with the next call. One that was revoked before stays so.",
        scope=api_tokens.SETTINGS_WRITE,
        action=None,
    )
    def delete(self, call: Call, uuid: UUID) -> None:
        api_tokens.revoke(_token(call, uuid), by=call.by, now=call.now)


def _rows(call: Call) -> QuerySet[ApiToken]:
    return ApiToken.objects.for_organization(call.member.organization).select_related("member__user")


def _token(call: Call, uuid: UUID) -> ApiToken:
    """404 for another organization's, 403 for another member's, unless by an owner."""
    found = call.owned(_rows(call), uuid)
    if found.member_id != call.member.pk and not permissions.can(call.member, Action.MANAGE_ORGANIZATION):
        raise PermissionDenied
    return found


def _told(call: Call, row: ApiToken) -> dict[str, Any]:
    return {
        "id": str(row.uuid),
        "name": row.name,
        "public_id": row.public_id,
        "member_id": str(row.member.uuid),
        "member": str(row.member),
        # What an older version knew is no choice any more.
        "scopes": [scope for scope in row.scopes if scope in api_tokens.SCOPES],
        "created_at": iso(row.created_at),
        "expires_at": iso(row.expires_at),
        "revoked_at": iso(row.revoked_at),
        "last_used_at": iso(row.last_used_at),
        "is_this": call.token is not None and call.token.pk == row.pk,
    }


urls = [
    path("tokens", Tokens.as_view(), name="api_tokens"),
    path("tokens/<uuid:uuid>", OneToken.as_view(), name="api_token"),
]
