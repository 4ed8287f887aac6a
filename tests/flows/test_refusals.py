"""Refusals through the front door: the answer names the level, and the page of the one refused says the same."""

import asyncio
import re
import time
from datetime import timedelta
from typing import Any

import pytest

from accounts import keys
from config.clock import utc_now
from config.redis import sync_client
from quotas import limits, refusal_log
from quotas.models import Refusal
from tests import factories, secrets
from tests.flows import tenants
from tests.flows.conftest import Stack
from tests.flows.tenants import MODEL, Tenant, body, cost, in_thread, text
from tests.pages import made

pytestmark = pytest.mark.stack

USED = {"usage": {"input_tokens": 0, "output_tokens": 13_334, "total_tokens": 13_334}}
"""10.0005 credits of gpt-5.5."""


def in_a_team(**fields: Any) -> Tenant:
    """A tenant whose developer is in the team Quality and has no limit of their own."""
    organization = factories.organization(timezone="Europe/Berlin", **fields)
    factories.member(organization, role="owner")
    developer = factories.member(organization, team=factories.team(organization, "Quality"))
    tenant = Tenant(organization, developer, factories.api_key(developer))
    tenant.account, tenant.upstream_token = factories.openai_account(organization)
    return tenant


def set_limit(tenant: Tenant, scope: str, amount: str, *, metric: str = "credits", window: str = "week") -> None:
    assert tenant.member.user is not None
    of = {"organization": None, "team": "Quality", "member": tenant.member.user.email, "key": tenant.key.row.public_id}[scope]
    limits.set_limit(tenant.organization, scope=scope, of=of, metric=metric, window=window, amount=amount, by=None)


def kept(tenant: Tenant) -> list[Refusal]:
    return list(Refusal.objects.filter(organization=tenant.organization).order_by("id"))


def told(tenant: Tenant) -> list[str]:
    """The refusals on My key, as read."""
    page = made.signed_in(tenant.member).get(made.path(tenant.member)).content.decode()
    articles = re.findall(r'<article class="refusal".*?</article>', page, re.S)
    return [" ".join(re.sub(r"<[^>]+>", " ", article).split()) for article in articles]


async def post(stack: Stack, tenant: Tenant, web: int = 0, secret: str = "", content: bytes | None = None, **headers: str) -> Any:
    async with stack.client() as client:
        authorization = {"authorization": f"Bearer {secret}"} if secret else {}
        return await client.post(
            f"{stack.webs[web].url}/v1/responses",
            headers={**tenant.headers, **authorization, **headers},
            content=body(max_output_tokens=10) if content is None else content,
        )


async def test_the_members_own_limit_is_named_although_every_level_has_one(
    stack: Stack, eventually: Any, transactional_db: None, upstream: Any
) -> None:
    """G1: tenant 1,000, team 100, member 10, key 50; the member used 10: 429 naming the member level, on every process."""
    tenant = await in_thread(in_a_team)
    upstream.script(USED, token=tenant.upstream_token)
    for scope, amount in (("organization", "1000"), ("team", "100"), ("member", "10"), ("key", "50")):
        await in_thread(set_limit, tenant, scope, amount)
    assert (await post(stack, tenant)).status_code == 200
    for web in range(2):
        refused = await post(stack, tenant, web)
        error = refused.json()["error"]
        assert (refused.status_code, error["type"], error["code"]) == (429, "usage_limit_reached", "limit_reached")
        assert (error["scope"], error["scope_name"], error["limit"]) == ("member", str(tenant.member), "10")
        assert (error["used"], error["held"]) == (text(cost(output=13_334)), "0")
        # L8: whole seconds, at least 1, equal to resets_at - now.
        assert int(refused.headers["retry-after"]) == pytest.approx(error["resets_at"] - time.time(), abs=1.5)
    assert len(upstream.received(token=tenant.upstream_token)) == 1
    await eventually(lambda: sum(row.count for row in kept(tenant)) == 2)
    row = (await in_thread(kept, tenant))[-1]
    assert (row.scope, row.scope_name, row.limit, row.used) == ("member", str(tenant.member), 10**7, cost(output=13_334))
    said = (await in_thread(told, tenant))[0]
    assert said.startswith("Your weekly limit would have been passed")
    # L7: the answer of 10.0005 of 10 is an overdraft; the page shows it, and the API says 0.
    assert "−0.000500 left, an overdraft," in said
    assert "Used then 10.00 of 10.00" in said
    async with stack.client() as client:
        usage = (await client.get(f"{stack.url}/v1/usage", headers=tenant.headers)).json()
    [own] = [limit for limit in usage["limits"] if limit["scope"] == "member"]
    assert (own["remaining"], own["used"], own["resets_at"]) == ("0", text(cost(output=13_334)), row.resets_at.timestamp())  # type: ignore[union-attr]


