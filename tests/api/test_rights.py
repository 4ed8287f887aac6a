"""Pools, accounts, alerts, requests, money, exports, settings: no operation is open to a token or role it is not for.

Of every operation: another organization's object is as a missing one, a token without the scope, a role without the right and a
field or parameter that is not known are refused, and nothing has changed after any of it.
"""

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.urls import URLPattern

from accounts import api_tokens, jobs
from accounts.models import AuditEvent, Job, Member
from accounts.permissions import Action, Reach, reach
from api import (
    accounts,
    alerts,
    audit_trail,
    exports,
    identity,
    joining,
    model_rules,
    money,
    plan,
    pool,
    request_log,
    settings,
    tokens,
    webhooks,
)
from api.base import Operation
from config.clock import utc_now
from quotas import model_rules as model_rules_of
from quotas.alerts.models import Alert, WebhookEndpoint
from routing.models import Pool
from tests import factories
from tests.api.calls import Caller, code
from tests.flows.untouched import rows_of
from tests.pages import made

pytestmark = pytest.mark.django_db
MODULES = (
    pool,
    accounts,
    joining,
    alerts,
    webhooks,
    request_log,
    plan,
    money,
    exports,
    settings,
    identity,
    model_rules,
    tokens,
    audit_trail,
)


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    method: str
    about: Operation
    module: Any


def routes() -> Iterator[Route]:
    for module in MODULES:
        patterns: list[URLPattern] = module.urls
        for one in patterns:
            view: Any = one.callback.view_class  # type: ignore[attr-defined]
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                about = view().operation(method)
                if about is not None:
                    yield Route(str(one.pattern), method, about, module)


ROUTES = list(routes())


class World:
    """An organization with one of everything that an id can name."""

    def __init__(self) -> None:
        self.organization = factories.organization()
        self.owner = factories.member(self.organization, role="owner")
        self.key = factories.api_key(self.owner).row
        self.account, _ = factories.openai_account(self.organization)
        self.request = made.used(self.key, made.CREDIT)
        now = utc_now()
        alert = Alert.objects.create(
            organization=self.organization, kind="limit", line=80, scope="x", period="p", told_at=now,
            facts={"level": "organization", "metric": "credits", "window": "day", "used": 1, "limit": 2, "resets_at": 0},
        )  # fmt: skip
        endpoint = WebhookEndpoint.objects.create(organization=self.organization, name="x", format="slack", origin="https://x")
        token = api_tokens.issue(self.owner, name="t", by=None, now=now).token
        job = Job.objects.create(organization=self.organization, member=self.owner, kind="ledger", title="Ledger")
        block = model_rules_of.block(self.organization, ["gpt-5.5"], by=None)
        self.ids = {
            "pools": str(Pool.objects.get(organization=self.organization).uuid),
            "accounts": str(self.account.uuid),
            "sign-ins": str(uuid.uuid4()),
            "alerts": str(alert.uuid),
            "webhook-endpoints": str(endpoint.uuid),
            "requests": self.request.request_id,
            "invoices": str(uuid.uuid4()),
            "exports": str(job.uuid),
            "tokens": str(token.uuid),
            "blocked-models": str(block),
            "alert-rules": "no-such-rule",
        }

    def path(self, route: Route) -> str:
        return re.sub(r"<\w+:\w+>", self.ids.get(route.path.split("/")[0], ""), route.path)

    def member(self, role: str) -> Member:
        return factories.member(self.organization, role=role)


@pytest.fixture
def world() -> World:
    return World()


def body_of(route: Route) -> dict[str, Any]:
    """Something that passes the shape, as far as its fields need it."""
    values: dict[str, Any] = {
        "pool_id": str(uuid.uuid4()), "kind": "members" if route.module is exports else "openai", "label": "x",
        "api_key": "sk-" + "x" * 40, "files": [{"name": "a", "content": "{}"}], "way": "device", "address": "http://x?code=1&state=2",
        "is_on": True, "name": "x", "url": "https://example.com", "format": "slack", "plan": "pro_100", "when": "now",
        "promise": "x",
        "scopes": ["status:read"], "model": "m", "models": ["m"], "fallbacks": [],
        "accept": "I accept these terms for the organization", "issuer": "https://idp.example", "client_id": "c",
        "email_domains": ["example.com"],
    }  # fmt: skip
    if route.about.body is None:
        return {}
    return {name: values[name] for name, field in route.about.body().fields.items() if field.required}


def ask(caller: Caller, world: World, route: Route, **query: str) -> Any:
    needs = {name: {"model": "m", "plan": "pro_100", "timezone": "UTC", "policy": "everyone"}[name] for name in required(route)}
    key = "once" if route.about.idempotency else None
    return caller(route.method, world.path(route), body_of(route) or None, key=key, **{**needs, **query})


