"""The admin for who looks after one organization: their own rows, what their role may, and nothing of anybody else's anywhere."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib import admin
from django.contrib.sessions.backends.db import SessionStore
from django.core.cache import cache
from django.db.models import ForeignKey, Model
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import reverse

from accounts import backoffice, vouching
from accounts.models import ApiKey, ApiToken, AuditEvent, IdentityProvider, Job, Member, Organization, Team, User
from billing.models import LedgerEntry, Plan, UsageRecord
from config.clock import utc_now
from quotas.models import Alert, LimitBoost, WebhookEndpoint
from routing.models import Pool, PoolAccount
from tests import factories
from tests.accounts import admin_rows
from tests.accounts.admin_rows import OURS, Cast

pytestmark = pytest.mark.django_db
MISSING = 10**15
OF_OPERATORS = {
    "AuditHead", "Authenticator", "DeadLetter", "IdempotentCall", "InvoiceSeries", "Rate", "RateAlias", "RateCard", "RateImport",
    "SocialAccount", "UsageDrain", "UserSession",
}  # fmt: skip
OF_OWNERS = {
    "AlertRule", "ApiToken", "AuditEvent", "CreditLot", "Drift", "IdentityProvider", "Invoice", "InvoiceLine", "Job", "LedgerEntry",
    "ModelFallback", "MonthlyExport", "MonthlySend", "Organization", "Plan", "Purchase", "RateOverride", "Subscription",
    "SubscriptionPeriod", "WebhookEndpoint",
}  # fmt: skip
"""Money, settings and what they tell."""


@dataclass
class Two:
    own: Cast
    foreign: Cast
    client: Client
    member: Member

    def get(self, url: str, **query: Any) -> HttpResponse:
        return self.said(self.client.get(url, query))

    def post(self, url: str, **fields: Any) -> HttpResponse:
        return self.said(self.client.post(url, fields))

    def said(self, answer: Any) -> HttpResponse:
        """The answer, in which nothing foreign is but what was asked for."""
        asked = answer.wsgi_request.META["QUERY_STRING"]
        text = answer.content.decode() + repr(sorted(answer.headers.items()))
        found = [mark for mark in self.foreign.marks() if mark in text and mark not in asked]
        assert not found, f"{answer.wsgi_request.get_full_path()} tells {found}"
        assert self.own.secret not in text, f"{answer.wsgi_request.get_full_path()} tells a secret"
        result: HttpResponse = answer
        return result


@pytest.fixture(autouse=True)
def no_attempts_counted() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def made(count: int = 1) -> Cast:
    mark = f"Mark{admin_rows.word()}"
    of = admin_rows.cast(admin_rows.organizations(1, mark), mark)
    admin_rows.add(of, count)
    return of


def signed_in(user: User | None) -> Client:
    assert user is not None
    client = Client()
    client.force_login(user)
    return client


def two_of(role: str) -> Two:
    own, foreign = made(), made()
    member = factories.member(own.organization, role=role)
    return Two(own, foreign, signed_in(member.user), member)


@pytest.fixture(params=["owner", "lead"])
def two(request: pytest.FixtureRequest) -> Two:
    return two_of(request.param)


def where(model: type[Model], page: str, *args: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def hidden_from(two: Two, model: type[Model]) -> bool:
    return model.__name__ in OF_OPERATORS or (two.member.role == "lead" and model.__name__ in OF_OWNERS)


def state(of: Cast) -> dict[str, Any]:
    return {
        f"{model.__name__} {row.pk}": model._default_manager.filter(pk=row.pk).values().first()
        for model, rows in of.made.items()
        for row in rows
    }


def test_every_list_shows_ones_own_and_is_refused_without_the_right(two: Two) -> None:
    """Lists, their filters, counts and searches; as a popup too. What the role may not see is 403, by its own address too."""
    assert {model.__name__ for model in OURS} >= OF_OPERATORS | OF_OWNERS
    for model in OURS:
        expected = 403 if hidden_from(two, model) else 200
        answer = two.get(where(model, "changelist"))
        assert answer.status_code == expected, model
        if expected == 200:
            pk = two.own.made[model][0].pk
            assert where(model, "change", pk).encode() in answer.content, model
            assert where(model, "change", two.foreign.made[model][0].pk).encode() not in answer.content, model
            assert b"organization__id__exact" not in answer.content, model
            found = two.get(where(model, "changelist"), q=two.foreign.mark, _popup=1)
            assert where(model, "change", two.foreign.made[model][0].pk).encode() not in found.content, model
            assert two.get(where(model, "change", pk)).status_code == 200, model
        else:
            assert two.get(where(model, "change", two.own.made[model][0].pk)).status_code == 403, model


def test_a_foreign_object_is_answered_as_a_missing_one_and_nothing_of_it_changes() -> None:
    """As an owner, who may see the most; then as a lead, for whom the rest is refused whatever is asked for."""
    two, lead = two_of("owner"), two_of("lead")
    before = state(two.foreign) | state(lead.foreign)
    for model in OURS:
        walk(two, model)
        if model.__name__ in OF_OWNERS:
            walk(lead, model)
    assert state(two.foreign) | state(lead.foreign) == before
    assert two.get("/admin/").status_code == 200


def walk(two: Two, model: type[Model]) -> None:
    pk = two.foreign.made[model][0].pk
    foreign, missing = two.get(where(model, "change", pk)), two.get(where(model, "change", MISSING))
    assert foreign.status_code == missing.status_code == (403 if hidden_from(two, model) else 302), model
    assert foreign.headers.get("Location") == missing.headers.get("Location"), model
    for name in ("delete", "history"):
        assert two.get(where(model, name, pk)).status_code in (403, 404), (model, name)
    for name in ("change", "delete"):
        assert two.post(where(model, name, pk), post="yes", name="x", label="x").status_code in (302, 403), (model, name)
    assert two.post(where(model, "add"), name="x").status_code == 403
    for action in (*(str(name) for name in admin.site.get_model_admin(model).actions or ()), "delete_selected"):
        sent = two.post(where(model, "changelist"), action=action, _selected_action=[pk], index="0", select_across="1")
        assert sent.status_code in (302, 403), (model, action)


def test_no_other_page_tells_anything_foreign(two: Two) -> None:
    apps = {model._meta.app_label for model in OURS}
    for url in ("/admin/", "/admin/search/?s=a", "/admin/search/?s=a&extended=1", "/admin/jsi18n/"):
        assert two.get(url).status_code == 200, url
    assert two.get("/admin/search/", s=two.foreign.mark).status_code == 200
    for label in apps:
        assert two.get(f"/admin/{label}/").status_code in (200, 404), label
    assert two.get(f"/admin/r/1/{two.foreign.organization.pk}/").status_code == 404
    assert two.get(reverse("admin:billing_rateimport_upload")).status_code == 403
    card = two.foreign.made[next(model for model in OURS if model.__name__ == "RateImport")][0]
    assert two.get(reverse("admin:billing_rateimport_difference", args=[card.uuid])).status_code == 403
    assert two.post(reverse("admin:billing_rateimport_apply", args=[card.uuid])).status_code == 403


def test_what_is_offered_while_typing_is_ones_own(two: Two) -> None:
    """The autocomplete of every foreign key of every model: by an empty word, and of each table by the foreign one's name."""
    offered, asked_by_name = 0, set()
    for model in OURS:
        for field in model._meta.get_fields():
            remote: Any = field.related_model
            if not isinstance(field, ForeignKey) or remote not in OURS:
                continue
            asked = {"app_label": model._meta.app_label, "model_name": model._meta.model_name, "field_name": field.name}
            for term in [""] if remote in asked_by_name else ["", two.foreign.mark]:
                answer = two.get("/admin/autocomplete/", term=term, **asked)
                assert answer.status_code == (403 if hidden_from(two, remote) else 200), (model, field)
                if answer.status_code == 200:
                    ids = {row["id"] for row in json.loads(answer.content)["results"]}
                    assert str(two.foreign.made[remote][0].pk) not in ids, (model, field)
                    offered += len(ids)
            asked_by_name.add(remote)
    assert offered


