"""Slots on accounts that this process holds: renewed while their requests run."""

import asyncio
import logging
from typing import Any

from config.redis import Redis, RedisUnavailable
from routing import selection
from routing.selection import Lease

logger = logging.getLogger(__name__)


def _heard(release: "asyncio.Future[Any]") -> None:
    if not release.cancelled() and release.exception() is not None:
        logger.warning("a slot was not given back; it lapses")


class LeaseKeeper:
    """Renews all live leases in one write every `every_seconds`. A lease that is not renewed lapses (K11)."""

    def __init__(self, redis: Redis, *, every_seconds: float) -> None:
        self._redis = redis
        self._every_seconds = every_seconds
        self._leases: set[Lease] = set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._leases)

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def add(self, lease: Lease) -> None:
        self._leases.add(lease)

    def give_back(self, lease: Lease) -> None:
        """Frees the slot; if Redis does not hear it, the slot lapses. Nothing waits for it."""
        self._leases.discard(lease)
        selection.release(self._redis, lease).add_done_callback(_heard)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_seconds)
            if not self._leases:
                continue
            try:
                await self._redis.batch(selection.renew_commands(list(self._leases)))
            except RedisUnavailable:
                logger.warning("slots were not renewed: Redis does not answer", extra={"count": len(self._leases)})
            except Exception:
                logger.exception("slots were not renewed")
