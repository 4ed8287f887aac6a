"""Admission through its Python door: real rows, real counters."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from billing import subscriptions
from billing.models import Plan, Subscription
from config.clock import utc_now
from config.redis import Redis, client, sync_client
from quotas import admission, engine, errors, holds, sweep
from quotas.admission import Admission, Amount
from tests import factories
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


async def admit(redis: Redis, tenant: Tenant, need: Amount, **fields: Any) -> Admission:
    loaded = await in_thread(tenant.snapshot)
    return await admission.admit(
        redis, loaded, tenant.key_of(loaded), **{"request_id": request_id(), "need": need, "about": tenant.about, **fields}
    )


async def test_a_request_is_held_then_settled_at_its_cost(redis: Redis, tenant: Tenant) -> None:
    admitted = await admit(redis, tenant, credits_of(5))
    usage = await in_thread(tenant.usage)
    assert (usage.plan.used, usage.plan.held, usage.live) == (0, 5 * CREDIT, 1)
    settled = await admission.settle(redis, admitted.hold, amount=credits_of(2), body=tenant.body())
    assert (settled.outcome, settled.plan, settled.overdraft) == ("OK", 2 * CREDIT, 0)
    usage = await in_thread(tenant.usage)
    assert (usage.plan.used, usage.plan.held, usage.live) == (2 * CREDIT, 0, 0)
    assert (usage.credits, usage.tokens, usage.requests) == (2 * CREDIT, 2000, 1)
    assert [event.credits for event in tenant.probe.events()] == [2 * CREDIT]


async def test_a_release_leaves_no_trace_but_a_tombstone(redis: Redis, tenant: Tenant) -> None:
    """A10: what never reached an upstream costs nothing, and the next request finds the whole limit."""
    await in_thread(tenant.set_limit, "10")
    for _ in range(20):
        admitted = await admit(redis, tenant, credits_of(10))
        assert (await admission.release(redis, admitted.hold)).outcome == "OK"
    usage = await in_thread(tenant.usage)
    assert (usage.plan.used, usage.plan.held, usage.requests, usage.limits[0].remaining) == (0, 0, 0, 10 * CREDIT)
    assert tenant.probe.events() == []


async def test_an_admission_that_is_repeated_late_does_not_look_fresher_than_its_hold(redis: Redis, tenant: Tenant) -> None:
    """Its ack is when the hold was seen alive, not when the answer came: the kind of mistake 4. After a step of the clock back its
    tombstone could go while the ack still looked young, and a renewal would count it twice."""
    one = request_id()
    first = await admit(redis, tenant, credits_of(5), request_id=one)
    await asyncio.sleep(0.05)
    again = await admit(redis, tenant, credits_of(5), request_id=one)
    assert again.hold.ack == first.hold.ack
    assert (await admission.settle(redis, again.hold, amount=credits_of(2), body=tenant.body())).outcome == "OK"


async def test_twenty_rivals_for_ten_places(redis: Redis, tenant: Tenant) -> None:
    """A1: check and hold are one step."""
    await in_thread(tenant.set_limit, "10")
    loaded = await in_thread(tenant.snapshot)
    await admission.warm_up(tenant.organization.pk)

    async def rival() -> Admission | errors.LimitReached:
        try:
            return await admission.admit(
                redis, loaded, tenant.key_of(loaded), request_id=request_id(), need=credits_of(1), about=tenant.about
            )
        except errors.LimitReached as error:
            return error

    answers = await asyncio.gather(*(rival() for _ in range(20)))
    won = [answer for answer in answers if isinstance(answer, Admission)]
    assert len(won) == 10
    usage = await in_thread(tenant.usage)
    assert (usage.limits[0].used, usage.limits[0].held, usage.limits[0].remaining) == (0, 10 * CREDIT, 0)
    for admitted in won:
        await admission.settle(redis, admitted.hold, amount=credits_of(1), body=tenant.body())
    usage = await in_thread(tenant.usage)
    assert (usage.limits[0].used, usage.limits[0].held) == (10 * CREDIT, 0)


async def test_a_refusal_tells_whose_limit_and_when_there_is_room(redis: Redis, tenant: Tenant) -> None:
    """G4 and L7: scope, limit, used, held, resets_at."""
    await in_thread(tenant.set_limit, "10")
    admitted = await admit(redis, tenant, credits_of(4))
    await admission.settle(redis, admitted.hold, amount=credits_of(3.5), body=tenant.body())
    await admit(redis, tenant, credits_of(2))
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(5))
    error = caught.value
    now = int(utc_now().timestamp())
    midnight = now - now % 86400 + 86400
    assert (error.status, error.code) == (429, "limit_reached")
    facts = tenancy.shown(error)
    assert 1 <= facts.pop("retry_after") <= 86400
    assert facts == {
        "scope": "member",
        "scope_name": str(tenant.member),
        "metric": "credits",
        "window": "day",
        "limit": "10",
        "used": "3.5",
        "held": "2",
        "need": "5",
        "resets_at": midnight,
    }
    assert "may use 10 credits today; 3.5 used, 2 held" in error.message


async def test_an_estimate_that_never_fits_has_no_reset(redis: Redis, tenant: Tenant) -> None:
    await in_thread(tenant.set_limit, "10")
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(11))
    assert caught.value.resets_at is None
    assert (await in_thread(tenant.usage)).plan.held == 0


@pytest.mark.parametrize("window", ["5h", "1d", "7d", "30d", "day", "week", "month", "period"])
async def test_every_window_refuses_and_tells_its_reset(redis: Redis, tenant: Tenant, window: str) -> None:
    """A23 and E6: every window is enforced, and each knows when there is room again."""
    await in_thread(tenant.set_limit, "2", window=window, scope="key")
    admitted = await admit(redis, tenant, credits_of(1))
    await admission.settle(redis, admitted.hold, amount=credits_of(45), body=tenant.body())
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(1))
    now = int(utc_now().timestamp())
    error = caught.value
    assert (error.scope, error.window, error.used, error.limit) == ("key", window, 45 * CREDIT, 2 * CREDIT)
    longest = {"5h": 18_300, "1d": 86_700, "7d": 615_600, "30d": 2_602_800, "day": 86_400, "month": 31 * 86_400}
    assert error.resets_at is not None
    assert now < error.resets_at <= now + longest.get(window, 7 * 86_400)


@pytest.mark.parametrize(("metric", "amount"), [("tokens", "1500"), ("requests", "1")])
async def test_tokens_and_requests_are_limited(redis: Redis, tenant: Tenant, metric: str, amount: str) -> None:
    await in_thread(tenant.set_limit, amount, metric=metric)
    await admit(redis, tenant, credits_of(1))
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(1))
    assert (caught.value.metric, caught.value.facts["limit"]) == (metric, int(amount))


async def test_rates_and_concurrency_are_limited(redis: Redis, tenant: Tenant) -> None:
    await in_thread(tenant.set_limit, "1", metric="concurrent", window="")
    admitted = await admit(redis, tenant, credits_of(1))
    with pytest.raises(errors.ConcurrencyReached) as full:
        await admit(redis, tenant, credits_of(1))
    assert (full.value.code, full.value.retry_after, full.value.used) == ("concurrency_limit", 1, 1)
    await admission.release(redis, admitted.hold)
    await in_thread(tenant.set_limit, "none", metric="concurrent", window="")
    await in_thread(tenant.set_limit, "2", metric="requests_per_minute", window="")
    await admit(redis, tenant, credits_of(1))
    with pytest.raises(errors.RateExceeded) as fast:
        await admit(redis, tenant, credits_of(1))
    # The released request had been admitted: a release does not give a rate back.
    assert (fast.value.code, fast.value.used) == ("rate_limit_exceeded", 2)
    assert 1 <= fast.value.retry_after <= 70


async def test_zero_blocks_and_null_means_none(redis: Redis, tenant: Tenant) -> None:
    """A20: 0 blocks every priced request; a free one passes; without a limit nothing blocks."""
    await in_thread(tenant.set_limit, "0")
    with pytest.raises(errors.LimitReached):
        await admit(redis, tenant, Amount(1, 0))
    await admit(redis, tenant, Amount(0, 0))
    await in_thread(tenant.set_limit, "none")
    await admit(redis, tenant, credits_of(100))


async def test_the_tail_of_a_balance_does_not_buy_a_large_answer(redis: Redis, tenant: Tenant) -> None:
    """A6: 0.01 left, an estimate of 40."""
    await in_thread(tenant.set_limit, "0.01")
    with pytest.raises(errors.LimitReached):
        await admit(redis, tenant, credits_of(40))
    assert (await in_thread(tenant.usage)).live == 0


async def test_every_level_that_is_set_is_enforced(redis: Redis) -> None:
    """G1, G2: organization 1,000, member 10, key 50: the member's level is named."""
    tenant: Tenant = await in_thread(tenancy.make, team=True)
    for scope, amount in (("organization", "1000"), ("member", "10"), ("key", "50")):
        await in_thread(tenant.set_limit, amount, scope=scope)
    admitted = await admit(redis, tenant, credits_of(10))
    await admission.settle(redis, admitted.hold, amount=credits_of(10), body=tenant.body())
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(1))
    assert caught.value.scope == "member"


