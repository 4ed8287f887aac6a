"""Beat's scheduler. Any number of beat processes may run; the one that holds the lock in Redis sends what is due."""

import logging
from typing import Any

import redis
from celery.beat import PersistentScheduler

from config import redis as weir_redis

logger = logging.getLogger(__name__)

LOCK = "config:beat"
LOCK_SECONDS = 30
LOOK_SECONDS = 5.0
"""Between two looks: a third of the lock's life at most, or a holder could lose it while it waits."""


class LockedScheduler(PersistentScheduler):
    """Sends nothing while another process holds the lock, or while Redis does not answer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._lock = weir_redis.sync_client().lock(LOCK, timeout=LOCK_SECONDS, thread_local=False)
        self._holds = False
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Seconds until the next look."""
        if not self._keep():
            return LOOK_SECONDS
        return min(float(super().tick(*args, **kwargs)), LOOK_SECONDS)

    def _keep(self) -> bool:
        held_before = self._holds
        try:
            self._holds = self._reacquire() if self._holds else bool(self._lock.acquire(blocking=False))
        except redis.exceptions.RedisError:
            logger.warning("beat cannot reach redis", exc_info=True)
            self._holds = False
        if self._holds != held_before:
            logger.info("beat holds the lock" if self._holds else "beat lost the lock")
        return self._holds

    def _reacquire(self) -> bool:
        try:
            return bool(self._lock.reacquire())
        except redis.exceptions.LockError:
            return bool(self._lock.acquire(blocking=False))

    def close(self) -> None:
        super().close()
        if self._holds:
            self._holds = False
            try:
                self._lock.release()
            except redis.exceptions.RedisError:
                # It lapses by itself.
                logger.info("beat could not release its lock")
