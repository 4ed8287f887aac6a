"""The organization's pools: what is left of their weeks, how they choose, and where a request would go."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.http import Http404
from django.urls import path

from accounts import api_tokens, display
from accounts.permissions import Action
from api.base import Call, Resource, operation
from api.fields import Choice, Flag, ListOf, Moment, Query, Shape, Text, Told, Uuid, Whole, iso
from billing import credits
from config.redis import RedisUnavailable
from routing import carried, explanation, outlook, pool_glance, pools, snapshots, standing
from routing.explanation import Explanation
from routing.models import Pool, PoolAccount
from routing.outlook import Outlook
from routing.pool_glance import Glance
from routing.snapshots import PoolSnapshot
from routing.standing import Gauge, Reading

TAG = "Pools"
VERDICTS = {outlook.LASTS: "lasts", outlook.PROBABLY: "probably_runs_out", outlook.RUNS_OUT: "runs_out"}
LARGEST_BASE = 10**8
STATES = {
    standing.SERVING: "serving",
    standing.DRAINING: "draining",
    standing.COOLING: "cooling",
    standing.STANDBY: "standby",
    standing.PAUSED: "paused",
    standing.NEEDS_SIGN_IN: "needs_sign_in",
}


class PoolShape(Shape):
    """A pool of the organization. Shares of a turn are whole percent: 400 is room for four turns."""

    id = Uuid()
    name = Told()
    team_ids = ListOf(child=Uuid(), help_text="Who may use it; empty: everybody.")
    accounts = Whole(help_text="Accounts that have not been taken out.")
    strategy = Choice(choices=Pool.Strategy.choices)
    safety_percent = Whole(help_text="Room that a fresh turn must find, in percent of a turn.")
    loyalty_percent = Whole(help_text="Below this much of a turn a warm session moves, in percent.")
    base_short_credits = Whole(help_text="What one Plus is taken to carry in 5 hours, credits.")
    base_weekly_credits = Whole(help_text="What one Plus is taken to carry in a week, credits.")


class OutlookShape(Shape):
    """Does the pool last? Between the mean of the last days and the last day's rate."""

    verdict = Choice(choices=list(VERDICTS.values()))
    dry_from = Moment(allow_null=True, help_text="The earliest moment at which nothing would be left.")
    dry_until = Moment(allow_null=True, help_text="The latest.")
    is_before_next_reset = Flag()
    next_reset_at = Moment(allow_null=True)
    days_of_use = Whole(help_text="Days that the forecast is made of; under 5 it says little.")


class PoolOpened(PoolShape):
    """A pool, and how it stands now. Credits of windows are an assumption about what accounts carry, not money."""

    is_live = Flag(help_text="False: the live state does not answer, so nothing is known of windows.")
    carrying = Whole(help_text="Accounts that carry traffic, or would at once.")
    running = Whole(help_text="Requests that run on it.")
    week_left = Told(help_text="Credits that are left of the weekly windows.")
    week_size = Told(help_text="Credits of the weekly windows.")
    back_in_day = Told(help_text="Credits that come back within 24 hours.")
    back_in_week = Told(help_text="Credits that come back within 7 days.")
    carried_month = Told(help_text="Credits that its accounts carried in this calendar month.")
    outlook = OutlookShape(allow_null=True)


class PoolChange(Shape):
    """What is given is set from the next request on; running turns stay where they are."""

    strategy = Choice(choices=Pool.Strategy.choices, required=False)
    safety_percent = Whole(min_value=100, max_value=2000, required=False)
    loyalty_percent = Whole(max_value=1000, required=False)
    base_short_credits = Whole(min_value=1, max_value=LARGEST_BASE, required=False)
    base_weekly_credits = Whole(min_value=1, max_value=LARGEST_BASE, required=False)


class RouteQuery(Query):
    model = Text(max_length=120, help_text="As a client would ask for it.")
    effort = Text(max_length=20, required=False, help_text="Reasoning effort.")
    dialect = Choice(choices=list(explanation.DIALECTS), required=False, help_text="The API it would come by; responses.")


class RouteAccount(Shape):
    """An account of the pool: in the order of trying, or (`order` null) why it would not be tried."""

    id = Uuid()
    label = Told()  # type: ignore[assignment]
    order = Whole(allow_null=True)
    why = Told()
    used_5h_percent = Whole(allow_null=True, help_text="Rounded up.")
    used_week_percent = Whole(allow_null=True, help_text="Rounded up.")
    resets_in_seconds = Whole(allow_null=True)
    room = Told(allow_null=True, help_text="Credits of headroom; null: no window bounds it.")
    held = Told(help_text="Credits that running requests hold.")


