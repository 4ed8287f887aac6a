"""Whole requests that go well: bytes, prices, one record each, no query and two round trips."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db.backends.utils import CursorWrapper
from django.test import override_settings

from proxy import lifespan
from tests.flows.tenants import Tenant, body, cost
from tests.proxy.conftest import Gateway, check_counters, is_clean, logged
from tests.proxy.raw_server import Peer, answer, chunked, serve
from tests.upstream import ScriptedUpstream

SAMPLES = Path(__file__).parent / "samples"
USAGE = {"input_tokens": 300, "output_tokens": 20, "total_tokens": 320}

MakeTenant = Callable[..., Any]


@pytest.mark.parametrize("kind", ["openai", "chatgpt"])
@pytest.mark.parametrize("name", ["responses_text", "responses_tool_call", "responses_compaction_v2", "responses_minimal"])
async def test_a_stream_passes_byte_for_byte_and_is_priced_once(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str, name: str
) -> None:
    one: Tenant = await tenant(account=kind)
    data = (SAMPLES / f"{name}.sse").read_bytes()
    upstream.script({"raw": data.decode()}, token=one.upstream_token)
    got = await gateway.post(one)
    assert (got.status_code, got.content) == (200, data)
    assert got.headers["content-type"] == "text/event-stream"
    assert got.headers["x-codex-primary-used-percent"] == "0"
    [row] = await logged(one)
    assert one.account is not None
    assert (row.status, row.part, row.account_id, row.is_estimated) == ("ok", 0, one.account.pk, False)
    assert row.credits > 0
    assert row.first_token_ms is not None
    await check_counters(one, [row])


async def test_an_api_key_account_gets_the_body_as_it_came(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N56: byte for byte, spaces, escapes and unknown fields included; the client's key stays here."""
    one: Tenant = await tenant()
    content = (
        '{ "model" : "gpt-5.5",\n "input":"\\u00e9 한 🦊", "stream":true , "max_output_tokens":1000,"x":[1e3,{"y":null}] }'.encode()
    )
    headers = {**one.headers, "session-id": "s-1", "x-forwarded-for": "127.0.0.1", "cookie": "a=b", "chatgpt-account-id": "mine"}
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=content)
    assert got.status_code == 200
    [received] = upstream.received(token=one.upstream_token)
    assert received.body == content
    assert received.headers["session-id"] == "s-1"
    assert "accept-encoding" not in received.headers
    for name in ("x-forwarded-for", "cookie", "chatgpt-account-id"):
        assert name not in received.headers
    assert one.key.secret not in json.dumps(received.headers)


async def test_a_sign_in_account_gets_the_documented_edits_only(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N56, A24: streamed, not stored, without the bound on the output; everything else as it was."""
    one: Tenant = await tenant(account="chatgpt")
    content = (
        b'{"model":"gpt-5.5", "max_output_tokens": 1000, "input":[{"type":"message","role":"user","content":"hi"}], "z" : 1.50}'
    )
    got = await gateway.client.post(f"{gateway.url}/backend-api/codex/responses", headers=one.headers, content=content)
    assert got.status_code == 200
    [received] = upstream.received(token=one.upstream_token)
    assert received.path == "/backend-api/codex/responses"
    assert received.body == (
        b'{"model":"gpt-5.5", "input":[{"type":"message","role":"user","content":"hi"}], "z" : 1.50,"stream":true,"store":false}'
    )
    assert one.account is not None
    assert received.headers["chatgpt-account-id"] == one.account.chatgpt_account_id


@pytest.mark.parametrize("kind", ["openai", "chatgpt"])
async def test_without_streaming_one_object_comes_at_the_price_of_the_stream(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str
) -> None:
    """N2: usage 300 in, 20 out: one record of 320 tokens, the cost of its streamed twin."""
    one: Tenant = await tenant(account=kind)
    upstream.script({"usage": USAGE}, repeat=2, token=one.upstream_token)
    whole = await gateway.post(one, stream=False)
    streamed = await gateway.post(one, stream=True)
    assert whole.headers["content-type"] == "application/json"
    value = whole.json()
    assert (value["object"], value["status"], value["usage"]) == ("response", "completed", USAGE)
    assert value["output"][0]["content"][0]["text"].startswith("You said:")
    assert streamed.headers["content-type"] == "text/event-stream"
    rows = await logged(one, 2)
    assert {row.credits for row in rows} == {cost(input=300, output=20)}
    assert {row.counted_tokens for row in rows} == {320}
    assert {row.status for row in rows} == {"ok"}
    await check_counters(one, rows)


async def test_an_answer_can_be_seen_in_the_counters_as_soon_as_it_has_ended(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    for stream in (True, False):
        upstream.script({"usage": USAGE}, token=one.upstream_token)
        await gateway.post(one, stream=stream)
        assert await is_clean(one)
    used = (await gateway.get(one, "/v1/usage")).json()["period"]["used"]
    assert used == "0.105"


async def test_the_warm_path_asks_no_query_and_two_round_trips(
    gateway: Gateway, tenant: MakeTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 SQL statements over the whole request; at most 2 Redis round trips before the upstream hears of it."""
    seen: list[int] = []
    statements: list[str] = []

    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            seen.append(lifespan.resources().redis.round_trips)
            await peer.send(chunked((SAMPLES / "responses_text.sse").read_bytes()))

    async with serve(script) as server:
        with override_settings(UPSTREAM_OPENAI_URL=server.url):
            one: Tenant = await tenant()
            headers = {**one.headers, "session-id": "warm"}

            async def call() -> int:
                before = lifespan.resources().redis.round_trips
                got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=body())
                assert got.status_code == 200
                return before

            await call()
            original = CursorWrapper.execute

            def execute(self: Any, sql: Any, params: Any = None) -> Any:
                statements.append(str(sql))
                return original(self, sql, params)

            monkeypatch.setattr(CursorWrapper, "execute", execute)
            await is_clean(one)
            for _ in range(3):
                before = await call()
                assert seen[-1] - before <= 2
            assert statements == []
            assert len(seen) == 4


