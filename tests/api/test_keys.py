"""/api/v1/keys: what a key may be used for, whose it is, and that its secret is told once."""

import uuid
from datetime import timedelta
from typing import Any

import pytest

from accounts import keys
from accounts.models import ApiKey, AuditEvent
from config.clock import utc_now
from quotas.models import Limit
from tests import factories, secrets
from tests.api.calls import Caller, code

pytestmark = pytest.mark.django_db


class World:
    """An owner, a team with its lead and a developer, and a developer of another team, with a key each."""

    def __init__(self) -> None:
        self.organization = factories.organization()
        self.team = factories.team(self.organization)
        self.owner = Caller(factories.member(self.organization, role="owner"))
        self.lead = Caller(factories.member(self.organization, role="lead", team=self.team))
        self.developer = Caller(factories.member(self.organization, team=self.team))
        self.other = Caller(factories.member(self.organization, team=factories.team(self.organization)))
        self.callers = (self.owner, self.lead, self.developer, self.other)
        self.keys = [factories.api_key(caller.member).row for caller in self.callers]


@pytest.fixture
def world() -> World:
    return World()


def issued(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 201, answer.content
    found: dict[str, Any] = answer.json()
    secrets.register(found["secret"], "gateway key")
    secrets.register(found["secret"].split("_")[2], "gateway key's secret")
    return found


def test_a_limit_at_creation_is_there_and_a_misspelt_one_is_refused(world: World) -> None:
    """A19: nothing that was sent is dropped in silence."""
    made = issued(world.owner.post("keys", {"name": "ci", "limits": [{"metric": "credits", "window": "day", "amount": 5}]}))
    found = world.owner.get(f"keys/{made['id']}").json()
    assert [(limit["metric"], limit["window"], limit["amount"]) for limit in found["limits"]] == [("credits", "day", "5")]
    limit = Limit.objects.get(key__uuid=made["id"])
    assert (limit.amount, limit.scope) == (5_000_000, "key")
    before = ApiKey.objects.for_organization(world.organization).count()
    for body, field in (
        ({"name": "ci", "budgett": 5}, "budgett"),
        ({"name": "ci", "limits": [{"metric": "credits", "window": "day", "amount": 5, "budgett": 1}]}, "limits.0.budgett"),
    ):
        answer = world.owner.post("keys", body)
        assert code(answer) == (400, "unknown_field")
        assert answer.json()["error"]["param"] == field
    assert ApiKey.objects.for_organization(world.organization).count() == before


def test_a_key_carries_what_it_was_made_for(world: World) -> None:
    until = utc_now() + timedelta(days=3)
    body = {
        "name": "ci",
        "expires_at": until.isoformat(),
        "allowed_models": ["gpt-5.5"],
        "allowed_efforts": ["low"],
        "fast_allowed": False,
    }
    made = issued(world.developer.post("keys", body))
    row = ApiKey.objects.get(uuid=made["id"])
    assert (row.allowed_models, row.allowed_efforts, row.fast_allowed, row.expires_at) == (["gpt-5.5"], ["low"], False, until)
    assert (row.member_id, made["member_id"]) == (world.developer.member.pk, str(world.developer.member.uuid))
    assert keys.parse(made["secret"]) is not None
    assert "secret" not in world.developer.get(f"keys/{made['id']}").json()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"limits": [{"metric": "credits", "amount": 5}]}, (400, "invalid_limit")),
        ({"limits": [{"metric": "concurrent", "window": "day", "amount": 5}]}, (400, "invalid_limit")),
        ({"limits": [{"metric": "requests", "window": "day", "amount": "1.5"}]}, (400, "invalid_limit")),
        ({"limits": [{"metric": "credits", "window": "day", "amount": 5, "models": ["no-such"]}]}, (400, "invalid_limit")),
        ({"expires_at": "2020-01-01T00:00:00Z"}, (400, "invalid")),
        ({"expires_at": "2026-01-01T00:00:00Z"}, (400, "expiry_passed")),
        ({"expires_at": "2030-01-01"}, (400, "invalid")),
        ({"allowed_models": []}, (400, "invalid")),
        ({"allowed_models": "gpt-5.5"}, (400, "invalid")),
    ],
)
def test_a_key_that_cannot_be_is_not_made(world: World, body: dict[str, Any], error: tuple[int, str]) -> None:
    if body.get("expires_at") == "2020-01-01T00:00:00Z":
        error = (400, "expiry_passed")
    assert code(world.owner.post("keys", {"name": "ci", **body})) == error
    assert ApiKey.objects.for_organization(world.organization).count() == 4


