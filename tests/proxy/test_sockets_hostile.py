"""Sockets whose other side does not keep to the protocol: what is owed, what is told, and that nothing stays."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from django.test import override_settings
from websockets.frames import Opcode

from proxy import sockets
from proxy.asgi import Receive, Scope, Send
from routing import pools
from tests import factories
from tests.flows.tenants import Tenant, cost, in_thread
from tests.proxy.conftest import Gateway, check_counters, eventually, is_clean, logged
from tests.proxy.raw_server import Peer, RawServer, serve
from tests.proxy.socket_client import CODEX, create, id_of, opened
from tests.proxy.test_socket_server import masked, served
from tests.proxy.test_upstream_socket import accept, frame, read_frame
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]
Say = Callable[[Peer, int, dict[str, Any]], Awaitable[None]]


@asynccontextmanager
async def upstream_that(say: Say) -> AsyncIterator[RawServer]:
    """An upstream for API keys that answers each frame by `say(peer, number of the frame on its socket, frame)`."""

    async def script(peer: Peer) -> None:
        await accept(peer)
        number = 0
        while True:
            opcode, data = await read_frame(peer)
            if opcode is not Opcode.TEXT:
                return
            number += 1
            await say(peer, number, json.loads(data))

    async with serve(script) as server:
        with override_settings(UPSTREAM_OPENAI_URL=server.url, UPSTREAM_ALLOWED_NETWORKS=["127.0.0.0/8"]):
            yield server


def event(kind: str, response_id: str = "", **fields: Any) -> bytes:
    told: dict[str, Any] = {"type": kind, **fields}
    if response_id:
        told["response"] = {"id": response_id, **fields.pop("response", {})}
    return frame(json.dumps(told).encode())


def completed(response_id: str, *, input: int = 100, output: int = 10) -> bytes:
    usage = {"input_tokens": input, "output_tokens": output, "total_tokens": input + output}
    return frame(json.dumps({"type": "response.completed", "response": {"id": response_id, "usage": usage}}).encode())


# ------------------------------------------------------------------------------------------------------------------ owed


async def test_a_warm_up_that_is_answered_all_the_same_is_owed(gateway: Gateway, tenant: MakeTenant) -> None:
    """An upstream that does not know `generate` writes an answer; who reads it and leaves before its end has had it."""

    async def say(peer: Peer, number: int, asked: dict[str, Any]) -> None:
        await peer.send(event("response.created", "resp_1"))
        for _ in range(50):
            await peer.send(event("response.output_text.delta", delta="word " * 20))
        await asyncio.sleep(3600)

    async with upstream_that(say):
        one: Tenant = await tenant()
        async with opened(gateway, one) as client:
            await client.send("tell me all", generate=False)
            while (await client.frame())["type"] != "response.output_text.delta":
                pass
        [row] = await logged(one)
        assert (row.status, row.is_estimated) == ("client_closed", True)
        assert row.credits > cost(output=100)
        await check_counters(one, [row])


@pytest.mark.parametrize("text", ["", "word " * 100])
async def test_a_warm_up_without_a_count_owes_what_it_wrote(gateway: Gateway, tenant: MakeTenant, text: str) -> None:
    async def say(peer: Peer, number: int, asked: dict[str, Any]) -> None:
        if text:
            await peer.send(event("response.output_text.delta", delta=text))
        await peer.send(event("response.completed", f"resp_{number}"))

    async with upstream_that(say):
        one: Tenant = await tenant()
        async with opened(gateway, one) as client:
            id_of(await client.turn("x" * 400, generate=False))
            id_of(await client.turn("next"))
            rows = await logged(one, 2 if text else 1)
        if text:
            assert rows[0].is_estimated
            assert rows[0].credits >= cost(input=100, output=125)
        await check_counters(one, rows)


async def test_what_a_warm_up_brought_is_read_by_the_turn_that_goes_on(gateway: Gateway, tenant: MakeTenant) -> None:
    """Its own input is free, and the upstream reads it with the next turn: also if nobody waits for that turn's count."""

    async def say(peer: Peer, number: int, asked: dict[str, Any]) -> None:
        if asked.get("generate") is False:
            usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
            await peer.send(event("response.completed", f"resp_{number}", response={"usage": usage}))
            return
        await peer.send(event("response.created", f"resp_{number}"))
        await peer.send(event("response.output_text.delta", delta="word"))
        await asyncio.sleep(3600)

    async with upstream_that(say):
        one: Tenant = await tenant()
        async with opened(gateway, one) as client:
            warm = id_of(await client.turn("x" * 400_000, generate=False))
            more = id_of(await client.turn("x" * 400_000, generate=False, previous_response_id=warm))
            await client.send("now write", previous_response_id=more)
            while (await client.frame())["type"] != "response.output_text.delta":
                pass
        [row] = await logged(one)
        assert (row.status, row.is_estimated) == ("client_closed", True)
        assert row.credits > cost(input=200_000)
        await check_counters(one, [row])