async def test_the_plan_s_quota_is_the_last_word(redis: Redis) -> None:
    tenant: Tenant = await in_thread(tenancy.make, plan="free")
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(100_001))
    assert (caught.value.scope, caught.value.scope_name, caught.value.resets_at) == ("plan", "free", None)
    admitted = await admit(redis, tenant, credits_of(60_000))
    with pytest.raises(errors.LimitReached) as caught:
        await admit(redis, tenant, credits_of(60_000))
    assert (caught.value.limit, caught.value.used, caught.value.held) == (100_000 * CREDIT, 0, 60_000 * CREDIT)
    usage = await in_thread(tenant.usage)
    assert caught.value.resets_at == usage.plan.ends_at
    # A7: it may cost more than was held; the overdraft is booked and the next one refused.
    settled = await admission.settle(redis, admitted.hold, amount=credits_of(100_004), body=tenant.body())
    assert (settled.plan, settled.overdraft) == (100_000 * CREDIT, 4 * CREDIT)
    with pytest.raises(errors.LimitReached):
        await admit(redis, tenant, Amount(1, 1))
    await admit(redis, tenant, Amount(0, 0))


async def test_without_a_plan_there_is_no_free_use(redis: Redis) -> None:
    tenant: Tenant = await in_thread(tenancy.make, plan=None)
    for need in (credits_of(1), Amount(0, 0)):
        with pytest.raises(errors.NoActivePlan) as caught:
            await admit(redis, tenant, need)
        assert (caught.value.status, caught.value.facts["scope"]) == (429, "plan")
    assert sync_client().exists(*engine.keys(tenant.organization.pk)[:3]) == 0


