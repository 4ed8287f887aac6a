"""Bytes to events, however the bytes are cut."""

import random
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.sse import Event, Scanner, Want

SAMPLES = Path(__file__).parent / "samples"


def want(name: str) -> Want:
    if name.endswith(".delta"):
        return Want.DELTA
    return Want.WHOLE if name in ("response.completed", "response.created", "error") else Want.COUNT


def read(*chunks: bytes, largest: int = 1 << 26) -> list[Event]:
    scanner = Scanner(want, largest=largest)
    events = []
    for chunk in chunks:
        events += scanner.feed(chunk)[0]
    return events + scanner.end()


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.sse")), ids=lambda path: path.stem)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_stream_cut_at_every_byte_gives_the_same_events(path: Path, newline: bytes) -> None:
    data = path.read_bytes().replace(b"\n", newline)
    whole = read(data)
    # Sizes of a delta split over chunks are told by its envelope; names and wanted data must be the same to the byte.
    expected = [(event.name, event.size, event.data) for event in whole]
    assert len(expected) == data.count(newline * 2 + b"event") + data.count(newline * 2 + b"data") + 1
    for position in range(1, len(data), 7):
        cut = read(data[:position], data[position:])
        assert [(event.name, event.size, event.data) for event in cut] == expected
    assert [(e.name, e.size, e.data) for e in read(*[data[i : i + 1] for i in range(len(data))])] == expected


def test_names_and_data_of_the_text_sample() -> None:
    events = read((SAMPLES / "responses_text.sse").read_bytes())
    assert [event.name for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.delta_bytes for event in events if event.delta_bytes] == [5, 5, 10]
    assert events[-1].data is not None
    assert events[-1].data.startswith(b'{"type": "response.completed"')
    assert sum(event.size for event in events) == (SAMPLES / "responses_text.sse").stat().st_size


def test_the_event_line_may_be_absent_and_type_may_come_last() -> None:
    """The outer type decides, not the type of something inside."""
    events = read(
        b'data: {"type":"response.completed","response":{"id":"a"}}\n\n'
        b'data: {"response":{"output":[{"type":"message"}],"id":"b"},"sequence_number":3,"type":"response.completed"}\n\n'
        b'data: {"item":{"type":"response.completed"},"type":"response.output_item.done"}\n\n'
    )
    assert [event.name for event in events] == ["response.completed", "response.completed", "response.output_item.done"]
    assert events[1].data is not None


def test_a_terminal_name_inside_text_is_only_text() -> None:
    events = read(
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"response.completed"}\n\n'
        b'data: {"type":"response.output_text.delta","delta":"\\"type\\":\\"response.completed\\""}\n\n'
    )
    assert [(event.name, event.data) for event in events] == [("response.output_text.delta", None)] * 2


def test_a_delta_is_measured_to_its_closing_quote() -> None:
    events = read(
        b'data: {"type":"x.delta","delta":"a\\"b\\\\","obfuscation":"zzzz"}\n\n'
        b'data: {"type":"x.delta","delta": "","obfuscation":"zzzz"}\n\n'
        b'data: {"type":"x.delta","delta":{"a":1}}\n\n'
    )
    assert [event.delta_bytes for event in events] == [6, 0, 0]


def test_comments_and_blank_lines_are_no_events() -> None:
    events = read(b': ping\n\n\n\n: ping\r\n\r\nevent: keepalive\ndata: {"type":"keepalive"}\n\n: a\ndata: {"type":"error"}\n\n')
    assert [event.name for event in events] == ["keepalive", "error"]


def test_an_event_of_several_data_lines_is_joined() -> None:
    (event,) = read(b'event: response.completed\ndata: {"type":\ndata: "response.completed"}\n\n')
    assert event.data == b'{"type":\n"response.completed"}'


def test_the_end_of_a_stream_without_its_last_blank_line_is_read() -> None:
    (event,) = read(b'data: {"type":"response.completed","response":{"id":"r"}}\n')
    assert (event.name, event.data) == ("response.completed", b'{"type":"response.completed","response":{"id":"r"}}')


def test_the_position_tells_where_whole_events_end() -> None:
    scanner = Scanner(want, largest=1 << 20)
    assert scanner.feed(b"data: {}\n\ndata: {") == ([Event("", 10)], 10)
    assert scanner.unfinished_bytes == 7
    assert scanner.feed(b"}\n") == ([], 0)
    events, position = scanner.feed(b"\ndata: {}\n\n")
    assert (len(events), position) == (2, 11)
    assert scanner.unfinished_bytes == 0


@settings(max_examples=150, deadline=None)
@given(
    names=st.lists(
        st.sampled_from(["response.created", "response.output_text.delta", "response.completed", "keepalive"]), max_size=8
    ),
    sizes=st.lists(st.integers(0, 1500), min_size=8, max_size=8),
    newline=st.sampled_from([b"\n", b"\r\n"]),
    seed=st.integers(0, 2**32),
)
def test_any_split_reads_like_none(names: list[str], sizes: list[int], newline: bytes, seed: int) -> None:
    events = []
    for name, size in zip(names, sizes, strict=False):
        text = f'{{"type":"{name}","delta":"{"한" * (size // 3)}"}}'.encode()
        events.append((b"event: " + name.encode() + newline if seed % 2 else b"") + b"data: " + text + newline + newline)
    data = b"".join(events)
    rng = random.Random(seed)
    chunks, at = [], 0
    while at < len(data):
        step = rng.choice([1, 2, 3, 50, 700])
        chunks.append(data[at : at + step])
        at += step
    got = read(*chunks)
    assert [event.name for event in got] == names
    assert [event.size for event in got] == [len(event) for event in events]
    for event, source in zip(got, events, strict=True):
        if event.data is not None:
            assert b"data: " + event.data + newline + newline in source


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"', False),
        (b'event: response.completed\ndata: {"type":"response.completed","x":"', True),
    ],
)
@pytest.mark.alone
def test_an_event_of_8_mib_takes_linear_time(head: bytes, kept: bool) -> None:
    """N24: in 16 KiB chunks; what is not wanted is not kept."""

    def seconds(size: int) -> tuple[float, int]:
        chunk = b"x" * 16384
        chunks = [head, *[chunk] * (size // len(chunk)), b'"}\n\n']
        tracemalloc.start()
        began = time.perf_counter()
        (event,) = read(*chunks)
        took = time.perf_counter() - began
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert event.size == len(head) + size + 4
        assert (event.data is not None) is kept
        return took, peak

    small, _ = seconds(1 << 20)
    large, peak = seconds(8 << 20)
    assert large < 40 * small + 0.05
    assert peak < (18 << 20 if kept else 1 << 18)


def test_an_event_above_the_bound_is_known_by_its_name_alone() -> None:
    head = b'event: response.completed\ndata: {"type":"response.completed","x":"'
    scanner = Scanner(want, largest=100_000)
    assert scanner.feed(head) == ([], 0)
    for _ in range(20):
        assert scanner.feed(b"x" * 10_000) == ([], 0)
    events, position = scanner.feed(b'"}\n\n')
    assert (events, position) == ([Event("response.completed", len(head) + 200_004)], 4)
