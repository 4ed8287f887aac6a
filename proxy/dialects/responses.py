"""The Responses protocol: what is read of a request, what may be changed in it, and how its events become one object. Pure."""

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from proxy.dialects import fields
from proxy.dialects.fields import REMOVED, Fields
from proxy.errors import InvalidJson, ProxyError

T = TypeVar("T", str, bool, int)

NAME = "responses"
PATH = "/responses"
FAST_TIERS = frozenset({"priority", "fast"})
OPENING_BYTES = 2048
MOST_MODEL_BYTES = 120

# What lets the upstream read more than the request's own text: state and files it holds, tools that it runs itself.
_MORE_INPUT = (
    b'"input_image"', b'"input_file"', b'"file_id"', b'"item_reference"', b'"compaction', b'"encrypted_content"', b'"prompt"',
    b'"web_search', b'"file_search"', b'"code_interpreter"', b'"computer', b'"image_generation"', b'"mcp"',
)  # fmt: skip


class ModelMissing(ProxyError):
    code = "model_not_found"


class NotServed(ProxyError):
    """The protocol has it, this gateway does not."""

    code = "unsupported_parameter"


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is read of a request. `max_output_tokens` and the like are None when absent."""

    fields: Fields = field(repr=False)
    model: str
    stream: bool
    store: bool | None
    service_tier: str | None
    reasoning_effort: str | None
    prompt_cache_key: str | None
    previous_response_id: str | None
    max_output_tokens: int | None
    opening: bytes = field(repr=False)

    @property
    def body(self) -> bytes:
        return self.fields.body

    @property
    def is_fast(self) -> bool:
        return self.service_tier in FAST_TIERS

    def may_read_more_than_sent(self) -> bool:
        """True if the upstream may count more input than the bytes of this request (design section 3)."""
        if self.previous_response_id or (self.fields.raw("conversation") or b"null") != b"null":
            return True
        return any(mark in self.body for mark in _MORE_INPUT)


def inspect(body: bytes) -> Inspection:
    """Reads a request body. Raises InvalidJson (also for a field of ours with the wrong kind of value), ModelMissing."""
    found = fields.scan(body)
    model = _typed(found, "model", str)
    if not model:
        raise ModelMissing("The request names no model.", param="model")
    if len(model.encode()) > MOST_MODEL_BYTES or not model.isprintable():
        # No card has such a name, and neither the log nor an orphan's record could take it.
        raise ModelMissing("The model does not exist.", param="model")
    if _typed(found, "background", bool):
        # It would run on after its stream, where nobody meters it.
        raise NotServed("Background responses are not served here.", param="background")
    effort = _effort(found)
    return Inspection(
        fields=found,
        model=model,
        stream=_typed(found, "stream", bool) or False,
        store=_typed(found, "store", bool),
        service_tier=_typed(found, "service_tier", str),
        reasoning_effort=effort,
        prompt_cache_key=_typed(found, "prompt_cache_key", str),
        previous_response_id=_typed(found, "previous_response_id", str),
        max_output_tokens=_typed(found, "max_output_tokens", int),
        opening=_opening(found),
    )


def _effort(found: Fields) -> str | None:
    """`reasoning.effort`, which is as little to be there twice as a field of the body: a key may be denied it."""
    raw = found.raw("reasoning")
    if raw is None or not raw.startswith(b"{"):
        return None
    effort = fields.scan(raw).value("effort")
    return effort if isinstance(effort, str) else None


def _typed(found: Fields, name: str, kind: type[T]) -> T | None:
    raw = found.raw(name)
    if raw is None or raw == b"null":
        return None
    # Told by its first byte: decoding 16 MiB of something else to say so would hold every other request up.
    value = found.value(name) if raw[:1] in _FIRST_BYTES[kind] else None
    if type(value) is not kind:
        raise InvalidJson(f"The field {name!r} must be a {_KINDS[kind]}.", param=name)
    return value


_FIRST_BYTES: dict[type, bytes] = {str: b'"', bool: b"tf", int: b"-0123456789"}
_KINDS: dict[type, str] = {str: "string", bool: "boolean", int: "whole number"}


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


def for_sign_in_account(inspection: Inspection) -> bytes:
    """The body for the ChatGPT backend, of the model that was asked for."""
    return for_account(inspection, model=inspection.model, is_sign_in=True)


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
    if found.value("output") or not items:
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
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def failed_event(*, response_id: str, model: str, created_at: int, sequence_number: int, code: str, message: str) -> bytes:
    """A `response.failed` of ours, for a stream that we must end ourselves."""
    response = {
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
    data = {"type": "response.failed", "sequence_number": sequence_number, "response": response}
    return b"event: response.failed\ndata: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