async def test_a_member_with_a_seat_draws_on_it_alone(redis: Redis, tenant: Tenant) -> None:
    await in_thread(factories.subscription, tenant.organization, plan="free", member=tenant.member)
    admitted = await admit(redis, tenant, credits_of(7))
    assert admitted.hold.source == f"m{tenant.member.pk}"
    await admission.settle(redis, admitted.hold, amount=credits_of(7), body=tenant.body())
    usage = await in_thread(tenant.usage)
    assert (usage.plan.subject, usage.plan.plan, usage.plan.used) == ("member", "free", 7 * CREDIT)
    assert tenant.probe.funding(f"m{tenant.member.pk}")["used"] == 7 * CREDIT
    assert tenant.probe.funding("o")["used"] == 0


async def test_postpaid_passes_while_anything_is_left(redis: Redis, tenant: Tenant) -> None:
    def postpay() -> None:
        plan = Plan.objects.get(slug="free")
        plan.pk, plan.slug, plan.charging_mode = None, factories.unique("post"), Plan.ChargingMode.POSTPAID
        plan.save()
        held = Subscription.objects.get(organization=tenant.organization)
        subscriptions.end(held, now=utc_now())
        subscriptions.start(tenant.organization, plan, now=utc_now())

    await in_thread(postpay)
    admitted = await admit(redis, tenant, credits_of(200_000))
    assert (await in_thread(tenant.usage)).plan.held == 0
    settled = await admission.settle(redis, admitted.hold, amount=credits_of(130_000), body=tenant.body())
    assert (settled.plan, settled.overdraft) == (100_000 * CREDIT, 30_000 * CREDIT)
    with pytest.raises(errors.LimitReached):
        await admit(redis, tenant, Amount(1, 0))


async def test_a_change_holds_on_the_next_request_of_a_process_that_has_not_heard(redis: Redis, tenant: Tenant) -> None:
    old = await in_thread(tenant.snapshot)
    await admit(redis, tenant, credits_of(1))
    await in_thread(tenant.set_limit, "0")
    with pytest.raises(errors.Stale) as caught:
        await admission.admit(redis, old, tenant.key_of(old), request_id=request_id(), need=credits_of(1), about=b"{}")
    assert caught.value.version == old.version + 1
    with pytest.raises(errors.Stale):
        await admission.usage(redis, old, tenant.key_of(old))


async def test_commands_alongside_share_the_round_trip(redis: Redis, tenant: Tenant) -> None:
    loaded = await in_thread(tenant.snapshot)
    await admit(redis, tenant, credits_of(1))
    before = redis.round_trips
    admitted = await admission.admit(
        redis,
        loaded,
        tenant.key_of(loaded),
        request_id=request_id(),
        need=credits_of(1),
        about=tenant.about,
        alongside=[("ECHO", "a"), ("NOSUCHCOMMAND",), ("ECHO", "b")],
    )
    assert redis.round_trips == before + 1
    assert (admitted.replies[0], admitted.replies[2]) == (b"a", b"b")
    assert "unknown command" in str(admitted.replies[1])


