"""What moves a request to another account and what does not, and what becomes of the account, at the gateway."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from config.redis import sync_client
from proxy import http_attempt
from routing import due, live, pools
from routing.models import PoolAccount
from tests import factories
from tests.flows.tenants import Tenant, in_thread
from tests.proxy.conftest import Gateway, check_counters, eventually, is_clean, logged
from tests.proxy.raw_server import Peer, serve
from tests.proxy.test_exchange_failures import exhausted, problem, second_account
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]

MIX: dict[str, dict[str, Any]] = {
    "token": problem(401, "token_expired"),
    "burst": {"status": 429, "body": "Too many requests"},
    "usage": {"status": 429, "body": {"error": {"type": "usage_limit_reached", "message": "x", "resets_in_seconds": 900}}},
    "overloaded": problem(503, "server_is_overloaded"),
    "broken": problem(500, "server_error"),
    "wall": {"status": 403, "body": "<html><title>Just a moment...</title></html>"},
    "model": problem(404, "model_not_found"),
    "in_stream": {"events": [{"type": "response.failed", "response": {"error": {"code": "server_is_overloaded", "message": "x"}}}]},
    # After its head: one that drops a kept connection at once, without a byte, is taken for one that had been closed before
    # (`proxy.upstream`), and meets the request once more on a fresh one.
    "cut": {"cut_after_events": 0},
}


def state(account: PoolAccount) -> live.AccountState:
    return live.state_of(live.pool_live_key(account.pool_id, account.pool.organization_id), account.pk)


def sent(upstream: ScriptedUpstream, one: Tenant) -> int:
    return len(upstream.received(path="/backend-api/codex/responses"))


async def test_no_mix_of_failures_makes_a_fourth_attempt(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """N37: whatever fails, in whatever order, at most 3 requests leave, and nothing stays held."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    for _ in range(4):
        await second_account(one, upstream)
    everybody = await in_thread(lambda: list(PoolAccount.objects.for_organization(one.organization).select_related("pool")))
    mixes = random.Random(37).sample(list(itertools.product(MIX, repeat=4)), 14)
    for mix in mixes:
        for account in everybody:
            sync_client().hdel(
                live.pool_live_key(account.pool_id, one.organization.pk), *[f"{account.pk}:{kind}" for kind in "cxw"]
            )
        upstream.reset()
        upstream.script(*(MIX[name] for name in mix))
        got = await gateway.post(one)
        assert got.status_code in (404, 429, 500, 502), mix
        assert 1 <= sent(upstream, one) <= 3, mix
    rows = await logged(one, len(mixes))
    assert all(len(row.trace) <= 3 for row in rows)
    await check_counters(one, rows)


