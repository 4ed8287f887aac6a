"""GET /api/v1/usage and /api/v1/status: who calls, what they see, and the same sums as everywhere."""

import uuid
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import api_tokens, keys, members, organizations
from accounts.models import ApiToken, Member
from billing import usage
from config.clock import utc_now
from tests import factories, secrets
from tests.billing.usage_events import event_for, line

pytestmark = pytest.mark.django_db
CREDIT = 1_000_000


class World:
    """Two teams with a developer each; 1 and 2 credits used a moment ago, of m-1 and m-2."""

    def __init__(self) -> None:
        self.organization = factories.organization(timezone="Europe/Berlin")
        self.account, _ = factories.openai_account(self.organization, label="Main key")
        self.teams = [factories.team(self.organization, name) for name in ("Core", "Web")]
        self.members = [factories.member(self.organization, team=team) for team in self.teams]
        self.keys = [factories.api_key(member) for member in self.members]
        for number in (1, 2):
            self.use(number - 1, number * CREDIT, f"m-{number}")

    def use(self, of: int, amount: int, model: str, **fields: Any) -> None:
        key = self.keys[of].row
        event = event_for(
            key,
            credits=amount,
            admitted_at=fields.pop("admitted_at", utc_now()),
            team_id=self.teams[of].pk,
            account_id=self.account.pk,
            lines=(line(model, account_id=self.account.pk, input=10, output=5, credits=amount),),
            **fields,
        )
        usage.record(self.organization.pk, [event])

    def member(self, role: str, team: Any = None) -> Member:
        return factories.member(self.organization, role=role, team=team)


@pytest.fixture
def world() -> World:
    return World()


def token_of(member: Member, **fields: Any) -> str:
    made = api_tokens.issue(member, name="test", by=None, now=utc_now(), **fields)
    return secrets.register(made.secret, "API token")


def get(path: str, token: str | None, client: Client | None = None, **query: Any) -> Any:
    headers = {"authorization": f"Bearer {token}"} if token is not None else {}
    answer = (client or Client()).get(f"/api/v1/{path}", query, headers=headers)
    secrets.record_answer(f"GET /api/v1/{path}", answer.content)
    return answer


def test_usage_is_the_report_of_the_current_period(world: World) -> None:
    """D1: credits are decimal strings."""
    answer = get("usage", token_of(world.member("owner")), by="member")
    assert answer.status_code == 200
    found = answer.json()
    period = world.organization.subscriptions.get().periods.get()
    assert (found["by"], found["timezone"]) == ("member", "Europe/Berlin")
    berlin = ZoneInfo("Europe/Berlin")
    assert found["start"] == period.starts_at.astimezone(berlin).isoformat()
    assert found["end"] == period.ends_at.astimezone(berlin).isoformat()
    assert [(row["member_id"], row["credits"], row["requests"]) for row in found["rows"]] == [
        (str(world.members[1].uuid), "2", 1), (str(world.members[0].uuid), "1", 1),
    ]  # fmt: skip
    assert found["total"]["credits"] == "3"
    assert found["total"]["input_tokens"] == 20
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.parametrize("by", ["day", "team", "member", "key", "model", "account"])
def test_every_grouping_has_one_sum(world: World, by: str) -> None:
    """I3."""
    assert get("usage", token_of(world.member("owner")), by=by).json()["total"]["credits"] == "3"


def test_each_role_sees_its_reach_and_no_parameter_widens_it(world: World) -> None:
    """J1: without any filter a developer gets their own."""
    expected = {
        "developer": (world.members[0], "1"),
        "team lead": (world.member("lead", world.teams[1]), "2"),
        "lead": (world.member("lead"), "3"),
        "finance": (world.member("finance"), "3"),
        "owner": (world.member("owner"), "3"),
    }
    for role, (member, total) in expected.items():
        assert get("usage", token_of(member)).json()["total"]["credits"] == total, role
    developer = token_of(world.members[0])
    for query in ({"member": str(world.members[1].uuid)}, {"team": str(world.teams[0].uuid)}, {"by": "account"}):
        answer = get("usage", developer, **query)
        assert answer.status_code == 403, query
        assert "rows" not in answer.json()
    assert get("usage", developer, member=str(world.members[0].uuid)).json()["total"]["credits"] == "1"


