"""Every door that changes something: who may not, and that nothing happens without the page's own token."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from accounts.models import AuditEvent, Member, Organization
from config.clock import utc_now
from quotas import limits, requests
from quotas.models import Alert, Limit, WebhookEndpoint
from routing import oauth
from tests import factories
from tests.flows import tenants
from tests.flows.untouched import TRAIL, moved, rows_of

pytestmark = pytest.mark.django_db(transaction=True)


class World:
    """Two teams, Quality with a lead, a developer, a limit, a boost and a request; the other team's lead, and all other roles."""

    def __init__(self) -> None:
        tenant = tenants.make(account="none")
        self.organization: Organization = tenant.organization
        quality, platform = factories.team(self.organization, "Quality"), factories.team(self.organization, "Platform")
        self.developer = factories.member(self.organization, team=quality)
        self.key = factories.api_key(self.developer)
        self.team = quality
        self.people: dict[str, Member] = {
            "developer of the same team": factories.member(self.organization, team=quality),
            "lead of another team": factories.member(self.organization, role="lead", team=platform),
            "finance": factories.member(self.organization, role="finance"),
            "finance of the team": factories.member(self.organization, role="finance", team=quality),
        }
        made = limits.set_limit(
            self.organization, scope="member", of=self._email(), metric="credits", window="day", amount="5", by=None
        )
        assert made is not None
        self.limit = Limit.objects.get(uuid=made)
        now = utc_now()
        until = now + timedelta(days=2)
        self.boost = limits.boost(self.limit, extra=1, until=until, reason="", by=None, now=now)
        self.request = requests.ask(self.developer, self.limit, extra="1", until=until, by=self.developer.user, now=now)
        self.day = until.date().isoformat()
        self.account, _ = factories.openai_account(self.organization)
        self.alert = Alert.objects.create(
            organization=self.organization, kind="limit", line=80, scope="limit:x", period="day:1", team=quality, told_at=now
        )
        self.endpoint = WebhookEndpoint.objects.create(
            organization=self.organization, name="Chat", format="standard", origin="https://chat.example", disabled_at=now
        )
        self.flow = oauth.start(self.organization, accept_terms=True, by=None, now=now).flow_id

    def _email(self) -> str:
        assert self.developer.user is not None
        return self.developer.user.email

    def posts(self) -> dict[str, dict[str, str]]:
        """Each change of the developer of Quality, or above it, as its page would send it."""
        name = str(self.developer)
        return {
            f"key/{self.key.row.uuid}/rotate": {"grace": "0"},
            f"key/{self.key.row.uuid}/revoke": {"confirm": "laptop"},
            f"key/requests/{self.request.uuid}/withdraw": {},
            "members/invite": {"email": "new@doors.example", "role": "developer", "team": "Quality"},
            "members/limits": {"level": f"member:{self.developer.uuid}", "metric": "credits", "window": "7d", "amount": "1"},
            f"members/limits/{self.limit.uuid}": {"amount": "500"},
            f"members/limits/{self.limit.uuid}/remove": {},
            f"members/limits/{self.limit.uuid}/boost": {"extra": "1", "until": self.day},
            f"members/boosts/{self.boost.uuid}/end": {},
            f"members/requests/{self.request.uuid}": {"decision": "approve"},
            f"members/{self.developer.uuid}/change": {"role": "developer", "team": "Platform"},
            f"members/{self.developer.uuid}/remove": {"confirm": name},
            "pool/add/browser": {"accept_terms": "on"},
            f"pool/add/browser/{self.flow}": {"pasted": "?code=c&state=s"},
            "pool/add/device": {"accept_terms": "on"},
            f"pool/add/device/{self.flow}": {},
            "pool/add/files": {"accept_terms": "on"},
            "pool/add/key": {"kind": "openai", "label": "Key", "api_key": "sk-0123456789"},
            f"pool/accounts/{self.account.uuid}": {"label": "Other", "floor_percent": "5", "priority": "1"},
            f"pool/accounts/{self.account.uuid}/pause": {},
            f"pool/accounts/{self.account.uuid}/resume": {},
            f"pool/accounts/{self.account.uuid}/poll": {},
            f"pool/accounts/{self.account.uuid}/move": {"pool": str(self.account.pool.uuid)},
            f"pool/accounts/{self.account.uuid}/link": {},
            f"pool/accounts/{self.account.uuid}/remove": {"confirm": self.account.label},
            f"pool/{self.account.pool.uuid}/strategy": {"strategy": "fill_first", "safety": "4", "loyalty": "1"},
            f"alerts/{self.alert.uuid}/acknowledge": {},
            "alerts/rules": {"kind": "limit", "on": "0"},
            "alerts/endpoints": {"name": "New", "url": "https://1.1.1.1/x", "format": "standard"},
            f"alerts/endpoints/{self.endpoint.uuid}/test": {},
            f"alerts/endpoints/{self.endpoint.uuid}/rotate": {},
            f"alerts/endpoints/{self.endpoint.uuid}/resume": {},
            f"alerts/endpoints/{self.endpoint.uuid}/remove": {"confirm": "Chat"},
            "invoices/plan": {"plan": "pro", "when": "next", "promise": "none"},
            "invoices/plan/keep": {},
        }


