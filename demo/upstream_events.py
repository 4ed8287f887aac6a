"""What the scripted upstream says: the events of a response in the grammar of the Responses API, computed from the request."""

import json
from collections.abc import Iterator
from typing import Any

from demo.upstream_script import Answer

BYTES_PER_TOKEN = 4
TOKENS_PER_WORD = 3
CODEX_TOOLS: dict[str, dict[str, Any]] = {
    "exec_command": {"cmd": "echo hi"},
    "shell_command": {"command": "echo hi"},
    "shell": {"command": ["echo", "hi"]},
}
MOST_WORDS = 40


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
    return " ".join(part.get("text", "") for part in content or [] if isinstance(part, dict))


def items_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    given = body.get("input")
    return [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []


def last_user_text(body: dict[str, Any]) -> str:
    given = body.get("input", "")
    if isinstance(given, str):
        return given
    return next((text_of(item) for item in reversed(items_of(body)) if item.get("role") == "user"), "")


def tool_output(body: dict[str, Any]) -> str | None:
    """The tool's output that follows the last thing that the user said; None if there is none."""
    for item in reversed(items_of(body)):
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output", "")
            return output if isinstance(output, str) else text_of({"content": output})
        if item.get("role") == "user":
            return None
    return None


def asks_to_compact(body: dict[str, Any]) -> bool:
    items = items_of(body)
    return bool(items) and items[-1].get("type") == "compaction_trigger"


def tool_of(body: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The function that RUN_TOOL calls, with its arguments: Codex' shell, else the first one, as its schema demands."""
    tools = {
        str(tool.get("name")): tool for tool in body.get("tools") or [] if isinstance(tool, dict) and tool.get("type") == "function"
    }
    for name, arguments in CODEX_TOOLS.items():
        if name in tools:
            return name, arguments
    for name, tool in tools.items():
        return name, example(tool.get("parameters") or {})
    return None


def example(schema: dict[str, Any]) -> Any:
    """A value that a JSON schema accepts, of those that function tools use."""
    if schema.get("enum"):
        return schema["enum"][0]
    properties = schema.get("properties", {})
    kind = schema.get("type", "object" if properties else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: example(properties[name]) for name in schema.get("required", []) if name in properties}
    return {"string": "hi", "integer": 1, "number": 1.5, "boolean": True, "array": []}.get(kind)


class Response:
    """The response to one request. Ids come from `number`, so that runs are repeatable.

    `tier` and `model` are what is echoed; `parent_tokens` what a continuation carries along.
    """

    def __init__(
        self,
        body: dict[str, Any],
        *,
        number: int,
        created_at: int,
        tier: str,
        answer: Answer,
        size: int,
        cached: int,
        parent_tokens: int = 0,
    ) -> None:
        self.body = body
        self.id = f"resp_{number:032x}"
        self.number = number
        self.created_at = created_at
        self.tier = answer.tier or tier
        self.model = answer.model or body.get("model")
        self.fail = answer.fail
        self.terminal = answer.terminal or ("response.failed" if answer.fail else "response.completed")
        self.is_compaction = asks_to_compact(body)
        self.tool = self._tool(answer)
        self.words = self._words(answer)
        if self.fail is not None and answer.deltas is None:
            # A refusal inside the stream comes before any output.
            self.words, self.tool = [], None
        self._shorten(body.get("max_output_tokens"))
        self.usage = self._usage(answer, size // BYTES_PER_TOKEN + parent_tokens, cached)

    def _tool(self, answer: Answer) -> tuple[str, dict[str, Any]] | None:
        if answer.tool is not None:
            return answer.tool, answer.arguments or {}
        if self.is_compaction or answer.text is not None or answer.deltas is not None:
            return None
        if "RUN_TOOL" not in last_user_text(self.body) or tool_output(self.body) is not None:
            return None
        found = tool_of(self.body)
        return (found[0], answer.arguments or found[1]) if found else None

    def _words(self, answer: Answer) -> list[str]:
        if self.tool is not None or self.is_compaction:
            return ["call"]
        if answer.text is not None:
            words = [f"{word} " for word in answer.text.split(" ")]
            words[-1] = words[-1][:-1]
            return words if answer.deltas is None else regrouped(answer.text, answer.deltas)
        if answer.deltas is not None:
            return [f"w{number} " for number in range(answer.deltas)]
        output = tool_output(self.body)
        if output is not None:
            return ["Tool ", "finished: ", *(f"{word} " for word in output.split()[-3:])]
        return ["You ", "said: ", *(f"{word} " for word in last_user_text(self.body).split()[:MOST_WORDS])]

    def _shorten(self, most: Any) -> None:
        if isinstance(most, int) and self.terminal == "response.completed" and TOKENS_PER_WORD * len(self.words) > most:
            self.words = self.words[: most // TOKENS_PER_WORD]
            self.tool = None
            self.terminal = "response.incomplete"

    def _usage(self, answer: Answer, tokens: int, cached: int) -> dict[str, Any] | None:
        if answer.no_usage:
            return None
        if answer.usage is not None:
            return answer.usage
        if self.terminal == "response.failed" and not self.words:
            return None
        tokens = max(1, tokens)
        output = TOKENS_PER_WORD * len(self.words)
        return {
            "input_tokens": tokens,
            "input_tokens_details": {"cached_tokens": min(cached, tokens)},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": output // 3},
            "total_tokens": tokens + output,
        }

    def head(self, status: str, **fields: Any) -> dict[str, Any]:
        body = self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "max_tool_calls": None,
            "metadata": {},
            "model": self.model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": body.get("previous_response_id"),
            "prompt_cache_key": body.get("prompt_cache_key"),
            "reasoning": {"effort": (body.get("reasoning") or {}).get("effort", "medium"), "summary": None},
            "service_tier": self.tier,
            "store": bool(body.get("store", True)),
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
        """The output: one item, or none when the response failed at once."""
        if self.is_compaction:
            return [{"id": f"cmp_{self.number:032x}", "type": "compaction", "encrypted_content": "c2NyaXB0ZWQtY29tcGFjdGlvbg=="}]
        if self.tool is not None:
            name, arguments = self.tool
            return [
                {
                    "id": f"fc_{self.number:032x}",
                    "type": "function_call",
                    "status": "completed",
                    "call_id": f"call_{self.number:024x}",
                    "name": name,
                    "arguments": json.dumps(arguments),
                }
            ]
        if not self.words:
            return []
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": "".join(self.words).rstrip()}
        return [
            {
                "id": f"msg_{self.number:032x}",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
        ]

    def final(self) -> dict[str, Any]:
        """The response object of the terminal event, which is also the answer to a request without streaming."""
        status = "completed" if self.terminal == "none" else self.terminal.removeprefix("response.")
        fields: dict[str, Any] = {"output": self.items(), "usage": self.usage}
        if status == "failed":
            error = self.fail
            fields["error"] = (
                {"code": error.code, "message": error.message} if error else {"code": "server_error", "message": "scripted"}
            )
        if status == "incomplete":
            fields["incomplete_details"] = {"reason": "max_output_tokens"}
        return self.head(status, **fields)

    def events(self) -> Iterator[dict[str, Any]]:
        """All events in order, numbered."""
        for number, event in enumerate(self._events()):
            yield {"type": event.pop("type"), "sequence_number": number, **event}

    def _events(self) -> Iterator[dict[str, Any]]:
        yield {"type": "response.created", "response": self.head("in_progress")}
        yield {"type": "response.in_progress", "response": self.head("in_progress")}
        for item in self.items():
            if item["type"] == "function_call":
                yield from self._call(item)
            elif item["type"] == "message":
                yield from self._message(item)
            yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        if self.terminal != "none":
            yield {"type": self.terminal, "response": self.final()}

    @staticmethod
    def _call(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        opened = {**item, "status": "in_progress", "arguments": ""}
        yield {"type": "response.output_item.added", "output_index": 0, "item": opened}
        ids = {"item_id": item["id"], "output_index": 0}
        yield {"type": "response.function_call_arguments.delta", **ids, "delta": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **ids, "arguments": item["arguments"]}

    def _message(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        opened = {**item, "status": "in_progress", "content": []}
        yield {"type": "response.output_item.added", "output_index": 0, "item": opened}
        ids = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        part = item["content"][0]
        yield {"type": "response.content_part.added", **ids, "part": {**part, "text": ""}}
        for word in [*self.words[:-1], self.words[-1].rstrip()]:
            yield {"type": "response.output_text.delta", **ids, "delta": word, "logprobs": [], "obfuscation": "x"}
        yield {"type": "response.output_text.done", **ids, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **ids, "part": part}


def regrouped(text: str, count: int) -> list[str]:
    """The text in `count` pieces of nearly the same length; together they are the text."""
    return [text[len(text) * number // count : len(text) * (number + 1) // count] for number in range(count)]
