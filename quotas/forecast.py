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
    ranked = sorted(days)
    rates = (min(mean, ranked[len(ranked) // 4]), mean, max(mean, ranked[-1 - len(ranked) // 4]))
    return Overage(*(max(0, used + rate * max(0, seconds_left) // _DAY_SECONDS - quota) for rate in rates))
