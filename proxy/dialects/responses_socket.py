"""The Responses protocol over WebSocket: a client's frame is the HTTP body with a type of its own, its answer the same events
without the framing of a stream. Pure."""

from dataclasses import replace
from typing import Any

from proxy import metering
from proxy.dialects import fields, responses
from proxy.dialects.fields import REMOVED
from proxy.dialects.inspection import Coded, Inspection, typed
from proxy.dialects.wire import Wire
from proxy.errors import InvalidJson, openai_shape
from proxy.metering import Meter
from proxy.sse import Want
from routing.snapshots import CHATGPT, OPENAI

NAME = responses.NAME
KINDS = frozenset({CHATGPT, OPENAI})
"""Compatible endpoints rarely speak WebSocket; they are served over HTTP."""
HEARTBEAT = b'{"type":"keepalive"}'
CREATE = "response.create"


def inspect(body: bytes, *, coded: Coded | None = None) -> Inspection:
    """Reads a frame. Raises InvalidJson (also for another type), ModelMissing, NotServed."""
    found = responses.inspect(body, coded=coded)
    if typed(found.fields, "type", str) != CREATE:
        raise InvalidJson(f"The type of a frame must be {CREATE}.", param="type")
    return replace(found, is_warm_up=True) if typed(found.fields, "generate", bool) is False else found


class SocketWire(Wire):
    """A frame to an upstream socket. Only the model may change, and for sign-in accounts what their backend refuses."""

    def __init__(self, inspection: Inspection, *, model: str, kind: str) -> None:
        changes: dict[str, Any] = {} if model == inspection.model else {"model": model}
        if kind == CHATGPT:
            changes |= {"store": False, "max_output_tokens": REMOVED}
        super().__init__(
            path=f"/codex{responses.PATH}" if kind == CHATGPT else responses.PATH,
            body=fields.edit(inspection.fields, changes) if changes else inspection.body,
            is_streamed=True,
            meter=Meter(),
        )

    def want(self, name: str) -> Want:
        # A frame is at hand whole as it is.
        return metering.want_to_fold(name)

    def failed(self, *, code: str, message: str, response_id: str, model: str, created_at: int, sequence_number: int) -> bytes:
        event = responses.failed_event(
            response_id=response_id,
            model=model,
            created_at=created_at,
            # It ends what has begun.
            sequence_number=max(sequence_number, 1),
            code=code,
            message=message,
        )
        return event.partition(b"data: ")[2].rstrip()


def wire(inspection: Inspection, *, model: str, kind: str) -> Wire:
    return SocketWire(inspection, model=model, kind=kind)


refusal = openai_shape
