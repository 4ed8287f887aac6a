"""Files and API keys: each is shown to its upstream once before it serves, and a refusal changes nothing."""

import json
import logging
from datetime import timedelta
from typing import Any

import pytest

from accounts.models import AuditEvent, Organization
from config import addresses
from config.clock import utc_now
from routing import accounts, credentials, joining, sealing, snapshots, withdrawal
from routing.errors import AccountError, AddressRefused, CredentialRefused, CredentialUnverified, TermsNotAccepted
from routing.joining import Joined, Outcome
from routing.models import PoolAccount
from tests import secrets
from tests.routing import made
from tests.routing.test_accounts import api_key
from tests.upstream import ScriptedUpstream

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("remote")]

USAGE = "/backend-api/wham/usage"


@pytest.fixture
def organization() -> Organization:
    return made.organization()


def add(organization: Organization, *files: object, **options: Any) -> list[Outcome]:
    named = [(f"file{number}", one if isinstance(one, bytes) else json.dumps(one).encode()) for number, one in enumerate(files)]
    values: dict[str, Any] = {"accept_terms": True, "by": None, "now": utc_now(), **options}
    return joining.add_files(organization, named, **values)


def add_one(organization: Organization, file: object, **options: Any) -> Joined:
    (outcome,) = add(organization, file, **options)
    assert outcome.joined is not None, outcome
    return outcome.joined


def rows(organization: Organization) -> int:
    return PoolAccount.objects.for_organization(organization).count()


# ------------------------------------------------------------------------------------------------------------- files


def test_each_sign_in_of_each_file_is_judged_on_its_own(organization: Organization, remote: ScriptedUpstream) -> None:
    good, listed, revoked = remote.mint(), remote.mint(), remote.mint()
    remote.revoke(account_id=revoked["tokens"]["account_id"])
    outcomes = add(organization, good, [listed, {"tokens": None}], b"{", revoked, good, [])
    assert [(one.source, one.joined is not None, one.code) for one in outcomes] == [
        ("file0", True, ""),
        ("file1[0]", True, ""),
        ("file1[1]", False, "auth_file_invalid"),
        ("file2", False, "auth_file_invalid"),
        ("file3", False, "credential_refused"),
        ("file4", True, ""),
        ("file5", False, "auth_file_invalid"),
    ]
    assert [one.joined.is_new for one in outcomes if one.joined] == [True, True, False]
    assert outcomes[4].reason == "The upstream refuses it (token_invalidated)."
    assert rows(organization) == 2


def test_an_account_serves_only_after_its_upstream_took_the_token(organization: Organization, remote: ScriptedUpstream) -> None:
    file = remote.mint(plan="pro", email="ada@example.test")
    account = add_one(organization, file).account
    (asked,) = remote.received(path=USAGE)
    assert asked.token == file["tokens"]["access_token"]
    assert asked.headers["chatgpt-account-id"] == account.chatgpt_account_id
    assert asked.headers["user-agent"] == "weir"
    assert (account.label, account.plan_type, account.status) == ("ada@example.test", "pro", "active")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"status": 401, "body": "no"}, "credential_refused"),
        ({"error": "402"}, "credential_refused"),
        ({"error": "403"}, "credential_refused"),
        ({"error": "500"}, "credential_unverified"),
        ({"error": "503_overloaded"}, "credential_unverified"),
        ({"status": 302, "body": "", "headers": {"location": "/elsewhere"}}, "credential_unverified"),
        ({"cut_before_head": True}, "credential_unverified"),
    ],
)
def test_a_refusal_or_no_answer_changes_nothing(
    organization: Organization, remote: ScriptedUpstream, answer: dict[str, Any], error: str
) -> None:
    """Neither for a new account nor for one that serves: a token that works is not put at risk."""
    known = add_one(organization, remote.mint()).account
    remote.script(answer, path=USAGE, repeat=0)
    outcomes = add(organization, remote.mint(), remote.mint(account_id=known.chatgpt_account_id))
    assert [one.code for one in outcomes] == [error, error]
    after = PoolAccount.objects.for_organization(organization).get()
    assert (after.credential_version, after.status, after.access_token) == (1, "active", known.access_token)


