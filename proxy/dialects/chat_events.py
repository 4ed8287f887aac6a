"""What a ChatGPT account answers, Responses events, as Chat Completions: a stream of chunks, or one completion. Pure.

Texts of deltas keep the spelling that they came in. Reasoning, where the client asked for its summary, is `reasoning_content`, as
servers of open models spell it; Chat Completions itself has no name for it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from proxy import metering
from proxy.metering import CREATED, ITEM_DONE, TERMINAL
from proxy.sse import Event, Want

ITEM_ADDED = "response.output_item.added"
# Event -> the field of a chunk's delta that its text goes to.
_TEXTS = {
    "response.output_text.delta": b"content",
    "response.refusal.delta": b"refusal",
    "response.reasoning_summary_text.delta": b"reasoning_content",
}
_ARGUMENTS = frozenset({"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"})
_READ = frozenset({ITEM_ADDED, ITEM_DONE, *_TEXTS, *_ARGUMENTS})
# Where each kind of call keeps what it is called with.
_CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
_CLIENTS_FAULT = frozenset({"context_length_exceeded", "invalid_prompt", "cyber_policy", "content_policy_violation"})
_LAST = 1_000_000
DONE = b"data: [DONE]\n\n"


def want(name: str) -> Want:
    return Want.WHOLE if name in _READ else metering.want(name)


@dataclass(frozen=True, slots=True)
class Asked:
    """How the client wants its answer. `created_at` (unix seconds) and `answer_id` hold where the upstream tells none."""

    model: str
    with_usage: bool
    is_legacy: bool
    answer_id: str
    created_at: int


class _Delta(msgspec.Struct):
    delta: msgspec.Raw
    output_index: Any = None
    item_id: Any = None


_delta = msgspec.json.Decoder(_Delta)


@dataclass(slots=True)
class _Item:
    """An item of the output as far as it was passed on. `call`: its number among the calls, None if it is none."""

    call: int | None = None
    has_deltas: bool = False


@dataclass(slots=True)
class _Begun:
    """What the upstream says of the answer as a whole."""

    answer_id: str
    model: str
    created_at: int

    def read(self, response: object) -> None:
        if not isinstance(response, dict):
            return
        found, model, created_at = response.get("id"), response.get("model"), response.get("created_at")
        if isinstance(found, str) and found:
            self.answer_id = "chatcmpl-" + found.removeprefix("resp_")
        if isinstance(model, str) and model:
            self.model = model
        if isinstance(created_at, int | float):
            self.created_at = int(created_at)


class Chunks:
    """Events in, bytes of a chunk stream out; the same bytes however the events are cut into calls."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._begun = _Begun(asked.answer_id, asked.model, asked.created_at)
        self._head = self._tail = b""
        self._items: dict[int | str | None, _Item] = {}
        self._calls = 0
        self._has_output = False
        self._has_ended = False
        self._failure: dict[str, str] | None = None

    def translated(self, events: Iterable[Event]) -> bytes:
        out: list[bytes] = []
        for event in events:
            if not self._has_ended and event.data is not None:
                self._event(out, event.name, event.data)
        return b"".join(out)

    def failed(self, *, code: str, message: str) -> bytes:
        """What ends a stream that breaks off: with the upstream's own words, if it gave any."""
        self._has_ended = True
        return error_chunk(**(self._failure or {"code": code, "message": message}))

    def _event(self, out: list[bytes], name: str, data: bytes) -> None:
        if name in _TEXTS or name in _ARGUMENTS:
            self._delta(out, name, data)
        elif name in (CREATED, ITEM_ADDED, ITEM_DONE, "error") or name in TERMINAL:
            value = loaded(data)
            if name == CREATED:
                self._begun.read(value.get("response"))
                self._open(out)
            elif name == ITEM_ADDED:
                self._added(out, value)
            elif name == ITEM_DONE:
                self._done(out, value.get("item"), value.get("output_index"))
            elif name == "error":
                # Not the end yet; if nothing else follows, it is what went wrong.
                self._failure = _told(value)
            else:
                self._end(out, name, value.get("response"))

    # -- the pieces of chunks

    def _open(self, out: list[bytes]) -> None:
        """The first chunk, which tells the role; what stands in all of them is known by now."""
        if self._head:
            return
        begun = self._begun
        about = {"id": begun.answer_id, "object": "chat.completion.chunk", "created": begun.created_at, "model": begun.model}
        self._head = b"data: " + _json({**about, "system_fingerprint": None})[:-1] + b',"choices":['
        self._tail = b',"usage":null}\n\n' if self._asked.with_usage else b"}\n\n"
        self._choice(out, b'{"role":"assistant","content":"","refusal":null}')

    def _choice(self, out: list[bytes], delta: bytes, finish_reason: bytes = b"null") -> None:
        self._open(out)
        choice = (b'{"index":0,"delta":', delta, b',"logprobs":null,"finish_reason":', finish_reason, b"}]")
        out += (self._head, *choice, self._tail)

    def _text(self, out: list[bytes], name: bytes, text: bytes) -> None:
        self._has_output = True
        self._choice(out, b'{"' + name + b'":' + text + b"}")

    def _item(self, index: object, item_id: object) -> _Item:
        return self._items.setdefault(_key(index, item_id), _Item())

    def _delta(self, out: list[bytes], name: str, data: bytes) -> None:
        text, index, item_id = _read_delta(data)
        if not text.startswith(b'"'):
            return
        item = self._item(index, item_id)
        if name in _TEXTS:
            item.has_deltas = True
            self._text(out, _TEXTS[name], text)
        elif item.call is not None:
            item.has_deltas = True
            self._arguments(out, item.call, text, is_custom=name == "response.custom_tool_call_input.delta")
        # Else nobody has said which tool it is for: the whole item will.

    # -- items

    def _added(self, out: list[bytes], value: dict[str, Any]) -> None:
        given = value.get("item")
        if isinstance(given, dict) and _type(given) in _CALLS:
            item = self._item(value.get("output_index"), given.get("id"))
            if item.call is None:
                self._call(out, item, given)

    def _done(self, out: list[bytes], given: object, index: object) -> None:
        """A whole item; of one whose deltas have come nothing is left to be said."""
        if not isinstance(given, dict):
            return
        item = self._item(index, given.get("id"))
        # Items that tell neither place nor id come one after the other.
        self._items.pop(_key(index, given.get("id")), None)
        kind = _type(given)
        if kind in _CALLS:
            if item.call is None:
                self._call(out, item, given)
            if not item.has_deltas and item.call is not None:
                text = given.get(_CALLS[kind][1])
                if isinstance(text, str) and text:
                    self._arguments(out, item.call, _json(text), is_custom=kind == "custom_tool_call")
        elif not item.has_deltas:
            for name, text in _texts_of(given):
                if text:
                    self._text(out, name.encode(), _json(text))

    def _call(self, out: list[bytes], item: _Item, given: dict[str, Any]) -> None:
        """Begins a call: its name, without arguments."""
        item.call = self._calls
        self._calls += 1
        self._has_output = True
        kind, field_name = _CALLS[_type(given)]
        named = {"name": given.get("name"), field_name: ""}
        if not self._asked.is_legacy:
            call = {"index": item.call, "id": given.get("call_id") or given.get("id"), "type": kind, kind: named}
            self._choice(out, _json({"tool_calls": [call]}))
        elif item.call == 0:
            # There is room for one.
            self._choice(out, _json({"function_call": named}))

    def _arguments(self, out: list[bytes], call: int, text: bytes, *, is_custom: bool) -> None:
        inner = b'"custom":{"input":' if is_custom else b'"function":{"arguments":'
        if not self._asked.is_legacy:
            self._choice(out, b'{"tool_calls":[{"index":%d,' % call + inner + text + b"}}]}")
        elif call == 0:
            self._choice(out, b'{"function_call":{"arguments":' + text + b"}}")

    # -- the end

    def _end(self, out: list[bytes], name: str, response: object) -> None:
        given = response if isinstance(response, dict) else {}
        if not self._head:
            self._begun.read(given)
        self._has_ended = True
        if TERMINAL[name] == "failed":
            self._failure = _told(given)
            out.append(error_chunk(**self._failure))
            return
        output = given.get("output")
        if not self._has_output and isinstance(output, list):
            # An upstream that sends its items nowhere else.
            for index, item in enumerate(output):
                self._done(out, item, index)
        reason = _finish_reason(TERMINAL[name], given, has_calls=self._calls > 0, is_legacy=self._asked.is_legacy)
        self._choice(out, b"{}", _json(reason))
        usage = usage_of(given.get("usage"))
        if self._asked.with_usage and usage is not None:
            out += (self._head, b'],"usage":', _json(usage), b"}\n\n")
        out.append(DONE)