def test_a_role_that_changes_changes_what_its_token_sees(world: World) -> None:
    """The right is asked at every call, never stored in the token."""
    member = world.member("lead")
    token = token_of(member)
    assert get("usage", token).json()["total"]["credits"] == "3"
    members.change(member, role="developer", team=None, by=None, now=utc_now())
    assert get("usage", token).json()["total"]["credits"] == "0"


def test_a_member_and_a_team_can_be_named(world: World) -> None:
    token = token_of(world.member("owner"))
    assert get("usage", token, member=str(world.members[1].uuid)).json()["total"]["credits"] == "2"
    assert get("usage", token, team=str(world.teams[0].uuid)).json()["total"]["credits"] == "1"
    both = get("usage", token, team=str(world.teams[0].uuid), member=str(world.members[1].uuid)).json()
    assert both["total"]["credits"] == "0"


@pytest.mark.parametrize("parameter", ["member", "team"])
def test_a_foreign_id_is_answered_exactly_as_a_missing_one(world: World, parameter: str) -> None:
    """J5."""
    stranger = World()
    foreign = str(stranger.members[0].uuid if parameter == "member" else stranger.teams[0].uuid)
    token = token_of(world.member("owner"))
    answers = [get("usage", token, **{parameter: text}) for text in (foreign, str(uuid.uuid4()), "nonsense")]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.content for answer in answers}) == 1


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        ({"form": "x"}, "parameter_invalid", "no parameter 'form'"),
        ({"format": "csv"}, "parameter_invalid", "no parameter 'format'"),
        ({"organization": "acme"}, "parameter_invalid", "no parameter 'organization'"),
        ({"by": ["day", "member"]}, "parameter_invalid", "more than once"),
        ({"by": "weather"}, "grouping_unknown", "not by 'weather'"),
        ({"start": "2026-11-01"}, "parameter_invalid", "start needs end"),
        ({"end": "2026-11-01"}, "parameter_invalid", "end needs start"),
        ({"start": "x", "end": "2026-11-01"}, "range_invalid", "start 'x' is not a day"),
        ({"start": "2000-01-01", "end": "2026-11-01"}, "range_invalid", "at most 1830 days"),
        ({"start": "2026-11-02", "end": "2026-11-01"}, "range_invalid", "is empty"),
        ({"by": "day\0"}, "invalid", "Null characters"),
    ],
)
def test_a_wrong_parameter_is_a_clear_error(world: World, query: dict[str, Any], code: str, says: str) -> None:
    """A19's kind: nothing is ignored in silence."""
    answer = get("usage", token_of(world.member("owner")), **query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert says in answer.json()["error"]["message"]


def test_a_day_is_the_organizations_day(world: World) -> None:
    """E16: the day before stays out."""
    today = utc_now().astimezone(ZoneInfo("Europe/Berlin")).date().isoformat()
    world.use(0, 8 * CREDIT, "m-1", admitted_at=utc_now() - timedelta(days=1))
    found = get("usage", token_of(world.member("owner")), start=today, end=today).json()
    assert [(row["day"], row["credits"]) for row in found["rows"]] == [(today, "3")]


def test_who_does_not_prove_who_they_are_gets_401(world: World) -> None:
    """One answer for every reason; a session is nobody here."""
    owner = world.member("owner")
    revoked, expired = token_of(owner), token_of(owner, expires_at=utc_now() + timedelta(hours=1))
    ApiToken.objects.filter(public_id=expired.split("_")[1]).update(expires_at=utc_now())
    api_tokens.revoke(api_tokens.by_public_id(world.organization, revoked.split("_")[1]), by=None, now=utc_now())
    session = Client()
    assert owner.user is not None
    session.force_login(owner.user)
    refused = []
    for path in ("usage", "status"):
        for token in (revoked, expired, "wt_0000000000_" + "a" * 43, "nonsense", "wr_x", ""):
            answer = get(path, token)
            assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer"), (path, token)
            refused.append(answer.content)
        answer = get(path, None, session)
        assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")
        good = token_of(owner)
        assert Client().get(f"/api/v1/{path}", headers={"authorization": good}).status_code == 401
        assert Client().get(f"/api/v1/{path}?token={good}").status_code == 401
        assert Client().post(f"/api/v1/{path}", headers={"authorization": f"Bearer {good}"}).status_code == 405
    assert len(set(refused)) == 1


def test_a_token_does_what_it_was_made_for(world: World) -> None:
    owner = world.member("owner")
    for scope, path, other in (("usage:read", "usage", "status"), ("status:read", "status", "usage")):
        token = token_of(owner, scopes=[scope])
        assert get(path, token).status_code == 200
        answer = get(other, token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")


def test_a_gateway_key_is_for_status_only(world: World) -> None:
    assert get("usage", world.keys[0].secret).status_code == 401
    assert get("status", world.keys[0].secret).status_code == 200


STATUS = {"member", "current_period", "purchased_credits", "top_models", "daily_burn_rate", "projected_overage"}


def test_status_is_exactly_what_the_design_says(world: World) -> None:
    """J3: a member reads it, and no upstream account is in it."""
    answer = get("status", token_of(world.members[0]))
    found = answer.json()
    assert set(found) == STATUS
    assert set(found["current_period"]) == {"start", "end", "quota_limit", "quota_used", "quota_remaining", "percent_used"}
    assert (found["current_period"]["quota_limit"], found["purchased_credits"]) == ("1000000", "0")
    assert found["top_models"] == [{"model": "m-1", "credits_consumed": "1", "percent_of_total": 100.0}]
    assert found["daily_burn_rate"] is None
    assert found["projected_overage"] == {"low": None, "expected": None, "high": None}
    for mark in ("Main key", str(world.account.uuid)):
        assert mark not in answer.content.decode()
        assert mark not in get("usage", token_of(world.members[0]), by="key").content.decode()


def test_a_key_stands_for_its_own_member_whatever_the_role(world: World) -> None:
    owner = world.member("owner")
    key = factories.api_key(owner)
    assert [one["model"] for one in get("status", token_of(owner)).json()["top_models"]] == ["m-2", "m-1"]
    assert get("status", key.secret).json()["top_models"] == []
    assert owner.user is not None
    assert get("status", key.secret).json()["member"] == owner.user.email


def test_an_ended_key_is_refused_at_once(world: World) -> None:
    """F1, F5: revoked, of a suspended organization, of who has left."""
    secret = world.keys[0].secret
    organizations.suspend(world.organization, by=None)
    assert get("status", secret).status_code == 401
    organizations.resume(world.organization, by=None)
    assert get("status", secret).status_code == 200
    keys.revoke(world.keys[0].row, by=None, now=utc_now())
    assert get("status", secret).status_code == 401
    members.remove(world.members[1], by=None, now=utc_now())
    assert get("status", world.keys[1].secret).status_code == 401


def test_a_rotated_key_works_within_its_grace(world: World) -> None:
    """F3."""
    issued = keys.rotate(world.keys[0].row, grace_seconds=60, by=None, now=utc_now())
    secrets.register(issued.secret, "gateway key")
    assert {get("status", text).status_code for text in (world.keys[0].secret, issued.secret)} == {200}
    again = keys.rotate(world.keys[0].row, grace_seconds=0, by=None, now=utc_now())
    secrets.register(again.secret, "gateway key")
    assert [get("status", text).status_code for text in (world.keys[0].secret, issued.secret, again.secret)] == [401, 401, 200]


def test_the_burn_rate_and_the_projection_come_from_complete_days(world: World) -> None:
    """Days are filled by 2 credits each before today; today's are not in the rate."""
    for days in range(1, 7):
        world.use(0, 2 * CREDIT, "m-1", admitted_at=utc_now() - timedelta(days=days))
    found = get("status", token_of(world.member("owner"))).json()
    assert found["daily_burn_rate"] == "2"
    assert found["projected_overage"] == {"low": "0", "expected": "0", "high": "0"}


def test_without_a_plan_there_is_no_period() -> None:
    member = factories.member(factories.organization(plan=None))
    found = get("status", token_of(member)).json()
    assert set(found) == STATUS
    assert (found["current_period"], found["top_models"]) == (None, [])


@pytest.mark.parametrize("path", ["usage", "status"])
def test_the_number_of_queries_does_not_grow(world: World, path: str) -> None:
    """H6's kind."""
    token = token_of(world.member("owner"))
    query = {"by": "key"} if path == "usage" else {}
    get(path, token, **query)
    with CaptureQueriesContext(connection) as few:
        assert get(path, token, **query).status_code == 200
    for number in range(12):
        key = factories.api_key(factories.member(world.organization, team=factories.team(world.organization)))
        usage.record(world.organization.pk, [event_for(key.row, credits=5, lines=(line(f"n-{number}", credits=5),))])
    with CaptureQueriesContext(connection) as many:
        assert get(path, token, **query).status_code == 200
    assert len(many) == len(few)
