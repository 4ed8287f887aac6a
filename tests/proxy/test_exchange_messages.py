"""Anthropic's Messages through the whole gateway: bytes, credentials, prices, refusals, failovers, ends."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from django.test import override_settings

from routing import accounts
from tests import factories
from tests.flows.tenants import MODEL, Tenant, cost, in_thread
from tests.proxy.conftest import Gateway, check_counters, is_clean, logged, set_limit
from tests.proxy.raw_server import Peer, serve
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]

PATH = "/v1/messages"
USAGE = {"input_tokens": 500, "cache_read_input_tokens": 9500, "cache_creation_input_tokens": 0, "output_tokens": 200}


def content(**fields: Any) -> bytes:
    # As many bytes as the usage that tests script can have been read from.
    said = [{"role": "user", "content": "Tell me about weirs. " + "x" * 1000}]
    return json.dumps({"model": MODEL, "max_tokens": 1000, "stream": True, "messages": said, **fields}).encode()


def headers(tenant: Tenant, **more: str) -> dict[str, str]:
    """As Anthropic's clients send them."""
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return {"x-api-key": tenant.key.secret, "anthropic-version": "2023-06-01", "content-type": "application/json", **named}


async def post(gateway: Gateway, tenant: Tenant, **fields: Any) -> httpx.Response:
    return await gateway.client.post(f"{gateway.url}{PATH}", headers=headers(tenant), content=content(**fields))


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(part.split(b"data: ", 1)[1]) for part in data.split(b"\n\n") if part.strip()]


async def second_account(tenant: Tenant) -> tuple[Any, str]:
    return await in_thread(factories.key_account, tenant.organization, kind="anthropic")  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------- going well


@pytest.mark.parametrize("stream", [True, False])
async def test_a_message_is_passed_on_and_priced_without_its_cache(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, stream: bool
) -> None:
    """C3: 500 of input, 9,500 read from the cache, 200 written, whichever way they are told."""
    one: Tenant = await tenant(account="anthropic")
    upstream.script({"usage": USAGE}, token=one.upstream_token)
    got = await post(gateway, one, stream=stream)
    assert got.status_code == 200
    if stream:
        assert got.headers["content-type"].startswith("text/event-stream")
        assert [found["type"] for found in events(got.content)][-2:] == ["message_delta", "message_stop"]
    else:
        assert got.json()["usage"] == USAGE
    [row] = await logged(one)
    assert (row.input_tokens, row.cached_input_tokens, row.cache_write_tokens, row.output_tokens) == (500, 9500, 0, 200)
    assert row.credits == cost(input=500, cached=9500, output=200)
    assert (row.status, row.is_estimated, row.is_implausible, row.response_id[:4]) == ("ok", False, False, "msg_")
    await check_counters(one, [row])