async def test_an_exhausted_team_is_named_to_a_member_without_a_limit(
    stack: Stack, eventually: Any, transactional_db: None, upstream: Any
) -> None:
    """G4: the error gives scope, limit, used, resets_at; the page the same in words."""
    tenant = await in_thread(in_a_team)
    upstream.script(USED, token=tenant.upstream_token)
    await in_thread(set_limit, tenant, "team", "10")
    assert (await post(stack, tenant)).status_code == 200
    error = (await post(stack, tenant)).json()["error"]
    assert (error["scope"], error["scope_name"], error["limit"], error["used"]) == ("team", "Quality", "10", "10.0005")
    assert error["resets_at"] > time.time()
    assert "the team Quality may use 10 credits" in error["message"]
    await eventually(lambda: kept(tenant))
    [said] = await in_thread(told, tenant)
    assert said.startswith("Your team’s weekly limit would have been passed")
    assert "Limit Team Quality · credits, this week" in said
    [row] = await in_thread(kept, tenant)
    assert row.resets_at is not None
    assert row.resets_at.timestamp() == error["resets_at"]


async def test_a_rotated_key_on_every_process(stack: Stack, tenant: Tenant, eventually: Any) -> None:
    """F3: rotated with 60 s grace; the old secret at 30 s: 200, at 61 s: 401; the new one works at once."""
    old = tenant.key.secret
    for web in range(2):
        assert (await post(stack, tenant, web)).status_code == 200

    async def rotate(seconds_ago: float, grace: float = 60) -> str:
        now = utc_now() - timedelta(seconds=seconds_ago)
        issued = await in_thread(keys.rotate, tenant.key.row, grace_seconds=grace, by=None, now=now)
        secrets.register(issued.secret.split("_")[2], "gateway key's secret")
        return secrets.register(issued.secret, "gateway key")

    second = await rotate(30)
    statuses = [(await post(stack, tenant, web, secret)).status_code for web in range(2) for secret in (old, second)]
    assert statuses == [200] * 4
    third = await rotate(61)
    statuses = [(await post(stack, tenant, web, secret)).status_code for web in range(2) for secret in (old, second, third)]
    assert statuses == [401, 401, 200] * 2
    fourth = await rotate(0, grace=0)
    statuses = [(await post(stack, tenant, web, secret)).status_code for web in range(2) for secret in (third, fourth)]
    assert statuses == [401, 200] * 2
    # What proved to be the key's secret before is told on My key; what never was one is not.
    assert (await post(stack, tenant, secret=fourth[:-1] + ("a" if fourth[-1] != "a" else "b"))).status_code == 401
    await eventually(lambda: sum(row.count for row in kept(tenant)) == 4)
    rows = await in_thread(kept, tenant)
    assert {(row.code, row.message) for row in rows} == {
        ("invalid_api_key", "The secret of the key laptop was rotated, and the old one has ended.")
    }


