"""From the engine's `NO` to an error that says whose limit it is, how much of it is used, and when there is room again."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from billing import credits
from config.snapshot import Snapshot
from quotas import errors, records, windows
from quotas.views import METRIC_NAMES, Asked, View

_PHRASES = {
    "5h": "the last 5 hours",
    "1d": "the last 24 hours",
    "7d": "the last 7 days",
    "30d": "the last 30 days",
    "day": "today",
    "week": "this week",
    "month": "this month",
    "period": "this plan period",
}
_NOUNS = {"credits": "credits", "tokens": "tokens", "requests": "requests"}


def shown(metric: str, amount: int) -> str | int:
    """As JSON carries it: credits as decimal text, counts as they are."""
    return credits.text(amount) if metric == "credits" else amount


def refusal(snapshot: Snapshot, view: View, answer: list[Any], *, need: dict[int, int], now_s: int) -> errors.Refused:
    """`answer`: record, metric, code, limit, used (held included), held, free_at. `need` by metric."""
    record, metric, code, limit, used, held, free_at, *rest = answer
    name = METRIC_NAMES[metric]
    if code == records.PLAN:
        resets_at = None if free_at < 0 else view.fund_end
        return _plan(snapshot, view, limit, used - held, held, need[records.CREDITS], resets_at, now_s)
    if code == records.PLAN_ROLLING:
        resets_at = free_at if free_at > 0 else None
        if rest and rest[0] and resets_at is not None:
            # The period's quota is used up as well, so both must have room again.
            resets_at = max(resets_at, view.fund_end)
        return _plan(snapshot, view, limit, used - held, held, need[records.CREDITS], resets_at, now_s, is_rolling=True)
    asked = _asked(view, record, metric, code, limit)
    scope, scope_name = asked.limit.scope, asked.limit.target_name or snapshot.accounts.name
    if metric >= records.REQUESTS:
        held = 0
    used = max(0, used - held)
    amounts = {key: shown(name, value) for key, value in (("limit", limit), ("used", used), ("held", held), ("need", need[metric]))}
    facts: dict[str, Any] = {
        "scope": scope,
        "scope_name": scope_name,
        "metric": name,
        "window": asked.limit.window,
        "limit": limit,
        "used": used,
        "held": held,
        "need": need[metric],
        "shown": amounts,
        "limit_uuid": asked.limit.uuid,
        "seconds": asked.seconds,
    }
    whose = f"the organization {scope_name}" if scope == "organization" else f"the {scope} {scope_name}"
    models = f" for {asked.limit.models}" if asked.limit.models else ""
    if metric == records.CONCURRENT:
        message = f"Too many requests at once: {whose} may run {limit}{models}."
        return errors.ConcurrencyReached(message, **facts, resets_at=None, retry_after=1)
    if metric in (records.PER_MINUTE, records.PER_SECOND):
        resets_at = free_at if free_at > 0 else None
        message = (
            f"Too many requests: {whose} may make {limit} per {'minute' if metric == records.PER_MINUTE else 'second'}{models}."
        )
        return errors.RateExceeded(message, **facts, resets_at=resets_at, retry_after=_wait(resets_at, now_s))
    resets_at = _resets_at(asked, free_at)
    message = (
        f"Limit reached: {whose} may use {amounts['limit']} {_NOUNS[name]} {_over(asked.limit.window)}{models}; "
        f"{amounts['used']} used{_and_held(held, amounts['held'])}.{_when(snapshot, resets_at)}"
    )
    return errors.LimitReached(message, **facts, resets_at=resets_at, retry_after=_wait(resets_at, now_s))


def _plan(
    snapshot: Snapshot,
    view: View,
    limit: int,
    used: int,
    held: int,
    need: int,
    resets_at: int | None,
    now_s: int,
    *,
    is_rolling: bool = False,
) -> errors.LimitReached:
    pairs = (("limit", limit), ("used", used), ("held", held), ("need", need))
    amounts = {key: shown("credits", value) for key, value in pairs}
    days = round((view.fund_end - view.fund_start) / 86400)
    span = f"in any {'7' if days < 14 else '30'} days" if is_rolling else "a period"
    whose = "your seat's" if view.subject == "member" else f"{snapshot.accounts.name}'s"
    message = (
        f"Plan quota reached: {whose} plan {view.plan} grants {amounts['limit']} credits {span}; "
        f"{amounts['used']} used{_and_held(held, amounts['held'])}.{_when(snapshot, resets_at)}"
    )
    return errors.LimitReached(
        message,
        scope="plan",
        scope_name=view.plan,
        metric="credits",
        window="period",
        limit=limit,
        used=used,
        held=held,
        need=need,
        resets_at=resets_at,
        retry_after=_wait(resets_at, now_s),
        shown=amounts,
        seconds=windows.seconds("period", view.fund_end - view.fund_start),
    )


def _asked(view: View, record: str, metric: int, code: int, limit: int) -> Asked:
    window = "period" if code % 16 == records.PERIOD else windows.name_of(code)
    for asked in view.asked:
        if asked.record == record and asked.metric == metric and asked.limit.window == window and asked.amount == limit:
            return asked
    raise LookupError(f"the engine named a limit that was not asked: {record} {metric} {code}")


def _resets_at(asked: Asked, free_at: int) -> int | None:
    if free_at < 0:
        return None
    return free_at if free_at > 0 else asked.ends_at


def _wait(resets_at: int | None, now_s: int) -> int:
    """Retry-After in whole seconds, at least 1. Without a reset there is nothing to wait for: an hour keeps clients calm."""
    return 3600 if resets_at is None else max(1, resets_at - now_s)


def _over(window: str) -> str:
    phrase = _PHRASES[window]
    return f"in {phrase}" if phrase.startswith("the last") else phrase


def _and_held(held: int, text: str | int) -> str:
    return f", {text} held by running requests" if held else ""


def _when(snapshot: Snapshot, resets_at: int | None) -> str:
    if resets_at is None:
        return " This request does not fit into it at all."
    zone = ZoneInfo(snapshot.accounts.timezone)
    return f" Room again from {datetime.fromtimestamp(resets_at, zone):%Y-%m-%d %H:%M} ({snapshot.accounts.timezone})."
