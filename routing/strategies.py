"""One pure ranking function per strategy: accounts that may serve, in the order in which they should be tried."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from routing import capacity

Random = Callable[[], float]
"""Uniform in [0, 1)."""

SHORT_MINUTES = 300
WEEKLY_MINUTES = 10080


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a strategy knows of an account: `u5` and `uw` are the used fractions of its two windows, 0..1.

    A window that the account does not have is unused. `weight` in thousandths of Plus; `tau_seconds` is the time to the
    weekly reset (unknown: a week); `last_ms` when it was selected last (never: 0); a lower `priority` comes first.
    """

    account_id: int
    weight: int
    u5: float = 0.0
    uw: float = 0.0
    tau_seconds: float = 604_800.0
    last_ms: int = 0
    priority: int = 0

    @property
    def rw(self) -> float:
        """Credits left this week."""
        return max(0.0, capacity.BASE_WEEKLY_CREDITS * self.weight / 1000 * (1.0 - self.uw))


def _by_use(candidate: Candidate) -> tuple[float, float, int, int]:
    return (candidate.uw, candidate.u5, candidate.last_ms, candidate.account_id)


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


def shares(candidates: Sequence[Candidate]) -> list[float]:
    """P of each under capacity_weighted: rw / sum rw; all 0 when nothing is left anywhere."""
    left = [candidate.rw for candidate in candidates]
    total = sum(left)
    return [rw / total for rw in left] if total > 0 else [0.0] * len(left)


def capacity_weighted(candidates: Sequence[Candidate], rng: Random) -> list[Candidate]:
    """Draws with P = rw / sum rw, again among the rest for the second choice, and so on; all zero: usage_weighted."""
    rest = list(candidates)
    order: list[Candidate] = []
    while rest:
        left = [candidate.rw for candidate in rest]
        if sum(left) <= 0:
            return order + usage_weighted(rest, rng)
        order.append(rest.pop(draw(left, rng)))
    return order


def usage_weighted(candidates: Sequence[Candidate], rng: Random) -> list[Candidate]:
    """Least used first: (uw, u5, last, id)."""
    return sorted(candidates, key=_by_use)


STRATEGIES: MappingProxyType[str, Callable[[Sequence[Candidate], Random], list[Candidate]]] = MappingProxyType(
    {"capacity_weighted": capacity_weighted}
)


def rank(strategy: str, candidates: Sequence[Candidate], rng: Random) -> list[Candidate]:
    """The order in which to try them: by priority tier (lower first), within a tier by the strategy."""
    ranked = STRATEGIES[strategy]
    tiers = sorted({candidate.priority for candidate in candidates})
    if len(tiers) == 1:
        return ranked(candidates, rng)
    return [candidate for tier in tiers for candidate in ranked([member for member in candidates if member.priority == tier], rng)]
