"""The demo's tenants: what a first run makes, what a second one leaves alone, what a later one adds."""

import stat
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db.models import Sum

from accounts import keys, members, snapshots
from accounts.models import ApiKey, ApiToken, AuditEvent, Job, Member, Organization, User
from billing import ledger, pricing
from billing.models import Invoice, LedgerEntry, Subscription, SubscriptionPeriod, UsageRecord
from billing.tokens import TokenUsage
from config import snapshot
from config.clock import utc_now
from config.redis import sync_client
from demo import cast, seed
from quotas import engine, rebuild, records
from quotas.alerts.models import Alert
from quotas.models import Limit, LimitBoost, LimitRequest
from routing.models import PoolAccount
from tests import secrets
from tests.upstream import ScriptedUpstream

# A Wednesday, 18:00 in Berlin and noon in New York.
NOW = datetime(2026, 11, 25, 17, 0, tzinfo=UTC)
Described = list[dict[str, Any]]


def run(upstream: ScriptedUpstream, var: Path, now: datetime) -> Described:
    made = seed.run(upstream.url, var, now)
    logins = seed.Logins.load(var / seed.LOGINS)
    for text in logins.passwords.values():
        secrets.register(text, "password")
    for text in logins.keys.values():
        secrets.register(text, "gateway key")
        secrets.register(text.split("_")[2], "gateway key's secret")
    for text in logins.upstream_keys.values():
        secrets.register(text, "upstream API key")
    return made


@pytest.fixture
def demo(db: None, upstream: ScriptedUpstream, tmp_path: Path, settings: Any) -> Iterator[Described]:
    """A first run at NOW, in a transaction that is undone."""
    settings.UPSTREAM_OPENAI_URL = f"{upstream.url}/v1"
    yield run(upstream, tmp_path, NOW)
    for tenant in cast.TENANTS:
        for organization in Organization.objects.filter(slug=tenant.slug):
            sync_client().delete(*engine.keys(organization.pk))


def organization(slug: str) -> Organization:
    return Organization.objects.get(slug=slug)


def records_of(slug: str) -> list[UsageRecord]:
    return list(UsageRecord.objects.for_organization(organization(slug)).order_by("admitted_at", "request_id"))


def test_it_describes_two_organizations_with_every_role(demo: Described, tmp_path: Path) -> None:
    assert [(one["slug"], one["name"]) for one in demo] == [("northwind-labs", "Northwind Labs"), ("halcyon", "Halcyon")]
    for one in demo:
        assert list(one) == ["slug", "name", "members"]
        assert {member["role"] for member in one["members"]} == {"owner", "lead", "developer", "finance"}
        for member in one["members"]:
            assert list(member) == ["email", "role", "password", "key"]
            row = members.find(organization(one["slug"]), member["email"])
            assert row.role == member["role"]
            assert row.user is not None
            assert row.user.check_password(member["password"])
            assert (member["key"] is None) == (member["role"] == "finance")
            if member["key"]:
                held = snapshots.load(row.organization_id).keys[member["key"][3:13]]
                assert held.member_id == row.pk
                assert keys.verify(member["key"], held, now=utc_now())
    assert len([1 for member in demo[0]["members"] if member["role"] == "developer"]) == 6
    operator, password = seed.operator_login(tmp_path)
    user = User.objects.get(email=operator)
    assert user.is_superuser
    assert user.check_password(password)
    assert stat.S_IMODE((tmp_path / seed.LOGINS).stat().st_mode) == 0o600


