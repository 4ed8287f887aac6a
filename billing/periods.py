"""Billing periods by the calendar of the organization's zone: half open, derived on read, never stored to be waited for. Pure."""

from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo


@dataclass(frozen=True, slots=True)
class Period:
    """[start, end), aware UTC."""

    start: datetime
    end: datetime

    def __contains__(self, moment: datetime) -> bool:
        return self.start <= moment < self.end


def period_at(anchor: date, reset_period: str, zone: ZoneInfo | str, now: datetime) -> Period:
    """The period that `now` (aware) lies in. `reset_period` is "weekly" or "monthly".

    Periods begin at the local day's first instant: weekly on the anchor's weekday; monthly on the anchor's day of the month,
    clamped to the month's last day and back again (anchor 31 gives 28 Feb, 31 Mar, 30 Apr). Holds before the anchor too.
    """
    zone = ZoneInfo(zone) if isinstance(zone, str) else zone
    number = _number_of(anchor, reset_period, now.astimezone(zone).date())
    # A zone that turns its clock back over midnight shows yesterday's date again: such an instant is of the day that had begun.
    while now < day_start(start_day(anchor, reset_period, number), zone):
        number -= 1
    while now >= day_start(start_day(anchor, reset_period, number + 1), zone):
        number += 1
    return Period(
        start=day_start(start_day(anchor, reset_period, number), zone),
        end=day_start(start_day(anchor, reset_period, number + 1), zone),
    )


def among(rows: Sequence[Period], derived: Period, now: datetime) -> Period:
    """The period that `now` lies in: that of `rows` (what was opened, half open, in order) which holds it, else `derived`.

    What was opened keeps its bounds, also where a change of plan began it in the middle of a day; what the calendar gives is
    clipped so that it overlaps none.
    """
    start, end = derived.start, derived.end
    for row in rows:
        if now in row:
            return row
        if row.end <= now:
            start = max(start, row.end)
        else:
            end = min(end, row.start)
    return Period(start, end)


@lru_cache(maxsize=10_000)
def start_day(anchor: date, reset_period: str, number: int) -> date:
    """The first local day of the period `number`, counted from the anchor's own, 0. Raises ValueError for an unknown period."""
    if reset_period == "weekly":
        return anchor + timedelta(days=7 * number)
    if reset_period == "monthly":
        years, month = divmod(anchor.month - 1 + number, 12)
        year = anchor.year + years
        return date(year, month + 1, min(anchor.day, monthrange(year, month + 1)[1]))
    raise ValueError(f"unknown reset period {reset_period!r}")


@lru_cache(maxsize=10_000)
def day_start(day: date, zone: ZoneInfo) -> datetime:
    """The first instant of a local day, in UTC.

    Where midnight happens twice, the first; where the clock jumps over it, the instant of the jump.
    """
    midnight = datetime.combine(day, time(), zone)
    instant = midnight.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == midnight.replace(tzinfo=None):
        return instant
    # Not on the clock. Read with the offset after the jump it is an instant before the jump, so the jump lies between the two.
    before, after = int(midnight.replace(fold=1).timestamp()), int(instant.timestamp())
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).date() >= day:
            after = middle
        else:
            before = middle
    return datetime.fromtimestamp(after, UTC)


def _number_of(anchor: date, reset_period: str, day: date) -> int:
    if reset_period == "weekly":
        return (day - anchor).days // 7
    number = (day.year - anchor.year) * 12 + day.month - anchor.month
    return number if start_day(anchor, reset_period, number) <= day else number - 1