def required(route: Route) -> list[str]:
    if route.about.query is None:
        return []
    return [name for name, field in route.about.query().fields.items() if field.required]


def test_a_foreign_object_is_as_a_missing_one(world: World) -> None:
    """J5: the same status and words for both, nothing of it has changed, and one event of each in the stranger's own trail."""
    stranger = Caller(World().owner, scopes=api_tokens.SCOPES)
    before = rows_of(world.organization)
    asked = [route for route in ROUTES if "<" in route.path]
    for route in asked:
        foreign = ask(stranger, world, route)
        missing = World.__new__(World)
        missing.ids = {name: str(uuid.uuid4()) for name in world.ids}
        assert foreign.status_code == 404, (route.method, route.path, foreign.content)
        assert foreign.json() == ask(stranger, missing, route).json(), route.path
    assert rows_of(world.organization) == before
    events = AuditEvent.objects.filter(organization=stranger.member.organization, action="missing.asked")
    assert sorted((event.data["method"], event.data["route"]) for event in events) == sorted(
        (route.method, f"api/v1/{route.path}") for route in asked
    )
    written = repr([(event.actor_label, event.object_id, event.data) for event in events])
    assert not [one for one in (*world.ids.values(), world.organization.name, world.organization.slug) if one in written]


def test_a_token_without_the_scope_is_refused(world: World) -> None:
    others = {scope: Caller(world.owner, scopes=[one for one in api_tokens.SCOPES if one != scope]) for scope in api_tokens.SCOPES}
    before = rows_of(world.organization)
    for route in ROUTES:
        refused = ask(others[route.about.scope], world, route)
        assert code(refused) == (403, "insufficient_scope"), (route.method, route.path)
        assert refused.json()["error"]["scope"] == route.about.scope
    assert rows_of(world.organization) == before


def test_a_role_without_the_right_is_refused(world: World) -> None:
    """J6."""
    callers = [Caller(world.member(role), scopes=api_tokens.SCOPES) for role in ("developer", "lead", "finance")]
    before = rows_of(world.organization)
    asked = 0
    for number, route in enumerate(ROUTES):
        action = route.about.action
        unable = [one for one in callers if action is not None and reach(one.member, action) is Reach.NONE]
        if unable:
            # Each in turn: the table of rights is tested for itself.
            caller = unable[number % len(unable)]
            assert code(ask(caller, world, route)) == (403, "permission_denied"), (route.method, route.path, caller.member.role)
            asked += 1
    assert asked > 50
    assert rows_of(world.organization) == before


def test_a_teams_finance_sees_no_money_of_the_whole(world: World) -> None:
    team = factories.team(world.organization)
    caller = Caller(factories.member(world.organization, role="finance", team=team), scopes=api_tokens.SCOPES)
    for route in ROUTES:
        if route.about.action is Action.SEE_MONEY and "<" not in route.path:
            assert code(ask(caller, world, route)) == (403, "permission_denied"), route.path


def test_what_is_not_known_is_refused(world: World) -> None:
    """A19: a field or parameter with a slip in it is told, never ignored."""
    caller = Caller(world.owner, scopes=api_tokens.SCOPES)
    before = rows_of(world.organization)
    for route in ROUTES:
        odd = ask(caller, world, route, limmit="1")
        assert odd.status_code == 400, (route.method, route.path)
        assert odd.json()["error"]["param"] == "limmit"
        if route.about.body is not None:
            key = "twice" if route.about.idempotency else None
            answer = caller(route.method, world.path(route), {**body_of(route), "budgett": 1}, key=key)
            assert code(answer) == (400, "unknown_field"), (route.method, route.path, answer.content)
            assert answer.json()["error"]["param"] == "budgett"
        elif route.method != "GET":
            key = "thrice" if route.about.idempotency else None
            assert caller(route.method, world.path(route), {"budgett": 1}, key=key).status_code == 400, route.path
    assert rows_of(world.organization) == before


def test_money_calls_need_an_idempotency_key(world: World) -> None:
    caller = Caller(world.owner)
    needing = [route for route in ROUTES if route.about.idempotency == "required"]
    assert {route.about.id for route in needing} == {"changePlan", "keepPlan"}
    for route in needing:
        answer = caller(route.method, world.path(route), body_of(route) or None)
        assert code(answer) == (400, "idempotency_key_required"), route.path


def test_jobs_are_their_kinds() -> None:
    assert set(exports.KINDS) <= set(exports.READS) <= set(jobs.kinds())
