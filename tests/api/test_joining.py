"""Joining over the API: keys, files, a sign-in in a browser, by a code; who accepts the terms; credentials go in and never out."""

import json
from typing import Any

import pytest

from accounts.models import Organization
from config.clock import utc_now
from routing.models import PoolAccount, SignInFlow
from tests import factories, secrets
from tests.api.calls import Caller, code
from tests.routing.conftest import remote as remote
from tests.upstream import ScriptedUpstream

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("remote")]


class World:
    def __init__(self) -> None:
        self.organization = factories.organization()
        self.owner = Caller(factories.member(self.organization, role="owner"))
        self.lead = Caller(factories.member(self.organization, role="lead"))

    def accounts(self) -> list[PoolAccount]:
        return list(PoolAccount.objects.for_organization(self.organization))


@pytest.fixture
def world() -> World:
    return World()


def key(prefix: str = "sk-") -> str:
    return secrets.register(f"{prefix}{factories.unique('test')}-{'k' * 30}", "upstream API key")


def test_a_key_joins_once_its_upstream_took_it(world: World, remote: ScriptedUpstream) -> None:
    secret = key()
    body = {"kind": "openai", "label": "Company", "api_key": secret, "floor_percent": 5, "priority": 7, "models": ["gpt-5.5"]}
    answer = world.lead.post("accounts/keys", body)
    assert answer.status_code == 200, answer.content
    found = answer.json()
    assert found["is_new"] is True
    assert (found["account"]["label"], found["account"]["floor_percent"], found["account"]["priority"]) == ("Company", 5, 7)
    assert found["account"]["models"] == ["gpt-5.5"]
    assert secret not in answer.content.decode()
    [asked] = remote.received()
    assert asked.headers["authorization"] == f"Bearer {secret}"
    again = world.lead.post("accounts/keys", {**body, "label": "Renamed"}).json()
    assert (again["is_new"], again["account"]["id"], again["account"]["label"]) == (False, found["account"]["id"], "Renamed")
    assert len(world.accounts()) == 1


def test_a_key_that_is_refused_is_not_stored_nor_told(world: World, remote: ScriptedUpstream) -> None:
    remote.script({"status": 401, "body": json.dumps({"error": {"message": "no"}})}, path="/v1/models")
    secret = key()
    answer = world.lead.post("accounts/keys", {"kind": "openai", "label": "Company", "api_key": secret})
    assert code(answer) == (400, "credential_refused")
    assert secret not in answer.content.decode()
    refused = world.lead.post("accounts/keys", {"kind": "chatgpt", "label": "x", "api_key": secret})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "kind")
    assert code(world.lead.post("accounts/keys", {"kind": "openai_compatible", "label": "x", "api_key": "EMPTY"}))[0] == 400
    inside = {"kind": "openai_compatible", "label": "x", "api_key": "EMPTY", "base_url": "http://127.0.0.1:1/v1"}
    assert code(world.lead.post("accounts/keys", inside)) == (400, "address_refused")
    assert world.accounts() == []


def test_terms_are_an_owners_to_accept(world: World, remote: ScriptedUpstream) -> None:
    terms = world.lead.get("sign-in-terms").json()
    assert (terms["accepted_at"], terms["may_accept"]) == (None, False)
    assert "may forbid giving others access" in terms["text"]
    for way in ("browser", "device"):
        assert code(world.lead.post("sign-ins", {"way": way, "accept_terms": True})) == (400, "terms_not_accepted")
    assert code(world.owner.post("sign-ins", {"way": "browser"})) == (400, "terms_not_accepted")
    assert not SignInFlow.objects.filter(organization=world.organization).exists()
    assert remote.received() == []
    assert world.owner.post("sign-ins", {"way": "browser", "accept_terms": True}).status_code == 201
    assert Organization.objects.get(pk=world.organization.pk).sign_in_terms_accepted_by == world.owner.member.user
    assert world.lead.post("sign-ins", {"way": "browser"}).status_code == 201


