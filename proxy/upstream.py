"""The relay's upstream client: open a response, stream its body, name what went wrong.

HTTP/1.1 only, no redirects, no cookies, no decompression (we ask for none), no HTTP proxies. One `Client` per event loop;
connections are kept per (scheme, host, port) and used again when the response before ended cleanly. A request is sent
again only if it met a kept connection that the peer had already closed: used before, and not one byte came back. With a
`Guard`, hosts that are not the operator's are connected to, and stay connected to, by addresses that were judged.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proxy.connection import READ_BUFFER_BYTES, Connection, Exchange
from proxy.errors import ConnectFailed, Cut
from proxy.guard import Guard
from proxy.origins import Origin, split

MAX_IDLE_PER_ORIGIN = 256
IDLE_SECONDS = 30.0
# A peer that closed a kept connection answers our write with a reset within a round trip; one that took longer may have
# begun to work on the request.
STALE_SECONDS = 1.0


def _nobody() -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Request:
    """`headers` are lower-case names and values as bytes, without host and content-length, which the client adds."""

    method: str
    url: str
    headers: Sequence[tuple[bytes, bytes]] = field(repr=False)
    body: bytes = field(default=b"", repr=False)

    def encode(self) -> bytes:
        """The whole request as it goes out. Raises ValueError for a header that would break the framing."""
        origin, target = split(self.url)
        parts = [self.method.encode("ascii"), b" ", target, b" HTTP/1.1\r\nhost: ", origin.authority, b"\r\n"]
        for name, value in self.headers:
            if b"\n" in value or b"\r" in value or b"\0" in value or b"\n" in name or b"\r" in name or b":" in name:
                raise ValueError("a header holds a line break")
            parts += (name, b": ", value, b"\r\n")
        parts += (b"content-length: ", str(len(self.body)).encode(), b"\r\n\r\n", self.body)
        return b"".join(parts)


class Response:
    """A response whose head has come. Iterate it once for the body, as bytes, in the order and split of arrival."""

    __slots__ = ("_exchange", "headers", "raw_headers", "status")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.status = exchange.status
        self.raw_headers = exchange.raw_headers
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.raw_headers}

    def __aiter__(self) -> "Response":
        return self

    async def next_chunk(self) -> bytes | None:
        """The next bytes of the body, or None at its end. Raises UpstreamError. Cancelling it loses nothing."""
        return await self._exchange.next_chunk()

    async def __anext__(self) -> bytes:
        chunk = await self._exchange.next_chunk()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def read(self, limit: int) -> bytes:
        """The rest of the body, at most `limit` bytes of it. Raises UpstreamError."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self:
            parts.append(chunk)
            size += len(chunk)
            if size >= limit:
                break
        return b"".join(parts)[:limit]


class Route(NamedTuple):
    """Where a connection goes; `address` where its host is not looked up, but was judged."""

    origin: Origin
    address: str | None


class Opening:
    """A response between its head and the end of the block that wants it."""

    __slots__ = ("_exchange", "_sending")

    def __init__(self, sending: Coroutine[Any, Any, Exchange]) -> None:
        self._sending = sending
        self._exchange: Exchange | None = None

    async def __aenter__(self) -> Response:
        self._exchange = await self._sending
        return Response(self._exchange)

    async def __aexit__(self, *error: object) -> None:
        if self._exchange is not None:
            self._exchange.close()


