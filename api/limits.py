"""Limits and their boosts: what a scope may use, how it stands, more of it for a time."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404
from django.urls import path

from accounts import api_tokens, managing
from accounts.models import Team
from accounts.permissions import Action
from api.base import OPTIONAL, Call, Resource, operation
from api.fields import Amount, Choice, Flag, ListOf, Moment, Query, Shape, Text, Told, Uuid, amount_text, iso
from api.keys import WINDOWS
from quotas import limits, remaining, requests, rights
from quotas.errors import Degraded, NoActivePlan, Stale
from quotas.models import Limit, LimitBoost
from quotas.remaining import Meter

TAG = "Limits"


class BoostShape(Shape):
    """More than a limit gives, for a time. Boosts add up."""

    id = Uuid()
    extra = Told(help_text="Decimal credits, or a count.")
    starts_at = Moment()
    ends_at = Moment()
    reason = Told()


class LimitShape(Shape):
    """What a scope may use of a metric in a window. Amounts are decimal credits, or counts, as text."""

    id = Uuid()
    scope = Choice(choices=Limit.Scope.values)
    of_id = Uuid(allow_null=True, help_text="The team, member or key; null: the organization.")
    of = Told(help_text="Its name.")
    metric = Choice(choices=Limit.Metric.values)
    window = Choice(choices=WINDOWS, allow_null=True, help_text="null for rates and requests at once.")
    amount = Told(help_text="What was set, without boosts; 0 blocks.")
    models = ListOf(child=Told(), help_text="Only requests for these; empty: all.")
    is_exact = Flag(help_text="Counted by the second.")
    boosts = ListOf(child=BoostShape(), help_text="Those that hold.")
    created_at = Moment()


class Standing(Shape):
    """How a limit stands now. `left` below 0 is an overdraft."""

    limit = Told(help_text="With boosts.")
    used = Told()
    held = Told(help_text="By running requests.")
    left = Told()
    resets_at = Moment(allow_null=True, help_text="null: bit by bit, or when a running request ends.")


class LimitWithStanding(LimitShape):
    """A limit and how it stands."""

    standing = Standing(allow_null=True, help_text="null while the counters do not answer, and without a plan.")


class NewLimit(Shape):
    scope = Choice(choices=Limit.Scope.values)
    of_id = Uuid(required=False, allow_null=True, help_text="The team, member or key; not for the organization.")
    metric = Choice(choices=Limit.Metric.values)
    window = Choice(choices=WINDOWS, required=False, allow_null=True, help_text="Not for rates and requests at once.")
    amount = Amount(help_text="Decimal credits, or a count; 0 blocks.")
    models = ListOf(child=Text(max_length=120), required=False, max_length=50)
    is_exact = Flag(required=False, help_text="Count a rolling window by the second.")


class LimitChange(Shape):
    amount = Amount(help_text="Decimal credits, or a count; 0 blocks.")


class NewBoost(Shape):
    extra = Amount(help_text="How much more: decimal credits, or a count; above 0.")
    until = Moment(help_text=f"At most {requests.MOST_DAYS} days on.")
    reason = Text(max_length=200, required=False, allow_blank=True)


class LimitQuery(Query):
    scope = Choice(choices=Limit.Scope.values, required=False)
    member_id = Uuid(required=False, help_text="Those of the member and of the member's keys.")
    team_id = Uuid(required=False, help_text="Those of the team.")


BOOST = {
    "id": "e1a7b1f7-29a1-4be7-8f0c-0f5c6a1f0d11",
    "extra": "20",
    "starts_at": "2026-11-02T09:00:00Z",
    "ends_at": "2026-11-09T00:00:00Z",
    "reason": "Release week",
}
EXAMPLE = {
    "id": "c4c5f3d2-6c4c-4b8f-8f60-3f5a3a3cf5a9",
    "scope": "member",
    "of_id": "5f0c1c1e-6f0e-4a6e-9f3e-0c5d7f2b8a11",
    "of": "Ada",
    "metric": "credits",
    "window": "day",
    "amount": "50",
    "models": [],
    "is_exact": False,
    "boosts": [BOOST],
    "created_at": "2026-11-02T09:00:00Z",
}
STANDING = {"limit": "70", "used": "12.5", "held": "0.8", "left": "56.7", "resets_at": "2026-11-03T00:00:00Z"}


def boost_shown(row: LimitBoost) -> dict[str, Any]:
    """`BoostShape` of a row with its limit."""
    return {
        "id": str(row.uuid),
        "extra": amount_text(row.limit.metric, row.extra),
        "starts_at": iso(row.starts_at),
        "ends_at": iso(row.ends_at),
        "reason": row.reason,
    }


def shown(rows: Sequence[Limit], call: Call) -> list[dict[str, Any]]:
    """`LimitShape` of each row with what `rights.RELATED` names. One query more."""
    boosts: dict[int, list[LimitBoost]] = {}
    given = LimitBoost.objects.filter(limit__in=[row.pk for row in rows], revoked_at=None, ends_at__gt=call.now)
    for boost in given.select_related("limit").order_by("ends_at", "pk"):
        boosts.setdefault(boost.limit_id, []).append(boost)
    found = []
    for row in rows:
        subject = rights.subject_of(row)
        found.append(
            {
                "id": str(row.uuid),
                "scope": row.scope,
                "of_id": str(subject.uuid) if subject is not None else None,
                "of": row.key.name if row.key is not None else str(subject or row.organization),
                "metric": row.metric,
                "window": row.window or None,
                "amount": amount_text(row.metric, row.amount),
                "models": list(row.model_filter.model_names) if row.model_filter is not None else [],
                "is_exact": row.strategy == Limit.Strategy.SLIDING_LOG,
                "boosts": [boost_shown(boost) for boost in boosts.get(row.pk, [])],
                "created_at": iso(row.created_at),
            }
        )
    return found


def with_standing(rows: Sequence[Limit], call: Call) -> list[dict[str, Any]]:
    """`LimitWithStanding` of each: one snapshot, and one read of the counters for each 100 that they are about."""
    meters = _meters(rows, call)
    return [
        {**one, "standing": _standing(row, meters.get(str(row.uuid)))} for row, one in zip(rows, shown(rows, call), strict=True)
    ]


def _meters(rows: Sequence[Limit], call: Call) -> Mapping[str, Meter]:
    holders = {one.pk: one for row in rows if (one := row.member or (row.key.member if row.key is not None else None)) is not None}
    teams = {row.team_id for row in rows if row.team_id is not None}
    try:
        return remaining.of_everybody(call.member.organization, members=list(holders.values()), team_ids=teams, now=call.now).meters
    except (NoActivePlan, Degraded, Stale):
        return {}


def _standing(row: Limit, meter: Meter | None) -> dict[str, Any] | None:
    if meter is None:
        return None
    amounts = {name: amount_text(row.metric, getattr(meter, name)) for name in ("limit", "used", "held", "left")}
    return {**amounts, "resets_at": iso(meter.resets_at)}


def find(call: Call, uuid: UUID) -> Limit:
    """A limit that the caller sees: 404 for another organization's, 403 out of reach."""
    found = call.owned(Limit.objects.select_related(*rights.RELATED), uuid)
    if not rights.visible(call.member).filter(pk=found.pk).exists():
        raise PermissionDenied
    return found


