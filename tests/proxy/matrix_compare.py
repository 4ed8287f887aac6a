"""What came of a cell of the matrix, and how that differs from what is expected. Pure."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from billing.models import UsageRecord
from routing import live
from routing.models import PoolAccount
from tests import factories
from tests.flows.tenants import cost
from tests.proxy import matrix_script
from tests.proxy.matrix import ANSWERED, Cell, Expected, How, Moment, Pays, Surface, Told, expect

ANTHROPIC_TYPES = {400: "invalid_request_error", 429: "rate_limit_error", 502: "api_error"}


@dataclass(slots=True)
class Seat:
    """A pool of its own with its key: one account that fails, and maybe a second one that is well."""

    key: factories.Key
    pool_id: int
    accounts: list[PoolAccount]
    tokens: list[str] = field(repr=False)

    @property
    def failing(self) -> PoolAccount:
        return self.accounts[0]

    @property
    def has_second(self) -> bool:
        return len(self.accounts) > 1

    def match(self) -> dict[str, str]:
        """Which requests are the failing account's."""
        account = self.failing
        return {"account": account.chatgpt_account_id} if account.chatgpt_account_id else {"token": self.tokens[0]}


@dataclass(slots=True)
class Heard:
    """What the client got. `events`: the data of a stream, or the frames; heartbeats are counted and left out."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    events: list[Any] = field(default_factory=list)
    beats: int = 0


@dataclass(slots=True)
class Run:
    """One cell in one seat, and all that is known of it afterwards. Times in unix seconds."""

    cell: Cell
    seat: Seat
    session: str
    resets_at: int
    began: float = 0.0
    heard: Heard | None = None
    ended: float = 0.0
    states: list[live.AccountState] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    received: int = 0
    rows: list[UsageRecord] = field(default_factory=list)


def differences(run: Run) -> Iterator[str]:
    """What came otherwise than the rules say."""
    expected = expect(run.cell, has_second=run.seat.has_second)
    if run.heard is None:
        yield "the client waited in vain"
        return
    yield from _told(run, run.heard, expected.told)
    yield from _accounts(run, expected)
    yield from _paid(run, expected)
    if run.received != expected.attempts:
        yield f"{run.received} requests for {expected.attempts}"
    if run.cell.moment in (Moment.BEAT, Moment.CUT_BEAT) and not run.heard.beats:
        yield "no heartbeat"


def _told(run: Run, heard: Heard, told: Told) -> Iterator[str]:
    surface = run.cell.surface
    if surface.transport == "websocket":
        last = heard.events[-1]
        got_status = last["status"] if last["type"] == "error" else 200
        headers = {name: str(value) for name, value in last.get("headers", {}).items()}
        body: Any = {"error": last.get("error")}
    else:
        got_status, headers = heard.status, heard.headers
        body = loaded(heard.body)
    if got_status != told.status:
        yield f"status {got_status} for {told.status}: {_short(heard)}"
        return
    if told.how is How.ANSWER:
        if not _is_whole(surface, heard, body):
            yield f"no answer: {_short(heard)}"
    elif told.how is How.REFUSAL:
        yield from _refusal(run, told, headers, body)
    elif told.how is How.OWN:
        yield from _own(run, heard, body)
    else:
        word = _word_of_event(surface, heard, body)
        if word != told.word:
            yield f"event {word} for {told.word}: {_short(heard)}"


def _refusal(run: Run, told: Told, headers: dict[str, str], body: Any) -> Iterator[str]:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        yield f"no error object: {body}"
        return
    kind = told.kind
    if run.cell.surface.dialect == "messages":
        kind = ANTHROPIC_TYPES[told.status]
        if body.get("type") != "error":
            yield "not in the shape of Messages"
    if (error.get("type"), error.get("code")) != (kind, told.word) and error.get("type") != told.word:
        yield f"{error.get('type')} {error.get('code')} for {kind} {told.word}"
    if not isinstance(error.get("message"), str):
        yield "no message"
    waits = headers.get("retry-after")
    if told.wait is not None and waits != str(math.ceil(told.wait)):
        yield f"Retry-After {waits} for {math.ceil(told.wait)}"
    if told.resets:
        yield from _reset(run, told, headers, error)
    if told.wait is None and not told.resets and waits is not None:
        yield f"Retry-After {waits}"


def _reset(run: Run, told: Told, headers: dict[str, str], error: dict[str, Any]) -> Iterator[str]:
    """The earliest true reset, the wait until then, and that the SDKs need not try before."""
    low = high = float(run.resets_at)
    if told.resets == "rests":
        assert run.cell.failure is not None
        assert run.cell.failure.rests is not None
        low, high = run.began + run.cell.failure.rests, run.ended + run.cell.failure.rests
    resets_at = error.get("resets_at")
    if resets_at is None or not low <= resets_at <= high + 1:
        yield f"resets_at {resets_at} for {low}"
        return
    waits = int(headers.get("retry-after", "-1"))
    if not resets_at - run.ended - 1 <= waits <= resets_at - run.began + 1:
        yield f"Retry-After {waits} for {resets_at - run.ended}"
    if headers.get("x-should-retry") != "false":
        yield "x-should-retry is not false"


def _own(run: Run, heard: Heard, body: Any) -> Iterator[str]:
    """The upstream's words; `detail` alone is put where SDKs read it."""
    failure = run.cell.failure
    assert failure is not None
    said = failure.said(run.resets_at)
    if isinstance(said, str):
        got = body["error"]["message"] if run.cell.surface.transport == "websocket" else heard.body.decode()
        if got != said:
            yield f"said {got!r}"
        return
    if "detail" in said:
        got, said = (body.get("error") or {}).get("message"), said["detail"]
    else:
        got = body
        if run.cell.surface.transport == "websocket":
            said = {"error": said["error"]}
    if got != said:
        yield f"said {got} for {said}"


