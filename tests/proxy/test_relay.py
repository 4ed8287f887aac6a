"""Streams on their way to the client: byte for byte, at once, and never an event cut in two."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from proxy import relay as relaying
from proxy.dialects import responses
from proxy.relay import Downstream, StreamRelay

SAMPLES = Path(__file__).parent / "samples"
TEXT = (SAMPLES / "responses_text.sse").read_bytes()
EVENTS = [event + b"\n\n" for event in TEXT.split(b"\n\n") if event.strip()]
CREATED, IN_PROGRESS, ADDED = EVENTS[:3]


class Client:
    """What a client was sent."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.opened: list[bool] = []

    async def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    async def receive(self) -> dict[str, str]:
        return {"type": "http.disconnect"}

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]

    @property
    def body(self) -> bytes:
        return b"".join(self.bodies)


def make() -> tuple[StreamRelay, Client, Downstream]:
    client = Client()
    downstream = Downstream(client.send, client.receive)

    async def before_open() -> None:
        client.opened.append(downstream.is_started)

    wire = responses.wire(responses.inspect(b'{"model":"m","stream":true}'), model="m", kind="openai")
    return StreamRelay(downstream, wire, (200, [(b"a", b"b")]), before_open=before_open), client, downstream


async def test_a_whole_stream_passes_unchanged_however_it_is_split() -> None:
    """N56 of the way back, L4: bytes stay as they were, also a letter that is cut."""
    data = TEXT.replace(b"Hello", "Hel한🦊lo".encode())
    for seed in range(60):
        rng = random.Random(seed)
        relay, client, downstream = make()
        at = 0
        while at < len(data):
            step = rng.choice([1, 2, 40, 700, 5000])
            await relay.feed(data[at : at + step])
            at += step
        await relay.finish()
        await downstream.end()
        assert client.body == data
        assert client.messages[0] == {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
        assert client.opened == [False]
        for body in client.bodies:
            assert body == b"" or body.endswith(b"\n\n")


async def test_each_event_leaves_with_the_chunk_that_completed_it() -> None:
    relay, client, _ = make()
    for event in EVENTS[:3]:
        await relay.feed(event)
    assert client.bodies == [CREATED + IN_PROGRESS + ADDED]
    for event in EVENTS[3:]:
        await relay.feed(event)
        assert client.bodies[-1] is event


async def test_the_preamble_is_kept_back_for_a_moment_only() -> None:
    relay, client, _ = make()
    loop = asyncio.get_running_loop()
    assert relay.patience(loop.time()) is None
    await relay.feed(CREATED)
    await relay.feed(IN_PROGRESS)
    assert client.messages == []
    patience = relay.patience(loop.time())
    assert patience is not None
    assert 0 < patience <= relaying.HELD_SECONDS
    await relay.open()
    assert client.body == CREATED + IN_PROGRESS
    assert relay.patience(loop.time()) is None


async def test_a_failure_right_after_the_preamble_reaches_nobody() -> None:
    """N33: a refusal inside a 200 stream can still be answered by another account."""
    relay, client, _ = make()
    data = (SAMPLES / "responses_failed_rate_limit.sse").read_bytes()
    await relay.feed(data)
    assert relay.is_refused
    assert client.messages == []
    assert relay.held() == data


async def test_a_failure_after_output_is_passed_on() -> None:
    relay, client, _ = make()
    failed = b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"code":"server_error"}}}\n\n'
    await relay.feed(CREATED + ADDED)
    await relay.feed(failed)
    assert not relay.is_refused
    assert client.body == CREATED + ADDED + failed
    assert relay.meter.status == "failed"


async def test_breaking_off_leaves_whole_events_with_numbers_in_order() -> None:
    """N20"""
    relay, client, downstream = make()
    await relay.feed(b"".join(EVENTS[:6]))
    await relay.feed(EVENTS[6][:50])
    number = relay.next_sequence_number()
    event = responses.failed_event(
        response_id="r", model="m", created_at=1, sequence_number=number, code="stream_incomplete", message="cut"
    )
    await relay.break_off(event)
    await downstream.end()
    assert client.body == b"".join(EVENTS[:6]) + event
    numbers = [json.loads(part.split(b"data: ", 1)[1])["sequence_number"] for part in client.body.split(b"\n\n") if part]
    assert numbers == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("cut", [1, 20, 100])
