"""What a stream of chunks, or one completion, says it cost."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing import tokens
from proxy import metering, sse
from proxy.dialects.chat_meter import ChatMeter, WholeMeter
from proxy.sse import Want

SAMPLES = Path(__file__).parent / "samples"
USAGE = {"prompt_tokens": 120, "completion_tokens": 9, "total_tokens": 129}


def metered(data: bytes, meter: ChatMeter | None = None) -> ChatMeter:
    meter = meter or ChatMeter()
    scanner = sse.Scanner(lambda name: Want.WHOLE, largest=metering.LARGEST_EVENT_BYTES)
    for event in scanner.feed(data)[0] + scanner.end():
        meter.see(event)
    return meter


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, *, index: int = 0, **fields: Any) -> bytes:
    choices = [{"index": index, "delta": delta or {}, "finish_reason": finish}]
    return b"data: %s\n\n" % json.dumps({"id": "chatcmpl-1", "model": "m", "choices": choices, **fields}).encode()


def last(usage: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps({"id": "chatcmpl-1", "choices": [], "usage": usage}).encode()


DONE = b"data: [DONE]\n\n"


def test_the_sample() -> None:
    meter = metered((SAMPLES / "chat_completions_stream.sse").read_bytes())
    assert (meter.status, meter.response_id, meter.model, meter.events) == ("ok", "chatcmpl-1", "gpt-5.4", 5)
    found = tokens.normalise(meter.usage, meter.dialect)
    assert found is not None
    assert (found.input, found.cached_input, found.output, found.reasoning) == (56, 64, 9, 3)


def test_the_role_alone_is_not_output_and_a_failure_behind_it_is_movable() -> None:
    meter = metered(chunk({"role": "assistant", "content": "", "refusal": None}))
    assert (meter.has_output, meter.is_terminal) == (False, False)
    metered(b'data: {"error":{"message":"x","code":"rate_limit_exceeded"}}\n\n', meter)
    assert (meter.has_output, meter.status) == (False, "failed")
    assert meter.failure is not None
    assert json.loads(meter.failure)["error"]["code"] == "rate_limit_exceeded"


def test_cut_before_done_but_after_the_usage_the_usage_counts() -> None:
    meter = metered(chunk({"content": "x"}) + chunk(finish="stop") + last(USAGE))
    assert (meter.status, meter.usage) == ("ok", USAGE)


def test_without_its_usage_only_done_ends_it() -> None:
    meter = metered(chunk({"content": "x"}) + chunk(finish="stop"))
    assert not meter.is_terminal
    assert metered(DONE, meter).status == "ok"


def test_a_stream_that_ends_in_good_order_is_whole_if_its_answers_have_finished() -> None:
    meter = metered(chunk({"content": "x"}))
    meter.end()
    assert not meter.is_terminal
    metered(chunk(finish="length"), meter).end()
    assert (meter.status, meter.usage) == ("incomplete", None)


def test_two_answers_end_when_both_have() -> None:
    """Usage that comes along with each chunk must not end a stream in which another answer still runs."""
    meter = metered(chunk(finish="stop", usage=USAGE), ChatMeter(choices=2))
    assert not meter.is_terminal
    metered(chunk({"content": "more"}, index=1, usage=USAGE), meter)
    assert not meter.is_terminal
    assert metered(chunk(finish="length", index=1, usage=USAGE), meter).status == "incomplete"


def test_of_growing_usage_the_last_counts_and_nothing_after_done() -> None:
    meter = metered(chunk({"content": "x"}, usage={"prompt_tokens": 1}) + chunk(finish="stop", usage=USAGE))
    later = {**USAGE, "completion_tokens": 10}
    metered(last(later) + DONE + last({"prompt_tokens": 0}), meter)
    assert (meter.usage, meter.status) == (later, "ok")


@pytest.mark.parametrize(
    ("finish", "status", "calls"),
    [
        ("stop", "ok", False),
        ("length", "incomplete", False),
        ("content_filter", "incomplete", False),
        ("tool_calls", "ok", True),
        ("function_call", "ok", True),
    ],
)
def test_how_an_answer_finished(finish: str, status: str, calls: bool) -> None:
    meter = metered(chunk(finish=finish) + DONE)
    assert (meter.status, meter.calls_tools, meter.has_output) == (status, calls, True)


def test_output_is_estimated_from_every_kind_of_text() -> None:
    """B4: 2,800 bytes are 700 tokens, whatever carries them; and one token a delta at least."""
    calls = [{"index": 0, "function": {"arguments": "x" * 28}}]
    custom = [{"index": 0, "custom": {"input": "x" * 28}}]
    for delta in (
        {"content": "x" * 28},
        {"reasoning_content": "x" * 28, "reasoning": "x" * 28},
        {"refusal": "x" * 28},
        {"tool_calls": calls},
        {"tool_calls": custom},
        {"function_call": {"arguments": "x" * 28}},
        {"content": [{"type": "text", "text": "x" * 28}]},
    ):
        assert metered(chunk(delta) * 100).output_estimate == 700
    assert metered(chunk({"content": "x"}) * 700).output_estimate == 700
    half = b'data: {"choices":[{"index":0,"delta":{"content":"abcd\\ud83d"}}]}\n\n'
    assert metered(half).output_estimate == 2


def test_a_whole_completion() -> None:
    meter = ChatMeter()
    message = {"role": "assistant", "tool_calls": [{"id": "c"}]}
    body = {"id": "chatcmpl-2", "model": "m", "service_tier": "priority", "usage": USAGE}
    data = json.dumps({**body, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}).encode()
    meter.see_bytes(len(data))
    meter.see_response(data)
    assert (meter.status, meter.usage, meter.calls_tools) == ("ok", USAGE, True)
    assert (meter.response_id, meter.model, meter.service_tier) == ("chatcmpl-2", "m", "priority")


def test_an_error_with_status_200_is_a_failure_that_costs_nothing() -> None:
    meter = ChatMeter()
    data = b'{"error":{"message":"boom"}}'
    meter.see_bytes(len(data))
    meter.see_response(data)
    assert (meter.status, meter.has_output, meter.output_estimate) == ("failed", False, 0)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b'"x"', b"nonsense", b'{"choices":3}', b'{"choices":[[],{"delta":[]}]}'])
def test_what_is_no_chunk_changes_nothing(data: bytes) -> None:
    meter = ChatMeter()
    meter.see_response(data)
    metered(b"data: " + data + b"\n\n", meter)
    assert (meter.status, meter.usage, meter.has_output) == ("", None, False)


_WORDS = """id model choices usage error index delta message finish_reason content refusal reasoning_content tool_calls
function_call function custom name arguments input text stop length prompt_tokens completion_tokens"""
_words = st.sampled_from(_WORDS.split())
_odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _words | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=5),
    max_leaves=15,
)


@given(st.lists(st.dictionaries(_words, _odd, max_size=6), max_size=5))
@settings(max_examples=200, deadline=None)
def test_whatever_an_upstream_says_is_metered(said: list[dict[str, Any]]) -> None:
    meter = metered(b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in said) + DONE)
    assert meter.is_terminal
    assert meter.output_estimate >= 0
    assert all(text.isprintable() and len(text) <= 120 for text in (meter.response_id, meter.model, meter.service_tier))
    for one in said:
        ChatMeter().see_response(json.dumps(one).encode())


def test_deltas_that_come_whole_are_measured_all_the_same() -> None:
    meter = WholeMeter()
    data = b'data: {"type":"response.output_text.delta","output_index":0,"delta":"%s"}\n\n' % (b"x" * 28)
    scanner = sse.Scanner(lambda name: Want.WHOLE, largest=metering.LARGEST_EVENT_BYTES)
    for event in scanner.feed(data * 100)[0]:
        meter.see(event)
    assert meter.output_estimate == 700
