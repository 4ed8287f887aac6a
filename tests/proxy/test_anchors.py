"""What of a request or an answer names state of one account: every spelling, nothing that only looks like it, and at what price."""

import json
import time
from typing import Any

import pytest

from proxy import anchors
from proxy.dialects import responses
from proxy.dialects.inspection import Inspection
from routing.anchors import Anchor, Kind


def request(**fields: Any) -> Inspection:
    return responses.inspect(json.dumps({"model": "gpt-5.5", "input": "hi", **fields}).encode())


def found(headers: dict[str, str] | None = None, **fields: Any) -> list[tuple[str, str]]:
    return [(anchor.kind.value, anchor.id) for anchor in anchors.anchors_of(request(**fields), headers or {})]


def compaction(sealed: str, **fields: Any) -> dict[str, Any]:
    return {"type": "compaction", "encrypted_content": sealed, **fields}


def message(*parts: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(parts)}


def test_a_request_that_sends_all_it_means_has_none() -> None:
    assert found(input=[message({"type": "input_text", "text": "hi"})], tools=[{"type": "function", "name": "f"}]) == []
    assert found(previous_response_id=None, conversation=None) == []


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}, {"id": "conv_1", "object": "conversation"}])
def test_a_conversation_is_named_by_its_id_or_as_an_object(conversation: object) -> None:
    assert found(conversation=conversation) == [("conversation", "conv_1")]


@pytest.mark.parametrize("conversation", [{}, {"id": 5}, {"id": None}, 5, "", "c" * 513, []])
def test_what_is_no_conversation_is_left_to_the_upstream(conversation: object) -> None:
    assert found(conversation=conversation) == []


def test_everything_that_a_request_names_is_found_once() -> None:
    items = [
        message({"type": "input_file", "file_id": "file-1"}, {"type": "input_image", "file_id": "file-2", "detail": "low"}),
        message({"type": "input_file", "file_id": "file-1"}),
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "file_id": "file-3"}]},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "item_reference", "id": "msg_1"},
    ]
    tools = [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-4", "file-2"]}}]
    told = found({"x-codex-turn-state": "ts-1"}, previous_response_id="resp_1", conversation="conv_1", input=items, tools=tools)
    assert told == [
        ("response", "resp_1"),
        ("turn", "ts-1"),
        ("conversation", "conv_1"),
        *(("file", f"file-{number}") for number in (1, 2, 3, 4)),
        ("item", "msg_1"),
    ]


def test_words_in_a_text_are_no_anchors() -> None:
    """Quotes within a string are escaped."""
    said = json.dumps([{"type": "item_reference", "id": "msg_1", "file_id": "file-1"}, compaction("sealed")])
    assert found(input=[message({"type": "input_text", "text": said})], instructions=said) == []
    assert found(input=said) == []


def test_a_schema_that_has_a_field_of_the_name_is_no_file() -> None:
    schema = {"type": "object", "properties": {"file_id": {"type": "string"}, "file_ids": {"type": "array", "items": {}}}}
    assert found(tools=[{"type": "function", "name": "f", "parameters": schema}]) == []


@pytest.mark.parametrize("spelt", [b'"file\\u002d1"', b'"file-1"'], ids=["escaped", "plain"])
@pytest.mark.parametrize("between", [b":", b" : ", b":\n  "], ids=["tight", "wide", "lines"])
def test_an_id_is_read_as_json_spells_it(spelt: bytes, between: bytes) -> None:
    body = b'{"model":"m","input":[{"type":"message","content":[{"file_id"' + between + spelt + b"}]}]}"
    assert anchors.anchors_of(responses.inspect(body), {}) == (Anchor(Kind.FILE, "file-1"),)


def test_files_are_bounded_and_the_newest_of_items_and_compactions_count() -> None:
    files = [message(*({"type": "input_file", "file_id": f"file-{number}"} for number in range(100)))]
    assert found(input=files) == [("file", f"file-{number}") for number in range(16)]
    references = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(100)]
    assert found(input=references) == [("item", f"msg_{number}") for number in range(84, 100)]
    sealed = [compaction(f"sealed {number}") for number in range(10)]
    assert found(input=sealed) == found(input=sealed[6:])
    assert len(found(input=sealed)) == 4


