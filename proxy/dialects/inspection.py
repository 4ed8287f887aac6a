"""What is read of a request, in whichever dialect it came: one shape for prices, limits, routing and the log. Pure."""

import re
from dataclasses import dataclass, field
from typing import TypeVar

from proxy.dialects.fields import Fields
from proxy.errors import InvalidJson, ProxyError

T = TypeVar("T", str, bool, int)

FAST_TIERS = frozenset({"priority", "fast"})
MOST_MODEL_BYTES = 120

# What lets the upstream read more than the request's own text: state and files it holds, tools that it runs itself.
_MORE_INPUT = re.compile(
    rb'"(?:input_image"|input_file"|file_id"|item_reference"|compaction|encrypted_content"|prompt"|web_search|file_search"'
    rb'|code_interpreter"|computer|image_generation"|mcp"|image_url"|image"|document"|input_audio"|code_execution|web_fetch'
    rb'|container"|mcp_servers")'
)


class ModelMissing(ProxyError):
    code = "model_not_found"


class NotServed(ProxyError):
    """The protocol has it, this gateway does not."""

    code = "unsupported_parameter"


@dataclass(frozen=True, slots=True)
class Coded:
    """A body as it came, in a content coding (`zstd`, `gzip`)."""

    encoding: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is read of a request. `max_output_tokens` and the like are None when absent.

    `coded`: the body as it came if it came compressed; `fields` are of what it unpacks to.
    `is_warm_up`: nothing is to be generated (`generate: false` of a WebSocket client; over HTTP no upstream is known to heed it).
    `kinds`: the kinds of accounts that can serve this very request, where not all of its dialect's can.
    """

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
    coded: Coded | None = None
    is_warm_up: bool = False
    kinds: frozenset[str] | None = None

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
        return _MORE_INPUT.search(self.body) is not None


def model_of(found: Fields) -> str:
    """The model that a body names. Raises ModelMissing, InvalidJson."""
    model = typed(found, "model", str)
    if not model:
        raise ModelMissing("The request names no model.", param="model")
    if len(model.encode()) > MOST_MODEL_BYTES or not model.isprintable():
        # No card has such a name, and neither the log nor an orphan's record could take it.
        raise ModelMissing("The model does not exist.", param="model")
    return model


def typed(found: Fields, name: str, kind: type[T]) -> T | None:
    """A field of the body that must be of `kind` or null. Raises InvalidJson."""
    raw = found.raw(name) if name in found.spans else None
    if raw is None or raw == b"null":
        return None
    # Told by its first byte: decoding 16 MiB of something else to say so would hold every other request up.
    value = found.value(name) if raw[:1] in _FIRST_BYTES[kind] else None
    if type(value) is not kind:
        raise InvalidJson(f"The field {name!r} must be a {_KINDS[kind]}.", param=name)
    return value


_FIRST_BYTES: dict[type, bytes] = {str: b'"', bool: b"tf", int: b"-0123456789"}
_KINDS: dict[type, str] = {str: "string", bool: "boolean", int: "whole number"}