async def test_a_turn_without_a_count_is_read_by_the_one_that_goes_on(gateway: Gateway, tenant: MakeTenant) -> None:
    async def say(peer: Peer, number: int, asked: dict[str, Any]) -> None:
        await peer.send(event("response.output_text.delta", delta="word"))
        await peer.send(event("response.completed", f"resp_{number}"))

    async with upstream_that(say):
        one: Tenant = await tenant()
        async with opened(gateway, one) as client:
            first = id_of(await client.turn("x" * 400_000))
            id_of(await client.turn("and", previous_response_id=first))
            rows = await logged(one, 2)
        assert rows[1].credits > cost(input=100_000)
        await check_counters(one, rows)


async def test_a_turn_that_goes_on_with_one_whose_count_cannot_be_reads_what_that_one_held(
    gateway: Gateway, tenant: MakeTenant
) -> None:
    async def say(peer: Peer, number: int, asked: dict[str, Any]) -> None:
        if number == 1:
            await peer.send(completed("resp_1", input=1_000_000))
            return
        await peer.send(event("response.output_text.delta", delta="word") + event("response.completed", "resp_2"))

    async with upstream_that(say):
        one: Tenant = await tenant()
        async with opened(gateway, one) as client:
            first = id_of(await client.turn("hello"))
            id_of(await client.turn("and", previous_response_id=first))
            rows = await logged(one, 2)
        assert [row.is_implausible for row in rows] == [True, False]
        assert rows[1].credits > cost(input=rows[0].counted_tokens)
        await check_counters(one, rows)


# ------------------------------------------------------------------------------------------------------------ strangers


@pytest.mark.parametrize("kind", ["openai", "chatgpt"])
async def test_a_response_of_another_organization_is_unknown_also_at_the_account_that_holds_it(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str
) -> None:
    """Both draw on one shared account, which would go on with it: it is refused as one that nobody has ever made."""
    lender: Tenant = await tenant(account=kind, plan="pro")
    stranger: Tenant = await tenant(account="none", plan="pro")
    assert lender.account is not None
    shared = (await in_thread(pools.set_pool, None, factories.unique("shared"), plans=["pro"], by=None)).pool
    try:
        await in_thread(pools.move_account, lender.account, shared, by=None)
        async with opened(gateway, lender) as own, opened(gateway, stranger) as other:
            first = id_of(await own.turn("a secret"))
            assert id_of(await other.turn("hello"))
            told = [await other.refused("go on", previous_response_id=name) for name in (first, "resp_never")]
            assert [error["error"]["code"] for error in told] == ["previous_response_not_found"] * 2
            assert told[0]["error"] == told[1]["error"]
            assert id_of(await own.turn("go on", previous_response_id=first))
        received = [row for row in upstream.received(token=lender.upstream_token) if row.method == "WEBSOCKET"]
        assert len(received) == 3
        await check_counters(stranger, await logged(stranger))
    finally:
        # Rows stay between tests: what plans offer must not.
        await in_thread(pools.set_pool, None, shared.name, plans=[], by=None)


