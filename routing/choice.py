"""Which accounts could carry this request, in which order, and why: the session's own, else by the pool's strategy. Pure.

`routing.selection` takes a slot on the first that has one; `manage.py explain_route` prints the same choice and takes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from routing import anchors, eligibility, pace, turns
from routing import live as live_state
from routing.anchors import Owned
from routing.eligibility import Refusals
from routing.errors import NoAccountAvailable, OwnerBusy, OwnerExhausted, OwnerGone, OwnerUnfit, PoolExhausted
from routing.live import AccountState, States
from routing.pace import Place, Turn
from routing.snapshots import ACTIVE, ALL_KINDS, AccountSnapshot, PoolSnapshot
from routing.sticky import Sticky
from routing.strategies import Candidate

OWNED, IN_TURN = -1, 0
"""Steps before those of `routing.pace`: the anchor's owner, and the account that a turn in progress is on."""
REASONS = {OWNED: "owner", IN_TURN: "turn", pace.MOST_ROOM: "most_room"}


def unbound() -> bool:
    """`is_bound` of a conversation that any account can go on with."""
    return False


@dataclass(frozen=True, slots=True)
class Live:
    """What Redis said of a pool before this request: states by account, the session's entry, who owns what the request's anchors
    name, the member's mean turn (micro-credits)."""

    states: States | dict[int, AccountState]
    sticky: Sticky | None = None
    owned: Owned = anchors.NONE
    member_mean: int | None = None

    def state(self, account_id: int) -> AccountState:
        return self.states.get(account_id, live_state.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Choice:
    """The accounts to try, in order, and why; nothing is taken yet.

    `candidates`: how many were in the running; 1 where the session's own account could serve and nobody else was looked at. `turn`,
    `hold`: predicted, and to be held, micro-credits. `is_stand_in`: whoever serves instead of the session's home does so until the
    home can again.
    """

    places: list[Place]
    candidates: int
    turn: int
    hold: int
    is_stand_in: bool = True


def choose(
    pool: PoolSnapshot,
    live: Live,
    *,
    model: str,
    tier: str | None = None,
    effort: str | None = None,
    kinds: frozenset[str] = ALL_KINDS,
    is_inside_turn: bool = False,
    is_bound: Callable[[], bool] = unbound,
    recache: int = 0,
    most: int | None = None,
    exclude: frozenset[int] = frozenset(),
    now_ms: int,
    rng: Callable[[], float],
) -> Choice:
    """The choice for one request; takes nothing. For what it asks of the request see `selection.select`.

    Raises NoAccountAvailable, PoolExhausted, PoolBusy; of an owner OwnerGone, OwnerUnfit, OwnerExhausted, OwnerBusy.
    """
    entry = live.sticky
    turn = turns.predicted(entry, live.member_mean, is_inside=is_inside_turn)
    if most is not None:
        turn = min(turn, most)
    hold = round(pool.safety * turn)
    if live.owned.owner is not None:
        place = _owned(
            pool, live, live.owned.owner, model, effort, tier, exclude, now_ms, kinds=kinds, is_inside_turn=is_inside_turn
        )
        return Choice([place], 1, turn, hold)
    able = eligibility.able(pool.accounts, model=model, effort=effort, tier=tier, kinds=kinds)
    own = _own(pool, live, able, exclude, now_ms, turn=turn, is_inside_turn=is_inside_turn, is_bound=is_bound) if entry else None
    if own is not None and own.account.concurrency_cap is None:
        # Its slot cannot be refused, so nobody else has to be ranked.
        return Choice([own.place], 1, turn, hold, is_stand_in=own.is_stand_in)

    refusals = Refusals()
    candidates: list[Candidate] = []
    for account in able:
        state = live.state(account.account_id)
        if eligibility.is_barred(account, state, exclude, now_ms, refusals):
            continue
        candidate, until = eligibility.measure(pool, account, state, now_ms)
        if until:
            refusals.exhausted_ms.append(until)
        else:
            candidates.append(candidate)
    ids = {candidate.account_id for candidate in candidates}
    asked = Turn(credits=turn / 1e6)
    if entry is not None:
        current = own.place.account_id if own is not None else entry.last if entry.last in ids else entry.home
        is_warm = entry.is_warm(current, now_ms) or is_bound()
        asked = Turn(
            credits=turn / 1e6,
            recache=recache / 1e6 if entry.is_warm(current, now_ms) else 0.0,
            current=current,
            is_warm=is_warm,
            own_hold=entry.held_on(current, now_ms) / 1e6,
        )
    places = pace.order(pool.strategy, candidates, asked, rng, safety=pool.safety, loyalty=pool.loyalty)
    if own is not None and own.place.step == IN_TURN:
        places = [own.place, *(place for place in places if place.account_id != own.place.account_id)]
    if not places:
        for candidate in candidates:
            state = live.state(candidate.account_id)
            refusals.exhausted_ms.append(eligibility.room_at_ms(candidate, state, pace.FLOOR * asked.credits, now_ms))
        raise refusals.error(now_ms)
    is_stand_in = entry is not None and (entry.home not in ids or entry.home == places[0].account_id)
    if own is not None and own.place.step == IN_TURN:
        is_stand_in = True
    return Choice(places, len(candidates), turn, hold, is_stand_in=is_stand_in)


@dataclass(frozen=True, slots=True)
class _Own:
    account: AccountSnapshot
    place: Place
    is_stand_in: bool


def _own(
    pool: PoolSnapshot,
    live: Live,
    able: Sequence[AccountSnapshot],
    exclude: frozenset[int],
    now_ms: int,
    *,
    turn: int,
    is_inside_turn: bool,
    is_bound: Callable[[], bool],
) -> _Own | None:
    """The session's own account if it stays there: inside a turn as long as the account answers at all; else, while it is warm, its
    home if that has room, or its stand-in if the home cannot serve or has none."""
    entry = live.sticky
    assert entry is not None
    wanted = [entry.last] if is_inside_turn else [entry.home, entry.stand_in]
    is_home_away = False
    for account_id in wanted:
        account = next((account for account in able if account.account_id == account_id), None)
        if account is None:
            is_home_away = True
            continue
        state = live.state(account.account_id)
        if eligibility.is_barred(account, state, exclude, now_ms):
            is_home_away = True
            continue
        candidate, until = eligibility.measure(pool, account, state, now_ms)
        head = pace.head(
            candidate, Turn(turn / 1e6, current=account.account_id, own_hold=entry.held_on(account.account_id, now_ms) / 1e6)
        )
        if is_inside_turn:
            return _Own(account, Place(account.account_id, IN_TURN, None, head), is_stand_in=True)
        if until:
            is_home_away = True
            continue
        is_warm = entry.is_warm(account.account_id, now_ms) or is_bound()
        if is_warm and head >= pool.loyalty * turn / 1e6:
            return _Own(account, Place(account.account_id, pace.STAYS, None, head), is_stand_in=is_home_away)
    return None


def _owned(
    pool: PoolSnapshot,
    live: Live,
    owner: int,
    model: str,
    effort: str | None,
    tier: str | None,
    exclude: frozenset[int],
    now_ms: int,
    *,
    kinds: frozenset[str],
    is_inside_turn: bool,
) -> Place:
    """The anchors' owner. What is merely estimated of it does not count: it cannot be answered anywhere else."""
    name = live.owned.name
    found = [account for account in pool.accounts if account.account_id == owner and account.status == ACTIVE]
    if not found:
        raise OwnerGone(name=name)
    try:
        account = eligibility.able(found, model=model, effort=effort, tier=tier, kinds=kinds)[0]
    except NoAccountAvailable as unfit:
        raise OwnerUnfit(unfit.reason, name=name) from unfit
    state = live.state(owner)
    refusals = Refusals()
    is_barred = eligibility.is_barred(account, state, exclude, now_ms, refusals)
    candidate, until = eligibility.measure(pool, account, state, now_ms)
    if not is_barred and account.floor_percent and until and not is_inside_turn:
        refusals.exhausted_ms.append(until)
        is_barred = True
    if is_barred:
        error = refusals.error(now_ms)
        if isinstance(error, PoolExhausted):
            raise OwnerExhausted(error.resets_at, name=name)
        raise OwnerBusy(error.retry_after, name=name)
    return Place(owner, OWNED, None, candidate.room() - candidate.hold)


def reason(pool: PoolSnapshot, live: Live, place: Place) -> str:
    """owner; turn, sticky or stand_in where the session stays; the strategy's name; most_room where nobody had room by far."""
    if place.step in (pace.STAYS, pace.STILL):
        return "sticky" if live.sticky is not None and place.account_id == live.sticky.home else "stand_in"
    return REASONS.get(place.step, pool.strategy)
