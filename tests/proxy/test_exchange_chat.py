"""Chat Completions through the gateway, on accounts that speak it and on those that it is translated for."""

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import zstandard

from billing.models import UsageRecord
from proxy import lifespan
from tests import factories
from tests.flows import tenants
from tests.flows.tenants import Tenant, cost, in_thread
from tests.proxy.conftest import Gateway, check_counters, logged
from tests.upstream import Received, ScriptedUpstream

MakeTenant = Callable[..., Any]
PATH = "/v1/chat/completions"
WITH_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
USAGE = {"prompt_tokens": 700, "completion_tokens": 50, "total_tokens": 750}
RESPONSES_USAGE = {"input_tokens": 700, "output_tokens": 50, "total_tokens": 750}


def body(**fields: Any) -> bytes:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me about weirs."}]
    return json.dumps({"model": tenants.MODEL, "messages": messages, "stream": True, **fields}).encode()


async def post(gateway: Gateway, tenant: Tenant, raw: bytes | None = None, **fields: Any) -> httpx.Response:
    return await gateway.client.post(f"{gateway.url}{PATH}", headers=tenant.headers, content=body(**fields) if raw is None else raw)


def chunks(answer: httpx.Response) -> list[Any]:
    """The data of each event; `[DONE]` as it is."""
    blocks = answer.text.split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def said(found: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content") or "" for chunk in found if chunk != "[DONE]" for choice in chunk.get("choices", [])
    )


def sent(upstream: ScriptedUpstream, tenant: Tenant) -> list[Received]:
    return [one for one in upstream.received(token=tenant.upstream_token) if one.method == "POST"]


def check_row(row: UsageRecord, tenant: Tenant, *, input: int, output: int, cached: int = 0) -> None:
    assert (row.status, row.is_estimated, row.is_implausible, row.part) == ("ok", False, False, 0)
    assert (row.input_tokens, row.cached_input_tokens, row.output_tokens) == (input, cached, output)
    assert row.credits == cost(input=input, cached=cached, output=output) > 0
    assert row.account_id == (tenant.account and tenant.account.pk)


