"""The upstream of the endurance run: it stops in the middle of every answer until it is told to go on, over HTTP and WebSocket.

    python -m bench.holding PORT

POST /control/release lets all answers end that have begun; those that begin later wait again. GET /control/held counts those that
wait. A request whose text is `bench:short` does not wait. While an answer waits, it sends one more event every SECONDS.
"""

import asyncio
import json
import sys
from collections.abc import Callable

import uvloop
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from bench.wire import END, HEAD, Requests, chunk, delta, event, response

SECONDS = 1.0
FIRST_DELTAS = 10
USAGE = {
    "input_tokens": 1000,
    "input_tokens_details": {"cached_tokens": 800},
    "output_tokens": 100,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 1100,
}
MICRO_CREDITS = 200 * 125 + 800 * 125 // 10 + 100 * 750
"""What USAGE costs: 125, 12.5 and 750 credits for a million of MODEL's tokens of input, cached input and output."""
HOLDS_MARK = b"bench:held"

waiting: "set[Answer]" = set()


class Answer:
    """One answer: its beginning at once, an event every SECONDS, its end when it is released.

    `write` takes events as a stream has them, `finish` is called after the last one.
    """

    number = 0

    def __init__(self, write: Callable[[bytes], None], finish: Callable[[], None], *, is_held: bool) -> None:
        Answer.number += 1
        self._id = f"resp_bench_{Answer.number}"
        self._write = write
        self._finish = finish
        self._timer: asyncio.TimerHandle | None = None
        self._written = 0
        self._event("response.created", response=response("in_progress", id=self._id, output=[]))
        for _ in range(FIRST_DELTAS):
            self._delta()
        if is_held:
            waiting.add(self)
            self._later()
        else:
            self.end()

    def end(self) -> None:
        self.drop()
        self._event("response.completed", response=response("completed", id=self._id, output=[], usage=USAGE))
        self._finish()

    def drop(self) -> None:
        """Nobody listens any more."""
        waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SECONDS, self._tick)

    def _tick(self) -> None:
        self._delta()
        self._later()

    def _delta(self) -> None:
        self._write(delta(self._written))
        self._written += 1

    def _event(self, name: str, **fields: object) -> None:
        self._write(event(name, {"sequence_number": self._written, **fields}))
        self._written += 1


class Upstream(Requests):
    """A connection of either sort."""

    answer: Answer | None = None
    protocol: ServerProtocol | None = None

    def data_received(self, data: bytes) -> None:
        if self.protocol is not None:
            self._receive(data)
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None:
            self.answer.drop()

    def received(self, head: bytes, body: bytes) -> None:
        assert self.transport is not None
        target = head.split(b" ", 2)[1]
        if target.startswith(b"/control/"):
            if target == b"/control/release":
                for answer in list(waiting):
                    answer.end()
            told = json.dumps({"waiting": len(waiting)}).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(told), told))
        elif b"\r\nupgrade: websocket\r\n" in head.lower():
            self.protocol = ServerProtocol(max_size=None)
            self._receive(head)
        else:
            self.transport.write(HEAD)
            self.answer = Answer(self._write_event, self._end_stream, is_held=HOLDS_MARK in body)

    # -- HTTP

    def _write_event(self, data: bytes) -> None:
        self._write(chunk(data))

    def _end_stream(self) -> None:
        self._write(END)

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    # -- WebSocket

    def _receive(self, data: bytes) -> None:
        protocol = self.protocol
        assert protocol is not None
        protocol.receive_data(data)
        for found in protocol.events_received():
            if isinstance(found, Request):
                protocol.send_response(protocol.accept(found))
            elif isinstance(found, Frame) and found.opcode is Opcode.TEXT:
                # Our own clients' frames come whole.
                self.answer = Answer(self._send_event, _nothing, is_held=HOLDS_MARK in found.data)
        self._flush()
        if protocol.close_expected() and self.transport is not None:
            self.transport.close()

    def _send_event(self, data: bytes) -> None:
        assert self.protocol is not None
        if self.protocol.state is State.OPEN:
            self.protocol.send_text(data[data.index(b"data: ") + 6 : -2])
            self._flush()

    def _flush(self) -> None:
        assert self.protocol is not None
        for data in self.protocol.data_to_send():
            if data:
                self._write(data)


def _nothing() -> None:
    """A socket's answer has no end but its last event."""


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
