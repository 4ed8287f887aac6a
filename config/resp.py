"""RESP over one auto-pipelining asyncio connection: the client class behind `config.redis`, which is the door to it.

Commands issued in one tick of the loop leave in one write, so independent callers share a round trip without knowing of
each other. Built on hiredis.Reader because a general client costs more per call than the admission script itself.
"""

import asyncio
import logging
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import hiredis

from config.errors import DomainError

logger = logging.getLogger(__name__)

Argument: TypeAlias = str | bytes | int
Command: TypeAlias = Sequence[Argument]
Callback: TypeAlias = Callable[["Redis"], Awaitable[None]]

CONNECT_TIMEOUT_SECONDS = 2.0
REPLY_TIMEOUT_SECONDS = 5.0
BACK_OFF_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)

scripts: dict[str, str] = {}
"""Lua sources by digest: loaded on every new connection before anything else is sent."""

PENDING = object()
"""What a reader of replies gives when it needs more bytes."""

# Error replies that say "this server cannot serve now", not "this command is wrong".
NOT_SERVING = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "OOM", "MISCONF", "NOAUTH", "BUSY ", "NOREPLICAS")
# The ones after which another connection may reach a server that can.
_WRONG_SERVER = ("READONLY", "MASTERDOWN", "NOAUTH")


class RedisUnavailable(DomainError):
    """Redis does not answer, or answers that it cannot serve. Never an open gate: the edge makes 503 of it.

    `was_sent`: the command had been written, so it may have run.
    """

    code: ClassVar[str] = "degraded"
    status: ClassVar[int] = 503

    def __init__(self, reason: str, *, was_sent: bool = False) -> None:
        super().__init__("The gateway cannot count usage at the moment. Try again in a few seconds.", reason=reason)
        self.was_sent = was_sent


class ReplyError(Exception):
    """An error reply to one command, e.g. from a script given bad arguments."""


class ProtocolError(Exception):
    """The peer does not speak RESP."""


_pack = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)


def packed(*commands: Command) -> bytes:
    """Commands as the wire carries them."""
    return b"".join([_pack(command if type(command) is tuple else tuple(command)) for command in commands])


def reader() -> "hiredis.Reader":
    """Bytes to replies; error replies come out as ReplyError."""
    return hiredis.Reader(protocolError=ProtocolError, replyError=ReplyError, notEnoughData=PENDING)


@dataclass(frozen=True, slots=True)
class Address:
    """Where REDIS_URL points: a host and port (with TLS for rediss) or a unix socket, and the login."""

    host: str
    port: int
    path: str | None
    tls: bool
    username: str | None
    password: str | None = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> "Address":
        parts = urlsplit(url)
        username = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password else None
        if parts.scheme == "unix":
            return cls("", 0, parts.path, False, username, password)
        return cls(parts.hostname or "127.0.0.1", parts.port or 6379, None, parts.scheme == "rediss", username, password)

    def login(self) -> list[Command]:
        if self.password is None:
            return []
        return [("AUTH", self.username, self.password) if self.username else ("AUTH", self.password)]