def test_a_third_has_only_begun(demo: Described, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    made = organization("tern-studio")
    (owner,) = Member.objects.for_organization(made)
    assert owner.user is not None
    assert (owner.role, owner.user.email) == ("owner", "mira.solheim@northwind.example")
    assert not PoolAccount.objects.for_organization(made).exists()
    assert not Limit.objects.for_organization(made).exists()
    run(upstream, tmp_path, NOW)
    assert Member.objects.for_organization(made).count() == 1


def test_each_was_told_of_something_and_had_files_made(demo: Described, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    run(upstream, tmp_path, NOW)
    for tenant in cast.TENANTS:
        made = organization(tenant.slug)
        alerts = Alert.objects.for_organization(made).order_by("told_at")
        assert [(one.kind, one.ended_at is None) for one in alerts] == [("account", False), ("anomaly", True)]
        assert sorted(Job.objects.filter(organization=made).values_list("kind", flat=True)) == ["members", "usage_totals"]
        assert ApiToken.objects.filter(organization=made).count() == 1


def test_plans_zones_accounts_and_limits_are_those_of_the_cast(demo: Described) -> None:
    for tenant in cast.TENANTS:
        made = organization(tenant.slug)
        assert made.timezone == tenant.timezone
        assert Subscription.objects.get(organization=made, ended_at=None).plan.slug == tenant.plan
        accounts = PoolAccount.objects.for_organization(made).order_by("pk")
        assert [(row.kind, row.label) for row in accounts] == [
            *(("chatgpt", one.label) for one in tenant.sign_ins),
            ("openai", tenant.api_key_label),
        ]
        assert made.sign_in_terms_accepted_by == Member.objects.get(organization=made, role="owner").user
        assert AuditEvent.objects.filter(organization=made, action="organization.sign_in_terms_accepted").count() == 1
        own = Limit.objects.for_organization(made).filter(model_filter=None)
        assert sorted(own.values_list("scope", "metric", "window")) == sorted(
            (cap.scope, cap.metric, cap.window) for cap in tenant.caps
        )
        assert len({cap.scope for cap in tenant.caps}) >= 3


def test_thirty_days_of_use_are_in_the_log(demo: Described) -> None:
    for tenant in cast.TENANTS:
        zone = ZoneInfo(tenant.timezone)
        rows = records_of(tenant.slug)
        days = sorted({row.admitted_at.astimezone(zone).date() for row in rows})
        assert days[0] >= NOW.astimezone(zone).date() - timedelta(days=29)
        assert days[-1] == NOW.astimezone(zone).date()
        assert len(days) >= 21
        assert all(row.ended_at < NOW for row in rows)
        assert {row.status for row in rows} == {"ok", "incomplete", "client_closed"}
        assert len({row.model_served for row in rows}) >= 4
        assert {row.account_id for row in rows} == set(
            PoolAccount.objects.for_organization(organization(tenant.slug)).values_list("pk", flat=True)
        )
        working = [row for row in rows if row.admitted_at.astimezone(zone).weekday() < 5]
        assert len(working) > 20 * (len(rows) - len(working))
        assert all(8 <= row.admitted_at.astimezone(zone).hour <= 19 for row in rows)


def test_every_record_is_priced_by_the_rate_of_its_moment(demo: Described) -> None:
    for tenant in cast.TENANTS:
        rates = snapshot.load(organization(tenant.slug).pk).billing.rates
        kinds = dict(PoolAccount.objects.values_list("pk", "kind"))
        for row in records_of(tenant.slug):
            rate = rates.rate_for(row.model_served, row.admitted_at)
            used = TokenUsage(
                input=row.input_tokens,
                cached_input=row.cached_input_tokens,
                output=row.output_tokens,
                reasoning=row.reasoning_tokens,
            )
            assert row.rate_id == rate.rate_id
            assert row.credits == pricing.cost(used, rate, fast=row.tier_billed == "fast") > 0
            assert row.counted_tokens == used.total
            assert (row.tier_billed == "fast") == (row.tier_asked == "priority" and kinds[row.account_id or 0] == "chatgpt")
            assert row.from_quota == row.credits
            assert row.is_estimated == (row.status == "client_closed")


def test_the_periods_hold_what_the_log_holds(demo: Described) -> None:
    for tenant in cast.TENANTS:
        made = organization(tenant.slug)
        logged = UsageRecord.objects.for_organization(made).aggregate(credits=Sum("credits"), requests=Sum("counted_requests"))
        periods = SubscriptionPeriod.objects.filter(subscription__organization=made)
        assert periods.aggregate(credits=Sum("used_from_quota"), requests=Sum("requests")) == logged
        assert all(period.used_from_quota <= period.quota for period in periods)


def test_credits_were_given_and_bought_and_more_was_asked_for(demo: Described) -> None:
    for tenant in cast.TENANTS:
        made = organization(tenant.slug)
        assert ledger.balance(made.pk).left == 2250 * 1_000_000
        asked = LimitRequest.objects.filter(organization=made).order_by("pk")
        boosts = LimitBoost.objects.filter(organization=made)
        assert [one.status for one in asked] == ["pending", "approved"][: len(asked)]
        assert [boost.request for boost in boosts] == [one for one in asked if one.status == "approved"]
        assert Limit.objects.for_organization(made).exclude(model_filter=None).count() == 1


def test_periods_that_are_over_are_invoiced_as_the_ledger_stands(demo: Described) -> None:
    for tenant in cast.TENANTS:
        made = organization(tenant.slug)
        assert not SubscriptionPeriod.objects.filter(organization=made, ends_at__lte=NOW, closed_at=None).exists()
        over = SubscriptionPeriod.objects.filter(organization=made, ends_at__lte=NOW)
        every = SubscriptionPeriod.objects.filter(organization=made).order_by("starts_at")
        bounds = list(every.values_list("starts_at", "ends_at"))
        assert [ends for _, ends in bounds[:-1]] == [starts for starts, _ in bounds[1:]], "a week that nobody used is sold too"
        used = LedgerEntry.objects.filter(organization=made, period__in=over, debit="usage").aggregate(sum=Sum("amount"))["sum"]
        assert Invoice.objects.for_organization(made).aggregate(sum=Sum("credits"))["sum"] == used > 0


def test_a_second_run_keeps_everything(demo: Described, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    before = {
        "users": list(User.objects.order_by("pk").values_list("email", "password")),
        "keys": list(ApiKey.objects.order_by("pk").values_list("public_id", "digest")),
        "limits": list(Limit.objects.order_by("pk").values_list("pk", "amount")),
        "accounts": list(PoolAccount.objects.order_by("pk").values_list("pk", "identity")),
        "records": list(UsageRecord.objects.order_by("admitted_at", "request_id").values_list("request_id", "credits")),
        "ledger": list(LedgerEntry.objects.order_by("pk").values_list("reference", "amount")),
        "invoices": list(Invoice.objects.order_by("pk").values_list("number", "total")),
        "requests": list(LimitRequest.objects.order_by("pk").values_list("pk", "status")),
    }
    assert run(upstream, tmp_path, NOW) == demo
    after = {
        "users": list(User.objects.order_by("pk").values_list("email", "password")),
        "keys": list(ApiKey.objects.order_by("pk").values_list("public_id", "digest")),
        "limits": list(Limit.objects.order_by("pk").values_list("pk", "amount")),
        "accounts": list(PoolAccount.objects.order_by("pk").values_list("pk", "identity")),
        "records": list(UsageRecord.objects.order_by("admitted_at", "request_id").values_list("request_id", "credits")),
        "ledger": list(LedgerEntry.objects.order_by("pk").values_list("reference", "amount")),
        "invoices": list(Invoice.objects.order_by("pk").values_list("number", "total")),
        "requests": list(LimitRequest.objects.order_by("pk").values_list("pk", "status")),
    }
    assert after == before


def test_a_later_run_adds_the_missing_days_as_one_run_would_have_told_them(
    demo: Described, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    early = {row.request_id for row in records_of("halcyon")}
    run(upstream, tmp_path, NOW + timedelta(days=2))
    rows = records_of("halcyon")
    added = [row for row in rows if row.request_id not in early]
    assert early < {row.request_id for row in rows}
    assert min(row.ended_at for row in added) >= NOW
    days = {row.admitted_at.astimezone(ZoneInfo("America/New_York")).date() for row in added}
    assert days == {date(2026, 11, 25), date(2026, 11, 26), date(2026, 11, 27)}


def test_living_counters_show_what_was_added(demo: Described, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Counters keep the current and the previous period, so the second run is one of today."""
    made = organization("halcyon")
    assert rebuild.rebuild(made.pk)
    run(upstream, tmp_path, now := utc_now())
    current = snapshot.load(made.pk).billing.subscriptions[0].period_at(now).start
    for name, start in (("f:o", current), ("p:o", current - timedelta(days=7))):
        packed: Any = sync_client().hget(engine.counters_key(made.pk), name)
        counted = records.unpack(packed)
        logged = UsageRecord.objects.for_organization(made).filter(period_starts_at=start).aggregate(sum=Sum("from_quota"))["sum"]
        assert (counted[0], counted[4]) == (int(start.timestamp()), logged or 0)
    assert logged > 0


def test_a_lost_file_of_logins_gives_new_ones_that_work(demo: Described, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    (tmp_path / seed.LOGINS).unlink()
    again = run(upstream, tmp_path, NOW)
    for old, new in zip(demo[0]["members"], again[0]["members"], strict=True):
        member = members.find(organization("northwind-labs"), new["email"])
        assert member.user is not None
        assert not member.user.check_password(old["password"])
        assert member.user.check_password(new["password"])
        if new["key"]:
            assert new["key"] != old["key"]
            assert keys.verify(new["key"], snapshots.load(member.organization_id).keys[new["key"][3:13]], now=utc_now())
