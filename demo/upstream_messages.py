"""POST /v1/messages and the models of its keys: the answers of `upstream_events`, as Anthropic's API says them."""

import json
import time
from collections.abc import Iterator
from typing import Any

from demo.upstream_call import Call, framed
from demo.upstream_events import Response, sse
from demo.upstream_responses import PLAIN, before_head, changed, parsed, send, whole
from demo.upstream_script import Answer, Match
from demo.upstream_state import State

MODELS = ("claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5")
STOPPED = {"response.completed": "end_turn", "response.incomplete": "max_tokens", "none": "end_turn"}
UNCACHED_TOKENS = 4
"""What is behind the last mark for the cache."""


def wrong(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}


async def keyed(call: Call, state: State) -> bool:
    """Whether the request shows a key as Anthropic's API wants it; refuses it if not."""
    if "authorization" in call.headers or not call.token.startswith("sk-ant-") or call.token in state.refused_keys:
        await call.json(401, wrong("authentication_error", "invalid x-api-key"))
    elif "anthropic-version" not in call.headers:
        await call.json(400, wrong("invalid_request_error", "anthropic-version: header is required"))
    else:
        return True
    return False


async def anthropic_models(call: Call, state: State) -> None:
    if await keyed(call, state):
        data = [{"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"} for name in MODELS]
        await call.json(200, {"data": data, "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]})


async def anthropic_messages(call: Call, state: State) -> None:
    if not await keyed(call, state):
        return
    body = parsed(call.body)
    if body is None or "content-encoding" in call.headers:
        await call.json(400, wrong("invalid_request_error", "The request body is not valid JSON"))
        return
    for name, kind in (("model", str), ("max_tokens", int), ("messages", list)):
        if not isinstance(body.get(name), kind):
            await call.json(400, wrong("invalid_request_error", f"{name}: Field required"))
            return
    scripted = state.scripts.take(Match(path=call.path, model=body["model"], token=call.token, transport="http"), is_response=True)
    answer = scripted or PLAIN
    call.record.scripted = scripted is not None
    await before_head(call, state, answer)
    headers = [
        ("request-id", f"req_up_{state.requests:08d}"),
        ("anthropic-organization-id", "org-of-the-account"),
        ("anthropic-ratelimit-requests-remaining", "49"),
    ]
    if await whole(call, state, answer, headers):
        return
    state.count += 1
    message = Message(body, answer, state, number=state.count, owner=call.token, raw=call.body)
    call.record.response_id = message.id
    if body.get("stream") is True or answer.events is not None or answer.raw is not None:
        head = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"), *headers]
        await send(call, state, answer, changed(head, answer), pieces(answer, message))
    elif message.response.fail is not None:
        fail = message.response.fail
        await call.json(500, wrong(fail.code, fail.message), headers)
    else:
        data = json.dumps(message.whole()).encode()
        await send(call, state, answer, framed(data, is_text=False, headers=changed(headers, answer)), [data])


def pieces(answer: Answer, message: "Message") -> list[bytes]:
    """The stream, an event a piece."""
    if answer.raw is not None:
        return [answer.raw.encode()]
    return [sse(event) for event in (message.events() if answer.events is None else answer.events)]


class Message:
    """The answer to one request: what `Response` says to the same conversation."""

    def __init__(self, body: dict[str, Any], answer: Answer, state: State, *, number: int, owner: str, raw: bytes) -> None:
        self.response = Response(
            as_response(body),
            number=number,
            created_at=int(time.time()),
            tier="default",
            answer=answer,
            size=len(raw),
            cached=0,
        )
        self.id = f"msg_{number:024x}"
        self.fail = self.response.fail
        if answer.no_usage:
            self.usage = None
        elif answer.usage is not None:
            self.usage = answer.usage
        else:
            self.usage = self._count(body, state, owner, raw)

    def _count(self, body: dict[str, Any], state: State, owner: str, raw: bytes) -> dict[str, Any]:
        """A quarter of the bytes is read: from the cache and into it, where the request marks anything for that."""
        counted = self.response.usage or {"input_tokens": len(raw) // 4, "output_tokens": 0}
        tokens = counted["input_tokens"]
        read = written = 0
        if b'"cache_control"' in raw:
            read = min(state.cached_tokens(owner, (body.get("metadata") or {}).get("user_id"), len(raw)), tokens - UNCACHED_TOKENS)
            written = tokens - read - UNCACHED_TOKENS
        return {
            "input_tokens": tokens - read - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
            "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
            "output_tokens": counted["output_tokens"],
            "service_tier": "standard",
        }

    def _stop_reason(self) -> str:
        return "tool_use" if self.response.tool is not None else STOPPED.get(self.response.terminal, "end_turn")

    def _block(self, text: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self.response.tool is None:
            return {"type": "text", "text": text}
        return {"type": "tool_use", "id": f"toolu_{self.response.number:024x}", "name": self.response.tool[0], "input": arguments}

    def _head(self, **fields: Any) -> dict[str, Any]:
        about: dict[str, Any] = {"id": self.id, "type": "message", "role": "assistant", "model": self.response.model, "content": []}
        return {**about, "stop_reason": None, "stop_sequence": None, **fields}

    def whole(self) -> dict[str, Any]:
        """The answer to a request without streaming."""
        arguments = self.response.tool[1] if self.response.tool is not None else {}
        content = [self._block("".join(self.response.words).rstrip(), arguments)]
        usage = {} if self.usage is None else {"usage": self.usage}
        return self._head(content=content, stop_reason=self._stop_reason(), **usage)

    def events(self) -> Iterator[dict[str, Any]]:
        """All events in order. What was read is counted at the beginning, what was written at the end."""
        began = {} if self.usage is None else {"usage": {**self.usage, "output_tokens": 1}}
        yield {"type": "message_start", "message": self._head(**began)}
        yield {"type": "ping"}
        if self.response.words:
            yield {"type": "content_block_start", "index": 0, "content_block": self._block("", {})}
            for delta in self._deltas():
                yield {"type": "content_block_delta", "index": 0, "delta": delta}
            yield {"type": "content_block_stop", "index": 0}
        if self.fail is not None:
            yield {"type": "error", "error": {"type": self.fail.code, "message": self.fail.message}}
        elif self.response.terminal != "none":
            ended = {} if self.usage is None else {"usage": {"output_tokens": self.usage["output_tokens"]}}
            yield {"type": "message_delta", "delta": {"stop_reason": self._stop_reason(), "stop_sequence": None}, **ended}
            yield {"type": "message_stop"}

    def _deltas(self) -> Iterator[dict[str, Any]]:
        if self.response.tool is not None:
            text = json.dumps(self.response.tool[1])
            for part in (text[: len(text) // 2], text[len(text) // 2 :]):
                yield {"type": "input_json_delta", "partial_json": part}
            return
        for word in [*self.response.words[:-1], self.response.words[-1].rstrip()]:
            yield {"type": "text_delta", "text": word}


def as_response(body: dict[str, Any]) -> dict[str, Any]:
    """The request in the words of Responses, as far as the answer is computed from it."""
    items: list[dict[str, Any]] = []
    for message in body["messages"]:
        if not isinstance(message, dict):
            continue
        content = message.get("content") or ""
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        results = [part for part in parts if part.get("type") == "tool_result"]
        items += [{"type": "function_call_output", "output": result.get("content") or ""} for result in results]
        if not results:
            items.append({"role": message.get("role"), "content": content})
    tools = [tool for tool in body.get("tools") or [] if isinstance(tool, dict) and "input_schema" in tool]
    return {
        "model": body["model"],
        "input": items,
        "tools": [{"type": "function", "name": tool.get("name"), "parameters": tool["input_schema"]} for tool in tools],
        "max_output_tokens": body["max_tokens"],
    }