async def test_a_model_that_one_account_does_not_have_is_served_by_another(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N35: the account is as healthy as before; only if nobody has the model the client reads the upstream's own words."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    second, _ = await second_account(one, upstream)
    said = problem(404, "model_not_found", "The model does not exist or you do not have access to it.", "invalid_request_error")
    upstream.script(said)
    assert (await gateway.post(one)).status_code == 200
    [row] = await logged(one)
    assert [step.get("failure") for step in row.trace] == ["model", None]
    assert [(state(account).cooling_until_ms, state(account).exhausted_until) for account in (one.account, second)] == [(0, 0)] * 2
    upstream.script(said, said)
    got = await gateway.post(one)
    assert (got.status_code, got.json()) == (404, said["body"])
    rows = await logged(one, 2)
    assert (rows[1].status, rows[1].credits) == ("failed", 0)
    await check_counters(one, rows)


async def test_a_request_that_may_still_run_behind_a_gateway_is_not_sent_again(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """A 504 goes to the client, who may ask again; its account rests for a moment, so that the next request goes elsewhere."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    second, _ = await second_account(one, upstream)
    upstream.script({"status": 504, "body": "<html>timeout</html>"})
    assert (await gateway.post(one)).status_code == 504
    assert sent(upstream, one) == 1
    now_ms = due.server_ms()
    await eventually(lambda: any(state(account).cooling_until_ms > now_ms - 1000 for account in (one.account, second) if account))
    assert (await gateway.post(one)).status_code == 200


async def test_an_account_at_its_cap_is_refused_as_a_matter_of_concurrency(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N34: account cap 1 with one live stream: the second request is told 429 concurrency_limit, distinct from quota; then K11, the
    slot comes back with the stream's end."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    await in_thread(cap, one.account, 1)
    upstream.script({"hold": {"name": "cap", "after": 2}})
    async with gateway.stream(one) as running:
        assert running.status_code == 200
        got = await gateway.post(one)
        assert (got.status_code, got.json()["error"]["type"], got.json()["error"]["code"]) == (
            429,
            "rate_limit_exceeded",
            "concurrency_limit",
        )
        assert int(got.headers["retry-after"]) >= 1
        upstream.release("cap")
        await running.aread()
    assert sent(upstream, one) == 1
    await eventually(lambda: is_clean(one))
    assert (await gateway.post(one)).status_code == 200


def cap(account: PoolAccount, most: int) -> None:
    PoolAccount.objects.filter(pk=account.pk).update(concurrency_cap=most)
    with transaction.atomic():
        pools.changed(account.pool.organization_id)


async def test_an_exhausted_account_is_asked_for_its_use_next(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """E18 N30: the 429 moves the request, and the account's poll forward."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    second, _ = await second_account(one, upstream)
    for account in (one.account, second):
        due.put(account.pk, due.server_ms() + 1_000_000)
    upstream.script(exhausted(int(time.time()) + 3600))
    assert (await gateway.post(one)).status_code == 200
    scores = [sync_client().zscore(due.DUE, str(account.pk)) for account in (one.account, second)]
    assert sorted(score == 0 for score in scores) == [False, True]


@pytest.mark.parametrize("status", [400, 409, 413, 422])
async def test_what_every_account_would_say_is_asked_of_one(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, status: int
) -> None:
    """N35: five answers about the request's own shape leave the account as it was."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    await second_account(one, upstream)
    upstream.script(problem(status, "invalid_value", kind="invalid_request_error"), repeat=5)
    for _ in range(5):
        assert (await gateway.post(one)).status_code == status
    assert sent(upstream, one) == 5
    everybody = await in_thread(lambda: list(PoolAccount.objects.for_organization(one.organization).select_related("pool")))
    for account in everybody:
        assert (state(account).cooling_until_ms, state(account).exhausted_until) == (0, 0)


async def test_a_revoked_token_whose_renewal_could_not_be_asked_for_takes_nobody_out(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N45: an issuer that is down has not said that the sign-in is over; the account rests, and is asked again later."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    second, _ = await second_account(one, upstream)
    by_id = {one.account.pk: one.account, second.pk: second}
    upstream.script({"error": "401_revoked"})
    upstream.script({"error": "500"}, path="/oauth/token")
    assert (await gateway.post(one)).status_code == 200
    [row] = await logged(one)
    assert [step.get("failure") for step in row.trace] == ["refused_key", None]
    failed = by_id[row.trace[0]["account_id"]]
    assert state(failed).cooling_until_ms > due.server_ms()
    await in_thread(failed.refresh_from_db)
    assert failed.status == "active"


async def test_a_token_that_is_refused_after_its_renewal_takes_its_account_out(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N41: revoked, renewed, revoked again: nobody is sent to it any more."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    second, _ = await second_account(one, upstream)
    by_id = {one.account.pk: one.account, second.pk: second}
    upstream.script({"error": "401_revoked"}, {"error": "401_revoked"})
    assert (await gateway.post(one)).status_code == 200
    [row] = await logged(one)
    failed = by_id[row.trace[0]["account_id"]]
    await in_thread(failed.refresh_from_db)
    assert (failed.status, failed.status_reason) == ("needs_sign_in", "token_invalidated")


@pytest.mark.parametrize("sent", [b"", b"{", b'{"error":'])
async def test_a_refusal_whose_body_never_ends_keeps_nobody_from_another_account(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """The status says enough. It was waited for as long as the upstream cared to drip."""
    monkeypatch.setattr(http_attempt, "ERROR_SECONDS", 0.2)
    one: Tenant = await tenant(account="none")

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 503 Busy\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n" + sent)
        while True:
            await asyncio.sleep(0.05)
            await peer.send(b" ")

    async with serve(script) as endless:
        with override_settings(UPSTREAM_ALLOWED_NETWORKS=["127.0.0.0/8"]):
            await in_thread(factories.key_account, one.organization, kind="openai_compatible", base_url=f"{endless.url}/v1")
            began = time.monotonic()
            got = await gateway.post(one)
    assert time.monotonic() - began < 10
    assert (got.status_code, got.json()["error"]["code"]) == (429, "pool_busy")
    assert len(endless.requests) == 1
    assert await is_clean(one)


async def test_a_wait_is_counted_from_the_refusal_on(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """However long the upstream took to refuse: the client is not told to wait for that time again."""
    one: Tenant = await tenant()
    upstream.script({**problem(503, "slow_down"), "headers": {"retry-after": "2"}, "delay": 1.5}, token=one.upstream_token)
    got = await gateway.post(one)
    assert (got.status_code, got.json()["error"]["code"], got.headers["retry-after"]) == (429, "pool_busy", "2")
