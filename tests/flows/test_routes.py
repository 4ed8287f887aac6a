"""The route walker: every URL of the project, as every role of a foreign organization; nothing foreign in any answer.

A route without a rule fails `test_every_route_has_a_rule`: who adds one says here what a stranger gets.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import RoutePattern

from accounts import members
from accounts.models import AuditEvent, Member
from tests import factories, secrets
from tests.flows import tenants
from tests.flows.untouched import rows_of

pytestmark = pytest.mark.django_db(transaction=True)

PASSWORD = "a-walker's password 1"
CSRF = re.compile(rb'name="csrfmiddlewaretoken" value="\w+"')
"""Another one in every answer."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a signed-in stranger gets at a route: `get` and `post` are the statuses that may come."""

    get: tuple[int, ...]
    post: tuple[int, ...]


FOREIGN = Rule(get=(404,), post=(404,))
"""A page of an organization: as if it did not exist. Where only the other method is served, 405 says nothing either."""
OPEN = Rule(get=(200, 302), post=(200, 302, 405))
"""The same for everybody: sign-in, health."""
ADMIN = Rule(get=(302, 403, 404), post=(302, 403, 404, 405))
"""Operators only; owners and leads see their own there (`ADMINISTERED`)."""
ADMINISTERED = Rule(get=(200, 302, 403, 404, 405), post=(200, 302, 403, 404, 405))
"""The admin, for who looks after another organization: pages and lists of their own, in which nothing foreign is."""
OPERATORS = Rule(get=(302, 404), post=(302, 404))
"""Pages of operators outside the admin: for all others they do not exist; who is not signed in is asked to."""
OWN = Rule(get=(200, 302), post=(302, 405))
"""Leads to what is one's own."""

CONFIRMED = Rule(get=(302,), post=(302,))
"""A change of how one signs in: first one shows again that it is oneself."""
NOTHING_YET = Rule(get=(302, 404), post=(302, 404, 405))
"""Of a factor or of codes that one does not have."""

API = Rule(get=(401,), post=(401,))
"""A session is nobody there: a token says who calls."""

