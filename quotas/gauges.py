"""How full the windows are that hold a key's requests: what clients are told of them. Read from an admission's answer, or from
`standing.Usage`; both know the same windows. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quotas import standing, windows
from quotas.standing import Usage
from quotas.views import METRIC_NAMES, View


class Gauge(NamedTuple):
    """A limit, or the plan's quota. Amounts are micro-credits for the metric credits, else counts.

    `used` is without what running requests hold. `resets_at`: the unix second at which it is empty again if nothing else comes;
    None if it never is. `models` is the name of the limit's model filter, "" for all models.

    A tuple, because each proxied request makes one for every limit.
    """

    seconds: int
    metric: str
    used: int
    limit: int
    resets_at: int | None
    is_plan: bool = False
    models: str = ""

    def for_all(self) -> "Gauge":
        return self._replace(models="")

    @property
    def is_full(self) -> bool:
        return self.used >= self.limit

    @property
    def basis_points(self) -> int:
        """What is used of 10,000, rounded down: all of them only if nothing is left; never below 0 or above."""
        _, _, used, limit, _, _, _ = self
        return 10_000 if used >= limit else max(0, used * 10_000 // limit)


@dataclass(frozen=True, slots=True)
class Reading:
    """All gauges of a key at a moment, and what pays once the plan's quota is used up: micro-credits.

    `purchased`: bought credits left, 0 where the plan may not use them. `is_open`: would anything pay for a next request?
    """

    gauges: tuple[Gauge, ...]
    purchased: int
    is_open: bool


@dataclass(frozen=True, slots=True)
class Told:
    """What admit tells of a view's windows, at a unix second."""

    view: View
    second: int
    amounts: tuple[int, ...]

    def reading(self) -> Reading:
        """`is_open` takes overage for available where the plan has any: what of it is spent is not told."""
        view, second = self.view, self.second
        spent, purchased, rolled = self.amounts[:3]
        gauges = [
            Gauge(
                asked.seconds,
                METRIC_NAMES[asked.metric],
                self.amounts[3 + asked.told],
                asked.amount,
                asked.ends_at or standing.empty_at(asked.limit.window, second),
                models=asked.limit.models,
            )
            for asked in view.asked
            if asked.told is not None and not asked.is_starting
        ]
        gauges += _plan(view.terms.quota, spent, rolled if rolled >= 0 else None, view.fund_start, view.fund_end, second)
        purchased = purchased if view.terms.is_purchased_allowed else 0
        is_open = max(spent, rolled) < view.terms.quota or purchased + view.terms.overage_cap > 0
        return Reading(tuple(gauges), purchased, is_open)


def of_usage(usage: Usage) -> Reading:
    """The same from what `peek` answered."""
    plan = usage.plan
    gauges = [
        Gauge(
            limit.seconds,
            limit.metric,
            limit.used,
            limit.limit,
            limit.resets_at or standing.empty_at(limit.window, usage.second),
            models=limit.models,
        )
        for limit in usage.limits
        if limit.seconds and not limit.is_starting
    ]
    rolled = None if plan.rolled is None else max(0, plan.rolled - plan.held)
    gauges += _plan(plan.quota, plan.used, rolled, plan.starts_at, plan.ends_at, usage.second)
    return Reading(tuple(gauges), plan.purchased, is_open=plan.remaining > 0 or plan.purchased + plan.overage > 0)


def _plan(quota: int, used: int, rolled: int | None, start: int, end: int, second: int) -> Sequence[Gauge]:
    seconds = windows.seconds("period", end - start)
    gauges = [Gauge(seconds, "credits", used, quota, end, is_plan=True)]
    if rolled is not None:
        window = "7d" if seconds == windows.ROLLING_SECONDS["7d"] else "30d"
        gauges.append(Gauge(seconds, "credits", rolled, quota, standing.empty_at(window, second), is_plan=True))
    return gauges