async def test_the_same_id_again_is_the_same_hold(redis: Redis, tenant: Tenant) -> None:
    same = request_id()
    first = await admit(redis, tenant, credits_of(5), request_id=same)
    second = await admit(redis, tenant, credits_of(5), request_id=same)
    assert second.hold.ticket == first.hold.ticket
    assert (await in_thread(tenant.usage)).plan.held == 5 * CREDIT
    await admission.settle(redis, first.hold, amount=credits_of(1), body=tenant.body())
    again = await admission.settle(redis, second.hold, amount=credits_of(1), body=tenant.body())
    assert (again.outcome, again.plan) == ("DUP", CREDIT)
    with pytest.raises(errors.Degraded):
        await admit(redis, tenant, credits_of(5), request_id=same)


async def test_an_about_too_long_is_refused_before_anything_is_held(redis: Redis, tenant: Tenant) -> None:
    with pytest.raises(ValueError, match="513 bytes"):
        await admit(redis, tenant, credits_of(1), about=b"x" * 513)
    assert (await in_thread(tenant.usage)).plan.held == 0


async def test_redis_gone_is_never_an_open_gate(tenant: Tenant) -> None:
    """H1: 503, and nothing is passed on."""
    loaded = await in_thread(tenant.snapshot)
    gone = Redis("redis://127.0.0.1:1/0")
    with pytest.raises(errors.Degraded) as caught:
        await admission.admit(gone, loaded, tenant.key_of(loaded), request_id=request_id(), need=credits_of(1), about=tenant.about)
    assert (caught.value.status, caught.value.retry_after) == (503, 5)
    with pytest.raises(errors.Degraded):
        await admission.usage(gone, loaded, tenant.key_of(loaded))
    await gone.close()


async def test_a_cancelled_admission_holds_nothing(redis: Redis, tenant: Tenant) -> None:
    """A11: cancellation is no Exception, and gives the hold back all the same."""
    loaded = await in_thread(tenant.snapshot)
    await admit(redis, tenant, credits_of(1))
    task = asyncio.ensure_future(
        admission.admit(redis, loaded, tenant.key_of(loaded), request_id=request_id(), need=credits_of(3), about=tenant.about)
    )
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await admission.finish(redis, timeout_seconds=2) == 0
    assert (await in_thread(tenant.usage)).plan.held == CREDIT