RULES: dict[str, Rule] = {
    "": OWN,
    "language": Rule(get=(405,), post=(302,)),
    "health/live": OPEN,
    "health/ready": OPEN,
    "health/status": OPEN,
    "accounts/login/": OPEN,
    "accounts/logout/": OWN,
    "accounts/inactive/": OPEN,
    "accounts/signup/": OPEN,
    "accounts/login/code/confirm/": OPEN,
    "accounts/reauthenticate/": Rule(get=(200, 302), post=(200, 302)),
    "accounts/reauthenticate/code/": Rule(get=(302, 403), post=(302, 403)),
    "accounts/reauthenticate/code/confirm/": Rule(get=(302, 403), post=(302, 403)),
    "accounts/email/": Rule(get=(200, 302), post=(200, 302)),
    "accounts/confirm-email/": OPEN,
    "accounts/confirm-email/<key>/": Rule(get=(200, 302, 404), post=(302, 404)),
    "accounts/3rdparty/": FOREIGN,
    "accounts/3rdparty/signup/": FOREIGN,
    "accounts/3rdparty/login/cancelled/": Rule(get=(200,), post=(405,)),
    "accounts/3rdparty/login/error/": Rule(get=(401,), post=(405,)),
    "accounts/social/connections/": FOREIGN,
    "accounts/social/signup/": FOREIGN,
    "accounts/social/login/cancelled/": Rule(get=(301,), post=(301,)),
    "accounts/social/login/error/": Rule(get=(301,), post=(301,)),
    "accounts/oidc/<provider_id>/login/": Rule(get=(404,), post=(405,)),
    "accounts/oidc/<provider_id>/login/callback/": Rule(get=(404,), post=(405,)),
    "accounts/sso/": Rule(get=(200,), post=(400,)),
    # Who has no provider is not told whether there is such an organization.
    "accounts/sso/<slug:slug>": Rule(get=(404,), post=(405,)),
    "accounts/oidc/<str:provider_id>/login/": Rule(get=(404,), post=(405,)),
    "accounts/oidc/<str:provider_id>/login/callback/": Rule(get=(404,), post=(405,)),
    "accounts/password/change/": Rule(get=(200, 302), post=(200, 302)),
    "accounts/password/set/": Rule(get=(200, 302), post=(200, 302)),
    "accounts/password/reset/": OPEN,
    "accounts/password/reset/done/": OPEN,
    "accounts/password/reset/key/<uidb36>-<key>/": Rule(get=(200, 302), post=(200, 302)),
    "accounts/password/reset/key/done/": OPEN,
    "accounts/security/": Rule(get=(200, 302), post=(302, 405)),
    "accounts/security/sessions/end": Rule(get=(302, 405), post=(302,)),
    "accounts/security/sessions/end-others": Rule(get=(302, 405), post=(302,)),
    # A passkey of somebody else's is as missing as none; a confirmation is asked for before either is said.
    "accounts/security/passkeys/<slug:name>/rename": CONFIRMED,
    "accounts/security/passkeys/<slug:name>/remove": CONFIRMED,
    "accounts/2fa/": OWN,
    "accounts/2fa/authenticate/": OWN,
    "accounts/2fa/reauthenticate/": OWN,
    "accounts/2fa/totp/activate/": CONFIRMED,
    "accounts/2fa/totp/deactivate/": NOTHING_YET,
    "accounts/2fa/recovery-codes/": NOTHING_YET,
    "accounts/2fa/recovery-codes/generate/": CONFIRMED,
    "accounts/2fa/recovery-codes/download/": NOTHING_YET,
    "accounts/2fa/webauthn/": OWN,
    "accounts/2fa/webauthn/add/": CONFIRMED,
    "accounts/2fa/webauthn/reauthenticate/": OWN,
    "accounts/2fa/webauthn/login/": OWN,
    "accounts/2fa/webauthn/keys/<int:pk>/remove/": NOTHING_YET,
    "accounts/2fa/webauthn/keys/<int:pk>/edit/": NOTHING_YET,
    "accounts/sessions/": OWN,
    "join/<str:token>": FOREIGN,
    "withdraw/<str:token>": FOREIGN,
    # Nobody's session matters there; a provider without a secret is unknown.
    "webhooks/payments/<slug:provider>/": Rule(get=(405,), post=(404,)),
    "ratecards/": OPERATORS,
    "ratecards/<uuid:uuid>": OPERATORS,
    "ratecards/<uuid:uuid>/apply": OPERATORS,
    "o/<slug:slug>/": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/settings": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/overview/begun": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/name": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/zone": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/unpriced": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/pool": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/terms": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/sign-in": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/settings/sign-in/policy": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/models": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/settings/models/fallback": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/models/block": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/models/<uuid:uuid>/allow": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/tokens": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/settings/tokens/issue": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/tokens/<uuid:uuid>/revoke": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/audit": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/settings/audit.csv": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/settings/identity": FOREIGN,
    "o/<slug:slug>/settings/identity/test": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/settings/identity/remove": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/key": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/key/issue": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/key/<uuid:uuid>/revoke": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/key/ask": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/key/requests/<uuid:uuid>/withdraw": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/key/<uuid:uuid>/rotate": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/members": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/members/invite": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/members/limits": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/members/limits/<uuid:uuid>": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/members/limits/<uuid:uuid>/remove": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/members/limits/<uuid:uuid>/boost": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/members/boosts/<uuid:uuid>/end": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/members/requests/<uuid:uuid>": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/members/bulk": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/members/undo": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/members/<uuid:uuid>": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/members/<uuid:uuid>/change": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/members/<uuid:uuid>/remove": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/alerts": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/alerts/rules": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/alerts/endpoints": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/alerts/endpoints/<uuid:uuid>/test": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/alerts/endpoints/<uuid:uuid>/rotate": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/alerts/endpoints/<uuid:uuid>/resume": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/alerts/endpoints/<uuid:uuid>/remove": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/alerts/<uuid:uuid>/acknowledge": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/overview": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/pool": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/pool/new": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/add/browser": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/add/browser/<uuid:uuid>": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/add/device": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/add/device/<uuid:uuid>": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/add/files": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/add/key": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/accounts/<uuid:uuid>": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/accounts/<uuid:uuid>/pause": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/accounts/<uuid:uuid>/resume": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/accounts/<uuid:uuid>/poll": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/accounts/<uuid:uuid>/move": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/accounts/<uuid:uuid>/link": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/accounts/<uuid:uuid>/remove": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/pool/<uuid:uuid>/strategy": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/requests": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/requests/<str:name>": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/members.csv": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/jobs": FOREIGN,
    "o/<slug:slug>/jobs/<uuid:uuid>": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/jobs/<uuid:uuid>/file": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/jobs/<uuid:uuid>/stop": Rule(get=(405,), post=(404,)),
    "files/<str:token>": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/invoices": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/invoices/plan": FOREIGN,
    "o/<slug:slug>/invoices/plan/keep": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/invoices/monthly": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/invoices/monthly/<uuid:uuid>/again": Rule(get=(405,), post=(404,)),
    "o/<slug:slug>/invoices/ledger.csv": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/invoices/<uuid:uuid>": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/invoices/<uuid:uuid>.csv": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/usage": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/usage/totals.csv": Rule(get=(404,), post=(405,)),
    "o/<slug:slug>/usage/requests.csv": Rule(get=(404,), post=(405,)),
    "api/v1/schema": OPEN,
    "api/v1/docs": OPEN,
    "api/v1/status": API,
    "api/v1/usage": API,
    "api/v1/me": API,
    "api/v1/members": API,
    "api/v1/members/<uuid:uuid>": API,
    "api/v1/members/<uuid:uuid>/invitations": API,
    "api/v1/teams": API,
    "api/v1/teams/<uuid:uuid>": API,
    "api/v1/invitations": API,
    "api/v1/invitations/<uuid:uuid>": API,
    "api/v1/keys": API,
    "api/v1/keys/<uuid:uuid>": API,
    "api/v1/keys/<uuid:uuid>/rotate": API,
    "api/v1/limits": API,
    "api/v1/limits/<uuid:uuid>": API,
    "api/v1/limits/<uuid:uuid>/boosts": API,
    "api/v1/boosts/<uuid:uuid>": API,
    "api/v1/limit-requests": API,
    "api/v1/limit-requests/<uuid:uuid>": API,
    "api/v1/limit-requests/<uuid:uuid>/withdraw": API,
    "api/v1/limit-requests/<uuid:uuid>/approve": API,
    "api/v1/limit-requests/<uuid:uuid>/deny": API,
    "api/v1/refusals": API,
    "api/v1/pool-glance": API,
    "api/v1/pools": API,
    "api/v1/pools/<uuid:uuid>": API,
    "api/v1/pools/<uuid:uuid>/route": API,
    "api/v1/sign-in-terms": API,
    "api/v1/accounts/keys": API,
    "api/v1/accounts/files": API,
    "api/v1/sign-ins": API,
    "api/v1/sign-ins/<uuid:uuid>": API,
    "api/v1/sign-ins/<uuid:uuid>/finish": API,
    "api/v1/sign-ins/<uuid:uuid>/poll": API,
    "api/v1/accounts": API,
    "api/v1/accounts/<uuid:uuid>": API,
    "api/v1/accounts/<uuid:uuid>/pause": API,
    "api/v1/accounts/<uuid:uuid>/resume": API,
    "api/v1/accounts/<uuid:uuid>/poll": API,
    "api/v1/accounts/<uuid:uuid>/move": API,
    "api/v1/accounts/<uuid:uuid>/withdrawal-link": API,
    "api/v1/alerts": API,
    "api/v1/alerts/<uuid:uuid>": API,
    "api/v1/alerts/<uuid:uuid>/acknowledge": API,
    "api/v1/alert-deliveries": API,
    "api/v1/alert-rules": API,
    "api/v1/alert-rules/<str:kind>": API,
    "api/v1/quota-forecast": API,
    "api/v1/webhook-endpoints": API,
    "api/v1/webhook-endpoints/<uuid:uuid>": API,
    "api/v1/webhook-endpoints/<uuid:uuid>/test": API,
    "api/v1/webhook-endpoints/<uuid:uuid>/secret": API,
    "api/v1/webhook-endpoints/<uuid:uuid>/resume": API,
    "api/v1/requests": API,
    "api/v1/requests/<str:name>": API,
    "api/v1/plan": API,
    "api/v1/plan/keep": API,
    "api/v1/plan/change": API,
    "api/v1/plans": API,
    "api/v1/seats": API,
    "api/v1/credits": API,
    "api/v1/credit-lots": API,
    "api/v1/ledger": API,
    "api/v1/invoices": API,
    "api/v1/invoices/<uuid:uuid>": API,
    "api/v1/audit-events": API,
    "api/v1/audit-head": API,
    "api/v1/exports": API,
    "api/v1/exports/<uuid:uuid>": API,
    "api/v1/exports/<uuid:uuid>/stop": API,
    "api/v1/exports/<uuid:uuid>/link": API,
    "api/v1/settings": API,
    "api/v1/settings/zone-preview": API,
    "api/v1/settings/sign-in-policy-preview": API,
    "api/v1/settings/sign-in-terms": API,
    "api/v1/settings/identity-provider": API,
    "api/v1/settings/identity-provider/test": API,
    "api/v1/fallbacks": API,
    "api/v1/blocked-models": API,
    "api/v1/blocked-models/<uuid:uuid>": API,
    "api/v1/tokens": API,
    "api/v1/tokens/<uuid:uuid>": API,
    "api/v1/<rest>": FOREIGN,
}


