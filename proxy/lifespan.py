"""What a web process opens at its start and closes at its end: clients, renewals, the ear for changes."""

import asyncio
import gc
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings

from config import redis as weir_redis
from config import snapshot
from config.clock import utc_now
from config.errors import DomainError
from config.redis import Redis
from proxy.guard import Guard
from proxy.leases import LeaseKeeper
from proxy.upstream import Client
from proxy.upstream_socket import SocketClient
from quotas import admission
from quotas.holds import Renewer

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Resources:
    """What the requests of one event loop share."""

    redis: Redis
    upstream: Client
    renewer: Renewer
    leases: LeaseKeeper
    sockets: SocketClient
    is_draining: bool = False
    running: int = 0
    """Proxied requests between their first byte and their settlement."""
    _tasks: "set[asyncio.Future[Any]]" = field(default_factory=set)
    _declined: dict[int, float] = field(default_factory=dict)
    """Accounts whose upstream speaks no WebSocket, until when that is believed, by the loop's clock."""

    def now(self) -> datetime:
        return utc_now()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs `work` beside the request; an error is logged, and cancelling the request does not reach it."""
        task = asyncio.get_running_loop().create_task(work)
        self.keep(task)
        return task

    def keep(self, work: "asyncio.Future[Any]") -> None:
        """Minds what is under way already: an error is logged, and a process that ends waits for it."""
        self._tasks.add(work)
        work.add_done_callback(self._done)

    def _done(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            level = logging.WARNING if isinstance(error, DomainError) else logging.ERROR
            logger.log(level, "work beside a request failed", exc_info=error)

    def decline_socket(self, account_id: int, seconds: float) -> None:
        """The account serves over HTTP only, for so long."""
        self._declined[account_id] = asyncio.get_running_loop().time() + seconds

    def without_socket(self) -> frozenset[int]:
        """Accounts that serve over HTTP only."""
        if not self._declined:
            return frozenset()
        now = asyncio.get_running_loop().time()
        self._declined = {account_id: until for account_id, until in self._declined.items() if until > now}
        return frozenset(self._declined)

    async def finish(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)


GC_THRESHOLDS = (10_000, 10, 10)

_resources: Resources | None = None
_listener: asyncio.Task[None] | None = None


def resources() -> Resources:
    """Those of this process. Raises RuntimeError before `startup`."""
    if _resources is None:
        raise RuntimeError("the lifespan has not begun: the server must run it")
    return _resources


async def startup() -> None:
    """Opens everything; connects to nothing yet, so a process starts while Redis is away."""
    global _resources, _listener
    redis = weir_redis.client()
    guard = Guard()
    made = Resources(
        redis=redis,
        upstream=Client(
            connect_seconds=settings.UPSTREAM_CONNECT_TIMEOUT_SECONDS,
            header_seconds=settings.UPSTREAM_HEADER_TIMEOUT_SECONDS,
            idle_seconds=settings.UPSTREAM_IDLE_TIMEOUT_SECONDS,
            guard=guard,
        ),
        renewer=admission.renewer(redis),
        leases=LeaseKeeper(redis, every_seconds=settings.HOLD_RENEW_SECONDS),
        sockets=SocketClient(
            connect_seconds=settings.UPSTREAM_CONNECT_TIMEOUT_SECONDS,
            header_seconds=settings.UPSTREAM_HEADER_TIMEOUT_SECONDS,
            idle_seconds=settings.UPSTREAM_IDLE_TIMEOUT_SECONDS,
            guard=guard,
        ),
    )
    _spare_the_collector()
    made.renewer.start()
    made.leases.start()
    _listener = asyncio.get_running_loop().create_task(snapshot.cache().listen())
    _resources = made


def _spare_the_collector() -> None:
    """Full collections would walk all of Django again and again; what is loaded by now stays until the end anyway.

    Measured: a sixth of the CPU of a short request.
    """
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)


async def shutdown() -> None:
    """Takes no new request, lets settlements arrive, closes everything. Safe to call twice."""
    global _resources, _listener
    ending, _resources = _resources, None
    if ending is None:
        return
    ending.is_draining = True
    await ending.finish(settings.DRAIN_SECONDS)
    remaining = await admission.finish(ending.redis, timeout_seconds=settings.DRAIN_SECONDS)
    if remaining:
        logger.error("settlements were not answered before the end; their holds become orphans", extra={"count": remaining})
    if _listener is not None:
        _listener.cancel()
        await asyncio.gather(_listener, return_exceptions=True)
        _listener = None
    await ending.renewer.stop()
    await ending.leases.stop()
    await ending.upstream.close()
    await ending.sockets.close()
    await ending.redis.close()


def drain() -> None:
    """From now on new requests are refused; running ones end as they may."""
    if _resources is not None:
        _resources.is_draining = True
