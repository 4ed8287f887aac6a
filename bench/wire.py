"""The two plain programs that a run needs beside the gateway: an upstream that answers at once, and a relay that does nothing else.

    python -m bench.wire upstream PORT
    python -m bench.wire relay PORT UPSTREAM_PORT

Both speak just enough HTTP/1.1 for the load that `bench.load` makes: kept connections, bodies with a length, chunked answers.
"""

import asyncio
import json
import sys
from typing import Any, cast

import uvloop

MODEL = "gpt-5.5"
EVENTS = {"sse5": 5, "sse200": 200, "paced": 200, "big": 5}
PACE_SECONDS = 0.01
EVENT_BYTES = 150


def event(kind: str, fields: dict[str, Any]) -> bytes:
    """As it goes on the wire."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, separators=(',', ':'))}\n\n".encode()


def delta(number: int) -> bytes:
    """An event of EVENT_BYTES."""
    fields = {"sequence_number": number, "delta": ""}
    short = len(event("response.output_text.delta", fields))
    return event("response.output_text.delta", {**fields, "delta": "w" * max(1, EVENT_BYTES - short)})


def response(status: str, **fields: Any) -> dict[str, Any]:
    return {"id": "resp_bench", "object": "response", "status": status, "model": MODEL, "service_tier": "default", **fields}


def events(scenario: str) -> list[bytes]:
    """The events of one answer, each as it goes on the wire: created, deltas of EVENT_BYTES, completed with usage."""
    count = EVENTS[scenario]
    usage = {
        "input_tokens": 1000,
        "input_tokens_details": {"cached_tokens": 800},
        "output_tokens": count,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 1000 + count,
    }
    first = event("response.created", {"sequence_number": 0, "response": response("in_progress", output=[])})
    last = {"sequence_number": count - 1, "response": response("completed", output=[], usage=usage)}
    return [first, *(delta(number) for number in range(1, count - 1)), event("response.completed", last)]


def _json_answer() -> bytes:
    usage = {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 800}, "output_tokens": 5, "total_tokens": 1005}
    body = json.dumps(response("completed", output=[], usage=usage)).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Requests(asyncio.Protocol):
    """Reads requests with a length from a kept connection; `received` gets head and body of each."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own class, which is none of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.buffer[: end + 4])
            lower = head.lower()
            at = lower.find(b"content-length:")
            length = 0 if at < 0 else int(lower[at + 15 : lower.index(b"\r\n", at)])
            if len(self.buffer) < end + 4 + length:
                return
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            self.received(head, body)

    def received(self, head: bytes, body: bytes) -> None:
        raise NotImplementedError


class Upstream(Requests):
    """Answers by the scenario that the body names, `bench:<scenario>`: as fast as it goes, or one event every PACE_SECONDS.

    Each event is a write of its own in a turn of the loop of its own, as a model sends them, so that the one behind cannot count
    on getting all of an answer at once.
    """

    JSON = _json_answer()
    SINGLE = {name: [chunk(one) for one in events(name)] for name in EVENTS}

    def received(self, head: bytes, body: bytes) -> None:
        assert self.transport is not None
        at = body.find(b"bench:") + 6
        scenario = body[at : body.index(b'"', at)].decode()
        if scenario == "json":
            self.transport.write(self.JSON)
        else:
            self.transport.write(HEAD)
            self.stream(self.SINGLE[scenario], 0, PACE_SECONDS if scenario == "paced" else 0)

    def stream(self, single: list[bytes], number: int, pause: float) -> None:
        assert self.transport is not None
        if self.transport.is_closing():
            return
        self.transport.write(single[number])
        if number + 1 == len(single):
            self.transport.write(END)
        else:
            asyncio.get_running_loop().call_later(pause, self.stream, single, number + 1, pause)


class Back(asyncio.Protocol):
    """The relay's connection to the upstream: hands bytes to whose request it carries until the answer has ended."""

    def __init__(self, relay: "Relay") -> None:
        self.relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.relay.back = cast(asyncio.Transport, transport)
        self.relay.back.write(bytes(self.relay.waiting))
        self.relay.waiting.clear()

    def data_received(self, data: bytes) -> None:
        assert self.relay.transport is not None
        self.relay.transport.write(data)


class Relay(Requests):
    """Forwards bytes, nothing else: no key, no quota, no count. One upstream connection per client connection, kept."""

    port = 0

    def __init__(self) -> None:
        super().__init__()
        self.back: asyncio.Transport | None = None
        self.waiting = bytearray()
        self.opening: asyncio.Task[Any] | None = None

    def received(self, head: bytes, body: bytes) -> None:
        if self.back is not None:
            self.back.write(head + body)
            return
        self.waiting += head + body
        if self.opening is None:
            loop = asyncio.get_running_loop()
            self.opening = loop.create_task(loop.create_connection(lambda: Back(self), "127.0.0.1", self.port))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.back is not None:
            self.back.close()


async def _serve(kind: str, port: int, upstream_port: int) -> None:
    Relay.port = upstream_port
    factory = Upstream if kind == "upstream" else Relay
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", port, backlog=512)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
