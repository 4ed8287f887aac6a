"""Bytes to the client: an answer's start, its stream, its end; and the client's leaving."""

import asyncio
import re
from collections.abc import Awaitable, Callable

from proxy import metering, sse
from proxy.asgi import Receive, Send, send_answer
from proxy.dialects.wire import Wire
from proxy.errors import Answer
from proxy.sse import Event

HELD_SECONDS = 0.25
"""How long the upstream's preamble is kept back: an upstream that refuses inside a stream does it at once."""
HELD_BYTES = 256 * 1024
TAIL_BYTES = 64 * 1024
"""The part of an unfinished event that is kept back, so that a stream we must end ourselves ends between events."""
_EVENT_END = re.compile(rb"\n\r?\n")


class Downstream:
    """The client's side of one request. After it has left, writing does nothing.

    `is_started`: the head has been sent, and no other status can be. `has_content`: so has something of an answer; until then
    another account may answer instead, for a heartbeat says nothing.

    A client that takes nothing for `stall_seconds` though there is something to take has left too: a laptop asleep would keep its
    hold and its account's slot for as long as its connection lives.
    """

    def __init__(self, send: Send, receive: Receive, *, stall_seconds: float = 300.0) -> None:
        self._send = send
        self._receive = receive
        self._stall_seconds = stall_seconds
        self._writing_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.wrote_at = 0.0
        """When something was written last, by the loop's clock."""
        self.has_left = False
        self.is_started = False
        self.has_content = False
        self.is_ended = False

    @property
    def is_writing(self) -> bool:
        return self._writing_since is not None

    def begin_watch(self, on_left: Callable[[], None]) -> Callable[[], object]:
        """Calls `on_left` once when the client leaves before its answer has ended, until what is returned is called."""
        return asyncio.get_running_loop().create_task(self.watch(on_left)).cancel

    async def watch(self, on_left: Callable[[], None]) -> None:
        self._look_for_stall(on_left)
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._leave(on_left)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _leave(self, on_left: Callable[[], None]) -> None:
        if not self.is_ended and not self.has_left:
            self.has_left = True
            on_left()

    def _look_for_stall(self, on_left: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        stalled = 0.0 if self._writing_since is None else loop.time() - self._writing_since
        if stalled >= self._stall_seconds:
            self._leave(on_left)
        else:
            self._timer = loop.call_later(max(self._stall_seconds - stalled, 0.01), self._look_for_stall, on_left)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.is_started = True
        if not self.has_left:
            await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, is_content: bool = True) -> None:
        if is_content:
            self.has_content = True
        if not self.has_left and data:
            self.wrote_at = self._writing_since = asyncio.get_running_loop().time()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self._writing_since = None

    async def end(self) -> None:
        if self.is_started and not self.is_ended:
            self.is_ended = True
            if not self.has_left:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, answer: Answer) -> None:
        """A whole answer; only if nothing was sent before."""
        assert not self.is_started
        self.is_started = self.has_content = self.is_ended = True
        if not self.has_left:
            await send_answer(self._send, answer)


def _nothing(events: list[Event]) -> bool:
    return False


