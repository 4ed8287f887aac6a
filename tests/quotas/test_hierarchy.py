"""Several levels at once: which of them refuse, which is named, and that every one of them comes back."""

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from config import snapshot
from config.redis import Redis, client, sync_client
from quotas import admission, errors, records, views
from quotas.admission import Admission, Amount
from quotas.models import Limit
from tests.quotas import tenancy
from tests.quotas.tenancy import CREDIT, Tenant, credits_of, in_thread, request_id

pytestmark = pytest.mark.django_db(transaction=True)

SCOPES = tuple(Limit.Scope.values)
COUNTED = ("credits", "tokens", "requests")
RATES = tuple(metric for metric in Limit.Metric.values if metric not in COUNTED)
WINDOWS = tuple(window for window in Limit.Window.values if window)
OFFSET = "quotas:test:clock-offset"


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


@pytest.fixture
def later() -> Iterator[Any]:
    """Moves the engine's clock; it stands where it was after the test."""
    yield lambda days: sync_client().set(OFFSET, days * 86_400_000)
    sync_client().delete(OFFSET)


def put(tenant: Tenant, limits: list[tuple[str, str, str, int]]) -> None:
    """These limits and no others, as rows: scope, metric, window, amount."""
    member = tenant.member
    targets: dict[str, dict[str, Any]] = {
        "organization": {},
        "team": {"team": member.team},
        "member": {"member": member},
        "key": {"key": tenant.key.row},
    }
    Limit.objects.filter(organization=tenant.organization).delete()
    Limit.objects.bulk_create(
        Limit(organization=tenant.organization, scope=scope, metric=metric, window=window, amount=amount, **targets[scope])
        for scope, metric, window, amount in limits
    )
    snapshot.bump(tenant.organization.pk)


async def admit(redis: Redis, tenant: Tenant, need: Amount) -> Admission:
    loaded = await in_thread(tenant.snapshot)
    return await admission.admit(redis, loaded, tenant.key_of(loaded), request_id=request_id(), need=need, about=tenant.about)


async def spend(redis: Redis, tenant: Tenant, amount: Amount) -> None:
    admitted = await admit(redis, tenant, amount)
    await admission.settle(redis, admitted.hold, amount=amount, body=tenant.body())


async def test_the_members_level_is_named_where_it_is_the_one_that_is_used_up(redis: Redis, tenant: Tenant) -> None:
    """G1: organization 1,000, team 100, member 10, key 50; the member used 10."""
    amounts = {"organization": 1000, "team": 100, "member": 10, "key": 50}
    await in_thread(put, tenant, [(scope, "credits", "week", amount * CREDIT) for scope, amount in amounts.items()])
    await spend(redis, tenant, credits_of(10))
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(1))
    assert (caught.value.scope, caught.value.scope_name) == ("member", str(tenant.member))


async def test_every_level_that_is_set_is_enforced_in_any_combination(redis: Redis, tenant: Tenant) -> None:
    """G2: each of the four levels null, roomy or used up; refused exactly if one is used up, and the first of these is named."""
    await spend(redis, tenant, credits_of(10))
    for levels in itertools.product((None, 1000, 10), repeat=4):
        rows = [(scope, "credits", "7d", level * CREDIT) for scope, level in zip(SCOPES, levels, strict=True) if level is not None]
        await in_thread(put, tenant, rows)
        full = [scope for scope, level in zip(SCOPES, levels, strict=True) if level == 10]
        if not full:
            admitted = await admit(redis, tenant, credits_of(1))
            await admission.release(redis, admitted.hold)
            continue
        with pytest.raises(errors.LimitReached) as caught:
            await admit(redis, tenant, credits_of(1))
        assert caught.value.scope == full[0], levels
    usage = await in_thread(tenant.usage)
    assert (usage.plan.used, usage.plan.held) == (10 * CREDIT, 0)


async def test_who_has_no_limit_is_told_whose_it_is(redis: Redis, tenant: Tenant) -> None:
    """G4: the team is exhausted by others; the member, who has no limit, is told scope, limit, used and reset."""
    await in_thread(put, tenant, [("team", "credits", "day", 10 * CREDIT)])
    await spend(redis, tenant, credits_of(9.5))
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(1))
    team = tenant.member.team
    assert team is not None
    shown = tenancy.shown(caught.value)
    assert (shown["scope"], shown["scope_name"], shown["limit"], shown["used"]) == ("team", team.name, "10", "9.5")
    assert shown["resets_at"] == (await in_thread(tenant.usage)).limits[0].resets_at
    assert f"the team {team.name} may use 10 credits today; 9.5 used" in caught.value.message


