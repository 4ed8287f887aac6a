"""Both OpenAI SDKs, unmodified: streams, their error classes and how often they ask, and what their leaving stops and costs."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from billing.models import UsageRecord
from tests.clients import node_sdk, python_sdk
from tests.flows import tap, tenants
from tests.flows.conftest import Stack
from tests.flows.tap import Tap
from tests.flows.tenants import Tenant, in_thread

# The first run installs the client.
pytestmark = [pytest.mark.clients, pytest.mark.stack, pytest.mark.timeout(600)]

PATH = "/v1/responses"
GRACE_SECONDS = 2.0
GPT_5_5 = (125_000_000, 12_500_000, 750_000_000)
ENVELOPE = {"error": {"message": "Said above", "type": "its_type", "param": None, "code": "its_code"}}
TOOL = {"type": "function", "name": "look", "strict": False, "parameters": {"type": "object", "properties": {}}}


class Sdk:
    """One of the two, with a key of a tenant of its own, through a tap."""

    def __init__(self, name: str, tenant: Tenant, gate: Tap, upstream: Any, eventually: Any) -> None:
        self.name = name
        self.tenant = tenant
        self.tap = gate
        self.upstream = upstream
        self.eventually = eventually
        self._run = {"python": python_sdk.run, "node": node_sdk.run}[name]

    async def run(self, *operations: dict[str, Any], retries: int = 0, key: str = "") -> list[dict[str, Any]]:
        where = {"base_url": f"{self.tap.url}/v1", "key": key or self.tenant.key.secret}
        found: list[dict[str, Any]] = await in_thread(self._run, *operations, retries=retries, **where)
        return found

    def served(self) -> list[Any]:
        return [one for one in self.upstream.received(token=self.tenant.upstream_token) if one.path.endswith("/responses")]

    async def rows(self, *statuses: str) -> list[UsageRecord]:
        """The usage log, which has come to just these; nothing is held or in flight, and the counters are its sum."""

        def complete() -> list[UsageRecord] | None:
            found = self.tenant.log()
            return found if len(found) >= len(statuses) and self.tenant.usage().live == self.tenant.slots() == 0 else None

        rows: list[UsageRecord] = await self.eventually(complete, 10) if statuses else await in_thread(self.tenant.log)
        assert [row.status for row in rows] == list(statuses)
        usage = await in_thread(self.tenant.usage)
        total = sum(row.credits for row in rows)
        assert (usage.credits, usage.plan.used, usage.plan.held, usage.live) == (total, total, 0, 0)
        assert await in_thread(self.tenant.live_holds) == 0
        assert await in_thread(self.tenant.slots) == 0
        return rows


@pytest.fixture(params=["python", "node"])
async def sdk(
    request: pytest.FixtureRequest, stack: Stack, upstream: Any, transactional_db: None, eventually: Any
) -> AsyncIterator[Sdk]:
    tenant = await in_thread(tenants.make, account="chatgpt", upstream=upstream)
    async with tap.before(stack.url) as gate:
        yield Sdk(request.param, tenant, gate, upstream, eventually)


def asking(text: str = "Hello weir", model: str = "gpt-5.5", **fields: Any) -> dict[str, Any]:
    return {"model": model, "input": text, **fields}


def error(found: dict[str, Any]) -> tuple[str, int | None, str | None, str | None]:
    told = found["error"]
    return told["name"], told["status"], told["code"], told["type"]


async def test_streams_whole_answers_and_tools(sdk: Sdk) -> None:
    tool = asking([{"role": "user", "content": "RUN_TOOL look"}], tools=[TOOL])  # type: ignore[arg-type]
    whole, streamed, called, listed = await sdk.run(
        {"name": "create", "params": asking()},
        {"name": "stream", "params": asking("Hello stream")},
        {"name": "create", "params": tool},
        {"name": "models"},
    )
    assert (whole["text"], whole["status"]) == ("You said: Hello weir", "completed")
    assert (streamed["text"], streamed["kinds"][0], streamed["kinds"][-1]) == (
        "You said: Hello stream",
        "response.created",
        "response.completed",
    )
    assert "response.output_text.delta" in streamed["kinds"]
    [call] = called["output"]
    assert (call["type"], call["name"]) == ("function_call", "look")
    assert {"gpt-5.5", "gpt-5.4"} <= set(listed["ids"])
    assert sdk.tap.requests == [(PATH, 200), (PATH, 200), (PATH, 200), ("/v1/models", 200)]
    assert [(one.status, one.state) for one in sdk.served()] == [(200, "done")] * 3
    rows = await sdk.rows("ok", "ok", "ok")
    usages = [whole["usage"], streamed["usage"], called["usage"]]
    for row, usage in zip(rows, usages, strict=True):
        fresh, cached, output = GPT_5_5
        paid = row.input_tokens * fresh + row.cached_input_tokens * cached + row.output_tokens * output
        assert row.credits == (paid + 500_000) // 1_000_000
        assert row.input_tokens + row.cached_input_tokens == usage["input_tokens"]
        assert row.output_tokens == usage["output_tokens"]


# Model (which names the case to the upstream), what the upstream answers, the class, its status, code and type, and how many
# requests that is with the SDKs' own two retries.
PASSED_ON: list[tuple[str, dict[str, Any], str, int, str | None, str, int]] = [
    ("gpt-5.5", {"error": "400_context"}, "BadRequestError", 400, "context_length_exceeded", "invalid_request_error", 1),
    ("gpt-5.4", {"error": "400_detail"}, "BadRequestError", 400, None, "invalid_request_error", 1),
    ("gpt-5.6-sol", {"status": 404, "body": ENVELOPE}, "NotFoundError", 404, "its_code", "its_type", 1),
    ("gpt-5.6-terra", {"status": 422, "body": ENVELOPE}, "UnprocessableEntityError", 422, "its_code", "its_type", 1),
    ("gpt-5.6-luna", {"status": 409, "body": ENVELOPE}, "ConflictError", 409, "its_code", "its_type", 3),
    ("gpt-6-sol", {"status": 413, "body": ENVELOPE}, "APIStatusError", 413, "its_code", "its_type", 1),
]


async def test_what_is_wrong_with_the_request_keeps_its_class(sdk: Sdk) -> None:
    for model, answer, *_ in PASSED_ON:
        sdk.upstream.script(answer, repeat=0, model=model, token=sdk.tenant.upstream_token)
    found = await sdk.run(*({"name": "create", "params": asking(model=model)} for model, *_ in PASSED_ON), retries=2)
    # The SDK for Node has one class for what it has no name for.
    plain = {"node": {"APIStatusError": "APIError"}}.get(sdk.name, {})
    assert [error(one) for one in found] == [(plain.get(name, name), *rest[:3]) for _, _, name, *rest in PASSED_ON]
    assert sdk.tap.requests == [(PATH, status) for _, _, _, status, _, _, count in PASSED_ON for _ in range(count)]
    asked = sum(count for *_, count in PASSED_ON)
    assert len(sdk.served()) == asked
    rows = await sdk.rows(*["failed"] * asked)
    assert {row.credits for row in rows} == {0}


async def test_our_own_refusals_have_their_class_and_reach_nobody(sdk: Sdk) -> None:
    """With the SDKs' two retries: what waiting cannot mend is asked once."""
    await in_thread(sdk.tenant.set_limit, scope="key", metric="credits", window="day", amount="0")
    once = {"name": "create", "params": asking()}
    limited, unknown, absent = await sdk.run(
        once, {"name": "create", "params": asking(model="gpt-9-new")}, {"name": "stream", "params": asking()}, retries=2
    )
    assert error(limited) == error(absent) == ("RateLimitError", 429, "limit_reached", "usage_limit_reached")
    assert error(unknown) == ("BadRequestError", 400, "model_not_found", "invalid_request_error")
    [stranger] = await sdk.run(once, retries=2, key="wr_0123456789_" + "x" * 43)
    assert error(stranger) == ("AuthenticationError", 401, "invalid_api_key", "invalid_request_error")
    assert sdk.tap.requests == [(PATH, 429), (PATH, 400), (PATH, 429), (PATH, 401)]
    assert sdk.served() == []
    await sdk.rows()


