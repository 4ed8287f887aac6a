"""/api/v1/members: who sees, invites, changes and removes whom."""

import uuid
from typing import Any

import pytest

from accounts.models import Member
from tests import factories, secrets
from tests.api.calls import Caller, code

pytestmark = pytest.mark.django_db


class World:
    """An organization with two teams, a developer in each, and an owner's token."""

    def __init__(self) -> None:
        self.organization = factories.organization()
        self.teams = [factories.team(self.organization) for _ in range(2)]
        self.developers = [factories.member(self.organization, team=team) for team in self.teams]
        self.owner = Caller(factories.member(self.organization, role="owner"))
        self.lead = Caller(factories.member(self.organization, role="lead", team=self.teams[0]))


@pytest.fixture
def world() -> World:
    return World()


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [row["id"] for row in answer.json()["results"]]


def test_each_role_lists_its_reach(world: World) -> None:
    """J1: no parameter widens it."""
    everybody = [str(member.uuid) for member in (*world.developers, world.owner.member, world.lead.member)]
    assert ids(world.owner.get("members")) == everybody
    assert ids(world.lead.get("members")) == [everybody[0], everybody[3]]
    assert ids(world.owner.get("members", role="developer")) == everybody[:2]
    assert ids(world.owner.get("members", team_id=str(world.teams[1].uuid))) == [everybody[1]]
    assert code(world.lead.get("members", team_id=str(world.teams[1].uuid))) == (403, "permission_denied")
    for role in ("developer", "finance"):
        nobody = Caller(factories.member(world.organization, role=role), scopes=["members:read"])
        assert code(nobody.get("members")) == (403, "permission_denied")


def test_an_invitation_makes_a_member_and_shows_its_link_once(world: World) -> None:
    email = f"{factories.unique('ada')}@new.example"
    answer = world.lead.post("members", {"email": email, "name": "Ada"})
    assert answer.status_code == 201
    found = answer.json()
    secrets.register(found["invitation_url"].rsplit("/", 1)[1], "invitation")
    assert (found["email"], found["name"], found["role"], found["is_awaited"]) == (email, "Ada", "developer", True)
    assert found["team_id"] == str(world.teams[0].uuid)
    assert world.owner.get(f"members/{found['id']}").json() == {
        name: value for name, value in found.items() if name not in ("invitation_url", "secret_note")
    }


@pytest.mark.parametrize("body", [{"role": "lead"}, {"role": "owner"}, {"team_id": None}, {"team_id": "other"}])
def test_a_lead_invites_developers_of_the_team_only(world: World, body: dict[str, Any]) -> None:
    if body.get("team_id") == "other":
        body = {"team_id": str(world.teams[1].uuid)}
    before = Member.objects.count()
    assert world.lead.post("members", {"email": "new@new.example", **body}).status_code == 403
    assert Member.objects.count() == before


def test_a_change_is_partial(world: World) -> None:
    path = f"members/{world.developers[0].uuid}"
    assert world.owner.patch(path, {"fast_allowed": False}).json()["fast_allowed"] is False
    changed = world.owner.patch(path, {"team_id": None, "role": "lead"}).json()
    assert (changed["team_id"], changed["role"], changed["fast_allowed"]) == (None, "lead", False)
    assert world.owner.get(path).json() == changed


def test_a_member_is_removed_with_the_keys(world: World) -> None:
    key = factories.api_key(world.developers[0])
    path = f"members/{world.developers[0].uuid}"
    assert world.lead.delete(path).status_code == 204
    key.row.refresh_from_db()
    assert key.row.revoked_at is not None
    assert world.owner.get(path).status_code == 404
    assert code(world.owner.delete(f"members/{world.owner.member.uuid}")) == (409, "last_owner")
    assert code(world.lead.delete(f"members/{world.lead.member.uuid}")) == (403, "role_not_yours")


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_a_foreign_member_is_answered_exactly_as_a_missing_one(world: World, method: str) -> None:
    """J5: nothing changed."""
    stranger = World()
    foreign = stranger.developers[0]
    body = {"role": "lead"} if method == "PATCH" else None
    answers = [world.owner(method, f"members/{one}", body) for one in (foreign.uuid, uuid.uuid4(), "nonsense")]
    assert {code(answer) for answer in answers} == {(404, "not_found")}
    assert len({answer.content for answer in answers}) == 1
    foreign.refresh_from_db()
    assert (foreign.role, foreign.removed_at) == ("developer", None)


def test_the_role_is_asked_at_every_call_whatever_the_token_was_made_for(world: World) -> None:
    developer = Caller(world.developers[0], scopes=["members:read", "members:write"])
    assert code(developer.post("members", {"email": "a@new.example"})) == (403, "permission_denied")
    assert code(developer.delete(f"members/{world.developers[1].uuid}")) == (403, "permission_denied")
    reader = Caller(world.owner.member, scopes=["members:read"])
    assert code(reader.post("members", {"email": "a@new.example"})) == (403, "insufficient_scope")
    assert reader.get("members").status_code == 200


def test_me_is_who_the_token_acts_as(world: World) -> None:
    assert world.lead.get("me").json()["id"] == str(world.lead.member.uuid)
