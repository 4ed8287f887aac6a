"""What the answers of a chat cost: Chat Completions' own chunks, and Responses events that are wanted whole to be translated."""

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from config.json_bounds import Outline, has_too_many
from proxy import sse
from proxy.metering import DONE, MOST_TEXT, Meter
from proxy.sse import Event

_CUT_SHORT = frozenset({"length", "content_filter"})
_CALLING = frozenset({"tool_calls", "function_call"})


class Chunk(msgspec.Struct):
    """What is read of a chunk or of a whole completion; everything else passes unseen."""

    # Any: one field of an unknown shape must not hide the others.
    id: Any = None
    model: Any = None
    service_tier: Any = None
    choices: Any = None
    usage: Any = None
    error: Any = None


_chunk = msgspec.json.Decoder(Chunk)
_outline = Outline(*Chunk.__struct_fields__)
UNREAD = ("not read",)
"""In place of choices: there are some."""


def read(data: bytes) -> Chunk | None:
    """The chunk, by a lenient reader where the strict one fails (half a surrogate pair in a delta); None if it is none.
    Of too much at once (probabilities of every token, say) only what tells its cost."""
    if has_too_many(data):
        found = _outline.read(data)
        return Chunk(**{"choices": UNREAD, **found}) if found else None
    try:
        return _chunk.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return Chunk(**{name: value.get(name) for name in Chunk.__struct_fields__})


def is_usage_alone(chunk: Chunk) -> bool:
    """Is it the frame that `include_usage` adds, the usage of the whole answer and no choice?"""
    return isinstance(chunk.usage, dict) and not chunk.choices


@dataclass(slots=True)
class ChatMeter(Meter):
    """The answer has ended with `[DONE]`, with an error, or once all its choices have finished and its usage is known."""

    dialect: str = "chat"
    choices: int = 1
    """How many answers at once the client asked for (`n`)."""
    _finished: dict[Any, str] = field(default_factory=dict)
    _is_done: bool = False

    def see(self, event: Event) -> None:
        self.events += 1
        if self._is_done:
            return
        if event.data is None:
            # Larger than anything is kept.
            self._wrote(event.size)
        elif event.data.strip() == DONE:
            self._is_done = True
            self.status = self.status or self._outcome()
        else:
            self._see_chunk(event.data, is_error=event.name == "error")

    def end(self) -> None:
        """Some servers say neither `[DONE]` nor a usage: their answers are whole once each has told why it finished."""
        if len(self._finished) >= self.choices:
            self.status = self.status or self._outcome()

    def see_response(self, body: bytes) -> None:
        chunk = read(body)
        if chunk is None:
            return
        self._take_chunk(chunk)
        if _is_error(chunk):
            # Some servers say so with status 200.
            self.status, self.failure = "failed", body
            self.has_output, self._delta_bytes = False, 0
        elif self._finished or self.usage is not None:
            self.status = self._outcome()

    def _see_chunk(self, data: bytes, *, is_error: bool) -> None:
        chunk = read(data)
        if chunk is None:
            return
        if is_error or _is_error(chunk):
            self.failure = data
            self.status = self.status or "failed"
            return
        self._take_chunk(chunk)
        if self.usage is not None and len(self._finished) >= self.choices:
            self.status = self.status or self._outcome()

    def _take_chunk(self, chunk: Chunk) -> None:
        self.response_id = _named(chunk.id) or self.response_id
        self.model = _named(chunk.model) or self.model
        self.service_tier = _named(chunk.service_tier) or self.service_tier
        if isinstance(chunk.usage, dict):
            # Where each chunk brings one they grow, and the last is of the whole.
            self.usage = chunk.usage
        for choice in chunk.choices if isinstance(chunk.choices, list) else ():
            if isinstance(choice, dict):
                self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if isinstance(delta, dict):
            size = _text_bytes(delta)
            if size or delta.get("tool_calls") or delta.get("function_call"):
                self._wrote(size)
        said = delta if isinstance(delta, dict) else choice.get("message")
        if isinstance(said, dict) and (said.get("tool_calls") or said.get("function_call")):
            self.calls_tools = True
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.has_output = True
            self.calls_tools = self.calls_tools or reason in _CALLING
            index = choice.get("index")
            self._finished[index if isinstance(index, int) else 0] = reason

    def _wrote(self, size: int) -> None:
        self.has_output = True
        self._deltas += 1
        self._delta_bytes += size

    def _outcome(self) -> str:
        return "incomplete" if any(reason in _CUT_SHORT for reason in self._finished.values()) else "ok"


@dataclass(slots=True)
class WholeMeter(Meter):
    """Responses events of which the deltas come whole, so that their text is measured here."""

    def see(self, event: Event) -> None:
        if event.data is not None and event.name.endswith(".delta"):
            event = Event(event.name, event.size, sse.delta_bytes(event.data))
        # Not super(): a dataclass with slots is another class than the one that this body was written in.
        Meter.see(self, event)


def _is_error(chunk: Chunk) -> bool:
    return bool(chunk.error)


def _named(value: object) -> str:
    """Names and ids are short and printable; what is not is not one, and the log could not take it."""
    return value if isinstance(value, str) and len(value) <= MOST_TEXT and value.isprintable() else ""


def _text_bytes(delta: dict[str, Any]) -> int:
    """Bytes of what the model wrote in a delta. The two spellings of reasoning say the same."""
    size = _length(delta.get("content")) + _length(delta.get("refusal"))
    size += max(_length(delta.get("reasoning_content")), _length(delta.get("reasoning")))
    size += _of_call({"function": delta.get("function_call")})
    calls = delta.get("tool_calls")
    return size + sum(_of_call(call) for call in calls if isinstance(call, dict)) if isinstance(calls, list) else size


def _of_call(call: dict[str, Any]) -> int:
    inner = call.get("function") or call.get("custom")
    return sum(_length(inner.get(name)) for name in ("name", "arguments", "input")) if isinstance(inner, dict) else 0


def _length(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list):
        return sum(_length(part.get("text")) for part in value if isinstance(part, dict))
    return 0
