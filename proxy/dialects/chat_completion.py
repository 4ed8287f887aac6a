"""What a ChatGPT account answers, Responses events, as one Chat Completions object. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from proxy.dialects import chat_words
from proxy.dialects.chat_words import CALLS, Asked, Begun
from proxy.metering import ITEM_DONE, TERMINAL
from proxy.sse import Event

_LAST = 1_000_000


@dataclass(slots=True)
class _Answer:
    """One message, put together from items."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(self, given: object) -> None:
        if not isinstance(given, dict):
            return
        kind = chat_words.kind_of(given)
        if kind not in CALLS:
            for name, text in chat_words.texts_of(given):
                self.texts.setdefault(name, []).append(text)
            return
        self.calls.append(chat_words.call_of(given, chat_words.given_of(given)))

    def message(self, *, is_legacy: bool) -> dict[str, Any]:
        texts = {name: "".join(parts) for name, parts in self.texts.items()}
        content = texts.get("content") or (None if self.calls or texts.get("refusal") else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": texts.get("refusal"), "annotations": []}
        if texts.get("reasoning_content"):
            message["reasoning_content"] = texts["reasoning_content"]
        if self.calls and is_legacy:
            message["function_call"] = self.calls[0].get("function") or self.calls[0].get("custom")
        elif self.calls:
            message["tool_calls"] = self.calls
        return message


def fold(events: Iterable[Event], asked: Asked) -> bytes:
    """The completion of the events that were kept. Raises ValueError if they hold no answer, or one that failed."""
    items: list[tuple[int, object]] = []
    name, terminal = "", {}
    for event in events:
        if event.data is None:
            continue
        if event.name == ITEM_DONE:
            value = chat_words.loaded(event.data)
            index = value.get("output_index")
            items.append((index if isinstance(index, int) else _LAST, value.get("item")))
        elif event.name in TERMINAL and not name:
            name, terminal = event.name, chat_words.loaded(event.data)
    response = terminal.get("response")
    if not isinstance(response, dict):
        raise ValueError("the terminal event holds no response")
    # In the order of the output, and of their coming where they tell none.
    return completion(response, [item for _, item in sorted(items, key=lambda pair: pair[0])], asked, status=TERMINAL[name])


def completion(response: dict[str, Any], items: list[object], asked: Asked, *, status: str) -> bytes:
    """The completion of a response object; `items` stand in for its output if that is empty. Raises ValueError if it failed."""
    if status == "failed":
        told = chat_words.told(response)
        raise ValueError(f"the response failed: {told['code']}: {told['message']}")
    begun = Begun(asked.answer_id, asked.model, asked.created_at)
    begun.read(response)
    output = response.get("output")
    answer = _Answer()
    for item in output if isinstance(output, list) and output else items:
        answer.add(item)
    reason = chat_words.finish_reason(status, response, has_calls=bool(answer.calls), is_legacy=asked.is_legacy)
    message = answer.message(is_legacy=asked.is_legacy)
    made: dict[str, Any] = {
        "id": begun.answer_id,
        "object": "chat.completion",
        "created": begun.created_at,
        "model": begun.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "system_fingerprint": None,
    }
    usage = chat_words.usage_of(response.get("usage"))
    if usage is not None:
        made["usage"] = usage
    return chat_words.as_json(made)
