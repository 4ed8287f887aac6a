"""POST .../responses/compact: a conversation in, the items that stand for it out, in one piece (remote compaction v1).

Newer clients ask for a compaction by an item in an ordinary request for a response; that is `proxy.dialects.responses`. Pure.
"""

from proxy.dialects import fields, responses
from proxy.dialects.inspection import Coded, Inspection, NotServed
from proxy.dialects.responses import HEARTBEAT, NAME, ResponsesWire, refusal
from proxy.dialects.wire import Wire
from proxy.metering import Meter
from routing.snapshots import CHATGPT, OPENAI

__all__ = ["HEARTBEAT", "KINDS", "NAME", "inspect", "refusal", "wire"]

PATH = "/responses/compact"
KINDS = frozenset({CHATGPT, OPENAI})
"""Others that speak Responses need not know it."""


def inspect(body: bytes, *, coded: Coded | None = None) -> Inspection:
    """Reads a request body as one for a response. Raises InvalidJson, ModelMissing, NotServed."""
    found = responses.inspect(body, coded=coded)
    if found.stream:
        raise NotServed("A compaction is not streamed.", param="stream")
    return found


class CompactionMeter(Meter):
    """An answer without usage is whole, too, and costs what is estimated of it."""

    __slots__ = ()

    def see_response(self, body: bytes) -> None:
        super().see_response(body)
        if not self.status and b'"output"' in body:
            self.status = "ok"


class CompactionWire(ResponsesWire):
    """Bytes pass as they are, to sign-in accounts too: there is no stream to ask for and nothing that they would store."""

    def __init__(self, inspection: Inspection, *, model: str, kind: str) -> None:
        is_changed = model != inspection.model
        coded = None if is_changed or kind != CHATGPT else inspection.coded
        plain = fields.edit(inspection.fields, {"model": model}) if is_changed else inspection.body
        Wire.__init__(
            self,
            path=f"/codex{PATH}" if kind == CHATGPT else PATH,
            body=plain if coded is None else coded.data,
            encoding=None if coded is None else coded.encoding,
            is_streamed=False,
            meter=CompactionMeter(),
        )


def wire(inspection: Inspection, *, model: str, kind: str) -> Wire:
    return CompactionWire(inspection, model=model, kind=kind)
