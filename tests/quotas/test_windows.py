"""Windows by the organization's calendar."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from quotas import records, windows


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def test_a_day_is_the_local_one() -> None:
    """E2: Tokyo's first of August begins at 15:00 UTC of the day before."""
    tokyo = ZoneInfo("Asia/Tokyo")
    assert windows.day_of(at("2026-07-31T14:59:59"), tokyo) == date(2026, 7, 31).toordinal()
    assert windows.day_of(at("2026-07-31T15:00:00"), tokyo) == date(2026, 8, 1).toordinal()
    assert windows.midnight(date(2026, 8, 1).toordinal(), tokyo) == at("2026-07-31T15:00:00")


@pytest.mark.parametrize(
    ("window", "day", "first", "following"),
    [
        ("day", date(2026, 12, 31), date(2026, 12, 31), date(2027, 1, 1)),
        ("week", date(2027, 1, 3), date(2026, 12, 28), date(2027, 1, 4)),
        ("week", date(2026, 12, 28), date(2026, 12, 28), date(2027, 1, 4)),
        ("month", date(2026, 12, 31), date(2026, 12, 1), date(2027, 1, 1)),
        ("month", date(2028, 2, 29), date(2028, 2, 1), date(2028, 3, 1)),
    ],
)
def test_calendar_windows_begin_and_end_on_local_days(window: str, day: date, first: date, following: date) -> None:
    assert windows.first_day(window, day.toordinal()) == first.toordinal()
    assert windows.next_day(window, day.toordinal()) == following.toordinal()
    kinds = {"day": records.DAY, "week": records.WEEK, "month": records.MONTH}
    assert windows.code_of(window, day.toordinal()) == first.toordinal() * 16 + kinds[window]


def test_days_have_as_many_hours_as_the_clock_gives_them() -> None:
    """E15: 23 hours where the clock jumps, 25 where it is turned back."""
    paris = ZoneInfo("Europe/Paris")
    spring, autumn = date(2026, 3, 29).toordinal(), date(2026, 10, 25).toordinal()
    assert windows.midnight(spring + 1, paris) - windows.midnight(spring, paris) == 23 * 3600
    assert windows.midnight(autumn + 1, paris) - windows.midnight(autumn, paris) == 25 * 3600


@pytest.mark.parametrize(
    "zone", ["Africa/Cairo", "America/Asuncion", "Asia/Beirut", "America/Havana", "America/Scoresbysund", "UTC"]
)
def test_every_second_lies_in_its_day(zone: str) -> None:
    """Also in zones that skip midnight or have it twice: a view must always be valid at the second it was built for."""
    where = ZoneInfo(zone)
    for second in range(at("2023-01-01T00:00:00"), at("2024-02-01T00:00:00"), 1799):
        day = windows.day_of(second, where)
        assert windows.midnight(day, where) <= second < windows.midnight(day + 1, where)


def test_rolling_windows_have_no_start_and_no_end() -> None:
    assert [windows.code_of(name, 740_000) for name in ("5h", "1d", "7d", "30d")] == [2, 3, 4, 5]
    assert windows.ends_at("5h", 740_000, ZoneInfo("UTC")) is None
    assert [windows.name_of(code) for code in (2, 5, 740_000 * 16 + 7, 9, 0)] == ["5h", "30d", "week", "", ""]
