"""The admin's first page: the numbers of all organizations for an operator, of one for who looks after it, and where they lead."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from accounts.models import Job, Member, Organization, User
from billing.models import UsageHour
from config import admin_numbers, scope
from config import redis as weir_redis
from config.admin_numbers import Row
from config.clock import utc_now
from quotas import engine
from quotas.models import Drift
from routing import live
from routing.models import Pool, PoolAccount
from tests import factories
from tests.accounts import admin_rows
from tests.accounts.admin_rows import Cast

pytestmark = pytest.mark.django_db
CREDIT = 1_000_000


@pytest.fixture(autouse=True)
def no_attempts_counted() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser(f"{factories.unique('operator')}@weir.example", factories.password()))
    return client


def made(count: int = 1) -> Cast:
    mark = f"Mark{admin_rows.word()}"
    of = admin_rows.cast(admin_rows.organizations(1, mark), mark)
    admin_rows.add(of, count)
    return of


def signed_in(member: Member) -> Client:
    assert member.user is not None
    client = Client()
    client.force_login(member.user)
    return client


def row_of(organization: Organization) -> Row:
    return next(row for row in admin_numbers.read(now=utc_now()).rows if row.organization_id == organization.pk)


def hour(organization: Organization, ago: timedelta, credits: int) -> None:
    at = (utc_now() - ago).replace(minute=0, second=0, microsecond=0)
    UsageHour.objects.create(organization=organization, hour=at, member_id=1, key_id=1, model=admin_rows.word(), credits=credits)


def test_burn_is_counted_by_the_organizations_own_days() -> None:
    """A day that has just begun in one zone is hours old in another."""
    now = utc_now()
    zones = {zone: factories.organization(plan=None, timezone=zone) for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago")}
    for zone, organization in zones.items():
        with timezone.override(zone):
            local = timezone.localtime(now)
        since_midnight = timedelta(hours=local.hour, minutes=local.minute)
        hour(organization, timedelta(0), 5 * CREDIT)
        hour(organization, since_midnight + timedelta(hours=2), 7 * CREDIT)
        hour(organization, since_midnight + timedelta(days=5, hours=20), 11 * CREDIT)
        hour(organization, since_midnight + timedelta(days=6, hours=3), 13 * CREDIT)
        found = row_of(organization)
        assert (found.today, found.week) == (5 * CREDIT, 23 * CREDIT), zone


def test_everything_that_went_wrong_is_counted_while_it_is_new() -> None:
    of = made(2)
    found = row_of(of.organization)
    assert (found.drift, found.deliveries, found.jobs, found.implausible) == (2, 2, 0, 2)
    Job.objects.filter(organization=of.organization).update(state="failed")
    Drift.objects.filter(pk=of.made[Drift][0].pk).update(repaired_at=utc_now())
    found = row_of(of.organization)
    assert (found.drift, found.jobs) == (1, 2)
    Job.objects.filter(organization=of.organization).update(created_at=utc_now() - timedelta(days=8))
    assert row_of(of.organization).jobs == 0


def test_the_quota_is_that_of_the_open_periods() -> None:
    from billing import subscriptions

    organization = factories.organization(plan="plus")
    period = subscriptions.open_period(organization.subscriptions.get(), utc_now())
    period.used_from_quota = period.quota // 4
    period.save(update_fields=["used_from_quota"])
    assert (row_of(organization).quota, row_of(organization).used) == (period.quota, period.quota // 4)


def test_accounts_are_counted_as_they_are_and_streams_by_what_waits() -> None:
    organization = factories.organization(plan=None)
    pool = Pool.objects.create(organization=organization, name="Main")
    rows = [
        PoolAccount.objects.create(pool=pool, kind="openai", label=status, identity=admin_rows.word(), status=status)
        for status in ("active", "active", "paused", "needs_sign_in", "withdrawn")
    ]
    redis = weir_redis.sync_client()
    now_ms = int(utc_now().timestamp() * 1000)
    redis.hset(live.pool_live_key(pool.pk, organization.pk), f"{rows[0].pk}:c", str(now_ms + 60_000))
    redis.xadd(engine.stream_key(organization.pk), {"e": "x"}, id=f"{now_ms - 90_000}-0")
    redis.xadd(engine.stream_key(organization.pk), {"e": "x"}, id=f"{now_ms}-0")
    try:
        found = row_of(organization)
        accounts = found.accounts
        assert (accounts.serving, accounts.cooling, accounts.paused, accounts.needs_sign_in) == (1, 1, 1, 1)
        assert found.waiting == 2
        assert 90 <= found.behind < 120
    finally:
        redis.delete(engine.stream_key(organization.pk), live.pool_live_key(pool.pk, organization.pk))


def test_without_redis_the_page_says_what_it_does_not_know(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    import redis

    nobody = redis.Redis(host="127.0.0.1", port=1, socket_connect_timeout=0.2)
    monkeypatch.setattr(weir_redis, "sync_client", lambda: nobody)
    factories.organization(plan=None)
    page = operator.get("/admin/")
    assert page.status_code == 200
    assert "Redis did not answer" in page.content.decode()


def test_as_many_queries_for_thirty_organizations_as_for_one(operator: Client) -> None:
    made()
    operator.get("/admin/")
    with CaptureQueriesContext(connection) as few:
        operator.get("/admin/")
    many = admin_rows.cast(admin_rows.organizations(30, f"Mark{admin_rows.word()}"), "x")
    admin_rows.add(many, 30)
    with CaptureQueriesContext(connection) as queries:
        page = operator.get("/admin/")
    assert len(queries) == len(few) <= 20
    assert all(organization.name in page.content.decode() for organization in many.made[Organization])


def linked(page: Any) -> list[str]:
    return [url.replace("&amp;", "&") for url in re.findall(r'href="(/admin/[a-z]+/[a-z]+/\?[^"]+)"', page.content.decode())]


def test_every_number_leads_to_its_rows(operator: Client) -> None:
    of = made()
    Job.objects.filter(organization=of.organization).update(state="failed")
    PoolAccount.objects.filter(pool__organization=of.organization).update(status="needs_sign_in")
    models = ["usagehour", "subscriptionperiod", "poolaccount", "drift", "alertdelivery", "job", "usagerecord"]
    urls = [url for url in linked(operator.get("/admin/")) if f"id__exact={of.organization.pk}" in url.split("&")[0]]
    assert {url.split("/")[3] for url in urls} == set(models)
    for url in urls:
        answer = operator.get(url)
        assert answer.status_code == 200, url
        model = next(model for model in of.made if f"/{model._meta.model_name}/" in url)
        assert f"{url.split('?')[0]}{of.made[model][0].pk}/change/" in answer.content.decode(), url


@pytest.mark.parametrize(("role", "hidden"), [("owner", []), ("lead", ["Jobs failed", "Differences in the books"])])
def test_who_looks_after_one_sees_that_one(role: str, hidden: list[str]) -> None:
    own, foreign = made(), made()
    shared = Pool.objects.create(organization=None, name=foreign.mark)
    PoolAccount.objects.create(pool=shared, kind="openai", label=foreign.mark, identity=admin_rows.word(), status="needs_sign_in")
    client = signed_in(factories.member(own.organization, role=role))
    page = client.get("/admin/")
    text = page.content.decode()
    assert own.organization.name in text
    assert foreign.mark not in text
    assert [title for title in ("Jobs failed", "Differences in the books", "Accounts need sign-in") if title not in text] == hidden
    assert re.search(r">1</a>\s*<span class=\"weir-note\">0 cooling down, 0 paused", text)
    assert ("Import a rate card" in text, "Recent actions" in text) == (False, False)
    assert linked(page)
    for url in linked(page):
        assert client.get(url).status_code == 200, url
    with scope.organization(own.organization.pk):
        assert [row.organization_id for row in admin_numbers.read(now=utc_now()).rows] == [own.organization.pk]


def test_rate_cards_are_one_step_away(operator: Client) -> None:
    page = operator.get("/admin/")
    assert f'href="{reverse("admin:billing_rateimport_upload")}"' in page.content.decode()
    assert "script-src 'self' 'unsafe-eval';" in page["Content-Security-Policy"] + ";"
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page.content.decode())