async def test_an_exhausted_pool_is_asked_once_and_a_pause_is_waited_out(sdk: Sdk) -> None:
    account = sdk.tenant.account
    assert account is not None
    sdk.upstream.script({"error": "429_rate", "headers": {"retry-after": "1"}}, token=sdk.tenant.upstream_token)
    [waited] = await sdk.run({"name": "create", "params": asking()}, retries=2)
    assert waited["text"] == "You said: Hello weir"
    assert sdk.tap.requests == [(PATH, 429), (PATH, 200)]
    sdk.upstream.windows(account.chatgpt_account_id, week_percent=100)
    spent, again = await sdk.run(*[{"name": "create", "params": asking()}] * 2, retries=2)
    for found in (spent, again):
        assert error(found) == ("RateLimitError", 429, "pool_exhausted", "usage_limit_reached")
    assert sdk.tap.requests[2:] == [(PATH, 429)] * 2
    assert [one.status for one in sdk.served()] == [429, 200, 429]
    await sdk.rows("failed", "ok", "failed")


async def test_an_upstream_that_breaks_off_is_an_error_of_the_server(sdk: Sdk) -> None:
    """Folded it is a 502 that the SDKs raise; streamed it ends as `response.failed`, which both hand on as it is."""
    sdk.upstream.script({"cut_after_events": 6}, token=sdk.tenant.upstream_token)
    [folded] = await sdk.run({"name": "create", "params": asking()})
    assert error(folded) == ("InternalServerError", 502, "upstream_unavailable", "server_error")
    other = await in_thread(tenants.make, account="chatgpt", upstream=sdk.upstream)
    sdk.upstream.script({"cut_after_events": 6}, token=other.upstream_token)
    [streamed] = await sdk.run({"name": "stream", "params": asking()}, key=other.key.secret)
    assert (streamed["text"], streamed["kinds"][-1], streamed["usage"]) == ("You said: ", "response.failed", None)
    assert sdk.tap.requests == [(PATH, 502), (PATH, 200)]
    [row] = await sdk.rows("upstream_cut")
    assert row.is_estimated
    assert row.credits > 0


