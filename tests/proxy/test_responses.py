"""Reading and editing request bodies, folding events."""

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import metering, sse
from proxy.dialects import fields, responses
from proxy.dialects.inspection import ModelMissing, NotServed
from proxy.errors import InvalidJson

SAMPLES = Path(__file__).parent / "samples"


def for_sign_in_account(body: bytes) -> bytes:
    return responses.wire(responses.inspect(body), model="m", kind="chatgpt").body


def test_reads_what_it_needs() -> None:
    body = json.dumps(
        {
            "model": "gpt-5.4",
            "stream": True,
            "store": False,
            "service_tier": "priority",
            "reasoning": {"effort": "high", "summary": "auto"},
            "prompt_cache_key": "thread",
            "previous_response_id": "resp_1",
            "max_output_tokens": 100,
            "tools": [{"type": "namespace", "tools": [{"type": "whatever"}]}],
            "input": "hi",
        }
    ).encode()
    found = responses.inspect(body)
    assert (found.model, found.stream, found.store, found.service_tier) == ("gpt-5.4", True, False, "priority")
    assert (found.reasoning_effort, found.prompt_cache_key, found.previous_response_id) == ("high", "thread", "resp_1")
    assert (found.max_output_tokens, found.is_fast, found.body) == (100, True, body)


