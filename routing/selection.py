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
from typing import Any, Protocol

from django.conf import settings

from config.redis import Redis, ReplyError
from config.snapshot import Snapshot
from routing import live as live_state
from routing import sticky, strategies
from routing.errors import AccountsAtCap, NoAccountAvailable, OwnerGone, PoolBusy, PoolExhausted
from routing.live import AccountState, States
from routing.snapshots import ACTIVE, NEEDS_SIGN_IN, AccountSnapshot, PoolSnapshot, RoutingSnapshot
from routing.sticky import Sticky

logger = logging.getLogger(__name__)

SHORT_COOLDOWN_MS = 60_000
OWNER_SECONDS = 86_400
RETRY_EXCLUDED_MS = 1_000
"""When a client may try again if the only accounts left have just failed without a cooldown."""

_lease = live_state.script("lease")


@dataclass(frozen=True, slots=True)
class Live:
    """What Redis said of a pool before this request: states by account, the session's entry, the anchor's owner.

    `owner` is None without an anchor (previous_response_id), or when nobody is known to own it.
    """

    states: States | dict[int, AccountState]
    sticky: Sticky | None = None
    owner: int | None = None

    def state(self, account_id: int) -> AccountState:
        return self.states.get(account_id, live_state.UNKNOWN)


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """A slot on an account until it is released, or lapses after HOLD_DEADLINE_SECONDS without renewal.

    `reason`: owner, sticky, stand_in or the strategy's name. `candidates`: how many accounts were in the running; 1 where the
    session's own account could serve and nobody else was looked at.
    `credential_version` is the least version that `credentials.bearer` may use.
    """

    pool: PoolSnapshot = field(repr=False)
    account: AccountSnapshot
    request_id: str
    reason: str
    candidates: int
    credential_version: int
    leased_ms: int
    leased_monotonic: float

    def server_now_ms(self) -> int:
        """The server's clock, carried on by our monotonic one."""
        return self.leased_ms + round((time.monotonic() - self.leased_monotonic) * 1000)


class OfTeam(Protocol):
    """A key, as far as routing looks at it."""

    @property
    def team_id(self) -> int | None: ...


def pool_for(snapshot: Snapshot, key: OfTeam) -> PoolSnapshot:
    """The pool of the key's team, else the first one that is open to every team. Raises NoAccountAvailable."""
    routing: RoutingSnapshot = snapshot.routing
    if key.team_id is not None:
        for pool in routing.pools:
            if key.team_id in pool.team_ids:
                return pool
    for pool in routing.pools:
        if not pool.team_ids:
            return pool
    raise NoAccountAvailable("no_pool")


def live_commands(
    pool: PoolSnapshot, session_key: str | None, previous_response_id: str | None = None
) -> list[tuple[str | bytes | int, ...]]:
    """What `read_live` needs, to be sent in one batch with the admission."""
    commands: list[tuple[str | bytes | int, ...]] = [
        ("HGETALL", live_state.live_key(pool)),
        ("GET", live_state.session_key(pool, session_key or "-")),
    ]
    if previous_response_id:
        commands.append(("GET", live_state.owner_key(pool.tenant_id, previous_response_id)))
    return commands


def read_live(pool: PoolSnapshot, replies: Sequence[Any]) -> Live:
    """The replies to `live_commands`, in order. Raises ReplyError if one of them is an error."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply
    owner = replies[2] if len(replies) > 2 else None
    return Live(
        states=States(replies[0]),
        sticky=sticky.read(replies[1]),
        owner=int(owner) if owner else None,
    )


def owner_command(pool: PoolSnapshot, response_id: str, account_id: int) -> tuple[str | bytes | int, ...]:
    """Records, at `response.created`, which account holds a response; a continuation then goes there and nowhere else."""
    return ("SET", live_state.owner_key(pool.tenant_id, response_id), account_id, "EX", OWNER_SECONDS)


@dataclass(frozen=True, slots=True)
class _Refusals:
    """Why accounts that could serve the model cannot do it now."""

    exhausted_ms: list[int]
    cooling_ms: list[int]


def _candidate(account: AccountSnapshot, state: AccountState, now_ms: int) -> strategies.Candidate:
    short = state.windows.get(strategies.SHORT_MINUTES)
    weekly = state.windows.get(strategies.WEEKLY_MINUTES)
    tau = 604_800.0
    if weekly is not None and weekly.resets_at * 1000 > now_ms:
        tau = weekly.resets_at - now_ms / 1000
    return strategies.Candidate(
        account_id=account.account_id,
        weight=account.weight,
        u5=short.used_at(now_ms) if short else 0.0,
        uw=weekly.used_at(now_ms) if weekly else 0.0,
        tau_seconds=tau,
        last_ms=state.last_ms,
        priority=account.priority,
    )


def _below_floor_until_ms(account: AccountSnapshot, state: AccountState, now_ms: int) -> int:
    """When the share that the account's person keeps for themselves is free again; 0: it is not touched."""
    if not account.floor_percent:
        return 0
    most = 1.0 - account.floor_percent / 100.0
    touched = [window for window in state.windows.values() if window.used_at(now_ms) >= most]
    ends = [w.resets_at * 1000 if w.resets_at else w.observed_ms + live_state.UNKNOWN_RESET_BLOCKS_MS for w in touched]
    return max((end for end in ends if end > now_ms), default=0)


