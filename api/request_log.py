"""The request log: requests and kept refusals in one list by time, in the caller's reach; one of them with all that is known.

A developer sees their own rows, whatever is asked for; upstream accounts are told of to who sees the pool, and to nobody else.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.urls import path

from accounts import api_tokens
from accounts.permissions import Action
from api import paging
from api.base import Call, Resource, operation
from api.errors import CursorInvalid
from api.fields import Choice, Flag, ListOf, Moment, Query, Shape, Text, Told, Uuid, Whole, amount_text, iso
from billing import credits, labels
from billing.labels import Accounts, Labels, Sight
from billing.overview import Whose
from billing.usage_log import Logged, Wanted
from quotas import request_filters, request_log, request_told
from quotas.models import Refusal
from quotas.refused import Told as Words
from quotas.request_log import Entry
from quotas.request_told import Opened

TAG = "Requests"
REQUEST, REFUSAL = "request", "refusal"


class RefusalShape(Shape):
    """Why it was refused, and how often within the minute. Credits are decimal text, counts whole numbers as text."""

    code = Told()
    reason = Told(help_text="In a few words.")
    count = Whole()
    scope = Told(allow_null=True)
    scope_name = Told(allow_null=True)
    metric = Told(allow_null=True)
    window = Told(allow_null=True)
    limit_id = Uuid(allow_null=True)
    limit = Told(allow_null=True)
    used = Told(allow_null=True)
    held = Told(allow_null=True)
    need = Told(allow_null=True)
    resets_at = Moment(allow_null=True)


class RequestShape(Shape):
    """A request, or (`refusal`) requests that were refused within a minute for one reason: those cost nothing."""

    id = Told(help_text="A request's id, or a refusal's.")
    kind = Choice(choices=[REQUEST, REFUSAL])
    at = Moment()
    member_id = Uuid(allow_null=True)
    member = Told()
    key_id = Uuid(allow_null=True)
    key = Told(allow_null=True, help_text="The key's name.")
    team_id = Uuid(allow_null=True, help_text="The team that the member was in.")
    account_id = Uuid(allow_null=True, help_text="Which account carried it: for who sees the pool.")
    account = Told(allow_null=True)
    status = Choice(choices=[value for value, _ in request_filters.STATUSES])
    model_asked = Told()
    model_served = Told(allow_null=True)
    credits = Told()
    input_tokens = Whole(min_value=None, help_text="Fresh ones, and cache writes.")
    cached_input_tokens = Whole(min_value=None)
    output_tokens = Whole(min_value=None, help_text="Reasoning is among them.")
    first_token_ms = Whole(allow_null=True)
    latency_ms = Whole(allow_null=True)
    flags = ListOf(child=Told(), help_text="estimated, implausible, clamped, overdraft, amended.")
    refusal = RefusalShape(allow_null=True)


class RequestQuery(Query):
    """All of it together. Ids that are not in this organization are 404, filters that are not the role's 403."""

    start = Moment(required=False, help_text="From this moment on.")
    end = Moment(required=False, help_text="Before this moment.")
    member_id = Uuid(required=False)
    team_id = Uuid(required=False)
    key_id = Uuid(required=False)
    account_id = Uuid(required=False)
    model = Text(max_length=120, required=False)
    status = Choice(choices=[value for value, _ in request_filters.STATUSES], required=False)


class RequestStep(Shape):
    """One step of the way that it went."""

    when = Told()
    lead = Told()
    account = Told(allow_null=True)
    detail = Told()
    is_failed = Flag()


class RequestCandidate(Shape):
    account = Told()
    score = Told()
    room = Told(allow_null=True, help_text="Credits of headroom; null: no bound.")
    is_chosen = Flag()


class RequestRanking(Shape):
    """The accounts that were in the running, the best first: for who sees the pool."""

    title = Told()
    count = Whole()
    turn = Told(allow_null=True, help_text="Credits that the turn was expected to take.")
    candidates = RequestCandidate(many=True)


class PricePart(Shape):
    """Tokens of one type. Parts are rounded for themselves: their sum may differ in the last digit."""

    name = Told()
    tokens = Whole(min_value=None)
    rate = Told(help_text="Credits for a million, with multipliers.")
    credits = Told(allow_null=True)


class PriceLine(Shape):
    """What one attempt cost."""

    model = Told()
    account = Told(allow_null=True)
    credits = Told()
    tier = Told()
    formula = Told(allow_null=True, help_text="Rate by tokens, which gives exactly these credits.")
    is_rounded = Flag()
    is_long_context = Flag()
    reasoning_tokens = Whole(min_value=None)
    rate_card = Told(allow_null=True, help_text="null: the organization's own price, or none.")
    note = Told(allow_null=True)
    parts = PricePart(many=True)


class RequestFund(Shape):
    name = Told()
    credits = Told()


