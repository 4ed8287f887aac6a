"""The OpenAI Python SDK's chat completions, unmodified, through the gateway: on an API-key account and on a sign-in account."""

from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from billing.models import UsageRecord
from tests.flows import tenants
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, cost

pytestmark = [pytest.mark.clients, pytest.mark.stack]

MODEL = tenants.MODEL
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def hello(text: str = "Hello weir") -> Any:
    return [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": text}]


def collect(stream: Any, texts: list[str]) -> None:
    """Adds the texts of the stream's chunks as they come, so that those before an error are kept."""
    for chunk in stream:
        texts.append(chunk.choices[0].delta.content or "")  # noqa: PERF401


@pytest.fixture(params=["openai", "chatgpt"])
def client_tenant(request: pytest.FixtureRequest, stack: Stack, upstream: Any, transactional_db: None) -> Tenant:
    return tenants.make(account=request.param, upstream=upstream)


@pytest.fixture
def drive(stack: Stack, client_tenant: Tenant) -> Callable[..., Any]:
    """`await drive(steps)`: runs `steps(client)` in a thread, with an SDK that does not try again by itself."""

    async def run(steps: Callable[[openai.OpenAI], Any], **options: Any) -> Any:
        def with_client() -> Any:
            given = {"base_url": f"{stack.url}/v1", "api_key": client_tenant.key.secret, "max_retries": 0, **options}
            with openai.OpenAI(**given) as client:
                return steps(client)

        return await tenants.in_thread(with_client)

    return run


async def check_log(tenant: Tenant, eventually: Any, count: int, counted: list[Any]) -> None:
    """One row for each call, priced exactly, and what clients were told is what is booked."""
    rows: list[UsageRecord] = await eventually(lambda: found if len(found := tenant.log()) >= count else None)
    assert len(rows) == count
    for row in rows:
        assert (row.status, row.part, row.is_estimated, row.is_implausible) == ("ok", 0, False, False)
        assert (row.model_asked, row.model_served) == (MODEL, MODEL)
        assert row.credits == cost(input=row.input_tokens, cached=row.cached_input_tokens, output=row.output_tokens) > 0
    booked = {(row.input_tokens + row.cached_input_tokens, row.output_tokens) for row in rows}
    assert {(usage.prompt_tokens, usage.completion_tokens) for usage in counted} <= booked


async def test_streamed_and_whole(client_tenant: Tenant, drive: Any, eventually: Any) -> None:
    def steps(client: openai.OpenAI) -> list[Any]:
        whole = client.chat.completions.create(model=MODEL, messages=hello())
        assert whole.choices[0].message.content == "You said: Hello weir"
        assert (whole.choices[0].finish_reason, whole.object, whole.id[:9]) == ("stop", "chat.completion", "chatcmpl-")
        with client.chat.completions.create(model=MODEL, messages=hello(), stream=True) as plain:
            chunks = list(plain)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: Hello weir"
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
        assert all(chunk.usage is None for chunk in chunks)
        assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
        asked = client.chat.completions.create(
            model=MODEL, messages=hello(), stream=True, stream_options={"include_usage": True}, temperature=0.2, max_tokens=900
        )
        *others, last = list(asked)
        assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in others)
        assert last.choices == []
        return [whole.usage, last.usage]

    counted = await drive(steps)
    assert all(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0 for usage in counted)
    await check_log(client_tenant, eventually, 3, counted)


async def test_the_sdks_own_stream_reader_and_a_structured_answer(
    client_tenant: Tenant, drive: Any, eventually: Any, stack: Stack
) -> None:
    class Weir(pydantic.BaseModel):
        name: str

    stack.upstream.script({"text": '{"name": "low wall"}'}, token=client_tenant.upstream_token)

    def steps(client: openai.OpenAI) -> list[Any]:
        parsed = client.chat.completions.parse(model=MODEL, messages=hello(), response_format=Weir)
        assert parsed.choices[0].message.parsed == Weir(name="low wall")
        with client.chat.completions.stream(model=MODEL, messages=hello(), stream_options={"include_usage": True}) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done"} <= kinds
        assert final.choices[0].message.content == "You said: Hello weir"
        return [parsed.usage, final.usage]

    await check_log(client_tenant, eventually, 2, await drive(steps))