class Route(Shape):
    """Where a new turn would go now, and why. `refusal` is said where nobody would take it."""

    strategy = Told()
    turn = Told(help_text="Credits that the turn is expected to take.")
    account = Told(allow_null=True)
    reason = Told(allow_null=True)
    refusal = Told(allow_null=True)
    accounts = RouteAccount(many=True)


class GlanceWindow(Shape):
    left_percent = Whole(help_text="Rounded down.")
    resets_at = Moment(allow_null=True)


class GlanceAccount(Shape):
    """How one account stands, without what names it."""

    number = Whole()
    state = Choice(choices=list(STATES.values()))
    state_until = Moment(allow_null=True)
    short_window = GlanceWindow(allow_null=True)
    week_window = GlanceWindow(allow_null=True)


class GlanceShape(Shape):
    """How the pool stands: windows and states, no account's name, person or id."""

    is_live = Flag(help_text="False: the live state does not answer, and new requests are refused.")
    carrying = Whole()
    left_percent = Whole(allow_null=True, help_text="Of all weekly windows together.")
    accounts = GlanceAccount(many=True)


class PoolGlance(Resource):
    @operation(
        "glanceAtPool",
        tag=TAG,
        summary="See how the pool stands",
        description="For who sees the pool, and for developers where the organization shows it to them.",
        scope=api_tokens.POOL_READ,
        action=Action.GLANCE_AT_POOL,
        answers=GlanceShape,
    )
    def get(self, call: Call) -> Any:
        found, trouble = pool_glance.standings(call.member)
        left, size = standing.total(found)
        whole = standing.WHOLE
        return {
            "is_live": not trouble,
            "carrying": sum(one.state in standing.CARRY for one in found),
            "left_percent": display.percent_left(int(left * whole), int(size * whole)) if size else None,
            "accounts": [_glanced(pool_glance.glance(number, one)) for number, one in enumerate(found, 1)],
        }


class Pools(Resource):
    @operation(
        "listPools",
        tag=TAG,
        summary="List the pools",
        description="The organization's own, in the order they were made. The operator's shared ones are not told of.",
        scope=api_tokens.POOL_READ,
        action=Action.SEE_POOL,
        answers=PoolShape,
        is_list=True,
    )
    def get(self, call: Call) -> Any:
        rows = Pool.objects.filter(organization=call.member.organization).prefetch_related("teams")
        found = call.page(rows, lambda row: row)
        of_pool = _counts(found["results"])
        found["results"] = [_told(row, of_pool.get(row.pk, 0)) for row in found["results"]]
        return found


