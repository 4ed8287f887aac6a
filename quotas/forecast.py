"""How fast credits go, and what that makes of the period. A range, or nothing while data is thin. Pure; micro-credits."""

from collections.abc import Sequence
from dataclasses import dataclass

DAYS = 14
"""The complete days that a forecast looks at."""
FEWEST_DAYS = 5
_DAY_SECONDS = 86400


@dataclass(frozen=True, slots=True)
class Overage:
    """What would be used above the quota by the period's end; 0 when it lasts."""

    low: int
    expected: int
    high: int


def since_first_use(days: Sequence[int]) -> Sequence[int]:
    """Without the days before anything was used: they say nothing of how fast it goes."""
    first = next((index for index, amount in enumerate(days) if amount), len(days))
    return days[first:]


def burn_rate(days: Sequence[int]) -> int | None:
    """Micro-credits a day over the complete `days`, half up; None without any."""
    return (2 * sum(days) + len(days)) // (2 * len(days)) if days else None


def overage(days: Sequence[int], *, used: int, quota: int, seconds_left: int) -> Overage | None:
    """If the rest of the period goes as the complete `days` did; None with fewer than FEWEST_DAYS of them.

    Expected is their mean; low and high are their lower and upper quartile, at most and at least the mean.
    """
    mean = burn_rate(days)
    if mean is None or len(days) < FEWEST_DAYS:
        return None
    return Overage(*(max(0, used + rate * max(0, seconds_left) // _DAY_SECONDS - quota) for rate in _rates(days)))


def day_rates(days: Sequence[int]) -> tuple[int, int] | None:
    """What goes a day at the low and at the high pace of `overage`, by which a period's end is projected; None as there."""
    if len(days) < FEWEST_DAYS:
        return None
    low, _, high = _rates(days)
    return low, high


LASTS, PROBABLY, RUNS_OUT, TOO_EARLY = "lasts", "probably", "runs_out", "too_early"


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether what is left lasts to the period's end: at every pace seen (LASTS), at the mean one (PROBABLY), or not (RUNS_OUT).

    `soonest`, `around` and `latest`: seconds from now until nothing is left at the high, mean and low pace; None where it lasts.
    """

    verdict: str
    days: int
    soonest: int | None = None
    around: int | None = None
    latest: int | None = None


def outlook(days: Sequence[int], *, used: int, quota: int, seconds_left: int) -> Outlook:
    """As `overage`, told as time. `days`: the complete ones."""
    found = overage(days, used=used, quota=quota, seconds_left=seconds_left)
    if found is None:
        return Outlook(TOO_EARLY, len(days))
    left = max(0, quota - used)
    times = [
        None if rate <= 0 or not over else min(max(0, seconds_left), left * _DAY_SECONDS // rate)
        for rate, over in zip(_rates(days), (found.low, found.expected, found.high), strict=True)
    ]
    verdict = RUNS_OUT if found.expected else PROBABLY if found.high else LASTS
    return Outlook(verdict, len(days), soonest=times[2], around=times[1], latest=times[0])


def _rates(days: Sequence[int]) -> tuple[int, int, int]:
    """A day's low, mean and high: the lower and upper quartile, at most and at least the mean."""
    mean, ranked = burn_rate(days) or 0, sorted(days)
    return min(mean, ranked[len(ranked) // 4]), mean, max(mean, ranked[-1 - len(ranked) // 4])
