"""How accounts are: windows that upstreams report, and what follows from a failed attempt."""

import logging
from collections.abc import Mapping
from datetime import datetime
from functools import partial

from config import redis as weir_redis
from config import snapshot
from config.redis import Redis
from routing import accounts, due, live, observations
from routing.failures import Failure, Kind, classify, unreachable
from routing.observations import Observation, Told
from routing.observations import of_headers as windows
from routing.snapshots import CHATGPT, AccountSnapshot, PoolSnapshot

__all__ = [
    "Failure",
    "Kind",
    "Observation",
    "Told",
    "classify",
    "observe_event",
    "observe_headers",
    "report",
    "store",
    "unreachable",
    "windows",
]

logger = logging.getLogger(__name__)

_observe = live.script("observe")
_report = live.script("report")


async def observe_headers(
    redis: Redis, pool: PoolSnapshot, account: AccountSnapshot, headers: Mapping[str, str], now: datetime
) -> list[Observation]:
    """Stores the windows of a response head; the newest observation wins. Returns what the head said.

    An account that reports room in every window is not exhausted any more, whatever was believed before. For a 429 call
    this before `report`, whose word on exhaustion then stands. Raises RedisUnavailable.
    """
    seen = windows(headers, now.timestamp())
    await _stored(redis, pool, account, Told(tuple(seen)), now)
    return seen


async def observe_event(
    redis: Redis, pool: PoolSnapshot, account: AccountSnapshot, data: bytes, now: datetime
) -> list[Observation]:
    """Stores the windows of a `codex.rate_limits` event, whose JSON text is `data`, as those of a head; any other says nothing.

    For the events of an event stream and the frames of a WebSocket alike. Raises RedisUnavailable.
    """
    told = observations.of_event(data, now.timestamp())
    if told is None:
        return []
    await _stored(redis, pool, account, told, now)
    return list(told.windows)


async def _stored(redis: Redis, pool: PoolSnapshot, account: AccountSnapshot, told: Told, now: datetime) -> None:
    if told.windows:
        await _observe(redis, [live.live_key(pool)], _observation(account.account_id, told, round(now.timestamp() * 1000)))


def store(key: str, account_id: int, told: Told, *, observed_ms: int) -> None:
    """What a usage poll said, by the sync client, under a pool's live key. `observed_ms`: the server's clock when it was asked, so
    that nothing that happened since is undone. An account that says it serves nothing, without a full window that says until when,
    cools for a minute. Raises RedisUnavailable, ReplyError."""
    client = weir_redis.sync_client()
    if told.windows:
        _observe.run(client, [key], _observation(account_id, told, observed_ms))
    if told.is_refusing and all(window.used_percent < 100 for window in told.windows):
        _report.run(client, [key], [account_id, observed_ms, live.UNKNOWN_RESET_BLOCKS_MS, 0])


def _observation(account_id: int, told: Told, observed_ms: int) -> list[str | int]:
    args: list[str | int] = [account_id, observed_ms, 1 if told.has_room else 0]
    for window in told.windows:
        args += [window.minutes, f"{window.used_percent:g}", window.resets_at]
    return args


async def report(
    redis: Redis,
    pool: PoolSnapshot,
    account: AccountSnapshot,
    failure: Failure,
    *,
    now_ms: int | None = None,
    version: int | None = None,
) -> int | None:
    """Books a failed attempt, so that no process picks the account before it can serve again. Returns the server's clock then, ms;
    None if there was nothing to book.

    `now_ms` is the server's clock as an admission told it; without it the server is asked in the same step. For a failure
    that takes the account out (`sign_in`) the database is told as well, in a thread; with `version`, the credential that was
    refused, only while it is still that one. Raises RedisUnavailable.
    """
    if failure.cooldown_seconds is None and failure.resets_at is None:
        return None
    cooldown_ms = round((failure.cooldown_seconds or 0) * 1000)
    if failure.kind is Kind.USAGE_LIMIT and account.kind == CHATGPT:
        # Its other windows, and whether somebody grants a reset, only a poll tells. In one write with what follows.
        due.nudge(redis, account.account_id)
    booked_ms = await _report(redis, [live.live_key(pool)], [account.account_id, now_ms or 0, cooldown_ms, failure.resets_at or 0])
    logger.info(
        "account failed",
        extra={"account": account.uuid, "kind": failure.kind.value, "upstream_code": failure.code, "resets_at": failure.resets_at},
    )
    if failure.sign_in:
        await snapshot.in_thread(partial(accounts.need_sign_in, account.account_id, failure.code, version=version))
    return int(booked_ms)
