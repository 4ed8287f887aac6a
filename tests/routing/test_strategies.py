"""The strategies against the worked example of their description (E1: four accounts, no holds), and what holds for any pool."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as given_any

from routing import strategies
from routing.strategies import Candidate, Ranked
from tests.routing.candidates import DAY, E1, candidate, candidates_of, letters


def shares(ranked: list[Ranked]) -> dict[str, float]:
    return {letters[one.account_id]: round(share, 4) for one, share in ranked}


def order(ranked: list[Ranked]) -> str:
    return " ".join(letters[one.account_id] for one, _ in ranked)


# ------------------------------------------------------------------------------------------------- the worked examples


def test_e1_capacity_weighted() -> None:
    """Worked example E1 capacity_weighted: P a .0462, b .0692, c .1154, d .7692."""
    found = shares(strategies.capacity_weighted(E1, random.Random(1).random))
    assert found == {"a": 0.0462, "b": 0.0692, "c": 0.1154, "d": 0.7692}


def test_e1_relative_availability() -> None:
    """Worked example E1 relative_availability: P c .1233, d .8767, a and b 0."""
    found = shares(strategies.relative_availability(E1, random.Random(1).random))
    assert found == {"c": 0.1233, "d": 0.8767, "a": 0.0, "b": 0.0}


def test_e1_reset_drain() -> None:
    """Worked example E1 reset_drain: a c d b."""
    assert order(strategies.reset_drain(E1, random.random)) == "a c d b"


def test_e1_usage_weighted() -> None:
    """Worked example E1 usage_weighted: b a d c."""
    assert order(strategies.usage_weighted(E1, random.random)) == "b a d c"


def test_e1_round_robin() -> None:
    """Worked example E1 round_robin: b c a d."""
    assert order(strategies.round_robin(E1, random.random)) == "b c a d"


def test_e1_fill_first() -> None:
    """Worked example E1 fill_first: d b a c."""
    assert order(strategies.fill_first(E1, random.random)) == "d b a c"


# ------------------------------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize(
    ("u", "index"), [(0.0, 0), (0.0461, 0), (0.0462, 1), (0.1153, 1), (0.1154, 2), (0.2307, 2), (0.2308, 3), (0.9999, 3)]
)
def test_draw_takes_the_first_where_the_running_sum_reaches_u(u: float, index: int) -> None:
    assert strategies.draw([900.0, 1350.0, 2250.0, 15000.0], lambda: u) == index


def test_draw_never_takes_a_weight_of_zero() -> None:
    assert strategies.draw([0.0, 5.0, 0.0], lambda: 0.0) == 1
    assert strategies.draw([0.0, 5.0, 0.0], lambda: 0.999999999) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("capacity_weighted", {"a": 0.0462, "b": 0.0692, "c": 0.1154, "d": 0.7692}),
        ("relative_availability", {"a": 0.0, "b": 0.0, "c": 0.1233, "d": 0.8767}),
    ],
)
def test_first_choices_come_in_proportion_to_the_weights(name: str, expected: dict[str, float]) -> None:
    rng = random.Random(7)
    drawn = Counter(letters[strategies.BY_RULE[name](E1, rng.random)[0][0].account_id] for _ in range(20_000))
    for letter, share in expected.items():
        # Four standard deviations of 20,000 draws.
        assert abs(drawn[letter] / 20_000 - share) <= 4 * (share * (1 - share) / 20_000) ** 0.5


# -------------------------------------------------------------------------------------------------------------- ties


def test_with_nothing_left_anywhere_the_least_used_comes_first() -> None:
    spent = [candidate("a", 1, u5=0.5, uw=1.0), candidate("b", 1, u5=0.1, uw=1.0)]
    for name in ("capacity_weighted", "relative_availability"):
        ranked = strategies.BY_RULE[name](spent, lambda: 0.0)
        assert order(ranked) == "b a"


def test_an_account_without_a_weekly_window_counts_as_a_fresh_one() -> None:
    pool = [candidate("a", 1, has_week=False, uw=0.9), candidate("b", 1, uw=0.5)]
    assert shares(strategies.capacity_weighted(pool, lambda: 0.0)) == {"a": 0.6667, "b": 0.3333}


def test_resets_of_one_day_are_drained_by_room_and_unknown_ones_last() -> None:
    pool = [
        candidate("a", 1, tau=1.1 * DAY, u5=0.5),
        candidate("b", 1, tau=1.9 * DAY, u5=0.1),
        candidate("c", 1, is_tau_known=False),
        candidate("d", 1, tau=30 * DAY, u5=0.9),
    ]
    assert order(strategies.reset_drain(pool, random.random)) == "b a d c"


def test_resets_of_one_day_and_equal_room_are_drained_soonest_first() -> None:
    pool = [candidate("a", 1, tau=1.9 * DAY), candidate("b", 1, tau=1.1 * DAY)]
    assert order(strategies.reset_drain(pool, random.random)) == "b a"


def test_ties_that_nothing_breaks_are_scattered_by_the_digest_of_the_id() -> None:
    pool = [candidate(letter, 1) for letter in "abcd"]
    scattered = sorted(pool, key=lambda one: strategies.digest(one.account_id))
    for name in ("reset_drain", "round_robin"):
        assert [one for one, _ in strategies.BY_RULE[name](pool, random.random)] == scattered
    assert strategies.digest(1) == "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"


def test_relative_availability_draws_from_the_five_largest() -> None:
    pool = [candidate(letter, 1, uw=use) for letter, use in zip("abcdefg", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6), strict=True)]
    ranked = strategies.relative_availability(pool, random.Random(3).random)
    assert {letters[one.account_id] for one, share in ranked if share > 0} == set("abcde")
    assert order(ranked)[-3:] == "f g"
    assert sum(share for _, share in ranked) == pytest.approx(1.0)


def test_a_reset_within_five_minutes_is_not_infinitely_urgent() -> None:
    pool = [candidate("a", 1, tau=1.0), candidate("b", 1, tau=300.0)]
    assert shares(strategies.relative_availability(pool, lambda: 0.0)) == {"a": 0.5, "b": 0.5}


# ------------------------------------------------------------------------------------------------- for any pool at all


@given(pool=candidates_of(), seed=given_any.integers(0, 2**32), name=given_any.sampled_from(sorted(strategies.BY_RULE)))
def test_every_candidate_is_ranked_once_and_the_same_dice_give_the_same_order(pool: list[Candidate], seed: int, name: str) -> None:
    ranked = strategies.BY_RULE[name](pool, random.Random(seed).random)
    assert sorted(one.account_id for one, _ in ranked) == sorted(one.account_id for one in pool)
    assert strategies.BY_RULE[name](pool, random.Random(seed).random) == ranked


BY_KEY = given_any.sampled_from(["reset_drain", "usage_weighted", "round_robin", "fill_first"])


@given(pool=candidates_of(), seed=given_any.integers(0, 2**32), name=BY_KEY)
def test_strategies_by_key_throw_no_dice_and_look_at_no_order(pool: list[Candidate], seed: int, name: str) -> None:
    def never() -> float:
        raise AssertionError("dice were thrown")

    ranked = strategies.BY_RULE[name](pool, never)
    shuffled = random.Random(seed).sample(pool, len(pool))
    assert strategies.BY_RULE[name](shuffled, never) == ranked


@given(pool=candidates_of(), seed=given_any.integers(0, 2**32))
def test_the_shares_of_a_draw_are_the_weights_over_their_sum(pool: list[Candidate], seed: int) -> None:
    ranked = strategies.capacity_weighted(pool, random.Random(seed).random)
    total = sum(one.rw for one in pool)
    for one, share in ranked:
        assert share == pytest.approx(one.rw / total if total > 0 else share)