# ------------------------------------------------------------------------------------------- an upstream out of order


async def test_what_follows_an_error_in_an_answer_is_not_the_next_turns(gateway: Gateway, tenant: MakeTenant) -> None:
    """Upstreams say both: an error, and that the response has failed. Which of them comes when is no business of the next turn."""

    async def say(peer: Peer, number: int, asked: dict[str, Any]) -> None:
        if asked["input"] == "one":
            await peer.send(event("response.created", "resp_one"))
            await peer.send(event("response.output_text.delta", delta="half"))
            error = {"code": "context_length_exceeded", "message": "x", "type": "invalid_request_error"}
            await peer.send(event("error", status=400, error=error))
            await asyncio.sleep(0.1)
            await peer.send(event("response.failed", "resp_one", response={"error": error}))
            return
        await peer.send(event("response.created", "resp_two"))
        await peer.send(event("response.output_text.delta", delta="all of it"))
        await peer.send(completed("resp_two"))

    async with upstream_that(say):
        one: Tenant = await tenant()
        async with opened(gateway, one) as client:
            await client.turn("one")
            assert id_of(await client.turn("two")) == "resp_two"
            rows = await logged(one, 2)
        assert [row.status for row in rows] == ["failed", "ok"]
        assert rows[1].credits == cost(input=100, output=10)
        await check_counters(one, rows)


async def test_a_late_repetition_is_not_the_next_turns_end(gateway: Gateway, tenant: MakeTenant) -> None:
    async def say(peer: Peer, number: int, asked: dict[str, Any]) -> None:
        if number > 1:
            await peer.send(completed(f"resp_{number - 1}", input=7000) + event("response.created", f"resp_{number - 1}"))
        await peer.send(event("response.created", f"resp_{number}"))
        await peer.send(event("response.output_text.delta", delta="word"))
        await peer.send(completed(f"resp_{number}", input=100 * number))

    async with upstream_that(say):
        one: Tenant = await tenant()
        async with opened(gateway, one) as client:
            for number in (1, 2, 3):
                assert id_of(await client.turn("hello")) == f"resp_{number}"
            rows = await logged(one, 3)
        assert [row.credits for row in rows] == [cost(input=100 * number, output=10) for number in (1, 2, 3)]
        await check_counters(one, rows)


async def test_an_upstream_that_calls_all_its_responses_the_same_is_heard(gateway: Gateway, tenant: MakeTenant) -> None:
    async def say(peer: Peer, number: int, asked: dict[str, Any]) -> None:
        await peer.send(event("response.created", "resp_same") + completed("resp_same", input=100 * number))

    async with upstream_that(say):
        one: Tenant = await tenant()
        async with opened(gateway, one) as client:
            for _ in range(2):
                id_of(await asyncio.wait_for(client.turn("hello"), 3))
            rows = await logged(one, 2)
        assert [row.credits for row in rows] == [cost(input=100 * number, output=10) for number in (1, 2)]
        await check_counters(one, rows)


async def test_megabytes_behind_an_end_do_not_deafen_the_socket(gateway: Gateway, tenant: MakeTenant) -> None:
    async def say(peer: Peer, number: int, asked: dict[str, Any]) -> None:
        await peer.send(completed(f"resp_{number}") + event("response.extra", text="x" * 60_000) * 30)

    async with upstream_that(say) as server:
        one: Tenant = await tenant()
        async with opened(gateway, one) as client:
            for number in (1, 2, 3):
                assert id_of(await asyncio.wait_for(client.turn("hello"), 3)) == f"resp_{number}"
            rows = await logged(one, 3)
        assert server.connections == 1
        await check_counters(one, rows)