@pytest.mark.parametrize("answer", [{"status": 404, "body": "no such path"}, {"error": "429_rate"}])
def test_what_says_nothing_against_the_credential_lets_it_in(
    organization: Organization, remote: ScriptedUpstream, answer: dict[str, Any]
) -> None:
    remote.script(answer, path=USAGE)
    assert add_one(organization, remote.mint()).is_new


def test_the_terms_come_first_and_nothing_is_read_or_asked_without_them(
    organization: Organization, remote: ScriptedUpstream
) -> None:
    with pytest.raises(TermsNotAccepted) as refused:
        add(organization, remote.mint(), accept_terms=False)
    assert "may withdraw it at any time" in refused.value.facts["terms"]
    assert remote.received(path=USAGE) == []
    assert rows(organization) == 0
    add(organization, b"{", accept_terms=True)
    events = AuditEvent.objects.filter(organization=organization, action="organization.sign_in_terms_accepted")
    assert events.count() == 1
    add(organization, remote.mint(), accept_terms=False)
    assert events.count() == 1


def test_an_unknown_plan_refuses_all_before_anything_is_read(organization: Organization, remote: ScriptedUpstream) -> None:
    with pytest.raises(AccountError, match="not known"):
        add(organization, remote.mint(), plan="platinum")
    assert remote.received(path=USAGE) == []


def test_two_seats_and_two_workspaces_of_one_batch_are_accounts_of_their_own(
    organization: Organization, remote: ScriptedUpstream
) -> None:
    """N43: same workspace id, two user ids; and same e-mail, two workspaces."""
    one, other = f"acct_{made.number()}", f"acct_{made.number()}"
    mail = {"email": "a@example.test"}
    seats = [remote.mint(account_id=one, user_id="user_1", **mail), remote.mint(account_id=other, user_id="user_1", **mail)]
    # The scripted upstream knows one user of a workspace; the second seat's claims are written by hand.
    second = json.loads(json.dumps(seats[0]))
    auth = {"chatgpt_account_id": one, "chatgpt_user_id": "user_2"}
    second["tokens"]["id_token"] = made.jwt({"email": "b@example.test", "https://api.openai.com/auth": auth})
    assert [outcome.joined and outcome.joined.is_new for outcome in add(organization, [*seats, second])] == [True, True, True]
    assert set(PoolAccount.objects.for_organization(organization).values_list("identity", flat=True)) == {
        f"{one}:user_1",
        f"{other}:user_1",
        f"{one}:user_2",
    }


# ------------------------------------------------------------------------------------------------- old files, renewal


def test_a_file_whose_access_token_has_expired_is_renewed_once_and_joins(
    organization: Organization, remote: ScriptedUpstream
) -> None:
    file = remote.mint(expires_in=-60)
    account = add_one(organization, file).account
    assert remote.refreshes(account.chatgpt_account_id) == 1
    assert len(remote.received(path="/oauth/token")) == 1
    kept = sealing.unseal(account.refresh_token, account=account.uuid, field="refresh_token")
    assert kept != file["tokens"]["refresh_token"]
    assert account.access_expires_at is not None
    assert account.access_expires_at > utc_now()
    # What was stored is the new chain: it renews.
    assert credentials.refresh(account.pk, "proactive_expiry").version == 2


def test_an_expired_file_whose_refresh_token_was_used_is_told_so(organization: Organization, remote: ScriptedUpstream) -> None:
    file = remote.mint(expires_in=-60)
    other = made.organization()
    add_one(other, file)
    (outcome,) = add(organization, file)
    assert outcome.code == "credential_refused"
    assert "refresh_token_reused" in outcome.reason
    assert rows(organization) == 0


