"""What a ChatGPT account answers, Responses events, as a stream of Chat Completions chunks. Pure.

Texts of deltas keep the spelling that they came in. Reasoning, where the client asked for its summary, is `reasoning_content`, as
servers of open models spell it; Chat Completions itself has no name for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy import metering
from proxy.dialects import chat_words
from proxy.dialects.chat_words import CALLS, Asked, Begun
from proxy.errors import STREAM_INCOMPLETE
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
DONE = b"data: [DONE]\n\n"


def want(name: str) -> Want:
    return Want.WHOLE if name in _READ else metering.want(name)


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


class Chunks:
    """Events in, bytes of a chunk stream out; the same bytes however the events are cut into calls."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._begun = Begun(asked.answer_id, asked.model, asked.created_at)
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
        """What ends a stream: one that broke off with the upstream's own words, if it gave any."""
        self._has_ended = True
        told = self._failure if code == STREAM_INCOMPLETE else None
        return chat_words.error_chunk(**(told or {"code": code, "message": message}))

    def _event(self, out: list[bytes], name: str, data: bytes) -> None:
        if name in _TEXTS or name in _ARGUMENTS:
            self._delta(out, name, data)
        elif name in (CREATED, ITEM_ADDED, ITEM_DONE, "error") or name in TERMINAL:
            value = chat_words.loaded(data)
            if name == CREATED:
                self._begun.read(value.get("response"))
                self._open(out)
            elif name == ITEM_ADDED:
                self._added(out, value)
            elif name == ITEM_DONE:
                self._done(out, value.get("item"), value.get("output_index"))
            elif name == "error":
                # Not the end yet; if nothing else follows, it is what went wrong.
                self._failure = chat_words.told(value)
            else:
                self._end(out, name, value.get("response"))

    # -- the pieces of chunks

    def _open(self, out: list[bytes]) -> None:
        """The first chunk, which tells the role; what stands in all of them is known by now."""
        if self._head:
            return
        begun = self._begun
        about = {"id": begun.answer_id, "object": "chat.completion.chunk", "created": begun.created_at, "model": begun.model}
        self._head = b"data: " + chat_words.as_json({**about, "system_fingerprint": None})[:-1] + b',"choices":['
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
        if isinstance(given, dict) and chat_words.kind_of(given) in CALLS:
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
        kind = chat_words.kind_of(given)
        if kind in CALLS:
            if item.call is None:
                self._call(out, item, given)
            if not item.has_deltas and item.call is not None:
                text = chat_words.given_of(given)
                if text:
                    self._arguments(out, item.call, chat_words.as_json(text), is_custom=kind == "custom_tool_call")
        elif not item.has_deltas:
            for name, text in chat_words.texts_of(given):
                if text:
                    self._text(out, name.encode(), chat_words.as_json(text))

    def _call(self, out: list[bytes], item: _Item, given: dict[str, Any]) -> None:
        """Begins a call: its name, without arguments."""
        item.call = self._calls
        self._calls += 1
        self._has_output = True
        call = chat_words.call_of(given, "")
        if not self._asked.is_legacy:
            self._choice(out, chat_words.as_json({"tool_calls": [{"index": item.call, **call}]}))
        elif item.call == 0:
            # There is room for one.
            self._choice(out, chat_words.as_json({"function_call": call[call["type"]]}))

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
            self._failure = chat_words.told(given)
            out.append(chat_words.error_chunk(**self._failure))
            return
        output = given.get("output")
        if not self._has_output and isinstance(output, list):
            # An upstream that sends its items nowhere else.
            for index, item in enumerate(output):
                self._done(out, item, index)
        reason = chat_words.finish_reason(TERMINAL[name], given, has_calls=self._calls > 0, is_legacy=self._asked.is_legacy)
        self._choice(out, b"{}", chat_words.as_json(reason))
        usage = chat_words.usage_of(given.get("usage"))
        if self._asked.with_usage and usage is not None:
            out += (self._head, b'],"usage":', chat_words.as_json(usage), b"}\n\n")
        out.append(DONE)


def _read_delta(data: bytes) -> tuple[bytes, object, object]:
    """The text of a delta as it is spelt, the place and the id of its item."""
    try:
        found = _delta.decode(data)
    except (msgspec.DecodeError, RecursionError):
        value = chat_words.loaded(data)
        text = value.get("delta")
        return chat_words.as_json(text) if isinstance(text, str) else b"", value.get("output_index"), value.get("item_id")
    return bytes(found.delta), found.output_index, found.item_id


def _key(index: object, item_id: object) -> int | str | None:
    """What tells items apart: their place, for some upstreams give an item another id in each event."""
    return index if isinstance(index, int) else item_id if isinstance(item_id, str) else None
