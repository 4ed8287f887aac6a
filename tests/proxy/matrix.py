"""What each failure of an upstream does: the table of `tests/proxy/matrix_failures.py`, at every moment and on every surface, and
the rules that say what follows. `tests/proxy/test_matrix.py` runs every cell against the gateway; operators read it as
`docs/failures.md`, printed by

    python -m tests.proxy.matrix

The expectations are written from the design (its sections 6, 7 and 8: what an interrupted call pays, failover, refusals) and the
protocol note (section 5, what clients make of errors), not from what the gateway does.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from tests.proxy.matrix_failures import ANTHROPIC_FAILURES, OPENAI_FAILURES, Failure

SHORT_REST_SECONDS = 60
"""Accounts that rest for no longer than this make a pool busy; else it is exhausted."""
RENEWABLE = "chatgpt"


# -------------------------------------------------------------------------------------------------------- when and where


class Moment(Enum):
    """When it happens; the value says it to people. The first ones are of refusals, the others of connections."""

    STATUS = "instead of an answer, by its status (on a WebSocket: an error frame)"
    UPGRADE = "instead of the upgrade to a WebSocket"
    BODY = "as the body of a 200, instead of the answer"
    EVENT = "as the first event of a 200 stream, `error`"
    PREAMBLE = "inside a 200 stream, after its preamble"
    BEAT = "inside a 200 stream, after a heartbeat"
    OUTPUT = "inside a 200 stream, after output"
    CONNECT = "no connection"
    CUT_REQUEST = "the connection is cut once the request was sent"
    CUT_BEAT = "it is cut after a heartbeat"
    CUT_PREAMBLE = "it is cut after the stream's preamble"
    CUT_OUTPUT = "it is cut after output"
    CUT_BODY = "it is cut inside an answer that is no stream"
    END_PREAMBLE = "the stream ends without its terminal event, after its preamble"
    END_OUTPUT = "the stream ends without its terminal event, after output"
    SILENT_HEAD = "silence once the request was sent"
    SILENT_BODY = "silence after the head"
    SILENT_PREAMBLE = "silence after the stream's preamble"
    SILENT_OUTPUT = "silence after output"


M = Moment
REFUSALS = (M.STATUS, M.UPGRADE, M.BODY, M.EVENT, M.PREAMBLE, M.BEAT, M.OUTPUT)
BREAKS = tuple(moment for moment in Moment if moment not in REFUSALS)
SILENCES = (M.SILENT_HEAD, M.SILENT_BODY, M.SILENT_PREAMBLE, M.SILENT_OUTPUT)
IN_STREAM = (
    M.EVENT, M.PREAMBLE, M.BEAT, M.OUTPUT, M.CUT_BEAT, M.CUT_PREAMBLE, M.CUT_OUTPUT, M.END_PREAMBLE, M.END_OUTPUT,
    M.SILENT_PREAMBLE, M.SILENT_OUTPUT,
)  # fmt: skip
AFTER_OUTPUT = (M.OUTPUT, M.CUT_OUTPUT, M.CUT_BODY, M.END_OUTPUT, M.SILENT_OUTPUT)


@dataclass(frozen=True, slots=True)
class Surface:
    """What the client speaks, how, and the kind of account that serves it."""

    dialect: str
    transport: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.dialect} {self.transport}, {self.kind}"

    @property
    def wire(self) -> str:
        """What is spoken with the upstream."""
        if self.transport == "websocket":
            return "socket"
        return "responses" if self.dialect == "chat" and self.kind == "chatgpt" else self.dialect

    @property
    def asks_for_usage(self) -> bool:
        """Half of the chats want their stream's usage."""
        return self.kind != "openai_compatible"

    @property
    def is_streamed(self) -> bool:
        """The upstream is asked for a stream: the sign-in backend gives nothing else."""
        return self.transport != "json" or (self.kind == "chatgpt" and self.dialect != "compact")

    @property
    def is_folded(self) -> bool:
        """A stream that becomes one object."""
        return self.transport == "json" and self.is_streamed

    @property
    def is_rewritten(self) -> bool:
        """The stream's events are not passed as they come: of another dialect, or the usage taken out that nobody asked for."""
        return self.dialect == "chat" and self.transport == "sse" and (self.kind == "chatgpt" or not self.asks_for_usage)

    @property
    def is_live(self) -> bool:
        """The client sees the stream grow."""
        return self.transport != "json"

    @property
    def failures(self) -> tuple[Failure, ...]:
        return ANTHROPIC_FAILURES if self.kind == "anthropic" else OPENAI_FAILURES


