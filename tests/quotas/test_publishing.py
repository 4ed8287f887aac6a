"""What is granted reaches the counters: on the very next request, after a crash, and after a loss."""

from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio

from billing import ledger, purchases
from billing.models import CreditLot, Plan
from config.clock import utc_now
from config.redis import Redis, client, sync_client
from quotas import admission, engine, errors, publishing, records, sweep, tasks
from quotas.admission import Admission, Amount
from tests import factories
from tests.billing.credit_books import assert_books_agree
from tests.quotas import tenancy
from tests.quotas.tenancy import Tenant, in_thread, request_id

pytestmark = pytest.mark.django_db(transaction=True)


@pytest_asyncio.fixture
async def redis() -> AsyncIterator[Redis]:
    made = client()
    yield made
    await admission.finish(made, timeout_seconds=2)
    await made.close()


def make(quota: int = 1000) -> Tenant:
    """A tenant whose plan grants `quota` micro-credits and draws purchased credits beyond it."""
    plan = Plan.objects.create(
        slug=factories.unique("plan"), name="Plan", reset_period="monthly", base_quota=quota, overage_policy="purchased"
    )
    return tenancy.make(plan=plan.slug)


@pytest_asyncio.fixture
async def tenant() -> Tenant:
    made: Tenant = await in_thread(make)
    return made


async def admit(redis: Redis, tenant: Tenant, credits: int, loaded: Any = None) -> Admission:
    loaded = loaded or await in_thread(tenant.snapshot)
    return await admission.admit(
        redis, loaded, tenant.key_of(loaded), request_id=request_id(), need=Amount(credits, 1), about=tenant.about
    )


async def refused(redis: Redis, tenant: Tenant, credits: int, loaded: Any = None) -> dict[str, Any]:
    with pytest.raises(errors.LimitReached) as answer:
        await admit(redis, tenant, credits, loaded)
    return answer.value.facts


async def settle(redis: Redis, tenant: Tenant, admitted: Admission, credits: int) -> tuple[int | None, ...]:
    settled = await admission.settle(redis, admitted.hold, amount=Amount(credits, 1), body=tenant.body())
    return (settled.plan, settled.purchased, settled.overage, settled.overdraft)


def buy(tenant: Tenant, amount: int) -> None:
    purchases.complete(
        "shop",
        factories.unique("pay"),
        organization=tenant.organization,
        amount=amount,
        price=Decimal(10),
        currency="EUR",
        now=utc_now(),
    )


def counted(tenant: Tenant) -> tuple[int, int, int]:
    """What the counters hold: spent of purchased credits, granted in all, grant version."""
    raw: Any = sync_client().hget(engine.counters_key(tenant.organization.pk), "$")
    meta = records.unpack(raw)
    return (meta[3], meta[5], meta[6])


async def test_a_purchase_raises_what_the_very_next_request_may_use(redis: Redis, tenant: Tenant) -> None:
    """The worked vector V3 by the front door, on the snapshot that was held before the purchase."""
    loaded = await in_thread(tenant.snapshot)
    a = await admit(redis, tenant, 900, loaded)
    assert (await refused(redis, tenant, 450, loaded))["limit"] == "0.001"
    await in_thread(buy, tenant, 350)
    b = await admit(redis, tenant, 450, loaded)
    facts = await refused(redis, tenant, 1, loaded)
    assert (facts["scope"], facts["limit"], facts["used"], facts["held"]) == ("plan", "0.001", "0", "0.00135")
    assert await settle(redis, tenant, a, 700) == (700, 0, 0, 0)
    assert await settle(redis, tenant, b, 800) == (300, 350, 0, 150)
    await refused(redis, tenant, 1, loaded)
    await admit(redis, tenant, 0, loaded)
    await in_thread(tenant.drain)
    assert (await in_thread(ledger.balance, tenant.organization.pk)).left == 0
    await in_thread(assert_books_agree, tenant.organization.pk)


async def test_lost_counters_are_rebuilt_with_what_was_granted_and_spent(redis: Redis, tenant: Tenant) -> None:
    """Nobody gets free credits from deleted keys, and nobody loses what was bought."""
    await in_thread(buy, tenant, 300)
    assert await settle(redis, tenant, await admit(redis, tenant, 1100), 1100) == (1000, 100, 0, 0)
    await in_thread(tenant.drain)
    before = counted(tenant)
    assert before == (100, 300, 1)
    await in_thread(tenant.lose_everything)
    await refused(redis, tenant, 201)
    assert counted(tenant) == before
    assert await settle(redis, tenant, await admit(redis, tenant, 200), 200) == (0, 200, 0, 0)


async def test_what_a_crash_left_unpublished_is_pushed(redis: Redis, tenant: Tenant) -> None:
    pushed = sweep.Versions()
    await admit(redis, tenant, 1)
    await in_thread(pushed.push, sync_client())
    await in_thread(buy, tenant, 300)
    key = engine.counters_key(tenant.organization.pk)
    raw: Any = sync_client().hget(key, "$")
    unpublished = records.pack([*records.unpack(raw)[:5], 0, 0])
    sync_client().hset(key, "$", unpublished)
    await refused(redis, tenant, 1001)
    await in_thread(pushed.push, sync_client())
    assert counted(tenant) == (0, 300, 1)
    await admit(redis, tenant, 1299)
    # A server that was restored from older data hears of it with the next full push.
    sync_client().hset(key, "$", unpublished)
    await in_thread(pushed.push, sync_client())
    assert counted(tenant) == (0, 0, 0)
    await in_thread(pushed.push, sync_client(), everything=True)
    assert counted(tenant) == (0, 300, 1)