def routes(patterns: Any = None, prefix: str = "") -> Iterator[str]:
    """Every route of the project's URL table, spelled as declared; regular expressions as named groups."""
    for entry in patterns if patterns is not None else get_resolver().url_patterns:
        if isinstance(entry.pattern, RoutePattern):
            text = str(entry.pattern)
        else:
            text = spelled(entry.pattern.regex.pattern)
        if isinstance(entry, URLResolver):
            yield from routes(entry.url_patterns, prefix + text)
        elif isinstance(entry, URLPattern):
            yield prefix + text


def spelled(regex: str) -> str:
    text = regex.removeprefix("^").removesuffix("$").removesuffix(r"\Z")
    text = re.sub(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)", r"<\1>", text)
    return text.replace("\\", "")


def rule_of(route: str) -> Rule | None:
    return ADMIN if route.startswith("admin/") else RULES.get(route)


def test_every_route_has_a_rule() -> None:
    missing = sorted(route for route in routes() if rule_of(route) is None)
    assert not missing, f"routes without a rule: {missing}"


def test_every_rule_has_a_route() -> None:
    assert set(RULES) <= set(routes())


@dataclass(frozen=True, slots=True)
class World:
    """The foreign organization's things, and what names them."""

    tenant: tenants.Tenant
    marks: frozenset[bytes]

    def url(self, route: str) -> str:
        values = {
            "slug": self.tenant.organization.slug,
            "uuid": str(self.tenant.key.row.uuid),
            "token": "no-such-token",
            "object_id": str(self.tenant.key.row.pk),
            "content_type_id": "1",
            "app_label": "accounts",
            "key": "k",
            "uidb36": "1",
            "url": "x",
        }
        return "/" + re.sub(r"<(?:\w+:)?(\w+)>", lambda found: values.get(found[1], "1"), route)


