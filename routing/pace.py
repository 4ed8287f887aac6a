"""`pace`, and the rule of headroom that guards every strategy. Pure.

For a team lead: each new turn goes to the account that is furthest behind in using up its week and has its five hours freest, only
where the whole turn fits, and a warm conversation stays where it is.

    head(a) = min(r5, rw) - hold (+ own_hold on current)
    1  current warm and head(current) >= STAY x turn          -> current
    2  need = Z x turn + recache;  fit = accounts with head >= need;  if any -> the strategy's pick among fit
    3  current warm and head(current) >= FLOOR x turn         -> current
    4  accounts with head >= FLOOR x turn -> the one with most head; ties: id      (else: nobody)

Under the other strategies the same four steps hold, with the strategy's own pick in step 2. Within a step a lower tier
(`priority`) comes first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from routing import strategies
from routing.strategies import Candidate, Random, Ranked

PACE = "pace"

SAFETY = 4.0
"""Z: a fresh placement needs this many predicted turns of headroom; also the hold."""
LOYALTY = 0.75
"""STAY: a warm session leaves when less than this share of a turn is left."""
FLOOR = 1.0
"""Below this many predicted turns nothing is started."""
WARM = 0.5
"""Share of a turn that is held for a session that is thinking."""
LEAST_TAU_SECONDS = 3600.0
"""TMIN: resets closer than this count as this close."""
FIT = 3.0
"""Full marks only with this many times `need` of headroom: big turns go to big accounts."""
LEAST_ROOM = 0.01

STAYS, FITS, STILL, MOST_ROOM = 1, 2, 3, 4
"""The steps by which an account is chosen."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What is asked for, in credits.

    `credits` predicted cost of the turn; `recache` what it costs to read the conversation anew elsewhere, 0 where it is not cached;
    `current` the session's account, `is_warm` whether it served the session less than a prompt cache's life ago, `own_hold` the
    session's part of its hold.
    """

    credits: float
    recache: float = 0.0
    current: int | None = None
    is_warm: bool = False
    own_hold: float = 0.0


class Place(msgspec.Struct, frozen=True, gc=False):
    """One account in the order of trying: by which step, the strategy's score (None where it was not asked), its headroom."""

    account_id: int
    step: int
    score: float | None
    head: float


def head(candidate: Candidate, turn: Turn) -> float:
    """Credits that a turn may use on it: infinite where no window bounds it."""
    own = turn.own_hold if candidate.account_id == turn.current else 0.0
    return candidate.room() - candidate.hold + own


def score(candidate: Candidate, need: float) -> float:
    """How far behind its week, times how free its five hours, times the root of its size, less where `need` barely fits."""
    result = math.sqrt(candidate.cw)
    tightest = math.inf
    if candidate.has_week:
        hw = max(candidate.rw - candidate.hold, LEAST_ROOM)
        result *= (hw / candidate.cw) / (max(candidate.tau, LEAST_TAU_SECONDS) / candidate.week_seconds)
        tightest = hw
    if candidate.has_short:
        h5 = max(candidate.r5 - candidate.hold, LEAST_ROOM)
        result *= h5 / candidate.c5
        tightest = min(tightest, h5)
    wanted = FIT * need
    return result * tightest / wanted if tightest < wanted else result


def by_score(candidates: Sequence[Candidate], need: float) -> list[Ranked]:
    """The highest score first; ties: smaller tau, then id."""
    ranked = [(candidate, score(candidate, need)) for candidate in candidates]
    if len(ranked) > 1:
        ranked.sort(key=lambda one: (-one[1], one[0].tau, one[0].account_id))
    return ranked


def order(
    strategy: str,
    candidates: Sequence[Candidate],
    turn: Turn,
    rng: Random,
    *,
    safety: float = SAFETY,
    loyalty: float = LOYALTY,
) -> list[Place]:
    """The accounts that may start this turn, in the order in which to try them; empty: refuse.

    Each of the four steps names accounts; an account is placed where it is named first.
    """
    heads = {candidate.account_id: head(candidate, turn) for candidate in candidates}
    current = turn.current if turn.is_warm and turn.current in heads else None
    places: list[Place] = []
    placed: set[int] = set()

    def place(account_id: int, step: int, told: float | None) -> None:
        if account_id not in placed:
            placed.add(account_id)
            places.append(Place(account_id, step, told, heads[account_id]))

    if current is not None and heads[current] >= loyalty * turn.credits:
        place(current, STAYS, None)
    need = safety * turn.credits + turn.recache
    fit = [candidate for candidate in candidates if heads[candidate.account_id] >= need]
    for tier in _tiers(fit):
        for candidate, told in ranked(strategy, tier, need, rng):
            place(candidate.account_id, FITS, told)
    least = FLOOR * turn.credits
    if current is not None and heads[current] >= least:
        place(current, STILL, None)
    if len(places) < len(candidates):
        startable = [c for c in candidates if c.account_id not in placed and heads[c.account_id] >= least]
        for candidate in sorted(startable, key=lambda c: (c.priority, -heads[c.account_id], c.account_id)):
            place(candidate.account_id, MOST_ROOM, None)
    return places


def ranked(strategy: str, candidates: Sequence[Candidate], need: float, rng: Random) -> list[Ranked]:
    """The strategy's own order, tiers and headroom aside."""
    if strategy == PACE:
        return by_score(candidates, need)
    return strategies.BY_RULE[strategy](candidates, rng)


def _tiers(candidates: Sequence[Candidate]) -> list[Sequence[Candidate]]:
    """Lower priority first."""
    numbers = {candidate.priority for candidate in candidates}
    if len(numbers) <= 1:
        return [candidates] if candidates else []
    return [[candidate for candidate in candidates if candidate.priority == number] for number in sorted(numbers)]
