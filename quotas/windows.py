"""Windows: their codes in the engine, where they begin and when they end. Pure.

Calendar windows follow the organization's zone: days, ISO weeks, months. A day is known by its ordinal, `date.toordinal()`.
"""

from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from billing.periods import day_start
from quotas import records

_DAY, _MONTH = 86400, 30 * 86400
ROLLING_SECONDS = {"5h": 5 * 3600, "1d": _DAY, "7d": 7 * _DAY, "30d": _MONTH}
_CALENDAR_SECONDS = {"day": _DAY, "week": 7 * _DAY, "month": _MONTH}
_ROLLING_KINDS = {
    "5h": records.FIVE_HOURS,
    "1d": records.ONE_DAY,
    "7d": records.SEVEN_DAYS,
    "30d": records.THIRTY_DAYS,
}
_CALENDAR_KINDS = {"day": records.DAY, "week": records.WEEK, "month": records.MONTH}
_NAMES = {kind: name for name, kind in (*_ROLLING_KINDS.items(), *_CALENDAR_KINDS.items(), ("period", records.PERIOD))}


def day_of(second: int, zone: ZoneInfo) -> int:
    """The ordinal of the local day that a unix second falls in.

    Where the clock is turned back over midnight, yesterday's date is shown again: such a second is of the day that had begun.
    """
    day = datetime.fromtimestamp(second, zone).date().toordinal()
    while second >= midnight(day + 1, zone):
        day += 1
    return day


@lru_cache(maxsize=10_000)
def midnight(ordinal: int, zone: ZoneInfo) -> int:
    """The unix second at which a local day begins; where clocks skip midnight, the first second that exists."""
    return int(day_start(date.fromordinal(ordinal), zone).timestamp())


def first_day(window: str, day: int) -> int:
    """The ordinal of the first day of the calendar window that a day is in."""
    today = date.fromordinal(day)
    if window == "week":
        return (today - timedelta(days=today.weekday())).toordinal()
    if window == "month":
        return today.replace(day=1).toordinal()
    return day


def next_day(window: str, day: int) -> int:
    """The ordinal of the first day after the calendar window that a day is in."""
    first = date.fromordinal(first_day(window, day))
    if window == "week":
        return first.toordinal() + 7
    if window == "month":
        return date(first.year + first.month // 12, first.month % 12 + 1, 1).toordinal()
    return day + 1


def code_of(window: str, day: int) -> int:
    """The engine's code of a rolling or calendar window on a day. The plan period has none: it is position 0."""
    if window in _ROLLING_KINDS:
        return records.code(_ROLLING_KINDS[window])
    return records.code(_CALENDAR_KINDS[window], first_day(window, day))


def name_of(code: int) -> str:
    """The window's name in a code; '' for the metrics that have none."""
    return _NAMES.get(code % 16, "")


def seconds(window: str, period: int) -> int:
    """How long a window is, for those who tell windows apart by length; `period`: how long the plan period is. 0 for no window.

    By name, not by the clock: a day has 24 hours also when clocks are changed, and a month 30 days; a plan period is a week or a
    month.
    """
    if window == "period":
        return 7 * _DAY if period <= 8 * _DAY else _MONTH
    return ROLLING_SECONDS.get(window) or _CALENDAR_SECONDS.get(window, 0)


def ends_at(window: str, day: int, zone: ZoneInfo) -> int | None:
    """The unix second at which a calendar window ends; None for rolling windows, which do not."""
    if window in _CALENDAR_KINDS:
        return midnight(next_day(window, day), zone)
    return None
