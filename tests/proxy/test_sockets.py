"""Turns over a client's WebSocket that go well: bytes, chains, prices, one record each."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from billing import aliases
from config import redis as weir_redis
from config.clock import utc_now
from routing import pools
from routing.models import PoolAccount
from tests import factories
from tests.flows.tenants import MODEL, Tenant, cost, in_thread
from tests.proxy.conftest import Gateway, check_counters, eventually, is_clean, logged, set_limit
from tests.proxy.socket_client import CODEX, create, id_of, opened, text_of
from tests.upstream import ScriptedUpstream

SAMPLES = Path(__file__).parent / "samples"
USAGE = {"input_tokens": 300, "output_tokens": 20, "total_tokens": 320}

MakeTenant = Callable[..., Any]


@pytest.mark.parametrize("kind", ["openai", "chatgpt"])
async def test_a_turn_is_answered_priced_and_logged(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str
) -> None:
    one: Tenant = await tenant(account=kind)
    upstream.script({"usage": USAGE}, token=one.upstream_token)
    async with opened(gateway, one) as client:
        await client.send("hello there")
        frames = await client.answer()
        assert [frame["type"] for frame in frames][:3] == ["codex.rate_limits", "response.created", "response.in_progress"]
        assert text_of(frames[-1]) == "You said: hello there"
        [row] = await logged(one)
        assert one.account is not None
        assert (row.status, row.account_id, row.model_served, row.is_estimated) == ("ok", one.account.pk, "gpt-5.5", False)
        assert (row.credits, row.response_id) == (cost(input=300, output=20), id_of(frames[-1]))
        assert row.first_token_ms is not None
        # The socket is open, and nothing is held for it.
        await check_counters(one, [row])
    upgrade, turn = upstream.received(token=one.upstream_token)
    assert (upgrade.method, turn.method) == ("GET", "WEBSOCKET")
    await eventually(lambda: upstream.received(token=one.upstream_token)[0].state == "client_gone")


@pytest.mark.parametrize("name", ["responses_text", "responses_tool_call", "responses_compaction_v2", "responses_minimal"])
async def test_frames_pass_byte_for_byte(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, name: str) -> None:
    one: Tenant = await tenant(account="chatgpt")
    lines = [
        line.removeprefix("data: ") for line in (SAMPLES / f"{name}.sse").read_text().splitlines() if line.startswith("data: ")
    ]
    upstream.script({"raw": "\n".join(lines)}, token=one.upstream_token)
    async with opened(gateway, one) as client:
        await client.send()
        frames = [await client.connection.recv() for _ in range(len(lines) + 1)]
        assert frames[1:] == lines
        await logged(one)


async def test_an_api_key_account_gets_the_frame_as_it_came(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N56: byte for byte; the client's key and the way here stay here, everything else goes on."""
    one: Tenant = await tenant()
    text = '{ "type" : "response.create" ,"model" : "gpt-5.5",\n "input":"\\u00e9 한 🦊", "max_output_tokens":1000,"x":[1e3,{}] }'
    headers = {"session-id": "s-1", "x-forwarded-for": "127.0.0.1", "cookie": "a=b", "chatgpt-account-id": "mine"}
    headers["x-codex-turn-state"] = "of a turn at another account"
    async with opened(gateway, one, "/v1/responses", **headers) as client:
        await client.connection.send(text)
        id_of((await client.answer())[-1])
    upgrade, turn = upstream.received(token=one.upstream_token)
    assert turn.body == text.encode()
    assert upgrade.path == "/v1/responses"
    assert upgrade.headers["session-id"] == "s-1"
    assert upgrade.headers["openai-beta"] == "responses_websockets=2026-02-06"
    for name in ("x-forwarded-for", "cookie", "chatgpt-account-id", "sec-websocket-extensions", "accept", "content-type"):
        assert name not in upgrade.headers
    assert "x-codex-turn-state" not in upgrade.headers
    assert one.key.secret not in json.dumps(upgrade.headers)


