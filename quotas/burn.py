"""The plan's quota over its period as a chart: what was used by each day, an even pace, and the range the last days project."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from accounts import display
from accounts.models import Organization
from billing import periods, reports
from quotas import drawn, forecast
from quotas.forecast import Outlook
from quotas.standing import PlanState

MOST_DAYS = 40
"""No period is longer."""
_DAY = 86400


@dataclass(frozen=True, slots=True)
class Point:
    """How it stands at a moment: `day` is the one that ends then, or today's for now. `used` None: it has not come yet; `low` and
    `high` None: it has passed, or nothing can be told. Micro-credits."""

    at: datetime
    day: date
    pace: int
    used: int | None = None
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Burn:
    """The first point is the period's start, the last its end; one is now."""

    points: Sequence[Point]
    used: int
    quota: int
    outlook: Outlook
    now: datetime
    ends_at: datetime

    @property
    def low(self) -> int | None:
        return self.points[-1].low

    @property
    def high(self) -> int | None:
        return self.points[-1].high

    @property
    def range_text(self) -> str:
        """`263 k to 291 k`; "" where nothing can be told."""
        if self.low is None or self.high is None:
            return ""
        low, high = rounded(self.low), rounded(self.high)
        return low if low == high else _("%(low)s to %(high)s") % {"low": low, "high": high}

    @property
    def days(self) -> Sequence[Point]:
        """A point for each day: how it ends, today so far."""
        return self.points[1:]

    def moment(self, seconds: int | None) -> datetime | None:
        return None if seconds is None else self.now + timedelta(seconds=seconds)

    @property
    def soonest(self) -> datetime | None:
        return self.moment(self.outlook.soonest)

    @property
    def around(self) -> datetime | None:
        return self.moment(self.outlook.around)


def of(
    organization: Organization,
    plan: PlanState,
    *,
    seat_member_id: int | None,
    now: datetime,
    drawn_by_day: Mapping[date, int] | None = None,
) -> Burn | None:
    """Of the organization's quota, or of a member's seat. None for a period that is none.

    A few queries, and none where `drawn_by_day` has all days of the period and of `forecast.DAYS`, and the period begins with one.
    """
    zone = ZoneInfo(organization.timezone)
    start, end = (datetime.fromtimestamp(second, UTC) for second in (plan.starts_at, plan.ends_at))
    if not start <= now < end or end - start > timedelta(days=MOST_DAYS):
        return None
    first, today = reports.day_of(start, zone), reports.day_of(now, zone)
    recent = [today - timedelta(days=forecast.DAYS - index) for index in range(forecast.DAYS)]
    period = [first + timedelta(days=index) for index in range((today - first).days + 1)]
    if (
        drawn_by_day is not None
        and start == periods.day_start(first, zone)
        and all(day in drawn_by_day for day in (*period, *recent))
    ):
        used_by_day = [drawn_by_day[day] for day in period]
        lately = [drawn_by_day[day] for day in recent]
    else:
        used_by_day = drawn.between(organization, seat_member_id, start, _after(now, zone))
        lately = drawn.by_day(organization, seat_member_id, now=now)
    used, total = [0], 0
    for amount in used_by_day:
        total += amount
        used.append(total)
    complete = forecast.since_first_use(lately)
    seconds_left = plan.ends_at - int(now.timestamp())
    rates = forecast.day_rates(complete)
    outlook = forecast.outlook(complete, used=plan.used + plan.overdraft, quota=plan.quota, seconds_left=seconds_left)

    def pace(at: datetime) -> int:
        return plan.quota * int((at - start).total_seconds()) // int((end - start).total_seconds())

    def projected(at: datetime, which: int) -> int | None:
        return None if rates is None else total + rates[which] * int((at - now).total_seconds()) // _DAY

    points = [Point(start, first, 0, 0)]
    day = first
    while periods.day_start(day, zone) < end:
        ends = min(end, periods.day_start(day + timedelta(days=1), zone))
        if day < today:
            points.append(Point(ends, day, pace(ends), used[(day - first).days + 1]))
        elif day == today:
            points.append(Point(now, day, pace(now), total, projected(now, 0), projected(now, 1)))
        if day > today or (day == today and ends == end):
            points.append(Point(ends, day, pace(ends), None, projected(ends, 0), projected(ends, 1)))
        day += timedelta(days=1)
    return Burn(points, total, plan.quota, outlook, now, end)


def _after(now: datetime, zone: ZoneInfo) -> datetime:
    """The end of today."""
    return periods.day_start(reports.day_of(now, zone) + timedelta(days=1), zone)


def chart(burn: Burn, zone: ZoneInfo) -> dict[str, Any]:
    """For charts.js: the organization's clock as if it were UTC, amounts in credits, to be drawn only."""

    def credits(amounts: Sequence[int | None]) -> list[float | None]:
        return [None if amount is None else amount / display.MICRO for amount in amounts]

    points = burn.points
    return {
        "x": [int(point.at.astimezone(zone).replace(tzinfo=UTC).timestamp()) for point in points],
        "used": credits([point.used for point in points]),
        "pace": credits([point.pace for point in points]),
        "low": credits([point.low for point in points]),
        "high": credits([point.high for point in points]),
        "quota": burn.quota / display.MICRO,
    }


def rounded(micro: int) -> str:
    """For a range: thousands of credits from ten thousand on, `263 k`; else as credits are written."""
    if micro < 10_000 * display.MICRO:
        return display.credits(micro)
    return _("%(thousands)s k") % {"thousands": display.count((micro + 500 * display.MICRO) // (1000 * display.MICRO))}
