"""Chat Completions: what is read of a request, what accounts that speak it are sent, and what their stream becomes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import metering, sse
from proxy.dialects import chat
from proxy.dialects.inspection import ModelMissing
from proxy.dialects.wire import Wire
from proxy.errors import InvalidJson
from proxy.sse import Event
from routing.snapshots import CHATGPT, COMPATIBLE, OPENAI

SAMPLES = Path(__file__).parent / "samples"
MESSAGES = [{"role": "user", "content": "hi"}]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "gpt-5.5", "messages": MESSAGES, **fields}).encode()


def native(raw: bytes, *, model: str = "gpt-5.5", kind: str = OPENAI) -> Wire:
    return chat.wire(chat.inspect(raw), model=model, kind=kind)


def through(wire: Wire, data: bytes, sizes: list[int] | None = None) -> bytes:
    """What a client gets of a stream that comes in pieces of these sizes, gone through in a circle."""
    scanner = sse.Scanner(wire.want, largest=metering.LARGEST_EVENT_BYTES)
    out, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)] if sizes else len(data)
        events, _ = scanner.feed(data[at : at + size])
        for event in events:
            wire.meter.see(event)
        out.append(wire.translated(events))
        at, turn = at + size, turn + 1
    events = metering.rest(scanner, wire.want)
    for event in events:
        wire.meter.see(event)
    return b"".join([*out, wire.translated(events)])


# ---------------------------------------------------------------------------------------------------------------- reading


def test_reads_what_it_needs() -> None:
    found = chat.inspect(
        body(
            stream=True,
            store=True,
            service_tier="priority",
            reasoning_effort="high",
            prompt_cache_key="thread",
            max_completion_tokens=100,
        )
    )
    assert (found.model, found.stream, found.service_tier, found.is_fast) == ("gpt-5.5", True, "priority", True)
    assert (found.reasoning_effort, found.prompt_cache_key, found.previous_response_id) == ("high", "thread", None)
    assert (found.max_output_tokens, found.store, found.kinds) == (100, False, None)


def test_what_is_absent_or_null_is_none() -> None:
    for raw in (body(), body(stream=None, reasoning_effort=None, max_tokens=None, n=None, stream_options=None, reasoning=None)):
        found = chat.inspect(raw)
        assert (found.stream, found.reasoning_effort, found.max_output_tokens, found.service_tier) == (False, None, None, None)


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 9),
        ({"max_completion_tokens": 9, "n": 4}, 36),
        ({"max_completion_tokens": 9, "n": 10**12}, 9 * 128),
        ({"max_completion_tokens": 9, "n": -1}, 9),
        ({"n": 4}, None),
    ],
)
def test_the_bound_is_that_of_all_answers_together(fields: dict[str, Any], most: int | None) -> None:
    assert chat.inspect(body(**fields)).max_output_tokens == most


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b'{"model":"m","model":"n","messages":[]}',
        body(stream="yes"),
        body(max_tokens=1.5),
        body(n="2"),
        body(reasoning_effort=3),
        body(stream_options={"include_usage": "yes"}),
        body(stream_options={"include_usage": 1}),
        b'{"model":"m","messages":[],"stream_options":{"include_usage":true,"include_usage":false}}',
        b'{"model":"m","messages":[],"reasoning":{"effort":"low","\\u0065ffort":"high"}}',
        body(reasoning_effort="low", reasoning={"effort": "high"}),
    ],
)
def test_what_is_not_a_request_is_invalid_json(raw: bytes) -> None:
    with pytest.raises(InvalidJson):
        chat.inspect(raw)


def test_a_wrong_stream_option_is_named_where_it_stands() -> None:
    with pytest.raises(InvalidJson) as caught:
        chat.inspect(body(stream_options={"include_usage": "yes"}))
    assert caught.value.facts["param"] == "stream_options.include_usage"


def test_a_model_must_be_named() -> None:
    with pytest.raises(ModelMissing):
        chat.inspect(b'{"messages":[]}')


def test_a_key_may_be_denied_an_effort_in_either_spelling() -> None:
    assert chat.inspect(body(reasoning={"effort": "high"})).reasoning_effort == "high"
    assert chat.inspect(body(reasoning={"effort": "high"}, reasoning_effort="high")).reasoning_effort == "high"


def test_later_requests_of_a_conversation_have_the_same_opening() -> None:
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    later = [*first, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "and?"}]
    openings = {chat.inspect(body(messages=messages)).opening for messages in (first, later)}
    assert openings == {json.dumps(first)[:-1].encode()}
    assert chat.inspect(body(messages=[*first[:1], {"role": "user", "content": "ho"}])).opening not in openings
    long = [{"role": "user", "content": "x" * 5000}]
    assert chat.inspect(body(messages=long)).opening == json.dumps(long)[:2048].encode()
    odds: tuple[Any, ...] = (None, 3, [], [[]], "text", [{"role": "user"}])
    for odd in odds:
        chat.inspect(body(messages=odd))


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"stop": ["x"]},
        {"logprobs": True},
        {"audio": {"voice": "x"}},
        {"tools": [{"type": "web_search"}]},
        {"reasoning": {"max_tokens": 5}},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        {"something_new": True},
    ],
)
def test_what_a_sign_in_account_cannot_be_asked_goes_to_others(fields: dict[str, Any]) -> None:
    assert chat.inspect(body(**fields)).kinds == frozenset({OPENAI, COMPATIBLE})


@pytest.mark.parametrize("tools", [None, [], [{"type": "function"}, {"type": "custom"}], {}, ["x"], "x", [{"type": ["function"]}]])
def test_what_is_wrong_in_itself_is_left_for_whoever_is_asked(tools: Any) -> None:
    found = chat.inspect(body(tools=tools))
    assert (found.kinds is None) == (tools != [{"type": ["function"]}])


# ------------------------------------------------------------------------------------------------- what accounts are sent


def test_a_body_goes_on_as_it_came() -> None:
    raw = b' { "messages" : [ {"role":"user","content":"h\\u00e9"} ],\n"model":"gpt-5.5","temperature":1.0e0, "x":{"b":1,"a":2}} '
    for kind in (OPENAI, COMPATIBLE):
        wire = native(raw, kind=kind)
        assert (wire.body, wire.path, wire.is_streamed, wire.is_translated) == (raw, "/chat/completions", False, False)
    asked = b'{"stream":true,"stream_options": { "include_usage" : true },"model":"gpt-5.5","messages":[]}'
    assert (native(asked).body, native(asked).is_translated) == (asked, False)


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (b"", b',"stream_options":{"include_usage":true}'),
        (b', "stream_options" : null ', b', "stream_options" : {"include_usage":true} '),
        (b',"stream_options":{}', b',"stream_options":{"include_usage":true}'),
        (b',"stream_options":{ "include_usage" : false }', b',"stream_options":{ "include_usage" : true }'),
        (b',"stream_options":{"include_usage":null}', b',"stream_options":{"include_usage":true}'),
        (
            b',"stream_options":{"include_obfuscation" : false}',
            b',"stream_options":{"include_obfuscation" : false,"include_usage":true}',
        ),
    ],
)
def test_usage_is_asked_for_by_editing_that_field_alone(options: bytes, sent: bytes) -> None:
    """B10."""
    raw = b'{"model":"gpt-5.5","messages" : [],"stream":true%s}'
    wire = native(raw % options)
    assert wire.body == raw % sent
    assert wire.is_translated


def test_an_alias_and_the_usage_are_both_edited() -> None:
    wire = native(b'{"model":"quick","stream":true,"messages":[]}', model="gpt-5.5")
    assert wire.body == b'{"model":"gpt-5.5","stream":true,"messages":[],"stream_options":{"include_usage":true}}'


# --------------------------------------------------------------------------------------------------- what clients are sent

PLAIN = b"""data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"chatcmpl-1", "choices":[{"index":0,"delta":{"content":"say \\"usage\\":null \\ud83d"},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"obfuscation":"x"}

data: [DONE]

"""
# The same answer of an upstream that was asked for its usage.
COUNTED = (
    PLAIN.replace(b'null}]}\n\ndata: {"id":"chatcmpl-1", ', b'null}],"usage":null}\n\ndata: {"id":"chatcmpl-1", ')
    .replace(b'"stop"}],', b'"stop"}], "usage" : null,')
    .replace(
        b"data: [DONE]", b'data: {"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\ndata: [DONE]'
    )
)


@given(sizes=st.lists(st.integers(1, 90), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_client_that_did_not_ask_gets_no_usage_and_all_else(sizes: list[int]) -> None:
    """B10: OpenAI sends neither the frame nor the `"usage":null` of the others to who did not ask."""
    wire = native(body(stream=True))
    assert COUNTED.count(b"usage") == PLAIN.count(b"usage") + 3
    assert through(wire, COUNTED, sizes) == PLAIN
    assert wire.meter.usage == {"prompt_tokens": 9, "completion_tokens": 3}
    assert wire.meter.status == "ok"


def test_the_sample_without_its_usage() -> None:
    wire = native(body(stream=True))
    data = (SAMPLES / "chat_completions_stream.sse").read_bytes()
    expected = [block for block in data.split(b"\n\n") if b'"choices": []' not in block]
    assert through(wire, data) == b"\n\n".join(expected).replace(b', "usage": null', b"")
    assert wire.meter.usage is not None
    assert (wire.meter.usage["prompt_tokens"], wire.meter.usage["completion_tokens"]) == (120, 9)


@pytest.mark.parametrize(
    "kept",
    [
        b'data: {"choices":[],"prompt_filter_results":[{"prompt_index":0}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"total_tokens":3}}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"x","usage":null}}]}\n\n',
        b'data: {"error":{"message":"boom","code":"server_error"}}\n\n',
        b'event: error\ndata: {"message":"boom"}\n\n',
        b'data: {"choices":[],\ndata: "x":1}\n\n',
        b"data: not json\n\n",
    ],
)
def test_what_is_not_the_usage_frame_passes(kept: bytes) -> None:
    assert through(native(body(stream=True)), kept) == kept


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["usage", '"usage":null', ',"usage":null', "é\n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["usage", "choices", "a", "b"]), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["usage", "choices", "id", "x"]), _json), st.sampled_from([None, 1]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_chunk_loses_its_null_usage_and_nothing_else(chunk: dict[str, Any], indent: int | None, is_plain: bool) -> None:
    data = json.dumps(chunk, indent=indent, ensure_ascii=is_plain)
    out = chat._passed(Event("", 1, 0, data.encode()))
    if isinstance(chunk.get("usage"), dict) and not chunk.get("choices"):
        assert out == b""
        return
    lines = out.decode().removesuffix("\n\n").split("\n")
    assert all(line.startswith("data: ") for line in lines)
    arrived = json.loads("\n".join(line.removeprefix("data: ") for line in lines))
    assert arrived == {name: value for name, value in chunk.items() if (name, value) != ("usage", None) or len(chunk) == 1}


@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        (b'{ "usage" : null, "choices":[1]}', b'{ "choices":[1]}'),
        (b'{"usage":null}', b'{"usage":null}'),
        (b'{"choices":[{"usage":null}],"x":1, "usage" : null}', b'{"choices":[{"usage":null}],"x":1}'),
        (b'{"x":"\\"usage\\":null","usage":null}', b'{"x":"\\"usage\\":null"}'),
        (b'{"x":"usage","choices":[{"a":1,"usage":null}]}', b'{"x":"usage","choices":[{"a":1,"usage":null}]}'),
    ],
)
def test_only_the_chunks_own_usage_is_taken_out(sent: bytes, passed: bytes) -> None:
    assert through(native(body(stream=True)), b"data: " + sent + b"\n\n") == b"data: " + passed + b"\n\n"


def test_a_stream_that_we_end_ends_with_an_error_and_no_done() -> None:
    end = native(body(stream=True)).failed(
        code="stream_incomplete", message="cut", response_id="x", model="m", created_at=1, sequence_number=3
    )
    assert end == b'data: {"error":{"message":"cut","type":"server_error","param":null,"code":"stream_incomplete"}}\n\n'


def test_a_refusal_has_openais_shape() -> None:
    assert chat.refusal({"message": "m", "code": "c"}, 429) == {"error": {"message": "m", "code": "c"}}
    assert CHATGPT in chat.KINDS
