"""Periods by the calendar of a zone."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.periods import Period, day_start, period_at, start_day

ZONES = (
    "UTC",
    "Asia/Tokyo",
    "Asia/Kathmandu",
    "Europe/Paris",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "America/St_Johns",
    "Africa/Cairo",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kiritimati",
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def starts(anchor: date, count: int) -> list[date]:
    return [start_day(anchor, "monthly", number) for number in range(count)]


def test_a_month_is_the_calendars_month() -> None:
    """E1: anchored on 31 January: 28 Feb, 31 Mar, 30 Apr."""
    assert starts(date(2027, 1, 31), 4) == [date(2027, 1, 31), date(2027, 2, 28), date(2027, 3, 31), date(2027, 4, 30)]


@pytest.mark.parametrize("day", [29, 30, 31])
def test_a_clamped_start_returns_to_the_anchors_day(day: int) -> None:
    """E7: through February of 2027 and of 2028, a leap year."""
    anchor = date(2026, 12, day)
    assert starts(anchor, 5)[1:4] == [date(2027, 1, day), date(2027, 2, 28), date(2027, 3, day)]
    assert [start_day(anchor, "monthly", number) for number in (13, 14, 15)] == [
        date(2028, 1, day),
        date(2028, 2, 29),
        date(2028, 3, day),
    ]


def test_a_period_begins_at_midnight_of_the_zone() -> None:
    """E2: in Tokyo the month begins at 15:00 UTC; one second later is the new period."""
    period = period_at(date(2026, 1, 1), "monthly", "Asia/Tokyo", at("2026-07-31T15:00:01Z"))
    assert period == Period(at("2026-07-31T15:00:00Z"), at("2026-08-31T15:00:00Z"))
    assert period.start.tzinfo is UTC
    assert period_at(date(2026, 1, 1), "monthly", "Asia/Tokyo", at("2026-07-31T14:59:59Z")).end == period.start


def test_the_exact_boundary_belongs_to_the_new_period() -> None:
    """E12: half open."""
    boundary = at("2026-11-30T00:00:00Z")
    period = period_at(date(2026, 11, 2), "weekly", "UTC", boundary)
    assert period == Period(boundary, at("2026-12-07T00:00:00Z"))
    assert boundary in period
    assert period.end not in period
    assert period_at(date(2026, 11, 2), "weekly", "UTC", boundary - timedelta(microseconds=1)).end == boundary


def test_weeks_keep_their_local_midnight_over_a_change_of_the_clock() -> None:
    paris = ZoneInfo("Europe/Paris")
    period = period_at(date(2026, 10, 19), "weekly", paris, at("2026-10-25T12:00:00+01:00"))
    assert period == Period(at("2026-10-18T22:00:00Z"), at("2026-10-25T23:00:00Z"))
    assert period.end - period.start == timedelta(days=7, hours=1)


def test_before_the_anchor_periods_run_too() -> None:
    assert period_at(date(2026, 11, 30), "weekly", "UTC", at("2026-11-29T10:00:00Z")).start == at("2026-11-23T00:00:00Z")
    assert period_at(date(2026, 3, 31), "monthly", "UTC", at("2026-02-28T10:00:00Z")).start == at("2026-02-28T00:00:00Z")
    assert period_at(date(2026, 3, 31), "monthly", "UTC", at("2025-12-31T00:00:00Z")).start == at("2025-12-31T00:00:00Z")


@pytest.mark.parametrize(
    ("zone", "day", "start"),
    [
        # Midnight did not exist: the clock jumped from 0:00 to 1:00.
        ("America/Sao_Paulo", date(2018, 11, 4), "2018-11-04T03:00:00Z"),
        ("Asia/Beirut", date(2026, 3, 29), "2026-03-28T22:00:00Z"),
        # Midnight came twice: the clock fell back from 1:00 to 0:00.
        ("America/Havana", date(2026, 11, 1), "2026-11-01T04:00:00Z"),
        # The clock fell back from 0:00 to 23:00: the day begins when midnight comes again.
        ("America/Sao_Paulo", date(2018, 2, 18), "2018-02-18T03:00:00Z"),
        # It jumped from 0:01 to 1:01, so midnight was.
        ("America/St_Johns", date(2011, 3, 13), "2011-03-13T03:30:00Z"),
        # It jumped from 23:30 to 0:30: the day began at 0:30.
        ("America/Toronto", date(1919, 3, 31), "1919-03-31T04:30:00Z"),
        # The whole 30th was left out.
        ("Pacific/Apia", date(2011, 12, 30), "2011-12-30T10:00:00Z"),
        ("Pacific/Apia", date(2011, 12, 31), "2011-12-30T10:00:00Z"),
    ],
)
def test_the_first_instant_of_a_day(zone: str, day: date, start: str) -> None:
    assert day_start(day, ZoneInfo(zone)) == at(start)


def test_an_unknown_period_is_an_error() -> None:
    with pytest.raises(ValueError, match="fortnightly"):
        period_at(date(2026, 1, 1), "fortnightly", "UTC", at("2026-07-31T15:00:01Z"))


@given(
    st.sampled_from(ZONES),
    st.sampled_from(["weekly", "monthly"]),
    st.dates(min_value=date(2010, 1, 1), max_value=date(2035, 12, 31)),
    st.integers(min_value=1_262_304_000, max_value=2_082_758_400).map(lambda second: datetime.fromtimestamp(second, UTC)),
)
def test_periods_tile_time(zone: str, reset_period: str, anchor: date, now: datetime) -> None:
    period = period_at(anchor, reset_period, zone, now)
    assert period.start <= now < period.end
    assert period_at(anchor, reset_period, zone, period.start) == period
    assert period_at(anchor, reset_period, zone, period.end).start == period.end
    assert period_at(anchor, reset_period, zone, period.start - timedelta(microseconds=1)).end == period.start
