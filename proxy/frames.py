"""Frames to the client: one turn's side of its socket, and what an upstream socket says in it on its way there."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from proxy import metering, sse
from proxy.asgi import Send
from proxy.dialects.wire import Wire
from proxy.errors import Answer
from proxy.relay import HELD_BYTES, HELD_SECONDS, Downstream
from proxy.sse import Event, Want

APART = b"\0"
"""Between the frames of a whole answer; JSON holds none."""
_UNTOLD = frozenset({"content-type", "content-length"})
# Only as the first key: further behind it may be the type of something inside.
_TYPE = re.compile(rb'\s*\{\s*"type"\s*:\s*"([^"\\]{1,80})"')


class _Typed(msgspec.Struct):
    type: str = ""


_typed = msgspec.json.Decoder(_Typed)


def name_of(frame: bytes) -> str:
    """The frame's type; "" if it tells none."""
    found = _TYPE.match(frame)
    if found is not None:
        return found.group(1).decode("latin-1")
    try:
        return _typed.decode(frame).type
    except (msgspec.DecodeError, RecursionError):
        return ""


def event_of(frame: bytes, want: Callable[[str], Want]) -> Event:
    """A frame as the event that an event stream would carry."""
    name = name_of(frame)
    wanted = want(name)
    if wanted is Want.DELTA:
        return Event(name, len(frame), sse.delta_bytes(frame))
    return Event(name, len(frame), 0, frame if wanted is Want.WHOLE else None)


def error_frame(answer: Answer) -> bytes:
    """A refusal as clients read it: always with its status (without it they wait for ever), and the headers it would have had."""
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        value = None
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        text = answer.body.decode(errors="replace")[:2000]
        kind = "server_error" if answer.status >= 500 else "invalid_request_error"
        error = {"message": text, "type": kind, "param": None, "code": None}
    pairs = ((name.decode("latin-1"), told.decode("latin-1")) for name, told in answer.headers)
    headers = {name: told for name, told in pairs if name not in _UNTOLD}
    # Escaped: half a surrogate pair has no other spelling.
    return json.dumps({"type": "error", "status": answer.status, "error": error, "headers": headers}).encode()


class FrameDownstream(Downstream):
    """The client's side of one turn. After the client has left, writing does nothing.

    There is no head: a refusal can be told as long as nothing of an answer was, heartbeats or not. `is_ended`: the turn's last
    frame is on its way, and the client may begin the next.
    """

    def __init__(self, send: Send, *, heartbeat: bytes, heartbeat_seconds: float, stall_seconds: float) -> None:
        super().__init__(send, _nothing, stall_seconds=stall_seconds)
        self._heartbeat = heartbeat
        self._heartbeat_seconds = heartbeat_seconds
        self._loop = asyncio.get_running_loop()
        self._on_left: Callable[[], None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self.wrote_at = self._loop.time()
        self.is_stalled = False

    def begin_watch(self, on_left: Callable[[], None]) -> Callable[[], object]:
        self._on_left = on_left
        self._look()
        if self.has_left:
            on_left()
        return self._end_watch

    def _end_watch(self) -> None:
        self._on_left = None
        for waiting in (self._timer, self._beating):
            if waiting is not None:
                waiting.cancel()

    def leave(self) -> None:
        """The client is gone, or takes nothing any more."""
        if not self.has_left:
            self.has_left = True
            # The end may be on its way for ever, to a client that does not take it.
            if self._on_left is not None and (self.is_stalled or not self.is_ended):
                self._on_left()

    def _look(self) -> None:
        """Looks for silence, which is told by a heartbeat, and for a client that takes nothing."""
        now = self._loop.time()
        due = self.wrote_at + self._heartbeat_seconds
        if self._writing_since is not None:
            due = self._writing_since + self._stall_seconds
            if now >= due:
                self.is_stalled = True
                self.leave()
                return
        elif now >= due and not self.has_left and not self.is_ended:
            self.wrote_at = now
            self._beating = self._loop.create_task(self._write(self._heartbeat))
            due = now + self._heartbeat_seconds
        self._timer = self._loop.call_later(max(min(due - now, self._stall_seconds), 0.01), self._look)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Frames have no head."""

    async def write(self, data: bytes, *, is_content: bool = True, is_last: bool = False) -> None:
        """One frame of an answer."""
        self.is_started = self.has_content = True
        if is_last:
            self.is_ended = True
        await self._write(data)

    async def answer(self, answer: Answer) -> None:
        """A whole answer: a refusal as an error frame, else the frames that an upstream ended its response with."""
        frames = answer.body.split(APART) if answer.status == 200 else [error_frame(answer)]
        self.is_started = self.has_content = self.is_ended = True
        for frame in frames:
            await self._write(frame)

    async def end(self) -> None:
        self.is_ended = True

    async def _write(self, frame: bytes) -> None:
        if self.has_left:
            return
        self.wrote_at = self._writing_since = self._loop.time()
        try:
            await self._send({"type": "websocket.send", "text": frame.decode()})
        except OSError:
            # So servers say that the connection is gone.
            self.leave()
        finally:
            self._writing_since = None


async def _nothing() -> Any:
    """A turn reads nothing: its socket does."""
    raise AssertionError("a turn does not read")


class FrameRelay:
    """One response on its way to the client: metered, then passed on frame by frame, byte for byte.

    Kept back is the preamble, as `relay.StreamRelay` does, during which another account may still answer instead. `greeting` is a
    frame of ours before the first.
    """

    def __init__(
        self, downstream: FrameDownstream, wire: Wire, *, greeting: bytes, before_open: Callable[[], Awaitable[None]]
    ) -> None:
        self.meter = wire.meter
        self.is_open = False
        """Has the client been sent anything of this response?"""
        self._downstream = downstream
        self._want = wire.want
        self._greeting = greeting
        self._before_open = before_open
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._held_until: float | None = None
        self._last = b""

    @property
    def is_refused(self) -> bool:
        """The upstream failed before it produced anything, and the client has seen nothing."""
        return self.meter.failure is not None and not self.meter.has_output and not self.is_open

    def patience(self, now: float) -> float | None:
        """Seconds until `open` is due; None if it is not waited for."""
        return None if self.is_open or self._held_until is None else max(0.0, self._held_until - now)

    def held(self) -> list[bytes]:
        """What was kept back so far."""
        return self._waiting

    def see(self, frame: bytes) -> Event:
        """Meters a frame."""
        event = event_of(frame, self._want)
        self.meter.see(event)
        return event

    async def take(self, frame: bytes) -> None:
        """Passes on a frame that was seen, or keeps it back."""
        if self.is_open:
            self._last = frame
            await self._downstream.write(frame, is_last=self.meter.is_terminal)
            return
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        if self._held_until is None:
            self._held_until = asyncio.get_running_loop().time() + HELD_SECONDS
        if not self.is_refused and (self.meter.has_output or self.meter.is_terminal or self._waiting_bytes > HELD_BYTES):
            await self.open()

    async def open(self) -> None:
        """Begins the client's answer, with what was kept back."""
        self.is_open = True
        await self._before_open()
        waiting, self._waiting = self._waiting, []
        if self._greeting:
            await self._downstream.write(self._greeting)
        for number, frame in enumerate(waiting, 1):
            self._last = frame
            await self._downstream.write(frame, is_last=self.meter.is_terminal and number == len(waiting))

    def next_sequence_number(self) -> int:
        return metering.next_sequence_number(self.meter.events, self._last)
