"""Clients' sockets: who may open one, what a frame may be, and clients that leave, stall, or are there when the process ends."""

import asyncio
import contextlib
import json
import struct
from collections.abc import Callable
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import pytest
import uvicorn
from django.conf import settings
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from accounts import keys
from config.clock import utc_now
from proxy import lifespan, socket_server
from tests import factories, ports
from tests.flows.tenants import MODEL, Tenant, in_thread
from tests.proxy.conftest import Gateway, check_counters, eventually, is_clean, leaves, logged, set_limit
from tests.proxy.socket_client import CODEX, Client, create, id_of, opened, text_of
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]


async def declined(gateway: Gateway, authorization: str | None, path: str = CODEX) -> tuple[int, dict[str, Any], Any]:
    """Status, error and headers of a refused upgrade."""
    headers = {} if authorization is None else {"authorization": authorization}
    with pytest.raises(InvalidStatus) as caught:
        async with connect(gateway.url.replace("http", "ws", 1) + path, additional_headers=headers, proxy=None):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"], response.headers


# ------------------------------------------------------------------------------------------------------------ upgrades


@pytest.mark.parametrize("path", [CODEX, "/v1/responses"])
async def test_a_bad_key_is_refused_on_the_upgrade(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, path: str
) -> None:
    one: Tenant = await tenant()
    for authorization in (None, "Bearer nonsense", f"Bearer {one.key.secret[:-1]}", f"Basic {one.key.secret}"):
        status, error, _ = await declined(gateway, authorization, path)
        assert (status, error["type"], error["code"]) == (401, "invalid_request_error", "invalid_api_key")
    assert upstream.received(token=one.upstream_token) == []


