"""Which account carries this request: the session's own if it can serve, else by the pool's strategy. Returns a Lease.

Reads nothing itself: the pool's live state comes with the admission's pipeline (`live_commands`, `read_live`), so that a
selection costs one round trip, `lease.lua`.
"""

import asyncio
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from django.conf import settings

from config.redis import Redis, ReplyError
from config.snapshot import Snapshot
from routing import anchors, choice, pace, sticky, turns
from routing import live as live_state
from routing.anchors import Anchor
from routing.choice import Live, choose, unbound
from routing.errors import AccountsAtCap, NoAccountAvailable, OwnerAtCap
from routing.live import States
from routing.pace import Place
from routing.snapshots import ALL_KINDS, AccountSnapshot, PoolSnapshot, RoutingSnapshot
from routing.sticky import Sticky

logger = logging.getLogger(__name__)

MOST_TOLD = 5
"""Accounts in the trace of a request."""

_lease = live_state.script("lease", "holds")
_book = live_state.script("book", "holds")
_stay = live_state.script("stay", "holds")


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """A slot on an account until it is released, or lapses after HOLD_DEADLINE_SECONDS without renewal.

    `reason`: owner; turn, sticky or stand_in where the session stays; the strategy's name; most_room where no account had room for
    the turn by far. `candidates`: how many accounts were in the running; 1 where the session's own account could serve and nobody
    else was looked at. `credential_version` is the least version that `credentials.bearer` may use.
    """

    pool: PoolSnapshot = field(repr=False)
    account: AccountSnapshot
    request_id: str
    reason: str
    candidates: int
    credential_version: int
    leased_ms: int
    leased_monotonic: float
    session_key: str | None = None
    member_id: int = 0
    turn: int = 0
    best: tuple[Place, ...] = ()
    entry: Sticky | None = None
    """Where the session was before."""

    def trace(self) -> dict[str, Any]:
        """What the request log shows of the choice: at most MOST_TOLD accounts as [id, score, credits of headroom], best first.

        The score is the strategy's, null where it was not asked; the headroom null where no window bounds the account.
        """
        told: dict[str, Any] = {"account_id": self.account.account_id, "reason": self.reason, "candidates": self.candidates}
        if self.best:
            told["turn"] = round(self.turn / 1e6, 2)
            told["best"] = [
                [
                    place.account_id,
                    None if place.score is None else float(f"{place.score:.4g}"),
                    None if math.isinf(place.head) else round(place.head, 1),
                ]
                for place in self.best
            ]
        return told

    def server_now_ms(self) -> int:
        """The server's clock, carried on by our monotonic one."""
        return self.leased_ms + round((time.monotonic() - self.leased_monotonic) * 1000)


class OfTeam(Protocol):
    """A key, as far as routing looks at it."""

    @property
    def team_id(self) -> int | None: ...


def pool_for(snapshot: Snapshot, key: OfTeam, *, plan: str | None = None) -> PoolSnapshot:
    """The pool that the key's requests go through: its team's own, else one open to every team; the organization's before a shared
    one, which only those on a plan (slug) that offers it may use; of several the oldest that has accounts.

    Raises NoAccountAvailable.
    """
    routing: RoutingSnapshot = snapshot.routing
    pools = [pool for pool in routing.pools if pool.organization_id is not None or plan in pool.plans]
    of_team = [pool for pool in pools if key.team_id in pool.team_ids]
    found = of_team + [pool for pool in pools if not pool.team_ids]
    if not found:
        raise NoAccountAvailable("no_pool")
    return next((pool for pool in found if pool.accounts), found[0])


def live_commands(
    pool: PoolSnapshot, session_key: str | None, of: Sequence[Anchor] = (), *, member_id: int = 0
) -> list[tuple[str | bytes | int, ...]]:
    """What `read_live` needs, to be sent in one batch with the admission. `of`: the request's anchors."""
    commands: list[tuple[str | bytes | int, ...]] = [
        ("HGETALL", live_state.live_key(pool)),
        ("GET", live_state.session_key(pool, session_key or "-")),
        ("HGET", live_state.turns_key(pool), member_id),
    ]
    if of:
        commands.append(anchors.ask_command(pool, of))
    return commands