@pytest.mark.parametrize("scope", SCOPES)
async def test_zero_blocks_and_nothing_set_does_not_for_every_metric(redis: Redis, tenant: Tenant, scope: str) -> None:
    """A20: at every level, for every metric and window of the schema."""
    questions = [*itertools.product(COUNTED, WINDOWS), *((metric, "") for metric in RATES)]
    for metric, window in questions:
        await in_thread(put, tenant, [(scope, metric, window, 0)])
        with pytest.raises(errors.LimitReached if metric in COUNTED else errors.RateExceeded) as caught:
            await admit(redis, tenant, credits_of(1))
        assert (caught.value.scope, caught.value.metric, caught.value.window, caught.value.limit) == (scope, metric, window, 0)
        assert caught.value.resets_at is None
    await in_thread(put, tenant, [])
    await spend(redis, tenant, credits_of(1))
    # A free model needs no credits, and passes where none are left.
    await in_thread(put, tenant, [(scope, "credits", window, 0) for window in WINDOWS])
    await spend(redis, tenant, Amount(0, 1))


@pytest.mark.parametrize("scope", SCOPES)
async def test_every_scope_metric_and_window_is_unblocked_by_its_boundary(
    redis: Redis, tenant: Tenant, scope: str, later: Any
) -> None:
    """E6: all that the schema can limit stands at 100 %; past every boundary all of it is free again, without a reset job."""
    used = Amount(2 * CREDIT, 2000)
    await spend(redis, tenant, used)
    full = {"credits": used.credits, "tokens": used.tokens, "requests": 1}
    rows = [(scope, metric, window, full[metric]) for metric, window in itertools.product(COUNTED, WINDOWS)]
    for row in rows:
        await in_thread(put, tenant, [row])
        with pytest.raises(errors.LimitReached) as caught:
            await admit(redis, tenant, Amount(1, 1))
        assert (caught.value.scope, caught.value.metric, caught.value.window) == row[:3]
    await in_thread(put, tenant, [*rows, (scope, "requests_per_minute", "", 1), (scope, "requests_per_second", "", 1)])
    later(32)
    await spend(redis, tenant, used)
    # And what is used now counts: the next one is refused by the first of them.
    with pytest.raises(errors.LimitReached):
        await admit(redis, tenant, Amount(1, 1))
    usage = await in_thread(tenant.usage)
    assert all(state.used == full[state.metric] for state in usage.limits if state.metric in COUNTED)


async def test_a_limit_made_later_counts_its_window_and_nothing_from_before(redis: Redis, tenant: Tenant, later: Any) -> None:
    """E4: 80 used in the week before; a weekly 50 today counts only what this week used."""
    later(-8)
    await spend(redis, tenant, credits_of(80))
    later(0)
    await spend(redis, tenant, credits_of(5))
    await in_thread(put, tenant, [("member", "credits", window, 50 * CREDIT) for window in ("week", "7d", "day", "5h")])
    await spend(redis, tenant, credits_of(45))
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(0.1))
    assert caught.value.used == 50 * CREDIT
    await in_thread(put, tenant, [("member", "credits", "30d", 130 * CREDIT)])
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(0.1))
    assert caught.value.used == 130 * CREDIT


@pytest.mark.parametrize("scope", SCOPES)
async def test_what_a_settled_request_cost_is_what_the_limit_counts(redis: Redis, tenant: Tenant, scope: str) -> None:
    """A23: limit 30, one settled request of 45: the next is refused, at every level, for credits and for tokens."""
    await in_thread(put, tenant, [(scope, "credits", "5h", 30 * CREDIT), (scope, "tokens", "day", 44_000)])
    admitted = await admit(redis, tenant, credits_of(1))
    await admission.settle(redis, admitted.hold, amount=credits_of(45), body=tenant.body())
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(0.1))
    assert (caught.value.scope, caught.value.metric, caught.value.used) == (scope, "credits", 45 * CREDIT)
    await in_thread(put, tenant, [(scope, "tokens", "day", 44_000)])
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(0.1))
    assert (caught.value.metric, caught.value.used) == ("tokens", 45_000)


async def test_requests_per_second_are_refused_as_a_rate(redis: Redis, tenant: Tenant) -> None:
    """L8 for requests per second: 429 rate_limit_exceeded with a Retry-After of at least a second."""
    await in_thread(put, tenant, [("key", "requests_per_second", "", 2)])
    for _ in range(4):
        await admit(redis, tenant, credits_of(0.1))
    with pytest.raises(errors.RateExceeded) as caught:
        await admit(redis, tenant, credits_of(0.1))
    error = caught.value
    assert (error.status, error.code, error.scope, error.metric, error.limit) == (
        429,
        "rate_limit_exceeded",
        "key",
        "requests_per_second",
        2,
    )
    assert 1 <= error.retry_after <= 2
    assert "may make 2 per second" in error.message


def test_every_metric_of_the_schema_is_one_of_the_engines() -> None:
    """The kind of E6: what can be set and is not asked would never be enforced."""
    assert set(views.METRICS) == set(Limit.Metric.values)
    assert len(set(views.METRICS.values())) == len(views.METRICS)
    assert records.PLAN_PAID not in views.METRICS.values()