async def test_what_is_written_to_the_cache_costs_as_input(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """C3: Anthropic's shape with a write."""
    one: Tenant = await tenant(account="anthropic")
    upstream.script({"usage": {**USAGE, "cache_creation_input_tokens": 1000}}, token=one.upstream_token)
    assert (await post(gateway, one)).status_code == 200
    [row] = await logged(one)
    assert (row.input_tokens, row.cached_input_tokens, row.cache_write_tokens) == (500, 9500, 1000)
    assert row.credits == cost(input=1500, cached=9500, output=200)
    await check_counters(one, [row])


@pytest.mark.parametrize("chunk", [1, 13])
async def test_a_stream_passes_byte_for_byte(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, chunk: int) -> None:
    one: Tenant = await tenant(account="anthropic")
    upstream.script({"text": "An old weir — 堰.", "chunk": chunk}, {"text": "An old weir — 堰."}, token=one.upstream_token)
    split, whole = [(await post(gateway, one)).content for _ in range(2)]
    assert split[split.index(b"event: ping") :] == whole[whole.index(b"event: ping") :]
    assert b"An " in whole
    rows = await logged(one, 2)
    assert rows[0].credits == rows[1].credits > 0


async def test_the_account_shows_its_own_key_and_the_client_none(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N56: the body as it came; betas pass, the client's key and ways do not."""
    one: Tenant = await tenant(account="anthropic")
    sent = b'{ "model" : "gpt-5.5", "max_tokens":50,\n "messages":[{"role":"user","content":"\\u00e9"}], "x":[1e3] }'
    more = headers(one, anthropic_beta="context-1m-2025-08-07", x_forwarded_for="10.0.0.1", api_key="mine", x_stainless_lang="js")
    got = await gateway.client.post(f"{gateway.url}{PATH}?beta=true", headers=more, content=sent)
    assert got.status_code == 200
    [received] = upstream.received(token=one.upstream_token)
    assert (received.path, received.body) == (PATH, sent)
    assert received.headers["x-api-key"] == one.upstream_token
    assert received.headers["anthropic-beta"] == "context-1m-2025-08-07"
    assert received.headers["x-stainless-lang"] == "js"
    assert not {"authorization", "x-forwarded-for", "api-key", "chatgpt-account-id"} & set(received.headers)
    assert one.key.secret not in json.dumps(received.headers)
    assert not {name for name in got.headers if name.startswith("anthropic-")}


async def test_a_version_is_named_where_the_client_names_none(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="anthropic")
    for sent in ({}, {"anthropic-version": "2099-01-01"}):
        got = await gateway.client.post(f"{gateway.url}{PATH}", headers={**one.headers, **sent}, content=content())
        assert got.status_code == 200
    versions = [received.headers["anthropic-version"] for received in upstream.received(token=one.upstream_token)]
    assert versions == ["2023-06-01", "2099-01-01"]


async def test_a_tool_turn_goes_on_where_it_was(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant(account="anthropic")
    for _ in range(3):
        await second_account(one)
    tool = {"name": "add", "input_schema": {"type": "object"}}
    asked = {"role": "user", "content": "RUN_TOOL"}
    session = {"metadata": {"user_id": "user_1_account_2_session_0a1b2c3d-0001"}, "tools": [tool]}
    first = await post(gateway, one, messages=[asked], stream=False, **session)
    call = first.json()["content"][0]
    assert call["type"] == "tool_use"
    answered = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "3"}]}
    turn = [asked, {"role": "assistant", "content": [call]}, answered]
    assert (await post(gateway, one, messages=turn, **session)).status_code == 200
    rows = await logged(one, 2)
    assert rows[0].account_id == rows[1].account_id
    assert rows[1].trace[0]["reason"] == "turn"


# --------------------------------------------------------------------------------------------------------- who may


async def test_a_key_may_come_either_way_and_two_that_differ_are_none(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="anthropic")
    secret = one.key.secret
    other = (await tenant(account="none")).key.secret
    good = [
        {"x-api-key": secret},
        {"authorization": f"Bearer {secret}"},
        {"x-api-key": secret, "authorization": f"Bearer {secret}"},
    ]
    for sent in good:
        got = await gateway.client.post(f"{gateway.url}{PATH}", headers=sent, content=content(stream=False))
        assert got.status_code == 200, sent
    bad = [
        {},
        {"x-api-key": ""},
        {"x-api-key": "sk-ant-of-their-own"},
        {"x-api-key": secret[:-1] + ("a" if secret[-1] != "a" else "b")},
        {"x-api-key": secret, "authorization": f"Bearer {other}"},
        {"x-api-key": other, "authorization": f"Bearer {secret}"},
        {"x-api-key": secret, "authorization": "Basic eDp5"},
        {"authorization": secret},
    ]
    for sent in bad:
        got = await gateway.client.post(f"{gateway.url}{PATH}", headers=sent, content=content())
        error = got.json()
        assert (got.status_code, error["type"], error["error"]["type"]) == (401, "error", "authentication_error"), sent
        assert error["error"]["code"] == "invalid_api_key"
    assert len(upstream.received(token=one.upstream_token)) == len(good)
    assert await is_clean(one)