class _Slot:
    """Who waits for the next `count` replies; `replies` is None for a single call."""

    __slots__ = ("count", "future", "replies", "since")

    def __init__(self, future: "asyncio.Future[Any]", count: int, replies: list[Any] | None) -> None:
        self.future = future
        self.count = count
        self.replies = replies
        self.since = 0.0

    def take(self, reply: Any) -> bool:
        """Book one reply; True once all have come."""
        self.count -= 1
        if self.replies is not None:
            self.replies.append(reply)
        if self.count:
            return False
        if not self.future.done():
            self._resolve(reply)
        return True

    def _resolve(self, reply: Any) -> None:
        for answer in (reply,) if self.replies is None else self.replies:
            if isinstance(answer, ReplyError) and str(answer).startswith(NOT_SERVING):
                self.future.set_exception(RedisUnavailable(str(answer).split(" ", 1)[0]))
                return
        if self.replies is not None:
            self.future.set_result(self.replies)
        elif isinstance(reply, ReplyError):
            self.future.set_exception(reply)
        else:
            self.future.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Connection(asyncio.Protocol):
    """Bytes to replies, replies to slots, in order."""

    def __init__(self, lost: "Callable[[_Connection], None]") -> None:
        self.transport: asyncio.WriteTransport | None = None
        self.unanswered: deque[_Slot] = deque()
        self._lost = lost
        self._reader = reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        replies, unanswered = self._reader, self.unanswered
        try:
            replies.feed(data)
            while (reply := replies.gets()) is not PENDING:
                if unanswered[0].take(reply):
                    unanswered.popleft()
                if isinstance(reply, ReplyError) and str(reply).startswith(_WRONG_SERVER):
                    self.abort()
        except (ProtocolError, IndexError):
            logger.warning("Redis sent something that is not an answer")
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        failed, self.unanswered = self.unanswered, deque()
        for slot in failed:
            slot.fail(RedisUnavailable("connection lost", was_sent=True))
        self._lost(self)

    def send(self, data: bytes, slots: Sequence[_Slot], now: float) -> None:
        assert self.transport is not None
        for slot in slots:
            slot.since = now
        self.unanswered.extend(slots)
        self.transport.write(data)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Redis:
    """One connection of one event loop. Connects at the first command, then stays connected until `close`."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        reply_timeout: float = REPLY_TIMEOUT_SECONDS,
    ) -> None:
        self.round_trips = 0
        self.connects = 0
        self._loop = asyncio.get_running_loop()
        self._address = Address.parse(url)
        self._connect_timeout = connect_timeout
        self._reply_timeout = reply_timeout
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._outgoing: list[bytes] = []
        self._queued: list[_Slot] = []
        self._flush_due = False
        self._watchdog: asyncio.TimerHandle | None = None
        self._callbacks: list[Callback] = []
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Redis connected={self.is_connected} round_trips={self.round_trips}>"

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def is_closed(self) -> bool:
        return self._closed

    def call(self, *args: Argument) -> "asyncio.Future[Any]":
        """One command. Awaiting it gives the reply; raises ReplyError for an error reply, RedisUnavailable.

        The command is issued at once, awaited or not. Blocking commands do not belong here.
        """
        return self._issue(packed(args), 1, None)

    async def batch(self, commands: Sequence[Command]) -> list[Any]:
        """Many commands in one write. Error replies stand in the list as ReplyError. Raises RedisUnavailable.

        A script that the server does not know is loaded and only its command repeated.
        """
        if not commands:
            return []
        data = packed(*commands)
        replies: list[Any] = await self._issue(data, len(commands), [])
        lost = [i for i, reply in enumerate(replies) if isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT")]
        if lost:
            again: list[Command] = [("SCRIPT", "LOAD", scripts[str(commands[i][1])]) for i in lost]
            again += [commands[i] for i in lost]
            repeated = await self._issue(packed(*again), len(again), [])
            for i, reply in zip(lost, repeated[len(lost) :], strict=True):
                replies[i] = reply
        return replies

    def on_connect(self, callback: Callback) -> None:
        """`callback(self)` runs as a task after every connect, the first included; its errors are logged."""
        self._callbacks.append(callback)

    async def close(self) -> None:
        """Drop the connection; what still waits fails. Safe to call twice."""
        self._closed = True
        tasks = [task for task in (self._connecting, *self._running) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._connection is not None:
            self._connection.abort()
            # The transport closes its socket in the next tick of the loop.
            await asyncio.sleep(0)
        self._fail_queued("closed")

    # -- sending

    def _issue(self, data: bytes, count: int, replies: list[Any] | None) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._closed:
            future.set_exception(RedisUnavailable("closed"))
            return future
        self._outgoing.append(data)
        self._queued.append(_Slot(future, count, replies))
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._flush_due = False
        if not self._queued or self._closed:
            return
        if self._connection is None:
            self._start_connecting()
            return
        data, slots = b"".join(self._outgoing), self._queued
        self._outgoing, self._queued = [], []
        self.round_trips += 1
        self._connection.send(data, slots, self._loop.time())
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._reply_timeout, self._watch)

    def _watch(self) -> None:
        """Abort a connection whose oldest command waits too long: its answer may never come."""
        self._watchdog = None
        connection = self._connection
        if connection is None or not connection.unanswered:
            return
        waited = self._loop.time() - connection.unanswered[0].since
        if waited >= self._reply_timeout:
            logger.warning("Redis did not answer in time", extra={"seconds": round(waited, 3)})
            connection.abort()
            return
        self._watchdog = self._loop.call_later(self._reply_timeout - waited, self._watch)

    def _fail_queued(self, reason: str) -> None:
        slots, self._queued, self._outgoing = self._queued, [], []
        for slot in slots:
            slot.fail(RedisUnavailable(reason))

    # -- connecting

    def _start_connecting(self) -> None:
        if self._connecting is None and not self._closed:
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        attempt = 0
        try:
            while True:
                try:
                    async with asyncio.timeout(self._connect_timeout):
                        connection = await self._open()
                    break
                except (OSError, TimeoutError, RedisUnavailable, ReplyError) as error:
                    logger.warning("Redis cannot be reached", extra={"reason": type(error).__name__, "attempt": attempt + 1})
                    self._fail_queued("cannot connect")
                    pause = BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS) - 1)]
                    await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311
                    attempt += 1
        finally:
            self._connecting = None
        if connection.transport is None:
            self._start_connecting()
            return
        self._connection = connection
        self.connects += 1
        for callback in self._callbacks:
            self._run(callback(self))
        self._flush()

    async def _open(self) -> _Connection:
        """A connection that is logged in, serves, and knows all scripts."""
        address = self._address
        loop = self._loop
        if address.path is not None:
            _, connection = await loop.create_unix_connection(lambda: _Connection(self._lost), address.path)
        else:
            context = ssl.create_default_context() if address.tls else None
            _, connection = await loop.create_connection(lambda: _Connection(self._lost), address.host, address.port, ssl=context)
        try:
            # PING first among the rest: a server that still loads its data must not be given traffic.
            commands: list[Command] = [*address.login(), ("PING",)]
            commands += [("SCRIPT", "LOAD", source) for source in scripts.values()]
            future: asyncio.Future[Any] = loop.create_future()
            slot = _Slot(future, len(commands), [])
            connection.send(packed(*commands), [slot], loop.time())
            for reply in await future:
                if isinstance(reply, ReplyError):
                    raise reply
        except BaseException:
            connection.abort()
            raise
        return connection

    def _lost(self, connection: _Connection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        # Reconnect without waiting for a command: renewals and re-sent settlements hang on `on_connect`.
        self._start_connecting()

    def _run(self, work: Awaitable[None]) -> None:
        task = self._loop.create_task(_logged(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)


async def _logged(work: Awaitable[None]) -> None:
    try:
        await work
    except RedisUnavailable:
        logger.info("Redis went away again before a callback of its connection was done")
    except Exception:
        logger.exception("A callback of the Redis connection failed")
