"""Accounts as the strategies see them: those of the worked examples, and any."""

from typing import Any

from hypothesis import strategies as any_of

from routing import capacity
from routing.strategies import Candidate

DAY = 86_400.0
letters = dict(enumerate("abcdefgh", start=1))
numbers = {letter: number for number, letter in letters.items()}


def candidate(letter: str, plus: float, **fields: Any) -> Candidate:
    """An account of `plus` times the capacity of one Plus."""
    return Candidate(
        account_id=numbers[letter],
        c5=capacity.BASE_SHORT_CREDITS * plus,
        cw=capacity.BASE_WEEKLY_CREDITS * plus,
        **fields,
    )


E1 = [
    candidate("a", 1, u5=0.20, uw=0.40, tau=1.5 * DAY, last_ms=30),
    candidate("b", 1, u5=0.50, uw=0.10, tau=6 * DAY, last_ms=10),
    candidate("c", 5, u5=0.10, uw=0.70, tau=2 * DAY, last_ms=20),
    candidate("d", 20, u5=0.60, uw=0.50, tau=5 * DAY, last_ms=40),
]


def candidates_of(most: int = 8) -> any_of.SearchStrategy[list[Candidate]]:
    """Pools of any accounts: used up, over-used, huge, without windows, in several tiers."""
    fraction = any_of.floats(0.0, 1.2)
    one = any_of.builds(
        Candidate,
        account_id=any_of.integers(1, 10_000),
        c5=any_of.floats(1.0, 20_000.0),
        cw=any_of.floats(1.0, 200_000.0),
        u5=fraction,
        uw=fraction,
        tau=any_of.floats(0.0, 3_000_000.0),
        is_tau_known=any_of.booleans(),
        hold=any_of.floats(0.0, 5_000.0),
        last_ms=any_of.integers(0, 2**41),
        priority=any_of.integers(-1, 2),
        has_short=any_of.booleans(),
        has_week=any_of.booleans(),
        is_known=any_of.booleans(),
        floor=any_of.sampled_from([0.0, 0.2]),
    )
    return any_of.lists(one, min_size=1, max_size=most, unique_by=lambda found: found.account_id)
