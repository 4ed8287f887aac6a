"""Upstream answers that no protocol describes: nothing is lost, nothing is free, nobody waits for ever."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from routing import health, live
from tests.flows.tenants import Tenant, cost, in_thread
from tests.proxy.conftest import Gateway, check_counters, eventually, logged
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]
USAGE = {"input_tokens": 100, "output_tokens": 50, "total_tokens": 150}
REAL = cost(input=100, output=50)
HALF = "\ud83d"
KINDS = pytest.mark.parametrize("kind", ["chatgpt", "openai"])
STREAMED = pytest.mark.parametrize("is_streamed", [True, False])


def event(name: str, **fields: Any) -> str:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n"


def response(**fields: Any) -> dict[str, Any]:
    return {"id": "resp_x", "object": "response", "model": "gpt-5.5", "status": "completed", "output": [], **fields}


CREATED = event("response.created", sequence_number=0, response=response(status="in_progress"))
DELTAS = "".join(event("response.output_text.delta", sequence_number=number, delta="hello ") for number in range(1, 6))
COMPLETED = event("response.completed", sequence_number=6, response=response(usage=USAGE))
WHOLE = CREATED + DELTAS + COMPLETED


@KINDS
@STREAMED
async def test_a_second_terminal_event_takes_nothing_back(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str, is_streamed: bool
) -> None:
    """The second one said 0 tokens, and the answer was free."""
    one: Tenant = await tenant(account=kind)
    free = event("response.failed", response=response(status="failed", usage={"input_tokens": 0, "output_tokens": 0}))
    upstream.script({"raw": WHOLE + free})
    got = await gateway.post(one, stream=is_streamed)
    assert got.status_code == 200
    assert is_streamed or got.json()["usage"] == USAGE
    [row] = await logged(one)
    assert (row.credits, row.status, row.is_estimated) == (REAL, "ok", False)
    await check_counters(one, [row])


@KINDS
@STREAMED
@pytest.mark.parametrize("where", [{"output": [{"text": HALF}]}, {"usage": {**USAGE, "note": HALF}}])
async def test_half_a_surrogate_pair_in_the_last_event_does_not_hide_its_usage(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str, is_streamed: bool, where: dict[str, Any]
) -> None:
    one: Tenant = await tenant(account=kind)
    final = response(**{"usage": USAGE, **where})
    raw = CREATED + DELTAS + event("response.completed", response=final)
    upstream.script({"raw": raw})
    got = await gateway.post(one, stream=is_streamed)
    assert got.status_code == 200
    assert got.text == raw if is_streamed else json.loads(got.content) == final
    [row] = await logged(one)
    assert (row.credits, row.is_estimated) == (REAL, False)
    await check_counters(one, [row])


@KINDS
@STREAMED
async def test_a_cut_before_the_last_empty_line_loses_no_usage(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str, is_streamed: bool
) -> None:
    one: Tenant = await tenant(account=kind)
    upstream.script({"raw": WHOLE, "cut_after_bytes": len(WHOLE) - 1})
    got = await gateway.post(one, stream=is_streamed)
    assert got.status_code == 200
    assert got.text == WHOLE[:-1] + "\n\n" if is_streamed else got.json()["usage"] == USAGE
    [row] = await logged(one)
    assert (row.credits, row.status, row.is_estimated) == (REAL, "ok", False)
    await check_counters(one, [row])


async def test_half_a_terminal_event_is_none(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """The stream's end in the middle of the event passed for its end, and the client was left with half of it."""
    one: Tenant = await tenant(account="openai")
    upstream.script({"raw": WHOLE[:-40]})
    got = await gateway.post(one, stream=True)
    assert got.text.startswith(CREATED + DELTAS + "event: response.failed\n")
    assert got.text.count("event: response.failed\n") == 1
    assert "response.completed" not in got.text
    [row] = await logged(one)
    assert (row.status, row.is_estimated, row.credits > 0) == ("upstream_cut", True, True)
    await check_counters(one, [row])