def test_limits_at_creation_are_for_who_may_set_limits(world: World) -> None:
    """With them neither key nor limit is made."""
    body = {"name": "ci", "limits": [{"metric": "credits", "window": "day", "amount": 5}]}
    assert code(world.developer.post("keys", body)) == (403, "permission_denied")
    assert ApiKey.objects.for_organization(world.organization).count() == 4
    assert issued(world.lead.post("keys", body))["limits"][0]["amount"] == "5"


def test_finance_holds_no_keys(world: World) -> None:
    """J6: by the API as by the page."""
    finance = Caller(factories.member(world.organization, role="finance"), scopes=["keys:write", "keys:read"])
    assert code(finance.post("keys", {"name": "x"})) == (403, "permission_denied")
    assert code(finance.get("keys")) == (403, "permission_denied")
    assert code(finance.delete(f"keys/{world.keys[2].uuid}")) == (403, "permission_denied")
    assert finance.member.api_keys.count() == 0


def test_each_role_sees_its_reach(world: World) -> None:
    """J1: without a filter a developer gets their own; no filter widens it."""
    names = {str(key.uuid): number for number, key in enumerate(world.keys)}
    seen = [sorted(names[row["id"]] for row in caller.get("keys").json()["results"]) for caller in world.callers]
    assert seen == [[0, 1, 2, 3], [1, 2], [2], [3]]
    other = str(world.other.member.uuid)
    assert code(world.developer.get("keys", member_id=other)) == (403, "permission_denied")
    assert code(world.lead.get("keys", member_id=other)) == (403, "permission_denied")
    assert len(world.owner.get("keys", member_id=other).json()["results"]) == 1


ROUTES = [
    ("GET", "keys/{key}", None),
    ("DELETE", "keys/{key}", None),
    ("POST", "keys/{key}/rotate", {"grace_seconds": 0}),
    ("GET", "members/{member}", None),
    ("PATCH", "members/{member}", {"role": "lead"}),
    ("DELETE", "members/{member}", None),
    ("POST", "members/{member}/invitations", None),
    ("GET", "teams/{team}", None),
    ("PATCH", "teams/{team}", {"name": "Taken over"}),
    ("GET", "limits/{limit}", None),
    ("PATCH", "limits/{limit}", {"amount": "0"}),
    ("DELETE", "limits/{limit}", None),
    ("POST", "limits/{limit}/boosts", {"extra": "1", "until": "{until}"}),
    ("DELETE", "boosts/{boost}", None),
    ("POST", "limit-requests", {"limit_id": "{limit}", "extra": "1", "until": "{until}"}),
    ("GET", "limit-requests/{request}", None),
    ("POST", "limit-requests/{request}/withdraw", None),
    ("POST", "limit-requests/{request}/approve", {}),
    ("POST", "limit-requests/{request}/deny", {"note": "no"}),
    ("DELETE", "invitations/{invitation}", None),
    ("GET", "keys?member_id={member}", None),
    ("GET", "limits?member_id={member}", None),
    ("GET", "limits?team_id={team}", None),
    ("GET", "members?team_id={team}", None),
    ("GET", "limit-requests?member_id={member}", None),
    ("GET", "refusals?member_id={member}", None),
    ("POST", "limits", {"scope": "member", "of_id": "{member}", "metric": "credits", "window": "day", "amount": "1"}),
    ("POST", "limits", {"scope": "team", "of_id": "{team}", "metric": "credits", "window": "day", "amount": "1"}),
    ("POST", "limits", {"scope": "key", "of_id": "{key}", "metric": "credits", "window": "day", "amount": "1"}),
    ("POST", "members", {"email": "a@new.example", "team_id": "{team}"}),
]
"""Every route and every field of people's resources that names something."""


