"""Requests through the gateway and what routing learns of them: holds of turns, metered credits, the log's trace."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.redis import sync_client
from routing import live, pools, sticky
from routing.models import Pool, PoolAccount
from tests import factories
from tests.flows.tenants import Tenant, in_thread
from tests.proxy.conftest import Gateway, logged
from tests.upstream import ScriptedUpstream

SAMPLES = Path(__file__).parent / "samples"
MakeTenant = Callable[..., Any]
M = 1_000_000

TOOLS = [{"type": "function", "name": "shell", "parameters": {"type": "object"}}]
QUESTION = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "run it"}]}
ANSWER = {"type": "function_call_output", "call_id": "call_1", "output": "done"}


def key_of(account: PoolAccount, organization_id: int, name: str) -> str:
    return f"routing:{live.pool_tag(account.pool_id, organization_id)}:p{account.pool_id}:{name}"


async def field(one: Tenant, name: str) -> bytes:
    account = one.account
    assert account is not None
    key = key_of(account, one.organization.pk, "live")
    found = await in_thread(sync_client().hget, key, f"{account.pk}:{name}")
    return found if isinstance(found, bytes) else b""


async def held(one: Tenant) -> int:
    """Micro-credits held on the tenant's account."""
    text = await field(one, "h")
    return int(text.partition(b":")[0] or 0)


async def entry(one: Tenant, session: str) -> sticky.Sticky:
    assert one.account is not None
    name = sticky.session_key(one.organization.pk, {}, session, b"")
    found = sticky.read(await in_thread(sync_client().get, key_of(one.account, one.organization.pk, f"s:{name}")))
    assert found is not None
    return found