def _changed(call: Call, uuid: UUID | None) -> dict[str, Any]:
    if uuid is None:
        # Somebody removed it at this moment.
        raise Http404
    return shown([Limit.objects.select_related(*rights.RELATED).get(uuid=uuid)], call)[0]


class Limits(Resource):
    @operation(
        "listLimits",
        tag=TAG,
        summary="List limits",
        description="Those that hold the caller, and those of whom the caller looks after, with how they stand.",
        scope=api_tokens.LIMITS_READ,
        action=Action.USE_KEYS,
        query=LimitQuery,
        answers=LimitWithStanding,
        is_list=True,
        example={**EXAMPLE, "standing": STANDING},
        errors=(404,),
    )
    def get(self, call: Call) -> Any:
        found, asked = rights.visible(call.member), call.query
        if "scope" in asked:
            found = found.filter(scope=asked["scope"])
        if "member_id" in asked:
            of = managing.find(call.member, asked["member_id"], action=Action.USE_KEYS)
            found = found.filter(Q(member=of) | Q(key__member=of))
        if "team_id" in asked:
            team = call.owned(Team.objects.all(), asked["team_id"])
            if team.pk != call.member.team_id:
                call.demand(Action.SEE_MEMBERS, team_id=team.pk)
            found = found.filter(team=team)
        return call.page(found, together=lambda page: with_standing(page, call))

    @operation(
        "setLimit",
        tag=TAG,
        summary="Set a limit",
        description=(
            "One limit asks each question (scope, metric, window, models): the same again gives it another amount. What its window "
            "already used counts. Leads set none above their own scope's."
        ),
        scope=api_tokens.LIMITS_WRITE,
        action=Action.SET_LIMITS,
        body=NewLimit,
        answers=LimitShape,
        status=201,
        idempotency=OPTIONAL,
        examples={
            "Fifty credits a day": {
                "scope": "member",
                "of_id": "5f0c1c1e-6f0e-4a6e-9f3e-0c5d7f2b8a11",
                "metric": "credits",
                "window": "day",
                "amount": "50",
            },
            "Requests at once": {"scope": "organization", "metric": "concurrent", "amount": 20},
        },
        example=EXAMPLE,
        errors=(404,),
    )
    def post(self, call: Call) -> Any:
        asked = call.body
        subject = rights.find_subject(call.member, asked["scope"], asked.get("of_id"))
        uuid = limits.set_limit(
            call.member.organization,
            scope=asked["scope"],
            of=rights.name_of(subject),
            metric=asked["metric"],
            window=asked.get("window") or "",
            amount=asked["amount"],
            models=tuple(asked.get("models", ())),
            strategy=Limit.Strategy.SLIDING_LOG if asked.get("is_exact") else None,
            by=call.by,
            setter=call.member,
        )
        return _changed(call, uuid)