async def test_a_turn_with_a_tool(client_tenant: Tenant, drive: Any, eventually: Any) -> None:
    def steps(client: openai.OpenAI) -> list[Any]:
        asked = hello("RUN_TOOL look")
        first = client.chat.completions.create(model=MODEL, messages=asked, tools=[TOOL], tool_choice="auto")
        [call] = first.choices[0].message.tool_calls or []
        assert isinstance(call, ChatCompletionMessageFunctionToolCall)
        assert (first.choices[0].finish_reason, call.function.name, call.function.arguments) == ("tool_calls", "look", "{}")
        with client.chat.completions.stream(model=MODEL, messages=asked, tools=[TOOL]) as stream:
            [streamed] = stream.get_final_completion().choices[0].message.tool_calls or []
        assert (streamed.function.name, streamed.function.arguments) == ("look", "{}")
        asked += [first.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "seen"}]
        second = client.chat.completions.create(model=MODEL, messages=asked, tools=[TOOL])
        assert (second.choices[0].message.content or "").startswith("Tool finished: seen")
        return [first.usage, second.usage]

    await check_log(client_tenant, eventually, 3, await drive(steps))


async def test_functions_of_old(client_tenant: Tenant, drive: Any, eventually: Any) -> None:
    def steps(client: openai.OpenAI) -> list[Any]:
        asked = hello("RUN_TOOL look")
        functions: Any = [{"name": "look", "parameters": {"type": "object", "properties": {}}}]
        first = client.chat.completions.create(model=MODEL, messages=asked, functions=functions)
        call = first.choices[0].message.function_call
        assert call is not None
        assert (first.choices[0].finish_reason, call.name, call.arguments) == ("function_call", "look", "{}")
        asked += [first.choices[0].message.to_dict(), {"role": "function", "name": "look", "content": "seen"}]
        second = client.chat.completions.create(model=MODEL, messages=asked, functions=functions)
        assert (second.choices[0].message.content or "").startswith("Tool finished: seen")
        return [first.usage, second.usage]

    await check_log(client_tenant, eventually, 2, await drive(steps))


async def test_the_sdk_raises_its_own_errors(client_tenant: Tenant, drive: Any, stack: Stack) -> None:
    await tenants.in_thread(client_tenant.set_limit, scope="key", metric="credits", window="day", amount="0")

    def steps(client: openai.OpenAI) -> None:
        with pytest.raises(openai.RateLimitError) as limited:
            client.chat.completions.create(model=MODEL, messages=hello(), stream=True)
        assert (limited.value.code, limited.value.type) == ("limit_reached", "usage_limit_reached")
        with pytest.raises(openai.BadRequestError) as unknown:
            client.chat.completions.create(model="gpt-9-new", messages=hello())
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")

    def wrong_key(client: openai.OpenAI) -> None:
        with pytest.raises(openai.AuthenticationError) as wrong:
            client.chat.completions.create(model=MODEL, messages=hello())
        assert wrong.value.code == "invalid_api_key"

    # A refusal that waiting does not lift is not tried again.
    await drive(steps, max_retries=2)
    await drive(wrong_key, api_key="wr_0123456789_" + "x" * 43)
    assert [one for one in stack.upstream.received(token=client_tenant.upstream_token) if one.method == "POST"] == []


async def test_the_sdk_hears_of_a_stream_that_fails_or_breaks_off(client_tenant: Tenant, drive: Any, stack: Stack) -> None:
    stack.upstream.script(
        {"deltas": 50, "cut_after_events": 24},
        {"fail": {"code": "context_length_exceeded", "message": "too long"}},
        {"deltas": 5, "fail": {"code": "server_error", "message": "boom"}},
        token=client_tenant.upstream_token,
    )

    def steps(client: openai.OpenAI) -> None:
        def breaks_off(code: str, message: str) -> None:
            texts: list[str] = []
            with pytest.raises(openai.APIError) as failed:
                collect(client.chat.completions.create(model=MODEL, messages=hello(), stream=True), texts)
            assert "".join(texts).startswith("w0 w1 ")
            assert (failed.value.code, failed.value.message[: len(message)]) == (code, message)

        breaks_off("stream_incomplete", "The upstream ended the stream")
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=MODEL, messages=hello(), stream=True)
        assert refused.value.code == "context_length_exceeded"
        # Last, for its account rests for a moment after it.
        breaks_off("server_error", "boom")

    await drive(steps)


async def test_what_a_sign_in_account_cannot_do_is_refused_by_name(client_tenant: Tenant, drive: Any) -> None:
    assert client_tenant.account is not None
    is_native = client_tenant.account.kind == "openai"

    def steps(client: openai.OpenAI) -> None:
        if is_native:
            assert len(client.chat.completions.create(model=MODEL, messages=hello(), n=2).choices) == 2
            return
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=MODEL, messages=hello(), n=2)
        assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "n")

    await drive(steps)