async def test_the_log_shows_candidates_scores_and_reason(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant()
    others = [(await in_thread(factories.openai_account, one.organization))[0] for _ in range(6)]
    assert one.account is not None
    for _ in range(2):
        assert (await gateway.post(one, prompt_cache_key="thread", tools=TOOLS)).status_code == 200
    first, second = await logged(one, 2)
    [step] = first.trace
    ids = [one.account.pk, *(other.pk for other in others)]
    # API keys have no windows: the root of one Plus's week alone, and no bound.
    assert step["best"] == [[number, 38.73, None] for number in ids[:5]]
    assert (step["account_id"], step["reason"], step["candidates"], step["turn"]) == (ids[0], "pace", 7, 12.0)
    [step] = second.trace
    assert (step["account_id"], step["reason"], step["candidates"], step["best"]) == (ids[0], "sticky", 1, [[ids[0], None, None]])
    assert len(json.dumps(first.trace)) < 350


async def test_an_answer_that_ends_the_turn_leaves_a_thinking_sessions_share_held(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    assert (await gateway.post(one, prompt_cache_key="thread", tools=TOOLS)).status_code == 200
    [row] = await logged(one)
    assert row.credits > 0
    assert await held(one) == 6 * M
    assert int(await field(one, "m")) == row.credits
    found = await entry(one, "thread")
    assert (found.spent, found.turn, found.mean) == (0, 12 * M, row.credits)


async def test_a_tool_call_keeps_the_turn_and_its_hold_and_the_answer_after_it_ends_both(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    call = (SAMPLES / "responses_tool_call.sse").read_text()
    upstream.script({"raw": call}, token=one.upstream_token)
    assert (await gateway.post(one, prompt_cache_key="thread", input=[QUESTION], tools=TOOLS)).status_code == 200
    [row] = await logged(one)
    assert await held(one) == 48 * M - row.credits
    assert (await gateway.post(one, prompt_cache_key="thread", input=[QUESTION, ANSWER], tools=TOOLS)).status_code == 200
    rows = await logged(one, 2)
    assert rows[1].trace[0]["reason"] == "turn"
    assert await held(one) == 6 * M
    # Both requests were one turn of the session, and of the member.
    spent = rows[0].credits + rows[1].credits
    found = await entry(one, "thread")
    assert (found.spent, found.mean) == (0, spent)
    assert one.account is not None
    mean = await in_thread(sync_client().hget, key_of(one.account, one.organization.pk, "turns"), str(one.member.pk))
    assert int(mean) == int(0.97 * 12 * M + 0.03 * spent + 0.5)
    assert (await gateway.post(one, prompt_cache_key="thread", input=[QUESTION, ANSWER, QUESTION], tools=TOOLS)).status_code == 200
    assert (await logged(one, 3))[2].trace[0]["reason"] == "sticky"


async def test_a_request_without_tools_is_its_whole_turn_and_holds_no_more_than_that(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """The turn is the request's own estimate, of which half is held after it."""
    one: Tenant = await tenant(account="chatgpt")
    assert (await gateway.post(one, prompt_cache_key="thread")).status_code == 200
    [row] = await logged(one)
    assert row.held is not None
    assert row.held < 12 * M
    assert await held(one) == row.held // 2
    assert row.trace[0]["turn"] == round(row.held / M, 2)


async def test_a_request_that_is_refused_upstream_ends_its_turn(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    upstream.script({"status": 400, "body": {"error": {"code": "invalid_prompt"}}}, token=one.upstream_token)
    assert (await gateway.post(one, prompt_cache_key="thread", tools=TOOLS)).status_code == 400
    await logged(one)
    assert await held(one) == 6 * M
    assert await field(one, "m") == b""


async def test_an_account_without_room_for_the_turn_refuses_with_its_reset(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N31, and strategies step 4: 4 % of 225 credits are less than a turn of 12."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    seconds, _ = await in_thread(sync_client().time)
    window = f"300=96:{seconds + 600}:{seconds * 1000}:0:0:0"
    await in_thread(sync_client().hset, key_of(one.account, one.organization.pk, "live"), f"{one.account.pk}:w", window)
    got = await gateway.post(one, tools=TOOLS)
    error = got.json()["error"]
    assert (got.status_code, error["type"], error["code"], error["resets_at"]) == (
        429,
        "usage_limit_reached",
        "pool_exhausted",
        seconds + 600,
    )
    assert upstream.received(token=one.upstream_token) == []
    assert await held(one) == 0


async def test_a_strategy_and_a_pool_hold_on_the_very_next_request(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    assert one.account is not None

    def change() -> int:
        team = factories.team(one.organization)
        type(one.member).objects.filter(pk=one.member.pk).update(team=team)
        own = pools.set_pool(one.organization, "Team", teams=[team], by=None).pool
        account, _ = factories.openai_account(one.organization)
        pools.move_account(account, own, by=None)
        pools.set_strategy(own, {"strategy": "round_robin"}, by=None)
        return account.pk

    assert (await gateway.post(one, tools=TOOLS)).status_code == 200
    moved = await in_thread(change)
    assert (await gateway.post(one, tools=TOOLS)).status_code == 200
    first, second = await logged(one, 2)
    assert (first.account_id, first.trace[0]["reason"]) == (one.account.pk, "pace")
    assert (second.account_id, second.trace[0]["reason"]) == (moved, "round_robin")


async def test_a_shared_pool_carries_those_whose_plan_offers_it(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    lender: Tenant = await tenant(plan="plus")
    offered: Tenant = await tenant(account="none", plan="pro")
    other: Tenant = await tenant(account="none", plan="business")
    assert lender.account is not None

    def share() -> Pool:
        shared = pools.set_pool(None, factories.unique("shared"), plans=["pro"], by=None).pool
        assert lender.account is not None
        pools.move_account(lender.account, shared, by=None)
        return shared

    shared = await in_thread(share)
    assert (await gateway.post(offered)).status_code == 200
    refused = await gateway.post(other)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "no_account_available")
    [row] = await logged(offered)
    assert (row.account_id, row.trace[0]["reason"]) == (lender.account.pk, "pace")
    found = await in_thread(sync_client().hget, f"routing:{{p{shared.pk}}}:p{shared.pk}:live", f"{lender.account.pk}:m")
    assert int(found) == row.credits
    # Rows stay between tests: what plans offer must not.
    await in_thread(lambda: pools.set_pool(None, shared.name, plans=[], by=None))