KINDS = ("chatgpt", "openai", "openai_compatible", "anthropic")
SURFACES: tuple[Surface, ...] = (
    *(Surface("responses", transport, kind) for transport in ("sse", "json") for kind in KINDS[:3]),
    *(Surface("responses", "websocket", kind) for kind in KINDS[:2]),
    *(Surface("chat", transport, kind) for transport in ("sse", "json") for kind in KINDS[:3]),
    *(Surface("messages", transport, "anthropic") for transport in ("sse", "json")),
    *(Surface("compact", "json", kind) for kind in KINDS[:2]),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """`failure` is None where the connection fails."""

    surface: Surface
    moment: Moment
    failure: Failure | None = None

    @property
    def name(self) -> str:
        said = f"{self.failure.name}, " if self.failure is not None else ""
        return f"{self.surface.name}: {said}{self.moment.name}"


# Why a cell is not there; the first that is true.
EXCLUSIONS: tuple[tuple[str, Callable[[Cell], bool]], ...] = (
    (
        "an answer that is no stream has no events",
        lambda cell: cell.moment in IN_STREAM and not cell.surface.is_streamed,
    ),
    (
        "a client that wants one object hears no heartbeats",
        lambda cell: cell.moment in (M.BEAT, M.CUT_BEAT) and not cell.surface.is_live,
    ),
    (
        "only WebSockets begin with an upgrade",
        lambda cell: cell.moment is M.UPGRADE and cell.surface.wire != "socket",
    ),
    (
        "that an upstream speaks no WebSocket is said to an upgrade",
        lambda cell: cell.failure is not None and cell.failure.means == "no socket" and cell.moment is not M.UPGRADE,
    ),
    (
        "a stream, a frame and a body can only say what has a code of its own",
        lambda cell: (
            cell.failure is not None
            and not cell.failure.is_event
            and (cell.moment in (M.EVENT, M.PREAMBLE, M.BEAT, M.OUTPUT, M.BODY))
        ),
    ),
    (
        "an error frame holds an error object, no page",
        lambda cell: cell.surface.wire == "socket" and cell.moment is M.STATUS and _is_text(cell),
    ),
    (
        "on a WebSocket an `error` has a status, and is what a status is elsewhere",
        lambda cell: cell.surface.wire == "socket" and cell.moment is M.EVENT,
    ),
    (
        "a WebSocket has neither bodies nor heads, and its answers no end but their events",
        lambda cell: (
            cell.surface.wire == "socket"
            and cell.moment in (M.BODY, M.CUT_BODY, M.END_PREAMBLE, M.END_OUTPUT, M.SILENT_BODY, M.CUT_BEAT)
        ),
    ),
    (
        "a stream is cut, or silent, among its events",
        lambda cell: cell.moment in (M.CUT_BODY, M.SILENT_BODY) and cell.surface.is_streamed,
    ),
    (
        "the vendor's sign-in backend is one address for all accounts",
        lambda cell: cell.moment is M.CONNECT and cell.surface.kind == "chatgpt",
    ),
)


def _is_text(cell: Cell) -> bool:
    return cell.failure is not None and isinstance(cell.failure.body, str)


def excluded(cell: Cell) -> str:
    """Why the cell cannot be, "" if it can."""
    return next((why for why, fits in EXCLUSIONS if fits(cell)), "")


def cells() -> Iterator[Cell]:
    """Every cell that can be."""
    for surface in SURFACES:
        for moment in Moment:
            for failure in surface.failures if moment in REFUSALS else (None,):
                cell = Cell(surface, moment, failure)
                if not excluded(cell):
                    yield cell


# --------------------------------------------------------------------------------------------------------- expectations


class How(Enum):
    """What the client gets."""

    ANSWER = "the other account's answer"
    OWN = "the upstream's own words"
    OWN_EVENT = "the upstream's own events"
    REFUSAL = "a refusal"
    EVENT = "a failing event in its stream"


@dataclass(frozen=True, slots=True)
class Told:
    """`word` is the code (Messages: the type); None: as the upstream said it. `wait`: seconds of Retry-After, rounded up.
    `resets`: "told", the reset that the upstream told; "rests", when the account's rest is over."""

    how: How
    status: int = 200
    word: str | None = None
    kind: str | None = None
    wait: float | None = None
    resets: str = ""


class Pays(Enum):
    NOTHING = "nothing"
    INPUT = "its input, estimated"
    SEEN = "its input and the output seen, estimated"
    USAGE = "the other account's usage"
    BOTH = "the output seen, estimated, and the other account's usage"


@dataclass(frozen=True, slots=True)
class Expected:
    """`attempts`: requests that leave for the failing account. `status` of the row in the log; None: nothing ran, so no row."""

    attempts: int
    told: Told
    rests: float | None
    resets: bool
    signs_out: bool
    pays: Pays
    status: str | None


UNREACHABLE_REST_SECONDS = 5.0
NO_SOCKET = (404, 426)
"""An upgrade answered so is no word about the request: the client is to come over HTTP."""
UNAVAILABLE = Told(How.REFUSAL, 502, "upstream_unavailable", "server_error")
INCOMPLETE = Told(How.EVENT, 200, "stream_incomplete")
ANSWERED = Told(How.ANSWER)
MOST_ATTEMPTS = 3


def expect(cell: Cell, *, has_second: bool) -> Expected:
    """What must come of the cell, in a pool of the failing account alone or with a second one, which is well."""
    return _broken(cell, has_second=has_second) if cell.failure is None else _refused(cell, cell.failure, has_second=has_second)


def _refused(cell: Cell, failure: Failure, *, has_second: bool) -> Expected:
    meaning = failure.meaning
    is_renewed = meaning.renews and cell.surface.kind == RENEWABLE and cell.moment in (M.STATUS, M.UPGRADE)
    is_shown = cell.moment is M.OUTPUT and cell.surface.is_live
    is_moved = has_second and meaning.moves and not is_shown
    has_run = cell.moment is not M.UPGRADE or is_moved
    if is_moved:
        pays, status = Pays.BOTH if cell.moment is M.OUTPUT else Pays.USAGE, "ok"
    else:
        pays, status = Pays.SEEN if cell.moment is M.OUTPUT else Pays.NOTHING, "failed"
    return Expected(
        attempts=2 if is_renewed else 1,
        told=ANSWERED if is_moved else _told(cell, failure),
        rests=failure.rests,
        resets=bool(failure.resets),
        signs_out=meaning.signs_out,
        pays=pays,
        status=status if has_run else None,
    )


def _told(cell: Cell, failure: Failure) -> Told:
    """Where no other account answers."""
    surface, moment = cell.surface, cell.moment
    if moment is M.UPGRADE and failure.status in NO_SOCKET:
        return Told(How.REFUSAL, 400, "websocket_connection_limit_reached", "invalid_request_error")
    if moment is M.OUTPUT and surface.is_live:
        # What the client has seen goes on as it came.
        return Told(How.OWN_EVENT, word=failure.word)
    if not failure.meaning.is_clients:
        refusal = _refusal(failure)
        return Told(How.EVENT, word=refusal.word) if moment is M.BEAT and surface.wire != "socket" else refusal
    if moment in (M.STATUS, M.UPGRADE):
        return Told(How.OWN, failure.status)
    if moment is M.BODY:
        return Told(How.OWN, 200)
    if moment is M.OUTPUT and surface.dialect == "responses":
        # A response that failed may hold output.
        return Told(How.OWN_EVENT, word=failure.word)
    if surface.is_folded or (surface.is_rewritten and moment is not M.BEAT):
        # It has no stream yet, so it can have a status.
        is_server = failure.means in ("broken", "late")
        kind = "server_error" if is_server else "invalid_request_error"
        return Told(How.REFUSAL, 502 if is_server else 400, failure.word, kind)
    return Told(How.OWN_EVENT, word=failure.word)


def _refusal(failure: Failure) -> Told:
    """Of a pool whose accounts cannot serve now; never the account's own status."""
    if failure.resets:
        return Told(How.REFUSAL, 429, "pool_exhausted", "usage_limit_reached", resets="told")
    assert failure.rests is not None
    if failure.rests > SHORT_REST_SECONDS:
        return Told(How.REFUSAL, 429, "pool_exhausted", "usage_limit_reached", resets="rests")
    return Told(How.REFUSAL, 429, "pool_busy", "rate_limit_exceeded", wait=failure.rests)


def _broken(cell: Cell, *, has_second: bool) -> Expected:
    """What was written is never sent again, wherever it stopped; only a connection that did not come about is tried elsewhere."""
    surface, moment = cell.surface, cell.moment
    if moment is M.CONNECT:
        return Expected(
            attempts=0,
            told=ANSWERED if has_second else UNAVAILABLE,
            rests=UNREACHABLE_REST_SECONDS,
            resets=False,
            signs_out=False,
            pays=Pays.USAGE if has_second else Pays.NOTHING,
            status="ok" if has_second else None,
        )
    # A preamble is passed on once it has waited for what comes next; a cut comes sooner than that.
    is_shown = surface.is_live and moment in (M.CUT_OUTPUT, M.END_OUTPUT, M.SILENT_PREAMBLE, M.SILENT_OUTPUT)
    is_ours = moment in SILENCES
    if moment in AFTER_OUTPUT:
        pays = Pays.SEEN
    else:
        pays = Pays.INPUT if is_ours else Pays.NOTHING
    told = INCOMPLETE if is_shown else UNAVAILABLE
    if moment is M.CUT_BEAT:
        told = Told(How.EVENT, 200, "upstream_unavailable")
    return Expected(
        attempts=1,
        told=told,
        rests=None if is_shown else UNREACHABLE_REST_SECONDS,
        resets=False,
        signs_out=False,
        pays=pays,
        status="failed" if moment in (M.CUT_REQUEST, M.SILENT_HEAD) else "upstream_cut",
    )


if __name__ == "__main__":
    from tests.proxy.matrix_page import markdown

    sys.stdout.write(markdown())
