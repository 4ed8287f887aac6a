"""POST /v1/chat/completions of the scripted upstream."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.upstream import ScriptedUpstream

KEY = "sk-test-chat-upstream"


@pytest.fixture
def http(upstream: ScriptedUpstream) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=upstream.url, timeout=10, trust_env=False) as client:
        yield client


def ask(http: httpx.Client, text: str = "hello", **fields: Any) -> httpx.Response:
    body = {"model": "gpt-5.4", "messages": [{"role": "user", "content": text}], **fields}
    return http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"})


def chunks(text: str) -> list[Any]:
    """The data of each event; `[DONE]` as it is."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def test_a_stream_with_and_without_its_usage(http: httpx.Client) -> None:
    plain = chunks(ask(http, stream=True).text)
    assert plain[-1] == "[DONE]"
    assert all("usage" not in chunk for chunk in plain[:-1])
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in plain[:-1]) == "You said: hello"
    assert [chunk["choices"][0]["finish_reason"] for chunk in plain[:-1]] == [*[None] * (len(plain) - 2), "stop"]
    asked = ask(http, stream=True, stream_options={"include_usage": True})
    *others, last, done = chunks(asked.text)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in others)
    tokens = len(asked.request.content) // 4
    assert (last["choices"], last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == ([], tokens, 9)
    assert last["usage"]["total_tokens"] == tokens + 9


def test_one_completion_and_its_tool_call(http: httpx.Client) -> None:
    whole = ask(http).json()
    assert (whole["object"], whole["choices"][0]["message"]["content"]) == ("chat.completion", "You said: hello")
    assert whole["usage"]["completion_tokens"] == 9
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    [choice] = ask(http, "RUN_TOOL", tools=[tool]).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]) == ("tool_calls", {"name": "look", "arguments": "{}"})
    streamed = chunks(ask(http, "RUN_TOOL", tools=[tool], stream=True).text)
    assert streamed[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_what_it_refuses_and_how_it_fails(http: httpx.Client, upstream: ScriptedUpstream) -> None:
    assert ask(http, stream_options={"include_usage": True}).json()["error"]["param"] == "stream_options"
    stranger = http.post("/v1/chat/completions", json={}, headers={"authorization": "Bearer no"})
    assert stranger.status_code == 401
    upstream.script(
        {"error": "429_rate"},
        {"fail": {"code": "server_error"}, "deltas": 2},
        {"terminal": "none", "deltas": 1},
        {"terminal": "response.incomplete", "text": "cut short"},
        token=KEY,
    )
    assert ask(http, stream=True).status_code == 429
    assert chunks(ask(http, stream=True).text)[-1]["error"]["code"] == "server_error"
    assert chunks(ask(http, stream=True).text)[-1]["choices"][0]["finish_reason"] is None
    assert chunks(ask(http, stream=True).text)[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("field", [{"temperature": 1}, {"input": [{"role": "system", "content": "x"}]}])
def test_the_chatgpt_backend_refuses_what_the_api_takes(
    http: httpx.Client, upstream: ScriptedUpstream, field: dict[str, Any]
) -> None:
    auth = upstream.mint()
    headers = {"authorization": f"Bearer {auth['tokens']['access_token']}", "chatgpt-account-id": auth["tokens"]["account_id"]}
    body = {"model": "gpt-5.4", "stream": True, "store": False, "input": "x", **field}
    assert http.post("/backend-api/codex/responses", json=body, headers=headers).status_code == 400
