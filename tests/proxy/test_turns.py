"""Where in its conversation a request stands, told by bodies of every dialect."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from billing.snapshots import RateSnapshot
from proxy import turns
from proxy.dialects import fields

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "do it"}]}
SAID = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": 'see "function_call_output" and "role"'}],
}
CALL = {"type": "function_call", "call_id": "c", "name": "shell", "arguments": "{}"}
SEALED = {"type": "reasoning", "encrypted_content": "gAAA", "summary": []}


def answer(kind: str = "function_call_output", output: Any = "ok") -> dict[str, Any]:
    return {"type": kind, "call_id": "c", "output": output}


def is_inside(headers: dict[str, str] | None = None, **body: Any) -> bool:
    return turns.is_inside(headers or {}, fields.scan(json.dumps(body).encode()))


def is_bound(**body: Any) -> bool:
    return turns.is_bound(fields.scan(json.dumps(body).encode()))


@pytest.mark.parametrize(
    "items",
    [
        [USER, CALL, answer()],
        [USER, SEALED, CALL, answer(output=[{"type": "input_text", "text": "x"}])],
        [USER, CALL, answer("custom_tool_call_output"), SEALED],
        [answer()],
        [USER, CALL, answer(output='{"role": "user"}')],
    ],
)
def test_a_tools_answer_at_the_end_goes_on_with_the_turn(items: list[dict[str, Any]]) -> None:
    assert is_inside(input=items)


@pytest.mark.parametrize(
    "items",
    ["a question", [USER], [USER, CALL, answer(), SAID, USER], [USER, SAID, USER], []],
)
def test_what_a_person_says_begins_a_turn(items: Any) -> None:
    assert not is_inside(input=items)


@pytest.mark.parametrize("size", [100, 9_000, 70_000, 300_000])
def test_a_large_last_message_is_told_as_a_small_one(size: int) -> None:
    assert is_inside(input=[USER, CALL, answer(output="x" * size)])
    assert is_inside(input=[USER, *[CALL, answer(output="x" * 20_000)] * (size // 20_000 + 1)])
    said = {"role": "user", "content": "x" * size}
    assert not is_inside(input=[USER, CALL, answer(), said])
    assert not is_inside(input="x" * size)
    assert is_inside(messages=[said, {"role": "tool", "tool_call_id": "c", "content": "x" * size}])


def test_no_input_at_all_begins_a_turn() -> None:
    assert not is_inside(model="m")
    assert not is_bound(model="m")


def test_the_turn_state_that_codex_echoes_goes_on_with_its_turn() -> None:
    assert is_inside({"x-codex-turn-state": "opaque"}, input=[USER])


def test_chat_and_messages_are_read_as_well() -> None:
    assert is_inside(messages=[{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "c", "content": "ok"}])
    assert not is_inside(messages=[{"role": "tool", "content": "ok"}, {"role": "user", "content": "x"}])
    tool_result = {"type": "tool_result", "tool_use_id": "t", "content": "ok"}
    assert is_inside(messages=[{"role": "user", "content": "x"}, {"role": "user", "content": [tool_result]}])
    assert not is_inside(messages=[{"role": "user", "content": [tool_result]}, {"role": "user", "content": "thanks"}])


def test_sealed_reasoning_binds_and_talk_of_it_does_not() -> None:
    assert is_bound(input=[USER, SEALED, SAID, USER])
    assert is_bound(input=[{"type": "compaction", "encrypted_content": "x"}, USER])
    assert not is_bound(input=[USER])
    assert not is_bound(input='the field "encrypted_content"')
    assert not is_bound(input=[USER], include=["reasoning.encrypted_content"])


def test_reading_anew_costs_the_difference_of_the_rates() -> None:
    """100,000 tokens at 125 instead of 12.5 credits per million: 11.25."""
    rate = RateSnapshot(1, "m", datetime(2026, 1, 1, tzinfo=UTC), None, 125_000_000, 12_500_000, None, 750_000_000)
    assert turns.recache(rate, 100_000) == 11_250_000
    dearer = RateSnapshot(1, "m", datetime(2026, 1, 1, tzinfo=UTC), None, 10, 20, None, 30)
    assert turns.recache(dearer, 100_000_000) == 0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, False),
        ({"tools": []}, False),
        ({"tools": None}, False),
        ({"tools": [{"type": "web_search"}]}, True),
        ({"functions": [{"name": "f"}]}, True),
        ({"prompt": {"id": "pmpt_1"}}, True),
    ],
)
def test_only_what_offers_tools_may_go_on_after_its_answer(body: dict[str, Any], expected: bool) -> None:
    assert turns.has_tools(fields.scan(json.dumps({"model": "m", **body}).encode())) is expected
