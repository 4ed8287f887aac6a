"""Events to what they cost: the upstream's own count at the end, an estimate of the output until then. Pure."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from config.json_bounds import Outline, has_too_many
from proxy import sse
from proxy.sse import Event, Want

LARGEST_EVENT_BYTES = 32 * 1024 * 1024
"""The final event repeats the whole output. One above this is passed on unread, and its usage estimated."""
BYTES_PER_OUTPUT_TOKEN = 4
MOST_TEXT = 120
"""Ids and names of models are shorter; what the log takes."""

CREATED = "response.created"
TERMINAL: Mapping[str, str] = {
    "response.completed": "ok",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
# What an upstream says before it has produced anything; a failure after these can still be answered by another account.
PREAMBLE = frozenset({CREATED, "response.in_progress", "response.queued", "keepalive", "codex.rate_limits", ""})
WINDOWS = "codex.rate_limits"
DONE = b"[DONE]"
"""The last event's data of a Chat Completions stream; no JSON."""
FAILING = frozenset({"response.failed", "error"})
ITEM_DONE = "response.output_item.done"
CALLS = frozenset({"response.function_call_arguments.done", "response.custom_tool_call_input.done"})
CALL_ITEMS = (b'"function_call"', b'"custom_tool_call"', b'"local_shell_call"')
"""Items that the client answers, so that the turn goes on."""


class Response(msgspec.Struct):
    """What is read of a response object; everything else passes unseen."""

    # Any: one field of an unknown shape must not hide the others.
    id: Any = None
    model: Any = None
    service_tier: Any = None
    status: Any = None
    usage: Any = None


class _Envelope(msgspec.Struct):
    type: str = ""
    response: Response | None = None


_envelope = msgspec.json.Decoder(_Envelope)
_response = msgspec.json.Decoder(Response)
_SEQUENCE = re.compile(rb'"sequence_number"\s*:\s*(\d{1,15})')