class OnePool(Resource):
    @operation(
        "getPool",
        tag=TAG,
        summary="Look at a pool",
        scope=api_tokens.POOL_READ,
        action=Action.SEE_POOL,
        answers=PoolOpened,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        return opened(call, _pool(call, uuid))

    @operation(
        "changePool",
        tag=TAG,
        summary="Change how a pool chooses",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        body=PoolChange,
        answers=PoolOpened,
        examples={"By pace, with much room": {"strategy": "pace", "safety_percent": 400}},
    )
    def patch(self, call: Call, uuid: UUID) -> Any:
        pool = _pool(call, uuid)
        if call.body:
            pools.set_strategy(pool, call.body, by=call.by)
        return opened(call, _pool(call, uuid))


class PoolRoute(Resource):
    @operation(
        "askRoute",
        tag=TAG,
        summary="Ask where a request would go",
        description="Takes nothing: no slot, no hold.",
        scope=api_tokens.POOL_READ,
        action=Action.SEE_POOL,
        query=RouteQuery,
        answers=Route,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        pool, asked = _pool(call, uuid), call.query
        told = explanation.ask(
            call.member.organization_id,
            snapshot_of(call, pool),
            model=asked["model"],
            effort=asked.get("effort"),
            dialect=asked.get("dialect", "responses"),
            now=call.now,
        )
        return _route(told)


# ------------------------------------------------------------------------------------------------------------- reading


def _pool(call: Call, uuid: UUID) -> Pool:
    return call.owned(Pool.objects.prefetch_related("teams"), uuid)


def snapshot_of(call: Call, pool: Pool) -> PoolSnapshot:
    """The pool as the request path knows it. Four queries."""
    found = next((one for one in snapshots.load(call.member.organization_id).pools if one.pool_id == pool.pk), None)
    if found is None:
        raise Http404
    return found


def read(pool: PoolSnapshot) -> Reading | None:
    """None: the live state does not answer."""
    try:
        return standing.read(pool)
    except RedisUnavailable:
        return None


def _counts(rows: Sequence[Pool]) -> dict[int, int]:
    counts: dict[int, int] = {}
    here = PoolAccount.objects.filter(pool__in=rows).exclude(status=PoolAccount.Status.WITHDRAWN)
    for pool_id in here.values_list("pool_id", flat=True):
        counts[pool_id] = counts.get(pool_id, 0) + 1
    return counts


# -------------------------------------------------------------------------------------------------------------- telling


def _told(pool: Pool, accounts: int) -> dict[str, Any]:
    return {
        "id": str(pool.uuid),
        "name": pool.name,
        "team_ids": [str(team.uuid) for team in pool.teams.all()],
        "accounts": accounts,
        **{name: getattr(pool, name) for name in pools.SETTINGS},
    }


def opened(call: Call, pool: Pool) -> dict[str, Any]:
    """A fixed number of queries, and one round trip to the live state."""
    known = snapshot_of(call, pool)
    rows = {row.pk: row for row in PoolAccount.objects.without_secrets().filter(pool=pool)}
    reading = read(known)
    found = standing.of_pool(known, rows, reading)
    carries = carried.read(call.member.organization, call.now)
    weeks = standing.weeks(found)
    left, size = standing.total(found)
    rates = outlook.rates(carries, [one.row.pk for one in found if one.is_sign_in], call.now)
    return {
        **_told(pool, len(found)),
        "is_live": reading is not None,
        "carrying": sum(one.state in standing.CARRY for one in found),
        "running": sum(one.running for one in found),
        "week_left": amount(left),
        "week_size": amount(size),
        "back_in_day": amount(outlook.coming_back(weeks, call.now, timedelta(days=1))),
        "back_in_week": amount(outlook.coming_back(weeks, call.now, outlook.HORIZON)),
        "carried_month": credits.text(sum(carries.month.get(one.row.pk, 0) for one in found)),
        "outlook": _outlook(outlook.foresee(list(weeks.values()), rates, call.now), rates.days) if weeks else None,
    }


def amount(found: float) -> str:
    """Credits that accounts are taken to carry, to the hundredth, rounded down."""
    return credits.text(int(found * 100 + 1e-6) * 10_000)


def _outlook(found: Outlook, days: int) -> dict[str, Any]:
    following: datetime | None = found.next.resets_at if found.next is not None else None
    return {
        "verdict": VERDICTS[found.verdict],
        "dry_from": iso(found.dry_from),
        "dry_until": iso(found.dry_until),
        "is_before_next_reset": found.is_before_next,
        "next_reset_at": iso(following),
        "days_of_use": days,
    }


def _route(told: Explanation) -> dict[str, Any]:
    return {
        "strategy": told.strategy,
        "turn": amount(told.turn),
        "account": told.account or None,
        "reason": told.reason or None,
        "refusal": told.refusal or None,
        "accounts": [_candidate(row) for row in told.accounts],
    }


def _candidate(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "label": row["account"],
        "order": row.get("order"),
        "why": row["why"],
        "used_5h_percent": _percent(row["used_5h"]),
        "used_week_percent": _percent(row["used_week"]),
        "resets_in_seconds": row["resets_in_seconds"],
        "room": None if row["room"] is None else amount(max(0.0, row["room"])),
        "held": amount(row["held"]),
    }


def _percent(used: float | None) -> int | None:
    return None if used is None else min(100, max(0, -int(-used * 100 // 1)))


def _glanced(one: Glance) -> dict[str, Any]:
    return {
        "number": one.number,
        "state": STATES[one.state],
        "state_until": iso(one.until),
        "short_window": _glanced_window(one.short),
        "week_window": _glanced_window(one.week),
    }


def _glanced_window(gauge: Gauge | None) -> dict[str, Any] | None:
    return None if gauge is None else {"left_percent": gauge.percent, "resets_at": iso(gauge.resets_at)}


urls = [
    path("pool-glance", PoolGlance.as_view(), name="api_pool_glance"),
    path("pools", Pools.as_view(), name="api_pools"),
    path("pools/<uuid:uuid>", OnePool.as_view(), name="api_pool"),
    path("pools/<uuid:uuid>/route", PoolRoute.as_view(), name="api_pool_route"),
]
