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
        if self.previous_response_id or self.fields.value("conversation") is not None:
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
    value = found.value(name)
    if value is None:
        return None
    if type(value) is not kind:
        raise InvalidJson(f"The field {name!r} must be a {_KINDS[kind]}.", param=name)
    return value


_KINDS: dict[type, str] = {str: "string", bool: "boolean", int: "whole number"}


def _opening(found: Fields) -> bytes:
    """What tells conversations apart that name themselves nowhere: how their instructions and their input begin."""
    return b"".join((found.raw(name) or b"")[:OPENING_BYTES] for name in ("instructions", "input"))


def for_sign_in_account(inspection: Inspection) -> bytes:
    """The body as the ChatGPT backend takes it: streamed, not stored, without a bound on the output (it refuses those fields)."""
    return fields.edit(inspection.fields, {"stream": True, "store": False, "max_output_tokens": REMOVED})


# ---------------------------------------------------------------------------------------------------------------- folding


class _Terminal(msgspec.Struct):
    response: msgspec.Raw


class _Item(msgspec.Struct):
    item: msgspec.Raw
    output_index: int = 1_000_000


_terminal = msgspec.json.Decoder(_Terminal)
_item = msgspec.json.Decoder(_Item)


def fold(terminal: bytes, items: list[bytes]) -> bytes:
    """The response object of a terminal event's data; an empty `output` is filled from the data of `output_item.done` events.

    Raises ValueError for data that is no such event.
    """
    try:
        response = bytes(_terminal.decode(terminal).response)
    except msgspec.DecodeError as error:
        raise ValueError("the terminal event holds no response") from error
    value: Any = json.loads(response)
    if not isinstance(value, dict):
        raise ValueError("the terminal event's response is no object")
    if value.get("output") or not items:
        return response
    done = []
    for data in items:
        try:
            done.append(_item.decode(data))
        except msgspec.DecodeError:
            continue
    done.sort(key=lambda item: item.output_index)
    value["output"] = [json.loads(bytes(item.item)) for item in done]
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


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
    return b"event: response.failed\ndata: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
