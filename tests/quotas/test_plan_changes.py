"""A change of plan, seat, cap or suspension holds on the very next request, on every process."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from accounts import keys
from billing import changes, invoicing, ledger, rolling, subscriptions
from billing.models import Subscription, SubscriptionPeriod
from config.clock import utc_now
from config.redis import Redis, client
from config.snapshot import SnapshotCache
from quotas import admission, errors, rebuild, reconcile
from quotas.admission import Admission
from quotas.errors import Stale
from tests import factories
from tests.billing.plans import allowance, plan
from tests.quotas.tenancy import CREDIT, Tenant, credits_of, in_thread, request_id

pytestmark = pytest.mark.django_db(transaction=True)


@pytest_asyncio.fixture
async def redis() -> AsyncIterator[Redis]:
    made = client()
    yield made
    await admission.finish(made, timeout_seconds=2)
    await made.close()


def make(quota: int = 10, **terms: Any) -> Tenant:
    organization = factories.organization(plan=None)
    subscriptions.start(organization, plan(quota, **terms), now=utc_now())
    member = factories.member(organization)
    return Tenant(organization, member, factories.api_key(member))


class Process:
    """Another process: its own snapshots, which it reloads only when the engine calls them stale."""

    def __init__(self, redis: Redis, tenant: Tenant) -> None:
        self.redis, self.tenant, self.cache, self.stale = redis, tenant, SnapshotCache(), 0

    async def admit(self, credits: float) -> Admission:
        loaded = await self.cache.get(self.tenant.organization.pk)
        for _ in range(3):
            try:
                return await admission.admit(
                    self.redis, loaded, self.tenant.key_of(loaded), request_id=request_id(), need=credits_of(credits),
                    about=self.tenant.about,
                )  # fmt: skip
            except Stale as error:
                self.stale += 1
                loaded = await self.cache.get(self.tenant.organization.pk, at_least=error.version)
        raise AssertionError("always stale")

    async def spend(self, credits: float) -> None:
        admitted = await self.admit(credits)
        await admission.settle(self.redis, admitted.hold, amount=credits_of(credits), body=self.tenant.body())


def own(tenant: Tenant) -> Subscription:
    rows = Subscription.objects.for_organization(tenant.organization).active().select_related("organization", "plan", "next_plan")
    return rows.get(member=None)


def period(tenant: Tenant) -> SubscriptionPeriod:
    now = utc_now()
    return own(tenant).periods.get(starts_at__lte=now, ends_at__gt=now)


async def test_a_larger_plan_lets_the_next_request_in(redis: Redis) -> None:
    tenant = await in_thread(make, 10)
    process = Process(redis, tenant)
    await process.spend(10)
    with pytest.raises(errors.LimitReached):
        await process.admit(1)
    change = await in_thread(lambda: changes.change_plan(own(tenant), plan(1000), by=None, now=utc_now()))
    left = change.quota_after // CREDIT - 10
    await process.spend(left)
    assert process.stale == 1
    with pytest.raises(errors.LimitReached):
        await process.admit(1)
    await in_thread(tenant.drain)
    row = await in_thread(period, tenant)
    assert (row.quota, row.used_from_quota, row.overdraft) == (change.quota_after, (10 + left) * CREDIT, 0)
    assert await in_thread(allowance, row) == change.quota_after


async def test_a_smaller_plan_refuses_the_next_request_and_books_what_runs(redis: Redis) -> None:
    """E21 in the engine: what was used stays; a running answer that no longer fits is an overdraft, and nothing is cut."""
    tenant = await in_thread(make, 100)
    process = Process(redis, tenant)
    await process.spend(15)
    running = await process.admit(20)
    await in_thread(tenant.drain)
    await in_thread(lambda: changes.renew_on(own(tenant), plan(25), by=None, now=utc_now()))
    with pytest.raises(errors.LimitReached):
        await process.admit(1)
    assert process.stale == 1
    loaded = await process.cache.get(tenant.organization.pk)
    usage = await admission.usage(redis, loaded, tenant.key_of(loaded))
    assert (usage.plan.quota, usage.plan.used, usage.plan.held) == (25 * CREDIT, 15 * CREDIT, 20 * CREDIT)
    settled = await admission.settle(redis, running.hold, amount=credits_of(20), body=tenant.body())
    await in_thread(tenant.drain)
    row = await in_thread(period, tenant)
    assert (settled.plan or 0) + (settled.overdraft or 0) == 20 * CREDIT
    assert row.used_from_quota + row.overdraft == 35 * CREDIT
    assert row.quota == await in_thread(allowance, row)


async def test_another_reset_period_grants_nothing_twice_in_the_engine(redis: Redis) -> None:
    """All of the old plan is used on its first day; the new period has the new plan's quota less that, however often it turns."""
    tenant = await in_thread(make, 100, reset="weekly")
    process = Process(redis, tenant)
    await process.spend(100)
    monthly, weekly = await in_thread(plan, 160), await in_thread(plan, 100, reset="weekly")
    for turn, to in enumerate((monthly, weekly, monthly)):
        await in_thread(tenant.drain)
        await in_thread(
            lambda to=to, turn=turn: changes.change_plan(own(tenant), to, by=None, now=utc_now() - timedelta(seconds=60 - turn))
        )
    await process.spend(60)
    with pytest.raises(errors.LimitReached):
        await process.admit(1)
    await in_thread(tenant.drain)
    granted = await in_thread(lambda: sum(allowance(row) for row in own(tenant).periods.all()))
    assert granted == 160 * CREDIT


