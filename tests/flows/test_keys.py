"""Keys and organizations end everywhere at once."""

from typing import Any

import pytest

from accounts import keys, organizations
from config.clock import utc_now
from tests import factories
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, body, in_thread

pytestmark = pytest.mark.stack


async def statuses(stack: Stack, secret: str) -> list[int]:
    """One inference on every web process, then both model lists and the usage page of the first."""
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    lists = ("/v1/models", "/backend-api/codex/models?client_version=0.171.0", "/v1/usage")
    async with stack.client() as client:
        posted = [await client.post(f"{web.url}/v1/responses", headers=headers, content=body()) for web in stack.webs]
        read = [await client.get(f"{stack.webs[1].url}{path}", headers=headers) for path in lists]
    return [answer.status_code for answer in (*posted, *read)]


async def test_a_revoked_key_is_refused_on_the_very_next_request_of_every_process(stack: Stack, tenant: Tenant) -> None:
    """F1: revoked on one process, called on the others."""
    assert await statuses(stack, tenant.key.secret) == [200] * 5
    await in_thread(keys.revoke, tenant.key.row, by=None, now=utc_now())
    assert await statuses(stack, tenant.key.secret) == [401] * 5


async def test_suspending_an_organization_refuses_all_its_keys_until_it_is_resumed(stack: Stack, tenant: Tenant) -> None:
    """F5: no key outlives the suspension of its organization, and a resumed one works again."""
    second = await in_thread(factories.api_key, tenant.member)
    assert await statuses(stack, tenant.key.secret) == await statuses(stack, second.secret) == [200] * 5
    received = len(stack.upstream.received(token=tenant.upstream_token))
    await in_thread(organizations.suspend, tenant.organization, by=None)
    assert await statuses(stack, tenant.key.secret) == await statuses(stack, second.secret) == [401] * 5
    assert len(stack.upstream.received(token=tenant.upstream_token)) == received
    await in_thread(organizations.resume, tenant.organization, by=None)
    assert await statuses(stack, second.secret) == [200] * 5


async def test_a_new_key_works_on_the_next_request_where_it_was_unknown(stack: Stack, tenant: Tenant) -> None:
    made = await in_thread(factories.api_key, tenant.member)
    assert await statuses(stack, made.secret) == [200] * 5


@pytest.mark.parametrize(
    "spoil", [lambda key: key[:-1] + ("A" if key[-1] != "A" else "B"), lambda key: "x", lambda key: "sk-other"]
)
async def test_a_wrong_key_is_refused_in_the_shape_that_clients_know(stack: Stack, tenant: Tenant, spoil: Any) -> None:
    async with stack.client() as client:
        headers = {"authorization": f"Bearer {spoil(tenant.key.secret)}"}
        answer = await client.post(f"{stack.url}/v1/responses", headers=headers, content=body())
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
    assert stack.upstream.received() == []


async def test_a_limit_added_later_counts_what_its_window_already_used(stack: Stack, tenant: Tenant, eventually: Any) -> None:
    """N5: spend first, then add the limit: it shows what was spent at once, on every process."""
    stack.upstream.script({"usage": {"input_tokens": 0, "output_tokens": 400, "total_tokens": 400}}, token=tenant.upstream_token)
    async with stack.client() as client:
        assert (await client.post(f"{stack.url}/v1/responses", headers=tenant.headers, content=body())).status_code == 200
        await eventually(tenant.log)
        await in_thread(tenant.set_limit, scope="member", metric="credits", window="week", amount="100")
        for web in stack.webs:
            usage = (await client.get(f"{web.url}/v1/usage", headers=tenant.headers)).json()
            [limit] = [one for one in usage["limits"] if one["scope"] == "member"]
            assert (limit["used"], limit["held"], limit["remaining"], limit["limit"]) == ("0.3", "0", "99.7", "100")


async def test_forwarded_headers_from_outside_change_nothing(stack: Stack, tenant: Tenant) -> None:
    """N71: X-Forwarded-For: 127.0.0.1 is neither local nor passed on."""
    forged = {"x-forwarded-for": "127.0.0.1", "x-forwarded-proto": "https", "forwarded": "for=127.0.0.1", "via": "1.1 elsewhere"}
    async with stack.client() as client:
        refused = await client.post(f"{stack.url}/v1/responses", headers=forged, content=body())
        assert refused.status_code == 401
        admin = await client.get(f"{stack.url}/admin/", headers=forged)
        assert admin.status_code == 302
        served = await client.post(f"{stack.url}/v1/responses", headers={**tenant.headers, **forged}, content=body())
        assert served.status_code == 200
    [received] = stack.upstream.received(token=tenant.upstream_token)
    assert not set(forged) & set(received.headers)
