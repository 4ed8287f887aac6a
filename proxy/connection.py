"""One HTTP/1.1 connection to an upstream: bytes to a response, with backpressure and deadlines.

A `Connection` outlives its responses (keep-alive); an `Exchange` is one request on it. Chunks of one read are joined, so
the consumer is woken once per read, not once per chunk of the peer's transfer coding.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import httptools

from proxy.errors import BadAnswer, Cut, HeadersLate, IdleTooLong, UpstreamError
from proxy.outflow import Outflow

READ_BUFFER_BYTES = 64 * 1024
HIGH_WATER_BYTES = 256 * 1024
LOW_WATER_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024


class Exchange:
    """One request and its response on a connection. Consumed by one task."""

    __slots__ = (
        "_buffered",
        "_chunks",
        "_connection",
        "_error",
        "_idle_seconds",
        "_last_read",
        "_loop",
        "_timer",
        "_waiter",
        "is_complete",
        "is_headed",
        "raw_headers",
        "status",
    )

    def __init__(
        self, connection: "Connection", loop: asyncio.AbstractEventLoop, *, header_seconds: float, idle_seconds: float
    ) -> None:
        self.status = 0
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.is_headed = False
        self.is_complete = False
        self._connection = connection
        self._loop = loop
        self._idle_seconds = idle_seconds
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: UpstreamError | None = None
        self._last_read = loop.time()
        self._timer: asyncio.TimerHandle | None = loop.call_later(header_seconds, self._head_is_late)

    # -- for the consumer

    async def head(self) -> None:
        """Waits for the response head. Raises UpstreamError."""
        while not self.is_headed:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def next_chunk(self) -> bytes | None:
        """Body bytes as they came, or None at the response's end. Raises UpstreamError, after all bytes that did come."""
        while not self._chunks:
            if self.is_complete:
                return None
            if self._error is not None:
                raise self._error
            await self._wait()
        chunk = self._chunks.popleft()
        self._buffered -= len(chunk)
        if self._buffered <= LOW_WATER_BYTES:
            self._connection.resume_reading()
        return chunk

    def close(self) -> None:
        """The consumer is gone: a response that is not complete takes its connection along."""
        self._stop_timer()
        self._chunks.clear()
        # Its traceback leads to who met it, and from there to this.
        self._error = None
        if not self.is_complete:
            self._connection.abort()

    def fail(self, error: UpstreamError) -> None:
        """Ends the response with an error, which the consumer meets after the bytes that came before it."""
        if self.is_complete or self._error is not None:
            return
        self._error = error
        self._stop_timer()
        self._wake()
        self._connection.abort()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        # The idle clock counts only what the upstream makes us wait, not what a slow client does.
        self._last_read = self._loop.time()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # -- for the connection

    def headed(self) -> None:
        self.is_headed = True
        self._stop_timer()
        self._last_read = self._loop.time()
        self._timer = self._loop.call_later(self._idle_seconds, self._look_at_idleness)
        self._wake()

    def received(self, data: bytes) -> None:
        self._last_read = self._loop.time()
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered >= HIGH_WATER_BYTES:
            self._connection.pause_reading()
        self._wake()

    def complete(self) -> None:
        self.is_complete = True
        self._stop_timer()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        self._timer = None
        self.fail(HeadersLate())

    def _look_at_idleness(self) -> None:
        silent = self._loop.time() - self._last_read
        if self._waiter is not None and silent >= self._idle_seconds:
            self._timer = None
            self.fail(IdleTooLong())
            return
        pause = self._idle_seconds - silent if self._waiter is not None else self._idle_seconds
        self._timer = self._loop.call_later(max(pause, 0.01), self._look_at_idleness)