@pytest.mark.parametrize("account", ["openai", "chatgpt"])
async def test_a_stream_is_answered_and_priced_once(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, account: str
) -> None:
    """B10, C20: usage nobody asked for is booked and not shown; one row, also where the call had to be translated."""
    one: Tenant = await tenant(account=account)
    answer = await post(gateway, one)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    found = chunks(answer)
    assert (said(found), found[-1]) == ("You said: Tell me about weirs.", "[DONE]")
    assert b"usage" not in answer.content
    assert all(len(chunk["choices"]) == 1 for chunk in found[:-1])
    [received] = sent(upstream, one)
    [row] = await logged(one)
    check_row(row, one, input=len(received.body) // 4, output=18)
    assert (row.model_asked, row.model_served) == (tenants.MODEL, tenants.MODEL)
    await check_counters(one, [row])


@pytest.mark.parametrize("account", ["openai", "chatgpt"])
async def test_a_client_that_asks_for_its_usage_gets_what_is_booked(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, account: str
) -> None:
    one: Tenant = await tenant(account=account)
    *others, last, end = chunks(await post(gateway, one, **WITH_USAGE))
    assert end == "[DONE]"
    assert all(chunk["usage"] is None for chunk in others)
    [row] = await logged(one)
    assert last["choices"] == []
    counted = last["usage"]
    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (row.input_tokens + row.cached_input_tokens, 18)
    check_row(row, one, input=counted["prompt_tokens"], output=18)


async def test_an_api_key_account_gets_the_bytes_of_the_client_and_its_usage_asked_for(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """B10."""
    one: Tenant = await tenant()
    raw = b' { "messages":[ {"role":"user","content":"h\\u00e9"} ],\n"stream":true ,"x":1.0e0,"model":"gpt-5.5"}'
    await post(gateway, one, raw)
    asked = raw[:-1] + b',"stream_options":{"include_usage":true}}'
    await post(gateway, one, asked)
    whole = raw.replace(b"true", b"false")
    assert (await post(gateway, one, whole)).json()["object"] == "chat.completion"
    assert [received.body for received in sent(upstream, one)] == [asked, asked, whole]
    assert [received.path for received in sent(upstream, one)] == [PATH] * 3
    await logged(one, 3)


async def test_a_sign_in_account_is_asked_for_a_response(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """A24: without the bound that it would refuse."""
    one: Tenant = await tenant(account="chatgpt")
    assert (await post(gateway, one, temperature=0, max_tokens=5, reasoning_effort="high")).status_code == 200
    [received] = sent(upstream, one)
    assert received.path == "/backend-api/codex/responses"
    assert received.json == {
        "model": tenants.MODEL,
        "instructions": "Be brief.",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Tell me about weirs."}]}],
        "stream": True,
        "store": False,
        "reasoning": {"effort": "high"},
    }
    await logged(one)


@pytest.mark.parametrize("account", ["openai", "chatgpt"])
async def test_without_streaming_one_completion_comes_at_the_price_of_the_stream(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, account: str
) -> None:
    """N2, C20."""
    one: Tenant = await tenant(account=account)
    usage = USAGE if account == "openai" else RESPONSES_USAGE
    upstream.script({"usage": usage}, {"usage": usage}, token=one.upstream_token)
    whole = await post(gateway, one, stream=False)
    assert whole.headers["content-type"] == "application/json"
    found = whole.json()
    [choice] = found["choices"]
    assert (found["object"], choice["message"]["content"]) == ("chat.completion", "You said: Tell me about weirs.")
    assert (choice["finish_reason"], found["usage"]["prompt_tokens"], found["usage"]["total_tokens"]) == ("stop", 700, 750)
    await post(gateway, one)
    rows = await logged(one, 2)
    for row in rows:
        check_row(row, one, input=700, output=50)
    await check_counters(one, rows)


@pytest.mark.parametrize("account", ["openai", "chatgpt"])
async def test_a_turn_with_a_tool(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, account: str) -> None:
    one: Tenant = await tenant(account=account)
    asked: list[Any] = [{"role": "user", "content": "RUN_TOOL now"}]
    [choice] = (await post(gateway, one, stream=False, messages=asked, tools=[TOOL])).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]) == ("tool_calls", {"name": "look", "arguments": "{}"})
    streamed = chunks(await post(gateway, one, messages=asked, tools=[TOOL]))
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed[:-1]]
    begun, *rest = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert (begun["function"]["name"], "".join(part["function"]["arguments"] for part in rest)) == ("look", "{}")
    assert streamed[-2]["choices"][0]["finish_reason"] == "tool_calls"
    asked += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "seen"}]
    last = (await post(gateway, one, stream=False, messages=asked, tools=[TOOL])).json()
    assert last["choices"][0]["message"]["content"].startswith("Tool finished: seen")
    await check_counters(one, await logged(one, 3))


@pytest.mark.parametrize("account", ["openai", "chatgpt"])
async def test_a_failure_before_output_moves_to_another_account(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, account: str
) -> None:
    one: Tenant = await tenant(account=account)
    await post(gateway, one, prompt_cache_key="thread")
    other, _ = await in_thread(factories.openai_account, one.organization)
    upstream.script({"fail": {"code": "server_is_overloaded"}}, token=one.upstream_token)
    answer = await post(gateway, one, prompt_cache_key="thread")
    assert said(chunks(answer)) == "You said: Tell me about weirs."
    assert [received.scripted for received in sent(upstream, one)] == [False, True]
    rows = await logged(one, 2)
    assert [(row.status, row.account_id, len(row.trace)) for row in rows] == [
        ("ok", one.account and one.account.pk, 1),
        ("ok", other.pk, 2),
    ]
    await check_counters(one, rows)