@pytest.fixture
def world() -> World:
    tenant = tenants.make()
    account = tenant.account
    assert account is not None
    assert tenant.member.user is not None
    marks = {
        tenant.organization.name,
        tenant.organization.slug,
        str(tenant.organization.uuid),
        tenant.member.user.email,
        str(tenant.member.uuid),
        str(tenant.key.row.uuid),
        tenant.key.row.public_id,
        account.label,
        str(account.uuid),
    }
    return World(tenant, frozenset(mark.encode() for mark in marks))


@pytest.mark.parametrize("role", [*Member.Role.values, "nobody"])
def test_nothing_foreign_is_in_any_answer(world: World, role: str, settings: Any) -> None:
    """J5 in part: every route x every role of another organization (or none); 404 as for a missing one, nothing changed."""
    client = Client(raise_request_exception=False)
    if role != "nobody":
        home = factories.organization()
        stranger = members.add(home, f"{factories.unique(role)}@elsewhere.example", role=role, by=None, password=PASSWORD)
        assert stranger.user is not None
        client.force_login(stranger.user)
    before = rows_of(world.tenant.organization)
    for route in routes():
        rule = rule_of(route)
        assert rule is not None
        url = world.url(route)
        if rule is ADMIN and role in (Member.Role.LEAD, Member.Role.OWNER):
            rule = ADMINISTERED
        if role == "nobody" and route.startswith("o/"):
            rule = Rule(get=(302, 405), post=(302, 405))
        for method, allowed in (("get", rule.get), ("post", rule.post)):
            if route in ("accounts/logout/", "admin/logout/") and method == "post":
                continue
            answer = getattr(client, method)(url)
            content = b"".join(answer.streaming_content) if answer.streaming else answer.content
            head = repr(sorted(answer.headers.items())).encode()
            secrets.record_answer(f"{method} {route}", head + content)
            said = content.replace(url.encode(), b"") + head.replace(url.encode(), b"")
            said = said.replace(url.lstrip("/").encode(), b"")
            assert answer.status_code in allowed, f"{role} {method} {url}: {answer.status_code}"
            found = [mark for mark in world.marks if mark in said]
            assert not found, f"{role} {method} {url} tells {found}"
    assert rows_of(world.tenant.organization) == before