class RequestOpened(RequestShape):
    """One entry with all that is known of it. Of a refusal there is no way, no price, and what to do is in `advice`."""

    key_public_id = Told(allow_null=True)
    response_id = Told(allow_null=True)
    session = Told(allow_null=True)
    tier_asked = Told(allow_null=True)
    tier_billed = Told(allow_null=True)
    held = Told(allow_null=True)
    counted_tokens = Whole(min_value=None)
    is_from_seat = Flag(help_text="It drew on the member's own seat.")
    steps = RequestStep(many=True)
    rankings = RequestRanking(many=True)
    lines = PriceLine(many=True)
    funds = RequestFund(many=True)
    title = Told(allow_null=True, help_text="Of a refusal: what it was.")
    advice = Told(allow_null=True)


class Requests(Resource):
    @operation(
        "listRequests",
        tag=TAG,
        summary="List requests and refusals",
        description="The newest first. A piece may be empty and yet have a `next`: nothing was found so far, and there is more "
        "to look through.",
        scope=api_tokens.REQUESTS_READ,
        action=Action.SEE_REQUESTS,
        query=RequestQuery,
        answers=RequestShape,
        is_list=True,
        errors=(404,),
    )
    def get(self, call: Call) -> Any:
        sight = labels.sight(call.member)
        wanted = wanted_of(call, sight, call.query)
        at = paging.place(call.request, call.member.organization_id)
        place = None
        if at is not None:
            place = request_log.place(sight.whose, str(at.values[0]))
            if place is None:
                raise CursorInvalid("What this cursor names is not in the log any more. Begin without one.", param=paging.CURSOR)
        found = request_log.page(
            sight.whose,
            wanted,
            before=place if at is not None and not at.is_back else None,
            after=place if at is not None and at.is_back else None,
            count=call.limit,
            now=call.now,
        )
        return {
            "results": told(sight, found.entries, Labels(call.member.organization)),
            "next": _link(call, found.older, is_back=False),
            "previous": _link(call, found.newer, is_back=True),
        }


class OneRequest(Resource):
    @operation(
        "getRequest",
        tag=TAG,
        summary="Get one request, or one refusal",
        description="By its id, or by the id of the response that it made: the way it went, what it cost and why.",
        scope=api_tokens.REQUESTS_READ,
        action=Action.SEE_REQUESTS,
        answers=RequestOpened,
    )
    def get(self, call: Call, name: str) -> Any:
        sight = labels.sight(call.member)
        entry = _entry(sight.whose, name)
        if entry is None:
            if _entry(Whose(call.member.organization), name) is not None:
                raise PermissionDenied
            raise Http404
        names = Labels(call.member.organization)
        [shown] = told(sight, [entry], names)
        return {**shown, **_opened(sight, entry, names)}


def _entry(whose: Whose, name: str) -> Entry | None:
    return request_log.entry(whose, name) or request_log.of_response(whose, name)


def wanted_of(call: Call, sight: Sight, asked: Mapping[str, Any]) -> Wanted:
    """What these fields of `RequestQuery` look for. Raises FilterRefused, FilterMissing (404), FilterForbidden (403)."""
    query = {name.removesuffix("_id"): str(asked[name]) for name in asked if name not in ("start", "end")}
    query |= {to: asked[name].isoformat() for name, to in (("start", "from"), ("end", "to")) if name in asked}
    query["range"] = request_filters.CUSTOM
    zone = ZoneInfo(call.member.organization.timezone)
    return request_filters.chosen(sight, query, zone, call.now).wanted


def _link(call: Call, name: str, *, is_back: bool) -> str | None:
    if not name:
        return None
    return paging.link(call.request, paging.cursor(call.request, call.member.organization_id, [name], is_back=is_back))


# ------------------------------------------------------------------------------------------------------------- telling


def told(sight: Sight, entries: Sequence[Entry], names: Labels) -> list[dict[str, Any]]:
    """`RequestShape` of each. A query for each kind of names, however many there are."""
    rows = [_row(entry) for entry in entries]
    names.members(row.member_id for row in rows)
    names.keys(row.key_id for row in rows)
    names.teams(row.team_id for row in rows)
    if sight.accounts is Accounts.LABELS:
        names.accounts(entry.logged.settled.account_id for entry in entries if entry.logged is not None)
    return [_told(sight, entry, names) for entry in entries]


def _row(entry: Entry) -> Any:
    return entry.logged.row if entry.logged is not None else entry.refusal


def _told(sight: Sight, entry: Entry, names: Labels) -> dict[str, Any]:
    row = _row(entry)
    # An id in a refusal may name what is there no more.
    member, key, team = names.members([row.member_id]), names.keys([row.key_id]), names.teams([row.team_id])
    who, by, of = member.get(row.member_id), key.get(row.key_id), team.get(row.team_id or 0)
    return {
        "id": entry.name,
        "kind": REQUEST if entry.logged is not None else REFUSAL,
        "at": iso(entry.at),
        "member_id": str(who.uuid) if who is not None else None,
        "member": who.name if who is not None else "somebody",
        "key_id": str(by.uuid) if by is not None else None,
        "key": by.name if by is not None else None,
        "team_id": str(of.uuid) if of is not None else None,
        **(_of_request(sight, entry.logged, names) if entry.logged is not None else _of_refusal(row)),
    }


