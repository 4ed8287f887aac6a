"""Why a request would go where it would: every account of the pool, what is known of it, and the choice. Takes nothing.

The choice is `routing.choice`'s own, so what is explained is what happens.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext_noop

from config import redis as weir_redis
from config import snapshot
from config.snapshot import Snapshot
from routing import choice, eligibility, pace, selection, turns
from routing.choice import Choice, Live
from routing.errors import NoAccountAvailable, SelectionError
from routing.pace import Turn
from routing.snapshots import ALL_KINDS, ANTHROPIC, CHATGPT, COMPATIBLE, OPENAI, AccountSnapshot, PoolSnapshot

STEPS = {
    choice.OWNED: gettext_noop("owner of the previous response"),
    choice.IN_TURN: gettext_noop("the turn goes on here"),
    pace.STAYS: gettext_noop("stays: warm, and enough of a turn is left"),
    pace.FITS: gettext_noop("fits: room for the whole turn"),
    pace.STILL: gettext_noop("stays: nobody has room by far, and one turn is left here"),
    pace.MOST_ROOM: gettext_noop("most room: less than a fresh placement should have"),
}


WHY_NOT = {
    "dialect": gettext_noop("does not speak this API"),
    "needs_sign_in": gettext_noop("needs sign-in"),
    "paused": gettext_noop("does not serve"),
    "model_not_served": gettext_noop("does not serve this model"),
    "effort_not_served": gettext_noop("does not serve this effort"),
    "tier_not_served": gettext_noop("does not serve this tier"),
}
"""Reasons of eligibility for people; JSON has the word itself. Pages translate what is said here where they show it."""
EXHAUSTED, COOLING, BELOW_FLOOR, NOTHING_LEFT, STAYED, NO_ROOM = (
    gettext_noop("exhausted"),
    gettext_noop("cooling"),
    gettext_noop("below the floor its person keeps"),
    gettext_noop("nothing left"),
    gettext_noop("not looked at: the session stays where it is"),
    gettext_noop("room for less than one turn"),
)


DIALECTS = {
    "responses": frozenset({CHATGPT, OPENAI, COMPATIBLE}),
    "chat": frozenset({CHATGPT, OPENAI, COMPATIBLE}),
    "messages": frozenset({ANTHROPIC}),
}
"""Which kinds of accounts speak what clients ask in (`KINDS` of `proxy.dialects`)."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """`refusal` is the sentence if nobody would be chosen; then `account` and `reason` are empty. `accounts`: the order of trying
    first, then who would not be tried, with why."""

    pool: str
    strategy: str
    turn: float
    account: str
    reason: str
    refusal: str
    accounts: Sequence[dict[str, Any]]


class Nobody:
    """Whoever asks without a key: of no team."""

    team_id: int | None = None


def plan_of(config: Snapshot, member_id: int | None, now: datetime) -> str | None:
    """The plan that a request draws on: the member's own seat, else the organization's."""
    by_member = {one.member_id: one.at(now).plan_slug for one in config.billing.subscriptions}
    return by_member.get(member_id, by_member.get(None))


def read(pool: PoolSnapshot, session_key: str | None, member_id: int) -> tuple[Live, int]:
    """The pool's live state and the server's time in milliseconds, by the sync client. Raises RedisUnavailable."""
    client = weir_redis.sync_client()
    ask: Callable[..., Any] = client.execute_command
    with weir_redis.translated():
        seconds, micros = client.time()
        replies = [ask(*command) for command in selection.live_commands(pool, session_key, member_id=member_id)]
    # The client makes a mapping of the first, which `read_live` takes flat, as the path's client gives it.
    replies[0] = [part for pair in replies[0].items() for part in pair]
    return selection.read_live(pool, replies), seconds * 1000 + micros // 1000


def ask(organization_id: int, pool: PoolSnapshot, *, model: str, effort: str | None, dialect: str, now: datetime) -> Explanation:
    """Where a request of the organization's would go now: by the model's name as clients say it, `dialect` of DIALECTS. Takes
    nothing. Raises RedisUnavailable."""
    config = snapshot.load(organization_id)
    same = next((one for one in config.routing.pools if one.pool_id == pool.pool_id), pool)
    state, now_ms = read(same, None, 0)
    return explain(
        same,
        state,
        model=config.billing.rates.upstream_name(model, now),
        effort=effort,
        kinds=DIALECTS[dialect],
        now_ms=now_ms,
        rng=random.random,
    )


def explain(
    pool: PoolSnapshot,
    state: Live,
    *,
    model: str,
    effort: str | None = None,
    tier: str | None = None,
    kinds: frozenset[str] = ALL_KINDS,
    now_ms: int,
    rng: Callable[[], float],
) -> Explanation:
    """What would become of a new turn that asks for `model`."""
    refusal = ""
    turn = turns.predicted(state.sticky, state.member_mean, is_inside=False)
    chosen = Choice([], 0, turn, 0)
    try:
        chosen = choice.choose(pool, state, model=model, effort=effort, tier=tier, kinds=kinds, now_ms=now_ms, rng=rng)
    except SelectionError as error:
        refusal = error.message
    by_id = {account.account_id: account for account in pool.accounts}
    told = []
    for number, place in enumerate(chosen.places, start=1):
        told.append(
            _facts(pool, state, by_id[place.account_id], now_ms)
            | {"order": number, "score": place.score, "room": _finite(place.head), "why": STEPS[place.step]}
        )
    placed = {place.account_id for place in chosen.places}
    is_alone = len(chosen.places) == 1 and chosen.places[0].step == pace.STAYS
    for account in pool.accounts:
        if account.account_id not in placed:
            why = _why_not(pool, state, account, now_ms, model=model, effort=effort, tier=tier, kinds=kinds)
            if not why:
                why = STAYED if is_alone else NO_ROOM
            told.append(_facts(pool, state, account, now_ms) | {"order": None, "score": None, "why": why})
    first = chosen.places[0] if chosen.places else None
    return Explanation(
        pool=pool.name,
        strategy=pool.strategy,
        turn=turn / 1e6,
        account=by_id[first.account_id].label if first is not None else "",
        reason=choice.reason(pool, state, first) if first is not None else "",
        refusal=refusal,
        accounts=told,
    )


def _facts(pool: PoolSnapshot, state: Live, account: AccountSnapshot, now_ms: int) -> dict[str, Any]:
    known = state.state(account.account_id)
    candidate, _ = eligibility.measure(pool, account, known, now_ms)
    # A window that has ended is unknown until it is reported again, though it is ranked as unused.
    reported = [window.minutes for window in known.windows.values() if not window.is_over(now_ms)]
    has_short = any(minutes < eligibility.DAY_MINUTES for minutes in reported)
    has_week = any(minutes >= eligibility.DAY_MINUTES for minutes in reported)
    return {
        "account": account.label,
        "id": account.uuid,
        "used_5h": round(candidate.u5, 4) if has_short else None,
        "used_week": round(candidate.uw, 4) if has_week else None,
        "resets_in_seconds": round(candidate.tau) if candidate.has_week and candidate.is_tau_known else None,
        "held": round(candidate.hold, 2),
        "room": _finite(pace.head(candidate, Turn(0.0))),
    }


def _why_not(
    pool: PoolSnapshot,
    state: Live,
    account: AccountSnapshot,
    now_ms: int,
    *,
    model: str,
    effort: str | None,
    tier: str | None,
    kinds: frozenset[str],
) -> str:
    """The rule of eligibility that keeps an account out; empty: none does."""
    try:
        eligibility.able([account], model=model, effort=effort, tier=tier, kinds=kinds)
    except NoAccountAvailable as error:
        return error.reason
    known = state.state(account.account_id)
    exhausted = known.exhausted_until_ms(now_ms)
    if exhausted:
        return f"{EXHAUSTED} until {_clock(exhausted)}"
    if known.cooling_until_ms > now_ms:
        return f"{COOLING} until {_clock(known.cooling_until_ms)}"
    candidate, until = eligibility.measure(pool, account, known, now_ms)
    if until:
        left = BELOW_FLOOR if max(candidate.u5, candidate.uw) < 1 else NOTHING_LEFT
        return f"{left} until {_clock(until)}"
    return ""


def _clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _finite(credits: float) -> float | None:
    """None: no window bounds it."""
    return None if math.isinf(credits) else round(credits, 2)
