"""Limits of some models: charged at once, enforced once what was used before has been added. Real rows, real counters."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from django.db.models.deletion import ProtectedError

from accounts.models import AuditEvent
from billing.models import Plan, RateAlias, UsageRecord
from config import scope, snapshot
from config.clock import utc_now
from config.redis import Redis, client
from quotas import admission, charging, errors, filters, limits, rebuild, reconcile, records, sweep, tasks
from quotas.admission import Admission
from quotas.errors import LimitsError
from quotas.models import Limit, ModelFilter
from tests import factories
from tests.quotas import tenancy
from tests.quotas.tenancy import CREDIT, Tenant, credits_of, in_thread, request_id

pytestmark = pytest.mark.django_db(transaction=True)

BIG, SMALL = "gpt-5.5", "gpt-5.4-mini"


@pytest_asyncio.fixture
async def redis() -> AsyncIterator[Redis]:
    made = client()
    yield made
    await admission.finish(made, timeout_seconds=2)
    await made.close()


@pytest_asyncio.fixture
async def tenant() -> Tenant:
    made: Tenant = await in_thread(tenancy.make, team=True)
    return made


async def admit(redis: Redis, tenant: Tenant, amount: float, model: str) -> Admission:
    loaded = await in_thread(tenant.snapshot)
    about = tenant.body(status="orphaned", model_asked=model)
    return await admission.admit(
        redis,
        loaded,
        tenant.key_of(loaded),
        request_id=request_id(),
        need=credits_of(amount),
        about=about,
        model=model,
    )


async def spend(redis: Redis, tenant: Tenant, amount: float, model: str) -> None:
    admitted = await admit(redis, tenant, amount, model)
    body = tenant.body(model_asked=model)
    assert (await admission.settle(redis, admitted.hold, amount=credits_of(amount), body=body)).outcome == "OK"


def limit(tenant: Tenant, amount: str, *models: str, scope: str = "member", window: str = "7d", **fields: Any) -> Any:
    user = tenant.member.user
    assert user is not None
    of = {"member": user.email, "organization": None, "key": tenant.key.row.public_id}[scope]
    wanted = {"metric": "credits", "window": window, "amount": amount, "models": models, **fields}
    return limits.set_limit(tenant.organization, scope=scope, of=of, **wanted)


async def refused(redis: Redis, tenant: Tenant, amount: float, model: str) -> errors.LimitReached:
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, amount, model)
    return caught.value


def fill(tenant: Tenant) -> list[int]:
    return filters.fill(tenant.organization.pk)


async def test_a_limit_of_some_models_holds_these_and_no_other_once_their_earlier_use_was_added(
    redis: Redis, tenant: Tenant
) -> None:
    """E4 and G4 for models: what was used before counts, and the refusal names the limit."""
    await spend(redis, tenant, 6, BIG)
    await spend(redis, tenant, 50, SMALL)
    made = await in_thread(limit, tenant, "10", BIG)
    # Starting: shown, and nothing is refused by it.
    state = next(one for one in (await in_thread(tenant.usage)).limits if one.uuid == str(made))
    assert (state.is_starting, state.models) == (True, BIG)
    await spend(redis, tenant, 1, BIG)
    (activated,) = await in_thread(fill, tenant)
    assert await in_thread(fill, tenant) == []
    state = next(one for one in (await in_thread(tenant.usage)).limits if one.uuid == str(made))
    assert (state.is_starting, state.used, state.remaining) == (False, 7 * CREDIT, 3 * CREDIT)
    error = await refused(redis, tenant, 3.5, BIG)
    assert (error.scope, error.window, error.limit, error.used) == ("member", "7d", 10 * CREDIT, 7 * CREDIT)
    assert error.message.startswith(f"Limit reached: the member {tenant.member} may use 10 credits in the last 7 days for {BIG};")
    await spend(redis, tenant, 3, BIG)
    await refused(redis, tenant, 0.1, BIG)
    await spend(redis, tenant, 20, SMALL)
    told = await in_thread(
        lambda: list(AuditEvent.objects.filter(organization=tenant.organization, object_type="filter").order_by("id"))
    )
    assert [event.action for event in told] == ["filter.made", "filter.active"]
    assert (await in_thread(ModelFilter.objects.get, pk=activated)).model_names == [BIG]


@pytest.mark.parametrize("window", [name for name in Limit.Window.values if name])
@pytest.mark.parametrize("scope", ["organization", "member", "key"])
async def test_every_window_of_a_filter_holds_what_was_used_before(redis: Redis, tenant: Tenant, window: str, scope: str) -> None:
    """E4: each ring, the days and the period are filled."""
    await spend(redis, tenant, 6, BIG)
    await in_thread(limit, tenant, "10", BIG, scope=scope, window=window)
    assert len(await in_thread(fill, tenant)) == 1
    error = await refused(redis, tenant, 4.5, BIG)
    assert (error.scope, error.window, error.used) == (scope, window, 6 * CREDIT)
    await spend(redis, tenant, 4, BIG)


async def test_a_hold_from_before_the_filter_keeps_it_starting_until_it_has_ended(redis: Redis, tenant: Tenant) -> None:
    early = await admit(redis, tenant, 5, BIG)
    other = await admit(redis, tenant, 5, SMALL)
    await in_thread(limit, tenant, "10", BIG)
    assert await in_thread(fill, tenant) == []
    await admission.settle(redis, early.hold, amount=credits_of(8), body=tenant.body(model_asked=BIG))
    assert len(await in_thread(fill, tenant)) == 1
    assert (await refused(redis, tenant, 2.5, BIG)).used == 8 * CREDIT
    await admission.settle(redis, other.hold, amount=credits_of(1), body=tenant.body(model_asked=SMALL))


async def test_an_orphan_keeps_a_filter_starting_while_it_may_be_amended(redis: Redis, tenant: Tenant) -> None:
    """Its amendment is booked where its hold was counted, which is not in the filter's records."""
    early = await admit(redis, tenant, 5, BIG)
    probe = tenant.probe
    await in_thread(sweep.sweep_organization, probe.redis, tenant.organization.pk, now_ms=early.hold.ack + 3_600_000)
    assert [event.outcome for event in await in_thread(probe.events)] == ["ORPHANED"]
    await in_thread(limit, tenant, "10", BIG)
    assert await in_thread(fill, tenant) == []
    await admission.settle(redis, early.hold, amount=credits_of(8), body=tenant.body(model_asked=BIG))
    assert len(await in_thread(fill, tenant)) == 1
    assert (await refused(redis, tenant, 2.5, BIG)).used == 8 * CREDIT


