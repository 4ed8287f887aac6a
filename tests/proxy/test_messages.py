"""Anthropic's Messages: what is read of a request, what its events cost, and the shapes of refusals and failures."""

import json
from typing import Any

import pytest

from billing import tokens
from billing.tokens import TokenUsage
from proxy import metering, sse
from proxy.dialects import chat, messages, responses
from proxy.dialects.inspection import Coded, ModelMissing
from proxy.dialects.messages_meter import MessagesMeter
from proxy.errors import InvalidJson
from proxy.sse import Event, Want
from routing import explanation

BEGAN = {"input_tokens": 500, "cache_read_input_tokens": 9500, "cache_creation_input_tokens": 0, "output_tokens": 1}


def body(**fields: Any) -> bytes:
    asked = {"model": "claude-opus-4-5", "max_tokens": 1024, "messages": [{"role": "user", "content": "hi"}]}
    return json.dumps({**asked, **fields}).encode()


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields}, separators=(',', ':'))}\n\n".encode()


def started(**fields: Any) -> bytes:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-5", "content": [], "usage": BEGAN}
    return event("message_start", message={**message, **fields})


def text(part: str, index: int = 0) -> bytes:
    return event("content_block_delta", index=index, delta={"type": "text_delta", "text": part})


OPENED = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
CLOSED = event("content_block_stop", index=0)
STOPPED = event("message_stop")


def ended(reason: str = "end_turn", **usage: Any) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 200, **usage})


def metered(*parts: bytes, size: int | None = None) -> MessagesMeter:
    """The meter after a stream, fed as it came or in pieces of `size` bytes."""
    wire = messages.wire(messages.inspect(body(stream=True)), model="claude-opus-4-5", kind="anthropic")
    scanner = sse.Scanner(wire.want, largest=metering.LARGEST_EVENT_BYTES)
    data = b"".join(parts)
    for start in range(0, len(data), size or len(data)):
        for found in scanner.feed(data[start : start + (size or len(data))])[0]:
            wire.meter.see(found)
    for found in metering.rest(scanner, wire.want):
        wire.meter.see(found)
    assert isinstance(wire.meter, MessagesMeter)
    return wire.meter


# ------------------------------------------------------------------------------------------------------------ requests


def test_what_is_read_of_a_request() -> None:
    found = messages.inspect(
        body(stream=True, service_tier="standard_only", output_config={"effort": "high"}, system="Be brief."),
        coded=Coded("zstd", b"x"),
    )
    assert (found.model, found.stream, found.max_output_tokens) == ("claude-opus-4-5", True, 1024)
    assert (found.service_tier, found.reasoning_effort, found.is_fast) == ("standard_only", "high", False)
    assert found.opening == b'"Be brief."[{"role": "user", "content": "hi"}]'
    assert (found.store, found.previous_response_id, found.prompt_cache_key) == (False, None, None)
    assert found.coded == Coded("zstd", b"x")
    assert not found.may_read_more_than_sent()


def test_a_fast_request_is_a_fast_tier() -> None:
    assert messages.inspect(body(speed="fast")).is_fast
    assert not messages.inspect(body(speed="standard", service_tier="auto")).is_fast


@pytest.mark.parametrize(
    ("user_id", "session"),
    [
        ("user_0abc_account_9f3e_session_9a0b1c2d-0001-4000-8000-000000000001", "9a0b1c2d-0001-4000-8000-000000000001"),
        ('{"device_id":"d","account_uuid":"","session_id":"9a0b1c2d-0001"}', "9a0b1c2d-0001"),
        ("customer-17", None),
        ("session_x", None),
        ('{"session_id": 5}', None),
        ("{", None),
        (17, None),
        (None, None),
    ],
)
def test_a_conversation_is_known_by_what_claude_code_says_and_never_by_its_person(user_id: Any, session: str | None) -> None:
    assert messages.inspect(body(metadata={"user_id": user_id})).prompt_cache_key == session


@pytest.mark.parametrize(
    "content",
    [
        {"type": "image", "source": {"type": "url", "url": "https://example.test/a.png"}},
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
    ],
)
def test_images_and_documents_are_more_input_than_their_bytes(content: dict[str, Any]) -> None:
    assert messages.inspect(body(messages=[{"role": "user", "content": [content]}])).may_read_more_than_sent()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": None}, ModelMissing),
        ({"stream": "yes"}, InvalidJson),
        ({"max_tokens": "many"}, InvalidJson),
        ({"max_tokens": 1.5}, InvalidJson),
        ({"service_tier": 1}, InvalidJson),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        messages.inspect(body(**fields))


