"""Two years, hour by hour, over every change of the clock, in four zones: periods strictly increase, without gap or overlap.

2027 and 2028, so that there is a leap day. The zones have odd rules: Havana skips midnight in spring and has it twice in autumn;
Lord Howe moves by half an hour, so for half of the year its days begin at half past an hour of UTC; Beirut's day begins at one in
the morning when the clock jumps, and its last hour comes twice when it is turned back; New York is what everybody knows.
"""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from billing.periods import Period, day_start, period_at, start_day
from quotas import windows

BEGIN, END = datetime(2027, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)
HOURS = [BEGIN + timedelta(hours=number) for number in range(int((END - BEGIN).total_seconds()) // 3600)]
SECONDS = [int(hour.timestamp()) for hour in HOURS]
ZONES = ("America/New_York", "America/Havana", "Asia/Beirut", "Australia/Lord_Howe")
TICK = timedelta(microseconds=1)


def changes(zone: ZoneInfo) -> int:
    """How often the zone's offset changes in the two years."""
    offsets = [hour.astimezone(zone).utcoffset() for hour in HOURS]
    return sum(1 for before, after in pairwise(offsets) if before != after)


def walk(anchor: date, reset_period: str, zone: ZoneInfo) -> list[Period]:
    """The periods that the hours lie in, in order; each hour's answer is checked against the one before."""
    periods: list[Period] = []
    for now in HOURS:
        period = period_at(anchor, reset_period, zone, now)
        if periods and period == periods[-1]:
            assert now < period.end
            continue
        assert period.start <= now < period.end, (anchor, now, period)
        if periods:
            # The next one begins where the last one ended: no gap, no overlap, and none is left out.
            assert period.start == periods[-1].end, (anchor, now, periods[-1], period)
        periods.append(period)
    return periods


def check(periods: list[Period], anchor: date, reset_period: str, zone: ZoneInfo) -> None:
    for before, after in pairwise(periods):
        assert before.start < before.end == after.start < after.end
        boundary = after.start
        assert period_at(anchor, reset_period, zone, boundary - TICK) == before
        assert period_at(anchor, reset_period, zone, boundary) == after
        # At the local day's first instant, whatever the clock shows then.
        day = boundary.astimezone(zone).date()
        assert boundary == day_start(day, zone)
        assert (boundary - TICK).astimezone(zone).date() < day


@pytest.mark.parametrize("name", ZONES)
def test_the_zones_change_their_clocks_in_both_years(name: str) -> None:
    """Else the walks below would show nothing."""
    assert changes(ZoneInfo(name)) == 4


@pytest.mark.parametrize("name", ZONES)
def test_months_of_every_anchor_day_tile_two_years(name: str) -> None:
    """E1, E7, E12: anchors 1 to 31; each month has one start, on the anchor's day or the month's last."""
    zone = ZoneInfo(name)
    for number in range(1, 32):
        anchor = date(2026, 1, number)
        periods = walk(anchor, "monthly", zone)
        check(periods, anchor, "monthly", zone)
        days = [period.start.astimezone(zone).date() for period in periods]
        # 24 months touched, and the one that began before, unless the first hour begins one.
        assert len(days) in (24, 25)
        for before, after in pairwise(days):
            assert (after.year * 12 + after.month) - (before.year * 12 + before.month) == 1
        for day in days:
            following = day + timedelta(days=1)
            assert day.day == number or (day.day < number and following.day == 1)


@pytest.mark.parametrize("name", ZONES)
def test_weeks_of_every_weekday_tile_two_years(name: str) -> None:
    """E12, E15: seven local days, of 167 to 169 hours where the clock changes, always on the anchor's weekday."""
    zone = ZoneInfo(name)
    for number in range(7):
        anchor = date(2026, 12, 28) + timedelta(days=number)
        periods = walk(anchor, "weekly", zone)
        check(periods, anchor, "weekly", zone)
        days = [period.start.astimezone(zone).date() for period in periods]
        assert {day.weekday() for day in days} == {anchor.weekday()}
        assert all(after - before == timedelta(days=7) for before, after in pairwise(days))
        lengths = {(period.end - period.start) for period in periods}
        change = timedelta(minutes=30) if name == "Australia/Lord_Howe" else timedelta(hours=1)
        assert lengths == {timedelta(days=7), timedelta(days=7) - change, timedelta(days=7) + change}


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("anchor", [date(2024, 2, 29), date(2027, 12, 31), date(2031, 7, 30)])
def test_anchors_of_other_years_tile_the_same_two_years(name: str, anchor: date) -> None:
    """Also one that lies ahead of them: a period is derived, not counted on from the one before."""
    zone = ZoneInfo(name)
    for reset_period in ("monthly", "weekly"):
        periods = walk(anchor, reset_period, zone)
        check(periods, anchor, reset_period, zone)
        first = next(
            number for number in range(-400, 400) if day_start(start_day(anchor, reset_period, number), zone) > BEGIN - TICK
        )
        later = [day_start(start_day(anchor, reset_period, first + number), zone) for number in range(len(periods) + 1)]
        assert [period.start for period in periods if period.start >= BEGIN] == [start for start in later if BEGIN <= start < END]


@pytest.mark.parametrize("name", ZONES)
def test_days_weeks_and_months_of_limits_tile_two_years(name: str) -> None:
    """E2, E15: each hour lies in one window of each kind; it ends where the next begins, and its code tells it from all others."""
    zone = ZoneInfo(name)
    for window in ("day", "week", "month"):
        code, ends_at, seen = None, None, set()
        for second in SECONDS:
            day = windows.day_of(second, zone)
            assert windows.midnight(day, zone) <= second < windows.midnight(day + 1, zone)
            own = windows.code_of(window, day)
            if own != code:
                starts_at = windows.midnight(windows.first_day(window, day), zone)
                assert ends_at is None or starts_at == ends_at, (window, second)
                assert own not in seen
                seen.add(own)
                code, ends_at = own, windows.ends_at(window, day, zone)
            assert ends_at is not None
            assert starts_at <= second < ends_at
        expected = {"day": 731, "week": 105, "month": 24}[window]
        # The first hours are still the day before in zones behind UTC.
        assert len(seen) in (expected, expected + 1)
