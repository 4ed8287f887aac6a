"""What a message costs: its usage comes in two parts, at its beginning and at its end; until then the output is estimated. Pure."""

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from config.json_bounds import has_too_many
from proxy.metering import MOST_TEXT, Meter, merged_usage
from proxy.sse import Event

DELTA_ENVELOPE_BYTES = 115
"""About what surrounds the text of a `content_block_delta`."""
PREAMBLE = frozenset({"message_start", "ping", ""})
_INCOMPLETE = frozenset({"max_tokens", "model_context_window_exceeded"})
_GOES_ON = frozenset({"tool_use", "pause_turn"})
"""Why a message stops whose turn goes on with the client's next request."""


class Message(msgspec.Struct):
    """What is read of a message object; everything else passes unseen."""

    # Any: one field of an unknown shape must not hide the others.
    type: Any = None
    id: Any = None
    model: Any = None
    stop_reason: Any = None
    usage: Any = None


class _Envelope(msgspec.Struct):
    message: Message | None = None
    delta: Message | None = None
    content_block: Message | None = None
    usage: Any = None


_message = msgspec.json.Decoder(Message)
_envelope = msgspec.json.Decoder(_Envelope)


@dataclass(slots=True)
class MessagesMeter(Meter):
    """The answer has ended with `message_stop`, or with an `error`, after which nothing comes."""

    dialect: str = "messages"
    _began: dict[str, Any] | None = field(default=None, repr=False)
    _ended: dict[str, Any] | None = field(default=None, repr=False)
    _stop_reason: str = ""

    @property
    def usage_so_far(self) -> dict[str, Any] | None:
        return merged_usage(self._began, self._ended)

    def see(self, event: Event) -> None:
        """Books one event."""
        self.events += 1
        name = event.name
        if name == "content_block_delta":
            self.has_output = True
            self._deltas += 1
            self._delta_bytes += max(0, event.size - DELTA_ENVELOPE_BYTES)
        elif name == "message_start":
            self._start(event.data)
        elif name == "message_delta":
            self._delta(event.data)
        elif name == "message_stop":
            self._finish("incomplete" if self._stop_reason in _INCOMPLETE else "ok")
        elif name == "error":
            if not self.status:
                self.failure = event.data or b"{}"
                self._finish("failed")
        elif name not in PREAMBLE:
            self.has_output = True
            if name == "content_block_start":
                self._block(event.data)

    def see_response(self, body: bytes) -> None:
        """Books a whole message, the answer to a request without streaming. Anything else changes nothing."""
        message = _read(body)
        if message is None:
            return
        if message.type == "error":
            self.status, self.failure = "failed", body
            self.has_output, self._delta_bytes = False, 0
            return
        self._name(message)
        self._stopped(message.stop_reason)
        if isinstance(message.usage, dict):
            self.usage = message.usage
            self._note_speed()
        if self._stop_reason or self.usage is not None:
            self.status = "incomplete" if self._stop_reason in _INCOMPLETE else "ok"

    def _start(self, data: bytes | None) -> None:
        found = _enveloped(data)
        if found.message is not None:
            self._name(found.message)
            if isinstance(found.message.usage, dict):
                self._began = found.message.usage

    def _delta(self, data: bytes | None) -> None:
        found = _enveloped(data)
        if found.delta is not None:
            self._stopped(found.delta.stop_reason)
        if isinstance(found.usage, dict):
            self._ended = merged_usage(self._ended, found.usage)
        if self._stop_reason:
            self._count()

    def _block(self, data: bytes | None) -> None:
        block = _enveloped(data).content_block
        if block is not None and block.type == "tool_use":
            self.calls_tools = True

    def _stopped(self, reason: Any) -> None:
        if isinstance(reason, str) and reason:
            self._stop_reason = reason
            self.calls_tools = self.calls_tools or reason in _GOES_ON

    def _finish(self, status: str) -> None:
        if not self.status:
            self.status = status
            if status != "failed":
                self._count()

    def _count(self) -> None:
        """The usage of the whole message. What is said at its beginning counts no output, so it is no count without the end's."""
        if self._ended is not None:
            self.usage = merged_usage(self._began, self._ended)
            self._note_speed()

    def _note_speed(self) -> None:
        """Fast mode is a speed here. The tier says which of the account's capacity was used, and changes no price."""
        speed = (self.usage or {}).get("speed")
        self.service_tier = "fast" if speed == "fast" else ""

    def _name(self, message: Message) -> None:
        self.response_id = _short(message.id) or self.response_id
        self.model = _short(message.model) or self.model


def _short(value: object) -> str:
    """Names and ids are short and printable; what is not is not one, and the log could not take it."""
    return value if isinstance(value, str) and len(value) <= MOST_TEXT and value.isprintable() else ""


def _enveloped(data: bytes | None) -> _Envelope:
    """What an event carries, by a lenient reader where the strict one fails: half a surrogate pair must not hide the usage."""
    if data is None or has_too_many(data):
        return _Envelope()
    try:
        return _envelope.decode(data)
    except (msgspec.DecodeError, RecursionError):
        value = _loaded(data)
    parts = {name: _picked(value.get(name)) for name in ("message", "delta", "content_block")}
    return _Envelope(**parts, usage=value.get("usage"))


def _read(body: bytes) -> Message | None:
    if has_too_many(body):
        return None
    try:
        return _message.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _picked(_loaded(body) or None)


def _loaded(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _picked(value: Any) -> Message | None:
    return Message(**{name: value.get(name) for name in Message.__struct_fields__}) if isinstance(value, dict) else None
