"""Adds to living counters what the log says they lack (quotas.md section 10): repairs of the reconciler, the filling of filters.

A repair is found by comparing a copy of the counters with the log, and added while traffic goes on: additions commute. Two
repairs of one organization at once would both add the same difference, so whoever takes the copy holds `sole_repairer` until
the additions are answered. A repair that was interrupted between two of its pieces is not continued: compare anew.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from django.db import connection

from config.redis import sync_client
from quotas import engine, records

LOCK = 0x77656974
"""First key of the advisory lock; the second is the organization."""
PIECE = 400
"""Deltas for one call: what Lua can unpack at once, and a millisecond or two of the server's time."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Differences of one cell: `tag` f, c or d and its bucket or day (`quotas.md` section 2), credits, tokens, requests."""

    record: str
    tag: str
    at: int
    credits: int
    tokens: int
    requests: int


@dataclass(frozen=True, slots=True)
class Total:
    """Differences of a record's plan period; a newer period than the record's begins with them, an older one is not kept."""

    record: str
    period_code: int
    credits: int
    tokens: int
    requests: int


@dataclass(frozen=True, slots=True)
class Funding:
    """Differences of what a source's period has booked."""

    source: str
    start: int
    plan: int
    purchased: int
    overage: int
    overdraft: int


@dataclass(frozen=True, slots=True)
class Spent:
    """A difference of the purchased credits that the organization has spent in all."""

    amount: int


Delta = Cell | Total | Funding | Spent


@contextmanager
def sole_repairer(organization_id: int) -> Iterator[bool]:
    """Yields whether nobody else repairs this organization now; others are kept out until the end. One connection's lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [LOCK, organization_id % 2**31])
        is_ours = bool(cast(Any, cursor.fetchone())[0])
    try:
        yield is_ours
    finally:
        if is_ours and connection.is_usable():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [LOCK, organization_id % 2**31])


def adjust(organization_id: int, epoch: int, repair_id: str, deltas: Sequence[Delta], *, now_ms: int | None = None) -> str:
    """Adds the differences to the counters of `epoch`: `OK`; `DUP` if this repair was added before; `LOST` if the counters are
    others by now (rebuilt, or gone), and then nothing more is added.

    Whatever is missing is made. `repair_id` is new for every comparison; its pieces are numbered. `now_ms` in tests. Raises
    RedisUnavailable.
    """
    # What was spent goes with the entries that are fitted by it, so both are in front.
    ordered = sorted(deltas, key=lambda delta: (not isinstance(delta, Spent), not isinstance(delta, Funding)))
    answers: set[str] = set()
    for start in range(0, len(ordered), PIECE):
        packed = records.pack([value for delta in ordered[start : start + PIECE] for value in _values(delta)])
        args = ("" if now_ms is None else now_ms, epoch, f"{repair_id}/{start // PIECE}", packed)
        answer = engine.ADJUST.run(sync_client(), engine.keys(organization_id), args)[0].decode()
        if answer in ("LOST", "COLD"):
            return "LOST"
        answers.add(answer)
    return "DUP" if answers == {"DUP"} else "OK"


def _values(delta: Delta) -> list[int | str]:
    match delta:
        case Cell():
            return ["c", delta.record, delta.tag, delta.at, delta.credits, delta.tokens, delta.requests]
        case Total():
            return ["t", delta.record, delta.period_code, delta.credits, delta.tokens, delta.requests]
        case Funding():
            return ["f", delta.source, delta.start, delta.plan, delta.purchased, delta.overage, delta.overdraft]
        case Spent():
            return ["s", delta.amount]
