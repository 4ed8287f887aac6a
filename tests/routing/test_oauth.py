"""A sign-in in a browser: begun by one process, finished by any, once, within 15 minutes."""

import base64
import hashlib
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from django.db import connection

from accounts.models import AuditEvent, Organization
from config.clock import utc_now
from routing import flows, oauth, tasks
from routing.errors import AuthFileInvalid, CallbackInvalid, CredentialRefused, CredentialUnverified, FlowOver, TermsNotAccepted
from routing.models import PoolAccount, SignInFlow
from tests import factories, secrets
from tests.routing import made
from tests.upstream import ROOT, ScriptedUpstream

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("remote")]


@pytest.fixture
def organization() -> Organization:
    return made.organization()


def start(organization: Organization, **options: Any) -> oauth.Started:
    return oauth.start(organization, **{"accept_terms": True, "by": None, "now": utc_now(), **options})


def finish(organization: Organization, started: oauth.Started, pasted: str, **options: Any) -> Any:
    return oauth.finish(organization, started.flow_id, pasted, **{"by": None, "now": utc_now(), **options})


def rows(organization: Organization) -> int:
    return PoolAccount.objects.for_organization(organization).count()


def exchanges(remote: ScriptedUpstream) -> list[dict[str, list[str]]]:
    return [parse_qs(one.body.decode()) for one in remote.received(path="/oauth/token")]


def test_the_address_asks_as_the_protocol_says_and_holds_no_verifier(organization: Organization, remote: ScriptedUpstream) -> None:
    started = start(organization)
    parts = urlsplit(started.url)
    asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
    assert f"{parts.scheme}://{parts.netloc}{parts.path}" == f"{remote.url}/oauth/authorize"
    flow = flows.read(organization, started.flow_id, SignInFlow.Kind.BROWSER, by=None, now=utc_now())
    challenge = base64.urlsafe_b64encode(hashlib.sha256(flow.secret["verifier"].encode()).digest()).rstrip(b"=").decode()
    assert asked == {
        "response_type": "code",
        "client_id": "app_EMoamEEZ73f0CkXaXp7hrann",
        "redirect_uri": "http://127.0.0.1:1455/auth/callback",
        "scope": "openid profile email offline_access",
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "id_token_add_organizations": "true",
        "codex_cli_simplified_flow": "true",
        "state": flow.secret["state"],
    }
    assert len(base64.urlsafe_b64decode(asked["state"] + "=")) == 32
    assert flow.secret["verifier"] not in started.url


def test_a_person_signs_in_and_the_account_serves(organization: Organization, remote: ScriptedUpstream) -> None:
    remote.person(email="ada@example.test", plan="pro")
    started = start(organization, label="Ada", plan="pro_200")
    joined = finish(organization, started, remote.sign_in(started.url))
    account = joined.account
    assert (joined.is_new, account.label, account.email, account.plan_type) == (True, "Ada", "ada@example.test", "pro_200")
    assert account.status == "active"
    (form,) = exchanges(remote)
    assert set(form) == {"grant_type", "client_id", "code", "redirect_uri", "code_verifier"}
    assert len(remote.received(path="/backend-api/wham/usage")) == 1


def test_signing_in_again_renews_also_what_needs_sign_in_or_was_withdrawn(
    organization: Organization, remote: ScriptedUpstream
) -> None:
    person = {"account_id": f"acct_{made.number()}", "user_id": "user_1"}
    pks = set()
    for status in ("active", "needs_sign_in", "withdrawn"):
        remote.person(**person)
        started = start(organization)
        account = finish(organization, started, remote.sign_in(started.url)).account
        assert account.status == "active"
        pks.add(account.pk)
        PoolAccount.objects.filter(pk=account.pk).update(status=status)
    assert len(pks) == 1


FINISHER = """
import sys, django
django.setup()
from django.conf import settings
from django.db import connection
settings.DATABASES["default"]["NAME"] = connection.settings_dict["NAME"] = sys.argv[1]
from accounts.models import Organization
from config import scope
from config.clock import utc_now
from routing import oauth
with scope.organization(int(sys.argv[2])):
    organization = Organization.objects.get(pk=int(sys.argv[2]))
    joined = oauth.finish(organization, sys.argv[3], sys.stdin.read(), by=None, now=utc_now())
print(joined.account.pk)
"""


