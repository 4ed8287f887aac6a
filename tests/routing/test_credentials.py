"""Credentials against the scripted issuer, whose refresh tokens work once."""

import asyncio
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.conf import settings as django_settings
from django.db import connection

from accounts.models import AuditEvent, Organization
from config import snapshot
from config.clock import utc_now
from config.redis import Redis, sync_client
from routing import accounts, credentials, health, sealing, snapshots, tasks
from routing import issuer as issuers
from routing.errors import RefreshDeferred, SignInNeeded
from routing.failures import Kind
from routing.models import PoolAccount
from routing.snapshots import AccountSnapshot, PoolSnapshot
from tests import secrets
from tests.routing import made
from tests.upstream import ROOT, ScriptedUpstream

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def issuer(upstream: ScriptedUpstream, settings: Any) -> ScriptedUpstream:
    settings.UPSTREAM_AUTH_URL = upstream.url
    return upstream


@pytest.fixture
def organization() -> Organization:
    return made.organization()


def join(organization: Organization, upstream: ScriptedUpstream, **options: Any) -> PoolAccount:
    return accounts.add_chatgpt(organization, upstream.mint(**options), label="Ada", accept_terms=True, by=None, now=utc_now())


def pool_of(account: PoolAccount) -> PoolSnapshot:
    pools = snapshots.load(account.pool.organization_id or 0).pools
    return next(pool for pool in pools if pool.pool_id == account.pool_id)


def snapshot_of(account: PoolAccount) -> AccountSnapshot:
    return next(one for one in pool_of(account).accounts if one.account_id == account.pk)


def works(upstream: ScriptedUpstream, account: PoolAccount, token: str) -> bool:
    """Whether the upstream takes the token."""
    head = {"authorization": f"Bearer {token}", "chatgpt-account-id": account.chatgpt_account_id}
    body = {"model": "gpt-5.5", "input": [], "stream": True, "store": False}
    return httpx.post(f"{upstream.url}/backend-api/codex/responses", headers=head, json=body).status_code == 200


