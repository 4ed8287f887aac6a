"""What a web process opens at its start and closes at its end: clients, renewals, the ear for changes."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings

from config import collector, snapshot
from config import redis as weir_redis
from config.clock import utc_now
from config.errors import DomainError
from config.redis import Redis
from proxy.asgi import App, Receive, Scope, Send
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
    """What is new is refused."""
    is_cut: bool = False
    """What still runs ends now."""
    cuttable: set[asyncio.Timeout] = field(default_factory=set)
    """Around each attempt at an upstream; their expiry ends it."""
    _running: set[object] = field(default_factory=set)
    _at_drain: set[Callable[[], None]] = field(default_factory=set)
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

    @property
    def running(self) -> int:
        """Requests between their first byte and their settlement."""
        return len(self._running)

    def enter(self, request: object) -> None:
        self._running.add(request)

    def leave(self, request: object) -> None:
        self._running.discard(request)

    def on_drain(self, call: Callable[[], None]) -> Callable[[], None]:
        """`call()` once the process begins to drain, until what is returned is called."""
        self._at_drain.add(call)
        return lambda: self._at_drain.discard(call)

    def refuse(self) -> None:
        """From now on new requests are refused; running ones end as they may."""
        self.is_draining = True
        waiting, self._at_drain = self._at_drain, set()
        for call in waiting:
            call()

    def cut(self) -> None:
        """Ends what still runs: a stream by its failed event, another answer by a refusal; both owe what has been made."""
        if not self.is_cut:
            self.is_cut = True
            now = asyncio.get_running_loop().time()
            for leash in self.cuttable:
                leash.reschedule(now)

    async def drain(self, seconds: float) -> None:
        """Refuses what is new; ends when all that runs now has ended, or END_SECONDS after it was cut, which is after `seconds`."""
        self.refuse()
        mine = set(self._running)
        await self._until_ended(mine, seconds)
        self.cut()
        await self._until_ended(mine, END_SECONDS)

    async def _until_ended(self, requests: set[object], seconds: float) -> None:
        """Or cut while they run, or `seconds` have passed. Looks again and again, so that a request need not tell of its end."""
        was_cut, until = self.is_cut, asyncio.get_running_loop().time() + seconds
        while requests & self._running and asyncio.get_running_loop().time() < until:
            if self.is_cut and not was_cut:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def finish(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)


LOOK_SECONDS = 0.02
END_SECONDS = 3.0
"""For the last events of streams that were cut, and their settlements."""

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
    collector.spare()
    made.renewer.start()
    made.leases.start()
    _listener = asyncio.get_running_loop().create_task(snapshot.cache().listen())
    _resources = made


async def shutdown() -> None:
    """Takes no new request, lets settlements arrive, closes everything. Safe to call twice."""
    global _resources, _listener
    ending, _resources = _resources, None
    if ending is None:
        return
    ending.refuse()
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
        _resources.refuse()


def is_draining() -> bool:
    """Does this process take no new requests?"""
    return _resources is not None and _resources.is_draining


def counted(app: App) -> App:
    """The same, but a process that drains waits for what it has begun."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        request, opened = object(), _resources
        if opened is None:
            await app(scope, receive, send)
            return
        opened.enter(request)
        try:
            await app(scope, receive, send)
        finally:
            opened.leave(request)

    return handle
