"""The scripted upstream against the real clients, with no gateway between: what it says is what they take."""

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.clients import codex
from tests.upstream import Received, ScriptedUpstream

KEY = "sk-acceptable"
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def counted(received: list[Received]) -> int:
    """Input tokens as the upstream counts them."""
    return sum(len(one.body) // 4 for one in received)


def test_codex_completes_a_plain_turn(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    run = codex.run("Say hello to the weir", base_url=f"{upstream.url}/v1", key=KEY, folder=tmp_path)
    assert (run.exit_code, run.text, run.failure) == (0, "You said: Say hello to the weir", ""), run.stderr[-500:]
    [received] = upstream.received()
    assert (received.method, received.path, received.token, received.state) == ("POST", "/v1/responses", KEY, "done")
    assert received.json["store"] is False
    assert run.usage["input_tokens"] == counted([received])
    assert run.usage["output_tokens"] == 3 * 7
    assert not [item for item in run.items("error") if "not found" not in item["message"]]


def test_codex_runs_the_tool_it_is_asked_to_run(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    run = codex.run("RUN_TOOL say hi", base_url=f"{upstream.url}/v1", key=KEY, folder=tmp_path)
    assert run.exit_code == 0, run.stderr[-500:]
    [command] = run.items("command_execution")
    assert (command["aggregated_output"], command["exit_code"]) == ("hi\n", 0)
    assert "echo hi" in command["command"]
    assert run.text == "Tool finished: 1 Output: hi"
    first, second = upstream.received()
    assert [item["type"] for item in second.json["input"]][-2:] == ["function_call", "function_call_output"]
    assert second.json["prompt_cache_key"] == first.json["prompt_cache_key"]
    assert run.usage["input_tokens"] == counted([first, second])
    assert run.usage["cached_input_tokens"] == len(first.body) // 4 // 128 * 128 > 0


def test_codex_repeats_a_turn_whose_stream_was_reset(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.script({"cut_after_events": 5})
    run = codex.run("Say it again", base_url=f"{upstream.url}/v1", key=KEY, folder=tmp_path)
    assert (run.exit_code, run.text) == (0, "You said: Say it again"), run.stderr[-500:]
    assert [one.state for one in upstream.received()] == ["cut", "done"]


def test_codex_gives_up_at_once_on_a_usage_limit(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.script({"error": "429_usage"}, repeat=0)
    run = codex.run("Say hello", base_url=f"{upstream.url}/v1", key=KEY, folder=tmp_path)
    assert run.exit_code != 0
    assert "hit your usage limit" in run.failure
    assert len(upstream.received()) == 1


@pytest.fixture
def sdk(upstream: ScriptedUpstream) -> Any:
    with openai.OpenAI(base_url=f"{upstream.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_the_sdk_folds_streams_and_lists(upstream: ScriptedUpstream, sdk: openai.OpenAI) -> None:
    folded = sdk.responses.create(model="gpt-5.4", input="Hello weir")
    assert (folded.output_text, folded.status, folded.model) == ("You said: Hello weir", "completed", "gpt-5.4")
    with sdk.responses.stream(model="gpt-5.4", input="Hello stream") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert final.output_text == "You said: Hello stream"
    assert final.usage is not None
    assert final.usage.input_tokens == counted(upstream.received()[1:])
    assert "gpt-5.4" in {model.id for model in sdk.models.list()}


def test_the_sdk_takes_a_tool_turn_by_continuation(upstream: ScriptedUpstream, sdk: openai.OpenAI) -> None:
    parameters = {"type": "object", "required": ["place"], "properties": {"place": {"type": "string"}}}
    tool: Any = {"type": "function", "name": "look", "strict": False, "parameters": parameters}
    first = sdk.responses.create(model="gpt-5.4", input="RUN_TOOL look", tools=[tool])
    [call] = first.output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("look", '{"place": "hi"}')
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "water"}]
    second = sdk.responses.create(model="gpt-5.4", input=output, tools=[tool], previous_response_id=first.id)
    assert second.output_text == "Tool finished: water"


def test_the_sdk_reads_codes_and_deaths(upstream: ScriptedUpstream, sdk: openai.OpenAI) -> None:
    upstream.script({"error": "429_rate"}, {"error": "400_context"}, {"cut_before_head": True}, {"cut_after_events": 5})
    with pytest.raises(openai.RateLimitError) as limited:
        sdk.responses.create(model="m", input="x")
    assert limited.value.code == "rate_limit_exceeded"
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.responses.create(model="m", input="x")
    assert bad.value.code == "context_length_exceeded"
    with pytest.raises(openai.APIConnectionError):
        sdk.responses.create(model="m", input="x")
    seen: list[str] = []
    with sdk.responses.create(model="m", input="x", stream=True) as stream, pytest.raises(openai.APIConnectionError):
        seen.extend(event.type for event in stream)
    assert len(seen) == 5
    assert [one.state for one in upstream.received()] == ["done", "done", "cut", "cut"]