# ------------------------------------------------------------------------------------------------------------ one object


@dataclass(slots=True)
class _Answer:
    """One message, put together from items."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(self, given: object) -> None:
        if not isinstance(given, dict):
            return
        kind = _type(given)
        if kind not in _CALLS:
            for name, text in _texts_of(given):
                self.texts.setdefault(name, []).append(text)
            return
        inner, field_name = _CALLS[kind]
        named = {"name": given.get("name"), field_name: given.get(field_name) or ""}
        self.calls.append({"id": given.get("call_id") or given.get("id"), "type": inner, inner: named})

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
            value = loaded(event.data)
            index = value.get("output_index")
            items.append((index if isinstance(index, int) else _LAST, value.get("item")))
        elif event.name in TERMINAL and not name:
            name, terminal = event.name, loaded(event.data)
    response = terminal.get("response")
    if not isinstance(response, dict):
        raise ValueError("the terminal event holds no response")
    # In the order of the output, and of their coming where they tell none.
    return completion(response, [item for _, item in sorted(items, key=lambda pair: pair[0])], asked, status=TERMINAL[name])


def completion(response: dict[str, Any], items: list[object], asked: Asked, *, status: str) -> bytes:
    """The completion of a response object; `items` stand in for its output if that is empty. Raises ValueError if it failed."""
    if status == "failed":
        told = _told(response)
        raise ValueError(f"the response failed: {told['code']}: {told['message']}")
    begun = _Begun(asked.answer_id, asked.model, asked.created_at)
    begun.read(response)
    output = response.get("output")
    answer = _Answer()
    for item in output if isinstance(output, list) and output else items:
        answer.add(item)
    reason = _finish_reason(status, response, has_calls=bool(answer.calls), is_legacy=asked.is_legacy)
    message = answer.message(is_legacy=asked.is_legacy)
    made: dict[str, Any] = {
        "id": begun.answer_id,
        "object": "chat.completion",
        "created": begun.created_at,
        "model": begun.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "system_fingerprint": None,
    }
    usage = usage_of(response.get("usage"))
    if usage is not None:
        made["usage"] = usage
    return _json(made)


# ------------------------------------------------------------------------------------------------------------------ parts


def usage_of(usage: object) -> dict[str, Any] | None:
    """A Responses usage object in the words of Chat Completions; None if it is none."""
    if not isinstance(usage, dict):
        return None
    read, written = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    of_read, of_written = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    cached = of_read.get("cached_tokens") if isinstance(of_read, dict) else 0
    reasoning = of_written.get("reasoning_tokens") if isinstance(of_written, dict) else 0
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": _count(usage.get("total_tokens")) or read + written,
        "prompt_tokens_details": {"cached_tokens": _count(cached), "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": _count(reasoning),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def error_chunk(code: str, message: str) -> bytes:
    """What ends a stream that failed: SDKs raise their APIError at it. No `[DONE]` follows: it would say that all is well."""
    kind = "invalid_request_error" if code in _CLIENTS_FAULT else "server_error"
    return b"data: " + _json({"error": {"message": message, "type": kind, "param": None, "code": code}}) + b"\n\n"


def loaded(data: bytes) -> dict[str, Any]:
    """The object, by a lenient reader where the strict one fails; {} for anything else."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _read_delta(data: bytes) -> tuple[bytes, object, object]:
    """The text of a delta as it is spelt, the place and the id of its item."""
    try:
        found = _delta.decode(data)
    except (msgspec.DecodeError, RecursionError):
        value = loaded(data)
        text = value.get("delta")
        return _json(text) if isinstance(text, str) else b"", value.get("output_index"), value.get("item_id")
    return bytes(found.delta), found.output_index, found.item_id


