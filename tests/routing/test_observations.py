"""Windows as upstreams tell them: in heads, events and answers to usage polls."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing import observations
from routing.observations import Observation, Told

NOW = 1_796_008_909
RESET = NOW + 3600
WEEK = NOW + 500_000

# As captured (protocol note, samples/wham_usage_response.json and ws_server_frames.jsonl), with resets of this test's time.
USAGE: dict[str, Any] = {
    "user_id": "user_fake_1",
    "account_id": "acct_fake_1",
    "email": "user@example.test",
    "plan_type": "plus",
    "rate_limit": {
        "allowed": True,
        "limit_reached": False,
        "primary_window": {"used_percent": 42, "limit_window_seconds": 18000, "reset_after_seconds": 3600, "reset_at": RESET},
        "secondary_window": {"used_percent": 17, "limit_window_seconds": 604800, "reset_after_seconds": 500000, "reset_at": WEEK},
    },
    "code_review_rate_limit": None,
    "additional_rate_limits": None,
    "credits": {"has_credits": True, "unlimited": False, "overage_limit_reached": False, "balance": "12.34"},
    "spend_control": {"reached": False, "individual_limit": None},
    "rate_limit_reached_type": None,
    "promo": None,
}
EVENT: dict[str, Any] = {
    "type": "codex.rate_limits",
    "plan_type": "plus",
    "metered_limit_name": "codex",
    "limit_name": None,
    "rate_limits": {
        "allowed": True,
        "limit_reached": False,
        "primary": {"used_percent": 43, "window_minutes": 300, "reset_after_seconds": 3600, "reset_at": RESET},
        "secondary": {"used_percent": 18, "window_minutes": 10080, "reset_after_seconds": 500000, "reset_at": WEEK},
    },
    "credits": {"has_credits": True, "unlimited": False, "balance": "12.34"},
}


def usage(**limits: Any) -> Told | None:
    """The captured answer with other `rate_limit` fields."""
    return observations.of_usage(json.dumps({**USAGE, "rate_limit": {**USAGE["rate_limit"], **limits}}).encode(), NOW)


def window(used: float, seconds: int, **fields: Any) -> dict[str, Any]:
    return {"used_percent": used, "limit_window_seconds": seconds, "reset_at": WEEK, **fields}


def test_the_captured_answer_of_a_usage_poll_is_read() -> None:
    told = observations.of_usage(json.dumps(USAGE).encode(), NOW)
    assert told == Told((Observation(300, 42.0, RESET), Observation(10080, 17.0, WEEK)), plan="plus")
    assert told.has_room


def test_the_captured_event_is_read() -> None:
    told = observations.of_event(json.dumps(EVENT).encode(), NOW)
    assert told == Told((Observation(300, 43.0, RESET), Observation(10080, 18.0, WEEK)), plan="plus")


def test_windows_are_told_apart_by_length() -> None:
    """N14: the only window is the weekly one, in the first slot."""
    told = usage(primary_window=window(61, 604_800), secondary_window=None)
    assert told is not None
    assert told.windows == (Observation(10080, 61.0, WEEK),)


def test_further_families_of_limits_are_not_the_accounts() -> None:
    extra = [{"limit_name": "other", "metered_feature": "other", "rate_limit": {"primary_window": window(100, 18_000)}}]
    told = observations.of_usage(json.dumps({**USAGE, "additional_rate_limits": extra}).encode(), NOW)
    assert told is not None
    assert [one.used_percent for one in told.windows] == [42.0, 17.0]
    assert observations.of_event(json.dumps({**EVENT, "metered_limit_name": "codex_other"}).encode(), NOW) is None


@pytest.mark.parametrize(
    ("limits", "is_refusing"),
    [
        ({"allowed": False, "limit_reached": True}, True),
        ({"allowed": False}, True),
        # Credits that were bought carry on where a window is full.
        ({"allowed": True, "limit_reached": True}, False),
        # It is full, and until when cannot be (N13): milliseconds; the year 2099; the past.
        ({"primary_window": window(100, 18_000, reset_at=RESET * 1000)}, True),
        ({"primary_window": window(100, 18_000, reset_at=4_070_908_800)}, True),
        ({"primary_window": window(100, 18_000, reset_at=NOW - 1)}, True),
        ({"primary_window": window(99, 18_000, reset_at=NOW - 1)}, False),
    ],
)
def test_an_account_that_serves_nothing_is_told_apart(limits: dict[str, Any], is_refusing: bool) -> None:
    """N13: a full window whose reset cannot be is left out, and the account counts as refusing."""
    told = usage(**limits)
    assert told is not None
    assert told.is_refusing is is_refusing
    assert told.has_room is not is_refusing


def test_of_two_windows_of_one_length_the_fuller_counts() -> None:
    told = usage(primary_window=window(90, 18_000), secondary_window=window(10, 18_000))
    assert told is not None
    assert told.windows == (Observation(300, 90.0, WEEK),)


def test_without_a_time_the_seconds_count_and_without_both_the_reset_is_unknown() -> None:
    told = usage(primary_window=window(1, 18_000, reset_at=None, reset_after_seconds=60), secondary_window=None)
    assert told is not None
    assert told.windows == (Observation(300, 1.0, NOW + 60),)
    told = usage(primary_window=window(1, 18_000, reset_at=None), secondary_window=None)
    assert told is not None
    assert told.windows == (Observation(300, 1.0, 0),)


@pytest.mark.parametrize("body", [b"", b"<html>Just a moment...</html>", b"[]", b'{"rate_limit":null}', b'{"detail":"x"}'])
def test_what_is_no_answer_to_a_poll_is_none(body: bytes) -> None:
    assert observations.of_usage(body, NOW) is None
    assert observations.of_event(body, NOW) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*USAGE, *USAGE["rate_limit"], "reset_at"]), inner),
    max_leaves=12,
)


@given(JSON)
def test_no_answer_makes_it_fail(value: Any) -> None:
    for limits in ({"rate_limit": value}, {"rate_limit": {"primary_window": value}}):
        observations.of_usage(json.dumps(limits).encode(), NOW)
    for limits in ({"rate_limits": value}, {"rate_limits": {"primary": value}}):
        observations.of_event(json.dumps({"type": "codex.rate_limits", **limits}).encode(), NOW)


@given(st.binary(max_size=60))
def test_no_bytes_make_it_fail(data: bytes) -> None:
    observations.of_usage(data, NOW)
    observations.of_event(data, NOW)