async def test_requests_that_run_while_a_filter_is_filled_count_once(redis: Redis, tenant: Tenant) -> None:
    await spend(redis, tenant, 1, BIG)
    await in_thread(limit, tenant, "100", BIG)
    running = [await admit(redis, tenant, 2, BIG) for _ in range(3)]
    await admission.settle(redis, running[0].hold, amount=credits_of(4), body=tenant.body(model_asked=BIG))
    assert len(await in_thread(fill, tenant)) == 1
    await admission.settle(redis, running[1].hold, amount=credits_of(0.5), body=tenant.body(model_asked=BIG))
    await admission.release(redis, running[2].hold)
    (state,) = (await in_thread(tenant.usage)).limits
    assert (state.used, state.held) == (5_500_000, 0)
    one = (await in_thread(tenant.snapshot)).quotas.filters[0].filter_id
    assert tenant.probe.record(f"o~f{one}").used[0] == (5_500_000, 5500, 3)


async def test_other_names_of_a_model_match_as_they_did_when_they_were_asked_for(redis: Redis, tenant: Tenant) -> None:
    """The kind of B8: the name that was asked for is looked up, as of then, in admission and log alike."""
    alias = f"weir-{request_id()[-8:]}"
    now = utc_now()
    await in_thread(
        RateAlias.objects.create, alias=alias, model=BIG, valid_from=now - timedelta(days=1), valid_to=now + timedelta(days=1)
    )
    await spend(redis, tenant, 2, alias)
    await spend(redis, tenant, 3, f"{BIG}-2026-09-01")
    await in_thread(limit, tenant, "10", alias)
    assert len(await in_thread(fill, tenant)) == 1
    for name in (alias, BIG, f"{BIG}-2026-10-02"):
        assert (await refused(redis, tenant, 5.5, name)).used == 5 * CREDIT
    loaded = await in_thread(tenant.snapshot)
    assert [len(charging.matching(loaded, alias, int(now.timestamp()) + days * 86400)) for days in (-2, 0, 2)] == [0, 1, 0]


async def test_rebuilt_counters_hold_what_filters_counted(redis: Redis, tenant: Tenant) -> None:
    await spend(redis, tenant, 6, BIG)
    await in_thread(limit, tenant, "10", BIG)
    await spend(redis, tenant, 1, BIG)
    await in_thread(fill, tenant)
    await in_thread(tenant.lose_everything)
    assert (await refused(redis, tenant, 3.5, BIG)).used == 7 * CREDIT
    await spend(redis, tenant, 3, BIG)
    await in_thread(tenant.drain)
    report = await in_thread(reconcile.reconcile, tenant.organization.pk)
    assert report.differences == ()