class StreamRelay:
    """One upstream stream on its way to the client: metered, then passed on, byte for byte unless its wire translates it.

    Kept back are the preamble (until output, a terminal event, or HELD_SECONDS), during which another account may still
    answer instead, and the beginning of an unfinished event, which a client cannot use before its end.
    """

    def __init__(
        self,
        downstream: Downstream,
        wire: Wire,
        head: tuple[int, list[tuple[bytes, bytes]]],
        *,
        before_open: Callable[[], Awaitable[None]],
        brings: Callable[[list[Event]], bool] = _nothing,
    ) -> None:
        """`before_open` is awaited before the client is sent anything, and again before events for which `brings` is true."""
        self.meter = wire.meter
        self.is_open = False
        """Has the client been sent anything of this stream?"""
        self.has_unfinished_event = False
        self.has_unended_event = False
        self._before_open = before_open
        self._brings = brings
        self._downstream = downstream
        self._wire = wire
        self._is_translated = wire.is_translated
        self._head = head
        self._scanner = sse.Scanner(wire.want, largest=metering.LARGEST_EVENT_BYTES)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._newest = b""
        self._last_whole: tuple[bytes, bytes, int] = (b"", b"", 0)
        self._held_until: float | None = None
        self._has_brought = False

    @property
    def is_refused(self) -> bool:
        """The upstream failed before it produced anything, and the client has seen nothing."""
        return self.meter.failure is not None and not self.meter.has_output and not self.is_open

    def patience(self, now: float) -> float | None:
        """Seconds until `open` is due; None if it is not waited for."""
        return None if self.is_open or self._held_until is None else max(0.0, self._held_until - now)

    def held(self) -> bytes:
        """All that was kept back so far, for an answer that is passed on as a whole."""
        return b"".join(self._waiting)

    async def feed(self, chunk: bytes) -> list[Event]:
        """Meters a chunk and passes on what may go. Returns its events."""
        events, whole = self._scanner.feed(chunk)
        for event in events:
            self.meter.see(event)
        if self._brings(events) and self.is_open:
            await self._before_open()
        if self.meter.windows is not None and not self._is_translated:
            chunk, whole = self._without_windows(chunk)
        elif self._is_translated:
            chunk = self._wire.translated(events)
            whole = len(chunk)
        if whole:
            self._last_whole = (self._newest, chunk, whole)
        self._newest = chunk
        if not self.is_open:
            self._keep(chunk)
            if self._held_until is None and self.meter.events:
                self._held_until = asyncio.get_running_loop().time() + HELD_SECONDS
            if not self.is_refused and (self.meter.has_output or self.meter.is_terminal or self._waiting_bytes > HELD_BYTES):
                await self.open()
        elif whole == len(chunk) and not self._waiting:
            await self._downstream.write(chunk)
        else:
            self._keep(chunk)
            if whole or self._waiting_bytes > TAIL_BYTES:
                await self._pass_on()
        return events

    def _without_windows(self, chunk: bytes) -> tuple[bytes, int]:
        """What is to be passed on of `chunk` and all that waits: an account's own windows are nothing for its clients."""
        ready = b"".join([*self._waiting, chunk])
        self._waiting, self._waiting_bytes = [], 0
        kept, start = [], 0
        for found in _EVENT_END.finditer(ready):
            event = ready[start : found.end()]
            if sse.name_of(event) != metering.WINDOWS:
                kept.append(event)
            start = found.end()
        ready = b"".join([*kept, ready[start:]])
        return ready, max(0, len(ready) - self._scanner.unfinished_bytes)

    async def open(self) -> None:
        """Begins the client's answer, with what was kept back."""
        await self._start()
        await self._pass_on()

    async def beat(self, heartbeat: bytes) -> None:
        """Shows the client that its stream lives, if that can be said now: between events, and while nothing is being written."""
        if self._downstream.is_writing or self.has_unfinished_event or (self.meter.events and not self.is_open):
            return
        if not self._downstream.is_started:
            await self._downstream.start(*self._head)
        await self._downstream.write(heartbeat, is_content=False)

    async def _start(self) -> None:
        self.is_open = True
        await self._before_open()
        if not self._downstream.is_started:
            await self._downstream.start(*self._head)

    def see_rest(self) -> None:
        """The upstream's stream has ended, or broken off: its last event may lack its empty line."""
        self.has_unended_event = self.has_unended_event or self._scanner.unfinished_bytes > 0
        events = metering.rest(self._scanner, self._wire.want)
        for event in events:
            self.meter.see(event)
        self._has_brought = self._brings(events)
        if self._is_translated:
            self.has_unended_event = False
            self._keep(self._wire.translated(events))

    async def finish(self) -> None:
        """The upstream's stream has ended: what is left of it is passed on, also an event without its empty line."""
        self.see_rest()
        self.meter.end()
        if self.meter.is_terminal:
            if not self.is_open:
                await self._start()
            elif self._has_brought:
                await self._before_open()
            await self._downstream.write(self.held())

    def next_sequence_number(self) -> int:
        before, last, whole = self._last_whole
        return metering.next_sequence_number(self.meter.events, before + last[:whole])

    async def break_off(self, event: bytes) -> None:
        """Ends the client's stream with an event of ours in place of an unfinished one of the upstream's."""
        if not self._downstream.is_started:
            # It was broken off before the head could be sent.
            await self._downstream.start(*self._head)
        await self._downstream.write(b"\n\n" + event if self.has_unfinished_event else event)

    def _keep(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    async def _pass_on(self) -> None:
        """Writes what waits, up to the last whole event; all of it if the unfinished one has grown too large to be kept."""
        ready = b"".join(self._waiting)
        unfinished = 0 if self._is_translated else self._scanner.unfinished_bytes
        self.has_unfinished_event = unfinished > TAIL_BYTES
        cut = len(ready) if self.has_unfinished_event else len(ready) - min(unfinished, len(ready))
        self._waiting = [ready[cut:]] if cut < len(ready) else []
        self._waiting_bytes = len(ready) - cut
        await self._downstream.write(ready[:cut])