def everybodys(world: World) -> dict[str, dict[str, str]]:
    """Changes that other roles may make too."""
    return {
        "key/issue": {"name": "x"},
        "jobs": {"what": "usage_rows", "range": "custom", "from": world.day, "to": world.day},
        "invoices/monthly": {"files": "ledger"},
    }


def signed_in(member: Member, **options: Any) -> Client:
    client = Client(raise_request_exception=False, **options)
    assert member.user is not None
    client.force_login(member.user)
    return client


@pytest.mark.parametrize("who", ["developer of the same team", "lead of another team", "finance", "finance of the team"])
def test_who_may_not_is_told_so_and_changes_nothing(who: str) -> None:
    """J6: by the page's form and by a bare request alike."""
    world = World()
    client = signed_in(world.people[who])
    before = rows_of(world.organization)
    for path, data in world.posts().items():
        for headers in ({}, {"HX-Request": "true", "HX-Target": "keys"}):
            answered = client.post(f"/o/{world.organization.slug}/{path}", data, headers=headers)
            assert answered.status_code == 403, f"{who}: {path}"
    assert rows_of(world.organization) == before


def test_nothing_happens_without_the_token_of_a_page() -> None:
    """A page of another site can make a browser post, and not know what the form holds."""
    world = World()
    owner = world.organization.members.get(role="owner")
    client = signed_in(owner, enforce_csrf_checks=True)
    before = rows_of(world.organization)
    for path, data in {**world.posts(), **everybodys(world), "key/ask": {}}.items():
        assert client.post(f"/o/{world.organization.slug}/{path}", data).status_code == 403, path
    assert rows_of(world.organization) == before


def test_nothing_changes_by_a_method_that_only_reads() -> None:
    world = World()
    owner = world.organization.members.get(role="owner")
    client = signed_in(owner)
    client.get(f"/o/{world.organization.slug}/key")
    before = rows_of(world.organization)
    for path, data in {**world.posts(), **everybodys(world)}.items():
        url = f"/o/{world.organization.slug}/{path}"
        for method in ("get", "head", "options", "put", "patch", "delete"):
            answered = getattr(client, method)(url, data if method in ("get", "head") else b"")
            assert answered.status_code in (200, 404, 405), f"{method} {path}"
            override = client.get(url, headers={"x-http-method-override": "POST"})
            assert override.status_code in (200, 404, 405), path
    assert rows_of(world.organization) == before


@pytest.mark.parametrize("field", ["level", "limit", "team"])
def test_a_foreign_id_in_a_field_is_as_a_missing_one(field: str) -> None:
    """J5: not in the path but in what the form sends."""
    own, foreign = World(), World()
    owner = own.organization.members.get(role="owner")
    client = signed_in(owner)
    root = f"/o/{own.organization.slug}"
    missing = "00000000-0000-4000-8000-000000000000"
    before = rows_of(own.organization), rows_of(foreign.organization)
    if field == "limit":
        fields = {"extra": "1", "until": own.day}
        answers = [client.post(f"{root}/key/ask", {**fields, "limit": str(one)}) for one in (foreign.limit.uuid, missing)]
    else:
        fields = {"metric": "credits", "window": "7d", "amount": "1"}
        ids = {
            "level": [f"member:{foreign.developer.uuid}", f"key:{foreign.key.row.uuid}"],
            "team": [f"team:{foreign.team.uuid}"],
        }[field]
        levels = [*ids, *(f"{one.partition(':')[0]}:{missing}" for one in ids)]
        answers = [client.post(f"{root}/members/limits", {**fields, "level": one}) for one in levels]
    assert {one.status_code for one in answers} == {404}
    assert len({one.content for one in answers}) == 1
    assert rows_of(foreign.organization) == before[1]
    # Who asked for what is not there stands in their own trail, and nothing else has moved.
    assert moved(own.organization, before[0]) <= TRAIL
    events = AuditEvent.objects.filter(organization=own.organization, action="missing.asked")
    assert [(event.actor, event.data["method"]) for event in events] == [(owner.user, "POST")]