@pytest.mark.parametrize("of", ["subscription", "seat"])
async def test_a_suspended_subscription_refuses_the_next_request_and_a_resumed_one_takes_it(redis: Redis, of: str) -> None:
    tenant = await in_thread(make, 100)
    if of == "seat":
        await in_thread(lambda: subscriptions.add_seat(tenant.member, plan(50), by=None, now=utc_now()))
    process = Process(redis, tenant)
    await process.spend(1)

    def subject() -> Subscription:
        rows = Subscription.objects.for_organization(tenant.organization).active().select_related("organization")
        return rows.exclude(member=None).get() if of == "seat" else rows.get(member=None)

    await in_thread(lambda: subscriptions.suspend(subject(), by=None, now=utc_now()))
    with pytest.raises(errors.NoActivePlan, match="suspended"):
        await process.admit(1)
    usage_before = await in_thread(lambda: list(tenant.probe.events()))
    assert len(usage_before) == 1
    await in_thread(lambda: subscriptions.resume(subject(), by=None))
    await process.spend(1)


async def test_a_seat_is_drawn_on_from_the_next_request_until_it_ends(redis: Redis) -> None:
    tenant = await in_thread(make, 10)
    process = Process(redis, tenant)
    await process.spend(10)
    seat = await in_thread(lambda: subscriptions.add_seat(tenant.member, plan(5), by=None, now=utc_now()))
    await process.spend(5)
    with pytest.raises(errors.LimitReached):
        await process.admit(1)
    await in_thread(lambda: subscriptions.end_seat(tenant.member, by=None, now=utc_now()))
    with pytest.raises(errors.LimitReached):
        await process.admit(1)
    await in_thread(tenant.drain)
    rows = await in_thread(
        lambda: dict(
            SubscriptionPeriod.objects.filter(organization=tenant.organization).values_list("subscription_id", "used_from_quota")
        )
    )
    assert rows == {seat.pk: 5 * CREDIT, (await in_thread(own, tenant)).pk: 10 * CREDIT}


async def test_overage_goes_on_the_invoice_up_to_its_cap(redis: Redis) -> None:
    """Block, purchased, invoice: above the quota an invoice plan goes on up to the cap, and a changed cap holds at once."""
    tenant = await in_thread(make, 10, overage="invoice", overage_cap=4 * CREDIT, price="3.00")
    process = Process(redis, tenant)
    await process.spend(10)
    await process.spend(4)
    with pytest.raises(errors.LimitReached):
        await process.admit(1)
    await in_thread(lambda: subscriptions.set_overage_cap(own(tenant), 6 * CREDIT, by=None))
    await process.spend(2)
    await in_thread(lambda: subscriptions.set_overage_cap(own(tenant), 0, by=None))
    with pytest.raises(errors.LimitReached):
        await process.admit(1)
    await in_thread(tenant.drain)
    row = await in_thread(period, tenant)
    assert (row.used_from_quota, row.overage, row.overdraft) == (10 * CREDIT, 6 * CREDIT, 0)
    invoice = await in_thread(lambda: invoicing.close_due(tenant.organization.pk, now=row.ends_at).invoices[0])
    assert (str(invoice.total), invoice.credits) == ("3.30", 16 * CREDIT)


async def test_purchased_credits_pay_after_the_quota(redis: Redis) -> None:
    """A8: the allowance goes first; purchased credits stay until it is gone."""
    tenant = await in_thread(make, 10, overage="purchased")
    await in_thread(lambda: ledger.grant(
        tenant.organization, 3 * CREDIT, expires_at=None, reason="Bought", actor=None, reference="bought", now=utc_now()
    ))  # fmt: skip
    process = Process(redis, tenant)
    await process.spend(8)
    await in_thread(tenant.drain)
    assert (await in_thread(lambda: ledger.balance(tenant.organization.pk))).left == 3 * CREDIT
    await process.spend(5)
    with pytest.raises(errors.LimitReached):
        await process.admit(1)
    await in_thread(tenant.drain)
    row = await in_thread(period, tenant)
    assert (row.used_from_quota, row.used_from_purchased, row.overdraft) == (10 * CREDIT, 3 * CREDIT, 0)
    assert (await in_thread(lambda: ledger.balance(tenant.organization.pk))).left == 0


