"""`pace` against the worked examples of its description (E1, E2, E3), and what the rule of headroom promises under any strategy."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as given_any

from routing import pace, strategies
from routing.pace import Place, Turn
from routing.strategies import Candidate
from tests.routing.candidates import DAY, E1, candidate, candidates_of, letters, numbers

A, B = numbers["a"], numbers["b"]

# E2: `c` is exhausted, so eligibility has dropped it before.
E2 = [
    candidate("a", 1, u5=0.90, uw=0.40, tau=1.5 * DAY, hold=10.0),
    candidate("b", 1, u5=0.97, uw=0.10, tau=6 * DAY),
]
E3 = [candidate("a", 1, u5=0.0, uw=0.50, tau=3.5 * DAY), candidate("b", 1, u5=0.0, uw=0.50, tau=3.5 * DAY)]


def dice() -> float:
    raise AssertionError("pace throws no dice")


def chosen(pool: list[Candidate], turn: Turn) -> tuple[str, int] | None:
    """The first place's letter and step."""
    places = pace.order("pace", pool, turn, dice)
    return (letters[places[0].account_id], places[0].step) if places else None


def scores(pool: list[Candidate], turn: Turn) -> dict[str, float]:
    return {
        letters[place.account_id]: round(place.score, 3)
        for place in pace.order("pace", pool, turn, dice)
        if place.score is not None
    }


# ------------------------------------------------------------------------------------------------- the worked examples


def test_e1_a_new_session_of_10_goes_to_a() -> None:
    """Worked example E1 pace turn 10, new: need 40; scores a 86.755, b 19.062, c 81.839, d 48.497 -> a."""
    assert scores(E1, Turn(10)) == {"a": 86.755, "c": 81.839, "d": 48.497, "b": 19.062}
    assert chosen(E1, Turn(10)) == ("a", pace.FITS)


def test_e1_a_new_session_of_50_fits_c_and_d_only() -> None:
    """Worked example E1 pace turn 50, new: need 200; only c 81.839, d 48.497 fit -> c."""
    assert scores(E1, Turn(50)) == {"c": 81.839, "d": 48.497}
    assert chosen(E1, Turn(50)) == ("c", pace.FITS)


def test_e1_a_warm_session_of_12_stays_on_b() -> None:
    """Worked example E1 pace turn 12, on b, recache 5: b, rule 1."""
    assert chosen(E1, Turn(12, recache=5, current=B, is_warm=True)) == ("b", pace.STAYS)


def test_e1_a_warm_session_of_160_leaves_b_for_d() -> None:
    """Worked example E1 pace turn 160, on b, recache 5: head(b) 112.5 < 120; need 645; c 42.823, d 45.114 -> d."""
    turn = Turn(160, recache=5, current=B, is_warm=True)
    assert pace.head(E1[1], turn) == pytest.approx(112.5)
    assert scores(E1, turn) == {"d": 45.114, "c": 42.823}
    assert chosen(E1, turn) == ("d", pace.FITS)


def test_e1_a_cold_session_on_b_is_placed_afresh() -> None:
    """Worked example E1 pace turn 10, on b, cold: a."""
    assert chosen(E1, Turn(10, current=B)) == ("a", pace.FITS)


def test_e2_heads() -> None:
    """Worked example E2: head a 12.5, b 6.75."""
    assert [round(pace.head(one, Turn(2)), 6) for one in E2] == [12.5, 6.75]


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (Turn(2), ("a", pace.FITS)),
        (Turn(8), ("a", pace.MOST_ROOM)),
        (Turn(12), ("a", pace.MOST_ROOM)),
        (Turn(20), None),
        (Turn(8, recache=4, current=B, is_warm=True), ("b", pace.STAYS)),
        (Turn(20, recache=6, current=A, is_warm=True, own_hold=10), ("a", pace.STAYS)),
    ],
    ids=["2 to a", "8 to a by room", "12 to a by room", "20 refused", "8 warm stays on b", "20 warm stays on a by its own hold"],
)
def test_e2(turn: Turn, expected: tuple[str, int] | None) -> None:
    """Worked example E2: 2 -> a (rule 2); 8, 12 -> a (4); 20 -> refuse; 8 warm on b -> b (1); 20 warm on a, hold 10 -> a (1)."""
    assert chosen(E2, turn) == expected


def test_e3_equal_accounts_are_taken_by_id() -> None:
    """Worked example E3: turn 10 -> a (tie by id)."""
    assert chosen(E3, Turn(10)) == ("a", pace.FITS)
    assert chosen(E3[::-1], Turn(10)) == ("a", pace.FITS)


def test_e3_a_hold_moves_the_next_session_elsewhere() -> None:
    """Worked example E3: with hold 40 on a -> b."""
    assert chosen([candidate("a", 1, uw=0.50, tau=3.5 * DAY, hold=40.0), E3[1]], Turn(10)) == ("b", pace.FITS)


# ----------------------------------------------------------------------------------------------------------- the steps


def test_a_warm_session_with_less_than_a_fresh_placement_needs_stays_if_a_turn_is_left() -> None:
    """Rule 3: under STAY of a turn it leaves if somebody fits; with none, it stays down to FLOOR."""
    pool = [candidate("a", 1, u5=0.90), candidate("b", 1, u5=0.80)]
    turn = Turn(22, current=A, is_warm=True)
    assert [place.step for place in pace.order("pace", pool, turn, dice, loyalty=1.2)] == [pace.STILL, pace.MOST_ROOM]