async def test_a_key_revoked_elsewhere_opens_no_socket_and_no_turn(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """F1: also one that is open already; each turn is checked afresh."""
    one: Tenant = await tenant(account="chatgpt")
    async with opened(gateway, one) as client:
        id_of(await client.turn())
        await in_thread(keys.revoke, one.key.row, by=None, now=utc_now())
        status, error, _ = await declined(gateway, one.headers["authorization"])
        assert (status, error["code"]) == (401, "invalid_api_key")
        frame = await client.refused()
        assert (frame["status"], frame["error"]["code"]) == (401, "invalid_api_key")
        assert len([row for row in upstream.received(token=one.upstream_token) if row.method == "WEBSOCKET"]) == 1
        await check_counters(one, await logged(one))


@pytest.mark.parametrize("kind", ["anthropic", "none"])
async def test_a_pool_that_speaks_no_websocket_declines_the_upgrade(gateway: Gateway, tenant: MakeTenant, kind: str) -> None:
    one: Tenant = await tenant(account=kind)
    status, error, _ = await declined(gateway, one.headers["authorization"])
    assert (status, error["code"]) == (426, "upgrade_required")


async def test_an_organizations_accounts_open_nobody_elses_socket(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant(account="none")
    await tenant(account="chatgpt")
    assert (await declined(gateway, one.headers["authorization"]))[0] == 426


async def test_a_process_that_ends_takes_no_socket(gateway: Gateway, tenant: MakeTenant) -> None:
    """N26"""
    one: Tenant = await tenant()
    async with opened(gateway, one) as client:
        lifespan.drain()
        status, error, headers = await declined(gateway, one.headers["authorization"])
        assert (status, error["code"], headers["retry-after"]) == (503, "draining", "5")
        # One that is open and rests is closed at once: its client connects again, to another process.
        with pytest.raises(ConnectionClosed) as closed:
            await client.turn()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


# -------------------------------------------------------------------------------------------------------------- frames


async def test_what_is_no_request_is_refused_and_the_socket_stays(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    async with opened(gateway, one) as client:
        for sent, code in (
            (b"\x00\x01", "invalid_json"),
            ("", "invalid_json"),
            ("{", "invalid_json"),
            ("[]", "invalid_json"),
            ('{"model":"gpt-5.5","input":"x"}', "invalid_json"),
            ('{"type":"response.cancel","model":"gpt-5.5"}', "invalid_json"),
            ('{"type":1,"model":"gpt-5.5"}', "invalid_json"),
            ('{"type":"response.create","type":"response.create","model":"gpt-5.5"}', "invalid_json"),
            ('{"type":"response.create","input":"x"}', "model_not_found"),
            ('{"type":"response.create","model":"gpt-none","input":"x"}', "model_not_found"),
            ('{"type":"response.create","model":"gpt-5.5","background":true}', "unsupported_parameter"),
        ):
            await client.connection.send(sent)
            frame = await client.frame()
            assert (frame["type"], frame["status"], frame["error"]["code"]) == ("error", 400, code), sent
        assert upstream.received(token=one.upstream_token) == []
        assert await is_clean(one)
        assert text_of(await client.turn("go on")) == "You said: go on"
        await check_counters(one, await logged(one))


async def test_a_frame_that_is_too_large_is_refused_and_the_socket_stays(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N63: 17 MiB; one of just under 16 MiB goes through."""
    one: Tenant = await tenant()
    async with opened(gateway, one, "/v1/responses") as client:
        frame = await client.refused("x" * (17 * 1024 * 1024))
        assert (frame["status"], frame["error"]["code"]) == (400, "payload_too_large")
        assert upstream.received(token=one.upstream_token) == []
        largest = create("x" * (settings.PROXY_MAX_BODY_BYTES - len(create(""))))
        assert len(largest) == settings.PROXY_MAX_BODY_BYTES
        await client.connection.send(largest)
        id_of((await client.answer())[-1])
        [received] = [row for row in upstream.received(token=one.upstream_token) if row.method == "WEBSOCKET"]
        assert received.body == largest.encode()
        id_of(await client.turn())
        await check_counters(one, await logged(one, 2))


async def test_a_limit_refuses_by_a_frame_with_all_that_http_would_say(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    await set_limit(one, scope="key", metric="credits", window="7d", amount="0")
    async with opened(gateway, one) as client:
        frame = await client.refused()
    said = await gateway.post(one)
    assert (said.status_code, frame["status"]) == (429, 429)
    # Each is priced by its own bytes.
    own = {name: frame["error"][name] for name in ("message", "need")}
    assert frame["error"] == {**said.json()["error"], **own}
    assert (frame["error"]["type"], frame["error"]["code"]) == ("usage_limit_reached", "limit_reached")
    assert frame["headers"]["x-should-retry"] == "false"
    assert {name for name in said.headers if name.startswith("x-codex-")} <= set(frame["headers"])
    assert upstream.received(token=one.upstream_token) == []
    assert await is_clean(one)


# ------------------------------------------------------------------------------------------------------ clients leaving


async def test_fifty_sockets_aborted_in_mid_stream_leave_nothing(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N60: in-flight count 0 within 5 s; each is billed at what was seen, and its upstream told to stop."""
    one: Tenant = await tenant(account="chatgpt")
    count = 50
    upstream.script({"deltas": 400, "event_delay": 0.05}, repeat=count, token=one.upstream_token)
    url = gateway.url.replace("http", "ws", 1) + CODEX
    headers = {"authorization": one.headers["authorization"]}
    connections = [await connect(url, additional_headers=headers, proxy=None, compression=None) for _ in range(count)]

    async def until_output(connection: Any) -> None:
        await connection.send(create())
        while json.loads(await connection.recv())["type"] != "response.output_text.delta":
            pass

    await asyncio.gather(*(until_output(connection) for connection in connections))
    assert gateway.resources.running == count
    for number, connection in enumerate(connections):
        if number % 2:
            # To linger for no time makes the close an RST.
            connection.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        connection.transport.abort()
    await eventually(lambda: gateway.resources.running == 0, 5)
    await eventually(lambda: is_clean(one))
    assert len(gateway.resources.leases) == 0
    await eventually(lambda: len(gateway.resources.sockets) == 0)
    rows = await logged(one, count)
    assert {row.status for row in rows} == {"client_closed"}
    assert all(row.is_estimated and row.credits > 0 for row in rows)
    await check_counters(one, rows)
    await eventually(lambda: {row.state for row in upstream.received(token=one.upstream_token)} == {"client_gone"})


async def test_sockets_aborted_at_any_moment_leave_nothing(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N60: at once, in the admission, while the upstream's socket opens, in the preamble, at the end."""
    one: Tenant = await tenant(account="chatgpt")
    url = gateway.url.replace("http", "ws", 1) + CODEX
    headers = {"authorization": one.headers["authorization"]}

    async def once(seconds: float) -> None:
        connection = await connect(url, additional_headers=headers, proxy=None, compression=None)
        await connection.send(create())
        await asyncio.sleep(seconds)
        connection.transport.abort()

    await asyncio.gather(*(once(number * 0.003) for number in range(40)))
    await eventually(lambda: gateway.resources.running == 0)
    await eventually(lambda: is_clean(one))
    await eventually(lambda: len(gateway.resources.sockets) == 0)
    assert len(gateway.resources.leases) == 0


async def test_a_client_that_leaves_before_anything_was_sent_owes_nothing(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    upstream.script({"hold": {"name": "upgrade", "after": "request"}}, token=one.upstream_token, transport="upgrade")
    async with opened(gateway, one) as client:
        await client.send()
        await upstream.wait_for(1, token=one.upstream_token)
    await eventually(lambda: is_clean(one))
    upstream.release("upgrade")
    await eventually(lambda: gateway.resources.running == 0)
    assert await logged(one, 0) == []
    await eventually(lambda: len(gateway.resources.sockets) == 0)


async def test_a_terminal_event_within_the_grace_is_billed_as_it_says(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    usage = {"input_tokens": 100, "output_tokens": 9, "total_tokens": 109}
    upstream.script({"usage": usage, "hold": {"name": "grace", "after": 6}}, token=one.upstream_token)
    async with opened(gateway, one) as client:
        await client.send()
        await upstream.wait_for(1, token=one.upstream_token, until=lambda row: row.sent_events == 6)
    upstream.release("grace")
    [row] = await logged(one)
    assert (row.status, row.is_estimated, row.counted_tokens) == ("client_closed", False, 109)
    await check_counters(one, [row])


@pytest.mark.parametrize("gateway_settings", [{"UPSTREAM_IDLE_TIMEOUT_SECONDS": 1.0}])
async def test_a_client_that_takes_nothing_keeps_nothing(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """Its hold and slot are given back, and its upstream told to stop, as over HTTP."""
    one: Tenant = await tenant(account="chatgpt")
    upstream.script({"text": "x" * 6_000_000, "deltas": 100}, token=one.upstream_token)
    url = gateway.url.replace("http", "ws", 1) + CODEX
    headers = {"authorization": one.headers["authorization"]}
    async with connect(url, additional_headers=headers, proxy=None, compression=None, max_queue=1, close_timeout=0.1) as connection:
        await connection.send(create())
        connection.transport.pause_reading()
        await upstream.wait_for(1, token=one.upstream_token, until=lambda row: row.method == "WEBSOCKET")
        await eventually(lambda: gateway.resources.running == 0, 10)
        await eventually(lambda: is_clean(one))
        [row] = await logged(one)
        assert row.status == "client_closed"
        await eventually(lambda: len(gateway.resources.sockets) == 0)


async def test_an_open_socket_does_not_hold_up_the_end_of_the_process_but_its_turn_does(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N26: at SIGTERM the turn that runs comes to its end, then its socket is closed; an idle one is closed at once."""
    one: Tenant = await tenant(account="chatgpt")
    port = ports.free()
    config = uvicorn.Config(
        leaves,
        host="127.0.0.1",
        port=port,
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=10,
        **socket_server.OPTIONS,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server._serve())
    await eventually(lambda: server.started)
    other = Gateway(f"http://127.0.0.1:{port}", gateway.client)
    upstream.script({"hold": {"name": "drain", "after": 6}}, token=one.upstream_token)
    async with opened(other, one) as running, opened(other, one) as idle:
        await running.send("to the end")
        await upstream.wait_for(1, token=one.upstream_token, until=lambda row: row.sent_events == 6)
        server.should_exit = True
        with pytest.raises(ConnectionClosed) as closed:
            await idle.frame()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        upstream.release("drain")
        assert text_of((await running.answer())[-1]) == "You said: to the end"
        with contextlib.suppress(ConnectionClosed):
            # Not a turn any more: nobody could tell its answer.
            await running.send("one more")
        with pytest.raises(ConnectionClosed) as closed:
            await running.frame()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        await asyncio.wait_for(serving, 5)
    await check_counters(one, await logged(one))


async def test_keys_of_one_member_share_nothing_but_their_account(gateway: Gateway, tenant: MakeTenant) -> None:
    """Two sockets of two keys run side by side, each with its own chain and records."""
    one: Tenant = await tenant(account="chatgpt")
    second = await in_thread(factories.api_key, one.member)
    other = Tenant(one.organization, one.member, second, one.account, one.upstream_token)

    async def talk(client: Client, name: str) -> None:
        first = id_of(await client.turn(name))
        assert text_of(await client.turn(f"{name} again", previous_response_id=first)) == f"You said: {name} again"

    async with opened(gateway, one) as left, opened(gateway, other) as right:
        await asyncio.gather(talk(left, "left"), talk(right, "right"))
    rows = await logged(one, 4)
    assert sorted(row.key_id for row in rows) == sorted([one.key.row.pk] * 2 + [second.row.pk] * 2)
    assert {row.model_asked for row in rows} == {MODEL}
    assert await is_clean(one)