def in_own_connection(call: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return call(*arguments, **options)
    finally:
        connection.close()


# ---------------------------------------------------------------------------------------------------- single flight

RIVAL = """
import sys, django
django.setup()
from concurrent.futures import ThreadPoolExecutor
from django.conf import settings
from django.db import connection
settings.DATABASES["default"]["NAME"] = connection.settings_dict["NAME"] = sys.argv[1]
from routing import credentials

def one(_):
    try:
        return credentials.refresh(int(sys.argv[2]), "unauthorized_recovery", used_version=1)
    finally:
        connection.close()

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(5) as threads:
    found = list(threads.map(one, range(5)))
import hashlib
for credential in found:
    print(credential.version, hashlib.sha256(credential.token.encode()).hexdigest())
"""


def test_many_processes_that_meet_one_expiry_make_one_refresh(
    organization: Organization, upstream: ScriptedUpstream, settings: Any
) -> None:
    """K1 N40: 20 requests in 4 processes hit expiry together; the refresh token works once: one call, all 20 succeed."""
    account = join(organization, upstream)
    upstream.script({"delay": 0.3}, path="/oauth/token")
    environment = {**os.environ, "UPSTREAM_AUTH_URL": upstream.url, "DJANGO_SETTINGS_MODULE": "config.settings.test"}
    command = [sys.executable, "-c", RIVAL, connection.settings_dict["NAME"], str(account.pk)]
    rivals = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for rival in rivals:
        assert rival.stdout is not None
        assert rival.stdout.readline() == "ready\n"
    outputs = []
    for rival in rivals:
        assert rival.stdin is not None
        rival.stdin.write("go\n")
        rival.stdin.flush()
    for rival in rivals:
        outputs.append(rival.communicate(timeout=60)[0].splitlines())
        assert rival.returncode == 0
    lines = [line for output in outputs for line in output]
    token = credentials.load(account.pk).token
    assert lines == [f"2 {hashlib.sha256(token.encode()).hexdigest()}"] * 20
    assert upstream.refreshes(account.chatgpt_account_id) == 1
    assert len(upstream.received(path="/oauth/token")) == 1
    assert works(upstream, account, token)
    account.refresh_from_db()
    assert (account.status, account.refresh_claim, account.refresh_claimed_until) == ("active", None, None)


async def test_many_requests_of_one_process_make_one_refresh(organization: Organization, upstream: ScriptedUpstream) -> None:
    """K1: 20 requests of one event loop that were refused the same token."""
    account = await snapshot.in_thread(lambda: join(organization, upstream))
    seen = await snapshot.in_thread(snapshot_of, account)
    used = await credentials.bearer(seen)
    found = await asyncio.gather(*(credentials.refresh_async(seen, used) for _ in range(20)))
    late = await credentials.refresh_async(seen, used)
    assert {one.token for one in (*found, late)} == {late.token}
    assert late.token != used.token
    assert late.version == 2
    assert len(upstream.received(path="/oauth/token")) == 1


async def test_a_client_that_leaves_does_not_end_the_refresh_of_the_others(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    account = await snapshot.in_thread(lambda: join(organization, upstream))
    seen = await snapshot.in_thread(snapshot_of, account)
    used = await credentials.bearer(seen)
    upstream.script({"delay": 0.2}, path="/oauth/token")
    leaving = asyncio.ensure_future(credentials.refresh_async(seen, used))
    staying = asyncio.ensure_future(credentials.refresh_async(seen, used))
    await asyncio.sleep(0.05)
    leaving.cancel()
    assert (await staying).version == 2


def test_signing_in_again_ends_the_cooldown_of_the_old_credential(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = join(organization, upstream)
    key = f"routing:{{s{organization.pk % 32:02d}}}:p{account.pool_id}:live"
    fields: dict[Any, Any] = {f"{account.pk}:c": "9", f"{account.pk}:x": "9:9", f"{account.pk}:v": "1"}
    sync_client().hset(key, mapping=fields)
    join(organization, upstream, account_id=account.chatgpt_account_id)
    assert sync_client().hgetall(key) == {f"{account.pk}:x".encode(): b"9:9", f"{account.pk}:v".encode(): b"2"}


# ------------------------------------------------------------------------------------------------------- the request


def test_the_issuer_is_asked_as_its_protocol_says(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = join(organization, upstream)
    spent = sealing.unseal(account.refresh_token, account=account.uuid, field="refresh_token")
    credentials.refresh(account.pk, "proactive_expiry")
    asked = upstream.received(path="/oauth/token")[0]
    assert json.loads(asked.body) == {
        "client_id": "app_EMoamEEZ73f0CkXaXp7hrann",
        "grant_type": "refresh_token",
        "refresh_token": spent,
        "refresh_reason": "proactive_expiry",
    }
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["user-agent"] == "weir"
    assert "originator" not in asked.headers


def test_what_the_reply_leaves_out_is_kept(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = join(organization, upstream)
    fresh = secrets.register("access-token-without-an-expiry", "access_token")
    upstream.script({"body": {"access_token": fresh}}, path="/oauth/token")
    found = credentials.refresh(account.pk, "proactive_expiry")
    assert (found.token, found.version, found.expires_at) == (fresh, 2, None)
    before = sealing.unseal(account.refresh_token, account=account.uuid, field="refresh_token")
    account.refresh_from_db()
    assert sealing.unseal(account.refresh_token, account=account.uuid, field="refresh_token") == before


def test_the_version_is_published_and_the_token_is_not(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = join(organization, upstream)
    found = credentials.refresh(account.pk, "proactive_expiry")
    key = f"routing:{{s{organization.pk % 32:02d}}}:p{account.pool_id}:live"
    assert sync_client().hgetall(key) == {f"{account.pk}:v".encode(): b"2"}
    account.refresh_from_db()
    assert found.token not in account.access_token
    assert found.token not in repr(found)
    assert str(account.access_token).startswith("k1:") or ":" in account.access_token


# ---------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (401, {"error": {"code": "refresh_token_expired"}}, "refresh_token_expired"),
        (401, {"error": "refresh_token_reused"}, "refresh_token_reused"),
        (400, {"code": "refresh_token_invalidated"}, "refresh_token_invalidated"),
        (400, {"error": "invalid_grant"}, "invalid_grant"),
        (401, "nope", "refused"),
    ],
)
def test_a_permanent_refusal_takes_the_account_out(
    organization: Organization, upstream: ScriptedUpstream, caplog: Any, status: int, body: Any, reason: str
) -> None:
    """N41: needs sign-in, never picked, one line in the log."""
    account = join(organization, upstream)
    upstream.script({"status": status, "body": body}, path="/oauth/token")
    with caplog.at_level(logging.WARNING, logger="routing"), pytest.raises(SignInNeeded):
        credentials.refresh(account.pk, "proactive_expiry")
    assert [record.getMessage() for record in caplog.records] == ["account needs sign-in"]
    account.refresh_from_db()
    assert (account.status, account.status_reason, account.credential_version) == ("needs_sign_in", reason, 1)
    with pytest.raises(SignInNeeded):
        credentials.refresh(account.pk, "proactive_expiry")
    assert len(upstream.received(path="/oauth/token")) == 1


@pytest.mark.parametrize("answer", [{"status": 500, "body": "boom"}, {"status": 429, "body": {}}, {"body": {"id_token": "x"}}])
def test_a_passing_failure_is_tried_again_later_and_not_at_once(
    organization: Organization, upstream: ScriptedUpstream, answer: dict[str, Any]
) -> None:
    account = join(organization, upstream)
    upstream.script(answer, path="/oauth/token")
    for _ in range(3):
        with pytest.raises(RefreshDeferred):
            credentials.refresh(account.pk, "proactive_expiry")
    assert len(upstream.received(path="/oauth/token")) == 1
    account.refresh_from_db()
    assert (account.status, account.credential_version) == ("active", 1)
    PoolAccount.objects.filter(pk=account.pk).update(refresh_claimed_until=utc_now() - timedelta(seconds=1))
    assert credentials.refresh(account.pk, "proactive_expiry").version == 2


def test_a_claim_of_a_process_that_died_ends_by_time(organization: Organization, upstream: ScriptedUpstream) -> None:
    """N45: the row is read again before the token is used a second time."""
    account = join(organization, upstream)
    PoolAccount.objects.filter(pk=account.pk).update(
        refresh_claim=account.uuid, refresh_claimed_until=utc_now() + timedelta(seconds=0.5)
    )
    began = time.monotonic()
    assert credentials.refresh(account.pk, "proactive_expiry").version == 2
    assert time.monotonic() - began >= 0.4
    assert len(upstream.received(path="/oauth/token")) == 1


def test_a_refusal_of_a_token_that_somebody_renewed_meanwhile_uses_the_newer_one(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """K1: a loser re-reads instead of clearing."""
    account = join(organization, upstream)
    upstream.script({"status": 401, "body": {"error": "refresh_token_reused"}, "delay": 0.4}, path="/oauth/token")
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(in_own_connection, credentials.refresh, account.pk, "proactive_expiry")
        time.sleep(0.15)
        renewed = join(organization, upstream, account_id=account.chatgpt_account_id)
        found = slow.result(timeout=20)
    assert renewed.pk == account.pk
    assert found.version == 2
    account.refresh_from_db()
    assert account.status == "active"
    assert works(upstream, account, found.token)


# -------------------------------------------------------------------------------------------------- ambiguous failures


def back_off_is_over(account: PoolAccount) -> None:
    PoolAccount.objects.filter(pk=account.pk).update(refresh_claimed_until=utc_now() - timedelta(seconds=1))


def test_an_answer_that_is_lost_is_not_followed_by_a_second_use_at_once(
    organization: Organization, upstream: ScriptedUpstream, caplog: Any
) -> None:
    """N45: the issuer spent the token and its answer was lost: ambiguous; after the back-off the token is shown once more, and
    the issuer's word decides: needs sign-in, one line, one event."""
    account = join(organization, upstream)
    upstream.script({"lost": True}, path="/oauth/token")
    with caplog.at_level(logging.WARNING, logger="routing"):
        for _ in range(3):
            with pytest.raises(RefreshDeferred):
                credentials.refresh(account.pk, "proactive_expiry")
        assert [record.getMessage() for record in caplog.records] == ["refresh answer lost"]
        assert len(upstream.received(path="/oauth/token")) == 1
        assert upstream.refreshes(account.chatgpt_account_id) == 1
        account.refresh_from_db()
        assert (account.status, account.credential_version, account.refresh_claim) == ("active", 1, None)
        back_off_is_over(account)
        for _ in range(2):
            with pytest.raises(SignInNeeded):
                credentials.refresh(account.pk, "proactive_expiry")
    assert [record.getMessage() for record in caplog.records] == ["refresh answer lost", "account needs sign-in"]
    account.refresh_from_db()
    assert (account.status, account.status_reason) == ("needs_sign_in", "refresh_token_reused")
    assert len(upstream.received(path="/oauth/token")) == 2
    assert AuditEvent.objects.filter(organization=organization, action="account.needs_sign_in").count() == 1


@pytest.mark.parametrize("answer", [{"cut_before_head": True}, {"cut_before_head": True, "cut_how": "close"}])
def test_an_ambiguous_failure_that_spent_nothing_heals(
    organization: Organization, upstream: ScriptedUpstream, answer: dict[str, Any]
) -> None:
    """N45: the same failure as seen from here, of an issuer that never carried it out."""
    account = join(organization, upstream)
    upstream.script(answer, path="/oauth/token")
    with pytest.raises(RefreshDeferred):
        credentials.refresh(account.pk, "proactive_expiry")
    back_off_is_over(account)
    assert credentials.refresh(account.pk, "proactive_expiry").version == 2


def test_before_the_second_use_the_row_is_read_again(organization: Organization, upstream: ScriptedUpstream) -> None:
    """N45: whoever renewed it in between is believed; the token that may have been spent is not shown again."""
    account = join(organization, upstream)
    upstream.script({"lost": True}, path="/oauth/token")
    with pytest.raises(RefreshDeferred):
        credentials.refresh(account.pk, "unauthorized_recovery", used_version=1)
    join(organization, upstream, account_id=account.chatgpt_account_id)
    assert credentials.refresh(account.pk, "unauthorized_recovery", used_version=1).version == 2
    assert len(upstream.received(path="/oauth/token")) == 1


def test_an_issuer_that_cannot_be_reached_is_told_apart_from_a_lost_answer(
    organization: Organization, upstream: ScriptedUpstream, settings: Any
) -> None:
    settings.UPSTREAM_AUTH_URL = "http://127.0.0.1:9"
    with pytest.raises(issuers.IssuerUnavailable) as unreachable:
        issuers.renew("rt_nothing_of_anybody", reason="proactive_expiry")
    assert not isinstance(unreachable.value, issuers.AnswerLost)
    settings.UPSTREAM_AUTH_URL = upstream.url
    upstream.script({"cut_before_head": True}, path="/oauth/token")
    with pytest.raises(issuers.AnswerLost):
        issuers.renew("rt_nothing_of_anybody", reason="proactive_expiry")


async def test_a_token_that_still_works_serves_while_its_renewal_fails_and_asks_nobody_again(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """N45: 20 requests within the last seconds of a token whose renewal was lost: all are served by it, after one call."""
    account = await snapshot.in_thread(lambda: join(organization, upstream, expires_in=20))
    seen = await snapshot.in_thread(snapshot_of, account)
    upstream.script({"lost": True}, path="/oauth/token")
    found = await asyncio.gather(*(credentials.bearer(seen, version=1) for _ in range(20)))
    assert {one.version for one in found} == {1}
    # The next one reads nothing either: the path stays without SQL.
    await snapshot.in_thread(lambda: PoolAccount.objects.filter(pk=account.pk).update(access_token="gone"))
    assert (await credentials.bearer(seen, version=1)).version == 1
    assert len(upstream.received(path="/oauth/token")) == 1


# ---------------------------------------------------------------------------------------------------------- the path


async def test_a_warm_credential_needs_no_query(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = await snapshot.in_thread(lambda: join(organization, upstream))
    seen = await snapshot.in_thread(snapshot_of, account)
    first = await credentials.bearer(seen, version=1)
    await snapshot.in_thread(lambda: PoolAccount.objects.filter(pk=account.pk).update(access_token="gone"))
    assert await credentials.bearer(seen, version=1) == first


async def test_a_newer_version_makes_the_process_read_the_row_again(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = await snapshot.in_thread(lambda: join(organization, upstream))
    seen = await snapshot.in_thread(snapshot_of, account)
    old = await credentials.bearer(seen)
    await snapshot.in_thread(credentials.refresh, account.pk, "proactive_expiry")
    assert await credentials.bearer(seen) == old
    new = await credentials.bearer(seen, version=2)
    assert new.version == 2
    assert new.token != old.token


async def test_a_token_about_to_expire_is_renewed_before_it_is_used(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = await snapshot.in_thread(lambda: join(organization, upstream, expires_in=5))
    seen = await snapshot.in_thread(snapshot_of, account)
    assert (await credentials.bearer(seen)).version == 2


async def test_an_api_key_is_shown_as_it_is(organization: Organization) -> None:
    key = secrets.register(f"sk-test-{made.number():040d}", "API key")
    account = await snapshot.in_thread(lambda: accounts.add_key(organization, key, label="Key", by=None, now=utc_now()))
    found = await credentials.bearer(await snapshot.in_thread(snapshot_of, account))
    assert (found.token, found.chatgpt_account_id, found.expires_at) == (key, None, None)
    assert key not in repr(found)


async def test_a_refused_key_takes_its_account_out(organization: Organization) -> None:
    key = secrets.register(f"sk-test-{made.number():040d}", "API key")
    account = await snapshot.in_thread(lambda: accounts.add_key(organization, key, label="Key", by=None, now=utc_now()))
    pool = await snapshot.in_thread(pool_of, account)
    failure = health.classify(401, {}, b'{"error":{"code":"invalid_api_key"}}')
    assert failure.kind is Kind.REFUSED_KEY
    redis = Redis(django_settings.REDIS_URL)
    await health.report(redis, pool, pool.accounts[0], failure)
    await redis.close()
    after = await snapshot.in_thread(snapshot_of, account)
    assert after.status == "needs_sign_in"


# ----------------------------------------------------------------------------------------------------------- the sweep


def test_the_sweep_renews_what_is_due_and_nothing_else(organization: Organization, upstream: ScriptedUpstream) -> None:
    """N42 K3: expiring soon, or untouched for 8 days; paused and idle accounts too."""
    fresh = join(organization, upstream)
    expiring = join(organization, upstream, expires_in=500)
    paused = join(organization, upstream)
    out = join(organization, upstream, expires_in=500)
    long_ago = utc_now() - timedelta(days=8, minutes=1)
    PoolAccount.objects.filter(pk=paused.pk).update(status="paused", refreshed_at=long_ago)
    PoolAccount.objects.filter(pk=out.pk).update(status="needs_sign_in")
    due = credentials.due(utc_now())
    assert expiring.pk in due
    assert paused.pk in due
    assert fresh.pk not in due
    assert out.pk not in due
    mine = (fresh, expiring, paused, out)
    for _ in range(2):
        # A second sweep finds nothing to do for them.
        assert tasks.refresh_due_tokens() >= 0
        assert [upstream.refreshes(one.chatgpt_account_id) for one in mine] == [0, 1, 1, 0]
    for one in mine:
        one.refresh_from_db()
    assert [one.credential_version for one in mine] == [1, 2, 2, 1]
    assert [one.status for one in mine] == ["active", "active", "paused", "needs_sign_in"]


def test_one_account_that_fails_does_not_keep_the_others_from_theirs(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    broken, whole = join(organization, upstream, expires_in=400), join(organization, upstream, expires_in=500)
    PoolAccount.objects.filter(pk=broken.pk).update(refresh_token="unknown:key")
    assert tasks.refresh_due_tokens() >= 1
    for one in (broken, whole):
        one.refresh_from_db()
    assert (broken.credential_version, whole.credential_version) == (1, 2)
    assert broken.refresh_claim is None
    broken.delete()


def test_an_account_that_is_used_up_for_hours_is_kept_fresh_by_the_schedule(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """K3: at 100 % for 3 h with a token that lives 1 h: renewed ahead of every expiry, and works after the reset."""
    account = join(organization, upstream, expires_in=3600, short_percent=100)
    began = utc_now()
    for minutes in range(0, 181, 10):
        # As the minute's task sees it, at that minute; each token that the issuer gives out here lives an hour.
        if account.pk in credentials.due(began + timedelta(minutes=minutes)):
            credentials.refresh(account.pk, "proactive_expiry")
            hour = began + timedelta(minutes=minutes + 60)
            PoolAccount.objects.filter(pk=account.pk).update(access_expires_at=hour)
        account.refresh_from_db()
        assert account.access_expires_at is not None
        assert account.access_expires_at > began + timedelta(minutes=minutes)
    assert upstream.refreshes(account.chatgpt_account_id) == 3
    upstream.windows(account.chatgpt_account_id, short_percent=0)
    assert works(upstream, account, credentials.load(account.pk).token)


def test_a_sweep_leaves_an_account_that_another_process_is_renewing_to_it(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """An issuer that hangs must not pile up one sweep after the other behind it."""
    account = join(organization, upstream, expires_in=400)
    PoolAccount.objects.filter(pk=account.pk).update(
        refresh_claim=account.uuid, refresh_claimed_until=utc_now() + timedelta(seconds=30)
    )
    began = time.monotonic()
    tasks.refresh_due_tokens()
    assert time.monotonic() - began < 10
    assert upstream.refreshes(account.chatgpt_account_id) == 0
    account.refresh_from_db()
    assert (account.credential_version, account.status) == (1, "active")


@pytest.mark.alone
def test_an_issuer_that_hangs_for_one_does_not_make_the_others_late(organization: Organization, upstream: ScriptedUpstream) -> None:
    """N42: the sweep renews side by side."""
    slow = [join(organization, upstream, expires_in=400) for _ in range(4)]
    upstream.script({"delay": 0.7}, path="/oauth/token", repeat=4)
    began = time.monotonic()
    tasks.refresh_due_tokens()
    assert time.monotonic() - began < 4 * 0.7
    assert [upstream.refreshes(one.chatgpt_account_id) for one in slow] == [1, 1, 1, 1]
