"""What a settled request leaves behind: one record, one debit, from the right fund."""

from typing import Any

import pytest

from config import redis as weir_redis
from quotas import engine
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, body, in_thread
from tests.flows.test_races import check_counters

pytestmark = pytest.mark.stack

USAGE = {"input_tokens": 12_000, "output_tokens": 2_000, "total_tokens": 14_000}
"""1.5 + 1.5 = 3 credits of gpt-5.5."""


async def test_the_allowance_pays_and_purchased_credits_stay_untouched(stack: Stack, tenant: Tenant, eventually: Any) -> None:
    """A8: with an allowance and no purchased credits, 3 credits come from the allowance; purchased stays 0."""
    stack.upstream.script({"usage": USAGE}, token=tenant.upstream_token)
    async with stack.client() as client:
        content = body(input="weir " * 12_000)
        assert (await client.post(f"{stack.url}/v1/responses", headers=tenant.headers, content=content)).status_code == 200
    [row] = await eventually(tenant.log)
    assert (row.credits, row.from_quota, row.from_purchased, row.from_overage, row.overdraft) == (3_000_000, 3_000_000, 0, 0, 0)
    usage = await in_thread(tenant.usage)
    assert (usage.plan.used, usage.plan.remaining) == (3_000_000, usage.plan.quota - 3_000_000)
    assert (await in_thread(purchased_spent, tenant)) == 0


def purchased_spent(tenant: Tenant) -> int:
    """Field 4 of the counters' meta."""
    import io

    import msgpack

    stored = weir_redis.sync_client().hget(engine.counters_key(tenant.organization.pk), "$")
    assert isinstance(stored, bytes)
    return int(list(msgpack.Unpacker(io.BytesIO(stored), raw=True))[3])


async def test_a_settlement_delivered_twice_is_one_record_and_one_debit(stack: Stack, tenant: Tenant, eventually: Any) -> None:
    """N4: the same stream entry is put into the usage stream again, and read again by the ledger."""
    stack.upstream.script({"usage": USAGE, "event_delay": 0.05}, token=tenant.upstream_token)
    redis = weir_redis.sync_client()
    stream = engine.stream_key(tenant.organization.pk)
    stack.ledgers[0].kill()
    try:
        async with stack.client() as client:
            content = body(input="weir " * 12_000)
            assert (await client.post(f"{stack.url}/v1/responses", headers=tenant.headers, content=content)).status_code == 200
        [(_, fields)] = await eventually(lambda: redis.xrange(stream))
        await in_thread(redis.xadd, stream, fields)
    finally:
        stack.ledgers[0].start()
    await eventually(lambda: tenant.log() and redis.xlen(stream) == 0, 10)
    log = await in_thread(tenant.log)
    assert [row.credits for row in log] == [3_000_000]
    await check_counters(tenant, log)
    period = await in_thread(period_of, tenant)
    assert (period.used_from_quota, period.requests) == (3_000_000, 1)


def period_of(tenant: Tenant) -> Any:
    from billing.models import SubscriptionPeriod

    return SubscriptionPeriod.objects.get(subscription__organization=tenant.organization)
