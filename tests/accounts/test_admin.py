"""The operators' pages: reached through allauth, read-only where it must be, without a secret."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.core.cache import cache
from django.db import connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts import members
from accounts.models import ApiKey, AuditEvent, Invitation, Job, Member, Organization, Team, User
from billing import usage
from billing.events import Body, UsageEvent
from billing.models import Plan, Subscription, UsageRecord
from config.clock import utc_now
from quotas.models import AlertDelivery
from routing.models import PoolAccount
from tests import factories
from tests.accounts import admin_rows
from tests.accounts.admin_rows import OURS, Cast

pytestmark = pytest.mark.django_db


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
    assert set(admin_rows.BUILT) | {Organization} == set(OURS), "add a row of the new model to tests/accounts/admin_rows.py"
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


@pytest.mark.parametrize("role", ["developer", "finance", "lead of a team", "nobody"])
def test_who_may_not_come_in_is_refused(role: str) -> None:
    organization = factories.organization(plan=None)
    if role == "nobody":
        user = User.objects.create_user(f"{factories.unique('staff')}@elsewhere.example", is_staff=True)
    else:
        team = factories.team(organization) if role == "lead of a team" else None
        person = factories.member(organization, role=role.split()[0], team=team).user
        assert person is not None
        user = person
    client = Client()
    client.force_login(user)
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


def test_lists_search(site: Client) -> None:
    """The log too, by whole words: a request's id, an organization's slug, a member's address."""
    organization = factories.organization()
    record = logged(member := factories.member(organization, team=factories.team(organization)))
    assert member.user is not None
    factories.openai_account(organization)
    for model in OURS:
        answer = site.get(where(model, "changelist"), {"q": organization.slug})
        assert answer.status_code == 200, model
    for term in (organization.slug, record.request_id, member.user.email):
        assert b"0.000006" in site.get(where(UsageRecord, "changelist"), {"q": term}).content, term
    assert b"0.000006" not in site.get(where(UsageRecord, "changelist"), {"q": record.request_id[:-1]}).content


def test_nothing_can_be_added_or_deleted_and_no_secret_is_shown(site: Client) -> None:
    organization = factories.organization()
    record = logged(member := factories.member(organization))
    account, token = factories.openai_account(organization)
    key = factories.api_key(member)
    invitation = Invitation.objects.create(organization=organization, email="a@b.example", digest="f" * 64, expires_at=utc_now())
    assert member.user is not None
    user = User.objects.get(pk=member.user.pk)
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
    told = AuditEvent.objects.get(organization=organization, action="account.changed")
    assert (told.actor, told.object_id) == (operator, str(account.uuid))
    assert told.data["after"] == {"label": "Renamed", "weight_thousandths": 2500, "floor_percent": 20, "priority": 1}


def test_what_an_account_serves_is_narrowed_and_lifted(site: Client) -> None:
    account, _ = factories.openai_account(factories.organization())
    form = {"label": account.label, "floor_percent": "0", "priority": "10"}
    served = ("models_served", "efforts_served", "tiers_served")
    for text, stored in (("b,a", ["a", "b"]), ("", None)):
        assert site.post(where(PoolAccount, "change", account.pk), {**form, **dict.fromkeys(served, text)}).status_code == 302
        account.refresh_from_db()
        assert [getattr(account, name) for name in served] == [stored] * 3


def test_who_is_switched_off_is_refused_in_each_of_their_organizations(site: Client) -> None:
    first, second, other = (factories.organization() for _ in range(3))
    member = factories.member(first)
    assert member.user is not None
    members.add(second, member.user.email, role="developer", by=None)
    versions = {one.pk: Organization.objects.get(pk=one.pk).config_version for one in (first, second, other)}
    assert site.post(where(User, "change", member.user.pk), {"is_active": ""}).status_code == 302
    assert not User.objects.get(pk=member.user.pk).is_active
    now = {one.pk: Organization.objects.get(pk=one.pk).config_version for one in (first, second, other)}
    assert now == {first.pk: versions[first.pk] + 1, second.pk: versions[second.pk] + 1, other.pk: versions[other.pk]}


def test_a_changed_plan_reaches_everybody_on_it(site: Client) -> None:
    on_it, other = factories.organization(plan="pro"), factories.organization(plan="plus")
    versions = {one.pk: Organization.objects.get(pk=one.pk).config_version for one in (on_it, other)}
    plan = Plan.objects.get(slug="pro")
    form = {"name": "Pro", "note": "changed", "multiplier_thousandths": "20000", "base_quota": "", "fast_allowed": "on",
            "models_allowed": "", "price": "", "currency": "USD", "quota_strategy": "fixed_window", "charging_mode": "reserve",
            "overage_policy": "block", "overage_cap": "", "overage_price": "", "is_offered": "on"}  # fmt: skip
    assert site.post(where(Plan, "change", plan.pk), form).status_code == 302
    assert Plan.objects.get(pk=plan.pk).note == "changed"
    assert Organization.objects.get(pk=on_it.pk).config_version == versions[on_it.pk] + 1
    assert Organization.objects.get(pk=other.pk).config_version == versions[other.pk]