async def test_what_the_wire_refuses_is_told_to_the_holder_of_the_key(
    stack: Stack, tenant: Tenant, eventually: Any, upstream: Any
) -> None:
    """Every code that a request can be refused for without an account's doing, from both processes."""
    await in_thread(set_limit, tenant, "key", "1", metric="requests", window="day")
    restricted = await in_thread(factories.api_key, tenant.member, name="ci", allowed_models=["gpt-5.4"])
    expiring = await in_thread(factories.api_key, tenant.member, name="old", expires_at=utc_now() + timedelta(seconds=1))
    asked: list[tuple[str, int, Any]] = [
        ("model_not_found", 400, {"content": body(model="gpt-9-new")}),
        ("invalid_json", 400, {"content": b"{"}),
        ("invalid_encoding", 400, {"content-encoding": "br"}),
        ("model_not_allowed", 400, {"secret": restricted.secret}),
    ]
    for web, (code, status, options) in enumerate(asked):
        refused = await post(stack, tenant, web % 2, **options)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert (await post(stack, tenant)).status_code == 200
    assert (await post(stack, tenant)).json()["error"]["code"] == "limit_reached"
    await asyncio.sleep(1.1)
    assert (await post(stack, tenant, secret=expiring.secret)).status_code == 401
    await in_thread(set_limit, tenant, "key", "none", metric="requests", window="day")
    await in_thread(set_limit, tenant, "key", "1", metric="requests_per_minute", window="")
    assert (await post(stack, tenant)).json()["error"]["code"] == "rate_limit_exceeded"
    expected = {code for code, _, _ in asked} | {"limit_reached", "rate_limit_exceeded", "invalid_api_key"}
    await eventually(lambda: {row.code for row in kept(tenant)} == expected)
    rows = {row.code: row for row in await in_thread(kept, tenant)}
    assert rows["model_not_found"].model == "gpt-9-new"
    assert rows["limit_reached"].model == rows["model_not_allowed"].model == MODEL
    assert rows["model_not_allowed"].key_id == restricted.row.pk
    assert (rows["invalid_api_key"].key_id, rows["invalid_api_key"].message) == (expiring.row.pk, "The key old has expired.")
    assert len(await in_thread(told, tenant)) == len(expected)
    assert len(upstream.received(token=tenant.upstream_token)) == 1


async def test_without_a_pool_and_with_a_dead_upstream(stack: Stack, eventually: Any, transactional_db: None) -> None:
    poolless = await in_thread(tenants.make, account="none")
    assert (await post(stack, poolless)).json()["error"]["code"] == "no_account_available"
    await eventually(lambda: [row.code for row in kept(poolless)] == ["no_account_available"])
    [said] = await in_thread(told, poolless)
    assert said.startswith("No account of the pool could serve it")


async def test_a_flood_of_refusals_is_counted_and_holds_nobody_up(stack: Stack, tenant: Tenant, eventually: Any) -> None:
    """200 at once: one answer each, one row a minute, every one counted."""
    await in_thread(set_limit, tenant, "key", "0", window="day")
    answers = await asyncio.gather(*(post(stack, tenant, number % 2) for number in range(200)))
    assert {answer.status_code for answer in answers} == {429}
    await eventually(lambda: sum(row.count for row in kept(tenant)) == 200, 10)
    assert len(await in_thread(kept, tenant)) <= 3


async def test_what_nobody_is_known_for_is_kept_nowhere(stack: Stack, tenant: Tenant) -> None:
    wrong = tenant.key.secret[:-1] + ("a" if tenant.key.secret[-1] != "a" else "b")
    for secret in (wrong, "wr_0000000000_" + "0" * 43, "nonsense"):
        assert (await post(stack, tenant, secret=secret)).status_code == 401
    await asyncio.sleep(2.5)
    assert await in_thread(kept, tenant) == []
    redis: Any = sync_client()
    assert await in_thread(redis.xlen, refusal_log.stream_key(tenant.organization.pk)) == 0