async def test_what_drips_in_after_the_end_is_not_waited_for(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """Each comment was given another second, and the slot was kept for as long as they came."""
    one: Tenant = await tenant(account="openai")
    upstream.script({"raw": WHOLE + ": ping\n\n" * 40, "chunk": [len(WHOLE)] + [8] * 40, "chunk_delay": 0.25})
    began = time.monotonic()
    got = await gateway.post(one, stream=True)
    assert time.monotonic() - began < 4.0
    assert got.text.startswith(WHOLE)
    [row] = await logged(one)
    assert (row.credits, row.status) == (REAL, "ok")
    await check_counters(one, [row])


async def test_a_stream_of_declared_length_that_is_cut_ends_as_failed(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """Its length went to the client, whose connection then broke instead."""
    one: Tenant = await tenant(account="openai")
    upstream.script(
        {
            "raw": WHOLE,
            "headers": {"content-type": "text/event-stream", "content-length": str(len(WHOLE))},
            "cut_after_bytes": len(CREATED + DELTAS) - 20,
        }
    )
    got = await gateway.post(one, stream=True)
    assert "content-length" not in got.headers
    assert got.text.count("event: response.failed\n") == 1
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("upstream_cut", True)
    await check_counters(one, [row])


@STREAMED
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"raw": CREATED + event("error", code="invalid_prompt", message=HALF)}, 400),
        ({"raw": CREATED + "event: error\ndata: " + "[" * 100_000 + "]" * 100_000 + "\n\n"}, 400),
        ({"status": 400, "body": '{"error":' * 20_000}, 400),
        ({"status": 429, "body": '{"error":{"type":"usage_limit_reached","resets_at":' + "9" * 400 + "}}"}, 429),
    ],
)
async def test_a_refusal_is_never_a_fault_of_ours_and_costs_nothing(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, answer: dict[str, Any], status: int, is_streamed: bool
) -> None:
    """They were answered 500, and the input was billed."""
    one: Tenant = await tenant(account="openai")
    upstream.script(answer)
    got = await gateway.post(one, stream=is_streamed)
    assert got.status_code == (200 if is_streamed and "raw" in answer else status)
    assert "raw" not in answer or not is_streamed or got.text.count("event: response.failed\n") == 1
    [row] = await logged(one)
    assert (row.credits, row.status) == (0, "failed")
    await check_counters(one, [row])


async def test_a_client_that_leaves_after_a_refusal_does_not_pay_for_it(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """The refused attempt was taken for one that the client had cut, while its token was being renewed."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    upstream.expire(one.account.chatgpt_account_id)
    upstream.script({"delay": 3.0}, path="/oauth/token")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await gateway.post(one, stream=True)
    [row] = await logged(one)
    assert (row.credits, row.status) == (0, "client_closed")
    await check_counters(one, [row])


async def test_a_client_that_leaves_a_second_attempt_is_not_logged_as_failed(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """The status of the refused attempt stayed on the row of the one that streamed."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    upstream.expire(one.account.chatgpt_account_id)
    upstream.script({"deltas": 40, "event_delay": 0.05})
    async with gateway.stream(one, stream=True) as got:
        async for _ in got.aiter_bytes():
            break
    [row] = await logged(one)
    assert [step.get("status") for step in row.trace] == [401, 200]
    assert (row.status, row.is_estimated, row.credits > 0) == ("client_closed", True, True)
    await check_counters(one, [row])


async def test_windows_told_without_end_are_noted_one_at_a_time(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait for Redis by itself, a thousand of them at once."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    running = most = 0
    observe = health.observe_event

    async def counted(*args: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.01)
            return await observe(*args)
        finally:
            running -= 1

    monkeypatch.setattr(health, "observe_event", counted)
    resets_at = int(time.time()) + 9000
    told = [
        event(
            "codex.rate_limits",
            rate_limits={"primary": {"used_percent": used, "window_minutes": 300, "reset_at": resets_at}},
        )
        for used in range(1, 51)
    ]
    upstream.script({"raw": CREATED + "".join(told) + DELTAS + COMPLETED, "chunk": 150, "chunk_delay": 0.002})
    got = await gateway.post(one)
    assert b"codex.rate_limits" not in got.content
    assert got.text == WHOLE
    key = live.pool_live_key(one.account.pool_id, one.organization.pk)

    def newest() -> bool:
        windows = live.state_of(key, one.account.pk).windows if one.account is not None else {}
        return 300 in windows and windows[300].used_percent == 50.0

    await eventually(lambda: in_thread(newest))
    assert most == 1