async def test_an_upgrade_refused_in_words_that_are_no_text_is_told(gateway: Gateway, tenant: MakeTenant) -> None:
    """Half a surrogate pair is JSON, and nothing that can be written as text."""
    body = rb'{"error":{"message":"no \ud800 \u00e9","type":"invalid_request_error","code":"odd"}}'

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    async with serve(script) as server:
        with override_settings(UPSTREAM_OPENAI_URL=server.url, UPSTREAM_ALLOWED_NETWORKS=["127.0.0.0/8"]):
            one: Tenant = await tenant()
            async with opened(gateway, one) as client:
                error = await asyncio.wait_for(client.refused(), 3)
                assert (error["status"], error["error"]["code"]) == (400, "odd")
                assert "\u00e9" in error["error"]["message"]
    await eventually(lambda: is_clean(one))


async def test_a_fault_of_ours_ends_the_socket_that_it_can_tell_nothing(gateway: Gateway, tenant: MakeTenant) -> None:
    """Over HTTP the end of the stream says that it broke off. A socket that stays open says nothing at all."""
    one: Tenant = await tenant(account="chatgpt")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def odd(message: Any) -> None:
            if message["type"] == "websocket.send":
                raise ValueError("a server that cannot send")
            await send(message)

        await sockets.app(scope, receive, odd)

    async with served(app, CODEX, authorization=one.headers["authorization"]) as (reader, writer):
        writer.write(masked(create().encode()))
        told = await asyncio.wait_for(reader.readexactly(4), 5)
        assert int.from_bytes(told[2:4], "big") == 1011
    [row] = await logged(one)
    assert row.status == "failed"
    await check_counters(one, [row])
    await eventually(lambda: len(gateway.resources.sockets) == 0)


# ------------------------------------------------------------------------------------------------------ odd clients


@pytest.mark.parametrize("gateway_settings", [{"UPSTREAM_IDLE_TIMEOUT_SECONDS": 1.0}])
async def test_a_client_that_does_not_take_the_end_keeps_nothing(gateway: Gateway, tenant: MakeTenant) -> None:
    """The terminal event repeats the whole output: it may be the one that nobody takes."""

    async def say(peer: Peer, number: int, asked: dict[str, Any]) -> None:
        await peer.send(event("response.output_text.delta", delta="x" * 16_000_000) + completed("resp_1"))

    async with upstream_that(say):
        one: Tenant = await tenant()
        _, writer = await raw(gateway, one)
        cast(asyncio.Transport, writer.transport).pause_reading()
        writer.write(masked(create().encode()))
        await eventually(lambda: gateway.resources.running == 1)
        await eventually(lambda: gateway.resources.running == 0)
        [row] = await logged(one)
        assert row.credits == cost(input=100, output=10)
        await check_counters(one, [row])
        await eventually(lambda: len(gateway.resources.sockets) == 0)
        writer.close()


async def raw(gateway: Gateway, one: Tenant) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client's connection after its upgrade, frames by hand."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET {CODEX} HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
        f"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nauthorization: {one.headers['authorization']}\r\n\r\n".encode()
    )
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


@pytest.mark.parametrize(
    "bad",
    [
        b"\xc1\x80\x00\x00\x00\x00",
        b"\x83\x80\x00\x00\x00\x00",
        b"\x81\x05hello",
        masked(b"\xff\xfe"),
        masked(b"x", Opcode.CONT),
        masked(b"x", fin=False) + masked(b"y"),
        masked(b"\x00", Opcode.CLOSE),
    ],
    ids=["compressed", "reserved", "unmasked", "no text", "continues nothing", "interrupted", "odd close"],
)
async def test_a_frame_against_the_protocol_ends_the_socket_and_its_turn(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    upstream.script({"deltas": 300, "event_delay": 0.001, "silence_after_events": 250}, token=one.upstream_token)
    reader, writer = await raw(gateway, one)
    writer.write(masked(create().encode()))
    await upstream.wait_for(1, token=one.upstream_token, until=lambda row: row.sent_events > 20)
    writer.write(bad)
    await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await eventually(lambda: gateway.resources.running == 0)
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("client_closed", True)
    assert row.credits > 0
    await check_counters(one, [row])
    await eventually(lambda: len(gateway.resources.sockets) == 0)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR" and "proxy" in record.name] == []