async def test_cancelling_who_waits_does_not_stop_a_settlement(redis: Redis, tenant: Tenant) -> None:
    admitted = await admit(redis, tenant, credits_of(3))
    task = asyncio.ensure_future(admission.settle(redis, admitted.hold, amount=credits_of(2), body=tenant.body()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await admission.finish(redis, timeout_seconds=2) == 0
    assert (await in_thread(tenant.usage)).plan.used == 2 * CREDIT


async def test_renewals_keep_holds_alive_and_tell_what_they_cost(redis: Redis, tenant: Tenant) -> None:
    renewer = holds.Renewer(redis, every_seconds=0.1, lease_seconds=0.5, on_cold=admission.warm_up)
    admitted = await admit(redis, tenant, credits_of(1))
    renewer.add(admitted.hold)
    renewer.start()
    admitted.hold.observe(credits_of(3))
    admitted.hold.observe(credits_of(2))
    await asyncio.sleep(0.3)
    usage = await in_thread(tenant.usage)
    assert usage.plan.held == 3 * CREDIT
    before = admitted.hold.ack
    renewer.renew_soon(admitted.hold)
    await asyncio.sleep(0.05)
    assert admitted.hold.ack > before
    await admission.settle(redis, admitted.hold, amount=credits_of(3), body=tenant.body())
    renewer.discard(admitted.hold)
    await renewer.stop()
    assert (await in_thread(tenant.usage)).live == 0


async def test_live_holds_return_after_every_key_was_deleted(redis: Redis, tenant: Tenant) -> None:
    """The next renewal finds the counters gone, has them rebuilt, and counts its hold again."""
    renewer = holds.Renewer(redis, every_seconds=0.1, lease_seconds=5, on_cold=admission.warm_up)
    done = await admit(redis, tenant, credits_of(90))
    await admission.settle(redis, done.hold, amount=credits_of(90), body=tenant.body())
    await in_thread(tenant.drain)
    running = await admit(redis, tenant, credits_of(4))
    renewer.add(running.hold)
    renewer.start()
    tenant.lose_everything()
    for _ in range(40):
        await asyncio.sleep(0.05)
        if tenant.probe.dump() and tenant.probe.field(f"h:{running.hold.request_id}"):
            break
    usage = await in_thread(tenant.usage)
    assert (usage.plan.used, usage.plan.held, usage.live) == (90 * CREDIT, 4 * CREDIT, 1)
    await admission.settle(redis, running.hold, amount=credits_of(4), body=tenant.body())
    await renewer.stop()
    usage = await in_thread(tenant.usage)
    assert (usage.plan.used, usage.plan.held) == (94 * CREDIT, 0)


async def test_twenty_cold_requests_cause_one_build(redis: Redis, tenant: Tenant) -> None:
    """Deleting every key gives nobody free credits: 90 of 100 used, so of twenty that ask for 1 ten fit."""
    await in_thread(tenant.set_limit, "100", window="period")
    admitted = await admit(redis, tenant, credits_of(90))
    await admission.settle(redis, admitted.hold, amount=credits_of(90), body=tenant.body())
    await in_thread(tenant.drain)
    first = tenant.probe.meta()[0]
    tenant.lose_everything()
    answers = await asyncio.gather(*(admit(redis, tenant, credits_of(1)) for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(answer, Admission) for answer in answers) == 10
    assert sum(isinstance(answer, errors.LimitReached) for answer in answers) == 10
    assert tenant.probe.meta()[0] == first + 1
    assert {answer.hold.epoch for answer in answers if isinstance(answer, Admission)} == {first + 1}


async def test_answered_settlements_are_sent_again_after_a_reconnect(redis: Redis, tenant: Tenant) -> None:
    """A server that restarts a second old has lost them; where it has not, the answer is DUP and nothing changes."""
    admitted = await admit(redis, tenant, credits_of(3))
    copy = tenant.probe.dump()
    leases: Any = sync_client().zrange(engine.leases_key(tenant.organization.pk), 0, -1, withscores=True)
    await admission.settle(redis, admitted.hold, amount=credits_of(2), body=tenant.body())
    sync_client().delete(engine.counters_key(tenant.organization.pk))
    sync_client().hset(engine.counters_key(tenant.organization.pk), mapping=copy)
    sync_client().zadd(engine.leases_key(tenant.organization.pk), dict(leases))
    assert (await in_thread(tenant.usage)).plan.held == 3 * CREDIT
    for _ in range(2):
        sync_client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        for _ in range(40):
            await asyncio.sleep(0.02)
            if (await in_thread(tenant.usage)).plan.used:
                break
        usage = await in_thread(tenant.usage)
        assert (usage.plan.used, usage.plan.held) == (2 * CREDIT, 0)
    assert await in_thread(tenant.drain) == 2
    assert [row.credits for row in await in_thread(tenant.log)] == [2 * CREDIT]


async def test_a_view_for_the_wrong_day_costs_one_more_round_trip(redis: Redis, tenant: Tenant) -> None:
    """The caller's clock is wrong: the engine says what time it is."""
    loaded = await in_thread(tenant.snapshot)
    await admit(redis, tenant, credits_of(1))
    holds.keeper_of(redis).heard(int(utc_now().timestamp() * 1000) - 40 * 86_400_000)
    loaded.memo.clear()
    admitted = await admission.admit(
        redis, loaded, tenant.key_of(loaded), request_id=request_id(), need=credits_of(1), about=tenant.about
    )
    assert abs(admitted.hold.admitted_at - utc_now().timestamp()) < 5


async def test_an_orphan_s_renewal_does_not_move_its_ack(redis: Redis, tenant: Tenant) -> None:
    """Mistake 4: else its settlement after a rebuild would look fresh and be booked on top of the orphan."""
    renewer = holds.Renewer(redis, every_seconds=10, lease_seconds=0, on_cold=admission.warm_up)
    admitted = await admit(redis, tenant, credits_of(1))
    renewer.add(admitted.hold)
    admitted.hold.observe(credits_of(0.5))
    await renewer.renew_all()
    ack = admitted.hold.ack
    await asyncio.sleep(0.01)
    await in_thread(sweep.sweep_organization, sync_client(), tenant.organization.pk)
    await renewer.renew_all()
    assert admitted.hold.ack == ack
    settled = await admission.settle(redis, admitted.hold, amount=credits_of(2), body=tenant.body())
    assert (settled.outcome, settled.plan) == ("AMENDED", 2 * CREDIT)
    assert (await in_thread(tenant.usage)).plan.used == 2 * CREDIT
