"""Forty clients, two web processes, room for ten."""

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from proxy import estimate
from proxy.dialects import responses
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, body, in_thread

pytestmark = pytest.mark.stack


async def race(stack: Stack, tenant: Tenant, count: int, content: bytes) -> list[httpx.Response]:
    """`count` requests at once, dealt to the web processes in turn."""
    async with stack.client() as client:
        urls = [stack.webs[number % len(stack.webs)].url for number in range(count)]
        calls = [client.post(f"{url}/v1/responses", headers=tenant.headers, content=content) for url in urls]
        return list(await asyncio.gather(*calls))


async def settled(tenant: Tenant, count: int, eventually: Any) -> list[Any]:
    """The log once it holds `count` rows."""
    return list(await eventually(lambda: rows if len(rows := tenant.log()) >= count else None, 10))


async def check_counters(tenant: Tenant, log: list[Any]) -> None:
    """Counters = log, to the micro-credit, and nothing is held."""
    usage = await in_thread(tenant.usage)
    assert usage.credits == sum(row.credits for row in log)
    assert usage.tokens == sum(row.counted_tokens for row in log)
    assert usage.requests == sum(row.counted_requests for row in log)
    assert usage.plan.used == sum(row.from_quota for row in log)
    assert (usage.live, usage.plan.held) == (0, 0)
    assert await in_thread(tenant.live_holds) == 0
    assert await in_thread(tenant.slots) == 0


async def test_forty_racing_requests_against_room_for_ten_send_ten_upstream(stack: Stack, tenant: Tenant, eventually: Any) -> None:
    """A4: a check and a later deduction would let all of them pass, over both processes."""
    await in_thread(tenant.set_limit, scope="member", metric="requests", window="day", amount="10")
    stack.upstream.script({"delay": 1.5}, repeat=40, token=tenant.upstream_token)
    answers = await race(stack, tenant, 40, body())
    assert Counter(answer.status_code for answer in answers) == {200: 10, 429: 30}
    error = next(answer for answer in answers if answer.status_code == 429).json()["error"]
    assert (error["type"], error["code"], error["scope"]) == ("usage_limit_reached", "limit_reached", "member")
    assert len(stack.upstream.received(token=tenant.upstream_token)) == 10
    log = await settled(tenant, 10, eventually)
    assert len(log) == 10
    await check_counters(tenant, log)


async def test_room_for_ten_estimates_admits_ten(stack: Stack, tenant: Tenant, eventually: Any) -> None:
    """A1: what is reserved counts: reserved + used never pass the limit; the eleventh is refused before any upstream byte."""
    content = body(max_output_tokens=200)
    inspection = responses.inspect(content)
    # Half an estimate more, for the web processes have learned their own bytes per token.
    need = await in_thread(estimated, tenant, inspection)
    room = need * 10 + need // 2
    await in_thread(tenant.set_limit, scope="member", metric="credits", window="day", amount=text(room))
    usage = {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30}
    stack.upstream.script({"delay": 1.5, "usage": usage}, repeat=40, token=tenant.upstream_token)
    answers = await race(stack, tenant, 40, content)
    assert Counter(answer.status_code for answer in answers) == {200: 10, 429: 30}
    assert len(stack.upstream.received(token=tenant.upstream_token)) == 10
    log = await settled(tenant, 10, eventually)
    assert [row.credits for row in log] == [16_250] * 10
    await check_counters(tenant, log)


def text(micro: int) -> str:
    return f"{micro // 10**6}.{micro % 10**6:06d}"


def estimated(tenant: Tenant, inspection: Any) -> int:
    from config import snapshot
    from config.clock import utc_now

    loaded = snapshot.load(tenant.organization.pk)
    rate = loaded.billing.rates.rate_for(inspection.model, utc_now())
    return estimate.estimate(inspection, rate, has_sign_in_account=False).credits