async def test_elsewhere_a_key_comes_as_a_bearer_only(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant()
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers={"x-api-key": one.key.secret}, content=b"{}")
    assert (got.status_code, got.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("kind", ["openai", "chatgpt", "none"])
async def test_a_pool_without_anthropics_accounts_says_so(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str
) -> None:
    one: Tenant = await tenant(account=kind)
    got = await post(gateway, one)
    error = got.json()["error"]
    assert (got.status_code, error["type"], error["code"]) == (400, "invalid_request_error", "no_account_available")
    assert error["reason"] == ("dialect" if kind != "none" else "no_pool")
    assert upstream.received(path=PATH) == []
    assert await is_clean(one)


async def test_of_a_mixed_pool_each_dialect_takes_its_own(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant(account="chatgpt")
    row, token = await second_account(one)
    for _ in range(4):
        assert (await post(gateway, one)).status_code == 200
        assert (await gateway.post(one)).status_code == 200
    assert len(upstream.received(token=token, path=PATH)) == len(upstream.received(token=token)) == 4
    assert len(upstream.received(token=one.upstream_token)) == 4
    assert row.kind == "anthropic"


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("sent", "status", "kind", "code"),
    [
        (b"{", 400, "invalid_request_error", "invalid_json"),
        (b'{"model":"none-such","max_tokens":1,"messages":[]}', 400, "invalid_request_error", "model_not_found"),
        (b'{"max_tokens":1,"messages":[]}', 400, "invalid_request_error", "model_not_found"),
        (b'{"x":"' + b"y" * 5000 + b'"}', 400, "request_too_large", "payload_too_large"),
    ],
)
@pytest.mark.parametrize("gateway_settings", [{"PROXY_MAX_BODY_BYTES": 5000}])
async def test_a_refusal_of_ours_has_anthropics_shape(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, sent: bytes, status: int, kind: str, code: str
) -> None:
    one: Tenant = await tenant(account="anthropic")
    got = await gateway.client.post(f"{gateway.url}{PATH}", headers=headers(one), content=sent)
    value = got.json()
    assert (got.status_code, value["type"]) == (status, "error")
    assert (value["error"]["type"], value["error"]["code"]) == (kind, code)
    assert value["error"]["message"]
    assert upstream.received(token=one.upstream_token) == []
    assert await is_clean(one)


async def test_a_limit_tells_its_facts_in_anthropics_shape(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="anthropic")
    await set_limit(one, scope="key", metric="credits", window="1d", amount="0.0001")
    got = await post(gateway, one)
    error = got.json()["error"]
    assert (got.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "limit_reached")
    assert (error["scope"], error["metric"], error["limit"]) == ("key", "credits", "0.0001")
    assert got.headers["x-should-retry"] == "false"
    assert upstream.received(token=one.upstream_token) == []
    assert await is_clean(one)


async def test_a_key_that_may_not_is_told_before_anything_is_sent(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="anthropic")
    one.key.row.allowed_efforts, one.key.row.fast_allowed = ["low"], False
    await in_thread(one.key.row.save)
    high = await post(gateway, one, output_config={"effort": "high"})
    fast = await post(gateway, one, speed="fast")
    assert [got.json()["error"]["code"] for got in (high, fast)] == ["reasoning_effort_not_allowed", "fast_mode_not_allowed"]
    assert upstream.received(token=one.upstream_token) == []
    assert (await post(gateway, one, output_config={"effort": "low"})).status_code == 200


# -------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("name", ["anthropic_400", "anthropic_404"])
async def test_an_error_about_the_request_passes_as_the_upstream_said_it(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, name: str
) -> None:
    one: Tenant = await tenant(account="anthropic")
    upstream.script({"error": name}, token=one.upstream_token)
    got = await post(gateway, one)
    value = got.json()
    assert got.status_code == int(name[-3:])
    assert (value["type"], value["request_id"]) == ("error", "req_scripted")
    [row] = await logged(one)
    assert (row.status, row.credits) == ("failed", 0)
    await check_counters(one, [row])


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("anthropic_529", "overloaded"),
        ("anthropic_429", "rate"),
        ("anthropic_401", "refused_key"),
        ("anthropic_403", "forbidden"),
        ("anthropic_400_credit", "quota"),
        ("anthropic_500", "upstream_error"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_account_that_cannot_serve_is_left_for_one_that_can(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, name: str, failure: str, stream: bool
) -> None:
    """N32: nothing of it reaches the client, and it costs nothing."""
    one: Tenant = await tenant(account="anthropic")
    await second_account(one)
    upstream.script({"error": name}, path=PATH)
    upstream.script({"usage": USAGE}, path=PATH)
    got = await post(gateway, one, stream=stream)
    assert got.status_code == 200
    [row] = await logged(one)
    assert [step.get("failure") for step in row.trace] == [failure, None]
    assert len({step["account_id"] for step in row.trace}) == 2
    assert row.credits == cost(input=500, cached=9500, output=200)
    await check_counters(one, [row])


async def test_an_account_whose_key_was_refused_is_not_asked_again(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="anthropic")
    upstream.revoke(token=one.upstream_token)
    first = await post(gateway, one)
    again = await post(gateway, one)
    assert first.status_code in (400, 429)
    assert again.json()["type"] == "error"
    assert "x-api-key" not in first.text + again.text
    assert len(upstream.received(token=one.upstream_token)) == 1
    assert await is_clean(one)


async def test_accounts_that_rest_are_told_as_busy(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant(account="anthropic")
    upstream.script({"error": "anthropic_529"}, token=one.upstream_token)
    got = await post(gateway, one)
    error = got.json()["error"]
    assert (got.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "pool_busy")
    assert int(got.headers["retry-after"]) >= 1


async def test_an_overload_inside_a_stream_is_moved_before_output(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N33"""
    one: Tenant = await tenant(account="anthropic")
    await second_account(one)
    upstream.script({"fail": {"code": "overloaded_error", "message": "Overloaded"}}, path=PATH)
    upstream.script({"usage": USAGE}, path=PATH)
    got = await post(gateway, one)
    assert b"Overloaded" not in got.content
    assert got.content.count(b"event: message_start") == 1
    [row] = await logged(one)
    assert [step.get("failure") for step in row.trace] == ["overloaded", None]
    assert row.credits == cost(input=500, cached=9500, output=200)
    await check_counters(one, [row])


async def test_an_error_after_output_ends_the_stream_as_the_upstream_said_it(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="anthropic")
    await second_account(one)
    upstream.script({"deltas": 3, "fail": {"code": "overloaded_error", "message": "Overloaded"}}, path=PATH)
    got = await post(gateway, one)
    found = events(got.content)
    assert [event["type"] for event in found].count("error") == 1
    assert found[-1]["error"] == {"type": "overloaded_error", "message": "Overloaded"}
    assert len(upstream.received(path=PATH)) == 1
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("failed", True)
    assert row.output_tokens >= 3
    await check_counters(one, [row])


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_stream_that_is_cut_ends_with_an_error_in_their_shape(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, how: str
) -> None:
    one: Tenant = await tenant(account="anthropic")
    upstream.script({"deltas": 5, "cut_after_events": 6, "cut_how": how, "usage": USAGE}, token=one.upstream_token)
    got = await post(gateway, one)
    found = events(got.content)
    assert [event["type"] for event in found[:2]] == ["message_start", "ping"]
    assert found[-1]["type"] == "error"
    assert (found[-1]["error"]["type"], found[-1]["error"]["code"]) == ("api_error", "stream_incomplete")
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("upstream_cut", True)
    # Its input as the upstream counted it at the beginning, most of it cached; its output as it was seen.
    assert (row.input_tokens, row.cached_input_tokens) == (USAGE["input_tokens"], USAGE["cache_read_input_tokens"])
    assert row.credits == cost(input=500, cached=9500, output=row.output_tokens) > 0
    await check_counters(one, [row])


async def test_a_client_that_leaves_stops_the_upstream_and_pays_for_what_it_saw(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="anthropic")
    upstream.script({"deltas": 200, "event_delay": 0.02}, token=one.upstream_token)
    seen = b""
    async with gateway.client.stream("POST", f"{gateway.url}{PATH}", headers=headers(one), content=content()) as got:
        async for chunk in got.aiter_raw():
            seen += chunk
            if seen.count(b"event: content_block_delta") >= 10:
                break
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("client_closed", True)
    assert 10 <= row.output_tokens < 80
    await check_counters(one, [row])
    [received] = upstream.received(token=one.upstream_token)
    assert received.state == "client_gone"


@pytest.mark.parametrize("gateway_settings", [{"HEARTBEAT_SECONDS": 0.2}])
async def test_a_silent_stream_is_kept_alive_with_pings(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant(account="anthropic")
    silence = {"deltas": 3, "hold": {"name": "quiet", "after": 4}, "usage": USAGE}
    upstream.script(silence, token=one.upstream_token)
    running = asyncio.create_task(post(gateway, one))
    await upstream.wait_for(1, until=lambda seen: seen.sent_events >= 4, token=one.upstream_token)
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(0.9)
    upstream.release("quiet")
    found = events((await running).content)
    # One is the upstream's own; a busy machine's timers come late, never early.
    assert 3 <= [event["type"] for event in found].count("ping") <= 2 + (asyncio.get_running_loop().time() - began) / 0.2
    assert found[-1]["type"] == "message_stop"
    [row] = await logged(one)
    assert (row.status, row.credits) == ("ok", cost(input=500, cached=9500, output=200))


# -------------------------------------------------------------------------------------------- addresses of one's own


async def compatible(one: Tenant, url: str, **fields: Any) -> tuple[Any, str]:
    return await in_thread(  # type: ignore[no-any-return]
        factories.key_account, one.organization, kind="openai_compatible", base_url=f"{url}/v1", **fields
    )


async def test_a_compatible_endpoint_serves_the_models_that_it_has(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    with override_settings(UPSTREAM_ALLOWED_NETWORKS=["127.0.0.0/8"]):
        row, token = await compatible(one, upstream.url.replace("127.0.0.1", "localhost"), models=["gpt-5.4"])
        for _ in range(3):
            assert (await gateway.post(one, model="gpt-5.5")).status_code == 200
        assert upstream.received(token=token) == []
        assert one.account is not None
        await in_thread(accounts.set_models, one.account, ["gpt-5.5"], by=None)
        assert (await gateway.post(one, model="gpt-5.4")).status_code == 200
        [received] = upstream.received(token=token)
        assert received.headers["authorization"] == f"Bearer {token}"
        assert received.headers["host"].startswith("localhost:")
    rows = await logged(one, 4)
    assert rows[-1].account_id == row.pk


async def test_an_address_that_turns_private_is_unreachable_and_never_connected_to(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N72: judged when it joined, and again whenever its name is looked up."""
    one: Tenant = await tenant(account="none")

    async def script(peer: Peer) -> None:
        await peer.request()

    async with serve(script) as inside:
        with override_settings(UPSTREAM_ALLOWED_NETWORKS=["127.0.0.0/8"]):
            await compatible(one, inside.url.replace("127.0.0.1", "localhost"))
        got = await gateway.post(one)
        assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_unavailable")
        assert (inside.connections, inside.requests) == (0, [])
    assert await is_clean(one)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_never_followed(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, status: int) -> None:
    """N72: an address that was judged may not send us to one that was not."""
    one: Tenant = await tenant(account="anthropic")

    async def script(peer: Peer) -> None:
        await peer.request()

    async with serve(script) as inside:
        upstream.script({"status": status, "body": "", "headers": {"location": f"{inside.url}/latest"}}, token=one.upstream_token)
        got = await post(gateway, one)
        assert got.status_code == 502
        assert got.json()["error"]["type"] == "api_error"
        assert inside.connections == 0
    assert len(upstream.received(token=one.upstream_token)) == 1
    assert await is_clean(one)


async def test_an_error_in_another_shape_is_told_in_that_of_messages(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="anthropic")
    upstream.script({"status": 400, "body": {"detail": "Unsupported parameter"}}, token=one.upstream_token)
    got = await post(gateway, one)
    assert (got.status_code, got.json()) == (
        400,
        {"type": "error", "error": {"type": "invalid_request_error", "message": "Unsupported parameter"}},
    )


async def test_what_is_not_served_below_messages_is_refused_as_there(gateway: Gateway, tenant: MakeTenant) -> None:
    """Claude Code asks for counts of tokens, and reads the refusal."""
    one: Tenant = await tenant(account="none")
    got = await gateway.client.post(f"{gateway.url}{PATH}/count_tokens", headers=headers(one), content=content())
    assert (got.status_code, got.json()["type"], got.json()["error"]["type"]) == (404, "error", "not_found_error")
    other = await gateway.client.post(f"{gateway.url}/v1/embeddings", headers=headers(one), content=content())
    assert (other.status_code, set(other.json())) == (404, {"error"})