def _of_request(sight: Sight, logged: Logged, names: Labels) -> dict[str, Any]:
    settled = logged.settled
    label = None
    if sight.accounts is Accounts.LABELS and settled.account_id:
        label = names.accounts([settled.account_id]).get(settled.account_id)
    return {
        "account_id": str(label.uuid) if label is not None else None,
        "account": (label.name or "shared account") if label is not None else None,
        "status": settled.status,
        "model_asked": settled.model_asked,
        "model_served": settled.model_served or None,
        "credits": credits.text(logged.credits),
        "input_tokens": logged.read_tokens,
        "cached_input_tokens": logged.cached_tokens,
        "output_tokens": logged.output_tokens,
        "first_token_ms": settled.first_token_ms,
        "latency_ms": settled.latency_ms,
        "flags": [name for name, _ in request_told.flags(logged)],
        "refusal": None,
    }


def _of_refusal(row: Refusal) -> dict[str, Any]:
    nothing = dict.fromkeys(("account_id", "account", "model_served", "first_token_ms", "latency_ms"))
    zeros = dict.fromkeys(("input_tokens", "cached_input_tokens", "output_tokens"), 0)
    return {
        **nothing,
        **zeros,
        "status": request_log.REFUSED,
        "model_asked": row.model,
        "credits": "0",
        "flags": [],
        "refusal": {
            "code": row.code,
            "reason": request_told.refused_briefly(row),
            "count": row.count,
            "scope": row.scope or None,
            "scope_name": row.scope_name or None,
            "metric": row.metric or None,
            "window": row.window or None,
            "limit_id": str(row.limit_uuid) if row.limit_uuid is not None else None,
            **{name: _amount(row, name) for name in ("limit", "used", "held", "need")},
            "resets_at": iso(row.resets_at),
        },
    }


def _amount(row: Refusal, name: str) -> str | None:
    value = getattr(row, name)
    return None if value is None else amount_text(row.metric or "credits", value)


def _credits(micro: int | None) -> str | None:
    return None if micro is None else credits.text(micro)


def _opened(sight: Sight, entry: Entry, names: Labels) -> dict[str, Any]:
    if entry.logged is None:
        assert entry.refusal is not None
        return _opened_refusal(sight, entry.refusal, names)
    opened = request_told.opened(sight, entry.logged, names)
    row, settled = entry.logged.row, entry.logged.settled
    return {
        "key_public_id": opened.key.public_id if opened.sees_key_ids else None,
        "response_id": settled.response_id or None,
        "session": row.session or None,
        "tier_asked": settled.tier_asked or None,
        "tier_billed": settled.tier_billed or None,
        "held": _credits(settled.held),
        "counted_tokens": opened.counted,
        "is_from_seat": opened.seat,
        "steps": [
            {
                "when": step.when,
                "lead": step.lead,
                "account": step.account or None,
                "detail": step.detail,
                "is_failed": step.is_failed,
            }
            for step in opened.steps
        ],
        "rankings": _rankings(opened),
        "lines": _lines(opened),
        "funds": [{"name": fund.name, "credits": credits.text(fund.credits)} for fund in opened.funds],
        "title": None,
        "advice": None,
    }


def _rankings(opened: Opened) -> list[dict[str, Any]]:
    return [
        {
            "title": one.title,
            "count": one.count,
            "turn": _credits(one.turn_micro),
            "candidates": [
                {"account": row.account, "score": row.score, "room": _credits(row.head), "is_chosen": row.is_chosen}
                for row in one.candidates
            ],
        }
        for one in opened.rankings
    ]


def _lines(opened: Opened) -> list[dict[str, Any]]:
    found = []
    for line in opened.lines:
        one = line.explained
        parts = [
            {
                "name": part.name,
                "tokens": part.tokens,
                "rate": part.rate,
                "credits": _credits(part.credits),
            }
            for part in one.parts
        ]
        found.append(
            {
                "model": one.model,
                "account": line.account or None,
                "credits": credits.text(one.credits),
                "tier": one.tier,
                "formula": one.formula or None,
                "is_rounded": one.is_rounded,
                "is_long_context": one.is_long,
                "reasoning_tokens": one.reasoning,
                "rate_card": one.rate.card or None if one.rate is not None else None,
                "note": one.note or None,
                "parts": parts,
            }
        )
    return found


def _opened_refusal(sight: Sight, row: Refusal, names: Labels) -> dict[str, Any]:
    members, keys = names.members([row.member_id]), names.keys([row.key_id])
    who = "" if sight.whose.member_id is not None else members[row.member_id].name if row.member_id in members else "somebody"
    words = Words(row, who, keys[row.key_id].name if row.key_id in keys else "")
    nothing = dict.fromkeys(("key_public_id", "response_id", "session", "tier_asked", "tier_billed", "held"))
    return {
        **nothing,
        "counted_tokens": 0,
        "is_from_seat": False,
        **{name: [] for name in ("steps", "rankings", "lines", "funds")},
        "title": words.title,
        "advice": words.advice or None,
    }


urls = [
    path("requests", Requests.as_view(), name="api_requests"),
    path("requests/<str:name>", OneRequest.as_view(), name="api_request"),
]
