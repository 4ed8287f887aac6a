"""The choice for one request: where sessions and turns stay, when they move, and why. No Redis: the live state is given."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as given_any

from routing import choice, pace, strategies
from routing.choice import Choice, Live
from routing.errors import PoolBusy, PoolExhausted
from routing.live import AccountState, Window
from routing.snapshots import PoolSnapshot
from routing.sticky import Sticky
from tests.routing import made

NOW = 1_796_000_000_000
UNIX = NOW // 1000
M = 1_000_000
HOUR_MS = 3_600_000


def used(short: float, week: float = 10.0, **fields: Any) -> AccountState:
    """An account whose windows reported these percents a moment ago."""
    found = {300: Window(300, short, UNIX + 3_600, NOW), 10_080: Window(10_080, week, UNIX + 302_400, NOW)}
    return AccountState(windows=found, **fields)


def choose(pool: PoolSnapshot, states: list[AccountState], entry: Sticky | None = None, **options: Any) -> Choice:
    live = Live({account.account_id: state for account, state in zip(pool.accounts, states, strict=True)}, sticky=entry)
    return choice.choose(pool, live, **{"model": "m", "now_ms": NOW, "rng": random.random, **options})


def told(pool: PoolSnapshot, chosen: Choice, entry: Sticky | None = None) -> tuple[int, str]:
    """Which account, by its place in the pool, and the reason."""
    place = chosen.places[0]
    number = [account.account_id for account in pool.accounts].index(place.account_id)
    return number, choice.reason(pool, Live({}, sticky=entry), place)


def pool_of(count: int = 2, **fields: Any) -> PoolSnapshot:
    return made.pool(*(made.account() for _ in range(count)), **{"strategy": "pace", **fields})


def session(pool: PoolSnapshot, number: int = 0, **fields: Any) -> Sticky:
    """A session of a warm account with turns of 12 credits."""
    return Sticky(pool.accounts[number].account_id, **{"served_ms": NOW - 60_000, "mean": 12 * M, "turn": 12 * M, **fields})


# ------------------------------------------------------------------------------------------------------------- sessions


def test_a_warm_session_stays_although_another_is_freer() -> None:
    pool = pool_of()
    entry = session(pool)
    chosen = choose(pool, [used(90.0), used(0.0)], entry)
    assert told(pool, chosen, entry) == (0, "sticky")
    assert (chosen.candidates, len(chosen.places), chosen.turn, chosen.hold) == (1, 1, 12 * M, 48 * M)


def test_a_warm_session_leaves_when_less_than_its_share_of_a_turn_is_left() -> None:
    """STAY 0.75 of 12 credits is 9; 4 % of 225 is 9, 3.9 % is less."""
    pool = pool_of()
    entry = session(pool)
    assert told(pool, choose(pool, [used(96.0), used(0.0)], entry), entry) == (0, "sticky")
    moved = choose(pool, [used(96.1), used(0.0)], entry)
    assert told(pool, moved, entry) == (1, "pace")
    assert not moved.is_stand_in


def test_its_own_hold_is_room_for_a_session_and_not_for_others() -> None:
    pool = pool_of()
    home = pool.accounts[0].account_id
    held = used(80.0, holds=b"40000000:29999999;29999999=40000000")
    entry = session(pool, held=40 * M, lapses=29_999_999, holder=home)
    assert told(pool, choose(pool, [held, used(50.0)], entry), entry) == (0, "sticky")
    assert told(pool, choose(pool, [held, used(50.0)], session(pool)))[0] == 1
    assert told(pool, choose(pool, [held, used(50.0)]))[0] == 1


def test_a_cold_session_is_placed_afresh() -> None:
    pool = pool_of()
    entry = session(pool, served_ms=NOW - 1_800_000)
    moved = choose(pool, [used(50.0), used(0.0)], entry)
    assert told(pool, moved, entry) == (1, "pace")
    assert not moved.is_stand_in


def test_a_cold_session_that_holds_sealed_reasoning_is_not_moved_for_that_alone() -> None:
    pool = pool_of()
    entry = session(pool, served_ms=NOW - 1_800_000)
    assert told(pool, choose(pool, [used(50.0), used(0.0)], entry, is_bound=lambda: True), entry) == (0, "sticky")
    assert told(pool, choose(pool, [used(97.0), used(0.0)], entry, is_bound=lambda: True), entry) == (1, "pace")


def test_leaving_a_warm_cache_needs_room_for_reading_it_anew() -> None:
    """Turn 12: 48 credits of room are enough alone, not with 20 to recache; then nobody fits, and the session stays (rule 3)."""
    pool = pool_of(loyalty=2.0)
    entry = session(pool)
    states = [used(92.0), used(75.0)]  # 18 and 56.25 credits
    assert told(pool, choose(pool, states, entry), entry) == (1, "pace")
    assert told(pool, choose(pool, states, entry, recache=20 * M), entry) == (0, "sticky")
    cold = session(pool, served_ms=NOW - 1_800_000)
    assert told(pool, choose(pool, states, cold, recache=20 * M), cold) == (1, "pace")


@pytest.mark.parametrize("away", [{"cooling_until_ms": NOW + 1}, {"exhausted_until": UNIX + 1}])
def test_an_account_that_cannot_serve_is_stood_in_for(away: dict[str, Any]) -> None:
    pool = pool_of()
    entry = session(pool)
    chosen = choose(pool, [used(10.0, **away), used(0.0)], entry)
    assert told(pool, chosen, entry) == (1, "pace")
    assert chosen.is_stand_in


def test_a_session_comes_back_to_its_warm_home() -> None:
    pool = pool_of()
    home, stand_in = (account.account_id for account in pool.accounts)
    entry = Sticky(home, stand_in, since_ms=NOW - 60_000, served_ms=NOW - 1_000, turn=12 * M)
    assert told(pool, choose(pool, [used(10.0), used(0.0)], entry), entry) == (0, "sticky")
    assert told(pool, choose(pool, [used(10.0, cooling_until_ms=NOW + 1), used(0.0)], entry), entry) == (1, "stand_in")


def test_a_session_whose_home_has_no_room_stays_on_its_warm_stand_in() -> None:
    pool = pool_of()
    home, stand_in = (account.account_id for account in pool.accounts)
    entry = Sticky(home, stand_in, since_ms=NOW - 60_000, served_ms=NOW - 1_000, turn=12 * M)
    chosen = choose(pool, [used(99.0), used(90.0)], entry)
    assert told(pool, chosen, entry) == (1, "stand_in")
    assert not chosen.is_stand_in


# ---------------------------------------------------------------------------------------------------------------- turns


def test_a_turn_stays_where_it_is_while_that_account_answers() -> None:
    """Neither an estimate, nor the floor, nor room interrupts it; what the account itself said does."""
    pool = made.pool(made.account(floor_percent=50), made.account(), strategy="pace")
    entry = session(pool)
    over = used(99.9, metered=5 * M)
    assert told(pool, choose(pool, [over, used(0.0)], entry, is_inside_turn=True), entry) == (0, "turn")
    assert told(pool, choose(pool, [over, used(0.0)], entry), entry) == (1, "pace")
    for state in (used(100.0), used(10.0, exhausted_until=UNIX + 60), used(10.0, cooling_until_ms=NOW + 1)):
        moved = choose(pool, [state, used(0.0)], entry, is_inside_turn=True)
        assert (told(pool, moved, entry), moved.is_stand_in) == ((1, "pace"), True)


def test_a_turn_that_must_move_needs_room_for_what_is_left_of_it() -> None:
    """Turn 12, 2 spent: Z x 10 = 40 credits."""
    pool = pool_of()
    entry = session(pool, spent=2 * M)
    states = [used(100.0), used(82.2)]  # 40.05 credits
    moved = choose(pool, states, entry, is_inside_turn=True)
    assert (moved.turn, moved.hold, moved.places[0].step) == (10 * M, 40 * M, pace.FITS)


def test_a_turn_on_a_stand_in_is_ended_there_and_the_home_is_kept() -> None:
    pool = pool_of()
    home, stand_in = (account.account_id for account in pool.accounts)
    entry = Sticky(home, stand_in, since_ms=NOW - 60_000, served_ms=NOW - 1_000, turn=12 * M)
    chosen = choose(pool, [used(0.0), used(50.0)], entry, is_inside_turn=True)
    assert (told(pool, chosen, entry), chosen.is_stand_in) == ((1, "turn"), True)


def test_a_turn_on_an_account_with_a_cap_has_others_behind_it() -> None:
    pool = made.pool(made.account(concurrency_cap=1), made.account(), strategy="pace")
    entry = session(pool)
    chosen = choose(pool, [used(50.0), used(0.0)], entry, is_inside_turn=True)
    assert [place.step for place in chosen.places] == [choice.IN_TURN, pace.FITS]
    assert chosen.is_stand_in


# ------------------------------------------------------------------------------------------------------ room, refusals


def test_without_room_for_a_turn_anywhere_the_earliest_true_reset_is_told() -> None:
    pool = pool_of()
    with pytest.raises(PoolExhausted) as refused:
        choose(pool, [used(95.0), used(99.0)])
    assert refused.value.resets_at == UNIX + 3_600


def test_the_most_room_is_taken_where_nobody_fits_by_far() -> None:
    pool = pool_of()
    assert told(pool, choose(pool, [used(90.0), used(85.0)])) == (1, "most_room")


def test_an_account_that_has_reported_nothing_is_never_refused() -> None:
    pool = pool_of(1)
    assert told(pool, choose(pool, [AccountState(holds=b"999000000:29999999;29999999=999000000")])) == (0, "pace")


def test_a_key_without_windows_takes_what_the_others_cannot() -> None:
    pool = made.pool(made.account(), made.account(kind="openai", priority=2), strategy="pace")
    assert told(pool, choose(pool, [used(10.0), AccountState()])) == (0, "pace")
    assert told(pool, choose(pool, [used(90.0), AccountState()])) == (1, "pace")


@pytest.mark.parametrize("strategy", ["pace", *strategies.BY_RULE])
def test_every_strategy_is_guarded_by_room_for_the_turn(strategy: str) -> None:
    """fill_first would take the fullest, round_robin the longest unselected: 90 % leaves 22.5 credits, and 48 are needed."""
    pool = pool_of(strategy=strategy)
    chosen = choose(pool, [used(90.0, week=5.0, last_ms=0), used(30.0, last_ms=9)])
    assert [place.step for place in chosen.places] == [pace.FITS, pace.MOST_ROOM]
    assert told(pool, chosen) == (1, strategy)


@given_any.composite
def any_states(draw: given_any.DrawFn) -> list[AccountState]:
    percents = given_any.floats(0.0, 110.0)
    return draw(
        given_any.lists(
            given_any.builds(
                used,
                percents,
                percents,
                cooling_until_ms=given_any.sampled_from([0, 0, NOW, NOW + 5_000]),
                exhausted_until=given_any.sampled_from([0, 0, UNIX, UNIX + 90]),
                metered=given_any.integers(0, 60 * M),
                last_ms=given_any.integers(0, NOW),
            ),
            min_size=4,
            max_size=4,
        )
    )


@given(
    states=any_states(),
    strategy=given_any.sampled_from(["pace", *sorted(strategies.BY_RULE)]),
    at=given_any.integers(0, 3),
    is_inside=given_any.booleans(),
    age=given_any.sampled_from([0, 60_000, 2 * HOUR_MS]),
    seed=given_any.integers(0, 2**32),
)
def test_never_an_ineligible_account(
    states: list[AccountState], strategy: str, at: int, is_inside: bool, age: int, seed: int
) -> None:
    """Whoever is tried serves the model, is active, neither cooling nor exhausted, has something left and room for a turn."""
    pool = made.pool(
        made.account(),
        made.account(floor_percent=30),
        made.account(models=frozenset({"other"})),
        made.account(status="paused"),
        strategy=strategy,
    )
    entry = session(pool, at, served_ms=NOW - age)
    options: dict[str, Any] = {"entry": entry, "is_inside_turn": is_inside}
    try:
        chosen = choose(pool, states, rng=random.Random(seed).random, **options)
    except (PoolExhausted, PoolBusy):
        return
    assert choose(pool, states, rng=random.Random(seed).random, **options) == chosen
    for place in chosen.places:
        number = [account.account_id for account in pool.accounts].index(place.account_id)
        state = states[number]
        assert number in (0, 1)
        assert state.cooling_until_ms <= NOW
        assert state.exhausted_until_ms(NOW) == 0
        if place.step != choice.IN_TURN:
            most = 1.0 - pool.accounts[number].floor_percent / 100
            for window, size in ((state.windows[300], 225.0), (state.windows[10_080], 1_500.0)):
                assert window.estimate(state.metered, size, NOW) < most
            assert place.head >= pool.loyalty * chosen.turn / M
