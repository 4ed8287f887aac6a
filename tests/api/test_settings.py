"""/api/v1/settings, tokens and the audit trail: what owners set, what a token hands on, and the chain as it is."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts import api as accounts_api
from accounts import audit
from accounts.models import ApiToken, AuditEvent, Organization
from config.clock import utc_now
from quotas import limits
from quotas.models import Limit
from routing import fallbacks
from tests import factories, secrets
from tests.api.calls import Caller, code
from tests.flows.untouched import rows_of

pytestmark = pytest.mark.django_db(transaction=True)


class World:
    def __init__(self) -> None:
        self.organization = factories.organization()
        self.owner = Caller(factories.member(self.organization, role="owner"))


@pytest.fixture
def world() -> World:
    return World()


def test_settings_are_read_and_set_together(world: World) -> None:
    found = world.owner.get("settings")
    assert found.json()["has_identity_provider"] is False
    assert (found.json()["timezone"], found.json()["second_factor"], found.json()["unpriced_models"]) == (
        "UTC",
        "optional",
        "refuse",
    )
    body = {"name": "New name", "timezone": "Europe/Berlin", "unpriced_models": "fallback", "developers_see_pool": True}
    changed = world.owner.patch("settings", body)
    assert changed.status_code == 200, changed.content
    assert {name: changed.json()[name] for name in body} == body
    row = Organization.objects.get(pk=world.organization.pk)
    assert (row.name, row.timezone, row.slug) == ("New name", "Europe/Berlin", world.organization.slug)
    assert world.owner.get("settings").json() == changed.json()


def test_all_or_nothing(world: World) -> None:
    before = rows_of(world.organization)
    assert code(world.owner.patch("settings", {"name": "Other", "timezone": "Mars/Base"})) == (400, "timezone_unknown")
    # Who has no factor themselves would shut themselves out.
    assert code(world.owner.patch("settings", {"name": "Other", "second_factor": "everyone"})) == (409, "second_factor_missing")
    assert code(world.owner.patch("settings", {"name": "a\u202eb"})) == (400, "name_invalid")
    assert rows_of(world.organization) == before


def test_previews_change_nothing(world: World) -> None:
    developer = factories.member(world.organization)
    before = rows_of(world.organization)
    [moved] = world.owner.get("settings/zone-preview", timezone="Asia/Tokyo").json()["periods"]
    assert moved["member"] is None
    assert moved["ends_at_now"] > moved["ends_at_then"]
    lacking = world.owner.get("settings/sign-in-policy-preview", policy="everyone").json()["lacking"]
    assert [one["member_id"] for one in lacking] == [str(world.owner.member.uuid), str(developer.uuid)]
    leads = world.owner.get("settings/sign-in-policy-preview", policy="leads").json()["lacking"]
    assert [one["role"] for one in leads] == ["owner"]
    assert rows_of(world.organization) == before


def test_terms_are_accepted_on_the_record_once(world: World) -> None:
    assert code(world.owner.post("settings/sign-in-terms", {"accept": "yes"}))[0] == 400
    body = {"accept": "I accept these terms for the organization"}
    first = world.owner.post("settings/sign-in-terms", body).json()
    assert world.owner.post("settings/sign-in-terms", body).json() == first
    assert AuditEvent.objects.filter(organization=world.organization, action="organization.sign_in_terms_accepted").count() == 1
    for _ in range(2):
        assert world.owner.delete("settings/sign-in-terms").status_code == 204
    assert world.owner.get("settings").json()["sign_in_terms_accepted_at"] is None
    assert AuditEvent.objects.filter(organization=world.organization, action="organization.sign_in_terms_withdrawn").count() == 1


def test_a_model_stands_in_for_another(world: World) -> None:
    made = world.owner("PUT", "fallbacks", {"model": "gpt-a", "fallbacks": ["gpt-b", "gpt-c"]})
    assert made.json() == {"rules": [{"model": "gpt-a", "fallbacks": ["gpt-b", "gpt-c"]}]}
    assert fallbacks.of(world.organization) == {"gpt-a": ["gpt-b", "gpt-c"]}
    assert code(world.owner("PUT", "fallbacks", {"model": "gpt-a", "fallbacks": ["gpt-a"]})) == (400, "fallback_invalid")
    assert world.owner("PUT", "fallbacks", {"model": "gpt-a", "fallbacks": []}).json() == {"rules": []}
    longest = "m" * 120
    assert world.owner("PUT", "fallbacks", {"model": longest, "fallbacks": ["b"]}).json()["rules"][0]["model"] == longest
    assert AuditEvent.objects.filter(organization=world.organization, action="fallback.set").first().data["model"] == longest  # type: ignore[union-attr]


def test_models_are_blocked_and_used_again(world: World) -> None:
    made = world.owner.post("blocked-models", {"models": ["gpt-5.4", " gpt-5.5"]})
    assert made.status_code == 200, made.content
    [rule] = made.json()["rules"]
    assert rule["models"] == ["gpt-5.4", "gpt-5.5"]
    assert world.owner.get("blocked-models").json() == made.json()
    row = Limit.objects.get(uuid=rule["id"])
    assert (row.scope, row.metric, row.window, row.amount) == ("organization", "requests", "day", 0)
    assert code(world.owner.post("blocked-models", {"models": ["no-such-model"]})) == (400, "invalid_limit")
    other = limits.set_limit(world.organization, scope="organization", of="", metric="credits", window="day", amount="5", by=None)
    for stranger, uuid in ((World().owner, rule["id"]), (world.owner, str(other))):
        assert code(stranger.delete(f"blocked-models/{uuid}")) == (404, "not_found")
    assert Limit.objects.filter(organization=world.organization).count() == 2
    assert world.owner.delete(f"blocked-models/{rule['id']}").status_code == 204
    assert world.owner.get("blocked-models").json() == {"rules": []}


def test_an_identity_providers_secret_goes_in_and_never_out(world: World, settings: Any) -> None:
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    path = "settings/identity-provider"
    assert code(world.owner.get(path)) == (404, "not_found")
    secret = secrets.register(factories.unique("client-secret"), "client secret")
    body = {
        "name": "Idp", "issuer": "http://127.0.0.1:9", "client_id": "weir", "client_secret": secret,
        "email_domains": ["Example.com"],
        "role_claim": "groups", "role_map": {"admins": "owner", "staff": "developer"}, "default_role": None, "is_required": True,
    }  # fmt: skip
    made = world.owner("PUT", path, body)
    assert made.status_code == 200, made.content
    assert secret not in made.content.decode()
    found = world.owner.get(path).json()
    assert found == made.json()
    assert (found["email_domains"], found["role_map"], found["has_secret"]) == (["example.com"], body["role_map"], True)
    kept = world.owner("PUT", path, {**{name: body[name] for name in body if name != "client_secret"}, "name": "Other"}).json()
    assert (kept["name"], kept["has_secret"]) == ("Other", True)
    assert world.owner.get("settings").json()["has_identity_provider"] is True
    before = rows_of(world.organization)
    assert code(world.owner("PUT", path, {**body, "email_domains": ["no domain"]})) == (400, "identity_provider_invalid")
    assert code(world.owner("PUT", path, {**body, "role_map": {"admins": "king"}}))[0] == 400
    assert rows_of(world.organization) == before
    assert world.owner.post(f"{path}/test").json()["trouble"]
    assert world.owner.delete(path).status_code == 204
    assert code(world.owner.delete(path)) == (404, "not_found")


def test_a_token_hands_on_no_more_than_it_has(world: World) -> None:
    ends = utc_now() + timedelta(days=1)
    caller = Caller(world.owner.member, scopes=["settings:write", "settings:read", "usage:read"], expires_at=ends)
    assert code(caller.post("tokens", {"name": "x", "scopes": ["money:write"]})) == (403, "insufficient_scope")
    later = (ends + timedelta(seconds=1)).isoformat()
    assert code(caller.post("tokens", {"name": "x", "scopes": ["usage:read"], "expires_at": later})) == (400, "token_invalid")
    assert ApiToken.objects.filter(organization=world.organization, name="x").count() == 0
    answer = caller.post("tokens", {"name": "Dashboard", "scopes": ["usage:read"]}, key="once")
    assert answer.status_code == 201, answer.content
    made = answer.json()
    secrets.register(made["secret"], "API token")
    row = ApiToken.objects.get(uuid=made["id"])
    assert (row.member, row.scopes, row.expires_at) == (world.owner.member, ["usage:read"], ends)
    again = caller.post("tokens", {"name": "Dashboard", "scopes": ["usage:read"]}, key="once").json()
    assert (again["id"], again["secret"]) == (made["id"], None)
    new = Caller(world.owner.member)
    new.token = made["secret"]
    assert new.get("usage").status_code == 200
    assert code(new.get("members")) == (403, "insufficient_scope")
    assert caller.delete(f"tokens/{made['id']}").status_code == 204
    assert new.get("usage").status_code == 401
    assert caller.get(f"tokens/{made['id']}").json()["revoked_at"] is not None


def test_others_see_and_end_their_own_tokens_only(world: World) -> None:
    developer = Caller(factories.member(world.organization), scopes=["settings:read", "settings:write"])
    own = developer.get("tokens").json()["results"]
    assert [(one["is_this"], one["member_id"]) for one in own] == [(True, str(developer.member.uuid))]
    assert developer.token not in developer.get("tokens").content.decode()
    everybody = world.owner.get("tokens").json()["results"]
    assert {one["member_id"] for one in everybody} == {str(developer.member.uuid), str(world.owner.member.uuid)}
    owners = next(one["id"] for one in everybody if one["is_this"])
    assert code(developer.get(f"tokens/{owners}")) == (403, "permission_denied")
    assert code(developer.delete(f"tokens/{owners}")) == (403, "permission_denied")
    assert ApiToken.objects.get(uuid=owners).revoked_at is None
    assert world.owner.delete(f"tokens/{own[0]['id']}").status_code == 204
    assert developer.get("tokens").status_code == 401
    assert [one["id"] for one in world.owner.get("tokens", revoked="true").json()["results"]] == [own[0]["id"]]


def test_a_token_says_when_it_was_last_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every call that it proves who calls with, also one that is refused; to the minute."""
    developer = Caller(factories.member(world.organization), scopes=["settings:read"])
    [unused] = [one for one in world.owner.get("tokens").json()["results"] if not one["is_this"]]
    assert unused["last_used_at"] is None
    noon = datetime(2030, 1, 2, 12, 0, 0, tzinfo=UTC)
    told = []
    for seconds in (0, 59, 61):
        now = noon + timedelta(seconds=seconds)
        monkeypatch.setattr(accounts_api, "utc_now", lambda now=now: now)
        assert code(developer.get("settings")) == (403, "permission_denied")
        told.append(developer.get(f"tokens/{unused['id']}").json()["last_used_at"])
    assert told == ["2030-01-02T12:00:00Z", "2030-01-02T12:00:00Z", "2030-01-02T12:01:01Z"]


