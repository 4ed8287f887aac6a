"""How accounts are: windows that upstreams report, and what follows from a failed attempt."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from config import snapshot
from config.redis import Redis
from routing import accounts, failures, live
from routing.failures import Failure, Kind, classify, unreachable
from routing.snapshots import AccountSnapshot, PoolSnapshot

__all__ = ["Failure", "Kind", "Observation", "classify", "observe_headers", "report", "unreachable", "windows"]

logger = logging.getLogger(__name__)

SLOTS = ("primary", "secondary")
LONGEST_WINDOW_MINUTES = 60 * 24 * 40

_observe = live.script("observe")
_report = live.script("report")


@dataclass(frozen=True, slots=True)
class Observation:
    """One window of a response head. `resets_at` unix seconds, 0 when the upstream did not say."""

    minutes: int
    used_percent: float
    resets_at: int


def windows(headers: Mapping[str, str], now: float) -> list[Observation]:
    """The windows in a head, told apart by their length: upstreams put the only one they have into the first slot.

    Names in lower case; `now` in unix seconds. A window without a length, or with a reset that cannot be, is left out.
    """
    found: dict[int, Observation] = {}
    for slot in SLOTS:
        try:
            used = float(headers[f"x-codex-{slot}-used-percent"])
            minutes = int(headers[f"x-codex-{slot}-window-minutes"])
        except (KeyError, ValueError):
            continue
        if not 0 <= used <= 1000 or not 0 < minutes <= LONGEST_WINDOW_MINUTES:
            continue
        resets_at: int | None = 0
        told = headers.get(f"x-codex-{slot}-reset-at")
        after = headers.get(f"x-codex-{slot}-reset-after-seconds")
        if told:
            resets_at = failures.valid_reset(told, now)
        elif after:
            try:
                resets_at = failures.valid_reset(now + float(after), now)
            except ValueError:
                resets_at = None
        if resets_at is not None:
            found[minutes] = Observation(minutes, used, resets_at)
    return list(found.values())


async def observe_headers(
    redis: Redis, pool: PoolSnapshot, account: AccountSnapshot, headers: Mapping[str, str], now: datetime
) -> list[Observation]:
    """Stores the windows of a response head; the newest observation wins. Returns what the head said.

    An account that reports room in every window is not exhausted any more, whatever was believed before. For a 429 call
    this before `report`, whose word on exhaustion then stands. Raises RedisUnavailable.
    """
    seconds = now.timestamp()
    seen = windows(headers, seconds)
    if not seen:
        return seen
    has_room = all(window.used_percent < 100 for window in seen)
    args: list[str | int] = [account.account_id, round(seconds * 1000), 1 if has_room else 0]
    for window in seen:
        args += [window.minutes, f"{window.used_percent:g}", window.resets_at]
    await _observe(redis, [live.live_key(pool)], args)
    return seen


async def report(
    redis: Redis, pool: PoolSnapshot, account: AccountSnapshot, failure: Failure, *, now_ms: int | None = None
) -> None:
    """Books a failed attempt, so that no process picks the account before it can serve again.

    `now_ms` is the server's clock as an admission told it; without it the server is asked in the same step. For a failure
    that takes the account out (`sign_in`) the database is told as well, in a thread. Raises RedisUnavailable.
    """
    if failure.cooldown_seconds is None and failure.resets_at is None:
        return
    cooldown_ms = round((failure.cooldown_seconds or 0) * 1000)
    await _report(redis, [live.live_key(pool)], [account.account_id, now_ms or 0, cooldown_ms, failure.resets_at or 0])
    logger.info(
        "account failed",
        extra={"account": account.uuid, "kind": failure.kind.value, "upstream_code": failure.code, "resets_at": failure.resets_at},
    )
    if failure.sign_in:
        await snapshot.in_thread(accounts.need_sign_in, account.account_id, failure.code)