@pytest.mark.parametrize(
    "query",
    [
        "organization__members__user__email={email}",
        "organization__slug__startswith=m",
        "member__user__email={email}",
        "member__user__memberships__organization__name={mark}",
        "member__user__last_organization__slug={slug}",
        "digest__startswith=S",
        "user__password__startswith=a",
    ],
)
def test_the_address_bar_asks_nothing_that_the_page_does_not(query: str) -> None:
    two = two_of("owner")
    user = two.foreign.made[User][0]
    asked = query.format(email=user.email, mark=two.foreign.mark, slug=two.foreign.organization.slug)
    for model in (ApiKey, Member, AuditEvent):
        assert two.client.get(f"{where(model, 'changelist')}?{asked}").status_code in (400, 302), model
    assert two.get(where(ApiKey, "changelist"), organization__id__exact=two.foreign.organization.pk).status_code == 200
    assert two.get(where(UsageRecord, "changelist"), member=two.foreign.made[Member][0].pk).status_code == 200


def test_the_database_alone_keeps_what_is_foreign_out(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the lists' own filters taken away."""
    monkeypatch.setattr(backoffice.OperatorAdmin, "rows_of", lambda self, member, rows: rows)
    for model in OURS:
        if hidden_from(two, model) or model in (User, Plan, Pool):
            continue
        answer = two.get(where(model, "changelist"))
        assert where(model, "change", two.own.made[model][0].pk).encode() in answer.content, model
        assert where(model, "change", two.foreign.made[model][0].pk).encode() not in answer.content, model
        assert two.get(where(model, "change", two.foreign.made[model][0].pk)).status_code == 302, model


def test_a_person_of_both_is_an_address_here_and_nothing_else() -> None:
    two = two_of("owner")
    shared = two.foreign.made[User][0]
    shared.email = f"{admin_rows.word()}@both.example"
    shared.last_organization = two.foreign.organization
    shared.save()
    Member.objects.create(organization=two.own.organization, user=shared)
    for url in (where(User, "changelist"), where(User, "change", shared.pk)):
        answer = two.get(url)
        assert shared.email.encode() in answer.content
        assert b"last_login" not in answer.content
        assert b"field-date_joined" not in answer.content
    removed = Member.objects.get(organization=two.own.organization, user=shared)
    removed.user, removed.removed_at = None, utc_now()
    removed.save()
    assert shared.email.encode() not in two.get(where(User, "changelist")).content


def test_another_customers_plan_and_the_shared_pool_are_not_shown() -> None:
    two = two_of("owner")
    offered = Plan.objects.get(slug="plus")
    shared = Pool.objects.create(organization=None, name=f"{two.foreign.mark} shared")
    account = PoolAccount.objects.create(pool=shared, kind="openai", label=two.foreign.mark, identity=admin_rows.word())
    plans, pools, accounts = (two.get(where(model, "changelist")) for model in (Plan, Pool, PoolAccount))
    assert where(Plan, "change", offered.pk).encode() in plans.content
    assert where(Plan, "change", two.own.made[Plan][0].pk).encode() in plans.content
    assert where(Pool, "change", shared.pk).encode() not in pools.content
    assert where(PoolAccount, "change", account.pk).encode() not in accounts.content
    for row in (shared, account, two.foreign.made[Plan][0]):
        assert two.get(where(type(row), "change", row.pk)).status_code == 302


# ------------------------------------------------------------------------------------------------------------------ actions


def act(two: Two, row: Model, action: str) -> int:
    return two.post(where(type(row), "changelist"), action=action, _selected_action=[row.pk], index="0").status_code


def test_a_role_does_what_the_role_may() -> None:
    lead, owner = two_of("lead"), two_of("owner")
    for of in (lead, owner):
        key, account, boost = of.own.made[ApiKey][0], of.own.made[PoolAccount][0], of.own.made[LimitBoost][0]
        assert [act(of, key, "revoke"), act(of, account, "pause"), act(of, boost, "end")] == [302, 302, 302]
        assert ApiKey.objects.get(pk=key.pk).revoked_at is not None
        assert PoolAccount.objects.get(pk=account.pk).status == "paused"
        assert LimitBoost.objects.get(pk=boost.pk).revoked_at is not None
        told = AuditEvent.objects.filter(organization=of.own.organization, actor=of.member.user)
        assert set(told.values_list("action", flat=True)) >= {"key.revoked", "account.paused", "limit.boost_ended"}
        alert = of.own.made[Alert][0]
        assert act(of, alert, "acknowledge") == 302
        assert Alert.objects.get(pk=alert.pk).acknowledged_by == of.member
    token, job, endpoint = (owner.own.made[model][0] for model in (ApiToken, Job, WebhookEndpoint))
    assert [act(owner, token, "revoke"), act(owner, job, "stop"), act(owner, endpoint, "remove")] == [302, 302, 302]
    assert ApiToken.objects.get(pk=token.pk).revoked_at is not None
    assert Job.objects.get(pk=job.pk).state == "stopped"
    assert WebhookEndpoint.objects.get(pk=endpoint.pk).removed_at is not None


def test_a_role_does_not_do_what_is_not_its_own() -> None:
    lead, owner = two_of("lead"), two_of("owner")
    before = (state(lead.own), state(owner.own))
    refused: dict[type[Model], str] = {ApiToken: "revoke", Job: "stop", WebhookEndpoint: "remove", Organization: "suspend"}
    for model, action in refused.items():
        assert act(lead, lead.own.made[model][0], action) == 403
    assert act(owner, owner.own.organization, "suspend") == 403
    assert act(owner, owner.own.made[next(m for m in OURS if m.__name__ == "Subscription")][0], "suspend") == 403
    assert act(owner, owner.own.made[next(m for m in OURS if m.__name__ == "Invoice")][0], "take_back") == 403
    for changed in (Organization, PoolAccount, Plan, Team):
        row = owner.own.made[changed][0]
        assert owner.post(where(changed, "change", row.pk), name="x", label="x").status_code == 403
    assert (state(lead.own), state(owner.own)) == before


def test_a_lead_removes_developers_only() -> None:
    two = two_of("lead")
    owner = factories.member(two.own.organization, role="owner")
    developer = two.own.made[Member][0]
    answer = two.client.post(
        where(Member, "changelist"), {"action": "remove", "_selected_action": [developer.pk, owner.pk], "index": "0"}
    )
    assert answer.status_code == 403
    assert Member.objects.filter(pk__in=[owner.pk, developer.pk], removed_at=None).count() == 2
    assert act(two, developer, "remove") == 302
    assert Member.objects.get(pk=developer.pk).removed_at is not None


# ------------------------------------------------------------------------------------------------------------ which one


def test_who_has_several_sees_one_at_a_time_and_chooses() -> None:
    first, second, third = made(), made(), made()
    member = factories.member(first.organization, role="owner")
    user = member.user
    assert user is not None
    Member.objects.create(organization=second.organization, user=user, role="lead")
    Member.objects.create(organization=third.organization, user=user, role="developer")
    client = signed_in(user)

    def shown() -> set[str]:
        content = client.get(where(Team, "changelist")).content
        return {of.mark for of in (first, second, third) if where(Team, "change", of.made[Team][0].pk).encode() in content}

    def choose(of: Cast) -> int:
        return int(client.post(reverse("admin:choose", args=[of.organization.uuid])).status_code)

    User.objects.filter(pk=user.pk).update(last_organization=second.organization)
    assert shown() == {second.mark}
    assert client.get(where(LedgerEntry, "changelist")).status_code == 403
    page = client.get("/admin/").content.decode()
    assert second.organization.name in page
    assert reverse("admin:choose", args=[first.organization.uuid]) in page
    assert reverse("admin:choose", args=[third.organization.uuid]) not in page
    assert choose(first) == 302
    assert shown() == {first.mark}
    assert client.get(where(LedgerEntry, "changelist")).status_code == 200
    assert [choose(third), choose(made())] == [404, 404]
    assert shown() == {first.mark}
    Member.objects.filter(pk=member.pk).update(role="developer")
    assert shown() == {second.mark}


def test_who_has_lost_the_right_has_lost_the_admin() -> None:
    two = two_of("owner")
    assert two.get("/admin/").status_code == 200
    for change in ({"role": "finance"}, {"role": "lead", "team": two.own.made[Team][0]}, {"is_awaited": True, "team": None}):
        Member.objects.filter(pk=two.member.pk).update(**change)
        assert two.get("/admin/").status_code == 302, change
        assert two.get(where(Team, "changelist")).status_code == 302, change
    Member.objects.filter(pk=two.member.pk).update(is_awaited=False)
    assert two.get("/admin/").status_code == 200


# ------------------------------------------------------------------------------------------------- who vouches for the session


def provided(of: Cast, user: User, **fields: Any) -> Client:
    """A client whose session the organization's provider vouches for."""
    provider = IdentityProvider.objects.get(organization=of.organization)
    IdentityProvider.objects.filter(pk=provider.pk).update(is_active=True, email_domains=[user.email.split("@")[1]], **fields)
    link = SocialAccount.objects.create(user=user, provider=str(provider.uuid), uid=admin_rows.word())
    request = HttpRequest()
    request.session = SessionStore()
    vouching.sign_in(request, user, provider, link)
    request.session.save()
    client = Client()
    client.cookies[settings.SESSION_COOKIE_NAME] = str(request.session.session_key)
    return client


def test_a_session_of_an_organizations_provider_reaches_that_organization_only() -> None:
    two = two_of("owner")
    user = two.member.user
    assert user is not None
    Member.objects.create(organization=two.foreign.organization, user=user, role="owner")
    User.objects.filter(pk=user.pk).update(last_organization=two.own.organization)
    client = provided(two.foreign, user)
    page = client.get(where(Team, "changelist")).content.decode()
    assert two.foreign.mark in page
    assert two.own.mark not in page
    assert client.post(reverse("admin:choose", args=[two.own.organization.uuid])).status_code == 404
    assert client.get(where(Team, "change", two.own.made[Team][0].pk)).status_code == 302
    User.objects.filter(pk=user.pk).update(is_superuser=True)
    assert client.get("/admin/").status_code == 302


def test_who_must_sign_in_at_the_provider_does_not_come_in_by_password() -> None:
    two = two_of("lead")
    user = two.member.user
    assert user is not None
    vouched = provided(two.own, user, is_required=True)
    assert two.client.get("/admin/").status_code == 302
    assert two.client.get(where(Team, "changelist")).status_code == 302
    assert vouched.get(where(Team, "changelist")).status_code == 200


def test_a_required_second_factor_is_required_here_too() -> None:
    two = two_of("owner")
    Organization.objects.filter(pk=two.own.organization.pk).update(second_factor="leads")
    for url in ("/admin/", where(Team, "changelist"), "/admin/search/?s=a"):
        assert two.client.get(url)["Location"] == reverse("security"), url