def test_the_trail_is_told_as_it_is_chained(world: World) -> None:
    world.owner.patch("settings", {"name": "New name"})
    newest = world.owner.get("audit-events", limit="1").json()["results"][0]
    assert (newest["action"], newest["actor"]) == ("organization.renamed", world.owner.member.user.email)  # type: ignore[union-attr]
    assert newest["facts"]["after"] == "New name"
    head = world.owner.get("audit-head").json()
    assert (head["number"], head["digest"]) == (newest["number"], newest["digest"])
    assert head["head"] == audit.head(world.organization).text
    found = world.owner.get("audit-events", action="organization.created").json()["results"]
    assert [one["object_id"] for one in found] == [str(world.organization.uuid)]
    assert world.owner.get("audit-events", actor="nobody@example.com").json()["results"] == []
    stranger = World().owner
    assert newest["id"] not in stranger.get("audit-events", limit="200").content.decode()


def test_the_trail_in_pieces_with_a_constant_number_of_queries(world: World) -> None:
    """H6, H7."""

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert world.owner.get("audit-events").status_code == 200
        return len(captured)

    world.owner.get("me")  # The first call in a minute says on the token that it was used.
    before = queries()
    for number in range(60):
        audit.record(world.organization, actor=None, action="test.done", object_type="t", object_id=str(number))
    assert queries() == before
    first = world.owner.get("audit-events").json()
    assert len(first["results"]) == 50
    query: dict[str, Any] = dict(pair.split("=") for pair in first["next"].split("?")[1].split("&"))
    second = world.owner.get("audit-events", **query).json()
    numbers = [one["number"] for one in (*first["results"], *second["results"])]
    assert numbers == list(range(numbers[0], 0, -1))