def test_what_is_absent_or_null_is_none() -> None:
    for body in (b'{"model":"m"}', b'{"model":"m","stream":null,"reasoning":null,"max_output_tokens":null,"store":null}'):
        found = responses.inspect(body)
        assert (found.stream, found.store, found.reasoning_effort, found.max_output_tokens) == (False, None, None, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b'{"model":"m"} trailing',
        b'{"model":"m","input":nul}',
        b'{"model":"m","model":"n"}',
        b'{"model":"m","input":"x","\\u006dodel":"n"}',
        b'{"model":"m","model":"m"}',
        b'{"model":"m","x":{"a":1},"x":{"a":1}}',
        b'{"model":"m","input":"\xff\xfe"}',
        b'{"model":"m","reasoning":{"effort":"low","effort":"high"}}',
        b'{"model":"m","reasoning":{"effort":"low","\\u0065ffort":"high"}}',
        b'{"model":"m","' + b"x" * 1001 + b'":1}',
        b'{"model":"m","stream":"yes"}',
        b'{"model":"m","max_output_tokens":1.5}',
        b'{"model":["m"]}',
        b'{"model":"m","input":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    ],
)
def test_what_is_not_a_request_is_invalid_json(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        responses.inspect(body)


@pytest.mark.alone
def test_a_body_of_a_million_fields_is_refused_before_they_are_walked() -> None:
    """Walking them took 14 s, in which no stream of the process moved and its holds ran out."""
    many = b'{"model":"m"' + b"".join(b',"%d":0' % number for number in range(300_000)) + b"}"
    began = time.perf_counter()
    with pytest.raises(InvalidJson, match="too many fields"):
        responses.inspect(many)
    assert time.perf_counter() - began < 1.5
    just = b'{"model":"m"' + b"".join(b',"%d":0' % number for number in range(999)) + b"}"
    assert responses.inspect(just).model == "m"


@pytest.mark.parametrize("name", ["stream", "model", "max_output_tokens", "conversation"])
def test_a_huge_value_of_the_wrong_kind_is_not_decoded(name: str) -> None:
    """Five million lists in place of a flag: a second of everybody's time, and hundreds of megabytes."""
    other = "store" if name == "model" else "model"
    huge = b'{"%s":%s,"%s":[' % (other.encode(), b"true" if other == "store" else b'"m"', name.encode())
    huge += b"[]," * 1_000_000 + b"[]]}"
    tracemalloc.start()
    try:
        if name == "conversation":
            assert responses.inspect(huge).may_read_more_than_sent()
        else:
            with pytest.raises(InvalidJson, match=f"field '{name}' must be"):
                responses.inspect(huge)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_background_response_is_refused_because_nobody_would_meter_it() -> None:
    with pytest.raises(NotServed) as refused:
        responses.inspect(b'{"model":"m","background":true,"stream":true}')
    assert (refused.value.status, refused.value.code, refused.value.facts) == (
        400,
        "unsupported_parameter",
        {"param": "background"},
    )
    assert responses.inspect(b'{"model":"m","background":false}').model == "m"


def test_a_request_without_a_model_names_the_field() -> None:
    with pytest.raises(ModelMissing) as caught:
        responses.inspect(b'{"input":"x"}')
    assert (caught.value.code, caught.value.status, caught.value.facts) == ("model_not_found", 400, {"param": "model"})


@pytest.mark.parametrize("name", ["m" * 121, "한" * 41, "m\u0000", "m\n"])
def test_a_name_that_no_model_can_have_does_not_exist(name: str) -> None:
    with pytest.raises(ModelMissing):
        responses.inspect(json.dumps({"model": name}).encode())


def test_sign_in_accounts_get_a_stream_that_is_not_stored() -> None:
    """A24: the bound on the output, which that backend refuses, is taken out; all else stays as it was."""
    body = b'{ "model" : "m",\n "max_output_tokens": 1000 , "stream":false,"input":"\\u00e9 \xf0\x9f\xa6\x8a",  "x": 1.0e5 }'
    edited = for_sign_in_account(body)
    assert edited == b'{ "model" : "m" , "stream":true,"input":"\\u00e9 \xf0\x9f\xa6\x8a",  "x": 1.0e5 ,"store":false}'


def test_a_body_that_is_right_already_is_not_touched() -> None:
    """N56"""
    body = b'{"stream":true ,"model":"m","store":false,"input":[{"type":"unknown","deep":{"a":[1,2,3]}}]}'
    assert for_sign_in_account(body) is not None
    assert for_sign_in_account(body) == body


_blanks = st.text(alphabet=" \t\n\r", max_size=3)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_names = st.sampled_from(["model", "stream", "store", "max_output_tokens", "input", "x", "é", 'q"uote', "back\\slash", ""])


@settings(max_examples=400, deadline=None)
@given(
    pairs=st.lists(st.tuples(_names, _values, _blanks, st.booleans()), max_size=8, unique_by=lambda pair: pair[0]),
    changes=st.dictionaries(
        st.sampled_from(["model", "stream", "store", "max_output_tokens"]), st.none() | st.booleans() | st.text(max_size=5)
    ),
)
def test_an_edit_changes_the_named_fields_and_no_other_byte(
    pairs: list[tuple[str, Any, str, bool]], changes: dict[str, Any]
) -> None:
    """N56"""
    written = [
        f"{blank}{json.dumps(name, ensure_ascii=ascii_only)}{blank}:{blank}{json.dumps(value, ensure_ascii=ascii_only)}{blank}"
        for name, value, blank, ascii_only in pairs
    ]
    body = (" {" + ",".join(written) + "} \n").encode()
    found = fields.scan(body)
    assert {name: json.loads(found.raw(name) or b"") for name in found.spans} == json.loads(body)

    edited = fields.edit(found, changes)
    expected = {name: value for name, value in json.loads(body).items() if name not in changes}
    expected |= {name: value for name, value in changes.items() if value is not None}
    assert json.loads(edited) == expected
    after = fields.scan(edited)
    for name in found.spans:
        if name not in changes:
            assert after.raw(name) == found.raw(name)
    untouched = [name for name in found.spans if name not in changes]
    assert [name for name in after.spans if name not in changes] == untouched
    if not changes:
        assert edited == body
    if not any(value is None for value in changes.values()) and set(changes) <= set(found.spans):
        for name in changes:
            # What stands between the values is as it was.
            span, new = found.spans[name], after.spans[name]
            assert edited[new.key : new.start] == body[span.key : span.start]


def test_a_large_body_is_read_in_linear_time() -> None:
    body = b'{"model":"m","input":"' + b"x" * 8_000_000 + b'","stream":true}'
    assert responses.inspect(body).stream is True


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"m","input":"plain text"}', False),
        (b'{"model":"m","previous_response_id":"resp_1"}', True),
        (b'{"model":"m","conversation":"conv_1"}', True),
        (b'{"model":"m","input":[{"type":"input_image","file_id":"f"}]}', True),
        (b'{"model":"m","tools":[{"type":"web_search"}]}', True),
        (b'{"model":"m","tools":[{"type":"function","name":"f"}]}', False),
    ],
)
def test_knows_when_more_input_than_bytes_is_possible(body: bytes, expected: bool) -> None:
    assert responses.inspect(body).may_read_more_than_sent() is expected


