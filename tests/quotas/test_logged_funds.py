"""Settlements that no counters decided: the drain says which funds paid, and a rebuild waits for it."""

import time
from datetime import timedelta

import psycopg
import pytest
from django.db import connection

from billing import ledger, subscriptions
from billing.models import SubscriptionPeriod
from config.clock import utc_now
from quotas import drain, rebuild, reconcile, views
from tests import factories
from tests.billing.plans import plan
from tests.quotas.tenancy import CREDIT, Tenant, request_id

pytestmark = pytest.mark.django_db(transaction=True)


def on(quota: int, **terms: object) -> Tenant:
    organization = factories.organization(plan=None)
    subscriptions.start(organization, plan(quota, **terms), now=utc_now() - timedelta(minutes=1))  # type: ignore[arg-type]
    member = factories.member(organization)
    tenant = Tenant(organization, member, factories.api_key(member))
    assert rebuild.rebuild(organization.pk)
    return tenant


def admit(tenant: Tenant, credits: int) -> list[object]:
    loaded = tenant.snapshot()
    now = time.time()
    made = request_id()
    view = views.view_for(loaded, tenant.key_of(loaded), int(now)).packed
    return [made, now, tenant.probe.admit(made, now, view, credits * CREDIT, 1, about=tenant.about)[0]]


def lose_in_flight(tenant: Tenant, credits: int) -> None:
    """A request ends while no counters are there."""
    made, now, answer = admit(tenant, credits)
    assert answer == "OK"
    ticket = tenant.probe.redis.hget(tenant.probe.keys[0], f"h:{made}")
    tenant.probe.redis.delete(*tenant.probe.keys[:2])
    settled = tenant.probe.settle(made, now, credits * CREDIT, 1, ack=now, body=tenant.body(), ticket=ticket)  # type: ignore[arg-type]
    assert settled == ["LOGGED"]


def test_a_cap_on_overage_is_not_passed_by_what_was_only_logged() -> None:
    tenant = on(10, overage="invoice", overage_cap=6 * CREDIT)
    lose_in_flight(tenant, 14)
    # The next request finds no counters; the log says 4 of the 6 are gone.
    assert rebuild.rebuild(tenant.organization.pk)
    assert [tenant.probe.funding()[name] for name in ("used", "overage", "overdraft")] == [10 * CREDIT, 4 * CREDIT, 0]
    assert admit(tenant, 3)[2] == "NO"
    assert admit(tenant, 2)[2] == "OK"
    assert SubscriptionPeriod.objects.get(organization=tenant.organization).overage == 4 * CREDIT
    assert reconcile.reconcile(tenant.organization.pk).differences == ()


def test_purchased_credits_are_not_spent_again_after_they_were_only_logged() -> None:
    tenant = on(10, overage="purchased")
    ledger.grant(tenant.organization, 6 * CREDIT, reason="A gift", actor=None, now=utc_now(), expires_at=None)
    lose_in_flight(tenant, 14)
    assert rebuild.rebuild(tenant.organization.pk)
    assert admit(tenant, 3)[2] == "NO"
    assert admit(tenant, 2)[2] == "OK"
    assert ledger.balance(tenant.organization.pk).left == 2 * CREDIT
    assert reconcile.reconcile(tenant.organization.pk).differences == ()


def test_a_drain_that_does_not_get_on_stops_no_rebuild_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else holds the stream: after a while the counters are built from what is known."""
    tenant = on(10, overage="invoice", overage_cap=6 * CREDIT)
    lose_in_flight(tenant, 14)
    monkeypatch.setattr(rebuild, "DRAIN_SECONDS", 0.2)
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("SELECT pg_advisory_lock(%s, %s)", [drain.LOCK, tenant.organization.pk])
        began = time.monotonic()
        assert rebuild.rebuild(tenant.organization.pk)
        assert time.monotonic() - began < 5
    assert tenant.probe.funding()["used"] == 14 * CREDIT
    assert admit(tenant, 7)[2] == "NO"