async def test_another_set_of_models_is_another_filter_with_counters_of_its_own(redis: Redis, tenant: Tenant) -> None:
    await spend(redis, tenant, 6, BIG)
    first = await in_thread(limit, tenant, "10", BIG)
    both = await in_thread(limit, tenant, "20", SMALL, BIG)
    again = await in_thread(limit, tenant, "12", BIG, BIG)
    assert first == again != both
    assert len(await in_thread(fill, tenant)) == 2
    rows = await in_thread(lambda: list(ModelFilter.objects.filter(organization=tenant.organization)))
    assert [row.model_names for row in rows] == [[BIG], sorted([BIG, SMALL])]
    await in_thread(limit, tenant, "none", BIG)
    later = utc_now() + filters.UNUSED + timedelta(minutes=1)
    await in_thread(filters.keep, tenant.organization.pk, now=later)
    left = await in_thread(lambda: list(ModelFilter.objects.filter(organization=tenant.organization)))
    assert [row.pk for row in left] == [rows[1].pk]
    with pytest.raises(ProtectedError):
        await in_thread(left[0].delete)
    # The limit of both still holds, with what it has counted.
    assert (await refused(redis, tenant, 14.5, SMALL)).used == 6 * CREDIT


def test_a_model_that_nobody_knows_makes_no_limit() -> None:
    """A19's kind: a misspelt name would be a limit that never holds."""
    tenant = tenancy.make()
    for models in (["gpt-5.5", "gtp-5.5"], [" "]):
        with pytest.raises(LimitsError, match="no model"):
            limit(tenant, "10", *models)
    assert not Limit.objects.filter(organization=tenant.organization).exists()
    assert not ModelFilter.objects.filter(organization=tenant.organization).exists()


def test_an_organization_has_a_bounded_number_of_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "MOST_FILTERS", 1)
    tenant = tenancy.make()
    limit(tenant, "10", BIG)
    limit(tenant, "10", BIG, scope="key")
    with pytest.raises(LimitsError, match="At most 1 different"):
        limit(tenant, "10", SMALL)


# ------------------------------------------------------------------------------------------------------- rolling plans


def rolling_plan(slug: str, quota: int, *, strategy: str = "sliding_window", overage: str = "block") -> Plan:
    plus = Plan.objects.get(slug="plus")
    plus.pk, plus.slug, plus.name = None, slug, slug
    plus.base_quota, plus.quota_strategy, plus.overage_policy = quota, strategy, overage
    plus._state.adding = True
    plus.save()
    return plus


async def rolling(quota: int, **fields: Any) -> Tenant:
    slug = factories.unique("rolling")
    await in_thread(rolling_plan, slug, quota, **fields)
    made: Tenant = await in_thread(tenancy.make, plan=slug)
    return made


def start(tenant: Tenant) -> list[int]:
    filters.keep(tenant.organization.pk, now=utc_now())
    return filters.fill(tenant.organization.pk)


@pytest.mark.parametrize("strategy", ["sliding_window", "sliding_log"])
async def test_a_rolling_plan_counts_what_it_paid_before_it_was_enforced(redis: Redis, strategy: str) -> None:
    tenant = await rolling(100 * CREDIT, strategy=strategy)
    await spend(redis, tenant, 30, BIG)
    assert len(await in_thread(start, tenant)) == 1
    await spend(redis, tenant, 20, BIG)
    loaded = await in_thread(tenant.snapshot)
    own = charging.plan_record(loaded.quotas.filters[0])
    assert tenant.probe.record(own).used[0] == (50 * CREDIT, 50_000, 2)
    usage = await in_thread(tenant.usage)
    assert (usage.plan.rolled, usage.plan.remaining) == (50 * CREDIT, 50 * CREDIT)
    # A period that has just begun does not give the quota again.
    await in_thread(begin_anew, tenant)
    error = await refused(redis, tenant, 51, BIG)
    assert (error.scope, error.used, error.limit) == ("plan", 50 * CREDIT, 100 * CREDIT)
    assert "in any 7 days" in error.message
    assert error.resets_at is not None
    week = 7 * 86400
    now = int(utc_now().timestamp())
    # By the second it is when the first request leaves; by buckets at most one bucket later.
    assert now + week - 60 <= error.resets_at <= now + week + (60 if strategy == "sliding_log" else 10_800)
    await spend(redis, tenant, 50, BIG)
    await refused(redis, tenant, 0.001, BIG)
    await in_thread(tenant.drain)
    await in_thread(tenant.lose_everything)
    assert (await refused(redis, tenant, 0.001, BIG)).used == 100 * CREDIT