class OneLimit(Resource):
    @operation(
        "getLimit",
        tag=TAG,
        summary="Get a limit and how it stands",
        scope=api_tokens.LIMITS_READ,
        action=Action.USE_KEYS,
        answers=LimitWithStanding,
        example={**EXAMPLE, "standing": STANDING},
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        return with_standing([find(call, uuid)], call)[0]

    @operation(
        "changeLimit",
        tag=TAG,
        summary="Give a limit another amount",
        description="It holds on the very next request.",
        scope=api_tokens.LIMITS_WRITE,
        action=Action.SET_LIMITS,
        body=LimitChange,
        answers=LimitShape,
        examples={"A hundred credits": {"amount": "100"}},
        example=EXAMPLE,
    )
    def patch(self, call: Call, uuid: UUID) -> Any:
        limit = rights.find_limit(call.member, uuid)
        return _changed(call, limits.change(limit, call.body["amount"], by=call.by, setter=call.member))

    @operation(
        "removeLimit",
        tag=TAG,
        summary="Remove a limit",
        description="Every other one still holds.",
        scope=api_tokens.LIMITS_WRITE,
        action=Action.SET_LIMITS,
    )
    def delete(self, call: Call, uuid: UUID) -> None:
        limits.change(rights.find_limit(call.member, uuid), "none", by=call.by, setter=call.member)


class Boosts(Resource):
    @operation(
        "boostLimit",
        tag=TAG,
        summary="Give more of a limit for a time",
        scope=api_tokens.LIMITS_WRITE,
        action=Action.SET_LIMITS,
        body=NewBoost,
        answers=BoostShape,
        status=201,
        idempotency=OPTIONAL,
        examples={"Until Monday": {"extra": "20", "until": "2026-11-09T00:00:00Z", "reason": "Release week"}},
        example=BOOST,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        limit, asked = rights.find_limit(call.member, uuid), call.body
        made = limits.boost(
            limit,
            extra=requests.extra_of(limit, asked["extra"]),
            until=requests.checked_until(asked["until"], now=call.now, zone=ZoneInfo(call.member.organization.timezone)),
            reason=requests.checked_note(asked.get("reason", "")),
            by=call.by,
            setter=call.member,
            now=call.now,
        )
        return boost_shown(made)


class OneBoost(Resource):
    @operation(
        "endBoost",
        tag=TAG,
        summary="End a boost before its time",
        description="A second time changes nothing.",
        scope=api_tokens.LIMITS_WRITE,
        action=Action.SET_LIMITS,
    )
    def delete(self, call: Call, uuid: UUID) -> None:
        given = call.owned(LimitBoost.objects.select_related("limit"), uuid)
        rights.find_limit(call.member, given.limit.uuid)
        limits.end_boost(given, by=call.by, now=call.now)


urls = [
    path("limits", Limits.as_view(), name="api_limits"),
    path("limits/<uuid:uuid>", OneLimit.as_view(), name="api_limit"),
    path("limits/<uuid:uuid>/boosts", Boosts.as_view(), name="api_limit_boosts"),
    path("boosts/<uuid:uuid>", OneBoost.as_view(), name="api_boost"),
]