class Client:
    """Connections of one event loop. Times in seconds. `guard` None: every host may be connected to."""

    def __init__(
        self,
        *,
        connect_seconds: float,
        header_seconds: float,
        idle_seconds: float,
        tls: ssl.SSLContext | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.connects = 0
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._guard = guard
        self._connect_seconds = connect_seconds
        self._header_seconds = header_seconds
        self._idle_seconds = idle_seconds
        self._tls = tls
        self._idle: dict[Route, deque[Connection]] = {}
        self._routes: dict[Connection, Route] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def open(self, request: Request, *, on_written: Callable[[], None] | None = None) -> "Opening":
        """Sends the request and waits for the response's head: `async with`. Raises UpstreamError, also while the body is read.

        `on_written` is called when the first bytes are handed to the socket: from then on the request may run, whatever is
        heard of it. Leaving the block before the body's end closes the connection, which tells the upstream to stop.
        """
        return Opening(self._send(request, on_written or _nobody))

    @property
    def idle_connections(self) -> int:
        return sum(len(kept) for kept in self._idle.values())

    @property
    def connections(self) -> int:
        return len(self._routes)

    async def close(self) -> None:
        """Drops every connection, also those in use."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        if self._guard is not None:
            self._guard.close()
        for connection in list(self._routes):
            connection.abort()
        self._idle.clear()
        # Transports close their sockets in the next tick.
        await asyncio.sleep(0)

    async def _send(self, request: Request, on_written: Callable[[], None]) -> Exchange:
        routes = await self._routes_to(split(request.url)[0])
        data = request.encode()
        loop = asyncio.get_running_loop()
        while (kept := self._take(routes)) is not None:
            began = loop.time()
            try:
                return await self._exchange(kept, data, on_written)
            except Cut as cut:
                if not cut.written:
                    continue
                if not cut.is_silent or loop.time() - began >= STALE_SECONDS:
                    raise
                # Others of its age may be stale as well: the second try is on a fresh one, and is the last.
                break
        return await self._exchange(await self._connect(routes), data, on_written)

    async def _routes_to(self, origin: Origin) -> list[Route]:
        """The ways that a request may take, best first. Raises ConnectFailed if it may take none."""
        if self._guard is None or self._guard.trusts(origin):
            return [Route(origin, None)]
        try:
            async with asyncio.timeout(self._connect_seconds):
                addresses = await self._guard.addresses(origin)
        except TimeoutError as error:
            raise ConnectFailed(type(error).__name__) from error
        return [Route(origin, address) for address in addresses or (None,)]

    async def _exchange(self, connection: Connection, data: bytes, on_written: Callable[[], None]) -> Exchange:
        exchange = connection.send(data, header_seconds=self._header_seconds, idle_seconds=self._idle_seconds)
        on_written()
        try:
            await exchange.head()
        except BaseException:
            exchange.close()
            raise
        return exchange

    def _take(self, routes: Sequence[Route]) -> Connection | None:
        """The connection used last: the older ones may end by disuse. None to an address that the host has no more."""
        for route in routes:
            kept = self._idle.get(route)
            while kept:
                connection = kept.pop()
                if connection.is_usable:
                    return connection
        return None

    async def _connect(self, routes: Sequence[Route]) -> Connection:
        """A connection by the first route that works; the time is for all of them."""
        failed: ConnectFailed | None = None
        deadline = asyncio.get_running_loop().time() + self._connect_seconds
        for route in routes:
            try:
                return await self._connect_by(route, deadline)
            except ConnectFailed as error:
                failed = error
        assert failed is not None
        raise failed

    async def _connect_by(self, route: Route, deadline: float) -> Connection:
        loop = asyncio.get_running_loop()
        origin = route.origin
        tls: ssl.SSLContext | None = None
        if origin.scheme == "https":
            if self._tls is None:
                self._tls = ssl.create_default_context()
            tls = self._tls
        try:
            async with asyncio.timeout_at(deadline):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, self._freed, buffer=self._buffer),
                    route.address or origin.host,
                    origin.port,
                    ssl=tls,
                    server_hostname=origin.host if tls is not None else None,
                )
        except (OSError, TimeoutError) as error:
            # ssl.SSLError is an OSError.
            raise ConnectFailed(type(error).__name__) from error
        self.connects += 1
        self._routes[connection] = route
        return connection

    def _freed(self, connection: Connection) -> None:
        """The connection finished a response, or is gone."""
        route = self._routes.get(connection)
        if route is None:
            return
        if not connection.is_usable:
            del self._routes[connection]
            kept = self._idle.get(route)
            if kept is not None and connection in kept:
                kept.remove(connection)
            if not kept:
                # A tenant's host may have a new address every minute.
                self._idle.pop(route, None)
            return
        kept = self._idle.setdefault(route, deque())
        if self._closed or len(kept) >= MAX_IDLE_PER_ORIGIN:
            connection.abort()
            return
        kept.append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._drop_unused)

    def _drop_unused(self) -> None:
        self._sweep = None
        loop = asyncio.get_running_loop()
        oldest = loop.time() - IDLE_SECONDS
        for kept in list(self._idle.values()):
            while kept and kept[0].idle_since <= oldest:
                kept.popleft().abort()
        if self.idle_connections:
            self._sweep = loop.call_later(IDLE_SECONDS / 2, self._drop_unused)