def test_another_tenants_things_are_answered_as_missing_ones(world: World) -> None:
    """J5: 404 on every route that takes an id, word for word as for one that is nowhere; nothing is changed there."""
    stranger = World()
    until = (utc_now() + timedelta(days=2)).isoformat()
    limit = stranger.owner.post(
        "limits",
        {"scope": "member", "of_id": str(stranger.developer.member.uuid), "metric": "credits", "window": "day", "amount": "5"},
    ).json()
    boost = stranger.owner.post(f"limits/{limit['id']}/boosts", {"extra": "1", "until": until}).json()
    request = stranger.developer.post("limit-requests", {"limit_id": limit["id"], "extra": "1", "until": until}).json()
    stranger.owner.post("members", {"email": f"{factories.unique('new')}@new.example"})
    invitation = stranger.owner.get("invitations").json()["results"][0]
    foreign = {
        "key": str(stranger.keys[2].uuid),
        "member": str(stranger.developer.member.uuid),
        "team": str(stranger.team.uuid),
        "limit": limit["id"],
        "boost": boost["id"],
        "request": request["id"],
        "invitation": invitation["id"],
    }
    missing = {name: str(uuid.uuid4()) for name in foreign}
    events = AuditEvent.objects.count()
    for method, path, body in ROUTES:
        answers = []
        for ids in (foreign, missing):
            names = {**ids, "until": until}
            sent = None if body is None else {name: value.format(**names) for name, value in body.items() if isinstance(value, str)}
            if body is not None:
                sent = {**body, **(sent or {})}
            address, _, query = path.format(**names).partition("?")
            parameters = dict([query.split("=")]) if query else {}
            answers.append(world.owner(method, address, sent, **parameters))
        assert {code(answer) for answer in answers} == {(404, "not_found")}, (method, path, answers[0].content)
        assert answers[0].content == answers[1].content
    told = AuditEvent.objects.filter(action="missing.asked")
    assert AuditEvent.objects.count() - events == told.filter(organization=world.organization).count()
    asked = [(event.data["method"], event.data["route"]) for event in told.filter(organization=world.organization)]
    assert len(asked) == len(set(asked))
    assert {method for method, _ in asked} == {method for method, _, _ in ROUTES}
    assert not told.filter(organization=stranger.organization).exists()
    stranger.keys[2].refresh_from_db()
    stranger.team.refresh_from_db()
    assert stranger.keys[2].revoked_at is None
    assert stranger.team.name != "Taken over"
    assert stranger.owner.get(f"limits/{limit['id']}").json()["amount"] == "5"
    assert stranger.owner.get(f"limit-requests/{request['id']}").json()["status"] == "pending"


def test_a_rotation_tells_the_new_secret_to_its_member_only(world: World) -> None:
    mine, path = world.keys[2], f"keys/{world.keys[2].uuid}/rotate"
    assert code(world.owner.post(path, {})) == (403, "permission_denied")
    rotated = world.developer.post(path, {"grace_seconds": 60}, key="once")
    again = world.developer.post(path, {"grace_seconds": 60}, key="once")
    found = rotated.json()
    secrets.register(found["secret"], "gateway key")
    secrets.register(found["secret"].split("_")[2], "gateway key's secret")
    assert (rotated.status_code, found["public_id"]) == (200, mine.public_id)
    assert (again.json()["secret"], again.json()["old_secret_until"]) == (None, found["old_secret_until"])
    assert code(world.developer.post(path, {"grace_seconds": -1})) == (400, "invalid")


def test_a_key_is_revoked_by_who_looks_after_its_member(world: World) -> None:
    path = f"keys/{world.keys[2].uuid}"
    assert code(world.other.delete(path)) == (403, "permission_denied")
    assert world.lead.delete(path).status_code == 204
    first = ApiKey.objects.get(pk=world.keys[2].pk).revoked_at
    assert first is not None
    assert world.lead.delete(path).status_code == 204
    assert ApiKey.objects.get(pk=world.keys[2].pk).revoked_at == first
    assert [row["id"] for row in world.lead.get("keys", revoked="true").json()["results"]] == [str(world.keys[2].uuid)]
    assert code(world.developer.post(f"{path}/rotate", {})) == (409, "key_revoked")