async def test_a_sign_in_account_gets_the_documented_edits_only(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N56, A24: not stored, and without the bound on the output, which its backend refuses."""
    one: Tenant = await tenant(account="chatgpt")
    text = '{"type":"response.create","model":"gpt-5.5", "max_output_tokens": 1000, "input":"hi", "z" : 1.50}'
    exact = create("hi", z=1.5)
    async with opened(gateway, one) as client:
        await client.connection.send(text)
        id_of((await client.answer())[-1])
        await client.connection.send(exact)
        id_of((await client.answer())[-1])
    upgrade, first, second = upstream.received(token=one.upstream_token)
    assert first.body == b'{"type":"response.create","model":"gpt-5.5", "input":"hi", "z" : 1.50,"store":false}'
    assert second.body == exact.encode()
    assert one.account is not None
    assert (upgrade.path, upgrade.headers["chatgpt-account-id"]) == (CODEX, one.account.chatgpt_account_id)


async def test_a_tool_turn_after_a_warm_up_runs_on_one_upstream_socket(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """The sequence of the protocol note, section 7a: warm-up, call, its answer. The two turns are records; a warm-up had nothing,
    and is no request of its key's limits."""
    one: Tenant = await tenant(account="chatgpt")
    tools = [{"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}]
    async with opened(gateway, one, **{"session-id": "s-tools"}) as client:
        await client.send([], generate=False)
        created, warm = await client.answer()
        assert created["type"] == "response.created"
        user = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "RUN_TOOL say hi"}]}]
        called = await client.turn(user, previous_response_id=id_of(warm), tools=tools)
        [call] = called["response"]["output"]
        assert (call["type"], call["name"]) == ("function_call", "shell")
        output = [{"type": "function_call_output", "call_id": call["call_id"], "output": "hi"}]
        done = await client.turn(output, previous_response_id=id_of(called), tools=tools)
        assert text_of(done) == "Tool finished: hi"
        rows = await logged(one, 2)
        assert [row.status for row in rows] == ["ok"] * 2
        assert [row.is_estimated for row in rows] == [False] * 2
        assert rows[0].credits > 0
        await check_counters(one, rows)
        assert (await in_thread(one.usage)).requests == 2
    received = upstream.received(token=one.upstream_token)
    assert [row.method for row in received] == ["GET", "WEBSOCKET", "WEBSOCKET", "WEBSOCKET"]
    assert len({row.socket for row in received}) == 1