def test_an_effort_that_is_there_twice_is_refused() -> None:
    """A key may be denied one of the two, and the upstream may read the other."""
    twice = b'{"model":"m","max_tokens":1,"messages":[],"output_config":{"effort":"low","effort":"high"}}'
    with pytest.raises(InvalidJson):
        messages.inspect(twice)


def test_the_body_goes_on_as_it_came_but_for_the_models_name() -> None:
    """N56: spaces, escapes and unknown fields included."""
    content = b'{ "model" : "fast-one", "max_tokens":5,\n "messages":[], "x":[1e3,{"y":null}] }'
    found = messages.inspect(content)
    same = messages.wire(found, model="fast-one", kind="anthropic")
    assert (same.path, same.body, same.is_streamed, same.encoding, same.is_translated) == ("/messages", content, False, None, False)
    other = messages.wire(found, model="claude-opus-4-5", kind="anthropic")
    assert other.body == content.replace(b'"fast-one"', b'"claude-opus-4-5"')


# ---------------------------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize("size", [None, 1, 7, 100])
def test_the_usage_of_a_stream_is_in_its_first_and_its_last_event(size: int | None) -> None:
    """C3: input without the cache; what was read from it beside; the output as the end counts it."""
    meter = metered(started(), event("ping"), OPENED, text("Hello"), text(" there"), CLOSED, ended(), STOPPED, size=size)
    assert (meter.status, meter.response_id, meter.model) == ("ok", "msg_1", "claude-opus-4-5")
    assert (meter.has_output, meter.calls_tools, meter.failure) == (True, False, None)
    assert tokens.normalise(meter.usage, meter.dialect) == TokenUsage(500, 9500, 0, 200)


def test_later_totals_replace_earlier_ones() -> None:
    """A hosted tool reads more than the request had; the end says so."""
    meter = metered(started(), OPENED, text("a"), ended(input_tokens=2679, cache_creation_input_tokens=40), STOPPED)
    assert tokens.normalise(meter.usage, "messages") == TokenUsage(2679, 9500, 40, 200)


def test_before_its_end_a_stream_has_no_usage_but_an_estimate() -> None:
    """What `message_start` counts of the output is not yet any."""
    meter = metered(started(), OPENED, text("x" * 400), text("y" * 400))
    assert (meter.is_terminal, meter.usage, meter.has_output) == (False, None, True)
    assert 200 <= meter.output_estimate <= 205


def test_an_end_without_usage_is_estimated_too() -> None:
    meter = metered(started(), OPENED, text("x" * 400), event("message_delta", delta={"stop_reason": "end_turn"}), STOPPED)
    assert (meter.status, meter.usage) == ("ok", None)


def test_usage_that_came_counts_though_the_last_event_is_missing() -> None:
    meter = metered(started(), OPENED, text("a"), CLOSED, ended())
    assert not meter.is_terminal
    assert tokens.normalise(meter.usage, "messages") == TokenUsage(500, 9500, 0, 200)


def test_a_last_event_without_its_empty_line_still_ends_the_stream() -> None:
    assert metered(started(), OPENED, text("a"), ended(), STOPPED[:-2]).status == "ok"
    assert metered(started(), OPENED, text("a"), ended()[:-20]).usage is None


def test_odd_characters_do_not_hide_the_usage() -> None:
    usual = ended()
    broken = usual.replace(b'{"type":"message_delta"', b'{"type":"message_delta","x":"\\ud800"').replace(b"200", b"7")
    assert broken.count(b"ud800") == broken.count(b":7}") == 1
    assert tokens.normalise(metered(started(), OPENED, broken, STOPPED).usage, "messages") == TokenUsage(500, 9500, 0, 7)


@pytest.mark.parametrize(
    ("reason", "status", "goes_on"),
    [
        ("end_turn", "ok", False),
        ("stop_sequence", "ok", False),
        ("refusal", "ok", False),
        ("tool_use", "ok", True),
        ("pause_turn", "ok", True),
        ("max_tokens", "incomplete", False),
        ("model_context_window_exceeded", "incomplete", False),
    ],
)
def test_why_a_message_stopped(reason: str, status: str, goes_on: bool) -> None:
    meter = metered(started(), OPENED, text("a"), ended(reason), STOPPED)
    assert (meter.status, meter.calls_tools) == (status, goes_on)
    whole = MessagesMeter()
    whole.see_response(json.dumps({"type": "message", "id": "msg_2", "stop_reason": reason, "usage": BEGAN}).encode())
    assert (whole.status, whole.calls_tools, whole.response_id) == (status, goes_on, "msg_2")


