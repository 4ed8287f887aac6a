"""What accounts carried, as the usage log counts it. Billing knows that, and routing does not know billing: `config` brings them
together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from accounts.models import Organization

ByDay = Mapping[int, Mapping[date, int]]
"""Micro-credits by account id and day of the organization's calendar."""
Find = Callable[[Organization, date, date], ByDay]

_find: list[Find] = []

BASIS_DAYS = 7
"""What a forecast looks back on."""


def register(find: Find) -> None:
    """`find(organization, first, last)` counts what was admitted on these days of the organization's calendar, both included."""
    _find[:] = [find]


@dataclass(frozen=True, slots=True)
class Carried:
    """Micro-credits by account id: `month`, of the organization's calendar month, and `days`, of the last BASIS_DAYS days and
    today. `since`: the midnight that `days` begin at."""

    month: Mapping[int, int]
    days: ByDay
    since: datetime
    today: date


def read(organization: Organization, now: datetime) -> Carried:
    """One query."""
    zone = ZoneInfo(organization.timezone)
    today = now.astimezone(zone).date()
    first, week = today.replace(day=1), today - timedelta(days=BASIS_DAYS)
    found = _find[0](organization, min(first, week), today) if _find else {}
    return Carried(
        month={account: sum(amount for day, amount in days.items() if day >= first) for account, days in found.items()},
        days={account: {day: amount for day, amount in days.items() if day >= week} for account, days in found.items()},
        since=datetime(week.year, week.month, week.day, tzinfo=zone),
        today=today,
    )
