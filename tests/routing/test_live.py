"""The live state as it is read back: windows with their estimates, holds with their lapse."""

import pytest

from routing import live
from routing.live import AccountState, States, Window

MINUTE = 60_000
NOW = 1_796_000_000_000
LATER = NOW // 1000 + 600


def test_every_field_of_an_account_is_read_and_nobody_elses() -> None:
    states = States(
        [
            b"7:c",
            b"5",
            b"7:x",
            b"90:80:0",
            b"7:v",
            b"3",
            b"7:l",
            b"44",
            b"7:m",
            b"123",
            b"7:h",
            b"24:31;31=24",
            b"7:w",
            b"300=42.5:1796000600:1796000000000:20:10:0;10080=17:0:1796000000000:20:0:1795999999000",
            b"77:c",
            b"9",
        ]
    )
    assert states.get(7) == AccountState(
        cooling_until_ms=5,
        exhausted_until=90,
        credential_version=3,
        last_ms=44,
        windows={300: Window(300, 42.5, LATER, NOW, 20, 10), 10080: Window(10080, 17.0, 0, NOW, 20, 0)},
        metered=123,
        holds=b"24:31;31=24",
    )
    assert states.get(77) == AccountState(cooling_until_ms=9)
    assert states.get(8) == AccountState()


def test_a_window_in_another_form_is_unknown() -> None:
    """What an older version of the software stored is not guessed at: the next answer tells."""
    assert States([b"7:w", b"300=42.5:1796000600:1796000000000"]).get(7).windows == {}


def test_the_estimate_adds_what_was_metered_since_the_report() -> None:
    """42 % reported when 90 credits were metered in this window; 45 more since, of 225: 0.42 + 0.20."""
    window = Window(300, 42.0, LATER, NOW, seen=100_000_000, start=10_000_000)
    assert window.estimate(145_000_000, 225.0, NOW) == pytest.approx(0.62)
    assert window.estimate(100_000_000, 225.0, NOW) == pytest.approx(0.42)
    assert window.used_at(NOW) == 0.42


def test_a_counter_that_was_lost_does_not_make_use_negative() -> None:
    assert Window(300, 42.0, LATER, NOW, seen=100, start=900).estimate(5, 225.0, NOW) == 0.42


def test_a_window_whose_reset_has_passed_is_unused() -> None:
    window = Window(300, 99.0, LATER, NOW, seen=0, start=0)
    assert window.estimate(45_000_000, 225.0, LATER * 1000 - 1) > 1.0
    assert window.estimate(45_000_000, 225.0, LATER * 1000) == 0.0


@pytest.mark.parametrize(("used", "lasts_ms"), [(100.0, MINUTE), (50.0, 300 * MINUTE)])
def test_a_window_without_a_reset_says_nothing_after_a_while(used: float, lasts_ms: int) -> None:
    window = Window(300, used, 0, NOW)
    assert window.estimate(0, 225.0, NOW + lasts_ms - 1) == used / 100
    assert window.estimate(0, 225.0, NOW + lasts_ms) == 0.0


def test_holds_count_until_their_minute() -> None:
    state = AccountState(holds=b"60:31;31=24;40=30;41=6")
    assert [state.held_at(minute * MINUTE - 1) for minute in (31, 32, 41, 42)] == [60, 36, 6, 0]
    assert AccountState().held_at(0) == AccountState(holds=b"").held_at(0) == 0


def test_a_script_stands_behind_what_it_needs() -> None:
    assert live.script("book", "holds").source.index("local function moved") < live.script("book", "holds").source.index("HINCRBY")
