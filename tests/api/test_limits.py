"""/api/v1/limits, boosts, requests for more and refusals."""

from datetime import timedelta
from typing import Any

import pytest

from config.clock import utc_now
from quotas.models import Limit, LimitBoost, LimitRequest, Refusal
from tests import factories
from tests.api.calls import Caller, code

pytestmark = pytest.mark.django_db


class World:
    """An owner, a team's lead and developer, a developer of no team."""

    def __init__(self) -> None:
        self.organization = factories.organization()
        self.team = factories.team(self.organization)
        self.owner = Caller(factories.member(self.organization, role="owner"))
        self.lead = Caller(factories.member(self.organization, role="lead", team=self.team))
        self.developer = Caller(factories.member(self.organization, team=self.team))
        self.other = Caller(factories.member(self.organization))
        self.until = (utc_now() + timedelta(days=2)).isoformat()

    def limit(self, caller: Caller | None = None, **fields: Any) -> Any:
        body = {"scope": "member", "of_id": str(self.developer.member.uuid), "metric": "credits", "window": "day", "amount": "50"}
        body |= fields
        return (caller or self.owner).post("limits", {name: value for name, value in body.items() if value is not None})


@pytest.fixture
def world() -> World:
    return World()


def test_a_limit_is_set_changed_and_removed(world: World) -> None:
    made = world.limit().json()
    assert (made["of"], made["amount"], made["window"], made["boosts"]) == (str(world.developer.member), "50", "day", [])
    path = f"limits/{made['id']}"
    found = world.owner.get(path).json()
    assert found["standing"] == {
        "limit": "50", "used": "0", "held": "0", "left": "50", "resets_at": found["standing"]["resets_at"],
    }  # fmt: skip
    assert world.owner.patch(path, {"amount": 12}).json()["amount"] == "12"
    assert world.limit(amount="7.25").json() | {"amount": "12"} == made | {"amount": "12"}
    assert world.owner.get(path).json()["standing"]["limit"] == "7.25"
    assert world.owner.delete(path).status_code == 204
    assert world.owner.get(path).status_code == 404


def test_a_rate_has_no_window(world: World) -> None:
    made = world.limit(metric="concurrent", window=None, amount=3).json()
    assert (made["window"], made["amount"]) == (None, "3")
    assert code(world.limit(metric="concurrent", amount=3)) == (400, "invalid_limit")
    assert code(world.limit(window=None)) == (400, "invalid_limit")


def test_each_role_sees_and_sets_its_reach(world: World) -> None:
    """J1: and a lead sets none above the own scope's."""
    organization = world.limit(scope="organization", of_id=None).json()["id"]
    team = world.limit(scope="team", of_id=str(world.team.uuid)).json()["id"]
    member = world.limit().json()["id"]
    other = world.limit(of_id=str(world.other.member.uuid)).json()["id"]
    seen = [{row["id"] for row in caller.get("limits").json()["results"]} for caller in (world.owner, world.lead, world.developer)]
    assert seen == [{organization, team, member, other}, {organization, team, member}, {organization, team, member}]
    assert {row["id"] for row in world.other.get("limits").json()["results"]} == {organization, other}
    assert code(world.other.get(f"limits/{member}")) == (403, "permission_denied")
    assert world.lead.patch(f"limits/{member}", {"amount": "40"}).json()["amount"] == "40"
    assert code(world.lead.patch(f"limits/{member}", {"amount": "51"})) == (403, "above_own_scope")
    for caller, which in ((world.lead, other), (world.lead, organization), (world.developer, member)):
        assert code(caller.patch(f"limits/{which}", {"amount": "1"})) == (403, "permission_denied")
    assert code(world.limit(world.lead, of_id=str(world.other.member.uuid))) == (403, "permission_denied")
    assert Limit.objects.get(uuid=other).amount == 50_000_000


