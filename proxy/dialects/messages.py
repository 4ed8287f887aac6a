"""Anthropic's Messages protocol, passed through: what is read of a request, what its events cost, how it says no. Pure.

The wire: https://docs.anthropic.com/en/api/messages, .../messages-streaming, .../errors.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from proxy.dialects import fields
from proxy.dialects.fields import Fields
from proxy.dialects.inspection import Coded, Inspection, model_of, typed
from proxy.dialects.messages_meter import MessagesMeter
from proxy.dialects.wire import Wire
from proxy.sse import Event, Want
from routing.snapshots import ANTHROPIC

NAME = "messages"
PATH = "/messages"
KINDS = frozenset({ANTHROPIC})
HEARTBEAT = b'event: ping\ndata: {"type": "ping"}\n\n'
"""The upstream sends the same ones itself."""
OPENING_BYTES = 2048

LONGEST_USER = 4096
"""Characters of an id of a user that is looked into."""

_SESSION = re.compile(r"session_([0-9A-Za-z-]{8,64})\Z")
_WHOLE = frozenset({"message_start", "content_block_start", "message_delta", "error"})

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_TYPES_BY_CODE: Mapping[str, str] = {"payload_too_large": "request_too_large"}


def inspect(body: bytes, *, coded: Coded | None = None) -> Inspection:
    """Reads a request body. Raises InvalidJson (also for a field of ours with the wrong kind of value), ModelMissing.

    `store` is always False: no answer can be continued by its id, so nobody has to remember who holds it.
    """
    found = fields.scan(body)
    return Inspection(
        fields=found,
        model=model_of(found),
        stream=typed(found, "stream", bool) or False,
        store=False,
        service_tier=_tier(found),
        reasoning_effort=_inside(found, "output_config", "effort"),
        prompt_cache_key=_session(found),
        previous_response_id=None,
        max_output_tokens=typed(found, "max_tokens", int),
        opening=b"".join((found.raw(name) or b"")[:OPENING_BYTES] for name in ("system", "messages")),
        coded=coded,
    )


def _tier(found: Fields) -> str | None:
    """`speed` is what OpenAI calls a tier: faster and dearer. `service_tier` says which capacity may be used, at the same price."""
    return "fast" if typed(found, "speed", str) == "fast" else typed(found, "service_tier", str)


def _session(found: Fields) -> str | None:
    """The conversation that `metadata.user_id` names, as Claude Code writes it: `user_…_account_…_session_ID`, or JSON.

    Whatever else stands there is a person's, whose conversations are not to be kept together.
    """
    user = _inside(found, "metadata", "user_id")
    if user is None or len(user) > LONGEST_USER:
        return None
    if user.startswith("{"):
        try:
            value = json.loads(user)
        except (ValueError, RecursionError):
            return None
        session = value.get("session_id") if isinstance(value, dict) else None
        return session if isinstance(session, str) and session else None
    named = _SESSION.search(user)
    return None if named is None else named.group(1)


def _inside(found: Fields, name: str, inner: str) -> str | None:
    """A text inside an object, which is as little to be there twice as a field of the body: a key may be denied it."""
    raw = found.raw(name)
    if raw is None or not raw.startswith(b"{"):
        return None
    value = fields.scan(raw).value(inner)
    return value if isinstance(value, str) else None


class MessagesWire(Wire):
    """Messages to Messages: bytes pass as they are; only the model's name may be another."""

    def __init__(self, inspection: Inspection, *, model: str) -> None:
        body = inspection.body if model == inspection.model else fields.edit(inspection.fields, {"model": model})
        super().__init__(path=PATH, body=body, is_streamed=inspection.stream, meter=MessagesMeter())

    def want(self, name: str) -> Want:
        return Want.WHOLE if name in _WHOLE else Want.COUNT

    def want_to_fold(self, name: str) -> Want:
        return self.want(name)

    def fold(self, events: list[Event]) -> bytes:
        raise ValueError("a stream that was not asked for")

    def failed(self, *, code: str, message: str, response_id: str, model: str, created_at: int, sequence_number: int) -> bytes:
        data = {"type": "error", "error": {"type": "api_error", "message": message, "code": code}}
        return b"event: error\ndata: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def wire(inspection: Inspection, *, model: str, kind: str) -> Wire:
    return MessagesWire(inspection, model=model)


def refusal(envelope: Mapping[str, Any], status: int) -> dict[str, Any]:
    """Anthropic's error body: its word for the status as type; our code and what is known of the limit stand beside it."""
    word = _TYPES_BY_CODE.get(str(envelope.get("code"))) or _TYPES.get(status)
    facts = {name: value for name, value in envelope.items() if name not in ("type", "message") and value is not None}
    kind = word or ("api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": envelope.get("message"), **facts}}