async def test_the_number_is_right_when_the_last_event_came_in_pieces(cut: int) -> None:
    relay, _, _ = make()
    data = b"".join(EVENTS[:6])
    position = len(data) - cut
    await relay.feed(data[:position])
    await relay.feed(data[position:])
    assert relay.next_sequence_number() == 6


async def test_an_event_too_large_to_be_kept_passes_in_pieces_and_is_ended_first() -> None:
    relay, client, _ = make()
    await relay.feed(CREATED + ADDED)
    head = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"'
    await relay.feed(head)
    assert client.body == CREATED + ADDED
    for _ in range(10):
        await relay.feed(b"x" * 16384)
    assert len(client.body) > 100_000
    assert relay._waiting_bytes <= relaying.TAIL_BYTES
    await relay.break_off(b"data: {}\n\n")
    assert client.body.endswith(b"xxx\n\ndata: {}\n\n")


async def test_the_end_without_an_empty_line_is_still_the_end() -> None:
    relay, client, downstream = make()
    await relay.feed(TEXT.rstrip(b"\n") + b"\n")
    assert not relay.meter.is_terminal
    await relay.finish()
    await downstream.end()
    assert relay.meter.status == "ok"
    assert client.body == TEXT.rstrip(b"\n") + b"\n"


async def test_nothing_is_written_to_a_client_that_has_left_but_metering_goes_on() -> None:
    relay, client, downstream = make()
    await relay.feed(b"".join(EVENTS[:6]))
    left: list[bool] = []

    await downstream.watch(lambda: left.append(True))
    assert left == [True]
    before = client.body
    await relay.feed(b"".join(EVENTS[6:]))
    await downstream.end()
    assert client.body == before
    assert relay.meter.usage is not None


async def test_leaving_after_the_end_is_not_leaving() -> None:
    _, client, downstream = make()
    await downstream.start(200, [])
    await downstream.end()

    await downstream.watch(lambda: pytest.fail("heard"))
    assert not downstream.has_left
    assert client.bodies == [b""]


WINDOWS = (
    b"event: codex.rate_limits\n"
    b'data: {"type":"codex.rate_limits","plan_type":"plus","rate_limits":{"primary":{"used_percent":42}}}\n\n'
)


@pytest.mark.parametrize(
    "told",
    [
        WINDOWS,
        WINDOWS.partition(b"\n")[2],
        WINDOWS.replace(b"\n", b"\r\n"),
        b": hello\n" + WINDOWS,
        b"id: 7\n" + WINDOWS,
        b"\n" + WINDOWS,
        WINDOWS.replace(b"limits\n", b"limits  \n"),
        WINDOWS.replace(b": ", b":"),
        b'data: {"plan_type":"plus","type":"codex.rate_limits"}\n\n',
        b'data: {"type":"codex\\u002erate_limits","plan_type":"plus"}\n\n',
        b'event: codex.rate_limits\ndata: {"plan_type":\ndata: "plus"}\n\n',
    ],
)
async def test_the_windows_of_an_account_are_taken_out_however_the_stream_is_split(told: bytes) -> None:
    """N6: they are the pool's business; every other byte stays, also a text that names such an event."""
    said = TEXT.replace(b"Hello", b"event: codex.rate_limits")
    events = [event + b"\n\n" for event in said.split(b"\n\n") if event.strip()]
    data = told + events[0] + told + b"".join(events[1:8]) + told + b"".join(events[8:])
    for seed in range(80):
        rng = random.Random(seed)
        relay, client, downstream = make()
        seen = 0
        at = 0
        while at < len(data):
            step = rng.choice([1, 3, 50, 400, 5000])
            await relay.feed(data[at : at + step])
            if relay.meter.windows is not None:
                seen += 1
                relay.meter.windows = None
            at += step
        await relay.finish()
        await downstream.end()
        assert client.body == said
        assert seen >= 1