def test_another_process_finishes_what_this_one_began(organization: Organization, remote: ScriptedUpstream) -> None:
    """N44: sign-in started on one process, callback on another: connected."""
    started = start(organization)
    environment = {
        **os.environ,
        "UPSTREAM_AUTH_URL": remote.url,
        "UPSTREAM_CHATGPT_URL": f"{remote.url}/backend-api",
        "DJANGO_SETTINGS_MODULE": "config.settings.test",
    }
    command = [sys.executable, "-c", FINISHER, connection.settings_dict["NAME"], str(organization.pk), str(started.flow_id)]
    finisher = subprocess.run(
        command, cwd=ROOT, env=environment, input=remote.sign_in(started.url), capture_output=True, text=True, timeout=60
    )
    assert finisher.returncode == 0, finisher.stderr
    assert PoolAccount.objects.for_organization(organization).get().pk == int(finisher.stdout)


def test_a_flow_works_once_and_its_code_is_exchanged_once(organization: Organization, remote: ScriptedUpstream) -> None:
    started = start(organization)
    back = remote.sign_in(started.url)
    finish(organization, started, back)
    with pytest.raises(FlowOver):
        finish(organization, started, back)
    assert len(exchanges(remote)) == 1
    assert not SignInFlow.objects.filter(organization=organization).exists()


def test_a_flow_is_over_after_fifteen_minutes(organization: Organization, remote: ScriptedUpstream) -> None:
    now = utc_now()
    in_time, late = start(organization, now=now), start(organization, now=now)
    backs = [remote.sign_in(one.url) for one in (in_time, late)]
    assert late.expires_at == now + timedelta(minutes=15)
    finish(organization, in_time, backs[0], now=now + timedelta(minutes=14, seconds=59))
    with pytest.raises(FlowOver):
        finish(organization, late, backs[1], now=now + timedelta(minutes=15))
    assert (rows(organization), len(exchanges(remote))) == (1, 1)


def test_abandoned_flows_are_forgotten_by_the_task_and_by_the_next_start(organization: Organization) -> None:
    now = utc_now()
    other = made.organization()
    for _ in range(2):
        start(organization, now=now - timedelta(minutes=16))
    start(other, now=now - timedelta(minutes=16))
    open_one = start(organization, now=now)
    left = SignInFlow.objects.filter(organization=organization)
    assert list(left.values_list("uuid", flat=True)) == [open_one.flow_id]
    assert tasks.forget_abandoned_sign_ins() >= 1
    assert not SignInFlow.objects.filter(organization=other).exists()
    assert list(left.values_list("uuid", flat=True)) == [open_one.flow_id]


@pytest.mark.parametrize("shape", ["whole", "localhost", "query", "bare", "quoted", "fragment"])
def test_the_address_is_taken_as_people_paste_it(organization: Organization, remote: ScriptedUpstream, shape: str) -> None:
    started = start(organization)
    back = remote.sign_in(started.url)
    query = urlsplit(back).query
    pasted = {
        "whole": f"  {back}\n",
        "localhost": back.replace("127.0.0.1", "localhost"),
        "query": f"?{query}",
        "bare": query,
        "quoted": f'"{back}"',
        "fragment": f"{back}#_=_",
    }[shape]
    assert finish(organization, started, pasted).is_new


def test_an_address_that_is_not_this_sign_ins_leaves_it_open(organization: Organization, remote: ScriptedUpstream) -> None:
    """Wrong state: 400, no exchange, and the right one still works."""
    started, other = start(organization), start(organization)
    back, foreign = remote.sign_in(started.url), remote.sign_in(other.url)
    state = parse_qs(urlsplit(back).query)["state"][0]
    wrong = [
        "",
        "   ",
        "https://example.com/",
        "http://[::1/auth/callback?code=a&state=b",
        back.split("?")[0],
        foreign,
        back.replace(state, state[:-1] + ("a" if state[-1] != "a" else "b")),
        back.replace("state=", "other="),
        back.replace("code=", "other="),
        f"{back}&state={state}",
        f"{back}&code=second",
        f"http://127.0.0.1:1455/auth/callback?code=ä&state={'ä' * 20}",
        "x" * 10_000,
    ]
    for pasted in wrong:
        with pytest.raises(CallbackInvalid) as refused:
            finish(organization, started, pasted)
        assert refused.value.status == 400
        assert not pasted.strip() or pasted.strip() not in refused.value.message
    assert exchanges(remote) == []
    assert finish(organization, started, back).is_new