def test_each_attempt_at_a_foreign_thing_is_told_once_in_the_own_trail(world: World) -> None:
    """J5: every page with an id in its path, asked within one's own organization with ids of another: as with ids of nothing."""
    stranger = members.add(factories.organization(), f"{factories.unique('owner')}@elsewhere.example", role="owner", by=None)
    organization = stranger.organization
    assert stranger.user is not None
    client = Client(raise_request_exception=False)
    client.force_login(stranger.user)
    before = rows_of(world.tenant.organization)
    foreign, nothing = str(world.tenant.key.row.uuid), "00000000-0000-4000-8000-000000000000"
    asked = set()
    for route in routes():
        if not route.startswith("o/<slug:slug>/") or route.count("<") < 2:
            continue
        own = world.url(route).replace(world.tenant.organization.slug, organization.slug)
        for method, ask in (("GET", client.get), ("POST", client.post)):
            answers = [ask(url, {"pasted": "?code=c&state=s"}) for url in (own, own.replace(foreign, nothing))]
            statuses = {answered.status_code for answered in answers}
            assert statuses in ({404}, {405}), f"{method} {route}: {statuses}"
            if statuses == {404}:
                said = [CSRF.sub(b"", answered.content).replace(foreign.encode(), nothing.encode()) for answered in answers]
                assert said[0] == said[1], f"{method} {route}"
                asked.add((method, route))
    assert len(asked) > 30
    assert rows_of(world.tenant.organization) == before
    events = AuditEvent.objects.filter(organization=organization, action="missing.asked")
    assert sorted((event.data["method"], event.data["route"]) for event in events) == sorted(asked)
    written = repr([(event.actor_label, event.object_id, event.data) for event in events]).encode()
    assert not [mark for mark in world.marks if mark in written]


@pytest.mark.parametrize("route", ["o/<slug:slug>/key", "o/<slug:slug>/members", "o/<slug:slug>/overview", "o/<slug:slug>/"])
def test_a_foreign_organization_is_answered_exactly_as_a_missing_one(world: World, route: str) -> None:
    client = Client(raise_request_exception=False)
    home = factories.organization()
    stranger = members.add(home, f"{factories.unique('lead')}@elsewhere.example", role="owner", by=None, password=PASSWORD)
    assert stranger.user is not None
    client.force_login(stranger.user)
    foreign = client.get(world.url(route))
    missing = client.get(world.url(route).replace(world.tenant.organization.slug, "no-such-organization"))
    assert (foreign.status_code, foreign.content) == (missing.status_code, missing.content)


def test_ones_own_without_the_right_is_403() -> None:
    organization = factories.organization()
    finance = factories.member(organization, role="finance", password=PASSWORD)
    assert finance.user is not None
    client = Client()
    client.force_login(finance.user)
    assert client.get(f"/o/{organization.slug}/key").status_code == 403
    assert client.post(f"/o/{organization.slug}/key/issue", {"name": "x"}).status_code == 403
    assert finance.api_keys.count() == 0