def _key(index: object, item_id: object) -> int | str | None:
    """What tells items apart: their place, for some upstreams give an item another id in each event."""
    return index if isinstance(index, int) else item_id if isinstance(item_id, str) else None


def _type(item: dict[str, Any]) -> str:
    return str(item.get("type"))


def _texts_of(item: dict[str, Any]) -> list[tuple[str, str]]:
    """The texts of a whole item with the names of the fields that they go to."""
    named = {"output_text": ("content", "text"), "refusal": ("refusal", "refusal"), "summary_text": ("reasoning_content", "text")}
    parts = item.get({"reasoning": "summary", "message": "content"}.get(_type(item), ""))
    found = []
    for part in parts if isinstance(parts, list) else ():
        name, field_name = named.get(str(part.get("type")), ("", "")) if isinstance(part, dict) else ("", "")
        if name and isinstance(part.get(field_name), str):
            found.append((name, part[field_name]))
    return found


def _finish_reason(status: str, response: dict[str, Any], *, has_calls: bool, is_legacy: bool) -> str:
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return "content_filter" if reason == "content_filter" else "length"
    if has_calls:
        return "function_call" if is_legacy else "tool_calls"
    return "stop"


def _told(value: dict[str, Any]) -> dict[str, str]:
    """Code and message of a failing event, or of the response in it."""
    error = value.get("error")
    found = error if isinstance(error, dict) else value
    return {
        "code": str(found.get("code") or "server_error")[:80],
        "message": str(found.get("message") or "The upstream failed.")[:2000],
    }


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _json(value: object) -> bytes:
    # Escaped: half a surrogate pair has no other spelling.
    return json.dumps(value, separators=(",", ":")).encode()
