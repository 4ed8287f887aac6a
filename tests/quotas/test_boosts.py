"""More of a limit for a time: on the very next request, until it ends, or is ended."""

from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from accounts.models import AuditEvent
from config.clock import utc_now
from config.redis import Redis, client, sync_client
from quotas import admission, engine, errors, limits, views
from quotas.admission import Admission
from quotas.errors import LimitsError
from quotas.models import Limit, LimitBoost
from tests.quotas import tenancy
from tests.quotas.tenancy import CREDIT, Tenant, credits_of, in_thread, request_id

pytestmark = pytest.mark.django_db(transaction=True)

OFFSET = "quotas:test:clock-offset"


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


@pytest.fixture
def later() -> Iterator[Any]:
    yield lambda seconds: sync_client().set(OFFSET, seconds * 1000)
    sync_client().delete(OFFSET)


async def admit(redis: Redis, tenant: Tenant, amount: float) -> Admission:
    loaded = await in_thread(tenant.snapshot)
    return await admission.admit(
        redis, loaded, tenant.key_of(loaded), request_id=request_id(), need=credits_of(amount), about=tenant.about
    )


async def spend(redis: Redis, tenant: Tenant, amount: float) -> None:
    admitted = await admit(redis, tenant, amount)
    await admission.settle(redis, admitted.hold, amount=credits_of(amount), body=tenant.body())


def boost(tenant: Tenant, uuid: Any, extra: int, until: datetime) -> LimitBoost:
    row = Limit.objects.get(uuid=uuid)
    return limits.boost(row, extra=extra * CREDIT, until=until, reason="release week", by=tenant.member.user)


async def test_a_boost_holds_on_the_very_next_request_until_it_ends(redis: Redis, tenant: Tenant, later: Any) -> None:
    made = await in_thread(tenant.set_limit, "10", window="30d")
    await spend(redis, tenant, 10)
    with pytest.raises(errors.LimitReached):
        await admit(redis, tenant, 1)
    until = utc_now() + timedelta(hours=2)
    await in_thread(boost, tenant, made, 5, until)
    await spend(redis, tenant, 3)
    (state,) = (await in_thread(tenant.usage)).limits
    assert (state.limit, state.used, state.remaining) == (15 * CREDIT, 13 * CREDIT, 2 * CREDIT)
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, 3)
    # The limit that is told is the one that holds now, boost included.
    assert (caught.value.limit, caught.value.used, caught.value.limit_uuid) == (15 * CREDIT, 13 * CREDIT, str(made))
    # The same snapshot, two hours later: nobody had to change anything.
    loaded = await in_thread(tenant.snapshot)
    view = views.view_for(loaded, tenant.key_of(loaded), int(utc_now().timestamp()))
    assert view.valid_until <= int(until.timestamp())
    later(7200)
    with pytest.raises(errors.LimitReached) as caught:
        await admission.admit(
            redis, loaded, tenant.key_of(loaded), request_id=request_id(), need=credits_of(0.1), about=tenant.about
        )
    assert (caught.value.limit, caught.value.used) == (10 * CREDIT, 13 * CREDIT)


async def test_a_boost_that_is_ended_holds_no_more(redis: Redis, tenant: Tenant) -> None:
    made = await in_thread(tenant.set_limit, "10")
    given = await in_thread(boost, tenant, made, 5, utc_now() + timedelta(days=1))
    await spend(redis, tenant, 12)
    await in_thread(limits.end_boost, given, by=None, now=utc_now())
    await in_thread(limits.end_boost, given, by=None, now=utc_now())
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, 0.1)
    assert caught.value.limit == 10 * CREDIT
    told = await in_thread(
        lambda: list(AuditEvent.objects.filter(organization=tenant.organization, object_id=str(made)).order_by("id"))
    )
    assert [event.action for event in told] == ["limit.set", "limit.boosted", "limit.boost_ended"]
    assert tenant.member.user is not None
    assert told[1].actor_id == tenant.member.user.pk


async def test_boosts_add_up_also_on_a_limit_of_nothing(redis: Redis, tenant: Tenant) -> None:
    made = await in_thread(tenant.set_limit, "0")
    with pytest.raises(errors.LimitReached):
        await admit(redis, tenant, 1)
    for extra in (2, 3):
        await in_thread(boost, tenant, made, extra, utc_now() + timedelta(days=extra))
    await spend(redis, tenant, 5)
    with pytest.raises(errors.LimitReached):
        await admit(redis, tenant, 0.1)


async def test_every_metric_can_be_boosted(redis: Redis, tenant: Tenant) -> None:
    for metric, window in (("concurrent", ""), ("requests_per_minute", ""), ("requests_per_second", ""), ("requests", "day")):
        made = await in_thread(tenant.set_limit, "0", metric=metric, window=window)
        with pytest.raises(errors.Refused):
            await admit(redis, tenant, 0.1)
        row = await in_thread(Limit.objects.get, uuid=made)
        await in_thread(limits.boost, row, extra=100, until=utc_now() + timedelta(days=1), reason="", by=None)
        await spend(redis, tenant, 0.1)


def test_what_cannot_be_a_boost_changes_nothing() -> None:
    tenant = tenancy.make()
    row = Limit.objects.get(uuid=tenant.set_limit("10"))
    tomorrow = utc_now() + timedelta(days=1)
    for extra, until, said in (
        (0, tomorrow, "above 0"),
        (-5, tomorrow, "above 0"),
        (5, utc_now(), "passed"),
        (engine.MOST, tomorrow, "more than"),
    ):
        with pytest.raises(LimitsError, match=said):
            limits.boost(row, extra=extra, until=until, reason="", by=None)
    assert not LimitBoost.objects.filter(limit=row).exists()