@pytest.mark.parametrize("account", ["openai", "chatgpt"])
async def test_a_stream_that_fails_after_output_ends_with_an_error(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, account: str
) -> None:
    one: Tenant = await tenant(account=account)
    upstream.script({"deltas": 5, "fail": {"code": "server_error", "message": "boom"}}, token=one.upstream_token)
    found = chunks(await post(gateway, one))
    assert said(found).startswith("w0 w1 ")
    assert (found[-1]["error"]["code"], found[-1]["error"]["message"]) == ("server_error", "boom")
    [row] = await logged(one)
    assert row.status == "failed"
    assert row.credits > 0
    await check_counters(one, [row])


@pytest.mark.parametrize("account", ["openai", "chatgpt"])
async def test_a_stream_cut_after_output_ends_with_an_error_and_is_estimated(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, account: str
) -> None:
    one: Tenant = await tenant(account=account)
    # In Responses four events come before the first delta, in Chat one.
    upstream.script({"deltas": 50, "cut_after_events": 21 if account == "openai" else 24}, token=one.upstream_token)
    found = chunks(await post(gateway, one))
    assert found[-1]["error"] == {
        "message": "The upstream ended the stream before it was complete.",
        "type": "server_error",
        "param": None,
        "code": "stream_incomplete",
    }
    [row] = await logged(one)
    assert (row.status, row.is_estimated, row.output_tokens) == ("upstream_cut", True, 20)
    await check_counters(one, [row])


