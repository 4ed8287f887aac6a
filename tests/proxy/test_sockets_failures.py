"""Turns over a WebSocket that an upstream fails: what moves, what the client is told, and what is left of the socket."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Opcode

from demo.upstream_errors import ERRORS
from routing import pools
from routing.models import PoolAccount
from tests import factories
from tests.flows.tenants import Tenant, in_thread
from tests.proxy.conftest import Gateway, check_counters, eventually, is_clean, logged
from tests.proxy.raw_server import Peer, serve
from tests.proxy.socket_client import create, id_of, opened, text_of
from tests.proxy.test_exchange_failures import second_account
from tests.proxy.test_upstream_socket import accept, frame, read_frame
from tests.upstream import Received, ScriptedUpstream

MakeTenant = Callable[..., Any]

FULL = {"error": "429_usage", "body": {"error": {"type": "usage_limit_reached", "message": "x", "resets_in_seconds": 900}}}
USAGE_LIMIT_INSIDE = {"fail": {"code": "usage_limit_reached", "message": "The usage limit has been reached"}}


def frames_at(upstream: ScriptedUpstream, account: PoolAccount | None) -> list[Received]:
    """The turns that reached an account."""
    assert account is not None
    received = upstream.received(account=account.chatgpt_account_id)
    return [row for row in received if row.method == "WEBSOCKET"]


# ---------------------------------------------------------------------------------------------------------------- chains


async def test_an_account_exhausted_between_turns_is_left_without_a_word(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N50: sticky to A, A refuses: a full resend is answered by B, on the same socket; the next one goes to B at once."""
    one: Tenant = await tenant(account="chatgpt")
    async with opened(gateway, one, **{"session-id": "s-1"}) as client:
        await client.turn("one")
        second, _ = await second_account(one, upstream)
        upstream.script(FULL, token=one.upstream_token)
        assert text_of(await client.turn("two")) == "You said: two"
        assert text_of(await client.turn("three")) == "You said: three"
        rows = await logged(one, 3)
        await check_counters(one, rows)
    assert one.account is not None
    assert [row.account_id for row in rows] == [one.account.pk, second.pk, second.pk]
    assert [step.get("failure") for step in rows[1].trace] == ["usage_limit", None]
    assert (len(frames_at(upstream, one.account)), len(frames_at(upstream, second))) == (2, 2)
    sockets = {row.socket for row in frames_at(upstream, second)}
    assert len(sockets) == 1


@pytest.mark.parametrize("refusal", [FULL, {"error": "429_rate"}, USAGE_LIMIT_INSIDE])
async def test_inside_a_chain_the_client_is_asked_for_everything_again(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, refusal: dict[str, Any]
) -> None:
    """No 429 while another account is free: Codex reconnects without a word, and its full resend is served there."""
    one: Tenant = await tenant(account="chatgpt")
    async with opened(gateway, one) as client:
        first = id_of(await client.turn("one"))
        second, _ = await second_account(one, upstream)
        upstream.script(refusal, token=one.upstream_token)
        error = await client.refused("two", previous_response_id=first)
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        # The next turn of the chain is refused without asking the account again.
        again = await client.refused("two", previous_response_id=first)
        assert again["error"]["code"] == "previous_response_not_found"
        assert len(frames_at(upstream, one.account)) == 2
    async with opened(gateway, one) as client:
        assert text_of(await client.turn("one, two")) == "You said: one, two"
    assert len(frames_at(upstream, second)) == 1
    rows = await logged(one, 3)
    assert [row.status for row in rows] == ["ok", "failed", "ok"]
    assert rows[1].credits == 0
    await check_counters(one, rows)