def begin_anew(tenant: Tenant) -> None:
    """The funding entry of a period that has used nothing, in place of this one: what the boundary does, without waiting a week."""
    probe = tenant.probe
    values = probe.field("f:o")
    assert values is not None
    values[4] = 0
    probe.redis.hset(probe.keys[0], "f:o", records.pack(values))


async def test_a_plan_that_rolls_no_longer_keeps_no_counters(redis: Redis) -> None:
    tenant = await rolling(100 * CREDIT)
    await in_thread(start, tenant)
    await in_thread(Plan.objects.filter(subscriptions__organization=tenant.organization).update, quota_strategy="fixed_window")
    await in_thread(snapshot.bump, tenant.organization.pk)
    await spend(redis, tenant, 5, BIG)
    await in_thread(filters.keep, tenant.organization.pk, now=utc_now())
    assert (await in_thread(tenant.snapshot)).quotas.filters == ()
    usage = await in_thread(tenant.usage)
    assert (usage.plan.rolled, usage.plan.used) == (None, 5 * CREDIT)


async def test_a_seats_use_is_not_the_organizations(redis: Redis) -> None:
    tenant = await rolling(100 * CREDIT)
    seat = await in_thread(factories.member, tenant.organization)
    key = await in_thread(factories.api_key, seat)
    await in_thread(factories.subscription, tenant.organization, plan="plus", member=seat)
    seated = Tenant(tenant.organization, seat, key)
    await in_thread(start, tenant)
    await spend(redis, seated, 90, BIG)
    await spend(redis, tenant, 60, BIG)
    usage = await in_thread(tenant.usage)
    assert (usage.plan.rolled, usage.plan.used) == (60 * CREDIT, 60 * CREDIT)
    assert (await in_thread(UsageRecord.objects.filter(organization=tenant.organization).count)) <= 2
    assert await in_thread(rebuild.rebuild, tenant.organization.pk)


async def test_the_minutes_task_makes_fills_and_activates_in_the_scope_of_each_organization(redis: Redis, tenant: Tenant) -> None:
    made = await rolling(100 * CREDIT)
    await spend(redis, tenant, 6, BIG)
    await in_thread(limit, tenant, "10", BIG)

    def run() -> int:
        with scope.nothing():
            return tasks.fill_filters()

    assert await in_thread(run) >= 2
    for one in (tenant, made):
        assert [row.is_filled for row in (await in_thread(one.snapshot)).quotas.filters] == [True]
    assert (await refused(redis, tenant, 4.5, BIG)).used == 6 * CREDIT


# ----------------------------------------------------------------------------------------------- logs by the second


async def test_a_limit_that_becomes_exact_knows_what_was_used_before(redis: Redis, tenant: Tenant) -> None:
    """sliding_log is filled from the log when it is chosen, and again when counters are lost."""
    await spend(redis, tenant, 6, BIG)
    await in_thread(limit, tenant, "10", window="5h", strategy="sliding_log")
    await spend(redis, tenant, 1, BIG)
    member = f"m{tenant.member.pk}"

    def seconds() -> list[str]:
        probe = tenant.probe
        names = [name.decode() for name in probe.redis.zrange(probe.keys[6], 0, -1)]  # type: ignore[union-attr]
        return sorted(probe.cell(name) or "" for name in names if name.startswith(f"{member}|s"))

    assert await in_thread(fill, tenant) == []
    total = [sum(int(cell.split()[0]) for cell in await in_thread(seconds))]
    await in_thread(tenant.drain)
    await in_thread(tenant.lose_everything)
    error = await refused(redis, tenant, 3.5, BIG)
    total.append(sum(int(cell.split()[0]) for cell in await in_thread(seconds)))
    assert total == [7 * CREDIT, 7 * CREDIT]
    now = int(utc_now().timestamp())
    assert error.used == 7 * CREDIT
    assert error.resets_at is not None
    # The second at which the first request leaves, not the end of its bucket.
    assert now + 18_000 - 60 <= error.resets_at <= now + 18_000
    await in_thread(tenant.lose_everything)
    await in_thread(limit, tenant, "10", window="5h", strategy="")
    await spend(redis, tenant, 1, BIG)
    assert await in_thread(seconds) == []
