"""POST /v1/messages of the scripted upstream."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from billing import tokens
from tests.upstream import ScriptedUpstream

HEADERS = {"x-api-key": "sk-ant-test-upstream", "anthropic-version": "2023-06-01"}
TOOL = {"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}


@pytest.fixture
def http(upstream: ScriptedUpstream) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=upstream.url, timeout=10, trust_env=False) as client:
        yield client


def ask(http: httpx.Client, content: Any = "hello", **fields: Any) -> httpx.Response:
    body = {"model": "claude-opus-4-5", "max_tokens": 1000, "messages": [{"role": "user", "content": content}], **fields}
    return http.post("/v1/messages", json=body, headers=HEADERS)


def events(text: str) -> list[dict[str, Any]]:
    found = [block.split("\ndata: ") for block in text.split("\n\n")[:-1]]
    for name, data in found:
        assert name == f"event: {json.loads(data)['type']}"
    return [json.loads(data) for _, data in found]


def test_a_message_and_its_stream_say_the_same(http: httpx.Client) -> None:
    whole = ask(http).json()
    assert whole["content"] == [{"type": "text", "text": "You said: hello"}]
    assert (whole["type"], whole["role"], whole["stop_reason"]) == ("message", "assistant", "end_turn")
    streamed = events(ask(http, stream=True).text)
    assert [one["type"] for one in streamed[:3]] == ["message_start", "ping", "content_block_start"]
    assert [one["type"] for one in streamed[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(one["delta"]["text"] for one in streamed if one["type"] == "content_block_delta") == "You said: hello"
    assert streamed[0]["message"]["usage"]["output_tokens"] == 1
    assert streamed[-2]["usage"] == {"output_tokens": whole["usage"]["output_tokens"]}


def test_a_tool_is_called_and_its_result_told(http: httpx.Client) -> None:
    called = ask(http, "RUN_TOOL", tools=[TOOL]).json()
    assert (called["stop_reason"], called["content"][0]["name"], called["content"][0]["input"]) == ("tool_use", "add", {"a": 1})
    streamed = events(ask(http, "RUN_TOOL", tools=[TOOL], stream=True).text)
    parts = [one["delta"]["partial_json"] for one in streamed if one["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == {"a": 1}
    result = [{"type": "tool_result", "tool_use_id": "t", "content": "done 7"}]
    assert ask(http, result, tools=[TOOL]).json()["content"][0]["text"] == "Tool finished: done 7"


def test_what_is_marked_is_written_to_the_cache_and_read_from_it(http: httpx.Client) -> None:
    content = [{"type": "text", "text": "x" * 4000, "cache_control": {"type": "ephemeral"}}]
    first, second = (ask(http, content, metadata={"user_id": "u"}).json()["usage"] for _ in range(2))
    assert (first["cache_read_input_tokens"], first["input_tokens"]) == (0, 4)
    assert second["cache_read_input_tokens"] == (first["cache_creation_input_tokens"] + 4) // 128 * 128
    for usage in (first, second):
        counted = tokens.normalise(usage, "messages")
        assert counted is not None
        assert counted.input_total == first["cache_creation_input_tokens"] + 4


def test_too_few_tokens_stop_it(http: httpx.Client) -> None:
    assert ask(http, max_tokens=3).json()["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({"authorization": "Bearer sk-ant-x", "anthropic-version": "2023-06-01"}, 401, "authentication_error"),
        ({"x-api-key": "sk-openai", "anthropic-version": "2023-06-01"}, 401, "authentication_error"),
        ({**HEADERS, "authorization": "Bearer x"}, 401, "authentication_error"),
        ({"x-api-key": "sk-ant-x"}, 400, "invalid_request_error"),
    ],
)
def test_a_credential_of_another_form_is_refused(http: httpx.Client, headers: dict[str, str], status: int, kind: str) -> None:
    for answer in (http.post("/v1/messages", json={}, headers=headers), http.get("/v1/models", headers=headers)):
        if "x-api-key" not in headers and answer.request.method == "GET":
            continue
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


def test_its_keys_see_its_models(http: httpx.Client) -> None:
    assert http.get("/v1/models", headers=HEADERS).json()["data"][0]["type"] == "model"


@pytest.mark.parametrize("deltas", [None, 2])
def test_a_scripted_failure_is_an_error_event(http: httpx.Client, upstream: ScriptedUpstream, deltas: int | None) -> None:
    upstream.script({"fail": {"code": "overloaded_error"}, **({} if deltas is None else {"deltas": deltas})}, path="/v1/messages")
    streamed = events(ask(http, stream=True).text)
    assert (streamed[-1]["type"], streamed[-1]["error"]["type"]) == ("error", "overloaded_error")
    assert sum(one["type"] == "content_block_delta" for one in streamed) == (deltas or 0)


def test_a_named_error(http: httpx.Client, upstream: ScriptedUpstream) -> None:
    upstream.script({"error": "anthropic_529"}, path="/v1/messages")
    assert (ask(http).status_code, ask(http).status_code) == (529, 200)
