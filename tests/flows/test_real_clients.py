"""The real Codex CLI and the OpenAI Python SDK, unmodified, through the gateway: the log holds just their calls, priced exactly."""

from pathlib import Path
from typing import Any

import openai
import pytest

from billing.models import UsageRecord
from tests.clients import codex
from tests.flows import tenants
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant

# The first run installs the client.
pytestmark = [pytest.mark.clients, pytest.mark.stack, pytest.mark.timeout(600)]

# gpt-5.4 on the packaged card: 62.5 / 6.25 / 375 credits per million tokens.
GPT_5_4 = (62_500_000, 6_250_000, 375_000_000)
GPT_5_5 = (125_000_000, 12_500_000, 750_000_000)


def price(row: UsageRecord, rates: tuple[int, int, int]) -> int:
    """Written out here, so that pricing is not its own judge."""
    fresh, cached, output = rates
    total = row.input_tokens * fresh + row.cached_input_tokens * cached + row.output_tokens * output
    return (total + 500_000) // 1_000_000


def check_log(rows: list[UsageRecord], tenant: Tenant, model: str, rates: tuple[int, int, int]) -> None:
    for row in rows:
        assert (row.status, row.part, row.model_asked, row.model_served) == ("ok", 0, model, model)
        assert not row.is_estimated
        assert not row.is_implausible
        assert row.account_id == (tenant.account and tenant.account.pk)
        assert row.credits == price(row, rates) > 0
        assert row.from_quota == row.credits


@pytest.fixture(params=["openai", "chatgpt"])
def client_tenant(request: pytest.FixtureRequest, stack: Stack, upstream: Any, transactional_db: None) -> Tenant:
    """Once with an API-key account, once with a sign-in account."""
    return tenants.make(account=request.param, upstream=upstream)


async def test_codex_plain_and_tool_turn(stack: Stack, client_tenant: Tenant, tmp_path: Path, eventually: Any) -> None:
    url = f"{stack.url}/backend-api/codex"
    key = client_tenant.key.secret
    plain = await tenants.in_thread(codex.run, "Say hello to the weir", base_url=url, key=key, folder=tmp_path / "plain")
    assert plain.exit_code == 0, plain.stderr[-500:]
    assert "Say hello to the weir" in plain.text
    tool = await tenants.in_thread(codex.run, "RUN_TOOL now", base_url=url, key=key, folder=tmp_path / "tool")
    assert tool.exit_code == 0, tool.stderr[-500:]
    [command] = tool.items("command_execution")
    assert (command["exit_code"], command["aggregated_output"]) == (0, "hi\n")
    assert tool.text.startswith("Tool finished")

    rows = await eventually(lambda: found if len(found := client_tenant.log()) >= 3 else None)
    assert len(rows) == 3
    check_log(rows, client_tenant, "gpt-5.4", GPT_5_4)
    first, *turn = rows
    assert usage_of([first]) == spent(plain)
    assert usage_of(turn) == spent(tool)
    received = stack.upstream.received(account=(client_tenant.account and client_tenant.account.chatgpt_account_id) or None)
    inference = [one for one in received if one.path.endswith("/responses") and one.token == client_tenant.upstream_token]
    assert len(inference) == 3
    for one in inference:
        # Honest: the client's own names pass, its key does not.
        assert one.headers["originator"] == "codex_exec"
        assert one.headers["user-agent"].startswith("codex_exec/0.171.0")
        assert client_tenant.key.secret not in str(one.headers)


def usage_of(rows: list[UsageRecord]) -> tuple[int, int, int, int]:
    """(input with cached, cached, output, reasoning), as clients count."""
    cached = sum(row.cached_input_tokens for row in rows)
    fresh = sum(row.input_tokens + row.cache_write_tokens for row in rows)
    return fresh + cached, cached, sum(row.output_tokens for row in rows), sum(row.reasoning_tokens for row in rows)


def spent(run: codex.CodexRun) -> tuple[int, int, int, int]:
    usage = run.usage
    return usage["input_tokens"], usage["cached_input_tokens"], usage["output_tokens"], usage["reasoning_output_tokens"]


async def test_the_python_sdk_streamed_folded_and_with_a_tool(stack: Stack, client_tenant: Tenant, eventually: Any) -> None:
    await tenants.in_thread(drive_sdk, stack.url, client_tenant.key.secret)
    rows = await eventually(lambda: found if len(found := client_tenant.log()) >= 4 else None)
    assert len(rows) == 4
    check_log(rows, client_tenant, "gpt-5.5", GPT_5_5)
    sent = [one for one in stack.upstream.received(token=client_tenant.upstream_token) if one.path.endswith("/responses")]
    assert len(sent) == 4


def drive_sdk(url: str, key: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        folded = client.responses.create(model="gpt-5.5", input="Hello weir")
        assert "Hello weir" in folded.output_text
        assert folded.status == "completed"
        assert folded.usage is not None
        with client.responses.create(model="gpt-5.5", input="Hello stream", stream=True) as stream:
            kinds = [event.type for event in stream]
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        tool: Any = {"type": "function", "name": "look", "strict": False, "parameters": {"type": "object", "properties": {}}}
        asked: Any = [{"role": "user", "content": "RUN_TOOL look"}]
        first = client.responses.create(model="gpt-5.5", input=asked, tools=[tool])
        [call] = first.output
        assert call.type == "function_call"
        assert call.name == "look"
        asked += [call.model_dump(), {"type": "function_call_output", "call_id": call.call_id, "output": "seen"}]
        second = client.responses.create(model="gpt-5.5", input=asked, tools=[tool])
        assert second.output_text.startswith("Tool finished")


async def test_the_python_sdk_raises_its_own_errors(stack: Stack, client_tenant: Tenant) -> None:
    await tenants.in_thread(client_tenant.set_limit, scope="key", metric="credits", window="day", amount="0")

    def drive() -> None:
        with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=client_tenant.key.secret, max_retries=2) as client:
            with pytest.raises(openai.RateLimitError) as limited:
                client.responses.create(model="gpt-5.5", input="x")
            assert limited.value.code == "limit_reached"
            assert limited.value.type == "usage_limit_reached"
            with pytest.raises(openai.BadRequestError) as unknown:
                client.responses.create(model="gpt-9-new", input="x")
            assert unknown.value.code == "model_not_found"
            models = {model.id for model in client.models.list()}
            assert {"gpt-5.5", "gpt-5.4"} <= models
        with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="wr_0123456789_" + "x" * 43, max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError) as wrong:
                stranger.responses.create(model="gpt-5.5", input="x")
            assert wrong.value.code == "invalid_api_key"

    await tenants.in_thread(drive)
    assert [one for one in stack.upstream.received(token=client_tenant.upstream_token) if one.path.endswith("/responses")] == []
