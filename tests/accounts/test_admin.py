"""The operators' pages: reached through allauth, read-only where it must be, without a secret."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.core.cache import cache
from django.db import models
from django.test import Client
from django.urls import reverse

from accounts.models import ApiKey, AuditEvent, Invitation, Member, Organization, User
from billing import usage
from billing.events import Body, UsageEvent
from billing.models import Plan, Subscription, UsageRecord
from config.clock import utc_now
from routing.models import PoolAccount
from tests import factories

pytestmark = pytest.mark.django_db
OURS = [model for label in ("accounts", "billing", "routing", "quotas") for model in apps.get_app_config(label).get_models()]


@pytest.fixture(autouse=True)
def no_attempts_counted() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def operator() -> User:
    return User.objects.create_superuser(f"{factories.unique('operator')}@weir.example", factories.password())


@pytest.fixture
def site(operator: User) -> Client:
    client = Client()
    client.force_login(operator)
    return client


def where(model: type[models.Model], page: str, *args: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def logged(member: Member) -> UsageRecord:
    key = factories.api_key(member)
    at = int(utc_now().timestamp())
    event = UsageEvent(
        request_id=factories.unique("req"),
        part=0,
        state="S",
        admitted_at=at,
        ended_ms=at * 1000 + 10,
        credits=6,
        tokens=3,
        requests=1,
        from_quota=6,
        from_purchased=0,
        from_overage=0,
        overdraft=0,
        source="o",
        period_start=at - at % 86400,
        stream_id="1-1",
        body=Body(member_id=member.pk, key_id=key.row.pk, model_asked="gpt-5.5", status="ok"),
    )
    assert usage.record(member.organization_id, [event]) == 1
    return UsageRecord.objects.get(request_id=event.request_id)


def test_every_model_has_a_page_with_search_and_filters() -> None:
    assert {model for model in OURS if model in admin.site._registry} == set(OURS)
    for model in OURS:
        page = admin.site._registry[model]
        assert page.search_fields, model
        assert page.list_filter, model


def test_one_signs_in_through_allauth() -> None:
    answer = Client().get("/admin/login/")
    assert answer.status_code == 302
    assert answer["Location"].startswith(reverse("account_login"))
    answer = Client().get("/admin/accounts/apikey/", follow=False)
    assert answer["Location"].startswith("/admin/login/")


def test_who_is_no_operator_is_refused() -> None:
    owner = factories.member(factories.organization(plan=None), role="owner")
    assert owner.user is not None
    client = Client()
    client.force_login(owner.user)
    assert client.get("/admin/login/").status_code == 403
    for model in OURS:
        answer = client.get(where(model, "changelist"))
        assert (answer.status_code, answer["Location"].partition("?")[0]) == (302, "/admin/login/")


def test_the_admin_has_a_policy_of_its_own_and_pages_keep_theirs(site: Client) -> None:
    policy = site.get("/admin/")["Content-Security-Policy"]
    assert "script-src 'self' 'unsafe-eval'" in policy
    assert "style-src 'self' 'unsafe-inline'" in policy
    assert "unsafe" not in site.get(reverse("account_login"))["Content-Security-Policy"]
    assert "unsafe" not in site.get("/health/live")["Content-Security-Policy"]


def test_lists_open_and_search(site: Client) -> None:
    organization = factories.organization()
    logged(factories.member(organization, team=factories.team(organization)))
    factories.openai_account(organization)
    for model in OURS:
        answer = site.get(where(model, "changelist"), {"q": organization.slug})
        assert answer.status_code == 200, model
    answer = site.get(where(UsageRecord, "changelist"), {"q": organization.slug})
    assert b"0.000006" in answer.content


def test_nothing_can_be_added_or_deleted_and_no_secret_is_shown(site: Client) -> None:
    organization = factories.organization()
    record = logged(member := factories.member(organization))
    account, token = factories.openai_account(organization)
    key = factories.api_key(member)
    invitation = Invitation.objects.create(organization=organization, email="a@b.example", digest="f" * 64, expires_at=utc_now())
    user = User.objects.get(pk=member.user_id)
    user.set_password(factories.password())
    user.save()
    hidden = [
        token,
        account.access_token,
        key.secret.split("_")[2],
        invitation.digest,
        bytes(key.row.digest).hex(),
        str(bytes(key.row.digest)),
        user.password,
    ]
    rows: list[models.Model] = [
        organization,
        member,
        key.row,
        invitation,
        account,
        account.pool,
        record,
        user,
        Subscription.objects.get(organization=organization),
        AuditEvent.objects.filter(organization=organization).latest("pk"),
        Plan.objects.get(slug="plus"),
    ]
    for row in rows:
        shown = site.get(where(type(row), "change", row.pk))
        assert shown.status_code == 200, row
        for secret in hidden:
            assert secret not in shown.content.decode(), row
        assert site.get(where(type(row), "add")).status_code == 403
        assert site.post(where(type(row), "delete", row.pk), {"post": "yes"}).status_code == 403
        assert type(row)._default_manager.filter(pk=row.pk).exists()


@pytest.mark.parametrize("model", [UsageRecord, AuditEvent, ApiKey, Member])
def test_the_log_the_trail_keys_and_members_cannot_be_changed(model: type[models.Model], site: Client) -> None:
    member = factories.member(factories.organization())
    record = logged(member)
    row: models.Model = {
        UsageRecord: record,
        AuditEvent: AuditEvent.objects.filter(organization=member.organization).latest("pk"),
        ApiKey: record.key,
        Member: member,
    }[model]
    before = model._default_manager.filter(pk=row.pk).values().get()
    answer = site.post(where(model, "change", row.pk), {"credits": "0", "action": "x", "name": "x", "role": "owner"})
    assert answer.status_code == 403
    assert model._default_manager.filter(pk=row.pk).values().get() == before


def act(site: Client, row: models.Model, action: str) -> None:
    chosen = {"action": action, "_selected_action": [row.pk], "index": "0"}
    assert site.post(where(type(row), "changelist"), chosen).status_code == 302


def test_actions_call_the_domain_and_name_the_operator(site: Client, operator: User) -> None:
    organization = factories.organization(plan=None)
    key = factories.api_key(factories.member(organization))
    act(site, organization, "suspend")
    assert not Organization.objects.get(pk=organization.pk).is_active
    act(site, organization, "resume")
    assert Organization.objects.get(pk=organization.pk).is_active
    act(site, key.row, "revoke")
    assert ApiKey.objects.get(pk=key.row.pk).revoked_at is not None
    told = AuditEvent.objects.filter(organization=organization, actor=operator).order_by("pk").values_list("action", flat=True)
    assert list(told) == ["organization.suspended", "organization.resumed", "key.revoked"]


def test_a_refusal_of_the_domain_is_shown(site: Client) -> None:
    owner = factories.member(factories.organization(plan=None), role="owner")
    chosen = {"action": "remove", "_selected_action": [owner.pk], "index": "0"}
    answer = site.post(where(Member, "changelist"), chosen, follow=True)
    assert b"last owner cannot be removed" in answer.content
    assert Member.objects.get(pk=owner.pk).removed_at is None


def test_a_changed_row_reaches_the_path_and_leaves_other_columns_alone(site: Client, operator: User) -> None:
    """A credential that was refreshed while the form was open stays refreshed."""
    organization = factories.organization()
    account, _ = factories.openai_account(organization)
    version = Organization.objects.get(pk=organization.pk).config_version
    form = {
        "label": "Renamed",
        "weight_thousandths": "2500",
        "floor_percent": "20",
        "priority": "1",
        "concurrency_cap": "",
        "models_served": "",
    }
    refreshed = datetime.now(UTC) + timedelta(hours=1)
    PoolAccount.objects.filter(pk=account.pk).update(credential_version=7, refreshed_at=refreshed)
    assert site.post(where(PoolAccount, "change", account.pk), form).status_code == 302
    row = PoolAccount.objects.get(pk=account.pk)
    assert (row.label, row.weight_thousandths, row.floor_percent, row.priority) == ("Renamed", 2500, 20, 1)
    assert (row.credential_version, row.refreshed_at, row.access_token) == (7, refreshed, account.access_token)
    assert Organization.objects.get(pk=organization.pk).config_version == version + 1
    told = AuditEvent.objects.get(organization=organization, action="admin.changed")
    assert (told.actor, told.object_id) == (operator, str(account.uuid))
    assert told.data == {"fields": ["floor_percent", "label", "priority", "weight_thousandths"]}


def test_a_changed_plan_reaches_everybody_on_it(site: Client) -> None:
    on_it, other = factories.organization(plan="pro"), factories.organization(plan="plus")
    versions = {one.pk: Organization.objects.get(pk=one.pk).config_version for one in (on_it, other)}
    plan = Plan.objects.get(slug="pro")
    form = {"name": "Pro", "note": "changed", "multiplier_thousandths": "20000", "base_quota": "", "fast_allowed": "on",
            "models_allowed": "", "price": "", "currency": "USD", "quota_strategy": "fixed_window", "charging_mode": "reserve",
            "overage_policy": "block", "overage_cap": "", "overage_price": ""}  # fmt: skip
    assert site.post(where(Plan, "change", plan.pk), form).status_code == 302
    assert Plan.objects.get(pk=plan.pk).note == "changed"
    assert Organization.objects.get(pk=on_it.pk).config_version == versions[on_it.pk] + 1
    assert Organization.objects.get(pk=other.pk).config_version == versions[other.pk]