@pytest.mark.parametrize("leaving", ["abandon", "timeout"])
async def test_leaving_stops_the_upstream_within_the_grace_and_a_second(sdk: Sdk, leaving: str) -> None:
    """A stream that is closed, and a whole answer whose time is up: what came until then is paid by the estimate."""
    sdk.upstream.script({"hold": {"name": "never", "after": 8}, "deltas": 5}, token=sdk.tenant.upstream_token)
    if leaving == "abandon":
        await sdk.run({"name": "abandon", "params": asking()})
    else:
        [found] = await sdk.run({"name": "create", "params": asking(), "options": {"timeout": 1500}})
        assert found["error"]["name"] == {"python": "APITimeoutError", "node": "APIConnectionTimeoutError"}[sdk.name]
    [gone] = await sdk.upstream.wait_for(1, state="client_gone", seconds=10, token=sdk.tenant.upstream_token)
    [seen] = sdk.tap.seen
    assert 0 <= gone.ended_at - seen.left_at <= GRACE_SECONDS + 1
    assert gone.sent_events == 8
    [row] = await sdk.rows("client_closed")
    assert row.is_estimated
    assert row.credits > 0
    assert 0 < row.output_tokens < 100


async def test_an_answer_that_ends_within_the_grace_is_paid_exactly(sdk: Sdk) -> None:
    sdk.upstream.script({"hold": {"name": "soon", "after": 8}, "deltas": 5}, token=sdk.tenant.upstream_token)
    leaving = asyncio.create_task(sdk.run({"name": "abandon", "params": asking()}))
    await sdk.upstream.wait_for(1, until=lambda one: one.sent_events == 8, seconds=20, token=sdk.tenant.upstream_token)
    await sdk.eventually(lambda: sdk.tap.seen[0].noticed_at, 10)
    sdk.upstream.release("soon")
    await leaving
    [row] = await sdk.rows("client_closed")
    assert (row.is_estimated, row.output_tokens) == (False, 15)
    assert [one.state for one in sdk.served()] == ["done"]


# The SDK for Python uses its socket library in a way that the library has come to disapprove of.
@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
async def test_a_response_over_a_socket(sdk: Sdk) -> None:
    """The SDKs' sockets ask with no header of Codex', and hand on every event; the key's windows are one of them."""
    found, refused = await sdk.run(
        {"name": "socket", "params": asking(store=False)}, {"name": "socket", "params": asking(model="gpt-9-new")}
    )
    assert (found["text"], found["kinds"][-1]) == ("You said: Hello weir", "response.completed")
    assert found["kinds"].index("codex.rate_limits") < found["kinds"].index("response.created")
    if sdk.name == "node":
        # What the gateway refuses is an event of its own there, not an answer's.
        assert "error" in refused
    else:
        assert refused["kinds"][0] == "error"
    assert [(one.status, len(one.sent)) for one in sdk.tap.sockets] == [(101, 1), (101, 1)]
    [row] = await sdk.rows("ok")
    assert row.output_tokens == found["usage"]["output_tokens"] == 12
    [turn] = [one for one in sdk.served() if one.method == "WEBSOCKET"]
    assert (turn.status, turn.state) == (200, "done")
