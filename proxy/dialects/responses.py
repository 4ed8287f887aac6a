"""The Responses protocol: what is read of a request, what may be changed in it, and how its events become one object. Pure."""

import json
from typing import Any

import msgspec

from config.json_bounds import has_too_many
from proxy import anchors, metering
from proxy.dialects import fields
from proxy.dialects.fields import REMOVED, Fields
from proxy.dialects.inspection import Coded, Inspection, NotServed, model_of, typed
from proxy.dialects.wire import Wire
from proxy.errors import InvalidJson, openai_shape
from proxy.metering import Meter
from proxy.sse import Event, Want
from routing.snapshots import CHATGPT, COMPATIBLE, OPENAI

NAME = "responses"
PATH = "/responses"
KINDS = frozenset({CHATGPT, OPENAI, COMPATIBLE})
HEARTBEAT = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
"""An event, not a comment: comments do not reset Codex' idle timer (protocol note, section 4)."""
OPENING_BYTES = 2048


def inspect(body: bytes, *, coded: Coded | None = None) -> Inspection:
    """Reads a request body. Raises InvalidJson (also for a field of ours with the wrong kind of value), ModelMissing, NotServed."""
    found = fields.scan(body)
    model = model_of(found)
    if typed(found, "background", bool):
        # It would run on after its stream, where nobody meters it.
        raise NotServed("Background responses are not served here.", param="background")
    return Inspection(
        fields=found,
        model=model,
        stream=typed(found, "stream", bool) or False,
        store=typed(found, "store", bool),
        service_tier=typed(found, "service_tier", str),
        reasoning_effort=_effort(found),
        prompt_cache_key=typed(found, "prompt_cache_key", str),
        previous_response_id=typed(found, "previous_response_id", str),
        max_output_tokens=typed(found, "max_output_tokens", int),
        opening=_opening(found),
        coded=coded,
    )


def _effort(found: Fields) -> str | None:
    """`reasoning.effort`, which is as little to be there twice as a field of the body: a key may be denied it."""
    raw = found.raw("reasoning")
    if raw is None or not raw.startswith(b"{"):
        return None
    effort = fields.scan(raw).value("effort")
    return effort if isinstance(effort, str) else None


def _opening(found: Fields) -> bytes:
    """What tells conversations apart that name themselves nowhere: how their instructions and their input begin."""
    return b"".join((found.raw(name) or b"")[:OPENING_BYTES] for name in ("instructions", "input"))


def for_account(inspection: Inspection, *, model: str, is_sign_in: bool) -> bytes:
    """The body as an account's upstream takes it: asked for `model`, which differs where an alias was asked for.

    To the ChatGPT backend also streamed, not stored, without a bound on the output (it refuses those fields).
    """
    changes: dict[str, Any] = {} if model == inspection.model else {"model": model}
    if is_sign_in:
        changes |= {"stream": True, "store": False, "max_output_tokens": REMOVED}
    return fields.edit(inspection.fields, changes) if changes else inspection.body


class ResponsesWire(Wire):
    """Responses to Responses: bytes pass as they are."""

    def __init__(self, inspection: Inspection, *, model: str, kind: str) -> None:
        is_sign_in = kind == CHATGPT
        body = for_account(inspection, model=model, is_sign_in=is_sign_in)
        coded = inspection.coded if is_sign_in and body is inspection.body else None
        super().__init__(
            path=f"/codex{PATH}" if is_sign_in else PATH,
            body=body if coded is None else coded.data,
            encoding=None if coded is None else coded.encoding,
            is_streamed=is_sign_in or inspection.stream,
            meter=Meter(),
        )
        self._want = metering.want_to_fold if anchors.may_compact(inspection) else metering.want

    def want(self, name: str) -> Want:
        return self._want(name)

    def want_to_fold(self, name: str) -> Want:
        return metering.want_to_fold(name)

    def fold(self, events: list[Event]) -> bytes:
        items = [event.data for event in events if event.name == metering.ITEM_DONE and event.data is not None]
        terminal = next((event.data for event in events if event.name in metering.TERMINAL), None)
        return fold(terminal or b"", items)

    def failed(self, *, code: str, message: str, response_id: str, model: str, created_at: int, sequence_number: int) -> bytes:
        return failed_event(
            response_id=response_id,
            model=model,
            created_at=created_at,
            sequence_number=sequence_number,
            code=code,
            message=message,
        )


def wire(inspection: Inspection, *, model: str, kind: str) -> Wire:
    return ResponsesWire(inspection, model=model, kind=kind)


refusal = openai_shape


# ---------------------------------------------------------------------------------------------------------------- folding


_LAST = 1_000_000


class _Terminal(msgspec.Struct):
    response: msgspec.Raw


class _Item(msgspec.Struct):
    item: msgspec.Raw
    output_index: int = _LAST


_terminal = msgspec.json.Decoder(_Terminal)
_item = msgspec.json.Decoder(_Item)


def fold(terminal: bytes, items: list[bytes]) -> bytes:
    """The response object of a terminal event's data; an empty `output` is filled from the data of `output_item.done` events.

    What is taken over keeps its bytes. Raises ValueError for data that is no such event.
    """
    try:
        found = fields.scan(bytes(_terminal.decode(terminal).response))
    except (msgspec.DecodeError, RecursionError, InvalidJson):
        return _fold_oddly(terminal, items)
    output = found.raw("output") or b"null"
    if not items or (output != b"null" and output[1:-1].strip()):
        return found.body
    return fields.edit(found, {"output": msgspec.Raw(b"[" + b",".join(_in_order(items)) + b"]")})


def _fold_oddly(terminal: bytes, items: list[bytes]) -> bytes:
    """The same for a response that only a lenient reader takes: with half a surrogate pair, or a name twice."""
    response = _loaded(terminal).get("response")
    if not isinstance(response, dict):
        raise ValueError("the terminal event holds no response")
    if not response.get("output") and items:
        response["output"] = [json.loads(item) for item in _in_order(items)]
    return json.dumps(response, separators=(",", ":")).encode()


def _in_order(items: list[bytes]) -> list[bytes]:
    """The items of events' data by their index; data without one is left out."""
    done: list[tuple[int, bytes]] = []
    for data in items:
        try:
            read = _item.decode(data)
            done.append((read.output_index, bytes(read.item)))
        except (msgspec.DecodeError, RecursionError):
            value = _loaded(data)
            if "item" in value:
                index = value.get("output_index")
                text = json.dumps(value["item"], separators=(",", ":")).encode()
                done.append((index if isinstance(index, int) else _LAST, text))
    return [item for _, item in sorted(done, key=lambda pair: pair[0])]


def _loaded(data: bytes) -> dict[str, Any]:
    if has_too_many(data):
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def failed_event(*, response_id: str, model: str, created_at: int, sequence_number: int, code: str, message: str) -> bytes:
    """A `response.failed` of ours, for a stream that we must end ourselves; after a `response.created` if it is the first event."""
    response: dict[str, Any] = {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": "failed",
        "error": {"code": code, "message": message},
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
    }
    if sequence_number > 0:
        return _event("response.failed", sequence_number, response)
    created = response | {"status": "in_progress", "error": None}
    return _event("response.created", 0, created) + _event("response.failed", 1, response)


def _event(name: str, sequence_number: int, response: dict[str, Any]) -> bytes:
    data = {"type": name, "sequence_number": sequence_number, "response": response}
    return b"event: " + name.encode() + b"\ndata: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
