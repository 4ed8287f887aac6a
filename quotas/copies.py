"""A copy of an organization's counters at one moment, and what it counts. Reads; changes nothing."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from redis import Redis as SyncRedis

from config.redis import translated
from quotas import engine, records

RECORD = re.compile(r"^(o|[tmk]\d+)(~[a-z]\d+.*)?$")
CELL = re.compile(r"^([^|]+)\|([fcds])(\d+)$")

Amounts = list[int]
"""Credits, tokens, requests."""
StreamId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Record:
    """One record, without its cells."""

    live: int
    newest: int
    fine: int
    day: int
    held: tuple[int, int]
    period_code: int
    total: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Hold:
    """A live hold: when it was admitted, what it counts, and where."""

    second: int
    day: int
    period_code: int
    source: str
    fund_start: int
    amounts: tuple[int, int, int]
    names: tuple[str, ...]


@dataclass(slots=True)
class Copy:
    """What the hash held at the cut. Cells are by (record, tag, bucket or day), with the open bucket in its place."""

    epoch: int
    cut: StreamId
    taken_ms: int
    spent: int
    records: dict[str, Record] = field(default_factory=dict)
    cells: dict[tuple[str, str, int], Amounts] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))
    funding: dict[tuple[str, int], tuple[int, int, int, int]] = field(default_factory=dict)
    """By source and period start: plan used, purchased, overage, overdraft."""
    holds: list[Hold] = field(default_factory=list)

    @property
    def newest(self) -> int:
        """The organization's newest second: time as the counters know it."""
        return self.records["o"].newest if "o" in self.records else self.taken_ms // 1000

    @property
    def period_code(self) -> int:
        """The plan period that the counters have got to; 0 if none."""
        return self.records["o"].period_code if "o" in self.records else 0

    def total_of(self, name: str, code: int) -> tuple[int, int, int]:
        """What a record counts of a plan period."""
        record = self.records.get(name)
        return record.total if record is not None and record.period_code == code else (0, 0, 0)


def take(redis: "SyncRedis", organization_id: int, *, now_ms: int | None = None) -> Copy | None:
    """The counters and the stream's last id in one step; None if there are no counters. Raises RedisUnavailable; ValueError
    for counters that cannot be read."""
    stream = engine.stream_key(organization_id)
    with translated():
        pipeline = redis.pipeline(transaction=True)
        pipeline.hgetall(engine.counters_key(organization_id))
        pipeline.xinfo_stream(stream)
        pipeline.time()
        fields, information, (seconds, micros) = cast(Any, pipeline.execute(raise_on_error=False))
    if isinstance(fields, Exception):
        raise fields
    if b"$" not in fields:
        return None
    # A stream that is not there is an error, and an empty one's last id is kept.
    last = "0-0" if isinstance(information, Exception) else information["last-generated-id"].decode()
    meta = records.unpack(fields[b"$"])
    copy = Copy(
        epoch=meta[0],
        cut=order(last),
        taken_ms=now_ms if now_ms is not None else seconds * 1000 + micros // 1000,
        spent=meta[3],
    )
    _read(copy, fields)
    return copy


def order(stream_id: str) -> StreamId:
    milliseconds, _, number = stream_id.partition("-")
    return int(milliseconds), int(number)


def _read(copy: Copy, fields: Mapping[bytes, bytes]) -> None:
    for raw_name, raw in fields.items():
        name = raw_name.decode("utf-8", "replace")
        if cell := CELL.match(name):
            kept = copy.cells[(cell[1], cell[2], int(cell[3]))]
            for index, amount in enumerate(raw.split()):
                kept[index] += int(amount)
        elif name.startswith("h:"):
            _read_hold(copy, records.unpack(raw))
        elif name[:2] in ("f:", "p:"):
            values = records.unpack(raw)
            copy.funding[(name[2:], values[0])] = (values[4], values[7], values[8], values[9])
        elif RECORD.match(name):
            _read_record(copy, name, records.unpack(raw))


def _read_record(copy: Copy, name: str, values: list[Any]) -> None:
    bucket, closed = values[4:7], records.unpack(values[14].encode("utf-8", "surrogateescape"))
    for tag, at in (("f", values[2]), ("c", values[2] // 36), ("d", values[3])):
        kept = copy.cells[(name, tag, at)]
        for index in range(3):
            kept[index] += bucket[index]
    copy.records[name] = Record(
        live=values[0],
        newest=values[1],
        fine=values[2],
        day=values[3],
        held=(values[7], values[8]),
        period_code=values[13],
        total=(closed[0] + bucket[0], closed[1] + bucket[1], closed[2] + bucket[2]),
    )


def _read_hold(copy: Copy, values: list[Any]) -> None:
    if values[0] == "L":
        hold = Hold(
            second=values[1],
            day=values[3],
            period_code=values[4],
            source=values[5],
            fund_start=values[6],
            amounts=(values[9], values[10], 1),
            names=tuple(values[19:]),
        )
        copy.holds.append(hold)
