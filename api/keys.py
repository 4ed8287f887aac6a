"""Gateway keys: issued for oneself with what they may be used for and their limits, rotated, revoked."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.urls import path

from accounts import api_tokens, keys, managing, permissions
from accounts.keys import IssuedKey
from accounts.models import ApiKey, Member
from accounts.permissions import Action, Reach
from api.base import OPTIONAL, Call, Resource, operation
from api.fields import Amount, Choice, Flag, ListOf, Moment, Query, Shape, Text, Told, Uuid, Whole, amount_text, iso
from api.idempotency import Answer
from api.people import ONCE
from billing import overview
from quotas import limited_keys
from quotas.limited_keys import WantedLimit
from quotas.models import Limit

TAG = "Keys"
WINDOWS = [window for window in Limit.Window.values if window]


class KeyLimit(Shape):
    """A limit of the key's own. Amounts are decimal credits, or counts, as text."""

    id = Uuid()
    metric = Choice(choices=Limit.Metric.values)
    window = Choice(choices=WINDOWS, allow_null=True, help_text="null for rates and requests at once.")
    amount = Told()
    models = ListOf(child=Told(), help_text="Only requests for these; empty: all.")
    is_exact = Flag()


class KeyShape(Shape):
    """A gateway key. Its secret is told once, when it is made."""

    id = Uuid()
    public_id = Told(help_text="What the secret begins with.")
    name = Told()
    member_id = Uuid()
    member = Told(help_text="The member's name.")
    allowed_models = ListOf(child=Told(), allow_null=True, help_text="null: those of the plan.")
    allowed_efforts = ListOf(child=Told(), allow_null=True, help_text="null: all.")
    fast_allowed = Flag()
    limits = ListOf(child=KeyLimit())
    created_at = Moment()
    expires_at = Moment(allow_null=True)
    revoked_at = Moment(allow_null=True)
    old_secret_until = Moment(allow_null=True, help_text="The secret before the last rotation works until then.")
    last_used_at = Moment(allow_null=True, help_text="Of the last 92 days.")


class IssuedKeyShape(KeyShape):
    """A key with its secret."""

    secret = Told(allow_null=True, help_text="The whole key; null when the answer is given again.")
    secret_note = Told()


class NewKeyLimit(Shape):
    metric = Choice(choices=Limit.Metric.values)
    window = Choice(choices=WINDOWS, required=False, help_text="Not for rates and requests at once.")
    amount = Amount(help_text="Decimal credits, or a count; 0 blocks.")
    models = ListOf(child=Text(max_length=120), required=False, max_length=50)
    is_exact = Flag(required=False, help_text="Count a rolling window by the second.")


class NewKey(Shape):
    name = Text(max_length=80)
    expires_at = Moment(required=False, allow_null=True)
    allowed_models = ListOf(child=Text(max_length=120), required=False, allow_null=True, min_length=1)
    allowed_efforts = ListOf(child=Text(max_length=20), required=False, allow_null=True, min_length=1)
    fast_allowed = Flag(required=False)
    limits = ListOf(child=NewKeyLimit(), required=False, max_length=20, help_text="For who may set limits.")


class Rotation(Shape):
    grace_seconds = Whole(max_value=keys.MOST_GRACE_SECONDS, required=False, help_text="How long the old secret works on.")


class KeyQuery(Query):
    member_id = Uuid(required=False)
    revoked = Flag(required=False, help_text="true: those that were revoked, in place of those that work.")


EXAMPLE = {
    "id": "0a4f6c1e-54d4-4b0e-9d4a-4a6f9b8a7e01",
    "public_id": "4fT2kQ9xZb",
    "name": "laptop",
    "member_id": "5f0c1c1e-6f0e-4a6e-9f3e-0c5d7f2b8a11",
    "member": "Ada",
    "allowed_models": None,
    "allowed_efforts": ["low", "medium"],
    "fast_allowed": False,
    "limits": [
        {
            "id": "c4c5f3d2-6c4c-4b8f-8f60-3f5a3a3cf5a9",
            "metric": "credits",
            "window": "day",
            "amount": "5",
            "models": [],
            "is_exact": False,
        }
    ],
    "created_at": "2026-11-02T09:00:00Z",
    "expires_at": None,
    "revoked_at": None,
    "old_secret_until": None,
    "last_used_at": None,
}
ISSUED = {**EXAMPLE, "secret": "wr_4fT2kQ9xZb_…", "secret_note": ONCE}


def shown(rows: Sequence[ApiKey], call: Call) -> list[dict[str, Any]]:
    """`KeyShape` of each. Four queries at most, however many they are."""
    used = overview.last_used(list(rows), now=call.now)
    own: dict[int, list[Limit]] = {}
    for limit in Limit.objects.filter(key__in=[row.pk for row in rows]).select_related("model_filter").order_by("pk"):
        assert limit.key_id is not None
        own.setdefault(limit.key_id, []).append(limit)
    return [
        {
            "id": str(row.uuid),
            "public_id": row.public_id,
            "name": row.name,
            "member_id": str(row.member.uuid),
            "member": str(row.member),
            "allowed_models": row.allowed_models,
            "allowed_efforts": row.allowed_efforts,
            "fast_allowed": row.fast_allowed,
            "limits": [_limit(limit) for limit in own.get(row.pk, [])],
            "created_at": iso(row.created_at),
            "expires_at": iso(row.expires_at),
            "revoked_at": iso(row.revoked_at),
            "old_secret_until": iso(row.previous_until) if row.previous_until and row.previous_until > call.now else None,
            "last_used_at": iso(used.get(row.pk)),
        }
        for row in rows
    ]