@dataclass(slots=True)
class Meter:
    """What one attempt's answer has told so far.

    `status` is ok, incomplete or failed once a terminal event came, else ""; `failure` the data of a failing event.
    """

    dialect: str = "responses"
    """Whose words `usage` is in (`billing.tokens`)."""
    response_id: str = ""
    model: str = ""
    service_tier: str = ""
    status: str = ""
    usage: dict[str, Any] | None = field(default=None, repr=False)
    failure: bytes | None = field(default=None, repr=False)
    windows: bytes | None = field(default=None, repr=False)
    """The newest account windows told inside the stream, until somebody takes them."""
    has_output: bool = False
    calls_tools: bool = False
    """The client is asked to run something: the turn goes on with its answer."""
    events: int = 0
    _delta_bytes: int = 0
    _deltas: int = 0
    _item_deltas: int = 0

    @property
    def is_terminal(self) -> bool:
        return bool(self.status)

    @property
    def output_estimate(self) -> int:
        """Output tokens seen so far: the deltas' bytes by ratio, and at least one for each delta; reasoning is not in sight."""
        return max(self._deltas, -(-self._delta_bytes // BYTES_PER_OUTPUT_TOKEN))

    @property
    def usage_so_far(self) -> dict[str, Any] | None:
        """What the upstream has counted of an answer that has not ended; None in dialects that count at the end alone."""
        return None

    def see(self, event: Event) -> None:
        """Books one event."""
        self.events += 1
        name, _, delta_bytes, data = event
        if delta_bytes or name.endswith(".delta"):
            self.has_output = True
            self._deltas += 1
            self._item_deltas += 1
            self._delta_bytes += delta_bytes
            return
        if name in PREAMBLE:
            if name == CREATED and data is not None:
                self._read(data)
            elif name == WINDOWS:
                self.windows = data
            return
        if name in TERMINAL:
            self._end(name, event)
            return
        if name == "error":
            # Clients ignore it and fail at the stream's end (protocol note, section 4); before output it decides a failover.
            self.failure = data
            return
        self.has_output = True
        if name in CALLS:
            self.calls_tools = True
        if name == ITEM_DONE:
            self._item_done(event)

    def end(self) -> None:
        """The stream has come to its end, and was not cut off. In Responses only an event says that an answer is whole."""

    def see_bytes(self, size: int) -> None:
        """Books a part of an answer that is no stream: output, however it is cut."""
        self.has_output = True
        self._delta_bytes += size

    def see_response(self, body: bytes) -> None:
        """Books a whole response object, the answer to a request without streaming. Anything else changes nothing."""
        response = _response_in(body)
        if response is None:
            return
        if _is_error(body):
            # Some servers say so with status 200.
            self.status, self.failure = "failed", body
            self.has_output, self._delta_bytes = False, 0
            return
        self._take(response)
        self.calls_tools = any(item in body for item in CALL_ITEMS)
        if response.status in ("completed", "incomplete", "failed") or response.usage is not None:
            self.status = TERMINAL.get(f"response.{response.status}", "ok")

    def _end(self, name: str, event: Event) -> None:
        if self.status and self.usage:
            # The first end counts; a second one would take back what it said.
            return
        self.status = self.status or TERMINAL[name]
        if event.data is not None:
            self._read(event.data)
            self.calls_tools = self.calls_tools or any(item in event.data for item in CALL_ITEMS)
            if name in FAILING:
                self.failure = event.data

    def _item_done(self, event: Event) -> None:
        """An item without deltas (some upstreams send only whole ones, and reasoning comes sealed) counts by its size."""
        if not self._item_deltas:
            self._deltas += 1
            self._delta_bytes += max(0, event.size - 2 * sse.ENVELOPE_BYTES)
        self._item_deltas = 0

    def _read(self, data: bytes) -> None:
        response = _response_of(data)
        if response is not None:
            self._take(response)

    def _take(self, response: Response) -> None:
        self.response_id = _text(response.id) or self.response_id
        self.model = _text(response.model) or self.model
        self.service_tier = _text(response.service_tier) or self.service_tier
        if isinstance(response.usage, dict):
            self.usage = response.usage


def merged_usage(began: Mapping[str, Any] | None, later: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """One usage object of the two that a Messages stream brings, in `message_start` and `message_delta`.

    The later counts are totals, but not all of the first stand in it again: of a count that is in both, the larger one holds; of
    anything else the later, unless it is null.
    """
    if began is None or later is None:
        found = later if began is None else began
        return None if found is None else dict(found)
    merged = dict(began)
    for name, value in later.items():
        known = merged.get(name)
        if isinstance(known, int) and isinstance(value, int):
            merged[name] = max(known, value) if min(known, value) >= 0 else min(known, value)
        elif value is not None:
            merged[name] = value
    return merged


def _response_of(data: bytes) -> Response | None:
    """The response of an event, by a lenient reader where the strict one fails: half a surrogate pair in the output's text must
    not hide the usage behind it."""
    if has_too_many(data):
        # Probabilities of every token, say.
        return _outlined(_wrapping.raw(data).get("response", b""))
    try:
        return _envelope.decode(data).response
    except (msgspec.DecodeError, RecursionError):
        value = _loaded(data)
        return _picked(value.get("response")) if isinstance(value, dict) else None


def response_id_of(data: bytes) -> str:
    """The id of an event's response; "" if it names none."""
    response = _response_of(data)
    return "" if response is None else _text(response.id)


def _response_in(body: bytes) -> Response | None:
    if has_too_many(body):
        return _outlined(body)
    try:
        return _response.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _picked(_loaded(body))


_outline = Outline(*Response.__struct_fields__)
_wrapping = Outline("response")


def _outlined(data: bytes) -> Response | None:
    found = _outline.read(data)
    return Response(**found) if found else None


class _Failed(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"null")
    output: msgspec.Raw = msgspec.Raw(b"[]")


_failed = msgspec.json.Decoder(_Failed)


def _is_error(body: bytes) -> bool:
    """Is this response an error and nothing else?"""
    try:
        found = _failed.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bytes(found.error) not in (b"null", b"{}", b'""') and bytes(found.output) in (b"[]", b"null")


def _loaded(data: bytes) -> Any:
    if has_too_many(data):
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _picked(value: Any) -> Response | None:
    return Response(**{name: value.get(name) for name in Response.__struct_fields__}) if isinstance(value, dict) else None


def _text(value: object) -> str:
    """Names and ids are short and printable; what is not is not one, and the log could not take it."""
    return value if isinstance(value, str) and len(value) <= MOST_TEXT and value.isprintable() else ""


def want(name: str) -> Want:
    """What the relay needs of events of this name."""
    if name.endswith(".delta"):
        return Want.DELTA
    if name in TERMINAL or name in (CREATED, "error", WINDOWS):
        return Want.WHOLE
    return Want.COUNT


def want_to_fold(name: str) -> Want:
    """The same, where the events become one object."""
    return Want.WHOLE if name == ITEM_DONE else want(name)


def rest(scanner: sse.Scanner, want: Callable[[str], Want]) -> list[Event]:
    """The event that a stream broke off in, if it is whole but for its empty line: half a terminal event has told nothing."""
    return [event for event in scanner.end() if want(event.name) is not Want.WHOLE or _is_whole(event.data or b"")]


def _is_whole(data: bytes) -> bool:
    return data == DONE or _loaded(data) is not None


def next_sequence_number(events: int, last_bytes: bytes) -> int:
    """The number for an event of ours after `events` of the upstream's, of which `last_bytes` are the end."""
    numbers = _SEQUENCE.findall(last_bytes)
    return int(numbers[-1]) + 1 if numbers else events