def _word_of_event(surface: Surface, heard: Heard, body: Any) -> Any:
    """How the last event, or the one object of a folded stream, says that the answer failed."""
    if not surface.is_live:
        return (body.get("error") or {}).get("code") if isinstance(body, dict) else None
    last = heard.events[-1] if heard.events else None
    if not isinstance(last, dict):
        return None
    if surface.dialect == "responses":
        if last["type"] != "response.failed":
            return last["type"]
        numbers = [event["sequence_number"] for event in heard.events if "sequence_number" in event]
        if numbers != sorted(set(numbers)):
            return f"numbers {numbers}"
        return last["response"]["error"]["code"]
    error = last.get("error") or {}
    if surface.dialect == "messages":
        # Ours says why in a field of its own; its type is one that clients know.
        return error.get("code", error.get("type"))
    return error.get("code")


def _is_whole(surface: Surface, heard: Heard, body: Any) -> bool:
    if not surface.is_live:
        named = {"responses": "output", "chat": "choices", "messages": "content", "compact": "output"}[surface.dialect]
        return isinstance(body, dict) and bool(body.get(named)) and not body.get("error")
    last = heard.events[-1] if heard.events else None
    if surface.dialect == "chat":
        return last == "[DONE]" and not any("error" in event for event in heard.events[:-1])
    done = {"responses": "response.completed", "messages": "message_stop"}[surface.dialect]
    return isinstance(last, dict) and last["type"] == done and not any(event["type"] == "error" for event in heard.events)


def _accounts(run: Run, expected: Expected) -> Iterator[str]:
    state = run.states[0]
    yield from _rest(run, state.cooling_until_ms / 1000, expected)
    if state.exhausted_until != (run.resets_at if expected.resets else 0):
        yield f"exhausted until {state.exhausted_until}"
    status = "needs_sign_in" if expected.signs_out else "active"
    if run.statuses[0] != status:
        yield f"the account is {run.statuses[0]}"
    for other, known in zip(run.states[1:], run.statuses[1:], strict=True):
        if other.cooling_until_ms or other.exhausted_until or known != "active":
            yield "the other account suffers"


def _rest(run: Run, until: float, expected: Expected) -> Iterator[str]:
    if expected.rests is None:
        if until:
            yield f"rests for {until - run.began:.1f} s"
    elif not run.began + expected.rests - 0.01 <= until <= run.ended + expected.rests + 2:
        yield f"rests for {until - run.began if until else 0:.1f} s, not {expected.rests:g}"


def _paid(run: Run, expected: Expected) -> Iterator[str]:
    if len(run.rows) != (expected.status is not None):
        yield f"{len(run.rows)} rows"
        return
    if not run.rows:
        return
    row = run.rows[0]
    if row.status != expected.status:
        yield f"row {row.status} for {expected.status}"
    steps = expected.attempts + (expected.told == ANSWERED) if run.cell.moment is not Moment.CONNECT else 2
    if len(row.trace) != steps:
        yield f"{len(row.trace)} steps in the trace for {steps}"
    surface = run.cell.surface
    match expected.pays:
        case Pays.NOTHING:
            if row.credits or row.is_estimated:
                yield f"pays {row.credits} for nothing"
        case Pays.INPUT | Pays.SEEN:
            asked, output = matrix_script.input_tokens(surface), matrix_script.seen_tokens(run.cell)
            pays = (row.credits, row.output_tokens, row.is_estimated)
            if pays != (cost(input=asked, output=output), output, True):
                yield f"pays {row.credits}, {row.input_tokens} + {row.output_tokens} tokens for {asked} + {output}"
        case Pays.BOTH:
            seen = cost(input=matrix_script.input_tokens(surface), output=matrix_script.seen_tokens(run.cell))
            at = [line["account_id"] for line in row.lines]
            if at != [account.pk for account in run.seat.accounts] or row.lines[0]["credits"] != seen or row.credits <= seen:
                yield f"pays {row.credits}: {row.lines}"
        case Pays.USAGE:
            if not row.credits or row.is_estimated is not _is_usage_estimated(surface) or row.account_id != run.seat.accounts[1].pk:
                yield f"pays {row.credits}, estimated {row.is_estimated}, at account {row.account_id}"


def _is_usage_estimated(surface: Surface) -> bool:
    """The sign-in backend counts no compactions."""
    return (surface.dialect, surface.kind) == ("compact", "chatgpt")


def loaded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _short(heard: Heard) -> str:
    told = json.dumps(heard.events[-2:]) if heard.events else heard.body.decode(errors="replace")
    return told[:300]
