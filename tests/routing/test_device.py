"""A sign-in by a code on another device: asked for as often as the issuer wants, over when it says so."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from accounts.models import Organization
from config.clock import utc_now
from routing import device, flows
from routing.errors import CredentialRefused, CredentialUnverified, FlowOver, TermsNotAccepted
from routing.joining import Joined
from routing.models import PoolAccount, SignInFlow
from tests import factories, secrets
from tests.routing import made
from tests.upstream import ScriptedUpstream

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("remote")]

USERCODE = "/api/accounts/deviceauth/usercode"
TOKEN = "/api/accounts/deviceauth/token"


@pytest.fixture
def organization() -> Organization:
    return made.organization()


def start(organization: Organization, **options: Any) -> device.Started:
    return device.start(organization, **{"accept_terms": True, "by": None, "now": utc_now(), **options})


def poll(organization: Organization, started: device.Started, at: datetime, **options: Any) -> device.Waiting | Joined:
    return device.poll(organization, started.flow_id, **{"by": None, "now": at, **options})


def polls(remote: ScriptedUpstream) -> int:
    return len(remote.received(path=TOKEN))


def rows(organization: Organization) -> int:
    return PoolAccount.objects.for_organization(organization).count()


def test_a_person_enters_the_code_and_the_account_serves(organization: Organization, remote: ScriptedUpstream) -> None:
    now = utc_now()
    started = start(organization, label="Ada", plan="pro_100", now=now)
    assert started.verification_url == f"{remote.url}/codex/device"
    assert started.expires_at == now + timedelta(minutes=15)
    assert remote.received(path=USERCODE)[0].json == {"client_id": "app_EMoamEEZ73f0CkXaXp7hrann"}
    assert poll(organization, started, now + timedelta(seconds=1)) == device.Waiting(1)
    remote.approve(started.user_code, email="ada@example.test")
    joined = poll(organization, started, now + timedelta(seconds=2))
    assert isinstance(joined, Joined)
    assert (joined.account.label, joined.account.email, joined.account.plan_type) == ("Ada", "ada@example.test", "pro_100")
    asked = remote.received(path=TOKEN)[0].json
    assert (set(asked), asked["user_code"]) == ({"device_auth_id", "user_code"}, started.user_code)
    form = remote.received(path="/oauth/token")[0].body.decode()
    assert "grant_type=authorization_code" in form
    assert "deviceauth%2Fcallback" in form
    assert len(remote.received(path="/backend-api/wham/usage")) == 1
    with pytest.raises(FlowOver):
        poll(organization, started, now + timedelta(seconds=3))


def test_a_poll_before_its_time_asks_nobody(organization: Organization, remote: ScriptedUpstream) -> None:
    now = utc_now()
    remote.script({"body": {"device_auth_id": "deviceauth_of_this_test", "user_code": "ABCD-1234", "interval": "5"}}, path=USERCODE)
    started = start(organization, now=now)
    assert started.interval_seconds == 5
    remote.script({"status": 404, "body": "pending"}, path=TOKEN, repeat=0)
    for seconds, waiting, asked in ((0, 5, 0), (3.5, 2, 0), (5, 5, 1), (6, 4, 1), (10, 5, 2)):
        assert poll(organization, started, now + timedelta(seconds=seconds)) == device.Waiting(waiting), seconds
        assert polls(remote) == asked, seconds


@pytest.mark.parametrize("answer", [{"status": 400, "body": {"error": "slow_down"}}, {"status": 429, "body": {}}])
def test_slow_down_makes_every_later_poll_slower(
    organization: Organization, remote: ScriptedUpstream, answer: dict[str, Any]
) -> None:
    now = utc_now()
    started = start(organization, now=now)
    remote.script(answer, path=TOKEN)
    assert poll(organization, started, now + timedelta(seconds=1)) == device.Waiting(6)
    assert poll(organization, started, now + timedelta(seconds=6)) == device.Waiting(1)
    assert polls(remote) == 1
    assert poll(organization, started, now + timedelta(seconds=7)) == device.Waiting(6)
    assert polls(remote) == 2


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 403, "body": ""},
        {"status": 404, "body": "<html>"},
        {"status": 400, "body": {"error": "authorization_pending"}},
        {"status": 500, "body": "boom"},
        {"cut_before_head": True},
    ],
)
def test_what_is_no_answer_yet_is_waited_for(organization: Organization, remote: ScriptedUpstream, answer: dict[str, Any]) -> None:
    now = utc_now()
    started = start(organization, now=now)
    remote.script(answer, path=TOKEN)
    assert poll(organization, started, now + timedelta(seconds=1)) == device.Waiting(1)
    remote.approve(started.user_code)
    assert isinstance(poll(organization, started, now + timedelta(seconds=2)), Joined)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"status": 403, "body": {"error": {"code": "access_denied"}}}, "refused on the other device"),
        ({"status": 400, "body": {"error": "expired_token"}}, "code has expired"),
        ({"status": 400, "body": {"error": "invalid_client"}}, "invalid_client"),
        ({"status": 200, "body": {"authorization_code": "x"}}, "code_missing"),
    ],
)
def test_a_no_ends_the_sign_in(organization: Organization, remote: ScriptedUpstream, answer: dict[str, Any], sentence: str) -> None:
    now = utc_now()
    started = start(organization, now=now)
    remote.script(answer, path=TOKEN)
    with pytest.raises(CredentialRefused, match=sentence):
        poll(organization, started, now + timedelta(seconds=1))
    with pytest.raises(FlowOver):
        poll(organization, started, now + timedelta(seconds=2))
    assert (polls(remote), rows(organization)) == (1, 0)


def test_a_person_who_says_no_is_believed(organization: Organization, remote: ScriptedUpstream) -> None:
    now = utc_now()
    started = start(organization, now=now)
    remote.approve(started.user_code, deny=True)
    with pytest.raises(CredentialRefused, match="refused on the other device"):
        poll(organization, started, now + timedelta(seconds=1))


def test_after_fifteen_minutes_it_is_over_and_nobody_is_asked(organization: Organization, remote: ScriptedUpstream) -> None:
    now = utc_now()
    started = start(organization, now=now)
    remote.approve(started.user_code)
    with pytest.raises(FlowOver):
        poll(organization, started, now + timedelta(minutes=15))
    assert (polls(remote), rows(organization)) == (0, 0)


def test_many_who_poll_at_once_ask_once_and_join_once(organization: Organization, remote: ScriptedUpstream) -> None:
    now = utc_now()
    started = start(organization, now=now)
    remote.approve(started.user_code)

    def one(_: int) -> device.Waiting | Joined | None:
        try:
            return poll(organization, started, now + timedelta(seconds=1))
        except FlowOver:
            return None
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(one, range(6)))
    assert sum(isinstance(answer, Joined) for answer in found) == 1
    assert polls(remote) == 1
    assert (len(remote.received(path="/oauth/token")), rows(organization)) == (1, 1)


def test_where_device_codes_are_not_offered_it_is_said(organization: Organization, remote: ScriptedUpstream) -> None:
    remote.script({"status": 404, "body": ""}, path=USERCODE)
    with pytest.raises(CredentialRefused, match="does not offer device codes"):
        start(organization)
    remote.script({"status": 503, "body": ""}, path=USERCODE)
    with pytest.raises(CredentialUnverified):
        start(organization)
    assert not SignInFlow.objects.filter(organization=organization).exists()


def test_the_terms_come_before_the_code(organization: Organization, remote: ScriptedUpstream) -> None:
    with pytest.raises(TermsNotAccepted):
        start(organization, accept_terms=False)
    assert remote.received(path=USERCODE) == []


def test_the_devices_id_is_stored_encrypted_and_its_flow_is_its_beginners(
    organization: Organization, remote: ScriptedUpstream
) -> None:
    one, another = (factories.member(organization, role="owner").user for _ in range(2))
    started = start(organization, by=one)
    flow = flows.read(organization, started.flow_id, SignInFlow.Kind.DEVICE, by=one, now=utc_now())
    secret = secrets.register(flow.secret["device_auth_id"], "device id")
    assert secret not in flow.row.sealed + repr(flow) + repr(started)
    for where, who in ((organization, another), (made.organization(), one)):
        with pytest.raises(FlowOver):
            poll(where, started, utc_now(), by=who)
    with pytest.raises(FlowOver):
        flows.read(organization, started.flow_id, SignInFlow.Kind.BROWSER, by=one, now=utc_now())
