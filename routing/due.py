"""When which account is polled next: one sorted set of all installs' processes, account ids by the server's milliseconds.

A poll puts its account back for the next (`routing.polls`); what cannot wait is moved forward (`soon`, `nudge`); `fill` adds who is
missing, as after Redis lost its memory.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from config import redis as weir_redis
from config.redis import Redis
from routing import live

logger = logging.getLogger(__name__)

DUE = "routing:polls:due"
TAKEN_MS = 120_000
"""Longer than any poll takes: who is being polled is not due again; one whose process died is, after that."""

_take = live.script("due")


def server_ms() -> int:
    """The server's clock. Raises RedisUnavailable."""
    with weir_redis.translated():
        seconds, micros = weir_redis.sync_client().time()
    return int(seconds) * 1000 + int(micros) // 1000


def take() -> int | None:
    """The account that has been due for longest; nobody else is given it for TAKEN_MS. None if no poll is due.

    Raises RedisUnavailable, ReplyError.
    """
    found = _take.run(weir_redis.sync_client(), [DUE], [TAKEN_MS])
    return int(found) if found else None


def put(account_id: int, at_ms: int) -> None:
    """Its next poll is at that time, and no earlier. Raises RedisUnavailable."""
    with weir_redis.translated():
        weir_redis.sync_client().zadd(DUE, {str(account_id): at_ms})


def drop(account_id: int) -> None:
    """It is not polled any more. Raises RedisUnavailable."""
    with weir_redis.translated():
        weir_redis.sync_client().zrem(DUE, str(account_id))


def soon(account_id: int) -> None:
    """It is polled next. Where Redis does not answer it waits for its turn: nothing is lost but time."""
    try:
        with weir_redis.translated():
            weir_redis.sync_client().zadd(DUE, {str(account_id): 0}, lt=True)
    except (weir_redis.RedisUnavailable, weir_redis.ReplyError):
        logger.warning("poll not moved forward", extra={"account_id": account_id})


def nudge(redis: Redis, account_id: int) -> None:
    """As `soon`, by the request path's client and without waiting for it: written with the command that follows."""
    redis.call("ZADD", DUE, "LT", 0, account_id).add_done_callback(_heard)


def _heard(nudged: "asyncio.Future[Any]") -> None:
    if not nudged.cancelled() and nudged.exception() is not None:
        logger.warning("poll not moved forward")


def missing(account_ids: Iterable[int]) -> list[int]:
    """Those that no poll is planned for. Raises RedisUnavailable."""
    wanted = list(account_ids)
    if not wanted:
        return []
    with weir_redis.translated():
        scores = weir_redis.sync_client().zmscore(DUE, [str(account_id) for account_id in wanted])
    return [account_id for account_id, score in zip(wanted, scores, strict=True) if score is None]


def fill(planned: Mapping[int, int]) -> None:
    """Plans polls (account id: server milliseconds) for those that have none yet. Raises RedisUnavailable."""
    if planned:
        with weir_redis.translated():
            weir_redis.sync_client().zadd(DUE, {str(account_id): at for account_id, at in planned.items()}, nx=True)
