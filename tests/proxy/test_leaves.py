"""Model lists and /v1/usage: what a key may see of itself, on the newest configuration."""

import re
from collections.abc import Callable
from typing import Any

from accounts import keys, organizations
from config.clock import utc_now
from proxy import lifespan
from tests.flows.tenants import Tenant, cost, in_thread, text
from tests.proxy.conftest import Gateway, logged, set_limit
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]
LISTS = ("/v1/models", "/backend-api/codex/models?client_version=0.171.0")


async def test_both_lists_hold_the_models_of_the_key(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant(key_fields={"allowed_models": ["gpt-5.4", "gpt-5.5", "no-such-model"]})
    got = await gateway.get(one, LISTS[0])
    assert got.json()["object"] == "list"
    assert [(entry["id"], entry["object"]) for entry in got.json()["data"]] == [("gpt-5.4", "model"), ("gpt-5.5", "model")]
    got = await gateway.get(one, LISTS[1])
    assert [entry["slug"] for entry in got.json()["models"]] == ["gpt-5.4", "gpt-5.5"]
    assert re.fullmatch('"[0-9a-f]{32}"', got.headers["etag"])


async def test_a_key_without_a_list_sees_every_priced_model_and_no_other(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant()
    names = [entry["id"] for entry in (await gateway.get(one, LISTS[0])).json()["data"]]
    assert "gpt-5.5" in names
    assert names == sorted(set(names))
    assert "fallback" not in names


async def test_lists_are_never_blocked_by_quota(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant()
    await set_limit(one, scope="key", metric="credits", window="day", amount="0")
    for path in LISTS:
        assert (await gateway.get(one, path)).status_code == 200


async def test_a_revoked_key_and_a_suspended_organization_are_refused_at_once(gateway: Gateway, tenant: MakeTenant) -> None:
    """F1, F5: one round trip proves the key on the newest configuration."""
    one: Tenant = await tenant()
    for path in (*LISTS, "/v1/usage"):
        assert (await gateway.get(one, path)).status_code == 200
    before = lifespan.resources().redis.round_trips
    assert (await gateway.get(one, LISTS[0])).status_code == 200
    assert lifespan.resources().redis.round_trips - before == 1
    await in_thread(organizations.suspend, one.organization, by=None)
    for path in (*LISTS, "/v1/usage"):
        assert (await gateway.get(one, path)).status_code == 401
    await in_thread(organizations.resume, one.organization, by=None)
    assert (await gateway.get(one, LISTS[0])).status_code == 200
    await in_thread(keys.revoke, one.key.row, by=None, now=utc_now())
    for path in (*LISTS, "/v1/usage"):
        got = await gateway.get(one, path)
        assert (got.status_code, got.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_usage_tells_the_keys_own_plan_and_limits(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """N6: of the key's limit, never of the pool."""
    one: Tenant = await tenant()
    await set_limit(one, scope="key", metric="credits", window="week", amount="40")
    await set_limit(one, scope="member", metric="requests", window="day", amount="10")
    upstream.script({"usage": {"input_tokens": 1000, "output_tokens": 100}}, token=one.upstream_token)
    assert (await gateway.post(one)).status_code == 200
    value = (await gateway.get(one, "/v1/usage")).json()
    used = cost(input=1000, output=100)
    assert value["key"] == {"id": one.key.row.public_id, "name": "laptop"}
    assert value["organization"]["slug"] == one.organization.slug
    assert value["period"]["used"] == text(used)
    assert value["period"]["held"] == "0"
    assert value["period"]["remaining"] == text(1_000_000 * 10**6 - used)
    limits = {limit["scope"]: limit for limit in value["limits"]}
    assert (limits["key"]["limit"], limits["key"]["used"], limits["key"]["remaining"]) == (
        "40",
        text(used),
        text(40 * 10**6 - used),
    )
    assert (limits["member"]["limit"], limits["member"]["used"], limits["member"]["remaining"]) == (10, 1, 9)
    assert limits["key"]["resets_at"] > utc_now().timestamp()
    await logged(one)


async def test_a_wrong_key_is_refused_the_same_way_everywhere(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant()
    bodies = set()
    other = "a" if one.key.secret[-1] != "a" else "b"
    for secret in (one.key.secret[:-1] + "?", one.key.secret[:-1] + other, "x", "wr_0123456789_"):
        for path in (*LISTS, "/v1/usage"):
            got = await gateway.client.get(f"{gateway.url}{path}", headers={"authorization": f"Bearer {secret}"})
            assert got.status_code == 401
            bodies.add(got.text)
    assert len(bodies) == 1