def test_a_sign_in_that_was_refused_is_told_and_over(organization: Organization, remote: ScriptedUpstream) -> None:
    started = start(organization)
    state = parse_qs(urlsplit(started.url).query)["state"][0]
    denied = f"http://127.0.0.1:1455/auth/callback?{urlencode({'error': 'access_denied', 'state': state})}"
    with pytest.raises(CredentialRefused, match="access_denied"):
        finish(organization, started, denied)
    with pytest.raises(FlowOver):
        finish(organization, started, denied)
    assert exchanges(remote) == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"status": 400, "body": {"error": "invalid_grant"}}, CredentialRefused),
        ({"status": 200, "body": {"access_token": "a", "refresh_token": "b"}}, CredentialRefused),
        ({"status": 500, "body": "boom"}, CredentialUnverified),
        ({"status": 429, "body": {}}, CredentialUnverified),
        ({"lost": True}, CredentialUnverified),
        ({"cut_before_head": True}, CredentialUnverified),
    ],
)
def test_an_exchange_that_fails_adds_nothing_and_ends_the_flow(
    organization: Organization, remote: ScriptedUpstream, answer: dict[str, Any], error: type[Exception]
) -> None:
    """N45: the code may have been used, so it is not shown a second time."""
    started = start(organization)
    back = remote.sign_in(started.url)
    remote.script(answer, path="/oauth/token")
    with pytest.raises(error):
        finish(organization, started, back)
    with pytest.raises(FlowOver):
        finish(organization, started, back)
    assert (rows(organization), len(exchanges(remote))) == (0, 1)


def test_the_code_is_worth_nothing_without_the_verifier_of_its_flow(organization: Organization, remote: ScriptedUpstream) -> None:
    """PKCE: a code that was seen on its way and is brought by somebody else with a state of their own."""
    started, mine = start(organization), start(organization)
    code = parse_qs(urlsplit(remote.sign_in(started.url)).query)["code"][0]
    state = parse_qs(urlsplit(mine.url).query)["state"][0]
    with pytest.raises(CredentialRefused, match="invalid_grant"):
        finish(organization, mine, f"http://127.0.0.1:1455/auth/callback?code={code}&state={state}")
    assert rows(organization) == 0


def test_the_terms_come_before_the_address(organization: Organization) -> None:
    with pytest.raises(TermsNotAccepted):
        start(organization, accept_terms=False)
    assert not SignInFlow.objects.filter(organization=organization).exists()
    owner = factories.member(organization, role="owner").user
    start(organization, by=owner)
    event = AuditEvent.objects.get(organization=organization, action="organization.sign_in_terms_accepted")
    assert event.actor == owner
    start(organization, accept_terms=False)


def test_only_who_began_it_and_only_in_its_organization_finishes_a_flow(
    organization: Organization, remote: ScriptedUpstream
) -> None:
    one, another = (factories.member(organization, role="owner").user for _ in range(2))
    started = start(organization, by=one)
    back = remote.sign_in(started.url)
    foreign = made.organization()
    for where, who in ((organization, another), (foreign, one), (foreign, None)):
        with pytest.raises(FlowOver):
            finish(where, started, back, by=who)
    for unknown in ("no-uuid", "00000000-0000-4000-8000-000000000000"):
        with pytest.raises(FlowOver):
            oauth.finish(organization, unknown, back, by=one, now=utc_now())
    assert finish(organization, started, back, by=one).is_new


def test_state_and_verifier_are_stored_encrypted_and_bound_to_their_flow(organization: Organization) -> None:
    started = start(organization)
    other = start(organization)
    flow = flows.read(organization, started.flow_id, SignInFlow.Kind.BROWSER, by=None, now=utc_now())
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(f)::text FROM routing_signinflow f")
        stored = " ".join(row[0] for row in cursor.fetchall())
    for name in ("state", "verifier"):
        secrets.register(flow.secret[name], name)
        assert flow.secret[name] not in stored + repr(flow) + repr(started)
    SignInFlow.objects.filter(uuid=other.flow_id).update(sealed=flow.row.sealed)
    with pytest.raises(FlowOver):
        flows.read(organization, other.flow_id, SignInFlow.Kind.BROWSER, by=None, now=utc_now())


def test_what_is_not_a_sign_ins_tokens_is_refused(organization: Organization, remote: ScriptedUpstream) -> None:
    started = start(organization)
    back = remote.sign_in(started.url)
    tokens = {"access_token": "a.b.c", "refresh_token": "rt", "id_token": made.jwt({"email": "a@example.test"})}
    remote.script({"body": tokens}, path="/oauth/token")
    with pytest.raises(AuthFileInvalid, match="does not name a workspace"):
        finish(organization, started, back)
    assert rows(organization) == 0
