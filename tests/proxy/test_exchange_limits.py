"""Limits, tiers and prices, through the front door: refused before any upstream byte, billed to the micro-credit."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from config.clock import utc_now
from proxy import estimate
from tests.flows.tenants import MODEL, Tenant, body, cost, in_thread, text
from tests.proxy.conftest import Gateway, check_counters, is_clean, logged, set_limit
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]


async def test_a_remainder_of_a_cent_does_not_buy_a_large_answer(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """A6: remaining 0.01, estimate above: 429 with the facts, and no upstream byte is sent."""
    one: Tenant = await tenant()
    await set_limit(one, scope="member", metric="credits", window="week", amount="0.01")
    got = await gateway.post(one, max_output_tokens=40_000)
    error = got.json()["error"]
    need = cost(input=-(-len(body(max_output_tokens=40_000)) // 4), output=40_000)
    assert (got.status_code, error["type"], error["code"], error["scope"]) == (
        429,
        "usage_limit_reached",
        "limit_reached",
        "member",
    )
    assert (error["limit"], error["used"], error["held"], error["need"]) == ("0.01", "0", "0", text(need))
    assert got.headers["x-should-retry"] == "false"
    assert upstream.received(token=one.upstream_token) == []
    usage = await in_thread(one.usage)
    assert (usage.credits, usage.requests, usage.live) == (0, 0, 0)
    assert await logged(one, 0) == []


async def test_a_limit_of_zero_blocks_and_none_does_not(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """A20"""
    one: Tenant = await tenant()
    await set_limit(one, scope="key", metric="credits", window="day", amount="0")
    assert (await gateway.post(one)).json()["error"]["limit"] == "0"
    await set_limit(one, scope="key", metric="credits", window="day", amount="none")
    assert (await gateway.post(one)).status_code == 200
    assert len(upstream.received(token=one.upstream_token)) == 1


async def test_what_a_request_cost_is_used_by_the_next(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """A23: limit 30, one settled request of 45: the next is refused. A7: the answer itself is not cut."""
    one: Tenant = await tenant()
    await set_limit(one, scope="key", metric="credits", window="day", amount="30")
    usage = {"input_tokens": 0, "output_tokens": 60_000, "total_tokens": 60_000}
    upstream.script({"usage": usage}, token=one.upstream_token)
    assert (await gateway.post(one, max_output_tokens=10)).status_code == 200
    refused = await gateway.post(one, max_output_tokens=10)
    assert (refused.status_code, refused.json()["error"]["used"]) == (429, "45")
    [row] = await logged(one)
    assert row.credits == 45_000_000
    await check_counters(one, [row])


async def test_a_sign_in_account_is_held_by_policy_and_its_answer_runs_to_its_end(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """A24: remaining 5, max_output_tokens 1,000 (which the backend refuses), 30,000 come: all are booked, the next is refused."""
    one: Tenant = await tenant(account="chatgpt")
    await set_limit(one, scope="member", metric="credits", window="day", amount="5")
    usage = {"input_tokens": 0, "output_tokens": 30_000, "total_tokens": 30_000}
    upstream.script({"usage": usage, "event_delay": 0.05}, token=one.upstream_token)
    running = asyncio.create_task(gateway.post(one, max_output_tokens=1000))
    await asyncio.sleep(0.25)
    [limit] = (await gateway.get(one, "/v1/usage")).json()["limits"]
    input_tokens = -(-len(body(max_output_tokens=1000)) // 4)
    assert limit["held"] == text(cost(input=input_tokens, output=estimate.OUTPUT_TOKENS))
    got = await running
    assert b"response.completed" in got.content
    [row] = await logged(one)
    assert row.credits == 22_500_000
    refused = await gateway.post(one, max_output_tokens=1)
    assert refused.status_code == 429
    [limit] = (await gateway.get(one, "/v1/usage")).json()["limits"]
    assert (limit["used"], limit["remaining"]) == ("22.5", "0")
    [received] = upstream.received(token=one.upstream_token)
    assert b"max_output_tokens" not in received.body


@pytest.mark.parametrize("terminal", ["response.completed", "response.incomplete", "response.failed"])
@pytest.mark.parametrize("stream", [True, False])
async def test_each_terminal_event_is_billed(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, terminal: str, stream: bool
) -> None:
    """B3: completed, incomplete, failed, each with usage 900 in, 300 out; also folded."""
    one: Tenant = await tenant(account="chatgpt")
    usage = {"input_tokens": 900, "output_tokens": 300, "total_tokens": 1200}
    upstream.script({"terminal": terminal, "usage": usage}, token=one.upstream_token)
    got = await gateway.post(one, stream=stream)
    assert got.status_code == 200
    [row] = await logged(one)
    status = terminal.removeprefix("response.")
    assert (row.status, row.credits, row.is_estimated) == (
        {"completed": "ok"}.get(status, status),
        cost(input=900, output=300),
        False,
    )


@pytest.mark.parametrize(("kind", "multiple"), [("openai", 1), ("chatgpt", 2)])
async def test_fast_mode_is_billed_by_the_answer_or_by_the_request(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str, multiple: int
) -> None:
    """C8, C9: asked priority, answered default: standard on an API key, fast on a sign-in account, whose echo says nothing."""
    one: Tenant = await tenant(account=kind)
    usage = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
    upstream.script({"usage": usage, "tier": "default"}, token=one.upstream_token)
    assert (await gateway.post(one, service_tier="priority")).status_code == 200
    [row] = await logged(one)
    standard = cost(input=1000, output=100)
    from config import snapshot

    found = await snapshot.cache().get(one.organization.pk)
    rate = found.billing.rates.rate_for(MODEL, utc_now())
    expected = standard if multiple == 1 else standard * rate.fast_thousandths // 1000
    assert rate.fast_thousandths > 1000
    assert (row.credits, row.tier_billed) == (expected, "standard" if multiple == 1 else "fast")


async def test_an_unknown_model_is_refused_and_the_operator_told_once(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    """C13: never silently 0."""
    one: Tenant = await tenant()
    name = f"gpt-9-new-{one.organization.pk}"
    with caplog.at_level(logging.WARNING, logger="billing"):
        for _ in range(2):
            got = await gateway.post(one, model=name)
            error = got.json()["error"]
            assert (got.status_code, error["code"], error["param"]) == (400, "model_not_found", "model")
    told = [record for record in caplog.records if getattr(record, "model", None) == name]
    assert len(told) == 1
    assert upstream.received(token=one.upstream_token) == []
    assert await is_clean(one)
    assert (await in_thread(one.usage)).requests == 0


@pytest.mark.parametrize(
    "usage", [{"input_tokens": -1_000_000, "output_tokens": 10}, {"input_tokens": 9_000_000, "output_tokens": 10}]
)
async def test_impossible_usage_never_lowers_a_counter(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, usage: dict[str, int]
) -> None:
    """D5: booked at the hold's amount, marked; the counter does not fall."""
    one: Tenant = await tenant()
    upstream.script({"usage": {"input_tokens": 100, "output_tokens": 0}}, {"usage": usage}, token=one.upstream_token)
    assert (await gateway.post(one, max_output_tokens=50)).status_code == 200
    assert (await gateway.post(one, max_output_tokens=50)).status_code == 200
    first, second = await logged(one, 2)
    held = cost(input=-(-len(body(max_output_tokens=50)) // 4), output=50)
    assert (first.is_implausible, second.is_implausible) == (False, True)
    assert (second.credits, second.raw_usage) == (held, usage)
    await check_counters(one, [first, second])


async def test_a_key_may_be_kept_to_some_models(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant(key_fields={"allowed_models": ["gpt-5.4"]})
    got = await gateway.post(one)
    assert (got.status_code, got.json()["error"]["code"]) == (400, "model_not_allowed")
    assert upstream.received(token=one.upstream_token) == []
    assert (await gateway.post(one, model="gpt-5.4")).status_code == 200


async def test_without_an_account_nothing_is_held(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant(account="none")
    got = await gateway.post(one)
    error = got.json()["error"]
    assert (got.status_code, error["code"]) == (400, "no_account_available")
    assert error["reason"] in ("no_pool", "no_accounts")
    assert await is_clean(one)
    assert (await in_thread(one.usage)).requests == 0


async def test_a_wish_that_nothing_be_generated_holds_no_less(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """`generate: false` is for WebSockets. Over HTTP it could hold its input alone while others of the kind run and write."""
    one: Tenant = await tenant()
    need = cost(input=-(-len(body(max_output_tokens=40_000, generate=False)) // 4), output=40_000)
    await set_limit(one, scope="key", metric="credits", window="day", amount=text(need - 1))
    got = await gateway.post(one, max_output_tokens=40_000, generate=False)
    assert (got.status_code, got.json()["error"]["need"]) == (429, text(need))
    assert upstream.received(token=one.upstream_token) == []


@pytest.mark.parametrize("scripted", [{"status": 400}, {"usage": {"input_tokens": 0, "output_tokens": 0}}])
async def test_nor_does_it_hide_a_request_from_limits_and_log(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, scripted: dict[str, Any]
) -> None:
    one: Tenant = await tenant()
    await set_limit(one, scope="key", metric="requests", window="day", amount="2")
    upstream.script(*[scripted] * 2, token=one.upstream_token)
    for _ in range(2):
        await gateway.post(one, generate=False)
    assert (await gateway.post(one, generate=False)).status_code == 429
    assert len(upstream.received(token=one.upstream_token)) == 2
    rows = await logged(one, 2)
    assert [row.credits for row in rows] == [0, 0]
    assert (await in_thread(one.usage)).requests == 2
