"""The seam between the engine and the dialects: a `Dialect` reads a client's request, a `Wire` is one attempt at an account.

The engine (`proxy.exchange`) admits, selects, retries and settles; it never looks into a body. A wire that passes everything on as
it comes is `Wire` itself; one whose account speaks another dialect than the client overrides `translated`, `fold` and `whole`.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from proxy.dialects.inspection import Coded, Inspection
from proxy.metering import Meter
from proxy.sse import Event, Want


class Wire:
    """What one attempt says to an upstream, and how its answer reads.

    `path` is below the account's base URL; `encoding` the content coding of `body`, None if it is plain; `is_streamed`: the
    upstream is asked for a stream, which becomes one object if the client did not ask for one.
    """

    is_translated = False
    """The stream's events are rewritten (`translated`), and so wanted whole. Else its bytes pass as they are."""

    def __init__(self, *, path: str, body: bytes, is_streamed: bool, meter: Meter, encoding: str | None = None) -> None:
        self.path = path
        self.body = body
        self.encoding = encoding
        self.is_streamed = is_streamed
        self.meter = meter

    def want(self, name: str) -> Want:
        """What the relay needs of the upstream's events of this name."""
        raise NotImplementedError

    def want_to_fold(self, name: str) -> Want:
        """The same, where the events become one object: WHOLE are those that `fold` needs."""
        raise NotImplementedError

    def translated(self, events: list[Event]) -> bytes:
        """What the client gets for these events of the upstream's, which the meter has seen. Only if `is_translated`."""
        raise NotImplementedError

    def fold(self, events: list[Event]) -> bytes:
        """The one object for the client, of all events that were kept WHOLE. Raises ValueError if they make none."""
        raise NotImplementedError

    def whole(self, body: bytes) -> bytes:
        """The upstream's answer that is no stream, as the client gets it."""
        return body

    def failed(self, *, code: str, message: str, response_id: str, model: str, created_at: int, sequence_number: int) -> bytes:
        """What ends the client's stream in its own dialect, where we must end it ourselves."""
        raise NotImplementedError


class Dialect(Protocol):
    """A client's protocol. Modules of `proxy.dialects` are dialects."""

    NAME: str
    """Names its usage counts too (`billing.tokens`)."""
    KINDS: frozenset[str]
    """Kinds of accounts that can serve it."""
    HEARTBEAT: bytes
    """What keeps a silent stream alive, between events."""

    def inspect(self, body: bytes, *, coded: Coded | None = None) -> Inspection:
        """Reads a request body. Raises InvalidJson, ModelMissing, NotServed."""

    def wire(self, inspection: Inspection, *, model: str, kind: str) -> Wire:
        """An attempt at an account of `kind`, which is asked for `model` (it differs from the asked name for an alias)."""

    def refusal(self, envelope: Mapping[str, Any], status: int) -> dict[str, Any]:
        """The body of a refusal in the dialect's own shape; `envelope` is OpenAI's error object (`proxy.errors`)."""