@pytest.mark.alone
async def test_the_preamble_waits_for_output_but_not_for_long(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    upstream.script({"event_delay": 0.6}, token=one.upstream_token)
    began = asyncio.get_running_loop().time()
    async with gateway.stream(one) as got:
        chunks = got.aiter_raw()
        first = await anext(chunks)
        assert asyncio.get_running_loop().time() - began < 0.6
        assert first.startswith(b"event: response.created")
    await logged(one)


async def test_a_session_stays_on_its_account(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    from tests import factories
    from tests.flows.tenants import in_thread

    one: Tenant = await tenant()
    for _ in range(3):
        await in_thread(factories.openai_account, one.organization)
    for _ in range(6):
        assert (await gateway.post(one, prompt_cache_key="thread")).status_code == 200
    rows = await logged(one, 6)
    assert len({row.account_id for row in rows}) == 1
    assert rows[-1].trace[0]["reason"] == "sticky"


async def test_a_gzip_body_is_refused_by_name(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant()
    headers = {**one.headers, "content-encoding": "zstd"}
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=b"(\xb5/\xfd")
    assert (got.status_code, got.json()["error"]["code"]) == (400, "invalid_encoding")
    assert upstream.received(token=one.upstream_token) == []
    assert await is_clean(one)


@pytest.mark.parametrize("gateway_settings", [{"PROXY_MAX_BODY_BYTES": 5000}])
async def test_a_body_above_the_bound_is_refused_and_one_below_passes(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    refused = await gateway.post(one, input="x" * 5000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "payload_too_large")
    assert upstream.received(token=one.upstream_token) == []
    assert (await gateway.post(one, input="x" * 4000)).status_code == 200


async def test_other_methods_and_paths_are_refused_in_the_clients_shape(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant()
    got = await gateway.get(one, "/v1/responses")
    assert (got.status_code, got.json()["error"]["code"]) == (405, "method_not_allowed")
    got = await gateway.get(one, "/v1/embeddings")
    assert (got.status_code, got.json()["error"]["code"]) == (404, "not_found")


async def test_a_draining_process_takes_no_new_request(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant()
    lifespan.drain()
    got = await gateway.post(one)
    assert (got.status_code, got.json()["error"]["code"], got.headers["retry-after"]) == (503, "draining", "5")
    assert upstream.received(token=one.upstream_token) == []


async def test_a_slow_client_slows_the_upstream_and_gets_all_of_it(gateway: Gateway, tenant: MakeTenant) -> None:
    event = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"%s"}\n\n' % (b"y" * 60_000)
    last = b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r","usage":{"input_tokens":1}}}\n\n'

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for _ in range(200):
            await peer.send(event)
        await peer.send(last)

    async with serve(script) as server:
        with override_settings(UPSTREAM_OPENAI_URL=server.url):
            one: Tenant = await tenant()
            size = 0
            async with gateway.stream(one) as got:
                async for chunk in got.aiter_raw():
                    if size == 0:
                        await asyncio.sleep(0.3)
                    size += len(chunk)
            assert size == 200 * len(event) + len(last)
    [row] = await logged(one)
    assert (row.status, row.credits) == ("ok", cost(input=1))


async def test_a_json_answer_without_a_content_type_of_events_is_passed_whole(gateway: Gateway, tenant: MakeTenant) -> None:
    value = json.dumps({"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-5.5", "usage": USAGE}).encode()

    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await peer.send(answer(value, head=b"content-type: application/json; charset=utf-8\r\n"))

    async with serve(script) as server:
        with override_settings(UPSTREAM_OPENAI_URL=server.url):
            one: Tenant = await tenant()
            got = await gateway.post(one, stream=False)
            assert (got.status_code, got.content) == (200, value)
    [row] = await logged(one)
    assert (row.credits, row.response_id) == (cost(input=300, output=20), "resp_1")