async def test_the_next_plan_takes_over_without_anybody_rolling_it(redis: Redis) -> None:
    """E20: the boundary passes while all workers stand still; the next request is the new plan's."""
    tenant = await in_thread(make, 10)
    process = Process(redis, tenant)
    await process.spend(10)
    await in_thread(tenant.drain)

    def boundary_passes() -> None:
        """As if the period had ended a minute ago, with a plan waiting for its end."""
        now = utc_now()
        changes.change_next(own(tenant), plan(77), by=None, now=now)
        edge = (now - timedelta(minutes=1)).replace(microsecond=0)
        SubscriptionPeriod.objects.filter(organization=tenant.organization).update(ends_at=edge)
        Subscription.objects.filter(organization=tenant.organization).update(next_plan_at=edge)
        subscriptions.set_overage_cap(own(tenant), 0, by=None)

    await in_thread(boundary_passes)
    await process.spend(77)
    with pytest.raises(errors.LimitReached):
        await process.admit(1)
    await in_thread(tenant.drain)
    subscription = await in_thread(own, tenant)
    newest = await in_thread(lambda: subscription.periods.order_by("-starts_at")[0])
    assert (newest.quota, newest.used_from_quota) == (77 * CREDIT, 77 * CREDIT)
    assert await in_thread(lambda: subscription.plan.quota) == 10 * CREDIT
    await in_thread(rolling.open_due_periods, utc_now())
    assert await in_thread(lambda: own(tenant).plan.quota) == 77 * CREDIT


async def test_a_failed_request_leaves_the_quota_as_it_was(redis: Redis) -> None:
    """D8: allowance 10, hold 2.26, the job fails: remaining 10, used 0, total 10."""
    tenant = await in_thread(make, 10)
    process = Process(redis, tenant)
    for _ in range(5):
        await admission.release(redis, (await process.admit(2.26)).hold)
    loaded = await process.cache.get(tenant.organization.pk)
    usage = await admission.usage(redis, loaded, tenant.key_of(loaded))
    assert (usage.plan.quota, usage.plan.used, usage.plan.held, usage.plan.remaining) == (10 * CREDIT, 0, 0, 10 * CREDIT)
    await in_thread(tenant.drain)
    row = await in_thread(period, tenant)
    assert (row.quota, row.used_from_quota, await in_thread(allowance, row)) == (10 * CREDIT, 0, 10 * CREDIT)


async def test_an_overdrawn_key_that_goes_adds_no_money(redis: Redis) -> None:
    """D7: a key's limit of 5, used 8; the key is revoked: what the organization has left is what it was."""
    tenant = await in_thread(make, 100)
    await in_thread(lambda: tenant.set_limit("5", scope="key"))
    process = Process(redis, tenant)
    admitted = await process.admit(5)
    await admission.settle(redis, admitted.hold, amount=credits_of(8), body=tenant.body())
    await in_thread(tenant.drain)
    before = await in_thread(tenant.usage)
    row = await in_thread(period, tenant)
    await in_thread(lambda: keys.revoke(tenant.key.row, by=None, now=utc_now()))
    tenant.key = await in_thread(factories.api_key, tenant.member)
    after = await in_thread(tenant.usage)
    assert after.plan.remaining == before.plan.remaining == 92 * CREDIT
    await in_thread(row.refresh_from_db)
    assert (row.quota, row.used_from_quota, await in_thread(allowance, row)) == (100 * CREDIT, 8 * CREDIT, 100 * CREDIT)


async def test_a_period_that_a_change_begins_in_a_second_with_traffic_is_counted_apart(redis: Redis) -> None:
    """What was admitted earlier in that second drew on the period before: no drift, and a rebuild counts it so, too."""
    week = await in_thread(partial(plan, 10, reset="weekly"))
    tenant = await in_thread(make)
    process = Process(redis, tenant)
    await process.spend(0.5)
    for _ in range(10):
        # The spending before and after the change has to fall into one second.
        await asyncio.sleep(1 - utc_now().microsecond / 1e6 + 0.02)
        began = int(utc_now().timestamp())
        await process.spend(1)
        subscription = await in_thread(own, tenant)
        to = week if subscription.plan_id != week.pk else await in_thread(plan, 10)
        change = await in_thread(partial(changes.change_plan, subscription, to, by=None, now=utc_now()))
        await process.spend(0.25)
        await in_thread(tenant.drain)
        if (
            [int(row.admitted_at.timestamp()) for row in await in_thread(tenant.log)][-2]
            == began
            == change.effective_at.timestamp()
        ):
            break
    else:
        raise AssertionError("the machine is too slow for a second")
    assert (await in_thread(reconcile.reconcile, tenant.organization.pk)).differences == ()
    epoch = str(tenant.probe.meta()[0])
    assert await in_thread(partial(rebuild.rebuild, tenant.organization.pk, expected_epoch=epoch, keep_holds=True))
    assert (await in_thread(reconcile.reconcile, tenant.organization.pk)).differences == ()
    assert tenant.probe.record().used[0][0] == CREDIT // 4
