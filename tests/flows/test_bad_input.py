"""Every form and every parameter, given what nobody should send: a 4xx answer with a sentence, and not a row is changed."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from accounts import api_tokens
from accounts.models import AuditHead, Member
from config.clock import utc_now
from quotas import limits, requests
from quotas.models import Limit, LimitRequest, WebhookEndpoint
from tests import secrets
from tests.flows import tenants
from tests.flows.untouched import TRAIL, actions_since, moved, rows_of

pytestmark = pytest.mark.django_db(transaction=True)

JUNK = (
    "",
    "a\x00b",
    "-1",
    "1e400",
    "NaN",
    "²",
    "9" * 5000,
    "9999-12-31",
    "0001-01-01",
    "2026-02-30",
    "00000000-0000-0000-0000-000000000000",
    "\u202eevil",
    "<script>alert(1)</script>",
)
"""What a person, a script or a scanner types: where a number, a day, an id, a choice or a name belongs."""


@pytest.fixture
def tenant() -> tenants.Tenant:
    return tenants.make()


@pytest.fixture
def owner(tenant: tenants.Tenant) -> Member:
    return tenant.organization.members.get(role="owner")


@pytest.fixture
def client(owner: Member) -> Client:
    signed_in = Client(raise_request_exception=False)
    assert owner.user is not None
    signed_in.force_login(owner.user)
    return signed_in


def limit_of(tenant: tenants.Tenant) -> Limit:
    made = limits.set_limit(tenant.organization, scope="organization", of="", metric="credits", window="day", amount="5")
    assert made is not None
    return Limit.objects.get(uuid=made)


def request_of(tenant: tenants.Tenant, limit: Limit) -> LimitRequest:
    now = utc_now()
    return requests.ask(tenant.member, limit, extra="1", until=now + timedelta(days=2), by=tenant.member.user, now=now)


def endpoint_of(tenant: tenants.Tenant) -> WebhookEndpoint:
    return WebhookEndpoint.objects.create(
        organization=tenant.organization, name="Chat", format="standard", origin="https://chat.example"
    )


def newest(tenant: tenants.Tenant) -> int:
    return AuditHead.objects.get(organization=tenant.organization).number


def assert_nothing_moved(tenant: tenants.Tenant, before: dict[str, str], number: int) -> None:
    """But the trail, which tells that somebody asked for what is not there."""
    assert moved(tenant.organization, before) <= TRAIL
    assert actions_since(tenant.organization, number) <= {"missing.asked"}


TAKEN: dict[str, dict[str, str]] = {
    "key/ask": {"limit": "{limit}", "extra": "1", "until": "{day}", "note": "why"},
    "members/invite": {"email": "new@bad.example", "role": "developer"},
    "members/limits": {"level": "organization", "metric": "credits", "window": "7d", "amount": "1"},
    "members/limits/{limit}": {"amount": "7"},
    "members/limits/{limit}/boost": {"extra": "1", "until": "{day}"},
    "members/requests/{request}": {"decision": "approve"},
    "members/{member}/change": {"role": "lead"},
    "members/{member}/remove": {"confirm": "{name}"},
    "key/{key}/revoke": {"confirm": "laptop"},
    "invoices/plan": {"plan": "pro", "when": "next", "promise": "x"},
    "invoices/monthly": {"files": "ledger", "recipients": "{key}"},
    "jobs": {"what": "usage_rows", "range": "custom", "from": "{day}", "to": "{day}"},
    "alerts/rules": {"kind": "limit", "on": "0"},
    "alerts/endpoints": {"name": "Chat", "url": "http://10.0.0.1/x", "format": "standard"},
    "alerts/endpoints/{endpoint}/remove": {"confirm": "Chat"},
    "settings/zone": {"zone": "Europe/Berlin"},
    "settings/unpriced": {"rule": "refuse"},
    "settings/pool": {"shown": "1"},
    "settings/sign-in/policy": {"policy": "everyone"},
    "pool/add/browser": {"accept_terms": "", "plan": "pro_200"},
    "pool/add/browser/{key}": {"pasted": "?code=c&state=s"},
    "pool/add/device": {"accept_terms": "", "plan": "pro_200"},
    "pool/add/device/{key}": {"floor_percent": "5", "priority": "1"},
    "pool/add/files": {"accept_terms": "", "plan": "pro_200"},
    "pool/add/key": {"kind": "openai_compatible", "label": "Key", "base_url": "http://10.0.0.1/v1", "api_key": "sk-0123456789"},
    "pool/accounts/{account}": {"floor_percent": "5", "concurrency_cap": "3", "priority": "1", "weight": "2"},
    "pool/accounts/{account}/move": {"pool": "{key}"},
    "pool/accounts/{account}/remove": {"confirm": "{account_name}"},
    "pool/{pool}/strategy": {"strategy": "pace", "safety": "4", "loyalty": "1", "base_short": "225", "base_weekly": "1500"},
}
"""Forms with what they take; each field holds junk in turn. Fields that take any text are not here."""
ANY_TEXT = frozenset({"note"})
REDIRECTED = frozenset({"confirm", "pool"})
"""A name that was not typed right leads back to the page, which says so."""


@pytest.mark.parametrize("path", TAKEN)
def test_a_form_with_one_wrong_field_is_refused_and_changes_nothing(tenant: tenants.Tenant, client: Client, path: str) -> None:
    limit = limit_of(tenant)
    assert tenant.account is not None
    names = {
        "limit": str(limit.uuid),
        "request": str(request_of(tenant, limit).uuid),
        "member": str(tenant.member.uuid),
        "name": str(tenant.member),
        "key": str(tenant.key.row.uuid),
        "account": str(tenant.account.uuid),
        "account_name": tenant.account.label,
        "pool": str(tenant.account.pool.uuid),
        "endpoint": str(endpoint_of(tenant).uuid),
        "day": (utc_now() + timedelta(days=3)).date().isoformat(),
    }
    url = f"/o/{tenant.organization.slug}/{path.format(**names)}"
    taken = {name: value.format(**names) for name, value in TAKEN[path].items()}
    before, number = rows_of(tenant.organization), newest(tenant)
    for field in taken.keys() - ANY_TEXT:
        for junk in JUNK:
            if (field, junk) in {("promise", ""), ("when", "")}:
                continue
            answered = client.post(url, {**taken, field: junk})
            about = f"{field}={junk[:40]!r}: {answered.status_code}"
            assert 400 <= answered.status_code < 500 or (field in REDIRECTED and answered.status_code == 302), about
            assert "<script>alert" not in answered.content.decode(), about
    assert_nothing_moved(tenant, before, number)


QUERIES: dict[str, tuple[str, ...]] = {
    "key": ("ask",),
    "members": ("edit", "more", "new", "invite"),
    "members/{member}": ("edit", "more", "new"),
    "alerts": ("add", "before"),
    "overview": ("by",),
    "pool": ("pool", "open", "add", "flow", "model", "effort", "dialect"),
    "requests": ("range", "from", "to", "member", "team", "key", "model", "account", "status", "q", "before", "after"),
    "usage": ("by", "range", "month", "from", "to"),
    "usage/totals.csv": ("by", "range", "month", "from", "to", "bom"),
    "usage/requests.csv": ("range", "month", "from", "to", "bom"),
    "invoices": ("before", "entries"),
    "jobs": ("before",),
    "members.csv": ("bom",),
    "invoices/plan": ("plan", "when"),
    "invoices/ledger.csv": ("bom",),
    "settings": ("zone",),
    "settings/audit": ("who", "kind", "from", "to", "object", "before", "after"),
    "settings/audit.csv": ("who", "kind", "from", "to", "object", "bom"),
    "settings/models": ("edit", "fallback", "block"),
    "settings/tokens": ("issue",),
}
BESIDE = {
    "from": {"range": "custom", "to": "2026-11-03"},
    "to": {"range": "custom", "from": "2026-11-01"},
    "month": {"range": "month"},
    "when": {"plan": "pro"},
    "flow": {"add": "browser"},
    "effort": {"model": "gpt-5.5"},
    "dialect": {"model": "gpt-5.5"},
}


@pytest.mark.parametrize("page", QUERIES)
def test_a_page_asked_for_with_junk_is_shown_or_refused(tenant: tenants.Tenant, client: Client, page: str) -> None:
    url = f"/o/{tenant.organization.slug}/{page.format(member=tenant.member.uuid)}"
    before, number = rows_of(tenant.organization), newest(tenant)
    for name in QUERIES[page]:
        for junk in JUNK:
            answered: Any = client.get(url, {**BESIDE.get(name, {}), name: junk})
            content = b"".join(answered.streaming_content) if answered.streaming else answered.content
            assert answered.status_code < 500, f"{name}={junk[:40]!r}"
            assert b"<script>alert" not in content or answered["content-type"].startswith("text/plain"), f"{name}={junk[:40]!r}"
    assert_nothing_moved(tenant, before, number)


@pytest.mark.parametrize(("path", "names"), [("usage", ("by", "start", "end", "member", "team", "other")), ("status", ("other",))])
def test_the_api_refuses_junk_by_a_sentence(tenant: tenants.Tenant, owner: Member, path: str, names: tuple[str, ...]) -> None:
    token = api_tokens.issue(owner, name="t", by=None, now=utc_now())
    headers = {"authorization": f"Bearer {secrets.register(token.secret, 'API token')}"}
    client = Client(raise_request_exception=False)
    days = {"start": "2026-11-01", "end": "2026-11-03"}
    for name in names:
        for junk in JUNK:
            answered = client.get(f"/api/v1/{path}", {**(days if name in days else {}), name: junk}, headers=headers)
            about = f"{name}={junk[:40]!r}: {answered.status_code}"
            assert 400 <= answered.status_code < 500, about
            error = answered.json()["error"]
            assert re.search(r"\w", error["message"]), about
            assert error["code"] != "error", about


@pytest.mark.parametrize(
    "text", ["", "Bearer", "Bearer ", "Basic eDp5", "Bearer wt_", "Bearer wt_x_y", "Bearer wr_x_y", "Bearer é", "Token x"]
)
def test_a_credential_that_is_none_is_401(text: str) -> None:
    assert Client(raise_request_exception=False).get("/api/v1/status", headers={"authorization": text}).status_code == 401


def test_a_link_and_a_slug_of_junk_are_404(client: Client) -> None:
    for junk in ("%00", "%F0%9F%98%80", "%C0%80", "%2e%2e", "x" * 3000):
        assert client.get(f"/join/{junk}").status_code == 404
        assert client.get(f"/o/{junk}/key").status_code == 404
