"""Clients that leave: what they had is billed, what they held is given back."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from proxy import lifespan
from tests.flows.tenants import Tenant, body, cost, in_thread
from tests.proxy.conftest import Gateway, check_counters, eventually, is_clean, logged
from tests.proxy.raw_server import Peer, serve
from tests.upstream import ScriptedUpstream

SAMPLES = Path(__file__).parent / "samples"
MakeTenant = Callable[..., Any]


async def read_deltas(gateway: Gateway, tenant: Tenant, count: int, **fields: Any) -> None:
    """Reads until `count` deltas have come, then leaves."""
    seen = b""
    async with gateway.stream(tenant, **fields) as got:
        async for chunk in got.aiter_raw():
            seen += chunk
            if seen.count(b"event: response.output_text.delta") >= count:
                return
    raise AssertionError("the stream ended before")


async def test_leaving_after_forty_deltas_of_two_hundred_is_billed(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """B1, B9: one row, client_closed, at what was seen, as docs/what-a-request-pays.md says; the upstream is told to stop."""
    one: Tenant = await tenant()
    upstream.script({"deltas": 200, "event_delay": 0.02}, token=one.upstream_token)
    await read_deltas(gateway, one, 40)
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("client_closed", True)
    assert 40 <= row.output_tokens < 80
    assert row.credits == cost(input=row.input_tokens, output=row.output_tokens) > 0
    await check_counters(one, [row])
    [received] = upstream.received(token=one.upstream_token)
    assert received.state == "client_gone"


async def test_an_answer_that_ends_within_the_grace_is_billed_by_its_own_count(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    usage = {"input_tokens": 700, "output_tokens": 50, "total_tokens": 750}
    upstream.script({"deltas": 12, "event_delay": 0.01, "usage": usage}, token=one.upstream_token)
    await read_deltas(gateway, one, 2)
    [row] = await logged(one)
    assert (row.status, row.is_estimated, row.credits) == ("client_closed", False, cost(input=700, output=50))
    await check_counters(one, [row])


async def test_a_client_that_closes_after_the_last_event_has_had_it_all(gateway: Gateway, tenant: MakeTenant) -> None:
    """Codex ends the request on response.completed, without waiting for the connection to close."""

    async def script(peer: Peer) -> None:
        await peer.request()
        data = (SAMPLES / "responses_text.sse").read_bytes()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + data)
        await peer.reader.read()

    async with serve(script) as server:
        with override_settings(UPSTREAM_OPENAI_URL=server.url):
            one: Tenant = await tenant()
            async with gateway.stream(one) as got:
                seen = b""
                async for chunk in got.aiter_raw():
                    seen += chunk
                    if b"event: response.completed" in seen:
                        break
            [row] = await logged(one)
        assert (row.status, row.is_estimated) == ("ok", False)


async def test_leaving_before_any_event_is_one_record_at_the_input_price(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N23: the client closes 50 ms after sending; the account's slot is free again."""
    one: Tenant = await tenant()
    upstream.script({"delay": 30}, token=one.upstream_token)
    asking = asyncio.create_task(gateway.post(one))
    await eventually(lambda: upstream.received(token=one.upstream_token))
    await asyncio.sleep(0.05)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    [row] = await logged(one)
    assert (row.status, row.is_estimated, row.output_tokens) == ("client_closed", True, 0)
    assert row.credits == cost(input=-(-len(body()) // 4))
    await eventually(lambda: upstream.received(token=one.upstream_token)[0].state == "client_gone")
    await check_counters(one, [row])


async def test_fifty_clients_that_leave_after_one_chunk_leave_no_hold(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """A11: outstanding holds 0 within 5 s; each is settled at what it had used."""
    one: Tenant = await tenant()
    upstream.script({"deltas": 200, "event_delay": 0.05}, repeat=50, token=one.upstream_token)
    await asyncio.gather(*[read_deltas(gateway, one, 1) for _ in range(50)])
    await eventually(lambda: is_clean(one))
    rows = await logged(one, 50)
    assert {row.status for row in rows} == {"client_closed"}
    assert all(row.credits > 0 and row.is_estimated for row in rows)
    await check_counters(one, rows)
    resources = lifespan.resources()
    assert (resources.running, resources.renewer.count, len(resources.leases)) == (0, 0, 0)
    assert resources.upstream.connections == resources.upstream.idle_connections


async def test_leaving_while_the_body_is_sent_counts_nothing(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    host, port = gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {one.key.secret}\r\ncontent-length: 1000\r\n\r\n"
    writer.write(head.encode() + b'{"model":')
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.close()
    await eventually(lambda: lifespan.resources().running == 0)
    assert upstream.received(token=one.upstream_token) == []
    assert (await in_thread(one.usage)).requests == 0
    assert await is_clean(one)


async def test_a_cancelled_request_is_settled_all_the_same(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """The server ends its tasks when it is told to stop; what was sent costs its input and what came."""
    one: Tenant = await tenant()
    upstream.script({"deltas": 200, "event_delay": 0.05}, token=one.upstream_token)
    before = asyncio.all_tasks()
    async with gateway.stream(one) as got:
        chunks = got.aiter_raw()
        await anext(chunks)
        for task in asyncio.all_tasks() - before:
            if "RequestResponseCycle" in repr(task.get_coro()):
                task.cancel()
        await eventually(lambda: lifespan.resources().running == 0)
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("failed", True)
    assert row.credits >= cost(input=row.input_tokens) > 0
    await check_counters(one, [row])


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.4])
async def test_a_running_request_tells_the_engine_what_it_has_cost(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, moment: float
) -> None:
    """What a crash would be billed: the input soon after it was sent, the output as it came."""
    one: Tenant = await tenant()
    upstream.script({"deltas": 200, "event_delay": 0.05}, token=one.upstream_token)
    async with gateway.stream(one) as got:
        chunks = got.aiter_raw()
        await anext(chunks)
        await asyncio.sleep(moment)
        [hold] = list(lifespan.resources().renewer._holds)
        assert hold.observed.credits >= cost(input=-(-len(body()) // 4))
    await logged(one)


@pytest.mark.parametrize("gateway_settings", [{"UPSTREAM_IDLE_TIMEOUT_SECONDS": 0.5}])
async def test_a_client_that_takes_nothing_any_more_keeps_no_hold_and_no_slot(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """A laptop asleep: its connection lives, and nothing is read from it. It kept both for as long as it slept."""
    one: Tenant = await tenant()
    delta = 'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"%s"}\n\n' % ("x" * 60_000)
    upstream.script({"raw": delta * 500}, token=one.upstream_token)
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    content = body()
    head = (
        f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: {one.headers['authorization']}\r\ncontent-length: {len(content)}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + content)
    await reader.readuntil(b"\r\n\r\n")
    [row] = await logged(one)
    assert (row.status, row.is_estimated, row.credits > 0) == ("client_closed", True, True)
    await check_counters(one, [row])
    writer.transport.abort()


@pytest.mark.parametrize("gateway_settings", [{"UPSTREAM_IDLE_TIMEOUT_SECONDS": 0.3}])
async def test_a_client_that_waits_for_a_slow_upstream_is_not_taken_for_gone(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    upstream.script({"deltas": 8, "event_delay": 0.15}, token=one.upstream_token)
    got = await gateway.post(one)
    assert got.text.count("event: response.output_text.delta") == 8
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("ok", False)