def _able(accounts: Sequence[AccountSnapshot], model: str) -> list[AccountSnapshot]:
    """The accounts that can serve the model at some time. Raises NoAccountAvailable."""
    if not accounts:
        raise NoAccountAvailable("no_accounts")
    active = [account for account in accounts if account.status == ACTIVE]
    if not active:
        signed_out = any(account.status == NEEDS_SIGN_IN for account in accounts)
        raise NoAccountAvailable("needs_sign_in" if signed_out else "paused")
    able = [account for account in active if account.models is None or model in account.models]
    if not able:
        raise NoAccountAvailable("model_not_served")
    return able


def _sift(
    accounts: Sequence[AccountSnapshot], live: Live, exclude: frozenset[int], now_ms: int
) -> tuple[list[AccountSnapshot], _Refusals]:
    """Who can serve now, and when the others can again."""
    ready: list[AccountSnapshot] = []
    refusals = _Refusals([], [])
    for account in accounts:
        state = live.state(account.account_id)
        exhausted = max(state.exhausted_until_ms(now_ms), _below_floor_until_ms(account, state, now_ms))
        if exhausted:
            refusals.exhausted_ms.append(exhausted)
        elif state.cooling_until_ms > now_ms:
            refusals.cooling_ms.append(state.cooling_until_ms)
        elif account.account_id in exclude:
            refusals.cooling_ms.append(now_ms + RETRY_EXCLUDED_MS)
        else:
            ready.append(account)
    return ready, refusals


def _own(able: Sequence[AccountSnapshot], live: Live, exclude: frozenset[int], now_ms: int) -> AccountSnapshot | None:
    """The session's home if it can serve now, else its stand-in if that can."""
    if live.sticky is None:
        return None
    for account_id in (live.sticky.home, live.sticky.stand_in):
        for account in able:
            if account.account_id == account_id and _sift([account], live, exclude, now_ms)[0]:
                return account
    return None


def _refuse(refusals: _Refusals, now_ms: int) -> PoolExhausted | PoolBusy:
    """The refusal that tells the truth about the wait: busy for under a minute, else exhausted until the first that is back."""
    soonest_cooling = min(refusals.cooling_ms, default=0)
    if soonest_cooling and soonest_cooling - now_ms <= SHORT_COOLDOWN_MS:
        return PoolBusy(max(1, math.ceil((soonest_cooling - now_ms) / 1000)))
    return PoolExhausted(math.ceil(min(refusals.exhausted_ms + refusals.cooling_ms) / 1000))


