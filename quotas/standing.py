"""How the limits and the plan of a key stand: what `peek` answers, put beside what was asked. Pure."""

from dataclasses import dataclass
from typing import Any

from config.snapshot import Snapshot
from quotas import records
from quotas.views import METRIC_NAMES, Asked, View
from quotas.windows import ROLLING_SECONDS

_FINE_SECONDS, _COARSE_SECONDS = 300, 10800


@dataclass(frozen=True, slots=True)
class LimitState:
    """One limit now. Amounts are micro-credits for the metric credits, else counts.

    `used` excludes what running requests hold; `remaining` is what a new request may still need, never below 0. `resets_at`: the
    unix second at which the window ends or, for a rolling one, at which all that is in it now has left at the latest; None for
    rates, concurrency, and rolling windows with nothing in them.
    """

    scope: str
    scope_name: str
    metric: str
    window: str
    limit: int
    used: int
    held: int
    remaining: int
    resets_at: int | None
    uuid: str = ""
    models: str = ""
    """The name of its model filter; "" for all models."""
    seconds: int = 0
    """How long its window is (`windows.seconds`); 0 for rates and concurrency."""
    is_starting: bool = False
    """Its filter lacks what was used before it existed: shown, not enforced yet."""


@dataclass(frozen=True, slots=True)
class PlanState:
    """The source that the key draws on, in its period [starts_at, ends_at); micro-credits, unix seconds."""

    plan: str
    subject: str
    quota: int
    used: int
    held: int
    remaining: int
    overdraft: int
    starts_at: int
    ends_at: int
    rolled: int | None = None
    """What the plan paid, and holds, in the rolling window of its length, which may not pass the quota either; None without one."""
    purchased: int = 0
    """Purchased credits left, that pay beyond the quota; 0 where the plan may not use them."""
    overage: int = 0
    """How much overage may still pay beyond both."""


@dataclass(frozen=True, slots=True)
class Usage:
    """`live`: requests of this key that run now. The key's own credits, tokens and requests of the plan period.

    `member_credits`: what all keys of the key's member used in it. `second`: when this was so, on the engine's clock.
    """

    limits: tuple[LimitState, ...]
    plan: PlanState
    live: int
    credits: int
    tokens: int
    requests: int
    member_credits: int = 0
    second: int = 0


@dataclass(frozen=True, slots=True)
class _Counted:
    """A record as peek tells it: sums by window position, 0 the plan period, as (credits, tokens, requests)."""

    live: int
    held_c: int
    held_t: int
    minute: int
    sums: tuple[tuple[int, int, int], ...]


def _counted(values: list[int]) -> _Counted:
    sums = [(values[4], values[5], values[6])]
    sums += [(values[at + 1], values[at + 2], values[at + 3]) for at in range(7, len(values), 4)]
    return _Counted(values[0], values[1], values[2], values[3], tuple(sums))


def read(snapshot: Snapshot, view: View, answer: list[Any]) -> Usage:
    """An `OK` of peek for `view`."""
    second, funding, (granted, spent, _) = answer[3], answer[4], answer[5]
    counted = {name: _counted(values) for name, values in zip(view.names, answer[6:], strict=True)}
    quota, used, held = funding[1], funding[4], funding[5]
    member, own = counted[view.member_record], counted[view.key_record]
    return Usage(
        limits=tuple(_state(snapshot, asked, counted[asked.record], second) for asked in view.asked),
        plan=PlanState(
            plan=view.plan,
            subject=view.subject,
            quota=quota,
            used=used,
            held=held,
            remaining=_remaining(quota, used + held, view, counted),
            overdraft=funding[9],
            starts_at=view.fund_start,
            ends_at=view.fund_end,
            rolled=counted[view.plan_record].sums[1][0] if view.is_plan_rolling else None,
            purchased=max(0, granted - spent) if funding[2] == 1 else 0,
            overage=max(0, funding[3] - funding[8]),
        ),
        live=own.live,
        credits=max(0, own.sums[0][0] - own.held_c),
        tokens=max(0, own.sums[0][1] - own.held_t),
        requests=own.sums[0][2],
        member_credits=max(0, member.sums[0][0] - member.held_c),
        second=second,
    )


def _remaining(quota: int, taken: int, view: View, counted: dict[str, _Counted]) -> int:
    """Of the plan alone: the period's rest, or the rolling window's if that is less."""
    if view.is_plan_rolling:
        taken = max(taken, counted[view.plan_record].sums[1][0])
    return max(0, quota - taken)


def _state(snapshot: Snapshot, asked: Asked, counted: _Counted, second: int) -> LimitState:
    held = 0
    if asked.metric == records.CONCURRENT:
        total = counted.live
    elif asked.metric == records.PER_MINUTE:
        total = counted.minute
    elif asked.metric == records.PER_SECOND:
        # A second is over before anybody has read of it.
        total = 0
    else:
        total = counted.sums[asked.position][asked.metric - 1]
        # Holds of an earlier window are held too, but not in this one's sum.
        held = min(total, (counted.held_c, counted.held_t, 0)[asked.metric - 1])
    resets_at = asked.ends_at
    window = asked.limit.window
    if window in ROLLING_SECONDS and total > 0:
        resets_at = empty_at(window, second)
    return LimitState(
        scope=asked.limit.scope,
        scope_name=asked.limit.target_name or snapshot.accounts.name,
        metric=METRIC_NAMES[asked.metric],
        window=window,
        limit=asked.amount,
        used=total - held,
        held=held,
        remaining=max(0, asked.amount - total),
        resets_at=resets_at,
        uuid=asked.limit.uuid,
        models=asked.limit.models,
        seconds=asked.seconds,
        is_starting=asked.is_starting,
    )


def empty_at(window: str, second: int) -> int:
    """The unix second at which all that is in a rolling window at `second` has left it at the latest."""
    bucket = _FINE_SECONDS if window in ("5h", "1d") else _COARSE_SECONDS
    return (second // bucket + ROLLING_SECONDS[window] // bucket + 1) * bucket