@pytest.mark.alone
async def test_a_response_that_nobody_knows_is_refused_at_once(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N54: 400 previous_response_not_found in under 100 ms, without an upstream call."""
    one: Tenant = await tenant(account="chatgpt")
    async with opened(gateway, one) as client:
        await client.refused(previous_response_id="resp_warm")
        began = asyncio.get_running_loop().time()
        error = await client.refused(previous_response_id="resp_nobodys")
        assert asyncio.get_running_loop().time() - began < 0.1
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        assert upstream.received(token=one.upstream_token) == []
        assert text_of(await client.turn("all of it")) == "You said: all of it"
        await check_counters(one, await logged(one))


async def test_a_chain_of_another_socket_is_not_gone_on_with(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """Nothing is stored by a sign-in account: the chain lives in its connection, and its account is not asked for it."""
    one: Tenant = await tenant(account="chatgpt")
    async with opened(gateway, one) as client:
        first = id_of(await client.turn())
    async with opened(gateway, one) as client:
        error = await client.refused(previous_response_id=first)
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
    assert len(frames_at(upstream, one.account)) == 1
    await check_counters(one, await logged(one))


async def test_an_account_that_is_gone_ends_its_chain(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """N53: its owner needs sign-in: 400 previous_response_not_found without an upstream call; a full resend goes elsewhere."""
    one: Tenant = await tenant(account="chatgpt")
    async with opened(gateway, one) as client:
        first = id_of(await client.turn())
        second, _ = await second_account(one, upstream)

        def lose() -> None:
            assert one.account is not None
            PoolAccount.objects.filter(pk=one.account.pk).update(status="needs_sign_in")
            with transaction.atomic():
                pools.changed(one.organization.pk)

        await in_thread(lose)
        error = await client.refused(previous_response_id=first)
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        assert len(frames_at(upstream, one.account)) == 1
        await client.turn()
        assert len(frames_at(upstream, second)) == 1


@pytest.mark.parametrize("how", ["reset", "close", 1001])
async def test_an_upstream_socket_that_ended_between_turns_is_opened_again(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, how: str | int
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    gate = {"name": "between", "after": 12}
    upstream.script({"hold": gate, "cut_after_events": 12, "cut_how": how}, token=one.upstream_token)
    async with opened(gateway, one) as client:
        first = id_of(await client.turn("a b"))
        upstream.release("between")
        await eventually(lambda: len(gateway.resources.sockets) == 0)
        error = await client.refused(previous_response_id=first)
        assert error["error"]["code"] == "previous_response_not_found"
        assert text_of(await client.turn("two")) == "You said: two"
        rows = await logged(one, 2)
        await check_counters(one, rows)
    assert [row.status for row in rows] == ["ok", "ok"]
    assert len({row.socket for row in frames_at(upstream, one.account)}) == 2


async def test_a_socket_that_had_been_closed_before_a_frame_was_sent_is_no_answer(gateway: Gateway, tenant: MakeTenant) -> None:
    """The peer's end and our frame cross: nothing has run, so the frame goes out once more, on a new socket."""
    turns: list[bytes] = []

    async def script(peer: Peer) -> None:
        await accept(peer)
        while True:
            opcode, data = await read_frame(peer)
            if opcode is not Opcode.TEXT:
                return
            turns.append(data)
            if peer.number == 1 and len(turns) == 2:
                peer.reset()
                return
            await peer.send(frame(b'{"type":"response.completed","response":{"id":"resp_%d"}}' % len(turns)))

    async with serve(script) as server:
        with override_settings(UPSTREAM_OPENAI_URL=server.url, UPSTREAM_ALLOWED_NETWORKS=["127.0.0.0/8"]):
            one: Tenant = await tenant()
            async with opened(gateway, one) as client:
                assert id_of(await client.turn("one")) == "resp_1"
                assert id_of(await client.turn("two")) == "resp_3"
    assert turns == [create("one").encode(), create("two").encode(), create("two").encode()]
    rows = await logged(one, 2)
    assert [len(row.trace) for row in rows] == [1, 2]
    await check_counters(one, rows)


# ------------------------------------------------------------------------------------------------------- what is told


async def test_the_clients_own_mistakes_are_told_as_the_upstream_said_them(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    limit = {
        "status": 400,
        "body": {"error": {"type": "invalid_request_error", "code": "websocket_connection_limit_reached", "message": "60 minutes"}},
        "headers": {"x-codex-primary-used-percent": "77", "x-request-id": "up_1"},
    }
    upstream.script({"error": "400_context"}, {"error": "400_detail"}, limit, token=one.upstream_token)
    async with opened(gateway, one) as client:
        error = await client.refused()
        assert (error["status"], error["error"]["code"]) == (400, "context_length_exceeded")
        error = await client.refused()
        assert (error["status"], error["error"]["message"]) == (400, "Unsupported parameter: max_output_tokens")
        error = await client.refused()
        assert (error["status"], error["error"]["code"]) == (400, "websocket_connection_limit_reached")
        # Of the pool's accounts nothing is told.
        assert error["headers"]["x-request-id"] == "up_1"
        assert error["headers"].get("x-codex-primary-used-percent") != "77"
        assert text_of(await client.turn("go on")) == "You said: go on"


async def test_a_failed_response_about_the_request_passes_frame_by_frame(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    upstream.script({"fail": {"code": "context_length_exceeded", "message": "too long"}}, token=one.upstream_token)
    async with opened(gateway, one) as client:
        await client.send()
        frames = await client.answer()
        assert [frame["type"] for frame in frames] == ["response.created", "response.in_progress", "response.failed"]
        assert frames[-1]["response"]["error"] == {"code": "context_length_exceeded", "message": "too long"}
        id_of(await client.turn())
        rows = await logged(one, 2)
        assert [row.status for row in rows] == ["failed", "ok"]
        assert rows[0].credits == 0


async def test_a_cut_after_output_ends_the_turn_and_not_the_socket(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """The written frame is not sent again; what was seen is billed; the next turn is served."""
    one: Tenant = await tenant(account="chatgpt")
    await second_account(one, upstream)
    upstream.script({"deltas": 50, "cut_after_events": 20}, token=one.upstream_token)
    upstream.script({"deltas": 50, "cut_after_events": 20})
    async with opened(gateway, one) as client:
        await client.send()
        frames = await client.answer()
        last = frames[-1]
        assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "stream_incomplete")
        assert last["response"]["id"] == frames[1]["response"]["id"]
        assert last["sequence_number"] == frames[-2]["sequence_number"] + 1
        upstream.reset()
        id_of(await client.turn())
        rows = await logged(one, 2)
        await check_counters(one, rows)
    assert [row.status for row in rows] == ["upstream_cut", "ok"]
    assert len(rows[0].trace) == 1
    assert rows[0].is_estimated
    assert rows[0].credits > 0


async def test_a_cut_before_an_answer_is_a_502_and_is_not_sent_again(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    await second_account(one, upstream)
    upstream.script({"cut_before_head": True})
    async with opened(gateway, one) as client:
        error = await client.refused()
        assert (error["status"], error["error"]["code"]) == (502, "upstream_unavailable")
        assert len([row for row in upstream.received() if row.method == "WEBSOCKET"]) == 1
        [row] = await logged(one)
        assert (row.status, row.credits) == ("failed", 0)
        id_of(await client.turn())
        assert await is_clean(one)


@pytest.mark.parametrize(
    ("error", "ending"),
    [("429_usage", "response.failed"), ("401_revoked", "response.failed"), ("400_context", "error")],
)
async def test_an_error_frame_in_the_middle_of_an_answer_says_nothing_of_accounts(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, error: str, ending: str
) -> None:
    """After output nothing is moved; a refusal of the account's ends the response so that the client tries again elsewhere."""
    one: Tenant = await tenant(account="chatgpt")
    refusal = ERRORS[error]
    events = [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_text.delta", "delta": "half", "sequence_number": 4},
        {"type": "error", "status": refusal.status, "error": refusal.body["error"], "headers": refusal.headers},
    ]
    upstream.script({"events": events, "silence_after_events": 3}, token=one.upstream_token)
    async with opened(gateway, one) as client:
        await client.send()
        frames = await client.answer()
        assert frames[-1]["type"] == ending
        if ending == "error":
            assert (frames[-1]["status"], frames[-1]["error"]["code"]) == (400, "context_length_exceeded")
        else:
            assert frames[-1]["response"]["error"]["code"] == "stream_incomplete"
            assert frames[-1]["sequence_number"] == 5
        [row] = await logged(one)
        assert (row.status, row.is_estimated) == ("failed", True)
        await check_counters(one, [row])


@pytest.mark.parametrize("gateway_settings", [{"HEARTBEAT_SECONDS": 0.2}])
async def test_silence_is_filled_with_heartbeats_which_decide_nothing(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """After two of them the account refuses, and another one answers all the same."""
    one: Tenant = await tenant(account="chatgpt")
    second, _ = await second_account(one, upstream)
    upstream.script({**FULL, "delay": 1.2})
    async with opened(gateway, one) as client:
        await client.send("hi")
        beats = 0
        while (frame := await client.frame())["type"] == "keepalive":
            assert frame == {"type": "keepalive"}
            beats += 1
        assert beats >= 2
        assert text_of((await client.answer())[-1]) == "You said: hi"
        # Between turns there is nothing to keep alive.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.frame(), 0.5)
        assert len(await logged(one)) == 1
    assert {len(frames_at(upstream, one.account)), len(frames_at(upstream, second))} == {1}


@pytest.mark.parametrize("is_answering", [True, False])
async def test_a_black_holed_upstream_is_noticed(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, is_answering: bool
) -> None:
    """N64: by its unanswered ping, within its interval and deadline (20 s each in earnest)."""
    one: Tenant = await tenant(account="chatgpt")
    sockets = gateway.resources.sockets
    sockets._ping_seconds = sockets._pong_seconds = 0.3
    upstream.script({"deltas": 20, "deaf": True, "silence_after_events": 8 if is_answering else 0}, token=one.upstream_token)
    async with opened(gateway, one) as client:
        began = asyncio.get_running_loop().time()
        await client.send()
        last = (await client.answer())[-1]
        assert asyncio.get_running_loop().time() - began < 3
        if is_answering:
            assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "stream_incomplete")
        else:
            assert (last["type"], last["status"], last["error"]["code"]) == ("error", 502, "upstream_unavailable")
        await eventually(lambda: is_clean(one))
        await second_account(one, upstream)
        upstream.reset()
        id_of(await client.turn())


# ------------------------------------------------------------------------------------------------ upgrades of upstreams


@pytest.mark.parametrize("error", ["429_usage", "503_overloaded", "403", "401_revoked"])
async def test_an_upgrade_that_is_refused_moves_the_turn(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, error: str
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    second, _ = await second_account(one, upstream)
    assert one.account is not None
    upstream.script({"error": error}, transport="upgrade")
    async with opened(gateway, one) as client:
        id_of(await client.turn())
        [row] = await logged(one)
        await check_counters(one, [row])
    assert len(row.trace) == 2
    assert len(frames_at(upstream, one.account)) + len(frames_at(upstream, second)) == 1


async def test_an_old_token_is_renewed_for_the_upgrade(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    upstream.expire(one.account.chatgpt_account_id)
    async with opened(gateway, one) as client:
        id_of(await client.turn())
    assert upstream.refreshes(one.account.chatgpt_account_id) == 1
    [row] = await logged(one)
    assert [step.get("status") for step in row.trace] == [401, None]


@pytest.mark.parametrize("status", [404, 405, 426])
async def test_an_account_that_declines_is_used_over_http_only(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, status: int
) -> None:
    """With another account the turn is served there; and nobody knocks at the first again."""
    one: Tenant = await tenant(account="chatgpt")
    upstream.script({"status": status}, repeat=0, token=one.upstream_token, transport="upgrade")
    second, _ = await second_account(one, upstream)
    for number in range(4):
        async with opened(gateway, one, **{"session-id": f"s-{number}"}) as client:
            id_of(await client.turn())
    assert len(upstream.received(token=one.upstream_token)) <= 1
    assert len(frames_at(upstream, second)) == 4
    assert (await gateway.post(one)).status_code == 200


@pytest.mark.parametrize("status", [404, 426])
async def test_where_no_account_speaks_websocket_the_client_is_sent_to_http(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, status: int
) -> None:
    """A frame on which Codex connects anew without a word, and then 426, on which it uses HTTP for the session."""
    one: Tenant = await tenant(account="chatgpt")
    upstream.script({"status": status}, repeat=0, token=one.upstream_token, transport="upgrade")
    async with opened(gateway, one) as client:
        error = await client.refused()
        assert (error["status"], error["error"]["code"]) == (400, "websocket_connection_limit_reached")
        with pytest.raises(ConnectionClosed):
            await client.frame()
    await declined(gateway, one)
    assert (await gateway.post(one)).status_code == 200
    assert len(upstream.received(token=one.upstream_token)) == 2
    rows = await logged(one)
    await check_counters(one, rows)


async def test_what_only_a_compatible_endpoint_can_serve_is_sent_to_http(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """A pool whose sign-in account is exhausted, and whose compatible one is not: no 429 over the socket."""
    one: Tenant = await tenant(account="chatgpt")
    with override_settings(UPSTREAM_ALLOWED_NETWORKS=["127.0.0.0/8"]):
        _, token = await in_thread(factories.key_account, one.organization, kind="openai_compatible", base_url=f"{upstream.url}/v1")
        upstream.script(FULL, repeat=0, token=one.upstream_token)
        async with opened(gateway, one, **{"session-id": "s-1"}) as client:
            error = await client.refused()
            assert error["error"]["code"] == "websocket_connection_limit_reached"
        await declined(gateway, one, **{"session-id": "s-1"})
        assert (await gateway.post(one)).status_code == 200
    assert len(upstream.received(token=token)) == 1


async def declined(gateway: Gateway, one: Tenant, **headers: str) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with opened(gateway, one, **headers):
            pass
    assert caught.value.response.status_code == 426