def _limit(limit: Limit) -> dict[str, Any]:
    return {
        "id": str(limit.uuid),
        "metric": limit.metric,
        "window": limit.window or None,
        "amount": amount_text(limit.metric, limit.amount),
        "models": list(limit.model_filter.model_names) if limit.model_filter is not None else [],
        "is_exact": limit.strategy == Limit.Strategy.SLIDING_LOG,
    }


def rows(organization_of: Member) -> QuerySet[ApiKey]:
    return ApiKey.objects.for_organization(organization_of.organization).select_related("member__user", "member__team")


def find(call: Call, uuid: UUID) -> ApiKey:
    """A key in the caller's reach: 404 for another organization's, 403 for another's out of reach."""
    found = call.owned(rows(call.member), uuid)
    call.demand(Action.USE_KEYS, of=found.member)
    return found


def _told(issued: IssuedKey, call: Call, status: int) -> Answer:
    row = rows(call.member).get(pk=issued.key.pk)
    data = {**shown([row], call)[0], "secret": issued.secret, "secret_note": ONCE}
    return Answer(status, data, secrets=("secret",))


class Keys(Resource):
    @operation(
        "listKeys",
        tag=TAG,
        summary="List gateway keys",
        description="One's own; a lead's scope's; an owner's all.",
        scope=api_tokens.KEYS_READ,
        action=Action.USE_KEYS,
        query=KeyQuery,
        answers=KeyShape,
        is_list=True,
        example=EXAMPLE,
        errors=(404,),
    )
    def get(self, call: Call) -> Any:
        member = call.member
        found = rows(member).filter(revoked_at__isnull=not call.query.get("revoked", False))
        reach = permissions.reach(member, Action.USE_KEYS)
        if "member_id" in call.query:
            of = managing.find(member, call.query["member_id"], action=Action.USE_KEYS)
            found = found.filter(member=of)
        elif reach is Reach.OWN:
            found = found.filter(member=member)
        elif reach is Reach.SCOPE:
            found = found.filter(member__team=member.team)
        return call.page(found, together=lambda page: shown(page, call), is_newest_first=True)

    @operation(
        "issueKey",
        tag=TAG,
        summary="Issue a key for oneself",
        description=(
            "It works on the next request. Limits of its own are for who may set limits; they hold from its first request. "
            "Nobody issues a key for somebody else: whoever issues it sees its secret."
        ),
        scope=api_tokens.KEYS_WRITE,
        action=Action.USE_KEYS,
        body=NewKey,
        answers=IssuedKeyShape,
        status=201,
        idempotency=OPTIONAL,
        examples={
            "Any use": {"name": "laptop"},
            "Five credits a day": {"name": "ci", "limits": [{"metric": "credits", "window": "day", "amount": "5"}]},
        },
        example=ISSUED,
    )
    def post(self, call: Call) -> Any:
        asked = call.body
        wanted = [
            WantedLimit(
                one["metric"], one.get("window", ""), one["amount"], tuple(one.get("models", ())), one.get("is_exact", False)
            )
            for one in asked.get("limits", ())
        ]
        issued = limited_keys.issue(
            call.member,
            name=asked["name"],
            limited=wanted,
            expires_at=asked.get("expires_at"),
            allowed_models=asked.get("allowed_models"),
            allowed_efforts=asked.get("allowed_efforts"),
            fast_allowed=asked.get("fast_allowed", True),
            now=call.now,
        )
        return _told(issued, call, 201)


class OneKey(Resource):
    @operation(
        "getKey",
        tag=TAG,
        summary="Get a gateway key",
        scope=api_tokens.KEYS_READ,
        action=Action.USE_KEYS,
        answers=KeyShape,
        example=EXAMPLE,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        return shown([find(call, uuid)], call)[0]

    @operation(
        "revokeKey",
        tag=TAG,
        summary="Revoke a key",
        description="Its next request is refused. A second time changes nothing.",
        scope=api_tokens.KEYS_WRITE,
        action=Action.USE_KEYS,
    )
    def delete(self, call: Call, uuid: UUID) -> None:
        keys.revoke(find(call, uuid), by=call.by, now=call.now)


class RotateKey(Resource):
    @operation(
        "rotateKey",
        tag=TAG,
        summary="Give a key of one's own a new secret",
        description=(
            "Id, limits and history stay; the old secret works on for the grace. Without an Idempotency-Key a call that is "
            "repeated rotates again."
        ),
        scope=api_tokens.KEYS_WRITE,
        action=Action.USE_KEYS,
        body=Rotation,
        answers=IssuedKeyShape,
        idempotency=OPTIONAL,
        examples={"End the old one now": {"grace_seconds": 0}},
        example=ISSUED,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        found = find(call, uuid)
        # Whoever rotates a key sees its secret. Others' keys a lead may revoke.
        if found.member_id != call.member.pk:
            raise PermissionDenied
        issued = keys.rotate(found, grace_seconds=call.body.get("grace_seconds"), by=call.by, now=call.now)
        return _told(issued, call, 200)


urls = [
    path("keys", Keys.as_view(), name="api_keys"),
    path("keys/<uuid:uuid>", OneKey.as_view(), name="api_key"),
    path("keys/<uuid:uuid>/rotate", RotateKey.as_view(), name="api_key_rotate"),
]
