"""Sign-in tokens at their expiry, through the front door: 20 requests in 4 processes, one refresh call."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from accounts.models import AuditEvent
from config.clock import utc_now
from routing.models import PoolAccount
from tests import factories
from tests.flows import stack as processes
from tests.flows import tenants
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, body, in_thread

pytestmark = [pytest.mark.stack, pytest.mark.django_db(transaction=True)]

REFRESH = "/oauth/token"
RESPONSES = "/backend-api/codex/responses"


@pytest.fixture(scope="module")
def urls(stack: Stack) -> Iterator[list[str]]:
    """Four web processes: the stack's two and two more."""
    more = [processes.web(f"refresh-{number}", stack.upstream.url, stack.logs) for number in range(2)]
    for web in more:
        web.wait_ready()
    yield [web.url for web in (*stack.webs, *more)]
    for web in more:
        web.terminate()


@pytest.fixture
def expiring(stack: Stack, upstream: Any, transactional_db: None) -> Any:
    """A tenant whose one account is a sign-in with a token that lives `seconds` more."""

    def make(seconds: float) -> Tenant:
        tenant = tenants.make(account="none")
        auth = upstream.mint(expires_in=seconds)
        tenant.account = factories.chatgpt_account(tenant.organization, auth)
        tenant.upstream_token = auth["tokens"]["access_token"]
        return tenant

    return make


async def twenty(stack: Stack, urls: list[str], tenant: Tenant) -> list[httpx.Response]:
    """20 requests at once, five at each process."""
    async with stack.client() as client:
        calls = [client.post(f"{url}/v1/responses", headers=tenant.headers, content=body()) for url in urls * 5]
        return list(await asyncio.gather(*calls))


async def warm(stack: Stack, urls: list[str], tenant: Tenant) -> None:
    """One request at each process, so that all of them hold the token and have no reason to ask the database."""
    async with stack.client() as client:
        for url in urls:
            answer = await client.post(f"{url}/v1/responses", headers=tenant.headers, content=body())
            assert answer.status_code == 200, answer.text


async def test_twenty_requests_in_four_processes_meet_an_expiry_and_refresh_once(
    stack: Stack, urls: list[str], expiring: Any
) -> None:
    """K1 N40: the refresh token works once: exactly one refresh call; all 20 succeed."""
    tenant = await in_thread(expiring, 33)
    await warm(stack, urls, tenant)
    assert stack.upstream.received(path=REFRESH) == []
    # Within the last 30 seconds a token is renewed before it is used; here it is about to be.
    await asyncio.sleep(4)
    stack.upstream.script({"delay": 0.3}, path=REFRESH)
    answers = await twenty(stack, urls, tenant)
    assert [answer.status_code for answer in answers] == [200] * 20
    assert len(stack.upstream.received(path=REFRESH)) == 1
    assert tenant.account is not None
    assert stack.upstream.refreshes(tenant.account.chatgpt_account_id) == 1
    served = stack.upstream.received(path=RESPONSES, account=tenant.account.chatgpt_account_id)
    assert [one.token != tenant.upstream_token for one in served[-20:]] == [True] * 20


async def test_twenty_requests_with_an_expired_token_refresh_once(stack: Stack, urls: list[str], expiring: Any) -> None:
    """K1 N40: an account whose token ran out while nobody used it."""
    tenant = await in_thread(expiring, -5)
    answers = await twenty(stack, urls, tenant)
    assert [answer.status_code for answer in answers] == [200] * 20
    assert len(stack.upstream.received(path=REFRESH)) == 1


async def test_twenty_requests_that_are_refused_the_same_token_refresh_once(stack: Stack, urls: list[str], expiring: Any) -> None:
    """K1 N40: the upstream says 401 before the token's own time; losers use what the winner renewed, and clear nothing."""
    tenant = await in_thread(expiring, 86400)
    await warm(stack, urls, tenant)
    assert tenant.account is not None
    stack.upstream.expire(tenant.account.chatgpt_account_id)
    answers = await twenty(stack, urls, tenant)
    assert [answer.status_code for answer in answers] == [200] * 20
    assert len(stack.upstream.received(path=REFRESH)) == 1
    await in_thread(tenant.account.refresh_from_db)
    assert (tenant.account.status, tenant.account.credential_version) == ("active", 2)