class Connection(asyncio.BufferedProtocol):
    """Parses with llhttp; serves one exchange at a time.

    `buffer` is read into, and what was read is taken out before the loop does anything else: all connections of a loop share one.
    One each would be half of the memory that an open stream costs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, freed: "Callable[[Connection], None]", *, buffer: bytearray) -> None:
        self.uses = 0
        self.idle_since = 0.0
        self._loop = loop
        self._freed = freed
        self._transport: asyncio.Transport | None = None
        self._outflow: Outflow | None = None
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._parser: Any = None
        self._exchange: Exchange | None = None
        self._is_paused = False
        self._parts: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._has_bytes = False
        self._keep_alive = False
        self._ends_with_connection = False
        self._is_interim = False

    def send(self, data: bytes, *, header_seconds: float, idle_seconds: float) -> Exchange:
        """Writes one whole request. Raises Cut(written=False) if the peer has gone already."""
        if self._transport is None or self._outflow is None or self._transport.is_closing():
            raise Cut("connection was closed", written=False, is_silent=True)
        self._parser = httptools.HttpResponseParser(self)
        self._has_bytes = False
        self._head_bytes = 0
        self._headers = []
        self.uses += 1
        exchange = Exchange(self, self._loop, header_seconds=header_seconds, idle_seconds=idle_seconds)
        self._exchange = exchange
        self._outflow.write(data)
        return exchange

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._exchange is None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if not self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outflow = Outflow(self._transport)

    def pause_writing(self) -> None:
        if self._outflow is not None:
            self._outflow.pause()

    def resume_writing(self) -> None:
        if self._outflow is not None:
            self._outflow.resume()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        exchange = self._exchange
        if exchange is None:
            # Nobody asked for anything: not a connection to send a request on.
            self.abort()
            return
        self._has_bytes = True
        try:
            self._parser.feed_data(self._view[:nbytes])
        except Exception as error:
            # A fault after the response's end (a second response) still ends the connection.
            self._keep_alive = False
            self._flush(exchange)
            exchange.fail(BadAnswer(type(error).__name__))
            return
        self._flush(exchange)
        if exchange.is_headed or self._is_interim:
            return
        self._head_bytes += nbytes
        if self._head_bytes > MAX_HEAD_BYTES:
            exchange.fail(BadAnswer("response head is too large"))

    def _flush(self, exchange: Exchange) -> None:
        if self._parts:
            data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            exchange.received(data)
        if self._parser is None and not exchange.is_complete:
            self._finish(exchange)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = self._outflow = None
        # It refers to this connection.
        self._parser = None
        exchange, self._exchange = self._exchange, None
        self._freed(self)
        if exchange is None or exchange.is_complete:
            return
        if error is None and exchange.is_headed and self._ends_with_connection:
            exchange.complete()
            return
        exchange.fail(Cut(type(error).__name__ if error else "closed by the peer", is_silent=not self._has_bytes))

    def _finish(self, exchange: Exchange) -> None:
        """The response is complete; the connection serves the next one unless either side said otherwise."""
        self._exchange = None
        self.resume_reading()
        exchange.complete()
        if self._keep_alive and self._outflow is not None and self._outflow.is_drained:
            self.idle_since = self._loop.time()
            self._freed(self)
        elif self._transport is not None:
            self._transport.close()

    # -- httptools

    def on_message_begin(self) -> None:
        if self._parser is None:
            raise BadAnswer("more than one response")
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise BadAnswer("response head is too large")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = int(self._parser.get_status_code())
        self._is_interim = 100 <= status < 200
        if status == 101:
            raise BadAnswer("unasked switch of protocols")
        if not 100 <= status < 600:
            # Nobody could pass it on.
            raise BadAnswer("a status that there is not")
        if self._is_interim:
            return
        exchange = self._exchange
        assert exchange is not None
        if exchange.is_headed:
            return
        self._keep_alive = bool(self._parser.should_keep_alive())
        names = {name for name, _ in self._headers}
        self._ends_with_connection = b"content-length" not in names and b"transfer-encoding" not in names
        exchange.status = status
        exchange.raw_headers = self._headers
        self._headers = []
        exchange.headed()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
            return
        # Seen by `_flush`, after the bytes of this read were handed on; a further response is a fault.
        self._parser = None
