"""The relay's upstream WebSockets: open one, send and receive text frames, name what went wrong.

The protocol is that of `websockets`, without its I/O; reading, backpressure and deadlines are ours, as in `proxy.connection`.
Nothing is compressed: a deflate window costs more memory per socket than all else together. No redirects, cookies, HTTP proxies.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import WebSocketURI

from proxy import metering
from proxy.errors import BadAnswer, ConnectFailed, Cut, HeadersLate, IdleTooLong, UpstreamError
from proxy.guard import Guard
from proxy.headers import Pairs
from proxy.origins import Origin, split
from proxy.outflow import Outflow

PING_SECONDS = 20.0
PONG_SECONDS = 20.0
"""A peer that is gone without a word is noticed after both, at the latest (N64: within 60 s)."""
CLOSE_SECONDS = 2.0
"""How long what was written may take to leave after we have closed."""
HIGH_WATER_BYTES = 256 * 1024
LOW_WATER_BYTES = 64 * 1024
MOST_FRAGMENTS = 20_000
"""Of one frame, each kept until the last comes; empty ones count against no size."""
NORMAL = 1000


@dataclass(frozen=True, slots=True)
class Refusal:
    """The HTTP answer of an upstream that did not open a socket."""

    status: int
    raw_headers: list[tuple[bytes, bytes]]
    body: bytes = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.raw_headers}


class UpstreamSocket(asyncio.Protocol):
    """One WebSocket to an upstream. Frames are consumed by one task; while none is wanted they go to `on_unasked`.

    `headers` are those of the upgrade's answer.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        uri: WebSocketURI,
        *,
        idle_seconds: float,
        ping_seconds: float,
        pong_seconds: float,
        ended: "Callable[[UpstreamSocket], None]",
    ) -> None:
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.headers: dict[str, str] = {}
        self.on_unasked: Callable[[bytes], None] | None = None
        self._loop = loop
        self._protocol = ClientProtocol(uri, max_size=metering.LARGEST_EVENT_BYTES)
        self._idle_seconds = idle_seconds
        self._ping_seconds = ping_seconds
        self._pong_seconds = pong_seconds
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._outflow: Outflow | None = None
        self._frames: deque[bytes] = deque()
        self._buffered = 0
        self._parts: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._refusal: Refusal | None = None
        self._error: UpstreamError | None = None
        self._is_open = False
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = loop.time()
        self._framed_at = self._heard_at
        self._pinged_at: float | None = None
        self._unsent_then = 0

    # -- for the consumer

    @property
    def key(self) -> str:
        """What the request must carry as `sec-websocket-key`."""
        return self._protocol.key

    @property
    def is_open(self) -> bool:
        return self._is_open and self._error is None

    async def opened(self) -> Refusal | None:
        """Waits for the answer to the upgrade; None if the socket is open. Raises UpstreamError."""
        while not self._is_open and self._refusal is None:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._refusal

    async def send_text(self, data: bytes, *, on_written: Callable[[], None]) -> None:
        """Sends one frame, and waits until most of it has left. Raises UpstreamError.

        `on_written` is called when the first bytes are handed to the socket: from then on the request may run.
        """
        if not self.is_open or self._transport is None or self._transport.is_closing():
            raise Cut("the socket was closed", written=False, is_silent=True)
        self._protocol.send_text(data)
        self._flush()
        on_written()
        while self._writable is not None and self._error is None:
            await asyncio.shield(self._writable)
        if self._error is not None:
            raise self._error

    async def receive(self) -> bytes:
        """The next text frame. Raises UpstreamError, after all frames that did come. Cancelling it loses nothing."""
        while not self._frames:
            if self._error is not None:
                raise self._error
            await self._wait()
        data = self._frames.popleft()
        self._buffered -= len(data)
        if self._buffered <= LOW_WATER_BYTES:
            self._resume()
        return data

    def take_waiting(self) -> list[bytes]:
        """The frames that came and were not received."""
        frames = list(self._frames)
        self._frames.clear()
        self._buffered = 0
        self._resume()
        return frames

    def _resume(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            # What came meanwhile was not read, pongs included.
            self._heard_at = self._loop.time()
            self._transport.resume_reading()

    def close(self, code: int = NORMAL) -> None:
        """Says goodbye; whatever the peer still sends is dropped. Doing it twice changes nothing."""
        if self._error is None:
            self._error = Cut("closed by us")
        self._stop_timer()
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code)
            self._flush()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            # A peer that takes nothing would keep the connection for ever.
            self._loop.call_later(CLOSE_SECONDS, self._transport.abort)
        self._wake()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        # The idle clock counts only what the upstream makes us wait, not what a slow client does.
        self._framed_at = self._loop.time()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outflow = Outflow(self._transport)

    def send_request(self, data: bytes, header_seconds: float) -> None:
        """Writes the upgrade's request. Its answer must come whole in that time."""
        assert self._outflow is not None
        self._timer = self._loop.call_later(header_seconds, self._head_is_late)
        self._outflow.write(data)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if self._error is not None:
            return
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        self._flush()
        if not events:
            # A part of a large message; or of a bad answer.
            self._framed_at = self._heard_at
        for event in events:
            if isinstance(event, Frame):
                self._framed(event)
            elif isinstance(event, Response):
                self._answered(event)
        if self._protocol.parser_exc is not None:
            self._fail(BadAnswer(type(self._protocol.parser_exc).__name__))
        elif self._protocol.handshake_exc is not None and self._refusal is None:
            self._fail(BadAnswer(type(self._protocol.handshake_exc).__name__, written=False))

    def eof_received(self) -> bool:
        if not self._is_open and self._refusal is None:
            # An answer may end with its connection.
            self._protocol.receive_eof()
            for event in self._protocol.events_received():
                if isinstance(event, Response):
                    self._answered(event)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = self._outflow = None
        if self._refusal is None:
            self._fail(Cut(type(error).__name__ if error else "closed by the peer", written=self._is_open))
        self._stop_timer()
        self._wake()
        self._ended(self)

    def pause_writing(self) -> None:
        if self._outflow is not None:
            self._outflow.pause()
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._outflow is not None:
            self._outflow.resume()
            if self._outflow.is_paused:
                return
        self._release_writer()

    def _release_writer(self) -> None:
        waiting, self._writable = self._writable, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # -- events

    def _answered(self, response: Response) -> None:
        headers = [
            (name.lower().encode(), value.encode("latin-1", "surrogateescape")) for name, value in response.headers.raw_items()
        ]
        self._stop_timer()
        if self._protocol.handshake_exc is None:
            self._is_open = True
            self.raw_headers = headers
            self.headers = {name.decode(): value.decode("latin-1") for name, value in headers}
            self._framed_at = self._heard_at
            self._schedule(self._heard_at)
        elif response.status_code == 101:
            self._fail(BadAnswer(type(self._protocol.handshake_exc).__name__, written=False))
        else:
            self._refusal = Refusal(response.status_code, headers, bytes(response.body))
            self.abort()
        self._wake()

    def _framed(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._framed_at = self._heard_at
            self._parts.append(bytes(frame.data))
            # The parser keeps its last frame until the next comes, which may have megabytes.
            frame.data = b""
            if len(self._parts) > MOST_FRAGMENTS:
                self._fail(BadAnswer("a frame in too many pieces"))
            elif frame.fin:
                data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                self._parts = []
                self._received(data)
        elif frame.opcode is Opcode.BINARY:
            self._fail(BadAnswer("a binary frame"))
        elif frame.opcode is Opcode.CLOSE:
            told = self._protocol.close_rcvd
            self._fail(Cut(f"closed with code {told.code if told else 1005}"))

    def _received(self, data: bytes) -> None:
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                self._fail(BadAnswer("a frame that is no text"))
                return
        if self.on_unasked is not None:
            self.on_unasked(data)
            return
        self._frames.append(data)
        self._buffered += len(data)
        if self._buffered >= HIGH_WATER_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def _flush(self) -> None:
        if self._transport is None or self._outflow is None:
            return
        for data in self._protocol.data_to_send():
            # An empty one asks for the end of our side.
            if data and not self._transport.is_closing():
                self._outflow.write(data)

    def _fail(self, error: UpstreamError) -> None:
        """Ends the socket with an error, which the consumer meets after the frames that came before it."""
        if self._error is None:
            self._error = error
        self._stop_timer()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._loop.call_later(CLOSE_SECONDS, self._transport.abort)
        self._release_writer()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- time

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        self._timer = None
        self._fail(HeadersLate(written=False))
        self.abort()

    def _schedule(self, now: float) -> None:
        """The next look at the clock: at the next ping's or pong's time, or when a consumer may have waited for too long."""
        due = min(self._ping_due(), (self._framed_at if self._waiter is not None else now) + self._idle_seconds)
        self._timer = self._loop.call_later(max(due - now, 0.01), self._look)

    def _ping_due(self) -> float:
        if self._pinged_at is not None:
            return self._pinged_at + self._pong_seconds
        return self._heard_at + self._ping_seconds

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        transport, outflow = self._transport, self._outflow
        if transport is None or outflow is None or transport.is_closing():
            return
        if self._waiter is not None and now - self._framed_at >= self._idle_seconds:
            self._fail(IdleTooLong())
            return
        if self._is_paused:
            # Nothing is read, so nothing can be heard.
            self._heard_at, self._pinged_at = now, None
        elif self._pinged_at is not None and self._heard_at > self._pinged_at:
            self._pinged_at = None
        if now >= self._ping_due():
            if self._pinged_at is None:
                self._protocol.send_ping(b"")
                self._flush()
                self._pinged_at, self._unsent_then = now, outflow.unsent_bytes
            elif outflow.unsent_bytes < self._unsent_then:
                # It takes what we send, if slowly; our ping is behind that.
                self._pinged_at, self._unsent_then = now, outflow.unsent_bytes
            else:
                self._fail(Cut("no answer to a ping"))
                self.abort()
                return
        self._schedule(now)


class SocketClient:
    """The upstream sockets of one event loop. Times in seconds. `guard` None: every host may be connected to."""

    def __init__(
        self,
        *,
        connect_seconds: float,
        header_seconds: float,
        idle_seconds: float,
        ping_seconds: float = PING_SECONDS,
        pong_seconds: float = PONG_SECONDS,
        tls: ssl.SSLContext | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self._connect_seconds = connect_seconds
        self._header_seconds = header_seconds
        self._idle_seconds = idle_seconds
        self._ping_seconds = ping_seconds
        self._pong_seconds = pong_seconds
        self._tls = tls
        self._sockets: set[UpstreamSocket] = set()

    def __len__(self) -> int:
        return len(self._sockets)

    async def open(self, url: str, headers: Pairs) -> UpstreamSocket | Refusal:
        """Opens a socket at an absolute http(s) URL, or gives the upstream's refusal.

        `headers` are lower-case names and values, without those of the upgrade itself. Raises UpstreamError, never as written:
        nothing was asked for. Raises ValueError for a header that would break the framing.
        """
        origin, target = split(url)
        socket = await self._connect(origin)
        try:
            socket.send_request(_request(origin, target, headers, socket.key), self._header_seconds)
            refusal = await socket.opened()
        except BaseException:
            socket.abort()
            raise
        return socket if refusal is None else refusal

    async def close(self) -> None:
        """Drops every socket."""
        for socket in list(self._sockets):
            socket.close(1001)
            socket.abort()
        # Transports close their sockets in the next tick.
        await asyncio.sleep(0)

    async def _connect(self, origin: Origin) -> UpstreamSocket:
        if origin.scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(self._connect_seconds):
                socket = await self._connect_to(origin, await self._hosts(origin))
        except (OSError, TimeoutError) as error:
            # ssl.SSLError is an OSError.
            raise ConnectFailed(type(error).__name__) from error
        self._sockets.add(socket)
        return socket

    async def _hosts(self, origin: Origin) -> tuple[str, ...]:
        """The judged addresses of a host that is not the operator's, else the host itself. Raises ConnectFailed."""
        judged = None if self._guard is None else await self._guard.addresses(origin)
        return judged or (origin.host,)

    async def _connect_to(self, origin: Origin, hosts: tuple[str, ...]) -> UpstreamSocket:
        """A connection to the first of the hosts that takes one. Raises OSError."""
        loop = asyncio.get_running_loop()
        is_secure = origin.scheme == "https"
        uri = WebSocketURI(is_secure, origin.host, origin.port, "/", "")

        def made() -> UpstreamSocket:
            return UpstreamSocket(
                loop,
                uri,
                idle_seconds=self._idle_seconds,
                ping_seconds=self._ping_seconds,
                pong_seconds=self._pong_seconds,
                ended=self._sockets.discard,
            )

        tls = self._tls if is_secure else None
        name = origin.host if is_secure else None
        for host in hosts[:-1]:
            with contextlib.suppress(OSError):
                return (await loop.create_connection(made, host, origin.port, ssl=tls, server_hostname=name))[1]
        return (await loop.create_connection(made, hosts[-1], origin.port, ssl=tls, server_hostname=name))[1]


def _request(origin: Origin, target: bytes, headers: Pairs, key: str) -> bytes:
    """The upgrade's request. Raises ValueError for a header that would break the framing."""
    parts = [b"GET ", target, b" HTTP/1.1\r\nhost: ", origin.authority, b"\r\n"]
    parts += (b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n", b"sec-websocket-key: ", key.encode())
    parts.append(b"\r\n")
    for name, value in headers:
        if b"\n" in value or b"\r" in value or b"\0" in value or b"\n" in name or b"\r" in name or b":" in name:
            raise ValueError("a header holds a line break")
        parts += (name, b": ", value, b"\r\n")
    parts.append(b"\r\n")
    return b"".join(parts)
