"""The strategies against the worked examples of their description (E1: four accounts, no holds)."""

import random
from collections import Counter

import pytest

from routing import strategies
from routing.strategies import Candidate

DAY = 86_400.0
A = Candidate(1, 1000, u5=0.20, uw=0.40, tau_seconds=1.5 * DAY, last_ms=30)
B = Candidate(2, 1000, u5=0.50, uw=0.10, tau_seconds=6 * DAY, last_ms=10)
C = Candidate(3, 5000, u5=0.10, uw=0.70, tau_seconds=2 * DAY, last_ms=20)
D = Candidate(4, 20000, u5=0.60, uw=0.50, tau_seconds=5 * DAY, last_ms=40)
E1 = [A, B, C, D]


def ids(candidates: list[Candidate]) -> list[int]:
    return [candidate.account_id for candidate in candidates]


def test_capacity_weighted_shares_are_those_of_the_example() -> None:
    """E1 capacity_weighted: P a .0462, b .0692, c .1154, d .7692."""
    assert [round(share, 4) for share in strategies.shares(E1)] == [0.0462, 0.0692, 0.1154, 0.7692]


def test_usage_weighted_orders_as_the_example() -> None:
    """E1 usage_weighted: b a d c."""
    assert ids(strategies.usage_weighted(E1, random.random)) == [2, 1, 4, 3]


@pytest.mark.parametrize(
    ("u", "index"), [(0.0, 0), (0.0461, 0), (0.0462, 1), (0.1153, 1), (0.1154, 2), (0.2307, 2), (0.2308, 3), (0.9999, 3)]
)
def test_draw_takes_the_first_where_the_running_sum_reaches_u(u: float, index: int) -> None:
    assert strategies.draw([900.0, 1350.0, 2250.0, 15000.0], lambda: u) == index


def test_draw_never_takes_a_weight_of_zero() -> None:
    assert strategies.draw([0.0, 5.0, 0.0], lambda: 0.0) == 1
    assert strategies.draw([0.0, 5.0, 0.0], lambda: 0.999999999) == 1


def test_the_first_choice_follows_the_shares() -> None:
    rng = random.Random(7)
    first = Counter(strategies.capacity_weighted(E1, rng.random)[0].account_id for _ in range(20_000))
    assert [round(first[number] / 20_000, 2) for number in (1, 2, 3, 4)] == [0.05, 0.07, 0.12, 0.77]


def test_every_candidate_is_ranked_once() -> None:
    rng = random.Random(1)
    for _ in range(50):
        assert sorted(ids(strategies.capacity_weighted(E1, rng.random))) == [1, 2, 3, 4]


def test_with_nothing_left_anywhere_the_least_used_comes_first() -> None:
    spent = [Candidate(1, 1000, u5=0.5, uw=1.0), Candidate(2, 1000, u5=0.1, uw=1.0)]
    assert strategies.shares(spent) == [0.0, 0.0]
    assert ids(strategies.capacity_weighted(spent, lambda: 0.0)) == [2, 1]


def test_an_account_without_a_weekly_window_counts_as_a_fresh_one() -> None:
    assert strategies.shares([Candidate(1, 1000), Candidate(2, 1000, uw=0.5)]) == [2 / 3, 1 / 3]


def test_a_lower_priority_number_comes_first_whatever_the_capacity() -> None:
    plus, key = Candidate(1, 1000, priority=0), Candidate(2, 50_000, priority=1)
    assert ids(strategies.rank("capacity_weighted", [key, plus], lambda: 0.99)) == [1, 2]