def test_a_tie_of_scores_goes_to_the_sooner_reset() -> None:
    """Both resets are nearer than TMIN, so the scores are equal."""
    pool = [candidate("a", 1, tau=3_000.0), candidate("b", 1, tau=60.0)]
    assert chosen(pool, Turn(10)) == ("b", pace.FITS)


def test_a_reset_within_the_hour_counts_as_an_hour() -> None:
    near, hour = candidate("a", 1, tau=1.0), candidate("a", 1, tau=3_600.0)
    assert pace.score(near, 40) == pace.score(hour, 40)


def test_a_window_that_is_not_there_leaves_every_min_and_its_factor_is_one() -> None:
    key = candidate("a", 1, has_short=False, has_week=False, u5=1.0, uw=1.0, hold=500.0)
    assert pace.head(key, Turn(1_000)) == float("inf")
    assert pace.score(key, 4_000) == pytest.approx(1500**0.5)
    weekly_only = candidate("b", 1, has_short=False, uw=0.5, tau=7 * DAY)
    assert pace.head(weekly_only, Turn(10)) == 750.0
    assert pace.score(weekly_only, 40) == pytest.approx(0.5 * 1500**0.5)


def test_an_account_that_has_never_reported_is_ranked_by_assumption_and_never_refused_by_it() -> None:
    pool = [candidate("a", 1, hold=400.0, is_known=False), candidate("b", 1, is_known=False)]
    assert chosen(pool, Turn(10)) == ("b", pace.FITS)
    assert chosen(pool[:1], Turn(1_000)) == ("a", pace.FITS)


def test_room_ends_at_the_floor_that_a_person_keeps() -> None:
    keeper = candidate("a", 1, u5=0.70, floor=0.2)
    assert pace.head(keeper, Turn(10)) == pytest.approx(22.5)


def test_a_lower_tier_comes_first_whatever_the_capacity() -> None:
    plus, key = candidate("a", 1), candidate("b", 50, priority=1, has_short=False, has_week=False)
    for strategy in ("pace", *strategies.BY_RULE):
        places = pace.order(strategy, [key, plus], Turn(10), lambda: 0.99)
        assert [letters[place.account_id] for place in places] == ["a", "b"]


def test_a_higher_tier_with_room_for_the_turn_is_taken_before_a_lower_one_without() -> None:
    plus, pro = candidate("a", 1, u5=0.9), candidate("b", 5, priority=1)
    assert chosen([plus, pro], Turn(10)) == ("b", pace.FITS)


def test_safety_and_loyalty_can_be_set() -> None:
    assert chosen(E2, Turn(8)) == ("a", pace.MOST_ROOM)
    assert letters[pace.order("pace", E2, Turn(8), dice, safety=1.5)[0].account_id] == "a"
    assert pace.order("pace", E2, Turn(8), dice, safety=1.5)[0].step == pace.FITS
    warm = Turn(8, current=B, is_warm=True)
    assert pace.order("pace", E2, warm, dice, loyalty=1.0)[0].account_id == A


# ------------------------------------------------------------------------------------------------- under any strategy

every_strategy = given_any.sampled_from(["pace", *sorted(strategies.BY_RULE)])


@given_any.composite
def turns(draw: given_any.DrawFn) -> Turn:
    return Turn(
        credits=draw(given_any.floats(0.0, 3_000.0)),
        recache=draw(given_any.floats(0.0, 200.0)),
        current=draw(given_any.none() | given_any.integers(1, 10_000)),
        is_warm=draw(given_any.booleans()),
        own_hold=draw(given_any.floats(0.0, 500.0)),
    )


@given(pool=candidates_of(), turn=turns(), strategy=every_strategy, seed=given_any.integers(0, 2**32), at=given_any.integers(0, 7))
def test_the_rule_of_headroom(pool: list[Candidate], turn: Turn, strategy: str, seed: int, at: int) -> None:
    """Nobody below the needed room, nobody twice, nobody left out who has it, and the same dice give the same order."""
    if turn.is_warm and turn.current is not None:
        turn = Turn(turn.credits, turn.recache, pool[at % len(pool)].account_id, True, turn.own_hold)
    places = pace.order(strategy, pool, turn, random.Random(seed).random)
    assert pace.order(strategy, pool, turn, random.Random(seed).random) == places
    heads = {one.account_id: pace.head(one, turn) for one in pool}
    assert len({place.account_id for place in places}) == len(places)
    least = {
        pace.STAYS: pace.LOYALTY * turn.credits,
        pace.FITS: pace.SAFETY * turn.credits + turn.recache,
        pace.STILL: pace.FLOOR * turn.credits,
        pace.MOST_ROOM: pace.FLOOR * turn.credits,
    }
    for place in places:
        assert place.head == heads[place.account_id] >= least[place.step]
        assert (place.score is not None) == (place.step == pace.FITS)
    assert {one for one, room in heads.items() if room >= pace.FLOOR * turn.credits} <= {place.account_id for place in places}
    steps = [place.step for place in places]
    assert steps == sorted(steps)


@given(pool=candidates_of(), turn=turns())
def test_pace_is_one_order_whatever_the_order_of_the_accounts(pool: list[Candidate], turn: Turn) -> None:
    def of(accounts: list[Candidate]) -> list[Place]:
        return pace.order("pace", accounts, turn, dice)

    assert of(pool[::-1]) == of(pool)