async def test_a_stream_cut_before_done_but_after_its_usage_is_billed_by_it(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    # The role, two words, the finish, the usage.
    upstream.script({"deltas": 2, "usage": USAGE, "cut_after_events": 5}, token=one.upstream_token)
    answer = await post(gateway, one)
    assert said(chunks(answer)) == "w0 w1"
    assert b"error" not in answer.content
    [row] = await logged(one)
    check_row(row, one, input=700, output=50)
    await check_counters(one, [row])


async def test_a_server_that_says_neither_done_nor_usage_is_believed_when_it_has_finished(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    begun, finished = ({"index": 0, "delta": {"content": "x"}, "finish_reason": None}, {"index": 0, "finish_reason": "stop"})
    events = [{"id": "chatcmpl-1", "choices": [choice]} for choice in (begun, finished)]
    upstream.script({"events": events}, {"events": events[:1]}, token=one.upstream_token)
    assert chunks(await post(gateway, one)) == events
    assert chunks(await post(gateway, one))[-1]["error"]["code"] == "stream_incomplete"
    rows = await logged(one, 2)
    assert [(row.status, row.is_estimated, row.output_tokens) for row in rows] == [("ok", True, 1), ("upstream_cut", True, 1)]
    await check_counters(one, rows)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("account", ["openai", "chatgpt"])
async def test_a_compressed_request_is_read_and_goes_on_plain(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, account: str, coding: str
) -> None:
    one: Tenant = await tenant(account=account)
    data = gzip.compress(body()) if coding == "gzip" else zstandard.compress(body())
    headers = {**one.headers, "content-encoding": coding}
    answer = await gateway.client.post(f"{gateway.url}{PATH}", headers=headers, content=data)
    assert said(chunks(answer)) == "You said: Tell me about weirs."
    [received] = sent(upstream, one)
    assert "content-encoding" not in received.headers
    assert received.json["model"] == tenants.MODEL
    await logged(one)


@pytest.mark.parametrize("account", ["openai", "chatgpt"])
async def test_leaving_in_the_middle_is_billed_for_what_was_seen(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, account: str
) -> None:
    one: Tenant = await tenant(account=account)
    upstream.script({"deltas": 200, "event_delay": 0.02}, token=one.upstream_token)
    seen = b""
    async with gateway.client.stream("POST", f"{gateway.url}{PATH}", headers=one.headers, content=body()) as got:
        async for part in got.aiter_raw():
            seen += part
            if seen.count(b'"content":"w') >= 30:
                break
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("client_closed", True)
    assert 30 <= row.output_tokens < 80
    await check_counters(one, [row])


@pytest.mark.parametrize("account", ["openai", "chatgpt"])
async def test_an_answer_cut_short_by_its_bound_says_so(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, account: str
) -> None:
    one: Tenant = await tenant(account=account)
    upstream.script({"terminal": "response.incomplete", "text": "cut"}, token=one.upstream_token)
    assert chunks(await post(gateway, one))[-2]["choices"][0]["finish_reason"] == "length"
    [row] = await logged(one)
    assert row.status == "incomplete"


# --------------------------------------------------------------------------------------------------------------- refusals


async def test_what_a_sign_in_account_cannot_do_is_refused_by_name_and_holds_nothing(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    refused = await post(gateway, one, n=2)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", "n")
    assert sent(upstream, one) == []
    await check_counters(one, [])


async def test_what_a_sign_in_account_cannot_do_goes_to_an_account_that_can(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    account, _ = await in_thread(factories.openai_account, one.organization)
    for number in range(4):
        found = chunks(await post(gateway, one, n=2, user=str(number)))
        assert {choice["index"] for chunk in found[:-1] for choice in chunk["choices"]} == {0, 1}
    assert sent(upstream, one) == []
    rows = await logged(one, 4)
    assert {row.account_id for row in rows} == {account.pk}
    assert {row.output_tokens for row in rows} == {36}
    await check_counters(one, rows)


async def test_refusals_have_openais_shape(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant()
    for raw, code in ((b"{", "invalid_json"), (body(model="gpt-9-new"), "model_not_found"), (body(n="x"), "invalid_json")):
        refused = await post(gateway, one, raw)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, code)
    assert sent(upstream, one) == []
    await check_counters(one, [])


async def test_a_denied_effort_is_denied_in_both_spellings(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    one.key.row.allowed_efforts = ["low"]
    await in_thread(one.key.row.save)
    spellings: tuple[dict[str, Any], ...] = ({"reasoning_effort": "high"}, {"reasoning": {"effort": "high"}})
    for fields in spellings:
        refused = await post(gateway, one, **fields)
        assert refused.json()["error"]["code"] == "reasoning_effort_not_allowed"
    assert sent(upstream, one) == []


# ------------------------------------------------------------------------------------------------------------- heartbeats


@pytest.mark.parametrize("gateway_settings", [{"HEARTBEAT_SECONDS": 0.2}])
@pytest.mark.parametrize("account", ["openai", "chatgpt"])
async def test_a_silent_stream_is_kept_alive_by_comments(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, account: str
) -> None:
    """A heartbeat is not output: the failure that follows still moves to another account, or ends as an error."""
    one: Tenant = await tenant(account=account)
    slow = {"first_event_delay": 1.2}
    failing = [{**slow, "fail": {"code": code}} for code in ("context_length_exceeded", "server_is_overloaded")]
    upstream.script(slow, *failing, token=one.upstream_token)
    answer = await post(gateway, one, prompt_cache_key="thread")
    assert answer.text.count(": ping\n\n") >= 2
    assert said(chunks_after_pings(answer)) == "You said: Tell me about weirs."
    [failed] = chunks_after_pings(await post(gateway, one, prompt_cache_key="thread"))
    assert failed["error"]["code"] == "context_length_exceeded"
    await in_thread(factories.openai_account, one.organization)
    moved = await post(gateway, one, prompt_cache_key="thread")
    assert moved.text.startswith(": ping\n\n")
    assert said(chunks_after_pings(moved)) == "You said: Tell me about weirs."
    rows = await logged(one, 3)
    assert [(row.status, len(row.trace)) for row in rows] == [("ok", 1), ("failed", 1), ("ok", 2)]
    await check_counters(one, rows)
    assert lifespan.resources().running == 0


def chunks_after_pings(answer: httpx.Response) -> list[Any]:
    return chunks(httpx.Response(200, text=answer.text.replace(": ping\n\n", "")))


async def test_many_at_once_leave_nothing_behind(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant(account="chatgpt")
    await in_thread(factories.openai_account, one.organization)
    answers = await asyncio.gather(*[post(gateway, one, stream=number % 2 == 0, user=str(number)) for number in range(12)])
    assert {answer.status_code for answer in answers} == {200}
    await check_counters(one, await logged(one, 12))
