"""One request as it came, and the ways an answer goes out: written, delayed, cut off, or never finished."""

import asyncio
import contextlib
import itertools
import json
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import TYPE_CHECKING, Any

from demo.upstream_script import Answer, Scripts

if TYPE_CHECKING:
    from demo.upstream_state import State

Headers = Iterable[tuple[str, str]]
FLUSH_SECONDS = 2.0


class Cut(Exception):
    """The connection was dropped without an end."""


class Gone(Exception):
    """The client has left."""


@dataclass(slots=True)
class Received:
    """What is remembered of a request. Times in unix seconds. `state`: running, done, cut, client_gone."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]] = field(repr=False)
    body: bytes = field(repr=False)
    token: str = field(repr=False)
    at: float
    is_whole: bool
    """The body came to its end."""
    account: str | None = None
    state: str = "running"
    scripted: bool = False
    status: int | None = None
    response_id: str | None = None
    sent_events: int = 0
    sent_bytes: int = 0
    answered_at: float | None = None
    ended_at: float | None = None
    socket: int | None = None
    """The number of the WebSocket that it opened, or that it came on."""

    def end(self, state: str) -> None:
        if self.state == "running":
            self.state, self.ended_at = state, time.time()


class Call:
    """A received request with its way back. Every method that writes raises Gone once the client has left."""

    def __init__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode()
        self.raw_headers = [(name.decode().lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        self.headers = dict(self.raw_headers)
        self.token = self.headers.get("authorization", "").removeprefix("Bearer ") or self.headers.get("x-api-key", "")
        self.body = b""
        self.is_whole = False
        self.is_lost = False
        self._receive = receive
        self._send = send
        self._gone: asyncio.Future[None] | None = None
        self.record: Received = self._recorded()

    async def read(self) -> None:
        """Reads the body, then watches for the client's leaving."""
        parts: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                self.is_whole = True
                break
        self.body = b"".join(parts)
        self.record = self._recorded()
        if not self.is_whole:
            self.record.end("client_gone")
        self._gone = asyncio.ensure_future(self._watch())

    def _recorded(self) -> Received:
        return Received(
            method=self.method,
            path=self.path,
            query=self.query,
            headers=self.raw_headers,
            body=self.body,
            token=self.token,
            at=time.time(),
            is_whole=self.is_whole,
        )

    async def _watch(self) -> None:
        while self.is_whole and (await self._receive())["type"] != "http.disconnect":
            pass
        self.record.end("client_gone")

    def close(self) -> None:
        if self._gone is not None:
            self._gone.cancel()

    def find_parent(self, state: "State", response_id: str) -> tuple[str, int]:
        """Whose an earlier response is, and its total tokens; "" for an unknown one."""
        return state.responses.get(response_id, ("", 0))

    def remember_response(self, state: "State", response_id: str, owner: str, total_tokens: int) -> None:
        state.remember_response(response_id, owner, total_tokens)

    # ---------------------------------------------------------------------------------------------------- waiting

    async def wait(self, event: asyncio.Event | None, seconds: float | None = None) -> None:
        """Waits for the event or the time, whichever is first. Raises Gone as soon as the client leaves."""
        assert self._gone is not None
        waiting = asyncio.ensure_future(event.wait()) if event else None
        try:
            both: list[asyncio.Future[Any]] = [self._gone, *([waiting] if waiting else [])]
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if waiting:
                waiting.cancel()
        if self._gone.done():
            raise Gone

    async def pause(self, seconds: float) -> None:
        if seconds > 0:
            await self.wait(None, seconds)

    async def stay_silent(self, scripts: Scripts) -> None:
        """Says nothing until the client leaves; a reset of the control cuts the connection. Always raises."""
        await self.wait(scripts.end_of_silence)
        await self.cut("close")

    # ---------------------------------------------------------------------------------------------------- writing

    async def start(self, status: int, headers: Headers) -> None:
        self.record.status, self.record.answered_at = status, time.time()
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, data: bytes) -> None:
        if self._gone is not None and self._gone.done():
            raise Gone
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self.record.sent_bytes += len(data)

    async def finish(self) -> None:
        self.record.end("done")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def json(self, status: int, value: Any, headers: Headers = ()) -> None:
        """The whole answer; a text goes out as it is. A lost one never does."""
        if self.is_lost:
            await self.cut("reset")
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        await self.start(status, framed(data, is_text=isinstance(value, str), headers=headers))
        await self.write(data)
        await self.finish()

    def go_deaf(self) -> None:
        """Reads no more from the connection: the client's pings and its leaving go unheard."""
        self._send.__self__.transport.pause_reading()  # type: ignore[attr-defined]

    async def cut(self, how: str | int) -> None:
        """Drops the connection: `reset` with an RST, else with a FIN. What was written arrives first. Always raises Cut."""
        self.record.end("cut")
        # The server hands us its cycle's bound method; that cycle knows the transport, which ASGI itself does not offer.
        transport: asyncio.Transport = self._send.__self__.transport  # type: ignore[attr-defined]
        deadline = time.monotonic() + FLUSH_SECONDS
        while transport.get_write_buffer_size() and time.monotonic() < deadline:  # noqa: ASYNC110  nobody tells us
            await asyncio.sleep(0.001)
        if how == "reset":
            # To linger for no time makes the close an RST.
            transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
        raise Cut

    async def deliver(self, pieces: list[bytes], answer: Answer, scripts: Scripts) -> None:
        """Writes the pieces, an event each, with the answer's delays, splits, holds, silences and cuts."""
        sizes = itertools.cycle(answer.chunks) if answer.chunks else None
        for number, piece in enumerate(pieces):
            await self._between(number, answer, scripts)
            if number:
                await self.pause(answer.event_delay)
            start = 0
            while start < len(piece):
                size = next(sizes) if sizes else len(piece)
                part = piece[start : start + size]
                limit = answer.cut_after_bytes
                if limit is not None and self.record.sent_bytes + len(part) > limit:
                    await self.write(part[: limit - self.record.sent_bytes])
                    await self.cut(answer.cut_how)
                await self.write(part)
                start += size
                if sizes:
                    await asyncio.sleep(answer.chunk_delay)
            self.record.sent_events += 1
        await self._between(len(pieces), answer, scripts)
        if answer.cut_after_events is not None or answer.cut_after_bytes is not None:
            await self.cut(answer.cut_how)
        with contextlib.suppress(Gone):
            await self.finish()

    async def _between(self, number: int, answer: Answer, scripts: Scripts) -> None:
        if answer.hold is not None and answer.hold.after == number:
            await self.wait(scripts.gate(answer.hold.name))
        if answer.silence_after_events == number:
            await self.stay_silent(scripts)
        if answer.cut_after_events == number:
            await self.cut(answer.cut_how)


def framed(data: bytes, *, is_text: bool, headers: Headers) -> list[tuple[str, str]]:
    """The head of an answer that is sent whole."""
    named = {name.lower() for name, _ in headers}
    kind = [] if "content-type" in named else [("content-type", "text/plain" if is_text else "application/json")]
    length = [] if "content-length" in named else [("content-length", str(len(data)))]
    return [*kind, *length, *headers]
