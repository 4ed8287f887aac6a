"""The engine's values, packed and unpacked: views, holds, events, records (quotas.md section 2).

Structured values are flat MessagePack: values one after another, no array header, strings as `str` (cmsgpack knows no `bin`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

PERIOD, FIVE_HOURS, ONE_DAY, SEVEN_DAYS, THIRTY_DAYS, DAY, WEEK, MONTH = range(1, 9)
"""Kinds of a window's code, which is `start * 16 + kind`."""
PLAN = 9
"""The 'code' of a refusal by the source's quota."""
PLAN_ROLLING = 10
"""The same, by the rolling limit on what the plan pays."""
CREDITS, TOKENS, REQUESTS, PER_MINUTE, CONCURRENT, PER_SECOND, PLAN_PAID = range(1, 8)
"""Metrics. The last is put to a source's own record: what the plan pays may not pass its quota in a rolling window either."""
BY_SECOND = 16
"""Added to a metric: its rolling window is counted by the second, from a log."""


def code(kind: int, start: int = 0) -> int:
    """A window's code: start in seconds for the period, the first day's ordinal for days, weeks, months, else 0."""
    return start * 16 + kind


def pack(values: Iterable[Any]) -> bytes:
    """Flat MessagePack. Raises TypeError for what cmsgpack could not read back: floats, None, bools, nested values."""
    packer = msgpack.Packer(use_bin_type=False, autoreset=False)
    for value in values:
        if type(value) not in (int, str, bytes):
            raise TypeError(f"cannot be packed for the engine: {type(value).__name__}")
        packer.pack(value)
    packed: bytes = packer.bytes()
    return packed


def unpack(data: bytes) -> list[Any]:
    """The values of flat MessagePack; strings as str (packed ones inside as surrogates). Raises ValueError for anything else."""
    unpacker = msgpack.Unpacker(raw=False, unicode_errors="surrogateescape", strict_map_key=False)
    unpacker.feed(data)
    try:
        values = list(unpacker)
    except (msgpack.UnpackException, ValueError) as error:
        raise ValueError("not flat MessagePack") from error
    if unpacker.tell() != len(data):
        raise ValueError("cut short")
    return values


@dataclass(frozen=True, slots=True)
class Question:
    """A limit as the engine sees it: window position 0 is the plan period, 1.. the record's codes; 0 for metrics 4 to 6."""

    metric: int
    position: int
    value: int


@dataclass(frozen=True, slots=True)
class RecordView:
    """One record to count an admission in, the windows it must hold, and the questions put to it."""

    name: str
    codes: tuple[int, ...] = ()
    questions: tuple[Question, ...] = ()

    @property
    def signature(self) -> str:
        """The codes; with an `L` if the record needs a log."""
        is_logged = any(question.metric > BY_SECOND for question in self.questions)
        return ",".join(map(str, self.codes)) + ("L" if is_logged else "")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a source's period grants: micro-credits; a cap of 0 means no overage."""

    quota: int
    is_purchased_allowed: bool = False
    overage_cap: int = 0


def pack_view(
    *,
    version: int,
    day: int,
    valid_from: int,
    valid_until: int,
    period_start: int,
    source: str,
    fund_start: int,
    terms: Terms,
    records: Sequence[RecordView],
) -> bytes:
    """The view that admit and peek take: valid in [valid_from, valid_until), `o` first."""
    values: list[Any] = [version, day, valid_from, valid_until, code(PERIOD, period_start), source, fund_start]
    values += [terms.quota, int(terms.is_purchased_allowed), terms.overage_cap, len(records)]
    for record in records:
        values += [record.name, record.signature, len(record.codes), *record.codes, len(record.questions)]
        for question in record.questions:
            values += [question.metric, question.position, question.value]
    return pack(values)


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the usage stream. Part 1 holds differences, which may be negative. Amounts in micro-credits."""

    request_id: str
    part: int
    state: str
    admitted_s: int
    day: int
    period_code: int
    source: str
    fund_start: int
    credits: int
    tokens: int
    requests: int
    plan: int
    purchased: int
    overage: int
    overdraft: int
    ended_ms: int
    outcome: str
    """OK, LATE, AMENDED, ORPHANED; LOGGED: there were no counters, so the split is a guess (all on the plan)."""
    records: tuple[str, ...]
    stream_id: str
    body: bytes


def read_event(stream_id: bytes, fields: dict[bytes, bytes]) -> Event:
    """A stream entry. Raises ValueError if it is not one of ours."""
    try:
        values = unpack(fields[b"e"])
        body = fields[b"b"]
    except KeyError as error:
        raise ValueError("a field is missing") from error
    kinds = [str, int, str, *[int] * 3, str, *[int] * 9, str]
    if len(values) < len(kinds) or any(type(value) is not kind for value, kind in zip(values, kinds, strict=False)):
        raise ValueError("wrong values")
    if values[1] not in (0, 1) or values[2] not in ("S", "O") or not all(isinstance(name, str) for name in values[17:]):
        raise ValueError("wrong values")
    if sum(values[11:15]) != values[8]:
        raise ValueError("the funding does not add up to the credits")
    everything: list[Any] = [*values[:17], tuple(values[17:]), stream_id.decode("ascii"), body]
    return Event(*everything)


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a hold's ticket says about its admission."""

    second: int
    day: int
    period_code: int
    source: str
    fund_start: int
    seen_ms: int
    """When it was last seen alive: what a repeated admission may take as its ack, however late the answer comes."""
    records: tuple[str, ...]


def read_ticket(ticket: bytes) -> Ticket:
    """The parts of a ticket that Python needs; everything else is the engine's."""
    values = unpack(ticket)
    return Ticket(values[1], values[3], values[4], values[5], values[6], values[18], tuple(values[19:]))
