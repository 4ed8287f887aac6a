"""One pure ranking function per strategy: accounts that may serve, in the order in which they should be tried.

Rules, ties and examples: docs/routing.md. `pace` is in `routing.pace`, as is the rule that guards all of them: a whole turn must be
likely to fit.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import MappingProxyType

import msgspec

WEEK_SECONDS = 604_800.0
DAY_SECONDS = 86_400.0
SHORTEST_TAU_SECONDS = 300.0
"""relative_availability: resets closer than this count as this close."""
NEVER_DAY = 10_000
"""reset_drain: the day of a reset that is not known."""
LEAST_SHARE = 0.1
MOST_DRAWN = 5

Random = Callable[[], float]
"""Uniform in [0, 1)."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """What a strategy knows of an account. Credits, seconds, fractions 0..1.

    `c5`, `cw` capacity of the short and the weekly window, `u5`, `uw` estimated used fraction of each, `tau` to the weekly reset
    (a week where it is not known, `is_tau_known`), `hold` credits reserved on it, `last_ms` when it was selected last (never: 0). A
    lower `priority` comes first.

    `has_short`, `has_week`: a window that the account does not have leaves every min, and its factor is 1. `is_known`: it has
    reported windows; what is merely assumed of an account ranks it, and never refuses a request. `floor`: the fraction of each
    window that its person keeps.
    """

    account_id: int
    c5: float
    cw: float
    u5: float = 0.0
    uw: float = 0.0
    tau: float = WEEK_SECONDS
    is_tau_known: bool = True
    hold: float = 0.0
    last_ms: int = 0
    priority: int = 0
    has_short: bool = True
    has_week: bool = True
    is_known: bool = True
    floor: float = 0.0
    week_seconds: float = WEEK_SECONDS

    @property
    def r5(self) -> float:
        """Credits left in the short window."""
        return max(0.0, self.c5 * (1.0 - self.u5))

    @property
    def rw(self) -> float:
        """Credits left in the weekly window; all of a week where there is none."""
        return max(0.0, self.cw * (1.0 - self.uw)) if self.has_week else self.cw

    def room(self) -> float:
        """Credits that may still be used here before a window ends: of the tightest window, above the floor, holds not counted."""
        left = math.inf
        if self.is_known:
            if self.has_short:
                left = self.c5 * (1.0 - self.u5 - self.floor)
            if self.has_week:
                left = min(left, self.cw * (1.0 - self.uw - self.floor))
        return left


Ranked = tuple[Candidate, float]
"""A candidate and what it was ranked by: a probability, a score, or the first part of the key."""


@lru_cache(maxsize=4096)
def digest(account_id: int) -> str:
    """h(id): scatters ties, so that not all pools favour the account that was added first."""
    return hashlib.sha256(str(account_id).encode()).hexdigest()


def draw(weights: Sequence[float], rng: Random) -> int:
    """The index at which the running sum reaches u = rng() x total, in input order; never one of weight 0.

    The total must be above 0.
    """
    goal = rng() * sum(weights)
    running = 0.0
    last = -1
    for index, weight in enumerate(weights):
        if weight <= 0:
            continue
        running += weight
        last = index
        if running >= goal:
            return index
    # The goal was missed by rounding of the sums.
    return last


def _drawn(candidates: Sequence[Candidate], weights: Sequence[float], rng: Random) -> list[Ranked]:
    """All of weight above 0: the first by a draw, the next again among the rest, each with its share of the first draw."""
    total = sum(weights)
    rest = [(candidate, weight) for candidate, weight in zip(candidates, weights, strict=True) if weight > 0]
    order: list[Ranked] = []
    while rest:
        candidate, weight = rest.pop(draw([weight for _, weight in rest], rng) if len(rest) > 1 else 0)
        order.append((candidate, weight / total))
    return order


def capacity_weighted(candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
    """P = rw / sum rw; all zero: usage_weighted."""
    left = [candidate.rw for candidate in candidates]
    order = _drawn(candidates, left, rng)
    if len(order) == len(candidates):
        return order
    empty = [candidate for candidate, rw in zip(candidates, left, strict=True) if rw <= 0]
    return order + [(candidate, 0.0) for candidate, _ in usage_weighted(empty, rng)]


def relative_availability(candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
    """s = rw / max(tau, 300); w = (s / max s)^2; those of w < 0.1 are dropped, the 5 largest kept, and drawn with P = w / sum w.

    Who was not kept follows in the same order of ties: a dropped account is the last choice, not none.
    """
    speeds = [candidate.rw / max(candidate.tau, SHORTEST_TAU_SECONDS) for candidate in candidates]
    most = max(speeds, default=0.0)
    if most <= 0:
        return usage_weighted(candidates, rng)
    weights = {c.account_id: (speed / most) ** 2 for c, speed in zip(candidates, speeds, strict=True)}
    by_weight = sorted(
        zip(candidates, speeds, strict=True),
        key=lambda one: (-weights[one[0].account_id], -one[1], one[0].uw, one[0].u5, one[0].last_ms, one[0].account_id),
    )
    ordered = [candidate for candidate, _ in by_weight]
    kept = {c.account_id for c in ordered[:MOST_DRAWN] if weights[c.account_id] >= LEAST_SHARE}
    drawn_from = [candidate for candidate in candidates if candidate.account_id in kept]
    order = _drawn(drawn_from, [weights[candidate.account_id] for candidate in drawn_from], rng)
    return order + [(candidate, 0.0) for candidate in ordered if candidate.account_id not in kept]


def reset_drain(candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
    """What resets soonest, by whole days; of these the freest: (floor(tau / 86400), -(1-u5), -(1-uw), tau, h(id), id)."""

    def key(c: Candidate) -> tuple[int, float, float, float, str, int]:
        day = math.floor(c.tau / DAY_SECONDS) if c.is_tau_known else NEVER_DAY
        return (day, -(1 - c.u5), -(1 - c.uw), c.tau, digest(c.account_id), c.account_id)

    return [(candidate, float(key(candidate)[0])) for candidate in sorted(candidates, key=key)]


def usage_weighted(candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
    """Least used first: (uw, u5, last, id)."""
    ordered = sorted(candidates, key=lambda c: (c.uw, c.u5, c.last_ms, c.account_id))
    return [(candidate, candidate.uw) for candidate in ordered]


def round_robin(candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
    """Longest unselected first: (last, h(id))."""
    ordered = sorted(candidates, key=lambda c: (c.last_ms, digest(c.account_id)))
    return [(candidate, float(candidate.last_ms)) for candidate in ordered]


def fill_first(candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
    """Most used first: (-u5, -uw, id)."""
    ordered = sorted(candidates, key=lambda c: (-c.u5, -c.uw, c.account_id))
    return [(candidate, candidate.u5) for candidate in ordered]


BY_RULE: MappingProxyType[str, Callable[[Sequence[Candidate], Random], list[Ranked]]] = MappingProxyType(
    {
        "capacity_weighted": capacity_weighted,
        "relative_availability": relative_availability,
        "reset_drain": reset_drain,
        "usage_weighted": usage_weighted,
        "round_robin": round_robin,
        "fill_first": fill_first,
    }
)
"""Every strategy but `pace`, whose score also depends on the turn."""