def test_an_expired_file_whose_renewal_is_lost_says_that_it_may_be_spent(
    organization: Organization, remote: ScriptedUpstream
) -> None:
    """N45: the kind of it that joining has."""
    remote.script({"lost": True}, path="/oauth/token")
    file = remote.mint(expires_in=-60)
    (outcome,) = add(organization, file)
    assert outcome.code == "credential_unverified"
    assert "Try again" in outcome.reason
    (again,) = add(organization, file)
    assert again.code == "credential_refused"
    assert rows(organization) == 0


def test_an_older_file_does_not_replace_the_sign_in_that_the_pool_renews(
    organization: Organization, remote: ScriptedUpstream
) -> None:
    """Its refresh token has been spent: taking it would take the account out at the next renewal."""
    file = remote.mint(expires_in=3600)
    account = add_one(organization, file).account
    credentials.refresh(account.pk, "proactive_expiry")
    (outcome,) = add(organization, file)
    assert outcome.code == "auth_file_stale"
    assert credentials.refresh(account.pk, "proactive_expiry").version == 3


def test_an_expired_file_of_an_account_that_the_pool_holds_spends_nothing(
    organization: Organization, remote: ScriptedUpstream
) -> None:
    """K1: the pool's own renewal and the file's would spend one token twice."""
    file = remote.mint(expires_in=1)
    account = add_one(organization, file).account
    (outcome,) = add(organization, file, now=utc_now() + timedelta(seconds=2))
    assert outcome.code == "auth_file_stale"
    assert remote.received(path="/oauth/token") == []
    assert credentials.refresh(account.pk, "proactive_expiry").version == 2


@pytest.mark.parametrize("status", ["needs_sign_in", "paused", "active"])
def test_signing_in_again_renews_the_same_identity_whatever_its_status(
    organization: Organization, remote: ScriptedUpstream, status: str
) -> None:
    account = add_one(organization, remote.mint(), label="Ada").account
    PoolAccount.objects.filter(pk=account.pk).update(status=status, status_reason="refresh_token_reused")
    renewed = add_one(organization, remote.mint(account_id=account.chatgpt_account_id))
    assert (renewed.is_new, renewed.account.pk, renewed.account.label) == (False, account.pk, "Ada")
    # Who paused it had a reason that a sign-in does not end.
    assert renewed.account.status == ("paused" if status == "paused" else "active")
    assert (renewed.account.status_reason, renewed.account.credential_version) == ("", 2)


def test_a_withdrawn_account_does_not_come_back_by_a_file(organization: Organization, remote: ScriptedUpstream) -> None:
    account = add_one(organization, remote.mint()).account
    withdrawal.withdraw(organization, str(account.uuid), by=None)
    asked = len(remote.received(path=USAGE))
    (outcome,) = add(organization, remote.mint(account_id=account.chatgpt_account_id))
    assert outcome.code == "account_withdrawn"
    assert len(remote.received(path=USAGE)) == asked
    account.refresh_from_db()
    assert (account.status, account.access_token) == ("withdrawn", "")


# ---------------------------------------------------------------------------------------------------------- API keys


def test_an_api_key_is_asked_for_its_models_and_then_serves(organization: Organization, remote: ScriptedUpstream) -> None:
    key = api_key()
    joined = joining.add_key(organization, key, label="Key", by=None, now=utc_now())
    (asked,) = remote.received(path="/v1/models")
    assert asked.token == key
    assert joined.is_new
    assert snapshots.load(organization.pk).pools[0].accounts[0].status == "active"
    assert not joining.add_key(organization, key, label="Key", by=None, now=utc_now()).is_new


