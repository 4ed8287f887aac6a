"""POST /v1/chat/completions: the answers of `upstream_events`, said in chunks."""

import json
import time
from collections.abc import Iterator
from typing import Any

from demo.upstream_call import Call, framed
from demo.upstream_events import Response
from demo.upstream_responses import PLAIN, TIERS, before_head, changed, parsed, problem, refuse, send, whole
from demo.upstream_script import Answer, Failure, Match
from demo.upstream_state import State

FINISHED = {"response.completed": "stop", "response.incomplete": "length", "none": "stop"}
FAILED = Failure(code="server_error", message="scripted")


async def openai_chat(call: Call, state: State) -> None:
    if not call.token.startswith("sk-") or call.token in state.refused_keys:
        await refuse(call, "401")
        return
    body = parsed(call.body)
    if body is None or "content-encoding" in call.headers:
        await call.json(400, problem("We could not parse the JSON body of your request.", "invalid_json"))
        return
    for name, kind in (("model", str), ("messages", list)):
        if not isinstance(body.get(name), kind):
            await call.json(400, problem(f"Missing required parameter: '{name}'.", "missing_required_parameter", param=name))
            return
    if body.get("stream_options") is not None and body.get("stream") is not True:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        await call.json(400, problem(message, "invalid_parameter", param="stream_options"))
        return
    await _respond(call, state, body)


async def _respond(call: Call, state: State, body: dict[str, Any]) -> None:
    """The scripted answer, or the computed one."""
    seen = Match(path=call.path, model=body["model"], token=call.token, transport="http")
    scripted = state.scripts.take(seen, is_response=True)
    answer = scripted or PLAIN
    call.record.scripted = scripted is not None
    await before_head(call, state, answer)
    headers = [("x-request-id", f"up_{state.requests:08d}")]
    if await whole(call, state, answer, headers):
        return
    state.count += 1
    completion = Completion(body, answer, state, number=state.count, owner=call.token, size=len(call.body))
    call.record.response_id = completion.id
    if body.get("stream") is True or answer.events is not None or answer.raw is not None:
        kind = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")]
        await send(call, state, answer, changed([*kind, *headers], answer), pieces(answer, completion))
    else:
        data = json.dumps(completion.whole()).encode()
        await send(call, state, answer, framed(data, is_text=False, headers=changed(headers, answer)), [data])


def pieces(answer: Answer, completion: "Completion") -> list[bytes]:
    """The stream, an event a piece."""
    if answer.raw is not None:
        return [answer.raw.encode()]
    if answer.events is not None:
        return [sse(event) for event in answer.events]
    return [*map(sse, completion.chunks()), *([] if completion.is_unfinished else [b"data: [DONE]\n\n"])]