async def test_the_refresh_answer_is_lost_and_the_old_token_serves_until_the_issuer_has_spoken(
    stack: Stack, urls: list[str], expiring: Any
) -> None:
    """N45: the issuer spent the refresh token and its answer was lost: one refresh call, all 20 are served by the token that still
    works. The token is shown once more after the back-off; the issuer knows it as used: needs sign-in, never picked, one alert."""
    tenant = await in_thread(expiring, 33)
    await warm(stack, urls, tenant)
    await asyncio.sleep(4)
    stack.upstream.script({"delay": 0.3, "lost": True}, path=REFRESH)
    answers = await twenty(stack, urls, tenant)
    assert [answer.status_code for answer in answers] == [200] * 20
    assert len(stack.upstream.received(path=REFRESH)) == 1
    account = tenant.account
    assert account is not None
    assert stack.upstream.refreshes(account.chatgpt_account_id) == 1
    await in_thread(account.refresh_from_db)
    assert (account.status, account.credential_version, account.refresh_claim) == ("active", 1, None)
    served = stack.upstream.received(path=RESPONSES, account=account.chatgpt_account_id)
    assert {one.token for one in served} == {tenant.upstream_token}

    await asyncio.sleep(5.5)
    answers = await twenty(stack, urls, tenant)
    assert len(stack.upstream.received(path=REFRESH)) == 2
    assert {answer.status_code for answer in answers} <= {200, 400, 429}
    await in_thread(account.refresh_from_db)
    assert (account.status, account.status_reason) == ("needs_sign_in", "refresh_token_reused")
    seen = len(stack.upstream.received(account=account.chatgpt_account_id))
    last = await twenty(stack, urls, tenant)
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in last} == {(400, "no_account_available")}
    assert len(stack.upstream.received(account=account.chatgpt_account_id)) == seen
    assert len(stack.upstream.received(path=REFRESH)) == 2
    assert await in_thread(alerts, tenant) == 1


async def test_the_refresh_answer_of_an_expired_token_is_lost(stack: Stack, urls: list[str], expiring: Any) -> None:
    """N45: nothing serves meanwhile, so all 20 are told to come back shortly; still one refresh call, and no token is cleared."""
    tenant = await in_thread(expiring, -5)
    stack.upstream.script({"delay": 0.3, "cut_before_head": True}, path=REFRESH)
    answers = await twenty(stack, urls, tenant)
    assert len(stack.upstream.received(path=REFRESH)) == 1
    assert {answer.status_code for answer in answers} == {429}
    assert {answer.json()["error"]["code"] for answer in answers} == {"pool_busy"}
    assert all(1 <= int(answer.headers["retry-after"]) <= 6 for answer in answers)
    assert stack.upstream.received(path=RESPONSES) == []
    # This issuer never carried it out: after the back-off the same token works.
    await in_thread(end_back_off, tenant)
    await asyncio.sleep(max(int(answer.headers["retry-after"]) for answer in answers))
    answers = await twenty(stack, urls, tenant)
    assert [answer.status_code for answer in answers] == [200] * 20
    assert len(stack.upstream.received(path=REFRESH)) == 2


def alerts(tenant: Tenant) -> int:
    return AuditEvent.objects.filter(organization=tenant.organization, action="account.needs_sign_in").count()


def end_back_off(tenant: Tenant) -> None:
    assert tenant.account is not None
    rows = PoolAccount.objects.filter(pk=tenant.account.pk, refresh_claim=None)
    assert rows.update(refresh_claimed_until=utc_now() - timedelta(seconds=1)) == 1
