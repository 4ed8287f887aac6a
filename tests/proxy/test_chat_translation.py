"""A Chat Completions request as a Responses request."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects import chat
from proxy.dialects.inspection import NotServed
from proxy.errors import InvalidJson
from routing.snapshots import CHATGPT

ASKED = [{"role": "user", "content": "hi"}]


def translated(**fields: Any) -> Any:
    body = json.dumps({"model": "gpt-5.5", "messages": ASKED, **fields}).encode()
    wire = chat.wire(chat.inspect(body), model="gpt-5.5", kind=CHATGPT)
    assert (wire.path, wire.is_streamed, wire.is_translated, wire.encoding) == ("/codex/responses", True, True, None)
    return json.loads(wire.body)


def said(role: str, *parts: tuple[str, str]) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for kind, text in parts]}


def test_the_least_that_can_be_asked() -> None:
    """The backend demands `instructions`, if only empty, and streams what it does not store."""
    assert translated() == {
        "model": "gpt-5.5",
        "instructions": "",
        "input": [said("user", ("input_text", "hi"))],
        "stream": True,
        "store": False,
    }


def test_the_model_is_the_one_that_the_account_is_asked_for() -> None:
    wire = chat.wire(chat.inspect(b'{"model":"quick","messages":[{"role":"user","content":"x"}]}'), model="gpt-5.5", kind=CHATGPT)
    assert json.loads(wire.body)["model"] == "gpt-5.5"


def test_what_instructs_first_becomes_instructions_and_later_a_developers_message() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be true."}]},
        {"role": "user", "content": "hi", "name": "ada"},
        {"role": "system", "content": "Now rhyme."},
    ]
    found = translated(messages=messages)
    assert found["instructions"] == "Be brief.\n\nBe kind.\n\nBe true."
    assert found["input"] == [said("user", ("input_text", "hi")), said("developer", ("input_text", "Now rhyme."))]


def test_instructions_alone_are_the_input() -> None:
    found = translated(messages=[{"role": "system", "content": "Say hello."}])
    assert (found["instructions"], found["input"]) == ("", [said("developer", ("input_text", "Say hello."))])


def test_images_and_files() -> None:
    content = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "high"}},
        {"type": "image_url", "image_url": {"url": "https://pictures.example/x.png"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]
    [message] = translated(messages=[{"role": "user", "content": content}])["input"]
    assert message["content"] == [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "high"},
        {"type": "input_image", "image_url": "https://pictures.example/x.png", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
        {"type": "input_file", "file_id": "file-1"},
    ]


def test_tool_calls_and_their_answers() -> None:
    messages = [
        *ASKED,
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}},
                {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "done"}]},
        {"role": "assistant", "content": None, "refusal": "No."},
    ]
    assert translated(messages=messages)["input"][1:] == [
        said("assistant", ("output_text", "Looking.")),
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]


def test_functions_of_old() -> None:
    messages = [
        *ASKED,
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "seen"},
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": None},
    ]
    found = translated(messages=messages, functions=[{"name": "look"}], function_call={"name": "look"})
    assert [(item["type"], item["call_id"]) for item in found["input"][1:]] == [
        ("function_call", "call_1"),
        ("function_call_output", "call_1"),
        ("function_call", "call_2"),
        ("function_call_output", "call_2"),
    ]
    assert [item["output"] for item in found["input"] if "output" in item] == ["seen", ""]
    assert found["tools"] == [
        {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
    ]
    assert (found["tool_choice"], found["parallel_tool_calls"]) == ({"type": "function", "name": "look"}, False)


def test_functions_beside_an_empty_list_of_tools_are_offered_all_the_same() -> None:
    found = translated(tools=[], functions=[{"name": "look"}])
    assert [tool["name"] for tool in found["tools"]] == ["look"]
    assert found["parallel_tool_calls"] is False


@pytest.mark.parametrize("fields", [{"tool_choice": "auto"}, {"tool_choice": "none", "tools": []}, {"function_call": "auto"}])
def test_a_choice_among_no_tools_that_demands_none_asks_for_nothing(fields: dict[str, Any]) -> None:
    assert translated(**fields) == translated()


def test_tools_keep_their_schema_and_are_strict_only_if_asked() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number", "minimum": 0.10, "maximum": 10**25}}}
    grammar = {"syntax": "lark", "definition": "start: x"}
    tools = [
        {"type": "function", "function": {"name": "a", "description": "A", "parameters": schema, "strict": True}},
        {"type": "function", "function": {"name": "b", "parameters": schema}},
        {"type": "custom", "custom": {"name": "c", "description": "C", "format": {"type": "grammar", "grammar": grammar}}},
        {"type": "custom", "custom": {"name": "d", "format": {"type": "text"}}},
    ]
    found = translated(tools=tools, parallel_tool_calls=False)
    assert found["tools"] == [
        {"type": "function", "name": "a", "description": "A", "parameters": schema, "strict": True},
        {"type": "function", "name": "b", "parameters": schema, "strict": False},
        {"type": "custom", "name": "c", "description": "C", "format": {"type": "grammar", **grammar}},
        {"type": "custom", "name": "d", "format": {"type": "text"}},
    ]
    assert (found["parallel_tool_calls"], "tool_choice" in found) == (False, False)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ("none", "none"),
        ({"type": "function", "function": {"name": "a"}}, {"type": "function", "name": "a"}),
        ({"type": "custom", "custom": {"name": "a"}}, {"type": "custom", "name": "a"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "a"}}]},
            },
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "a"}]},
        ),
    ],
)
def test_which_tool_to_choose(choice: Any, expected: Any) -> None:
    tools = [{"type": "function", "function": {"name": "a"}}]
    assert translated(tools=tools, tool_choice=choice)["tool_choice"] == expected
    assert "tool_choice" not in translated(tool_choice="auto")


@pytest.mark.parametrize(
    ("given_format", "expected"),
    [
        ({"type": "text"}, {"type": "text"}),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "object"}}},
            {"type": "json_schema", "name": "x", "strict": True, "schema": {"type": "object"}},
        ),
    ],
)
def test_the_format_of_the_answer(given_format: Any, expected: Any) -> None:
    assert translated(response_format=given_format, verbosity="low")["text"] == {"format": expected, "verbosity": "low"}


def test_options_that_are_carried_over() -> None:
    found = translated(reasoning_effort="high", service_tier="priority", prompt_cache_key="thread")
    assert (found["reasoning"], found["service_tier"], found["prompt_cache_key"]) == ({"effort": "high"}, "priority", "thread")
    assert translated(reasoning={"effort": "low", "summary": "auto"})["reasoning"] == {"effort": "low", "summary": "auto"}
    assert "service_tier" not in translated(service_tier="auto")


def test_bounds_sampling_and_labels_are_left_out() -> None:
    """A24: the backend refuses a bound on the output; and the others by name, which every SDK sends."""
    left_out = {
        "max_tokens": 5, "max_completion_tokens": 5, "temperature": 0.2, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0,
        "seed": 7, "store": True, "metadata": {"a": "b"}, "user": "ada", "safety_identifier": "x", "prompt_cache_retention": "24h",
        "prediction": {"type": "content", "content": "x"}, "stream_options": {"include_usage": True}, "stream": True,
    }  # fmt: skip
    assert translated(**left_out) == translated()


def test_what_asks_for_nothing_is_no_reason_to_refuse() -> None:
    nothing: dict[str, Any] = {"n": 1, "stop": [], "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "modalities": ["text"]}
    assert translated(**nothing, audio=None, web_search_options=None, something_new=None) == translated()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"stop": "END"}, "stop"),
        ({"stop": ["END"]}, "stop"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "alloy", "format": "mp3"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"something_new": True}, "something_new"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"reasoning": {"max_tokens": 100}}, "reasoning.max_tokens"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [*ASKED, {"role": "assistant", "audio": {"id": "x"}}]}, "messages[1].audio"),
    ],
)
def test_what_would_change_the_answers_meaning_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(NotServed) as caught:
        translated(**fields)
    assert (caught.value.status, caught.value.code, caught.value.facts["param"]) == (400, "unsupported_parameter", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": {"id": "c"}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "assistant", "tool_calls": ["c"]}]}, "messages[0].tool_calls[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "a"}}}, "tool_choice"),
        ({"functions": [], "function_call": {"name": "a"}}, "function_call"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}], "functions": [{"name": "b"}]}, "functions"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"reasoning": "high"}, "reasoning"),
    ],
)
def test_what_is_malformed_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        translated(**fields)
    assert caught.value.facts["param"] == param


def test_a_number_beyond_all_bounds_is_refused() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"a","parameters":'
    )
    for parameters in (b'{"maximum":1e999}', b'{"a":' * 5000 + b"1" + b"}" * 5000):
        with pytest.raises(InvalidJson):
            chat.wire(chat.inspect(body + parameters + b"}}]}"), model="m", kind=CHATGPT)


# ------------------------------------------------------------------------------------------------------------ any request

_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6)
_WORDS = """role content type text user assistant tool system function custom name tool_calls id arguments input image_url url
file tool_call_id function_call refusal audio json_schema effort"""
_words = st.sampled_from(_WORDS.split())
_json = st.recursive(
    _scalars | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words | st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
_part_types = ["text", "image_url", "file", "refusal"]
_parts = st.fixed_dictionaries({"type": st.sampled_from(_part_types)}, optional=dict.fromkeys(_part_types, _json))
_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])},
    optional={
        "content": _scalars | st.lists(_parts, max_size=2) | _json,
        **dict.fromkeys(("tool_calls", "tool_call_id", "function_call"), _json),
    },
)
_fields = (
    "tools tool_choice functions function_call response_format reasoning reasoning_effort parallel_tool_calls verbosity "
    "service_tier stream stream_options n stop max_tokens other"
)
_request = st.fixed_dictionaries(
    {"messages": st.lists(_message, max_size=4) | _json}, optional=dict.fromkeys(_fields.split(), _json)
)


@given(_request)
@settings(max_examples=250, deadline=None)
def test_any_json_is_translated_or_refused_as_documented(fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "gpt-5.5", **fields}).encode()
    try:
        wire = chat.wire(chat.inspect(body), model="gpt-5.5", kind=CHATGPT)
    except (InvalidJson, NotServed):
        # Both are 400 and say which field.
        return
    found = json.loads(wire.body)
    assert (found["model"], found["stream"], found["store"]) == ("gpt-5.5", True, False)
    assert isinstance(found["instructions"], str)


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.text(min_size=1, max_size=20)), min_size=1))
@settings(max_examples=100, deadline=None)
def test_every_text_arrives(spoken: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": text, **({"tool_call_id": "c"} if role == "tool" else {})} for role, text in spoken]
    found = translated(messages=messages)
    for _, text in spoken:
        assert text in found["instructions"] or any(text in flat(item) for item in found["input"])


def flat(item: dict[str, Any]) -> list[str]:
    return [item["output"]] if "output" in item else [part["text"] for part in item["content"]]