def test_what_the_domain_refuses_is_said_on_the_form_and_not_written(site: Client) -> None:
    account, _ = factories.openai_account(factories.organization())
    form = {"label": "x", "floor_percent": "0", "priority": "101", "models_served": ""}
    answer = site.post(where(PoolAccount, "change", account.pk), form, follow=True)
    assert "Tiers are -100 to 100" in answer.content.decode()
    assert PoolAccount.objects.get(pk=account.pk).label == account.label


def test_every_list_takes_as_many_queries_for_thirty_rows_as_for_three(site: Client) -> None:
    """Rows of as many organizations and people."""
    made = admin_rows.cast(admin_rows.organizations(30, f"Mark{admin_rows.word()}"), f"Mark{admin_rows.word()}")
    admin_rows.add(made, 3)
    site.get(where(Team, "changelist"))
    few = {model: queries(site, made, model) for model in OURS}
    admin_rows.add(made, 27)
    many = {model: queries(site, made, model) for model in OURS}
    assert {model.__name__: (few[model], many[model]) for model in OURS if few[model] != many[model]} == {}
    assert {model.__name__: count for model, count in many.items() if count > 9} == {}


def test_no_page_of_a_row_shows_a_secret(site: Client) -> None:
    made = admin_rows.cast(admin_rows.organizations(1, f"Mark{admin_rows.word()}"), f"Mark{admin_rows.word()}")
    admin_rows.add(made, 1)
    for model in OURS:
        url = where(model, "change", made.made[model][0].pk)
        answer = site.get(url)
        assert answer.status_code == 200, url
        assert made.secret not in answer.content.decode(), url


def queries(site: Client, made: Cast, model: type[models.Model]) -> int:
    """How many a list takes, in which no secret is."""
    with CaptureQueriesContext(connection) as asked:
        answer = site.get(where(model, "changelist"))
    assert answer.status_code == 200, model
    assert made.secret not in answer.content.decode(), model
    return len(asked)


@pytest.mark.parametrize(
    "query",
    ["digest__startswith=a", "digest=a", "member__user__password__startswith=a", "organization__members__user__email=a@b.example",
     "member__user__email=a@b.example", "pepper_id=p"],
)  # fmt: skip
def test_hidden_fields_and_what_lies_behind_relations_cannot_be_asked_for(site: Client, query: str) -> None:
    assert site.get(f"{where(ApiKey, 'changelist')}?{query}").status_code == 400


def test_the_admin_has_no_door_of_its_own(site: Client) -> None:
    assert site.get("/admin/password_change/")["Location"] == reverse("account_change_password")
    assert site.get("/admin/r/1/1/").status_code == 404
    assert site.get("/admin/login/?next=https://elsewhere.example/")["Location"] == "/admin/"


def test_pages_are_found_by_name_and_nothing_is_remembered(site: Client) -> None:
    assert b"Ledger" in site.get("/admin/search/?s=ledger").content
    assert site.get("/admin/search/?s=ledger&page=x&extended").status_code == 200
    assert site.get("/admin/search/").content == b""


def test_a_delivery_that_was_given_up_begins_anew(site: Client, operator: User) -> None:
    made = admin_rows.cast(admin_rows.organizations(1, f"Mark{admin_rows.word()}"), "x")
    admin_rows.add(made, 1)
    delivery = made.made[AlertDelivery][0]
    act(site, delivery, "retry")
    row = AlertDelivery.objects.get(pk=delivery.pk)
    assert (row.status, row.attempts) == ("pending", 0)
    assert AuditEvent.objects.get(organization=made.organization, action="alert.delivery_retried").actor == operator
    act(site, delivery, "retry")
    assert AuditEvent.objects.filter(organization=made.organization, action="alert.delivery_retried").count() == 1


def test_a_job_is_stopped_and_an_account_paused_by_the_domain(site: Client) -> None:
    made = admin_rows.cast(admin_rows.organizations(1, f"Mark{admin_rows.word()}"), "x")
    admin_rows.add(made, 1)
    job, account = made.made[Job][0], made.made[PoolAccount][0]
    act(site, job, "stop")
    assert Job.objects.get(pk=job.pk).state == "stopped"
    act(site, account, "pause")
    assert PoolAccount.objects.get(pk=account.pk).status == "paused"
    act(site, account, "resume")
    assert PoolAccount.objects.get(pk=account.pk).status == "active"
    told = AuditEvent.objects.filter(organization=made.organization).exclude(action="x.y").order_by("pk")
    assert list(told.values_list("action", flat=True)) == ["job.stopped", "account.paused", "account.resumed"]
