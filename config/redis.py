"""Redis: the request path's client of each event loop, scripts, subscriptions; and the sync client for everything else.

What callers of the path's client (`config.resp`) rely on:

* a command that was written and lost its connection raises RedisUnavailable with `was_sent`, and may or may not have run:
  repeat it only if it can be repeated (every script of ours can);
* a command that was not written yet waits for the next attempt to connect, and fails with it;
* scripts known to `Script` are loaded before anything else is sent on a new connection.
"""

import asyncio
import contextlib
import hashlib
import logging
import random
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cache
from typing import Any, cast

import redis
from django.conf import settings

from config import resp
from config.resp import (
    BACK_OFF_SECONDS,
    CONNECT_TIMEOUT_SECONDS,
    NOT_SERVING,
    REPLY_TIMEOUT_SECONDS,
    Argument,
    Command,
    ProtocolError,
    Redis,
    RedisUnavailable,
    ReplyError,
)

__all__ = [
    "SHARDS",
    "Argument",
    "Command",
    "Redis",
    "RedisUnavailable",
    "ReplyError",
    "Script",
    "client",
    "shard",
    "subscribe",
    "sync_client",
    "translated",
]

logger = logging.getLogger(__name__)

SHARDS = 32
PING_SECONDS = 10.0


def shard(organization_id: int) -> str:
    """The hash tag that keeps an organization's keys in one slot: `{s07}` for 7, 39, ..."""
    return f"{{s{organization_id % SHARDS:02d}}}"


class Script:
    """A Lua script, sent by its digest; loaded at every connect, and loaded and repeated if the server lost it."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        resp.scripts[self.sha] = source

    def __repr__(self) -> str:
        return f"<Script {self.name} {self.sha[:8]}>"

    def command(self, keys: Sequence[Argument], args: Sequence[Argument]) -> tuple[Argument, ...]:
        """The command for `Redis.batch`, which repeats it too if the script is not loaded."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    async def __call__(self, client: "Redis", keys: Sequence[Argument], args: Sequence[Argument]) -> Any:
        """Run it. Raises ReplyError, RedisUnavailable."""
        command = self.command(keys, args)
        try:
            return await client.call(*command)
        except ReplyError as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
        return (await client.batch([("SCRIPT", "LOAD", self.source), command]))[1]

    def send(self, client: "Redis", keys: Sequence[Argument], args: Sequence[Argument]) -> "asyncio.Future[Any]":
        """The same without a task of its own: issued at once, awaited or not."""
        command = self.command(keys, args)
        future = asyncio.get_running_loop().create_future()

        def heard(reply: "asyncio.Future[Any]") -> None:
            if future.done():
                return
            error = reply.exception()
            if error is None:
                future.set_result(reply.result())
            elif isinstance(error, ReplyError) and str(error).startswith("NOSCRIPT"):
                client.call("SCRIPT", "LOAD", self.source).add_done_callback(asyncio.Future.exception)
                again = client.call(*command)
                again.add_done_callback(heard_again)
            else:
                future.set_exception(error)

        def heard_again(reply: "asyncio.Future[Any]") -> None:
            if future.done():
                reply.exception()
            elif (error := reply.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(reply.result())

        client.call(*command).add_done_callback(heard)
        return future

    def run(self, client: "redis.Redis", keys: Sequence[Argument], args: Sequence[Argument]) -> Any:
        """The sync twin, for pages, commands and tasks. Raises ReplyError, RedisUnavailable."""
        command = self.command(keys, args)
        send: Callable[..., Any] = client.execute_command
        with translated():
            try:
                return send(*command)
            except redis.exceptions.NoScriptError:
                client.script_load(self.source)
                return send(*command)


_clients: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Redis]" = weakref.WeakKeyDictionary()


def client() -> Redis:
    """The client of the running event loop; made at the first call. Whoever owns the loop closes it."""
    loop = asyncio.get_running_loop()
    found = _clients.get(loop)
    if found is None or found.is_closed:
        found = _clients[loop] = Redis(settings.REDIS_URL)
    return found


async def subscribe(channel: str, *, on_gap: Callable[[], None] | None = None) -> AsyncIterator[bytes]:
    """Messages of a channel, on a connection of its own, for ever: it reconnects with back-off.

    `on_gap` is called each time the subscription has (again) begun: messages before that moment may have been missed.
    Close the iterator (or cancel the task) to end it.
    """
    attempt = 0
    while True:
        try:
            async for message in _subscription(channel):
                attempt = 0
                if message is None:
                    if on_gap is not None:
                        on_gap()
                else:
                    yield message
        except (OSError, TimeoutError, ProtocolError, ReplyError) as error:
            logger.warning("Lost a subscription", extra={"channel": channel, "reason": type(error).__name__})
        await asyncio.sleep(BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS) - 1)] * random.uniform(0.75, 1.25))  # noqa: S311
        attempt += 1


async def _subscription(channel: str) -> AsyncIterator[bytes | None]:
    """One connection's messages; None when the server has confirmed the subscription. Ends or raises when it is lost."""
    address = resp.Address.parse(settings.REDIS_URL)
    async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
        if address.path is not None:
            reader, writer = await asyncio.open_unix_connection(address.path)
        else:
            context = ssl.create_default_context() if address.tls else None
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    replies = resp.reader()
    try:
        writer.write(resp.packed(*address.login(), ("SUBSCRIBE", channel)))
        is_pinged = False
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    data = await reader.read(65536)
            except TimeoutError:
                if is_pinged:
                    raise
                # A silent peer may be a dead one: it must answer this before the next silence.
                writer.write(resp.packed(("PING",)))
                is_pinged = True
                continue
            if not data:
                return
            is_pinged = False
            replies.feed(data)
            while (reply := replies.gets()) is not resp.PENDING:
                if isinstance(reply, ReplyError):
                    raise reply
                if isinstance(reply, list) and reply[0] == b"subscribe":
                    yield None
                elif isinstance(reply, list) and reply[0] == b"message":
                    yield cast(bytes, reply[2])
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@cache
def sync_client() -> "redis.Redis":
    """redis-py's client of this process (thread-safe, answers are bytes), for pages, commands and tasks."""
    return redis.Redis.from_url(
        settings.REDIS_URL,
        protocol=2,
        socket_timeout=REPLY_TIMEOUT_SECONDS,
        socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
        health_check_interval=15,
    )


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Inside it redis-py's exceptions become ours: RedisUnavailable or ReplyError."""
    try:
        yield
    except redis.exceptions.NoScriptError:
        raise
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
        raise RedisUnavailable(type(error).__name__, was_sent=True) from error
    except redis.exceptions.ResponseError as error:
        if str(error).startswith(NOT_SERVING) or isinstance(error, redis.exceptions.ReadOnlyError):
            raise RedisUnavailable(type(error).__name__) from error
        raise ReplyError(str(error)) from error