def test_a_key_that_its_upstream_refuses_is_not_added(
    organization: Organization, remote: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    key = api_key()
    remote.revoke(token=key)
    with caplog.at_level(logging.DEBUG), pytest.raises(CredentialRefused, match=r"refuses it \(invalid_api_key\)") as refused:
        joining.add_key(organization, key, label="Key", by=None, now=utc_now())
    assert key not in repr(refused.value.__dict__) + caplog.text
    assert rows(organization) == 0


def anthropic_key() -> str:
    return secrets.register(f"sk-ant-test-{made.number():040d}", "API key")


def test_anthropics_key_is_shown_as_their_api_wants_it(organization: Organization, remote: ScriptedUpstream) -> None:
    key = anthropic_key()
    joined = joining.add_key(organization, key, kind="anthropic", label="Claude", by=None, now=utc_now())
    (asked,) = remote.received(path="/v1/models")
    assert (asked.headers["x-api-key"], asked.headers["anthropic-version"]) == (key, "2023-06-01")
    assert "authorization" not in asked.headers
    account = joined.account
    assert (account.kind, account.priority, account.base_url) == ("anthropic", 10, "")
    assert account.identity.startswith("anthropic:")
    assert key not in account.identity
    (shown,) = snapshots.load(organization.pk).pools[0].accounts
    assert (shown.kind, shown.base_url) == ("anthropic", f"{remote.url}/v1")
    again = joining.add_key(organization, key, kind="anthropic", label="Renamed", by=None, now=utc_now())
    assert (again.is_new, again.account.pk, again.account.label) == (False, account.pk, "Renamed")


def test_anthropics_refusal_is_named_by_its_type(organization: Organization, remote: ScriptedUpstream) -> None:
    key = anthropic_key()
    remote.revoke(token=key)
    with pytest.raises(CredentialRefused, match=r"refuses it \(authentication_error\)"):
        joining.add_key(organization, key, kind="anthropic", label="Claude", by=None, now=utc_now())
    assert rows(organization) == 0


def test_a_key_of_another_vendor_is_refused_by_this_one(organization: Organization, remote: ScriptedUpstream) -> None:
    with pytest.raises(CredentialRefused):
        joining.add_key(organization, api_key(), kind="anthropic", label="Claude", by=None, now=utc_now())
    assert rows(organization) == 0


def compatible(organization: Organization, remote: ScriptedUpstream, key: str, path: str = "/v1", **fields: Any) -> Joined:
    values: dict[str, Any] = {"label": "vLLM", "base_url": f"http://localhost:{remote.port}{path}", **fields}
    return joining.add_key(organization, key, kind="openai_compatible", by=None, now=utc_now(), **values)


def test_a_compatible_endpoint_joins_at_its_own_address_with_its_models(
    organization: Organization, remote: ScriptedUpstream, settings: Any
) -> None:
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    account = compatible(organization, remote, api_key(), models=["qwen3", "gpt-oss-120b", "qwen3"]).account
    (asked,) = remote.received(path="/v1/models")
    assert asked.headers["host"] == f"localhost:{remote.port}"
    (shown,) = snapshots.load(organization.pk).pools[0].accounts
    assert (shown.kind, shown.base_url) == ("openai_compatible", f"http://localhost:{remote.port}/v1")
    assert shown.models == frozenset({"gpt-oss-120b", "qwen3"})
    assert account.models_served == ["gpt-oss-120b", "qwen3"]


def test_one_key_at_two_addresses_is_two_accounts(organization: Organization, remote: ScriptedUpstream, settings: Any) -> None:
    """Endpoints of one's own take whatever they were given: `EMPTY`."""
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    remote.script({"status": 200, "body": {"data": []}}, path="/v1/models", repeat=0)
    remote.script({"status": 200, "body": {"data": []}}, path="/other/v1/models", repeat=0)
    first = compatible(organization, remote, "EMPTY")
    second = compatible(organization, remote, "EMPTY", "/other/v1")
    again = compatible(organization, remote, "EMPTY", models=["qwen3"])
    assert (first.is_new, second.is_new, again.is_new) == (True, True, False)
    assert (first.account.pk == again.account.pk, first.account.pk == second.account.pk) == (True, False)
    assert compatible(organization, remote, "EMPTY").account.models_served == ["qwen3"]


def test_a_compatible_endpoint_needs_an_address_and_is_not_shown_its_key_without(
    organization: Organization, remote: ScriptedUpstream
) -> None:
    for base_url, error in ((None, AccountError), ("", AccountError), (f"http://localhost:{remote.port}/v1", AddressRefused)):
        with pytest.raises(error):
            compatible(organization, remote, api_key(), base_url=base_url)
    assert (remote.received(path="/v1/models"), rows(organization)) == ([], 0)


@pytest.mark.parametrize("models", [[], [""], ["  "], ["x" * 121], ["a\nb"]])
def test_models_that_cannot_be_are_refused_before_the_key_is_shown(
    organization: Organization, remote: ScriptedUpstream, models: list[str]
) -> None:
    with pytest.raises(AccountError):
        joining.add_key(organization, api_key(), label="Key", models=models, by=None, now=utc_now())
    assert (remote.received(path="/v1/models"), rows(organization)) == ([], 0)


def test_which_models_an_account_serves_holds_on_the_next_request(organization: Organization, remote: ScriptedUpstream) -> None:
    account = joining.add_key(organization, api_key(), label="Key", by=None, now=utc_now()).account
    before = Organization.objects.get(pk=organization.pk).config_version
    assert accounts.set_models(account, ["gpt-5.5"], by=None).models_served == ["gpt-5.5"]
    assert Organization.objects.get(pk=organization.pk).config_version == before + 1
    (shown,) = snapshots.load(organization.pk).pools[0].accounts
    assert shown.models == frozenset({"gpt-5.5"})
    event = AuditEvent.objects.filter(organization=organization).latest("id")
    assert (event.action, event.data["before"], event.data["after"]) == ("account.models_set", None, ["gpt-5.5"])
    assert accounts.set_models(account, None, by=None).models_served is None
    with pytest.raises(AccountError):
        accounts.set_models(account, [], by=None)


def test_a_key_at_an_address_that_must_not_be_called_is_not_shown_there(
    organization: Organization, remote: ScriptedUpstream
) -> None:
    """N72"""
    address = f"http://localhost:{remote.port}/v1"
    with pytest.raises(AddressRefused):
        joining.add_key(organization, api_key(), label="Key", base_url=address, by=None, now=utc_now())
    assert remote.received(path="/v1/models") == []


def test_the_call_goes_to_the_address_that_was_judged(
    organization: Organization, remote: ScriptedUpstream, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N72: a name that has another address a moment later: it is connected to as it was judged, and the host stays its own."""
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    looked_up: list[str] = []
    real = addresses._addresses

    def only_here(host: str, port: int) -> Any:
        looked_up.append(host)
        return real("127.0.0.1", port)

    monkeypatch.setattr(addresses, "_addresses", only_here)
    address = f"http://weir-gateway.invalid:{remote.port}/v1"
    joined = joining.add_key(organization, api_key(), label="Key", base_url=address, by=None, now=utc_now())
    (asked,) = remote.received(path="/v1/models")
    assert asked.headers["host"] == f"weir-gateway.invalid:{remote.port}"
    assert joined.account.base_url == address
    assert set(looked_up) == {"weir-gateway.invalid"}


def test_an_upstream_that_is_not_there_adds_no_key(organization: Organization, settings: Any) -> None:
    settings.UPSTREAM_OPENAI_URL = "http://127.0.0.1:9/v1"
    with pytest.raises(CredentialUnverified):
        joining.add_key(organization, api_key(), label="Key", by=None, now=utc_now())
    assert rows(organization) == 0


def test_another_tenants_account_of_the_same_identity_is_another_account(remote: ScriptedUpstream) -> None:
    mine, other = made.organization(), made.organization()
    file = remote.mint()
    first, second = add_one(mine, file), add_one(other, file)
    assert (first.is_new, second.is_new) == (True, True)
    assert first.account.pk != second.account.pk
    assert accounts.find_sign_in(mine, first.account.identity) == first.account