def test_a_compacted_history_is_known_by_its_sealed_content_wherever_it_stands() -> None:
    [one] = found(input=[compaction("sealed", id="cmp_1"), message()])
    assert one[0] == "compaction"
    assert [one] == found(input=[message(), {"encrypted_content": "sealed", "type": "compaction"}])
    assert [one] == found(input=[{"type": "compaction_summary", "encrypted_content": "sealed"}])
    assert one not in found(input=[compaction("sealed otherwise")])
    assert "sealed" not in one[1]
    # The same out of the event that brought it.
    event = {"type": "response.output_item.done", "output_index": 0, "item": compaction("sealed", id="cmp_1")}
    assert anchors.made_by_item(json.dumps(event).encode()) == [Anchor(Kind.COMPACTION, one[1])]
    assert anchors.made_by_answer(json.dumps({"output": [compaction("sealed")]}).encode(), is_stored=False) == [
        Anchor(Kind.COMPACTION, one[1])
    ]


def test_the_wish_for_a_compaction_and_reasoning_are_no_anchors() -> None:
    assert found(input=[message(), {"type": "compaction_trigger"}]) == []
    assert (
        found(input=[{"type": "reasoning", "encrypted_content": "gAAAA"}, {"type": "compaction", "encrypted_content": None}]) == []
    )


def test_items_that_are_stored_nowhere_are_not_looked_for() -> None:
    assert found(store=False, input=[{"type": "item_reference", "id": "msg_1"}]) == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","input":{"type":"item_reference","id":"msg_1"}}',
        b'{"model":"m","input":["item_reference", {"type":"compaction"}]}',
        b'{"model":"m","input":[{"type":["compaction"],"encrypted_content":"x"}]}',
        b'{"model":"m","input":[{"type":"compaction","encrypted_content":7},{"type":"item_reference","id":null}]}',
        b'{"model":"m","input":[{"file_id":""},{"file_id":7}]}',
        b'{"model":"m","input":[{"file_id":"' + b"f" * 600 + b'"}]}',
    ],
)
def test_odd_input_names_nothing(body: bytes) -> None:
    assert anchors.anchors_of(responses.inspect(body), {}) == ()


# ---------------------------------------------------------------------------------------------------------------- answers


def test_a_stored_answer_brings_items_that_can_be_referred_to() -> None:
    output = [{"type": "reasoning", "id": "rs_1"}, {"type": "message", "id": "msg_1", "content": []}, {"type": "message"}]
    whole = {"id": "resp_1", "output": output}
    told = [Anchor(Kind.ITEM, "rs_1"), Anchor(Kind.ITEM, "msg_1")]
    assert anchors.made_by_answer(json.dumps(whole).encode(), is_stored=True) == told
    event = {"type": "response.completed", "response": whole}
    assert anchors.made_by_end(json.dumps(event).encode(), is_stored=True) == told
    assert anchors.made_by_end(json.dumps(event).encode(), is_stored=False) == []


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"output":5}', b'{"response":{}}', b'{"item":5,"x":"compaction"}', b"\xff"])
def test_odd_answers_bring_nothing(data: bytes) -> None:
    assert anchors.made_by_item(data) == []
    assert anchors.made_by_answer(data, is_stored=True) == anchors.made_by_end(data, is_stored=True) == []


def test_a_head_issues_the_turns_token() -> None:
    assert anchors.turn_of({"x-codex-turn-state": "ts-1"}) == [Anchor(Kind.TURN, "ts-1")]
    assert anchors.turn_of({}) == anchors.turn_of({"x-codex-turn-state": ""}) == []


def test_only_a_request_that_speaks_of_compaction_has_its_answers_items_read() -> None:
    assert not anchors.may_compact(request(input=[message()]))
    assert anchors.may_compact(request(input=[message(), {"type": "compaction_trigger"}]))
    assert anchors.may_compact(request(input=[compaction("sealed")]))
    assert anchors.may_compact(request(context_management=[{"type": "compaction", "compact_threshold": 100_000}]))


# ------------------------------------------------------------------------------------------------------------------ price


@pytest.mark.alone
def test_a_long_conversation_without_anchors_is_only_searched() -> None:
    """By what the body's first scan costs; both are timed, so that a slow machine is slow at both. Two searches take two scans at
    most; reading the items would take three more."""
    said = message({"type": "input_text", "text": 'a "quoted" word, and file_id, compaction. ' * 20})
    one = request(input=[said] * 400, store=False)
    assert len(one.body) > 300_000

    def best(call: Any) -> float:
        times = []
        for _ in range(15):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        return min(times)

    scan = best(lambda: responses.inspect(one.body))
    assert best(lambda: anchors.anchors_of(one, {})) < 3 * scan