def test_a_person_signs_in_in_a_browser(world: World, remote: ScriptedUpstream) -> None:
    remote.person(email="ada@example.test", plan="pro")
    begun = world.owner.post("sign-ins", {"way": "browser", "label": "Ada", "plan": "pro_200", "accept_terms": True}).json()
    assert (begun["way"], begun["user_code"], begun["interval_seconds"]) == ("browser", None, None)
    assert world.owner.get(f"sign-ins/{begun['id']}").json() == begun
    # What another has begun is not open to anyone else.
    stranger = World()
    for other in (world.lead, stranger.owner):
        assert code(other.get(f"sign-ins/{begun['id']}")) == (404, "sign_in_over")
        assert code(other.post(f"sign-ins/{begun['id']}/finish", {"address": "http://x?code=1&state=2"})) == (404, "sign_in_over")
    back = remote.sign_in(begun["url"])
    finish = f"sign-ins/{begun['id']}/finish"
    wrong = world.owner.post(finish, {"address": "http://127.0.0.1:1455/auth/callback?code=private-code&state=other"})
    assert code(wrong) == (400, "callback_invalid")
    assert "private-code" not in wrong.content.decode()
    done = world.owner.post(finish, {"address": back, "floor_percent": 20, "priority": 2})
    assert done.status_code == 200, done.content
    account = done.json()["account"]
    assert (done.json()["is_new"], account["label"], account["email"], account["plan"]) == (
        True,
        "Ada",
        "ada@example.test",
        "pro_200",
    )
    assert (account["floor_percent"], account["priority"]) == (20, 2)
    assert account["accepted_by"] == world.owner.member.user.email  # type: ignore[union-attr]
    assert code(world.owner.post(finish, {"address": back})) == (404, "sign_in_over")
    assert len(world.accounts()) == 1


def test_a_code_is_polled_until_it_is_entered(world: World, remote: ScriptedUpstream) -> None:
    begun = world.owner.post("sign-ins", {"way": "device", "label": "Ada", "accept_terms": True}).json()
    assert begun["user_code"]
    assert world.owner.get(f"sign-ins/{begun['id']}").json() == begun
    poll = f"sign-ins/{begun['id']}/poll"
    early = world.owner.post(poll).json()
    assert (early["account"], early["is_new"]) == (None, False)
    assert early["retry_after"] >= 1
    remote.approve(begun["user_code"], email="ada@example.test")
    SignInFlow.objects.filter(organization=world.organization).update(next_poll_at=utc_now())
    done = world.owner.post(poll, {"floor_percent": 30}).json()
    assert (done["retry_after"], done["is_new"], done["account"]["floor_percent"]) == (None, True, 30)
    assert code(world.owner.post(poll)) == (404, "sign_in_over")


def test_each_sign_in_of_each_file_is_told(world: World, remote: ScriptedUpstream) -> None:
    one, listed, revoked = remote.mint(email="ada@example.test"), remote.mint(email="bob@example.test"), remote.mint()
    remote.revoke(account_id=revoked["tokens"]["account_id"])
    files: list[dict[str, Any]] = [
        {"name": "one.json", "content": json.dumps(one)},
        {"name": "list.json", "content": json.dumps([listed, {"tokens": None}])},
        {"name": "bad.json", "content": "{"},
        {"name": "revoked.json", "content": json.dumps(revoked)},
    ]
    answer = world.owner.post("accounts/files", {"files": files, "accept_terms": True, "floor_percent": 15})
    assert answer.status_code == 200, answer.content
    told = {one["source"]: one for one in answer.json()["outcomes"]}
    assert {source: one["code"] for source, one in told.items()} == {
        "one.json": None, "list.json[0]": None, "list.json[1]": "auth_file_invalid", "bad.json": "auth_file_invalid",
        "revoked.json": "credential_refused",
    }  # fmt: skip
    assert told["one.json"]["account"]["email"] == "ada@example.test"
    assert {account.floor_percent for account in world.accounts()} == {15}
    assert len(world.accounts()) == 2
    text = answer.content.decode()
    for tokens in (one["tokens"], listed["tokens"], revoked["tokens"]):
        assert tokens["access_token"] not in text
        assert tokens["refresh_token"] not in text
