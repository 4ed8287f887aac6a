"""What an admission tells of the windows: what a look at the counters right after it tells, too."""

from collections.abc import AsyncIterator
from itertools import cycle
from typing import Any

import pytest
import pytest_asyncio

from config.redis import Redis, client
from quotas import admission, gauges
from quotas.admission import Admission
from quotas.gauges import Gauge, Reading
from tests.quotas import tenancy
from tests.quotas.tenancy import CREDIT, Tenant, credits_of, in_thread, request_id

pytestmark = pytest.mark.django_db(transaction=True)


@pytest_asyncio.fixture
async def redis() -> AsyncIterator[Redis]:
    made = client()
    yield made
    await admission.finish(made, timeout_seconds=2)
    await made.close()


@pytest_asyncio.fixture
async def tenant() -> Tenant:
    made: Tenant = await in_thread(tenancy.make)
    return made


async def admit(redis: Redis, tenant: Tenant, need: float, **fields: Any) -> Admission:
    loaded = await in_thread(tenant.snapshot)
    given = {"request_id": request_id(), "need": credits_of(need), "about": tenant.about, **fields}
    return await admission.admit(redis, loaded, tenant.key_of(loaded), **given)


def told(admitted: Admission) -> Reading:
    assert admitted.told is not None
    return admitted.told.reading()


def by_window(reading: Reading) -> dict[tuple[int, str, int], tuple[int, bool]]:
    """(used, is it the plan's) by length, metric and limit."""
    return {(gauge.seconds, gauge.metric, gauge.limit): (gauge.used, gauge.is_plan) for gauge in reading.gauges}


async def test_an_admission_tells_what_was_used_before_it(redis: Redis, tenant: Tenant) -> None:
    """Running requests, its own among them, hold something and have used nothing; they count as requests."""
    await in_thread(tenant.set_limit, "40", scope="key", window="5h")
    await in_thread(tenant.set_limit, "100000", scope="organization", metric="tokens", window="week")
    await in_thread(tenant.set_limit, "50", metric="requests", window="day")
    await in_thread(tenant.set_limit, "5", metric="concurrent", window="")
    first = await admit(redis, tenant, 20)
    assert {used for used, is_plan in by_window(told(first)).values() if not is_plan} == {0, 1}
    await admission.settle(redis, first.hold, amount=credits_of(10), body=tenant.body())
    await admit(redis, tenant, 3)
    second = await admit(redis, tenant, 4)
    found = by_window(told(second))
    assert found[5 * 3600, "credits", 40 * CREDIT] == (10 * CREDIT, False)
    assert found[7 * 86400, "tokens", 100_000] == (10_000, False)
    assert found[86400, "requests", 50] == (3, False)
    assert [used for used, is_plan in found.values() if is_plan] == [10 * CREDIT]
    assert len(found) == 4


async def test_it_tells_the_same_as_the_counters_do(redis: Redis, tenant: Tenant) -> None:
    """Each window with each metric, at one scope or another."""
    scopes = cycle(("organization", "member", "key", "key"))
    for number, window in enumerate(("5h", "1d", "7d", "30d", "day", "week", "month", "period")):
        for metric in ("credits", "tokens", "requests"):
            await in_thread(tenant.set_limit, str(100_000 + number), scope=next(scopes), metric=metric, window=window)
    for cost in (1.25, 2):
        admitted = await admit(redis, tenant, 5)
        await admission.settle(redis, admitted.hold, amount=credits_of(cost), body=tenant.body())
    for _ in range(2):
        usage = await in_thread(tenant.usage)
        admitted = await admit(redis, tenant, 5)
        peeked, seen = gauges.of_usage(usage), told(admitted)
        assert admitted.told is not None
        assert [(gauge.seconds, gauge.metric, gauge.limit, gauge.is_plan) for gauge in seen.gauges] == [
            (gauge.seconds, gauge.metric, gauge.limit, gauge.is_plan) for gauge in peeked.gauges
        ]
        for mine, theirs in zip(seen.gauges, peeked.gauges, strict=True):
            assert mine.used == theirs.used + (mine.metric == "requests"), (mine, theirs)
            assert mine.resets_at is not None
            assert theirs.resets_at is not None
            # A rolling window's end moves with its bucket.
            assert 0 <= mine.resets_at - theirs.resets_at <= 10_800
        assert len(seen.gauges) == 25
        assert (seen.purchased, seen.is_open) == (peeked.purchased, peeked.is_open)


async def test_an_answer_that_was_asked_for_twice_tells_nothing(redis: Redis, tenant: Tenant) -> None:
    one = request_id()
    await admit(redis, tenant, 1, request_id=one)
    assert (await admit(redis, tenant, 1, request_id=one)).told is None


@pytest.mark.parametrize(
    ("used", "limit", "points"),
    [(0, 100, 0), (1, 3, 3333), (99_999, 100_000, 9999), (100, 100, 10_000), (120, 100, 10_000), (-5, 100, 0), (0, 0, 10_000)],
)
def test_all_is_used_only_if_nothing_is_left(used: int, limit: int, points: int) -> None:
    """L7: 120 of 100 are all, and no more than all."""
    assert Gauge(3600, "credits", used, limit, None).basis_points == points