def read_live(pool: PoolSnapshot, replies: Sequence[Any], of: Sequence[Anchor] = ()) -> Live:
    """The replies to `live_commands`, in order. Raises OwnersDiffer; ReplyError if one of them is an error."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply
    return Live(
        states=States(replies[0]),
        sticky=sticky.read(replies[1]),
        owned=anchors.read(of, replies[3]) if of else anchors.NONE,
        member_mean=int(replies[2]) if replies[2] else None,
    )


async def select(
    redis: Redis,
    pool: PoolSnapshot,
    live: Live,
    *,
    request_id: str,
    model: str,
    tier: str | None,
    session_key: str | None,
    effort: str | None = None,
    kinds: frozenset[str] = ALL_KINDS,
    member_id: int = 0,
    is_inside_turn: bool = False,
    is_bound: Callable[[], bool] = unbound,
    recache: int = 0,
    most: int | None = None,
    exclude: frozenset[int] = frozenset(),
    now_ms: int,
    rng: Callable[[], float],
) -> Lease:
    """Takes a slot on an account for the request. One round trip; one more, for a fresh look, if `exclude` names any.

    `kinds`: of accounts that speak the client's dialect. `is_inside_turn`: the request goes on with a turn, after a tool's answer;
    a turn stays where it is while that account answers.
    `is_bound()`, asked where the cache is cold: does the conversation hold what only its account can read (encrypted reasoning)? It
    is not moved for the cold cache alone then. `recache`: micro-credits that reading the conversation costs more where it is not
    cached. `most`: what the turn can cost at most, micro-credits, where the request offers no tools and so is the whole turn.
    `exclude`: the accounts that failed this request already. `now_ms` is the server's clock, as the admission told it. An anchored
    request goes to the account that owns its anchors and to no other.

    Raises NoAccountAvailable, PoolExhausted, PoolBusy, AccountsAtCap; of an owner OwnerGone, OwnerUnfit, OwnerExhausted, OwnerBusy,
    OwnerAtCap; RedisUnavailable, ReplyError.
    """
    if exclude:
        # Attempts of this request and of others have changed the state since it was read.
        live = dataclasses.replace(live, states=States(await redis.call("HGETALL", live_state.live_key(pool))))
    chosen = choose(
        pool,
        live,
        model=model,
        tier=tier,
        effort=effort,
        kinds=kinds,
        is_inside_turn=is_inside_turn,
        is_bound=is_bound,
        recache=recache,
        most=most,
        exclude=exclude,
        now_ms=now_ms,
        rng=rng,
    )
    entry = live.sticky
    by_id = {account.account_id: account for account in pool.accounts}
    keys = [live_state.live_key(pool), live_state.session_key(pool, session_key or "-"), live_state.turns_key(pool)]
    args: list[str | int] = [
        request_id,
        now_ms,
        lease_ms(),
        sticky.ENTRY_SECONDS if session_key else 0,
        1 if entry is None and live.owned.owner is None else 0,
        0 if is_inside_turn else 1,
        chosen.turn,
        chosen.hold,
        _lapses(now_ms),
        member_id,
        turns.START,
    ]
    for place in chosen.places:
        cap = by_id[place.account_id].concurrency_cap
        keys.append(live_state.slots_key(pool, place.account_id))
        prefix = sticky.written(entry, place.account_id, now_ms, is_stand_in=chosen.is_stand_in)
        args += [place.account_id, -1 if cap is None else cap, prefix]
    try:
        position = int(await _lease(redis, keys, args))
    except asyncio.CancelledError:
        # The slot may be taken already, and nobody will know on which account. Sent after the script, so done after it.
        for place in chosen.places:
            withdrawal = redis.call("ZREM", live_state.slots_key(pool, place.account_id), request_id)
            withdrawal.add_done_callback(_heard)
        if session_key:
            ended = redis.call(*_book.command(keys[:3], _booking(0, 0, now_ms, session_key, "end", member_id)))
            ended.add_done_callback(_heard)
        raise
    if not position:
        raise AccountsAtCap if live.owned.owner is None else OwnerAtCap(name=live.owned.name)
    place = chosen.places[position - 1]
    return Lease(
        pool=pool,
        account=by_id[place.account_id],
        request_id=request_id,
        reason=choice.reason(pool, live, place),
        candidates=chosen.candidates,
        credential_version=live.state(place.account_id).credential_version,
        leased_ms=now_ms,
        leased_monotonic=time.monotonic(),
        session_key=session_key,
        member_id=member_id,
        turn=chosen.turn,
        best=tuple(chosen.places[:MOST_TOLD]),
        entry=entry,
    )


def _heard(withdrawal: "asyncio.Future[Any]") -> None:
    if not withdrawal.cancelled() and withdrawal.exception() is not None:
        logger.warning("a slot was not given back; it lapses")


def _lapses(now_ms: int) -> int:
    """The minute of the epoch at whose beginning a hold of now is free again."""
    return (now_ms + sticky.HOME_MOVES_AFTER_MS) // 60_000 + 1


async def stay(redis: Redis, lease: Lease) -> None:
    """The account could not read what the session's own had sealed: the session stays with its home, as if it had never left.

    Raises RedisUnavailable, ReplyError: then the session may move to where it cannot be read.
    """
    entry = lease.entry
    if entry is None or lease.session_key is None or entry.home == lease.account.account_id:
        return
    keys = [live_state.session_key(lease.pool, lease.session_key)]
    await _stay(redis, keys, [lease.account.account_id, entry.home, entry.served_ms, sticky.ENTRY_SECONDS])


def book(redis: Redis, lease: Lease, *, credits: int, then: Literal["go", "end", "free"]) -> "asyncio.Future[Any]":
    """Books what an attempt cost, micro-credits, and what becomes of the room that is held for its session.

    `go`: the turn goes on, with a tool's answer; `end`: it is over, and a share is held while its person thinks; `free`: nothing is
    held, the account is exhausted. Raises RedisUnavailable, ReplyError: estimates are then a little low.
    """
    pool = lease.pool
    keys = [live_state.live_key(pool), live_state.session_key(pool, lease.session_key or "-"), live_state.turns_key(pool)]
    now_ms = lease.server_now_ms()
    return _book.send(redis, keys, _booking(lease.account.account_id, credits, now_ms, lease.session_key, then, lease.member_id))


def _booking(account_id: int, credits: int, now_ms: int, session_key: str | None, then: str, member_id: int) -> list[str | int]:
    entry_seconds = sticky.ENTRY_SECONDS if session_key else 0
    warm = round(pace.WARM * 1000)
    return [account_id, credits, now_ms, entry_seconds, then, _lapses(now_ms), warm, member_id, turns.START]


def lease_ms() -> int:
    """How long a slot is held without renewal."""
    return round(settings.HOLD_DEADLINE_SECONDS * 1000)


def release(redis: Redis, lease: Lease) -> "asyncio.Future[Any]":
    """Gives the slot back; doing it twice changes nothing. Raises RedisUnavailable: the slot then lapses by itself."""
    return redis.call("ZREM", live_state.slots_key(lease.pool, lease.account.account_id), lease.request_id)


def renew_commands(leases: Sequence[Lease]) -> list[tuple[str | bytes | int, ...]]:
    """Keeps running requests' slots, to be sent every HOLD_RENEW_SECONDS in one batch; also after Redis lost its memory."""
    length = lease_ms()
    commands: list[tuple[str | bytes | int, ...]] = []
    for lease in leases:
        slots = live_state.slots_key(lease.pool, lease.account.account_id)
        commands.append(("ZADD", slots, "GT", lease.server_now_ms() + length, lease.request_id))
        commands.append(("PEXPIRE", slots, 2 * length + 60_000))
    return commands
