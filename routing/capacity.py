"""What an account can carry: dated capacity weights of the vendor's plans, in thousandths of one Plus.

The figures are `plans.weights_in_plus_units` of the rate card data (`billing/data`), schema codex-2026, whose sources are
S3, "OpenAI Developers, 'Codex Pricing' page" (April 2026), and S12, "TokenGauge release v0.55.0" (2026-10-29, a third
party's transcription). Vendors change them without notice: a lead may give an account a number of its own, and a pool other bases.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime

BASE_SHORT_CREDITS = 225
"""Credits that one Plus carries in 5 hours: an assumption, and only ratios of it matter here."""

BASE_WEEKLY_CREDITS = 1500
"""Credits that one Plus carries in a week: an assumption, too."""

PLUS = 1000


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights as published on `as_of`, in thousandths of Plus."""

    as_of: date
    source: str
    by_plan: dict[str, int]


DATED: tuple[Weights, ...] = (
    Weights(date(2026, 4, 1), "S3", {"plus": 1000, "pro_100": 5000, "pro_200": 20000}),
    Weights(
        date(2026, 10, 29),
        "S12",
        {
            "plus": 1000,
            "business_seat": 1000,
            "business_premium": 10000,
            "pro_100": 10000,
            "pro_200": 20000,
            "pro_500": 50000,
        },
    ),
)

ALIASES = {
    # `pro` does not say which size it is: the smaller one, so that it is not given more than it can carry.
    "pro": "pro_100",
    "pro_5x": "pro_100",
    "pro_20x": "pro_200",
    "team": "business_seat",
    "business": "business_seat",
    "enterprise": "business_seat",
    "hc": "business_seat",
    "edu": "business_seat",
    "education": "business_seat",
}

# No source gives these two: less than Plus, so that they come last in a mixed pool.
ASSUMED = {"free": 100, "go": 400}


def plan_name(plan: str) -> str:
    """The name under which a plan's weight is listed; unknown names are given back as they came, in lower case."""
    name = plan.strip().lower().replace("-", "_")
    return ALIASES.get(name, name)


def is_known(plan: str) -> bool:
    name = plan_name(plan)
    return name in ASSUMED or any(name in weights.by_plan for weights in DATED)


def is_same(plan: str, told: str) -> bool:
    """Whether an upstream that names `told` may mean `plan`: `pro`, `team` or `business` do not say which size it is."""
    name, other = plan_name(plan), plan_name(told)
    return name == other or ("_" not in told.strip() and name.split("_")[0] == other.split("_")[0])


def weight_thousandths(plan: str, on: date) -> int:
    """The plan's weight that is in force on a day, in thousandths of Plus; an unknown plan counts as Plus."""
    name = plan_name(plan)
    if name in ASSUMED:
        return ASSUMED[name]
    listed = [weights.by_plan[name] for weights in DATED if weights.as_of <= on and name in weights.by_plan]
    if listed:
        return listed[-1]
    later = [weights.by_plan[name] for weights in DATED if name in weights.by_plan]
    return later[0] if later else PLUS


def changes(plan: str, after: date) -> tuple[tuple[int, int], ...]:
    """The plan's later weights: (from, unix milliseconds; thousandths of Plus), in order of time."""
    name = plan_name(plan)
    return tuple(
        (round(datetime(w.as_of.year, w.as_of.month, w.as_of.day, tzinfo=UTC).timestamp() * 1000), w.by_plan[name])
        for w in DATED
        if w.as_of > after and name in w.by_plan
    )


def estimated_use(reported: float, own: float, since: float, capacity: float) -> float:
    """The used fraction of a window now: u = clamp(own/c, p, p + 0.01) + since/c.

    Upstreams report whole percents at the head of an answer. `reported` is that fraction p, `own` the credits we metered in this
    window up to the report, `since` those metered after it. Use by others shows in p and wins.
    """
    return min(max(own / capacity, reported), reported + 0.01) + since / capacity
