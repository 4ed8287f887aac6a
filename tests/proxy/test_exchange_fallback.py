"""Other models in place of the one asked for: by an explicit rule alone, checked and priced as what serves, and never hidden."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from billing import overrides
from billing.overrides import Terms
from config.clock import utc_now
from routing import accounts, fallbacks, pools
from routing.models import PoolAccount
from tests import factories
from tests.flows.tenants import MODEL, Tenant, cost, in_thread, text
from tests.proxy.conftest import Gateway, check_counters, eventually, is_clean, logged, set_limit
from tests.proxy.test_exchange_failures import exhausted, problem, sse
from tests.upstream import Received, ScriptedUpstream

MakeTenant = Callable[..., Any]
USAGE = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
FREE, PAID = "house-free", "house-paid"
NOTHING = Terms(input=0, cached_input=0, output=0)
DOUBLE = Terms(input=250_000_000, cached_input=25_000_000, output=1_500_000_000)


@dataclass
class World:
    """A tenant whose first account serves FREE and its second PAID, at twice MODEL's price."""

    tenant: Tenant
    accounts: dict[str, PoolAccount]
    tokens: dict[str, str]
    upstream: ScriptedUpstream

    def received(self, model: str) -> list[Received]:
        """What reached the account that serves this model."""
        return self.upstream.received(token=self.tokens[model])

    async def rule(self, model: str, *chain: str) -> None:
        await in_thread(fallbacks.set_fallbacks, self.tenant.organization, model, chain, by=None)

    def exhaust(self, model: str, *, resets_at: int = 0) -> None:
        self.upstream.script(exhausted(resets_at or int(time.time()) + 3600), token=self.tokens[model])