async def select(
    redis: Redis,
    pool: PoolSnapshot,
    live: Live,
    *,
    request_id: str,
    model: str,
    tier: str | None,
    session_key: str | None,
    exclude: frozenset[int] = frozenset(),
    now_ms: int,
    rng: Callable[[], float],
) -> Lease:
    """Takes a slot on an account for the request. One round trip; one more, for a fresh look, if `exclude` names any.

    `now_ms` is the server's clock, as the admission told it. `exclude` are the accounts that failed this request already.
    An anchored request goes to the account that owns the anchor and to no other.

    Raises NoAccountAvailable, PoolExhausted, PoolBusy, AccountsAtCap, OwnerGone; RedisUnavailable, ReplyError.
    """
    if exclude:
        # Attempts of this request and of others have changed the state since it was read.
        live = dataclasses.replace(live, states=States(await redis.call("HGETALL", live_state.live_key(pool))))
    accounts: Sequence[AccountSnapshot] = pool.accounts
    if live.owner is not None:
        accounts = [account for account in accounts if account.account_id == live.owner and account.status == ACTIVE]
        if not accounts:
            raise OwnerGone
    able = _able(accounts, model)
    own = _own(able, live, exclude, now_ms)
    if own is not None and own.concurrency_cap is None:
        # Its slot cannot be refused, so nobody else has to be ranked.
        ready, order = [own], [own.account_id]
    else:
        ready, refusals = _sift(able, live, exclude, now_ms)
        if not ready:
            raise _refuse(refusals, now_ms)
        order = _order(pool, live, ready, now_ms, rng)
    by_id = {account.account_id: account for account in ready}

    entry = live.sticky
    keys = [live_state.live_key(pool), live_state.session_key(pool, session_key or "-")]
    args: list[str | int] = [
        request_id,
        now_ms,
        lease_ms(),
        sticky.ENTRY_SECONDS if session_key else 0,
        1 if entry is None and live.owner is None else 0,
    ]
    for account_id in order:
        cap = by_id[account_id].concurrency_cap
        keys.append(live_state.slots_key(pool, account_id))
        args += [account_id, -1 if cap is None else cap, sticky.written(entry, account_id, now_ms)]
    try:
        position = int(await _lease(redis, keys, args))
    except asyncio.CancelledError:
        # The slot may be taken already, and nobody will know on which account. Sent after the script, so done after it.
        for account_id in order:
            withdrawal = redis.call("ZREM", live_state.slots_key(pool, account_id), request_id)
            withdrawal.add_done_callback(_heard)
        raise
    if not position:
        raise AccountsAtCap
    account = by_id[order[position - 1]]
    return Lease(
        pool=pool,
        account=account,
        request_id=request_id,
        reason=_reason(pool, live, account.account_id),
        candidates=len(ready),
        credential_version=live.state(account.account_id).credential_version,
        leased_ms=now_ms,
        leased_monotonic=time.monotonic(),
    )


def _heard(withdrawal: "asyncio.Future[Any]") -> None:
    if not withdrawal.cancelled() and withdrawal.exception() is not None:
        logger.warning("a slot was not given back; it lapses")


def _order(pool: PoolSnapshot, live: Live, ready: Sequence[AccountSnapshot], now_ms: int, rng: Callable[[], float]) -> list[int]:
    """The session's home first, then its stand-in, then the others as the strategy ranks them."""
    candidates = [_candidate(account, live.state(account.account_id), now_ms) for account in ready]
    ranked = [candidate.account_id for candidate in strategies.rank(pool.strategy, candidates, rng)]
    if live.sticky is not None:
        for account_id in (live.sticky.stand_in, live.sticky.home):
            if account_id in ranked:
                ranked.remove(account_id)
                ranked.insert(0, account_id)
    return ranked


def _reason(pool: PoolSnapshot, live: Live, account_id: int) -> str:
    if live.owner is not None:
        return "owner"
    if live.sticky is not None and account_id == live.sticky.home:
        return "sticky"
    if live.sticky is not None and account_id == live.sticky.stand_in:
        return "stand_in"
    return pool.strategy


def lease_ms() -> int:
    """How long a slot is held without renewal."""
    return round(settings.HOLD_DEADLINE_SECONDS * 1000)


async def release(redis: Redis, lease: Lease) -> None:
    """Gives the slot back; doing it twice changes nothing. Raises RedisUnavailable: the slot then lapses by itself."""
    await redis.call("ZREM", live_state.slots_key(lease.pool, lease.account.account_id), lease.request_id)


def renew_commands(leases: Sequence[Lease]) -> list[tuple[str | bytes | int, ...]]:
    """Keeps running requests' slots, to be sent every HOLD_RENEW_SECONDS in one batch; also after Redis lost its memory."""
    length = lease_ms()
    commands: list[tuple[str | bytes | int, ...]] = []
    for lease in leases:
        slots = live_state.slots_key(lease.pool, lease.account.account_id)
        commands.append(("ZADD", slots, "GT", lease.server_now_ms() + length, lease.request_id))
        commands.append(("PEXPIRE", slots, 2 * length + 60_000))
    return commands
