"""Burn rate and projected overage: a range, and nothing while data is thin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas import forecast
from quotas.forecast import Outlook, Overage

DAY = 86400


@pytest.mark.parametrize(("days", "rate"), [([], None), ([0], 0), ([1, 2], 2), ([1, 1, 2], 1), ([10, 20, 30], 20)])
def test_the_rate_is_the_mean_half_up(days: list[int], rate: int | None) -> None:
    assert forecast.burn_rate(days) == rate


def test_days_before_the_first_use_say_nothing() -> None:
    assert list(forecast.since_first_use([0, 0, 5, 0, 7])) == [5, 0, 7]
    assert list(forecast.since_first_use([0, 0])) == []


def test_fewer_than_five_days_are_too_few() -> None:
    assert forecast.overage([1, 1, 1, 1], used=0, quota=0, seconds_left=DAY) is None


def test_the_range_is_between_the_quartiles() -> None:
    """Six days of 10 to 60; three days to go, 100 used of 150: 20 to 50 a day, 35 on average."""
    found = forecast.overage([10, 20, 30, 40, 50, 60], used=100, quota=150, seconds_left=3 * DAY)
    assert found == Overage(low=10, expected=55, high=100)


def test_what_lasts_is_no_overage_and_what_is_over_stays() -> None:
    assert forecast.overage([1] * 5, used=0, quota=10, seconds_left=DAY) == Overage(0, 0, 0)
    assert forecast.overage([1] * 5, used=30, quota=10, seconds_left=-5) == Overage(20, 20, 20)


@given(
    st.lists(st.integers(-5, 10**12), min_size=5, max_size=14),
    st.integers(0, 10**15),
    st.integers(0, 10**15),
    st.integers(0, 31 * DAY),
)
def test_low_is_never_above_expected_nor_expected_above_high(days: list[int], used: int, quota: int, seconds_left: int) -> None:
    found = forecast.overage(days, used=used, quota=quota, seconds_left=seconds_left)
    assert found is not None
    assert 0 <= found.low <= found.expected <= found.high


DAYS = [10, 20, 30, 40, 50, 60]
"""20, 35 or 50 a day."""


@pytest.mark.parametrize(
    ("left", "days_left", "told"),
    [
        (151, 3, Outlook("lasts", 6)),
        (150, 3, Outlook("lasts", 6)),
        (149, 3, Outlook("probably", 6, soonest=149 * DAY // 50)),
        (104, 3, Outlook("runs_out", 6, soonest=104 * DAY // 50, around=104 * DAY // 35)),
        (50, 3, Outlook("runs_out", 6, soonest=DAY, around=50 * DAY // 35, latest=50 * DAY // 20)),
        (0, 3, Outlook("runs_out", 6, soonest=0, around=0, latest=0)),
        (-5, 3, Outlook("runs_out", 6, soonest=0, around=0, latest=0)),
        (10, 0, Outlook("lasts", 6)),
    ],
)
def test_the_outlook_says_whether_it_lasts_and_else_until_when(left: int, days_left: int, told: Outlook) -> None:
    assert forecast.outlook(DAYS, used=200 - left, quota=200, seconds_left=days_left * DAY) == told


def test_under_five_days_it_is_too_early_to_tell() -> None:
    assert forecast.outlook([1, 2, 3, 4], used=5, quota=0, seconds_left=DAY) == Outlook("too_early", 4)


@given(
    st.lists(st.integers(-5, 10**12), min_size=5, max_size=14),
    st.integers(0, 10**15),
    st.integers(0, 10**15),
    st.integers(0, 31 * DAY),
)
def test_it_runs_out_sooner_at_a_faster_pace_and_never_after_the_reset(
    days: list[int], used: int, quota: int, seconds_left: int
) -> None:
    found = forecast.outlook(days, used=used, quota=quota, seconds_left=seconds_left)
    times = [one for one in (found.soonest, found.around, found.latest) if one is not None]
    assert times == sorted(times)
    assert all(0 <= one <= seconds_left for one in times)
    assert (found.around is not None) == (found.verdict == "runs_out")