@pytest.fixture
def world(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> Callable[..., Any]:
    async def make(**fields: Any) -> World:
        one: Tenant = await tenant(**fields)
        first = one.account
        assert first is not None
        second, token = await in_thread(factories.openai_account, one.organization)

        def prepare() -> None:
            for model, terms in ((FREE, NOTHING), (PAID, DOUBLE)):
                overrides.set_override(one.organization, model, terms, now=utc_now())
            accounts.set_models(first, [FREE], by=None)
            accounts.set_models(second, [PAID], by=None)

        await in_thread(prepare)
        return World(one, {FREE: first, PAID: second}, {FREE: one.upstream_token, PAID: token}, upstream)

    return make


def refusal(got: Any) -> tuple[int, str]:
    return got.status_code, got.json()["error"]["code"]


# ------------------------------------------------------------------------------------------------------------ it serves


async def test_a_fallback_is_asked_priced_and_told_as_what_serves(gateway: Gateway, world: Callable[..., Any]) -> None:
    """A17: the client reads the name it asked for where Codex looks for a reroute, and the truth beside it."""
    one: World = await world()
    await one.rule(FREE, PAID)
    one.exhaust(FREE)
    one.upstream.script({"usage": USAGE, "headers": {"openai-model": PAID}}, token=one.tokens[PAID])
    got = await gateway.post(one.tenant, model=FREE)
    assert got.status_code == 200
    assert sse(got.content)[-1]["type"] == "response.completed"
    assert (got.headers["openai-model"], got.headers["x-weir-served-model"]) == (FREE, PAID)
    [sent] = one.received(PAID)
    assert sent.json == {**one.received(FREE)[0].json, "model": PAID}
    tried, served = await logged(one.tenant, 2)
    assert (tried.status, tried.credits, tried.model_asked) == ("failed", 0, FREE)
    assert tried.trace[0]["failure"] == "usage_limit"
    assert (served.status, served.credits, served.model_served) == ("ok", 2 * cost(input=1000, output=100), PAID)
    assert served.lines[0]["model"] == PAID
    # Asked and served, both accounts, across the two rows.
    assert served.trace[0]["asked"] == FREE
    assert [row.trace[0]["account_id"] for row in (tried, served)] == [one.accounts[FREE].pk, one.accounts[PAID].pk]
    await check_counters(one.tenant, [tried, served])


async def test_it_is_told_where_the_upstream_names_no_model_itself(gateway: Gateway, world: Callable[..., Any]) -> None:
    one: World = await world()
    await one.rule(MODEL, PAID)
    for stream in (True, False):
        got = await gateway.post(one.tenant, model=MODEL, stream=stream)
        assert (got.status_code, got.headers["x-weir-served-model"]) == (200, PAID)
        assert "openai-model" not in got.headers
    served = await logged(one.tenant, 2)
    assert {row.trace[0]["asked"] for row in served} == {MODEL}
    assert one.received(FREE) == []


async def test_an_upstreams_own_reroute_is_seen_by_the_client(gateway: Gateway, world: Callable[..., Any]) -> None:
    """Without a fallback as with one: it is the account that was flagged, and not our doing."""
    one: World = await world()
    await one.rule(MODEL, PAID)
    rerouted = {"usage": USAGE, "headers": {"openai-model": "gpt-safe"}}
    one.upstream.script(rerouted, token=one.tokens[FREE])
    one.upstream.script(rerouted, token=one.tokens[PAID])
    plain = await gateway.post(one.tenant, model=FREE)
    assert plain.headers["openai-model"] == "gpt-safe"
    assert "x-weir-served-model" not in plain.headers
    instead = await gateway.post(one.tenant, model=MODEL)
    assert (instead.headers["openai-model"], instead.headers["x-weir-served-model"]) == ("gpt-safe", "gpt-safe")


@pytest.mark.parametrize("why", ["no account has the model", "exhausted", "cooling", "at its cap"])
async def test_whatever_keeps_the_pool_from_serving_the_fallback_serves(
    gateway: Gateway, world: Callable[..., Any], why: str
) -> None:
    one: World = await world()
    asked = MODEL if why == "no account has the model" else FREE
    await one.rule(asked, PAID)
    if why == "exhausted":
        one.exhaust(FREE)
    elif why == "cooling":
        one.upstream.script({"status": 429, "body": "Too many requests", "headers": {"retry-after": "30"}}, token=one.tokens[FREE])
    running: Any = None
    if why == "at its cap":

        def cap() -> None:
            PoolAccount.objects.filter(pk=one.accounts[FREE].pk).update(concurrency_cap=1)
            pools.move_account(one.accounts[FREE], one.accounts[FREE].pool, by=None)

        await in_thread(cap)
        one.upstream.script({"hold": {"name": "full"}}, token=one.tokens[FREE])
        running = asyncio.ensure_future(gateway.post(one.tenant, model=FREE))
        await eventually(lambda: one.received(FREE))
    got = await gateway.post(one.tenant, model=asked)
    assert (got.status_code, got.headers["x-weir-served-model"]) == (200, PAID)
    assert len(one.received(PAID)) == 1
    if running is not None:
        one.upstream.release("full")
        assert (await running).status_code == 200
    rows = [row for row in await logged(one.tenant, 1 if why == "no account has the model" else 2) if row.model_asked == PAID]
    assert len(rows) == 1
    assert await is_clean(one.tenant)


async def test_the_chain_is_tried_in_its_order_and_no_further(gateway: Gateway, world: Callable[..., Any]) -> None:
    """Not the fallbacks of a fallback: exactly what was listed."""
    one: World = await world()
    await one.rule(MODEL, "gpt-5.4", "gpt-5.4-mini")
    await one.rule("gpt-5.4", PAID)
    got = await gateway.post(one.tenant, model=MODEL)
    assert refusal(got) == (400, "no_account_available")
    assert one.received(PAID) == one.received(FREE) == []
    await one.rule(MODEL, "gpt-5.4", PAID, FREE)
    got = await gateway.post(one.tenant, model=MODEL)
    assert (got.status_code, got.headers["x-weir-served-model"]) == (200, PAID)
    assert one.received(FREE) == []
    await logged(one.tenant, 1)
    assert await is_clean(one.tenant)


async def test_a_rule_holds_from_the_next_request_on_and_no_longer_than_it_stands(
    gateway: Gateway, world: Callable[..., Any]
) -> None:
    one: World = await world()
    for rule, status in (((), 400), ((PAID,), 200), ((), 400), ((FREE,), 200)):
        await one.rule(MODEL, *rule)
        assert (await gateway.post(one.tenant, model=MODEL)).status_code == status
    assert (len(one.received(PAID)), len(one.received(FREE))) == (1, 1)


# ------------------------------------------------------------------------------------------------------------ it is not


async def test_an_exhausted_member_is_not_served_by_a_paid_fallback(gateway: Gateway, world: Callable[..., Any]) -> None:
    """A17: the member is at 100 %: the priced fallback is refused with 429 naming the limit; the free model is still served."""
    one: World = await world()
    one.upstream.script({"usage": USAGE}, token=one.tokens[PAID])
    assert (await gateway.post(one.tenant, model=PAID)).status_code == 200
    [paid] = await logged(one.tenant)
    await set_limit(one.tenant, scope="member", metric="credits", window="day", amount=text(paid.credits))
    await one.rule(FREE, PAID)
    one.upstream.script({"usage": USAGE}, token=one.tokens[FREE])
    assert (await gateway.post(one.tenant, model=FREE)).status_code == 200
    one.exhaust(FREE)
    got = await gateway.post(one.tenant, model=FREE)
    error = got.json()["error"]
    assert (got.status_code, error["type"], error["code"]) == (429, "usage_limit_reached", "limit_reached")
    assert (error["scope"], error["metric"], error["limit"], error["used"]) == (
        "member",
        "credits",
        text(paid.credits),
        text(paid.credits),
    )
    assert got.headers["x-should-retry"] == "false"
    assert len(one.received(PAID)) == 1
    await in_thread(accounts.reset_cooldowns, one.tenant.organization)
    one.upstream.script({"usage": USAGE}, token=one.tokens[FREE])
    assert (await gateway.post(one.tenant, model=FREE)).status_code == 200
    rows = await logged(one.tenant, 4)
    assert [(row.model_asked, row.credits) for row in rows] == [(PAID, paid.credits), (FREE, 0), (FREE, 0), (FREE, 0)]
    await check_counters(one.tenant, rows)


async def test_without_a_rule_nothing_serves_in_place(gateway: Gateway, world: Callable[..., Any]) -> None:
    one: World = await world()
    resets_at = int(time.time()) + 3600
    await one.rule(PAID, FREE)
    one.exhaust(FREE, resets_at=resets_at)
    got = await gateway.post(one.tenant, model=FREE)
    assert refusal(got) == (429, "pool_exhausted")
    assert got.json()["error"]["resets_at"] == resets_at
    assert one.received(PAID) == []


async def test_another_organizations_rule_is_not_ones_own(gateway: Gateway, world: Callable[..., Any]) -> None:
    one, other = await world(), await world()
    await other.rule(MODEL, PAID)
    assert refusal(await gateway.post(one.tenant, model=MODEL)) == (400, "no_account_available")
    assert (await gateway.post(other.tenant, model=MODEL)).status_code == 200


async def test_a_key_is_not_served_by_a_model_that_it_may_not_use(gateway: Gateway, world: Callable[..., Any]) -> None:
    """A17: checked as the model that serves; the next of the chain is asked instead, and at the end the first refusal stands."""
    one: World = await world(key_fields={"allowed_models": [MODEL, FREE]})
    await one.rule(MODEL, PAID)
    assert refusal(await gateway.post(one.tenant, model=MODEL)) == (400, "no_account_available")
    await one.rule(MODEL, PAID, FREE)
    got = await gateway.post(one.tenant, model=MODEL)
    assert (got.status_code, got.headers["x-weir-served-model"]) == (200, FREE)
    assert one.received(PAID) == []
    # What the key may not ask for, no rule opens.
    await one.rule(PAID, FREE)
    assert refusal(await gateway.post(one.tenant, model=PAID)) == (400, "model_not_allowed")
    assert len(one.received(FREE)) == 1


async def test_a_fallback_without_a_price_is_passed_over(gateway: Gateway, world: Callable[..., Any]) -> None:
    one: World = await world()
    await one.rule(MODEL, "no-such-model", PAID)
    got = await gateway.post(one.tenant, model=MODEL)
    assert (got.status_code, got.headers["x-weir-served-model"]) == (200, PAID)
    await one.rule(MODEL, "no-such-model")
    assert refusal(await gateway.post(one.tenant, model=MODEL)) == (400, "no_account_available")
    assert await is_clean(one.tenant)


async def test_what_one_account_holds_has_no_other_model_in_its_place(gateway: Gateway, world: Callable[..., Any]) -> None:
    """N52: the owner is exhausted whatever it is asked for."""
    one: World = await world()
    await one.rule(FREE, PAID)
    parent = sse((await gateway.post(one.tenant, model=FREE)).content)[-1]["response"]["id"]
    one.exhaust(FREE)
    for _ in range(2):
        got = await gateway.post(one.tenant, model=FREE, previous_response_id=parent)
        assert refusal(got) == (429, "pool_exhausted")
        assert "holds the previous response" in got.json()["error"]["message"]
    unknown = await gateway.post(one.tenant, model=FREE, previous_response_id="resp_unknown")
    assert refusal(unknown) == (400, "previous_response_not_found")
    assert one.received(PAID) == []


@pytest.mark.parametrize("said", [problem(404, "model_not_found", kind="invalid_request_error"), {"status": 500, "body": "oops"}])
async def test_an_upstream_that_says_itself_that_it_cannot_is_no_less_a_reason(
    gateway: Gateway, world: Callable[..., Any], said: dict[str, Any]
) -> None:
    one: World = await world()
    await one.rule(FREE, "nobody-has-it", PAID)
    one.upstream.script(said, token=one.tokens[FREE])
    got = await gateway.post(one.tenant, model=FREE)
    assert (got.status_code, got.headers["x-weir-served-model"]) == (200, PAID)
    rows = await logged(one.tenant, 2)
    assert [(row.model_asked, row.status) for row in rows] == [(FREE, "failed"), (PAID, "ok")]
    assert rows[0].credits == 0
    await check_counters(one.tenant, rows)


async def test_what_it_said_stands_where_no_other_model_can(gateway: Gateway, world: Callable[..., Any]) -> None:
    one: World = await world()
    await one.rule(FREE, PAID)
    for model, code in ((FREE, "model_not_found"), (PAID, "DeploymentNotFound")):
        one.upstream.script(problem(404, code, kind="invalid_request_error"), token=one.tokens[model])
    assert refusal(await gateway.post(one.tenant, model=FREE)) == (404, "model_not_found")
    assert len(one.received(PAID)) == 1
    one.exhaust(FREE)
    one.upstream.script(problem(404, "DeploymentNotFound", kind="invalid_request_error"), token=one.tokens[PAID])
    assert refusal(await gateway.post(one.tenant, model=FREE)) == (429, "pool_exhausted")
    assert await is_clean(one.tenant)


async def test_an_answer_that_has_begun_is_not_begun_again(gateway: Gateway, world: Callable[..., Any]) -> None:
    one: World = await world()
    await one.rule(FREE, PAID)
    one.upstream.script({"cut_after_events": 6}, token=one.tokens[FREE])
    got = await gateway.post(one.tenant, model=FREE)
    assert sse(got.content)[-1]["response"]["error"]["code"] == "stream_incomplete"
    assert one.received(PAID) == []
    assert len(await logged(one.tenant, 1)) == 1


async def test_what_the_request_itself_got_wrong_is_no_reason(gateway: Gateway, world: Callable[..., Any]) -> None:
    one: World = await world()
    await one.rule(FREE, PAID)
    one.upstream.script(problem(400, "invalid_prompt", kind="invalid_request_error"), token=one.tokens[FREE])
    assert refusal(await gateway.post(one.tenant, model=FREE)) == (400, "invalid_prompt")
    assert one.received(PAID) == []


# ----------------------------------------------------------------------------------------------------- across accounts


async def test_a_failed_first_attempt_leaves_the_second_ones_price(gateway: Gateway, world: Callable[..., Any]) -> None:
    """C12: the first account answers 400, the second one answers: the cost is filled, both accounts are in the trace."""
    one: World = await world()

    def open_both() -> None:
        for account in one.accounts.values():
            accounts.set_models(account, None, by=None)

    await in_thread(open_both)
    one.upstream.script(problem(400, "insufficient_quota"))
    one.upstream.script({"usage": USAGE})
    got = await gateway.post(one.tenant)
    assert got.status_code == 200
    [row] = await logged(one.tenant)
    assert (row.credits, row.model_asked, row.status) == (cost(input=1000, output=100), MODEL, "ok")
    assert row.rate_id is not None
    assert [(step["status"], step.get("failure")) for step in row.trace] == [(400, "quota"), (200, None)]
    assert {step["account_id"] for step in row.trace} == {account.pk for account in one.accounts.values()}
    assert [line["account_id"] for line in row.lines] == [row.trace[1]["account_id"]]
    assert row.account_id == row.trace[1]["account_id"]
    await check_counters(one.tenant, [row])


async def test_a_request_has_three_attempts_and_one_is_kept_for_the_fallback(gateway: Gateway, world: Callable[..., Any]) -> None:
    """N37: whatever fails, and however many models may serve: three attempts, the last of them by the rule."""
    it: World = await world()
    await it.rule(FREE, PAID)
    for _ in range(3):
        more, token = await in_thread(factories.openai_account, it.tenant.organization)
        await in_thread(lambda row: accounts.set_models(row, [FREE], by=None), more)
        it.upstream.script({"error": "429_rate"}, repeat=0, token=token)
    it.upstream.script({"error": "429_rate"}, repeat=0, token=it.tokens[FREE])
    it.upstream.script({"usage": USAGE}, token=it.tokens[PAID])
    got = await gateway.post(it.tenant, model=FREE)
    assert (got.status_code, got.headers["x-weir-served-model"]) == (200, PAID)
    rows = await logged(it.tenant, 2)
    assert [len(row.trace) for row in rows] == [2, 1]
    assert [(row.status, row.credits) for row in rows] == [("failed", 0), ("ok", 2 * cost(input=1000, output=100))]
    await check_counters(it.tenant, rows)
