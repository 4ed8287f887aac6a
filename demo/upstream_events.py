"""What the scripted upstream says: the events of a response in the grammar of the Responses API, computed from the request."""

import json
from collections.abc import Iterator
from typing import Any

BYTES_PER_TOKEN = 4


def sse(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def text_of(item: Any) -> str:
    """The text of one input item: a string, a message, anything else counts as none."""
    if isinstance(item, str):
        return item
    if not isinstance(item, dict):
        return ""
    content = item.get("content", "")
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content if isinstance(part, dict))


def last_user_text(body: dict[str, Any]) -> str:
    given = body.get("input", "")
    if isinstance(given, str):
        return given
    users = [item for item in given if isinstance(item, dict) and item.get("role") == "user"]
    return text_of(users[-1]) if users else ""


def has_tool_output(body: dict[str, Any]) -> bool:
    """Whether a tool's output follows the last thing that the user said."""
    given = body.get("input", [])
    if not isinstance(given, list):
        return False
    for item in reversed(given):
        if isinstance(item, dict) and item.get("type") in ("function_call_output", "custom_tool_call_output"):
            return True
        if isinstance(item, dict) and item.get("role") == "user":
            return False
    return False


def tool_of(body: dict[str, Any]) -> str | None:
    """The function that RUN_TOOL calls: Codex' exec_command, else the first function."""
    names = [tool.get("name") for tool in body.get("tools") or [] if isinstance(tool, dict) and tool.get("type") == "function"]
    return "exec_command" if "exec_command" in names else next(iter(names), None)


class Response:
    """One response: ids from the request's number, so that runs are repeatable."""

    def __init__(
        self, body: dict[str, Any], *, number: int, created_at: int, tier: str, usage: dict[str, Any] | None = None
    ) -> None:
        self.body = body
        self.id = f"resp_{number:032x}"
        self.created_at = created_at
        self.tier = tier
        self.number = number
        self.tool = tool_of(body) if "RUN_TOOL" in last_user_text(body) and not has_tool_output(body) else None
        if self.tool:
            self.words = ["call"]
        elif has_tool_output(body):
            self.words = ["Tool ", "finished ", "fine."]
        else:
            said = last_user_text(body).split()
            self.words = ["You ", "said: "] + [f"{word} " for word in said[:40]]
        self.usage = usage

    def counted(self, *, size: int, cached: int) -> dict[str, Any]:
        """Usage from the request's size: a quarter of its bytes in, `cached` of them cached, the words out."""
        if self.usage is not None:
            return self.usage
        tokens = max(1, size // BYTES_PER_TOKEN)
        output = 3 * len(self.words)
        cached = min(cached, tokens)
        return {
            "input_tokens": tokens,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": output // 3},
            "total_tokens": tokens + output,
        }

    def head(self, status: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": self.body.get("max_output_tokens"),
            "metadata": {},
            "model": self.body.get("model"),
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": self.body.get("previous_response_id"),
            "prompt_cache_key": self.body.get("prompt_cache_key"),
            "reasoning": {"effort": "medium", "summary": None},
            "service_tier": self.tier,
            "store": bool(self.body.get("store")),
            "temperature": 1.0,
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": None,
            "user": None,
            **fields,
        }

    def items(self) -> list[dict[str, Any]]:
        if self.tool:
            arguments = {"cmd": "echo hi"} if self.tool == "exec_command" else {}
            return [
                {
                    "id": f"fc_{self.number:032x}",
                    "type": "function_call",
                    "status": "completed",
                    "name": self.tool,
                    "arguments": json.dumps(arguments),
                    "call_id": f"call_{self.number:024x}",
                }
            ]
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": "".join(self.words).rstrip()}
        message = {
            "id": f"msg_{self.number:032x}",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [part],
        }
        return [message]

    def final(self, usage: dict[str, Any], status: str = "completed") -> dict[str, Any]:
        return self.head(status, output=self.items(), usage=usage)

    def events(self, usage: dict[str, Any], *, deltas: int | None = None) -> Iterator[dict[str, Any]]:
        """All events in order; `deltas` pads the text to that many."""
        yield {"type": "response.created", "response": self.head("in_progress")}
        yield {"type": "response.in_progress", "response": self.head("in_progress")}
        [item] = self.items()
        if self.tool:
            opened = {**item, "status": "in_progress", "arguments": ""}
            yield {"type": "response.output_item.added", "output_index": 0, "item": opened}
            ids = {"item_id": item["id"], "output_index": 0}
            yield {"type": "response.function_call_arguments.delta", **ids, "delta": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **ids, "arguments": item["arguments"]}
        else:
            words = self.words if deltas is None else [f"w{number} " for number in range(deltas)]
            self.words = words
            [item] = self.items()
            yield {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {**item, "status": "in_progress", "content": []},
            }
            ids = {"item_id": item["id"], "output_index": 0, "content_index": 0}
            empty = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
            yield {"type": "response.content_part.added", **ids, "part": empty}
            for word in words:
                yield {"type": "response.output_text.delta", **ids, "delta": word, "logprobs": []}
            yield {"type": "response.output_text.done", **ids, "text": item["content"][0]["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **ids, "part": item["content"][0]}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        yield {"type": "response.completed", "response": self.final(usage)}