def _fold(data: bytes) -> dict[str, Any]:
    scanner = sse.Scanner(metering.want_to_fold, largest=metering.LARGEST_EVENT_BYTES)
    events = scanner.feed(data)[0]
    items = [event.data for event in events if event.name == metering.ITEM_DONE and event.data is not None]
    assert events[-1].data is not None
    value = json.loads(responses.fold(events[-1].data, items))
    assert isinstance(value, dict)
    return value


def test_folding_gives_the_terminal_response() -> None:
    folded = _fold((SAMPLES / "responses_text.sse").read_bytes())
    assert folded["object"] == "response"
    assert folded["output"][0]["content"][0]["text"] == "Hello from upstream."
    assert folded["usage"]["total_tokens"] == 129


def test_folding_fills_an_empty_output_from_the_items() -> None:
    folded = _fold((SAMPLES / "responses_minimal.sse").read_bytes())
    assert folded == {
        "id": "resp_1",
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": None,
            "output_tokens": 2,
            "output_tokens_details": None,
            "total_tokens": 7,
        },
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}],
    }


def test_folding_orders_items_by_their_index() -> None:
    items = [b'{"output_index":1,"item":{"b":1}}', b'{"output_index":0,"item":{"a":1}}', b"broken"]
    assert json.loads(responses.fold(b'{"response":{"id":"r","output":[]}}', items))["output"] == [{"a": 1}, {"b": 1}]
    for broken in (b"{}", b"[]", b'{"response":3}'):
        with pytest.raises(ValueError, match="terminal"):
            responses.fold(broken, [])


def test_our_failed_event_is_an_event() -> None:
    event = responses.failed_event(
        response_id="resp_1", model="m", created_at=5, sequence_number=9, code="stream_incomplete", message="cut"
    )
    assert event.startswith(b"event: response.failed\ndata: ")
    assert event.endswith(b"\n\n")
    data = json.loads(event.split(b"data: ", 1)[1])
    assert (data["type"], data["sequence_number"], data["response"]["error"]["code"]) == ("response.failed", 9, "stream_incomplete")


def test_folding_keeps_the_bytes_of_items() -> None:
    terminal = b'{"response":{"id":"r", "output":[], "x":1e999}}'
    items = [b'{"output_index":0,"item":{"n":0.1000000000000000055,"big":1e999}}']
    assert responses.fold(terminal, items) == b'{"id":"r", "output":[{"n":0.1000000000000000055,"big":1e999}], "x":1e999}'
    assert responses.fold(b'{"response":{"id":"r"}}', [b'{"item":{"a": 1}}']) == b'{"id":"r","output":[{"a": 1}]}'


def test_folding_takes_half_a_surrogate_pair_wherever_it_stands() -> None:
    items = [b'{"output_index":1,"item":{"t":"\\ud83d"}}', b'{"output_index":0,"item":{"t":"a"}}']
    folded = b'{"id":"r","output":[{"t":"a"},{"t":"\\ud83d"}]}'
    assert responses.fold(b'{"response":{"id":"r","output":[]}}', items) == folded
    odd = b'{"response":{"id":"r","output":[],"note":"\\ud83d"}}'
    assert responses.fold(odd, items) == b'{"id":"r","output":[{"t":"a"},{"t":"\\ud83d"}],"note":"\\ud83d"}'


def test_what_is_too_deep_to_read_cannot_be_folded() -> None:
    with pytest.raises(ValueError, match="no response"):
        responses.fold(b'{"response":{"output":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", [])


def test_our_failed_event_takes_any_message_of_an_upstream() -> None:
    event = responses.failed_event(
        response_id="r", model="m", created_at=1, sequence_number=2, code="c", message="half \ud83d, whole \U0001f98a"
    )
    assert json.loads(event.split(b"data: ")[1])["response"]["error"] == {
        "code": "c",
        "message": "half \ud83d, whole \U0001f98a",
    }
