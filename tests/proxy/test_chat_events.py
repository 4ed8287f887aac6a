"""Responses events as chunks, and as one completion."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import metering, sse
from proxy.dialects import chat, chat_completion, chat_events
from proxy.dialects.chat_events import Chunks
from proxy.dialects.chat_words import Asked
from proxy.sse import Event
from routing.snapshots import CHATGPT
from tests.proxy.test_chat import through

SAMPLES = Path(__file__).parent / "samples"
USAGE = {
    "input_tokens": 120,
    "input_tokens_details": {"cached_tokens": 64},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 129,
}
CHAT_USAGE = {
    "prompt_tokens": 120,
    "completion_tokens": 9,
    "total_tokens": 129,
    "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
    "completion_tokens_details": {
        "reasoning_tokens": 3,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}


def asked(*, with_usage: bool = False, is_legacy: bool = False) -> Asked:
    return Asked(model="gpt-5.5", with_usage=with_usage, is_legacy=is_legacy, answer_id="chatcmpl-ours", created_at=7)


def stream(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (str(e["type"]).encode(), json.dumps(e).encode()) for e in events)


def events_of(data: bytes, want: Any = chat_events.want) -> list[Event]:
    scanner = sse.Scanner(want, largest=metering.LARGEST_EVENT_BYTES)
    return scanner.feed(data)[0] + metering.rest(scanner, want)


def chunks(data: bytes, **how: bool) -> list[Any]:
    return read(Chunks(asked(**how)).translated(events_of(data)))


def read(out: bytes) -> list[Any]:
    blocks = out.decode().split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks]
    return [one if one == "[DONE]" else strict(one) for one in data]


def strict(data: str) -> Any:
    found = json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(found, dict)
    return found


def deltas(found: list[Any]) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in found if chunk != "[DONE]" and chunk.get("choices")]


def finish(found: list[Any]) -> str:
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in found if chunk != "[DONE]" and chunk.get("choices")]
    assert [reason for reason in reasons if reason] == reasons[-1:]
    return str(reasons[-1])


def completion(data: bytes, **how: bool) -> Any:
    return strict(chat_completion.fold(events_of(data, metering.want_to_fold), asked(**how)).decode())


def text(delta: str, index: int = 0) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": index, "delta": delta}


def done(item: dict[str, Any], index: int | None = 0) -> dict[str, Any]:
    where = {} if index is None else {"output_index": index}
    return {"type": "response.output_item.done", **where, "item": item}


def message(*texts: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": one} for one in texts]}


def completed(status: str = "completed", **response: Any) -> dict[str, Any]:
    return {"type": f"response.{status}", "response": {"id": "resp_1", "status": status, **response}}


CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"a": 1}'}


def test_the_text_sample() -> None:
    data = (SAMPLES / "responses_text.sse").read_bytes()
    found = chunks(data)
    about = {
        "id": "chatcmpl-65d06a13213f421f887a3961c890fa47",
        "object": "chat.completion.chunk",
        "created": 1796008909,
        "model": "gpt-5.4",
        "system_fingerprint": None,
    }
    assert deltas(found) == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hello"},
        {"content": " from"},
        {"content": " upstream."},
        {},
    ]
    for chunk in found[:-1]:
        assert {name: chunk[name] for name in about} == about
        assert set(chunk) == {*about, "choices"}
        assert (chunk["choices"][0]["index"], chunk["choices"][0]["logprobs"]) == (0, None)
    assert (finish(found), found[-1]) == ("stop", "[DONE]")
    folded = completion(data)
    assert folded == {
        **about,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello from upstream.", "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": CHAT_USAGE,
    }


def test_a_client_that_asked_gets_its_usage_last() -> None:
    *others, last, end = chunks((SAMPLES / "responses_text.sse").read_bytes(), with_usage=True)
    assert (last["choices"], last["usage"], end) == ([], CHAT_USAGE, "[DONE]")
    assert all(chunk["usage"] is None for chunk in others)


def test_the_tool_call_sample() -> None:
    data = (SAMPLES / "responses_tool_call.sse").read_bytes()
    found = chunks(data)
    call = {"index": 0, "id": "call_d5731fe542c6439e9277a1dd", "type": "function"}
    assert deltas(found)[1:] == [
        {"tool_calls": [{**call, "function": {"name": "exec_command", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"cmd": "echo hi"}'}}]},
        {},
    ]
    assert finish(found) == "tool_calls"
    [choice] = completion(data)["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    del call["index"]
    assert choice["message"]["tool_calls"] == [{**call, "function": {"name": "exec_command", "arguments": '{"cmd": "echo hi"}'}}]


def test_a_function_call_of_old() -> None:
    data = (SAMPLES / "responses_tool_call.sse").read_bytes()
    found = chunks(data, is_legacy=True)
    assert deltas(found)[1:] == [
        {"function_call": {"name": "exec_command", "arguments": ""}},
        {"function_call": {"arguments": '{"cmd": "echo hi"}'}},
        {},
    ]
    assert finish(found) == "function_call"
    [choice] = completion(data, is_legacy=True)["choices"]
    assert choice["message"]["function_call"] == {"name": "exec_command", "arguments": '{"cmd": "echo hi"}'}
    assert choice["finish_reason"] == "function_call"


def test_the_minimal_stream() -> None:
    """Items without deltas or ids, usage without details, and no beginning: the text arrives all the same."""
    data = (SAMPLES / "responses_minimal.sse").read_bytes()
    found = chunks(data, with_usage=True)
    assert deltas(found) == [{"role": "assistant", "content": "", "refusal": None}, {"content": "Hi."}, {}]
    assert (found[0]["id"], found[0]["created"], found[0]["model"], found[-1]) == ("chatcmpl-ours", 7, "gpt-5.5", "[DONE]")
    folded = completion(data)
    assert (folded["id"], folded["choices"][0]["message"]["content"]) == ("chatcmpl-1", "Hi.")
    assert found[-2]["usage"] == folded["usage"]
    assert (folded["usage"]["prompt_tokens"], folded["usage"]["completion_tokens"], folded["usage"]["total_tokens"]) == (5, 2, 7)
    assert folded["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert "usage" not in completion(stream(completed()))


def test_calls_at_once_keep_apart() -> None:
    custom = {"type": "custom_tool_call", "id": "ct_1", "call_id": "call_2", "name": "patch", "input": "*** x"}
    data = stream(
        {"type": "response.output_item.added", "output_index": 1, "item": {**CALL, "arguments": ""}},
        {"type": "response.output_item.added", "output_index": 2, "item": {**custom, "input": ""}},
        {"type": "response.custom_tool_call_input.delta", "output_index": 2, "delta": "*** "},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "item_id": "another", "delta": '{"a": '},
        {"type": "response.custom_tool_call_input.delta", "output_index": 2, "delta": "x"},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "1}"},
        done(CALL, 1),
        done(custom, 2),
        done({**CALL, "call_id": "call_3"}, 3),
        completed(),
    )
    calls: dict[int, list[Any]] = {}
    for delta in deltas(chunks(data)):
        for call in delta.get("tool_calls", []):
            calls.setdefault(call["index"], []).append(call)
    assert [call[0]["id"] for call in calls.values()] == ["call_1", "call_2", "call_3"]
    assert "".join(call["function"]["arguments"] for call in calls[0]) == '{"a": 1}'
    assert "".join(call["custom"]["input"] for call in calls[1]) == "*** x"
    assert (calls[1][0]["type"], calls[1][0]["custom"]["name"]) == ("custom", "patch")
    assert "".join(call["function"]["arguments"] for call in calls[2]) == '{"a": 1}'
    folded = completion(data)["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in folded] == ["call_1", "call_2", "call_3"]
    assert folded[1] == {"id": "call_2", "type": "custom", "custom": {"name": "patch", "input": "*** x"}}


def test_arguments_of_a_call_that_nobody_announced_come_with_the_whole_item() -> None:
    data = stream(
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"a": 1}'}, done(CALL), completed()
    )
    assert deltas(chunks(data))[1:] == [
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]},
        {},
    ]


def test_items_that_tell_neither_place_nor_id_all_arrive() -> None:
    one = {"type": "response.output_text.delta", "delta": "one"}
    data = stream(one, done(message("one"), None), done(message(" two"), None), done(message(" three"), None), completed())
    assert "".join(delta.get("content", "") for delta in deltas(chunks(data))) == "one two three"


def test_an_output_that_only_the_end_tells_arrives() -> None:
    data = stream(completed(output=[message("a", "b"), CALL], model="gpt-6"))
    found = chunks(data)
    assert [delta.get("content") for delta in deltas(found)[1:3]] == ["a", "b"]
    assert (finish(found), found[0]["model"]) == ("tool_calls", "gpt-6")
    folded = completion(data)["choices"][0]["message"]
    assert (folded["content"], len(folded["tool_calls"])) == ("ab", 1)


def test_reasoning_that_was_asked_for_is_passed_on() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"}
    summary = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "hm"}
    for data in (stream(summary, done(item), completed()), stream(done(item), completed())):
        assert deltas(chunks(data))[1:] == [{"reasoning_content": "hm"}, {}]
        assert completion(data)["choices"][0]["message"]["reasoning_content"] == "hm"


def test_a_refusal() -> None:
    item = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    for data in (
        stream({"type": "response.refusal.delta", "output_index": 0, "delta": "No."}, done(item), completed()),
        stream(done(item), completed()),
    ):
        assert deltas(chunks(data))[1:] == [{"refusal": "No."}, {}]
        folded = completion(data)["choices"][0]["message"]
        assert (folded["refusal"], folded["content"]) == ("No.", None)


@pytest.mark.parametrize(
    ("details", "reason"),
    [({"reason": "max_output_tokens"}, "length"), ({"reason": "content_filter"}, "content_filter"), (None, "length")],
)
def test_an_answer_that_was_cut_short(details: Any, reason: str) -> None:
    data = stream(text("x"), done(message("x")), completed("incomplete", incomplete_details=details, usage=USAGE))
    assert finish(chunks(data)) == completion(data)["choices"][0]["finish_reason"] == reason
    assert completion(data)["usage"] == CHAT_USAGE


def test_a_failure_after_output_ends_with_an_error_and_no_done() -> None:
    data = stream(text("x"), completed("failed", error={"code": "context_length_exceeded", "message": "too long"}))
    assert chunks(data)[-1] == {
        "error": {"message": "too long", "type": "invalid_request_error", "param": None, "code": "context_length_exceeded"}
    }
    with pytest.raises(ValueError, match="context_length_exceeded: too long"):
        completion(data)


def test_an_error_event_is_told_when_the_stream_breaks_off_behind_it() -> None:
    wire = Chunks(asked())
    out = wire.translated(events_of(stream(text("x"), {"type": "error", "code": "slow_down", "message": "Wait."})))
    assert deltas(read(out))[-1] == {"content": "x"}
    [end] = read(wire.failed(code="stream_incomplete", message="cut"))
    assert end["error"] == {"message": "Wait.", "type": "server_error", "param": None, "code": "slow_down"}
    assert wire.translated(events_of(stream(text("more"), completed()))) == b""
    [end] = read(Chunks(asked()).failed(code="stream_incomplete", message="cut"))
    assert end["error"]["code"] == "stream_incomplete"


def test_nothing_follows_the_end() -> None:
    assert chunks(stream(text("x"), completed(), text("y"), completed())) == chunks(stream(text("x"), completed()))


def sent_texts(*spelt: bytes) -> list[bytes]:
    """How the content of a chunk is spelt for each delta that is spelt so."""
    data = b"".join(b'data: {"type":"response.output_text.delta","output_index":0,"delta":%s}\n\n' % one for one in spelt)
    out = Chunks(asked()).translated(events_of(data))
    return [block.partition(b'{"content":')[2].partition(b'},"logprobs"')[0] for block in out.split(b"\n\n")[1:-1]]


def test_texts_keep_their_spelling() -> None:
    spelt = [b'"\\u00e9 \xc3\xa9 \\/ } \\ud83d\\ude00"', b'""', b'"\\n"']
    assert sent_texts(*spelt) == spelt


def test_half_a_surrogate_pair_arrives() -> None:
    """A strict reader refuses it; some upstreams split a pair between two deltas."""
    halves = sent_texts(b'"\\ud83d"', b'"\\ude00 \\/ x"')
    assert [json.loads(half) for half in halves] == ["\ud83d", "\ude00 / x"]


@pytest.mark.parametrize("event", ["response.created", "response.output_item.added", "response.output_item.done", "error"])
@pytest.mark.parametrize("data", ["[]", "null", "{}", '{"item":3}', '{"item":{"type":["x"]}}', "nonsense", '{"response":[]}'])
def test_odd_events_are_not_in_the_way(event: str, data: str) -> None:
    out = Chunks(asked()).translated([Event(event, 1, 0, data.encode()), *events_of(stream(text("x"), completed()))])
    assert [delta for delta in deltas(read(out)) if "role" not in delta] == [{"content": "x"}, {}]


def test_what_is_no_json_is_not_passed_on() -> None:
    odd = {**CALL, "call_id": float("nan"), "name": float("inf"), "id": None}
    created = {"type": "response.created", "response": {"id": 3, "created_at": float("inf"), "model": float("nan")}}
    data = stream(created, done(odd), completed())
    [call] = deltas(chunks(data))[1]["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("", "")
    assert completion(data)["choices"][0]["message"]["tool_calls"][0]["id"] == ""


@pytest.mark.parametrize("data", ["[]", "null", "{}", '{"response":[]}', '{"response":{"output":{},"usage":3}}'])
def test_odd_ends_end_all_the_same(data: str) -> None:
    assert read(Chunks(asked(with_usage=True)).translated([Event("response.completed", 1, 0, data.encode())]))[-1] == "[DONE]"


def test_no_terminal_event_folds_to_nothing() -> None:
    for events in ([], [Event("response.completed", 1, 0, b"{}")], [Event("response.completed", 1, 0, None)]):
        with pytest.raises(ValueError, match="no response"):
            chat_completion.fold(events, asked())


def test_a_response_that_came_whole_is_read_all_the_same() -> None:
    wire = chat.wire(chat.inspect(b'{"model":"m","messages":[{"role":"user","content":"x"}]}'), model="m", kind=CHATGPT)
    body = json.dumps({"id": "resp_1", "status": "completed", "output": [message("x")], "usage": USAGE}).encode()
    found = json.loads(wire.whole(body))
    assert (found["choices"][0]["message"]["content"], found["usage"]) == ("x", CHAT_USAGE)
    for odd in (b"", b"nonsense", b'{"status":"failed"}'):
        wire.whole(odd)


# ----------------------------------------------------------------------------------------------------------- any chunking

_texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=8), max_size=5)


@given(texts=_texts, calls=_texts, sizes=st.lists(st.integers(1, 200), min_size=1, max_size=6), with_usage=st.booleans())
@settings(max_examples=80, deadline=None)
def test_any_cut_gives_the_same_bytes_and_every_text_arrives(
    texts: list[str], calls: list[str], sizes: list[int], with_usage: bool
) -> None:
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "resp_1", "created_at": 5, "model": "m"}},
        *[text(one) for one in texts],
        done(message("".join(texts))),
    ]
    for index, arguments in enumerate(calls, 1):
        item: dict[str, Any] = {**CALL, "call_id": f"call_{index}", "arguments": arguments}
        events.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "arguments": ""}})
        where = {"type": "response.function_call_arguments.delta", "output_index": index}
        events += [{**where, "delta": one} for one in arguments]
        events.append(done(item, index))
    data = stream(*events, completed(usage=USAGE))
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    raw = json.dumps({**body, "stream_options": {"include_usage": with_usage}}).encode()
    wires = [chat.wire(chat.inspect(raw), model="m", kind=CHATGPT) for _ in range(2)]
    whole, cut = through(wires[0], data), through(wires[1], data, sizes)
    assert whole == cut
    found = read(whole)
    assert "".join(delta.get("content", "") for delta in deltas(found)) == "".join(texts)
    arrived = [""] * len(calls)
    for delta in deltas(found):
        for call in delta.get("tool_calls", []):
            arrived[call["index"]] += call["function"]["arguments"]
    assert arrived == calls
    assert wires[0].meter.usage == wires[1].meter.usage == USAGE
    assert (found[-2].get("usage") == CHAT_USAGE) is with_usage
    folded = completion(data)["choices"][0]["message"]
    assert (folded["content"] or "") == "".join(texts)
    assert [call["function"]["arguments"] for call in folded.get("tool_calls", [])] == calls


_NAMES = [
    "response.created", "response.output_item.added", "response.output_item.done", "response.output_text.delta", "error",
    "response.refusal.delta", "response.function_call_arguments.delta", "response.custom_tool_call_input.delta",
    "response.reasoning_summary_text.delta", "response.completed", "response.incomplete", "response.failed", "response.odd",
]  # fmt: skip
_WORDS = """type id item response output output_index item_id delta message reasoning function_call custom_tool_call content summary
output_text summary_text refusal text name arguments input call_id usage input_tokens output_tokens total_tokens error code status
incomplete_details reason created_at model input_tokens_details cached_tokens"""
_words = st.sampled_from(_WORDS.split())
_odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _words | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=5),
    max_leaves=15,
)


@given(st.lists(st.tuples(st.sampled_from(_NAMES), st.dictionaries(_words, _odd, max_size=5)), max_size=8))
@settings(max_examples=200, deadline=None)
def test_whatever_an_upstream_says_the_chunks_are_well_formed(said: list[tuple[str, dict[str, Any]]]) -> None:
    data = stream(*[{**value, "type": name} for name, value in said])
    raw = b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true}}'
    wire = chat.wire(chat.inspect(raw), model="m", kind=CHATGPT)
    found = read(through(wire, data))
    kinds = [next(iter(chunk)) if isinstance(chunk, dict) else chunk for chunk in found]
    assert set(kinds) <= {"id", "error", "[DONE]"}
    assert all(kind == "id" for kind in kinds[:-1])
    assert wire.meter.is_terminal == any(name in metering.TERMINAL for name, _ in said)
    assert (kinds[-1:] in (["error"], ["[DONE]"])) == wire.meter.is_terminal
    try:
        folded = completion(data)
    except ValueError:
        return
    assert folded["object"] == "chat.completion"