async def test_an_older_number_changes_nothing(redis: Redis, tenant: Tenant) -> None:
    await admit(redis, tenant, 1)
    await in_thread(buy, tenant, 300)
    keys = engine.keys(tenant.organization.pk)
    engine.PUBLISH.run(sync_client(), keys, publishing.publication("", ledger.Granted(version=1, total=999)))
    engine.PUBLISH.run(sync_client(), keys, publishing.publication("", ledger.Granted(version=0, total=0)))
    assert counted(tenant) == (0, 300, 1)


async def test_what_fails_gives_all_back(redis: Redis) -> None:
    """D8: allowance 10, a hold of 2.26, the job fails: 10 remain, 0 are used, the total is 10; purchased credits likewise."""
    tenant: Tenant = await in_thread(make, 10_000_000)
    await in_thread(buy, tenant, 5_000_000)
    for _ in range(3):
        admitted = await admit(redis, tenant, 2_260_000)
        assert (await in_thread(tenant.usage)).plan.held == 2_260_000
        await admission.release(redis, admitted.hold)
        assert await settle(redis, tenant, await admit(redis, tenant, 12_260_000), 0) == (0, 0, 0, 0)
    usage = await in_thread(tenant.usage)
    assert (usage.plan.quota, usage.plan.used, usage.plan.held) == (10_000_000, 0, 0)
    await in_thread(tenant.drain)
    assert counted(tenant) == (0, 5_000_000, 1)
    balance = await in_thread(ledger.balance, tenant.organization.pk)
    assert (balance.granted, balance.drawn, balance.left) == (5_000_000, 0, 5_000_000)
    assert (await in_thread(ledger.balances, tenant.organization.pk))["allowance"] == 10_000_000


def take_back(tenant: Tenant, amount: int) -> None:
    ledger.adjust(tenant.organization, -amount, reason="Taken back", actor=None, now=utc_now())


async def test_what_is_taken_back_while_a_request_runs_is_its_overdraft(redis: Redis, tenant: Tenant) -> None:
    await in_thread(buy, tenant, 300)
    running = await admit(redis, tenant, 1300)
    await in_thread(take_back, tenant, 300)
    assert await settle(redis, tenant, running, 1200) == (1000, 0, 0, 200)
    await refused(redis, tenant, 1)
    await in_thread(tenant.drain)
    await in_thread(assert_books_agree, tenant.organization.pk)


async def test_what_is_taken_back_before_the_drain_knew_of_its_use_is_owed(redis: Redis, tenant: Tenant) -> None:
    """Counters and lots agree again after the next purchase."""
    await in_thread(buy, tenant, 300)
    assert await settle(redis, tenant, await admit(redis, tenant, 1200), 1200) == (1000, 200, 0, 0)
    await in_thread(take_back, tenant, 300)
    await in_thread(tenant.drain)
    assert (await in_thread(ledger.balance, tenant.organization.pk)).left == -200
    await in_thread(buy, tenant, 500)
    assert counted(tenant) == (200, 500, 3)
    assert (await in_thread(ledger.balance, tenant.organization.pk)).left == 300
    await refused(redis, tenant, 301)
    await admit(redis, tenant, 300)
    await in_thread(assert_books_agree, tenant.organization.pk)


async def test_credits_expire_once_the_drain_has_passed_their_expiry(redis: Redis, tenant: Tenant) -> None:
    await in_thread(buy, tenant, 300)
    assert await settle(redis, tenant, await admit(redis, tenant, 1100), 1100) == (1000, 100, 0, 0)

    def expire() -> list[tuple[int, int, int]]:
        lots = CreditLot.objects.filter(organization=tenant.organization)
        lots.update(expires_at=utc_now() - timedelta(milliseconds=1))
        tasks.expire_credits()
        return list(lots.values_list("amount", "drawn", "expired"))

    # The use stands in the stream: what was drawn in time must be drawn from the lot first.
    assert await in_thread(expire) == [(300, 0, 0)]
    await in_thread(tenant.drain)
    assert await in_thread(expire) == [(300, 100, 200)]
    assert counted(tenant) == (100, 100, 2)
    await refused(redis, tenant, 1)
    assert await in_thread(expire) == [(300, 100, 200)]
    await in_thread(assert_books_agree, tenant.organization.pk)


async def test_removing_an_overdrawn_key_frees_nothing(redis: Redis, tenant: Tenant) -> None:
    """D7: what the key used stays used; the tenant's credits are what they were."""
    from accounts import keys

    await in_thread(buy, tenant, 100)
    assert await settle(redis, tenant, await admit(redis, tenant, 1050), 1300) == (1000, 100, 0, 200)
    before = counted(tenant)
    await in_thread(keys.revoke, tenant.key.row, by=None, now=utc_now())
    other = Tenant(tenant.organization, tenant.member, await in_thread(factories.api_key, tenant.member))
    await refused(redis, other, 1)
    assert counted(tenant) == before == (100, 100, 1)
