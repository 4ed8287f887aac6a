"""Which session a request belongs to, and where a session lives."""

import pytest

from routing import sticky
from routing.sticky import Sticky

SPELLINGS = ["session-id", "session_id", "conversation_id", "conversation-id", "thread-id", "thread_id"]


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_of_the_header_names_the_same_session(name: str) -> None:
    """K9: the same value gives the same session, whichever header carries it, and as prompt_cache_key."""
    as_header = sticky.session_key(1, {name: "0195-abc"}, None, b"")
    assert as_header == sticky.session_key(1, {}, "0195-abc", b"")
    assert as_header == sticky.session_key(1, {"session-id": "0195-abc"}, "another", b"opening")


def test_sessions_are_namespaced_by_organization() -> None:
    """K9: two tenants that send the same value do not share a session."""
    assert sticky.session_key(1, {"session-id": "same"}, None, b"") != sticky.session_key(2, {"session-id": "same"}, None, b"")


def test_the_value_is_not_readable_in_the_session() -> None:
    key = sticky.session_key(1, {"session-id": "customer-name"}, None, b"")
    assert key is not None
    assert "customer" not in key
    assert len(key) == 32


def test_the_opening_is_the_last_resort() -> None:
    first = sticky.session_key(1, {}, None, b"You are a helpful assistant")
    assert first is not None
    assert first != sticky.session_key(1, {}, None, b"Another opening")
    assert first != sticky.session_key(1, {}, "You are a helpful assistant", b"")
    assert sticky.session_key(1, {}, None, b"") is None


def test_a_request_id_of_the_client_is_no_session() -> None:
    assert sticky.session_key(1, {"x-client-request-id": "r-1"}, None, b"") is None


def test_an_entry_keeps_its_home_while_a_stand_in_serves() -> None:
    assert sticky.written(None, 7, 1_000) == "7:0:0"
    assert sticky.written(Sticky(7), 7, 1_000) == "7:0:0"
    assert sticky.written(Sticky(7), 8, 1_000) == "7:8:1000"
    assert sticky.written(Sticky(7, 8, 1_000), 8, 2_000) == "7:8:1000"
    assert sticky.written(Sticky(7, 8, 1_000), 7, 2_000) == "7:0:0"


def test_who_has_left_its_home_for_good_has_a_new_one() -> None:
    assert sticky.written(Sticky(7), 8, 1_000, is_stand_in=False) == "8:0:0"


def test_a_stand_in_that_outlives_the_prompt_cache_becomes_the_home() -> None:
    assert sticky.written(Sticky(7, 8, 1_000), 8, 1_000 + sticky.HOME_MOVES_AFTER_MS) == "8:0:0"


WHOLE = Sticky(7, 8, 90, served_ms=95, mean=4, spent=5, turn=6, held=24, lapses=31, holder=8)


@pytest.mark.parametrize(
    ("stored", "entry"),
    [
        (None, None),
        (b"", None),
        (b"7:0:0", Sticky(7)),
        (b"7:8:90", Sticky(7, 8, 90)),
        (b"7:8:90:95:4:5:6:24:31:8", WHOLE),
        (b"7:8:90:95:4:5:6:24:31:8:9", None),
        (b"7", None),
        (b"rubbish:rubbish", None),
    ],
)
def test_entries_are_read_as_they_are_written(stored: bytes | None, entry: Sticky | None) -> None:
    assert sticky.read(stored) == entry


def test_an_account_is_warm_for_as_long_as_a_prompt_cache_lives() -> None:
    life = sticky.HOME_MOVES_AFTER_MS
    alone = Sticky(7, served_ms=1_000)
    assert (alone.last, alone.is_warm(7, 999 + life), alone.is_warm(7, 1_000 + life)) == (7, True, False)
    away = Sticky(7, 8, since_ms=1_000, served_ms=5_000)
    assert (away.last, away.is_warm(8, 4_999 + life), away.is_warm(7, 999 + life), away.is_warm(7, 1_000 + life)) == (
        8,
        True,
        True,
        False,
    )
    assert not away.is_warm(9, 1_000)


def test_a_hold_counts_on_its_account_until_it_lapses() -> None:
    assert WHOLE.held_on(8, 31 * 60_000 - 1) == 24
    assert WHOLE.held_on(8, 31 * 60_000) == 0
    assert WHOLE.held_on(7, 0) == 0
    assert Sticky(7).held_on(None, 0) == 0