def sse(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n".encode()


class Completion:
    """The answer to one request: what `Response` says to the same conversation, `n` times over."""

    def __init__(self, body: dict[str, Any], answer: Answer, state: State, *, number: int, owner: str, size: int) -> None:
        self.response = Response(
            as_response(body),
            number=number,
            created_at=int(time.time()),
            tier=TIERS.get(str(body.get("service_tier")), "default"),
            answer=answer,
            size=size,
            cached=state.cached_tokens(owner, body.get("prompt_cache_key"), size),
        )
        self.id = f"chatcmpl-{number:032x}"
        self.is_legacy = "functions" in body and "tools" not in body
        self.choices = body.get("n") or 1
        self.has_usage = (body.get("stream_options") or {}).get("include_usage") is True
        self.fail = self.response.fail or (FAILED if self.response.terminal == "response.failed" else None)
        # Scripted usage goes out as it is, in whichever words.
        self.usage = answer.usage if answer.usage is not None else usage_of(self.response.usage, self.choices)

    @property
    def is_unfinished(self) -> bool:
        """Nothing says that the stream is at its end."""
        return self.fail is not None or self.response.terminal == "none"

    def _head(self, kind: str, **fields: Any) -> dict[str, Any]:
        response = self.response
        about = {"id": self.id, "object": kind, "created": response.created_at, "model": response.model}
        return {**about, "service_tier": response.tier, "system_fingerprint": "fp_scripted", **fields}

    def _finish_reason(self) -> str:
        if self.response.tool is not None:
            return "function_call" if self.is_legacy else "tool_calls"
        return FINISHED.get(self.response.terminal, "stop")

    def chunks(self) -> Iterator[dict[str, Any]]:
        null_usage = {"usage": None} if self.has_usage else {}
        for index in range(self.choices):
            for delta, reason in self._deltas():
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
                yield self._head("chat.completion.chunk", choices=[choice], **null_usage, obfuscation="x")
        if self.fail is not None:
            yield {"error": {"message": self.fail.message, "type": "server_error", "param": None, "code": self.fail.code}}
        elif self.has_usage and self.usage is not None and self.response.terminal != "none":
            yield self._head("chat.completion.chunk", choices=[], usage=self.usage, obfuscation="")

    def _deltas(self) -> Iterator[tuple[dict[str, Any], str | None]]:
        response = self.response
        yield {"role": "assistant", "content": None if response.tool else "", "refusal": None}, None
        if response.tool is not None:
            call = self._call()
            if self.is_legacy:
                yield {"function_call": {**call["function"], "arguments": ""}}, None
                yield {"function_call": {"arguments": call["function"]["arguments"]}}, None
            else:
                yield {"tool_calls": [{"index": 0, **call, "function": {**call["function"], "arguments": ""}}]}, None
                yield {"tool_calls": [{"index": 0, "function": {"arguments": call["function"]["arguments"]}}]}, None
        else:
            for word in [*response.words[:-1], *(word.rstrip() for word in response.words[-1:])]:
                yield {"content": word}, None
        if not self.is_unfinished:
            yield {}, self._finish_reason()

    def _call(self) -> dict[str, Any]:
        assert self.response.tool is not None
        name, arguments = self.response.tool
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {"id": f"call_{self.response.number:024x}", "type": "function", "function": function}

    def whole(self) -> dict[str, Any]:
        """The answer to a request without streaming."""
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
        if self.response.tool is None:
            message["content"] = "".join(self.response.words).rstrip()
        elif self.is_legacy:
            message["function_call"] = self._call()["function"]
        else:
            message["tool_calls"] = [self._call()]
        reason = self._finish_reason()
        choices = [{"index": index, "message": message, "logprobs": None, "finish_reason": reason} for index in range(self.choices)]
        return self._head("chat.completion", choices=choices, **({} if self.usage is None else {"usage": self.usage}))


def as_response(body: dict[str, Any]) -> dict[str, Any]:
    """The request in the words of Responses, as far as the answer is computed from it."""
    items: list[dict[str, Any]] = []
    for message in body["messages"]:
        if not isinstance(message, dict):
            continue
        if message.get("role") in ("tool", "function"):
            items.append({"type": "function_call_output", "output": message.get("content") or ""})
        else:
            items.append({"role": message.get("role"), "content": message.get("content") or ""})
    tools = [tool["function"] for tool in body.get("tools") or [] if isinstance(tool, dict) and "function" in tool]
    return {
        "model": body["model"],
        "input": items,
        "tools": [{"type": "function", **function} for function in tools or body.get("functions") or []],
        "max_output_tokens": body.get("max_completion_tokens", body.get("max_tokens")),
    }


def usage_of(usage: dict[str, Any] | None, choices: int) -> dict[str, Any] | None:
    """The usage that `Response` counts, in the words of Chat Completions."""
    if usage is None:
        return None
    written = usage["output_tokens"] * choices
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": written,
        "total_tokens": usage["input_tokens"] + written,
        "prompt_tokens_details": {**usage["input_tokens_details"], "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage["output_tokens_details"]["reasoning_tokens"] * choices,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