def test_a_call_of_the_clients_tool_goes_on_and_one_of_the_servers_does_not() -> None:
    ours = event("content_block_start", index=0, content_block={"type": "tool_use", "id": "t", "name": "bash", "input": {}})
    theirs = event("content_block_start", index=0, content_block={"type": "server_tool_use", "id": "t", "name": "web_search"})
    assert metered(started(), ours).calls_tools
    assert not metered(started(), theirs).calls_tools


@pytest.mark.parametrize(("usage", "tier"), [({"speed": "fast"}, "fast"), ({"service_tier": "priority"}, ""), ({}, "")])
def test_only_the_speed_is_a_dearer_tier(usage: dict[str, Any], tier: str) -> None:
    assert metered(started(), OPENED, ended(**usage), STOPPED).service_tier == tier
    whole = MessagesMeter()
    whole.see_response(json.dumps({"type": "message", "stop_reason": "end_turn", "usage": {**BEGAN, **usage}}).encode())
    assert whole.service_tier == tier


def test_a_whole_message_tells_its_usage() -> None:
    meter = MessagesMeter()
    usage = {**BEGAN, "output_tokens": 200}
    meter.see_response(
        json.dumps({"type": "message", "model": "claude-opus-4-5", "stop_reason": "end_turn", "usage": usage}).encode()
    )
    assert tokens.normalise(meter.usage, "messages") == TokenUsage(500, 9500, 0, 200)


@pytest.mark.parametrize("content", [b"[]", b"no", b"{}", b'{"usage": 5}'])
def test_what_is_no_message_changes_nothing(content: bytes) -> None:
    meter = MessagesMeter()
    meter.see_response(content)
    assert (meter.status, meter.usage) == ("", None)


# ------------------------------------------------------------------------------------------------------------- failures

OVERLOADED = event("error", error={"type": "overloaded_error", "message": "Overloaded"})


def test_an_error_before_output_may_be_answered_by_another_account() -> None:
    meter = metered(started(), event("ping"), OVERLOADED)
    assert (meter.has_output, meter.status, meter.usage) == (False, "failed", None)
    assert json.loads(meter.failure or b"")["error"]["type"] == "overloaded_error"


def test_an_error_ends_the_stream() -> None:
    meter = metered(started(), OPENED, text("a"), OVERLOADED)
    assert (meter.has_output, meter.is_terminal, meter.status, meter.usage) == (True, True, "failed", None)


def test_an_error_after_the_end_changes_nothing() -> None:
    meter = metered(started(), OPENED, ended(), STOPPED, OVERLOADED)
    assert (meter.status, meter.failure) == ("ok", None)


def test_a_stream_that_we_end_ends_with_an_error_of_their_shape() -> None:
    wire = messages.wire(messages.inspect(body()), model="m", kind="anthropic")
    said = wire.failed(code="stream_incomplete", message="It broke.", response_id="", model="m", created_at=0, sequence_number=3)
    name, data, end = said.split(b"\n", 2)
    assert (name, end) == (b"event: error", b"\n")
    assert json.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "error": {"type": "api_error", "message": "It broke.", "code": "stream_incomplete"},
    }


def test_the_heartbeat_is_an_event_and_no_output() -> None:
    events, _ = sse.Scanner(lambda name: Want.COUNT, largest=1000).feed(messages.HEARTBEAT)
    assert [found.name for found in events] == ["ping"]
    meter = MessagesMeter()
    meter.see(Event("ping", 30))
    assert not meter.has_output


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_json", "invalid_request_error"),
        (400, "payload_too_large", "request_too_large"),
        (400, "model_not_found", "invalid_request_error"),
        (401, "invalid_api_key", "authentication_error"),
        (403, "forbidden", "permission_error"),
        (404, "not_found", "not_found_error"),
        (405, "method_not_allowed", "invalid_request_error"),
        (429, "limit_reached", "rate_limit_error"),
        (500, "internal_error", "api_error"),
        (502, "upstream_unavailable", "api_error"),
        (503, "draining", "overloaded_error"),
    ],
)
def test_a_refusal_has_anthropics_word_and_our_facts(status: int, code: str, kind: str) -> None:
    envelope = {"message": "No.", "type": "whatever", "param": None, "code": code, "scope": "key", "resets_at": 1_800_000_000}
    assert messages.refusal(envelope, status) == {
        "type": "error",
        "error": {"type": kind, "message": "No.", "code": code, "scope": "key", "resets_at": 1_800_000_000},
    }


def test_routes_are_explained_by_the_kinds_that_the_dialects_take() -> None:
    spoken = {dialect.NAME: dialect.KINDS for dialect in (responses, chat, messages)}
    assert spoken == explanation.DIALECTS
