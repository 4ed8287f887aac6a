"""Does a pool last to its next reset, and to the ones after that? Pure: what is left, when it comes back, how fast it goes.

Accounts are taken to be used up in the order of their resets, which is what the strategies aim at; a reset fills its account. Two
rates make the range: the mean of the days looked at, and that of the last day. Credits, seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from routing.carried import BASIS_DAYS, Carried

HORIZON = timedelta(days=7)
LEAST_DAYS = 5
"""Under so many days of use nobody can say."""
LASTS, PROBABLY, RUNS_OUT = "lasts", "probably", "runs_out"


@dataclass(frozen=True, slots=True)
class Week:
    """An account's weekly window: credits left and in all, and when it is full again (None: unknown)."""

    label: str
    left: float
    size: float
    resets_at: datetime | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Credits per second: of the last BASIS_DAYS and of the last day. `days`: how many days of use are behind them."""

    of_week: float
    of_day: float
    days: int

    @property
    def is_thin(self) -> bool:
        return self.days < LEAST_DAYS


@dataclass(frozen=True, slots=True)
class Outlook:
    """`next`: whose reset brings something back first. `verdict`: whether what is left lasts for HORIZON, at both rates,
    at one, at neither; `dry_from`, `dry_until`: when it runs out, the earlier and the later; None: it does not.

    `is_before_next`: it runs out before the next reset, at one of the rates.
    """

    next: Week | None
    verdict: str
    dry_from: datetime | None
    dry_until: datetime | None
    is_before_next: bool


def rates(carried: Carried, account_ids: Sequence[int], now: datetime) -> Rates:
    """How fast these accounts were used."""
    by_day: dict[date, int] = {}
    for account_id in account_ids:
        for day, amount in carried.days.get(account_id, {}).items():
            by_day[day] = by_day.get(day, 0) + amount
    used = [day for day, amount in by_day.items() if amount > 0]
    elapsed = max((now - carried.since).total_seconds(), 1.0)
    lately = [carried.today, carried.today - timedelta(days=1)]
    day_seconds = max(elapsed - (BASIS_DAYS - 1) * 86400.0, 1.0)
    return Rates(
        of_week=sum(by_day.values()) / 1e6 / elapsed,
        of_day=sum(by_day.get(day, 0) for day in lately) / 1e6 / day_seconds,
        days=(carried.today - min(used)).days + 1 if used else 0,
    )


def foresee(weeks: Sequence[Week], rates: Rates, now: datetime) -> Outlook:
    """What becomes of the pool within HORIZON."""
    used = [week for week in weeks if week.left < week.size and week.resets_at is not None and week.resets_at > now]
    following = min(used, key=lambda week: _at(week, now), default=None)
    dry = [_runs_dry(weeks, rate, now) for rate in {rates.of_week, rates.of_day}]
    known = sorted(moment for moment in dry if moment is not None)
    verdict = LASTS if not known else RUNS_OUT if len(known) == len(dry) else PROBABLY
    return Outlook(
        next=following,
        verdict=verdict,
        dry_from=known[0] if known else None,
        dry_until=known[-1] if known else None,
        is_before_next=bool(known) and (following is None or known[0] < _at(following, now)),
    )


def _at(week: Week, now: datetime) -> datetime:
    """Its reset; one that is not known comes after all that is looked at."""
    return week.resets_at if week.resets_at is not None and week.resets_at > now else now + 2 * HORIZON


def _runs_dry(weeks: Sequence[Week], rate: float, now: datetime) -> datetime | None:
    """When nothing is left at this rate; None: not within HORIZON."""
    order = sorted(weeks, key=lambda week: (_at(week, now), week.label))
    left = [week.left for week in order]
    if rate <= 0.0:
        return None
    at, end = now, now + HORIZON
    for index, week in enumerate(order):
        until = min(_at(week, now), end)
        wanted = rate * (until - at).total_seconds()
        if sum(left) < wanted:
            return at + timedelta(seconds=sum(left) / rate)
        # The next to be reset first; what was reset has a week before it again, so it comes last.
        for place in [*range(index, len(order)), *range(index)]:
            taken = min(left[place], wanted)
            left[place] -= taken
            wanted -= taken
        at = until
        if at >= end:
            return None
        left[index] = week.size
    return None


def coming_back(weeks: Mapping[int, Week], now: datetime, within: timedelta) -> float:
    """Credits that resets bring back within a time: what is used of each by now."""
    return sum(
        max(0.0, week.size - week.left)
        for week in weeks.values()
        if week.resets_at is not None and now < week.resets_at <= now + within
    )