async def test_three_turns_of_two_models_are_three_records(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N62"""
    one: Tenant = await tenant(account="chatgpt")
    models = ["gpt-5.5", "gpt-5.4-mini", "gpt-5.5"]
    async with opened(gateway, one) as client:
        for model in models:
            assert (await client.turn(model=model))["response"]["model"] == model
        rows = await logged(one, 3)
    assert [row.model_asked for row in rows] == models
    assert [row.model_served for row in rows] == models
    assert len({row.request_id for row in rows}) == 3
    await check_counters(one, rows)


async def test_the_next_turn_may_begin_as_soon_as_the_last_frame_is_there(gateway: Gateway, tenant: MakeTenant) -> None:
    """Codex does not wait for our settlement."""
    one: Tenant = await tenant(account="chatgpt")
    async with opened(gateway, one) as client:
        for number in range(20):
            assert text_of(await client.turn(str(number))) == f"You said: {number}"
        await check_counters(one, await logged(one, 20))


async def test_one_response_at_a_time(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant()
    upstream.script({"hold": {"name": "one", "after": 3}}, token=one.upstream_token)
    async with opened(gateway, one, "/v1/responses") as client:
        await client.send("first")
        await upstream.wait_for(1, token=one.upstream_token, until=lambda row: row.sent_events == 3)
        await client.send("second")
        frames: list[dict[str, Any]] = []
        while not frames or frames[-1]["type"] != "error":
            frames.append(await client.frame())
        error = frames[-1]
        assert (error["status"], error["error"]["code"]) == (400, "response_in_progress")
        upstream.release("one")
        assert text_of((await client.answer())[-1]) == "You said: first"
        assert text_of(await client.turn("third")) == "You said: third"
        await check_counters(one, await logged(one, 2))


async def test_idle_sockets_hold_no_slot(gateway: Gateway, tenant: MakeTenant) -> None:
    """N61: 8 idle sockets, each after a turn, at a limit of 8 at once and a cap of 8: a ninth is admitted."""
    one: Tenant = await tenant(account="chatgpt")
    await set_limit(one, scope="member", metric="concurrent", window="", amount="8")
    assert one.account is not None
    account = one.account

    def cap() -> None:
        PoolAccount.objects.filter(pk=account.pk).update(concurrency_cap=8)
        pools.changed(one.organization.pk)

    await in_thread(cap)
    async with asyncio.TaskGroup() as group:
        ready = [asyncio.Event() for _ in range(8)]
        done = asyncio.Event()

        async def idle(event: asyncio.Event) -> None:
            async with opened(gateway, one) as client:
                await client.turn()
                event.set()
                await done.wait()

        for event in ready:
            group.create_task(idle(event))
        for event in ready:
            await event.wait()
        assert await is_clean(one)
        async with opened(gateway, one) as client:
            id_of(await client.turn())
        done.set()
    await check_counters(one, await logged(one, 9))


async def test_windows_told_are_the_keys_own_and_the_accounts_are_noted(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N6: a limit of 40 credits and an account at 63 %: the client hears of its limit, the pool learns of its account."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    await set_limit(one, scope="key", metric="credits", window="7d", amount="40")
    upstream.windows(one.account.chatgpt_account_id, short_percent=63, week_percent=63)
    async with opened(gateway, one) as client:
        await client.send()
        frames = await client.answer()
    limits = [frame for frame in frames if frame["type"] == "codex.rate_limits"]
    assert len(limits) == 1
    told = [window for window in (limits[0]["rate_limits"][slot] for slot in ("primary", "secondary")) if window]
    assert told
    assert all(window["window_minutes"] == 10080 and window["used_percent"] < 1 for window in told)

    account = one.account

    def seen() -> bool:
        key = f"routing:{weir_redis.shard(one.organization.pk)}:p{account.pool_id}:live"
        return b"300=63:" in (weir_redis.sync_client().hget(key, f"{account.pk}:w") or b"")

    await eventually(lambda: in_thread(seen))


async def test_an_alias_is_asked_for_by_its_model(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """N56: of a frame only the model's bytes change."""
    name = factories.unique("alias")
    alias = await in_thread(aliases.add, name, MODEL, now=utc_now())
    one: Tenant = await tenant(account="chatgpt")
    async with opened(gateway, one) as client:
        id_of(await client.turn(model=name))
        [row] = await logged(one)
    await in_thread(aliases.end, alias, now=utc_now())
    assert upstream.received(token=one.upstream_token)[1].body == create().encode()
    assert (row.model_asked, row.model_served) == (name, MODEL)


async def test_a_plain_client_that_offers_compression_gets_none(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant()
    url = gateway.url.replace("http", "ws", 1) + "/v1/responses"
    async with connect(url, additional_headers={"authorization": one.headers["authorization"]}, proxy=None) as connection:
        assert connection.response is not None
        assert "sec-websocket-extensions" not in connection.response.headers


async def test_an_account_that_is_elsewhere_takes_a_new_upstream_socket(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """A turn without an anchor goes where the pool says; the old upstream socket is closed then."""
    one: Tenant = await tenant(account="chatgpt")
    async with opened(gateway, one) as client:
        await client.turn()
        _, second = await in_thread(factories.openai_account, one.organization)
        assert one.account is not None
        upstream.windows(one.account.chatgpt_account_id, short_percent=100)
        upstream.script({"error": "429_usage"}, token=one.upstream_token)
        await client.turn()
        assert len(upstream.received(token=second)) == 2
        assert upstream.received(token=one.upstream_token)[0].state == "client_gone"
        rows = await logged(one, 2)
    assert rows[1].account_id != one.account.pk