def test_a_boost_holds_until_it_is_ended(world: World) -> None:
    path = f"limits/{world.limit().json()['id']}"
    made = world.owner.post(f"{path}/boosts", {"extra": "2.5", "until": world.until, "reason": "Release"}, key="b")
    assert (
        world.owner.post(f"{path}/boosts", {"extra": "2.5", "until": world.until, "reason": "Release"}, key="b").json()
        == made.json()
    )
    found = world.owner.get(path).json()
    assert (found["standing"]["limit"], found["boosts"]) == ("52.5", [made.json()])
    assert world.owner.delete(f"boosts/{made.json()['id']}").status_code == 204
    assert world.owner.get(path).json()["boosts"] == []
    far = (utc_now() + timedelta(days=100)).isoformat()
    for body in ({"extra": 0, "until": world.until}, {"extra": 1, "until": far}, {"extra": 1, "until": "2026-01-01T00:00:00Z"}):
        assert code(world.owner.post(f"{path}/boosts", body)) == (400, "invalid_request_for_more")
    assert LimitBoost.objects.filter(limit__uuid=found["id"]).count() == 1


def test_a_request_for_more_is_decided_once_by_who_may(world: World) -> None:
    limit = world.limit().json()["id"]
    asked = world.developer.post("limit-requests", {"limit_id": limit, "extra": "5", "until": world.until, "note": "why"}).json()
    path = f"limit-requests/{asked['id']}"
    assert (asked["status"], asked["extra"], asked["note"]) == ("pending", "5", "why")
    again = {"limit_id": limit, "extra": "5", "until": world.until}
    assert code(world.developer.post("limit-requests", again)) == (409, "already_asked")
    assert code(world.other.post("limit-requests", again)) == (400, "invalid_request_for_more")
    assert code(world.other.get(path)) == (403, "permission_denied")
    for caller in (world.developer, world.other):
        assert code(caller.post(f"{path}/approve", {})) == (403, "permission_denied")
    assert code(world.lead.post(f"{path}/withdraw")) == (403, "permission_denied")
    assert code(world.lead.post(f"{path}/deny", {})) == (400, "invalid")
    assert LimitRequest.objects.get(uuid=asked["id"]).status == "pending"
    approved = world.lead.post(f"{path}/approve", {"note": "ok"}).json()
    assert (approved["status"], approved["decision_note"]) == ("approved", "ok")
    assert world.developer.get(f"limits/{limit}").json()["standing"]["limit"] == "55"
    assert code(world.owner.post(f"{path}/deny", {"note": "no"})) == (409, "request_decided")
    assert [row["id"] for row in world.lead.get("limit-requests", status="approved").json()["results"]] == [asked["id"]]
    assert world.other.get("limit-requests").json()["results"] == []


def test_ones_own_request_is_withdrawn(world: World) -> None:
    limit = world.limit().json()["id"]
    asked = world.developer.post("limit-requests", {"limit_id": limit, "extra": 5, "until": world.until}).json()
    assert world.developer.post(f"limit-requests/{asked['id']}/withdraw").json()["status"] == "withdrawn"
    assert code(world.developer.post(f"limit-requests/{asked['id']}/withdraw")) == (409, "request_decided")


def test_refusals_are_ones_own_or_the_scopes_and_name_no_account(world: World) -> None:
    """J1, J3: without a filter a developer gets their own; no upstream account is in them."""
    account, _ = factories.openai_account(world.organization, label="Main key")
    now = utc_now()
    rows = {}
    for caller in (world.developer, world.other):
        key = factories.api_key(caller.member)
        rows[caller] = Refusal.objects.create(
            organization=world.organization, team_id=caller.member.team_id, member_id=caller.member.pk, key_id=key.row.pk,
            minute=now, last_at=now, code="limit_reached", scope="member", scope_name="Ada", metric="credits", window="day",
            limit=50_000_000, used=49_800_000, held=0, need=900_000, message="Your daily limit would be passed.",
        )  # fmt: skip
    own, other = (str(rows[caller].uuid) for caller in (world.developer, world.other))

    def seen(caller: Caller) -> list[str]:
        answer = caller.get("refusals")
        assert "Main key" not in answer.content.decode()
        assert str(account.uuid) not in answer.content.decode()
        return [row["id"] for row in answer.json()["results"]]

    assert [seen(caller) for caller in (world.owner, world.lead, world.developer, world.other)] == [
        [other, own], [own], [own], [other],
    ]  # fmt: skip
    assert code(world.developer.get("refusals", member_id=str(world.other.member.uuid))) == (403, "permission_denied")
    found = world.developer.get("refusals").json()["results"][0]
    assert (found["limit"], found["used"], found["needed"], found["count"]) == ("50", "49.8", "0.9", 1)
    finance = Caller(factories.member(world.organization, role="finance"), scopes=["requests:read"])
    assert code(finance.get("refusals")) == (403, "permission_denied")
