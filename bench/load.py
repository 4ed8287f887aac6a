"""The load: requests over kept connections, as many at a time as asked, each answer read to its end and checked."""

import asyncio
import json
import time
from dataclasses import dataclass

from bench.wire import MODEL

SCENARIOS = ("json", "sse5", "sse200", "paced", "big")
STREAMS = {"json": 32, "sse5": 32, "sse200": 32, "paced": 16, "big": 16}
"""Requests at a time."""
BIG_BYTES = 300_000


class WrongAnswer(Exception):
    """An answer that a client could not use: the run counts nothing then."""


@dataclass(frozen=True, slots=True)
class Load:
    """`requests` answered in `seconds`; `p50_ms` of one request, from its first byte out to its last byte in."""

    requests: int
    seconds: float
    p50_ms: float


def request(scenario: str, key: str, session: str) -> bytes:
    """A whole request of the Responses API, as a coding agent sends it."""
    text = f"bench:{scenario}"
    fields = {"model": MODEL, "stream": scenario != "json", "input": text, "max_output_tokens": 400, "prompt_cache_key": session}
    if scenario == "big":
        fields["instructions"] = "w" * BIG_BYTES
    body = json.dumps(fields).encode()
    head = (
        "POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\naccept: text/event-stream\r\nsession_id: {session}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, payload: bytes) -> None:
    writer.write(payload)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise WrongAnswer(head.decode(errors="replace") + (await reader.read(2000)).decode(errors="replace"))
    lower = head.lower()
    at = lower.find(b"content-length:")
    if at >= 0:
        await reader.readexactly(int(lower[at + 15 : lower.index(b"\r\n", at)]))
        return
    tail = b""
    while not tail.endswith(b"0\r\n\r\n"):
        data = await reader.read(65536)
        if not data:
            raise WrongAnswer("the connection ended within an answer")
        tail = (tail + data)[-4096:]
    if b"response.completed" not in tail:
        raise WrongAnswer("the answer has no terminal event")


async def run(port: int, scenario: str, key: str, *, seconds: float, streams: int | None = None) -> Load:
    """Sends for `seconds`, at least one request per stream, then lets what runs end. Raises WrongAnswer, ConnectionError."""
    times: list[float] = []
    started = time.perf_counter()
    until = started + seconds

    async def client(number: int) -> None:
        payload = request(scenario, key, f"session-{number}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        try:
            begun = time.perf_counter()
            while True:
                await _one(reader, writer, payload)
                ended = time.perf_counter()
                times.append(ended - begun)
                if ended >= until:
                    break
                begun = ended
        finally:
            writer.close()

    async with asyncio.TaskGroup() as group:
        for number in range(streams or STREAMS[scenario]):
            group.create_task(client(number))
    ordered = sorted(times)
    return Load(len(times), time.perf_counter() - started, ordered[len(ordered) // 2] * 1000)


async def some(port: int, scenario: str, key: str, *, count: int) -> None:
    """`count` requests, one after the other, over one connection."""
    payload = request(scenario, key, "session-0")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    for _ in range(count):
        await _one(reader, writer, payload)
    writer.close()
