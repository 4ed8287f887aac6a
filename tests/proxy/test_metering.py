"""What a stream of events says it cost."""

import json
from pathlib import Path

import pytest

from billing import tokens
from billing.errors import ImplausibleUsage
from billing.tokens import TokenUsage
from proxy import metering, sse
from proxy.metering import Meter

SAMPLES = Path(__file__).parent / "samples"


def metered(data: bytes) -> Meter:
    meter = Meter()
    scanner = sse.Scanner(metering.want, largest=metering.LARGEST_EVENT_BYTES)
    for event in scanner.feed(data)[0] + scanner.end():
        meter.see(event)
    return meter


def stream(*events: dict[str, object]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (str(e["type"]).encode(), json.dumps(e).encode()) for e in events)


def test_the_text_sample() -> None:
    meter = metered((SAMPLES / "responses_text.sse").read_bytes())
    assert meter.status == "ok"
    assert meter.response_id == "resp_65d06a13213f421f887a3961c890fa47"
    assert (meter.model, meter.service_tier) == ("gpt-5.4", "default")
    assert meter.usage is not None
    assert (meter.usage["input_tokens"], meter.usage["output_tokens"]) == (120, 9)
    assert meter.has_output
    assert meter.events == 11


@pytest.mark.parametrize(("name", "status"), [("completed", "ok"), ("incomplete", "incomplete"), ("failed", "failed")])
def test_every_terminal_event_counts(name: str, status: str) -> None:
    """B3: completed, incomplete and failed, each with usage."""
    usage = {"input_tokens": 900, "output_tokens": 300}
    meter = metered(stream({"type": f"response.{name}", "response": {"id": "r", "model": "m", "usage": usage}}))
    assert (meter.status, meter.usage) == (status, usage)
    assert meter.is_terminal


def test_a_failure_after_the_preamble_is_not_output() -> None:
    meter = metered((SAMPLES / "responses_failed_rate_limit.sse").read_bytes())
    assert not meter.has_output
    assert meter.status == "failed"
    assert meter.failure is not None
    assert json.loads(meter.failure)["response"]["error"]["code"] == "rate_limit_exceeded"


def test_an_error_event_is_a_failure_but_not_terminal() -> None:
    meter = metered(stream({"type": "error", "code": "server_is_overloaded", "message": "x"}))
    assert (meter.has_output, meter.is_terminal) == (False, False)
    assert meter.failure is not None


def test_output_is_estimated_from_the_deltas() -> None:
    """B4: 700 tokens in 700 deltas; 2,800 bytes of text; whichever tells more."""
    short = metered(stream(*[{"type": "response.output_text.delta", "delta": "x"}] * 700))
    long = metered(stream(*[{"type": "response.function_call_arguments.delta", "delta": "x" * 28}] * 100))
    assert (short.output_estimate, long.output_estimate) == (700, 700)
    assert metered(stream({"type": "response.created", "response": {"id": "r"}})).output_estimate == 0


def test_items_that_come_whole_are_estimated_by_their_size() -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "y" * 4000}]}
    meter = metered(stream({"type": "response.output_item.done", "item": item}))
    assert 900 < meter.output_estimate < 1100
    with_deltas = metered(
        stream(
            {"type": "response.output_text.delta", "delta": "y" * 400},
            {"type": "response.output_item.done", "item": item},
        )
    )
    assert with_deltas.output_estimate == 100


def test_fields_of_unknown_shape_hide_nothing() -> None:
    meter = metered(
        stream({"type": "response.completed", "response": {"id": 5, "model": ["x"], "usage": {"input_tokens": 1}, "status": None}})
    )
    assert (meter.response_id, meter.model, meter.usage, meter.status) == ("", "", {"input_tokens": 1}, "ok")


def test_ids_that_the_log_cannot_take_are_no_ids() -> None:
    created = {"type": "response.created", "response": {"id": "r" * 500, "model": "m\u0000"}}
    meter = metered(stream(created))
    assert (meter.response_id, meter.model) == ("", "")


def test_a_whole_response_is_read_like_a_stream() -> None:
    meter = Meter()
    meter.see_response(b'{"id":"resp_1","status":"incomplete","model":"m","service_tier":"default","usage":{"input_tokens":3}}')
    assert (meter.response_id, meter.status, meter.usage) == ("resp_1", "incomplete", {"input_tokens": 3})
    meter = Meter()
    meter.see_response(b"not json")
    assert (meter.status, meter.usage) == ("", None)


def test_the_next_sequence_number_follows_the_last_one_seen() -> None:
    assert metering.next_sequence_number(3, b'data: {"sequence_number": 41,"x":1}\n\n') == 42
    assert metering.next_sequence_number(3, b'data: {"delta":"\\"sequence_number\\":7"}\n\n') == 3
    assert metering.next_sequence_number(0, b"") == 0


def test_the_two_usages_of_a_messages_stream_are_one() -> None:
    """The later counts are totals; what stands in the first only is kept, and nothing that was counted is lost."""
    began = {"input_tokens": 500, "cache_read_input_tokens": 9500, "cache_creation_input_tokens": 0, "output_tokens": 1}
    later = {
        "output_tokens": 200,
        "input_tokens": 0,
        "cache_read_input_tokens": None,
        "server_tool_use": {"web_search_requests": 1},
    }
    merged = metering.merged_usage(began, later)
    assert tokens.normalise(merged, "messages") == TokenUsage(input=500, cached_input=9500, output=200)
    assert metering.merged_usage(began, None) == began
    assert metering.merged_usage(None, later) == later
    assert metering.merged_usage(None, None) is None
    assert began["output_tokens"] == 1


def test_a_negative_count_is_not_hidden_by_the_other() -> None:
    """D5: in either of the two it is seen, and refused."""
    for began, later in ((-5, 200), (200, -5)):
        merged = metering.merged_usage({"input_tokens": 1, "output_tokens": began}, {"output_tokens": later})
        with pytest.raises(ImplausibleUsage):
            tokens.normalise(merged, "messages")
