"""Counters as the engine keeps them, made from what they must hold, in the hash that a rebuild fills (quotas.md section 2)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from redis import Redis as SyncRedis

from billing import ledger
from config.redis import translated
from quotas import engine, records, views
from quotas.expected import Cell, Expected
from quotas.parts import Part
from quotas.rings import FINE_SECONDS

PIECE = 1000
"""Fields of one call."""
RATE_SECONDS = 10

Stone = tuple[str, int]
"""A request's id, and the end of its tombstone in ms."""


def clear(redis: "SyncRedis", organization_id: int) -> None:
    """Nothing is staged."""
    with translated():
        redis.delete(engine.staging_key(organization_id), engine.staged_log_key(organization_id))


def put_cells(redis: "SyncRedis", expected: Expected, cells: Iterable[Cell]) -> None:
    """Stages these cells."""
    organization_id = expected.snapshot.organization_id
    fields: dict[str, Any] = {}
    seconds: list[str] = []
    for key in cells:
        name = "{}|{}{}".format(*key)
        fields[name] = "{} {} {}".format(*expected.cells[key])
        if key[1] == "s":
            seconds.append(name)
        if len(fields) == PIECE:
            put(redis, organization_id, fields)
            fields = {}
    put(redis, organization_id, fields)
    with translated():
        for start in range(0, len(seconds), PIECE):
            redis.zadd(engine.staged_log_key(organization_id), dict.fromkeys(seconds[start : start + PIECE], 0))


def put(redis: "SyncRedis", organization_id: int, fields: dict[str, Any]) -> None:
    """Stages fields."""
    items = list(fields.items())
    with translated():
        for start in range(0, len(items), PIECE):
            redis.hset(engine.staging_key(organization_id), mapping=dict(items[start : start + PIECE]))


def records_of(expected: Expected) -> Iterator[tuple[str, Any]]:
    """Every record, without windows: the next admission sums them from the cells. With the newest second, or a step back of the
    clock would roll it again."""
    rings = expected.rings
    for name in expected.logs:
        yield f"l:{name}", 1
    for name in {*expected.totals, *expected.logs}:
        total = records.pack(expected.totals.get(name, (0, 0, 0)))
        bucket, held = (0, 0, 0), (0, 0)
        rates = (rings.newest // RATE_SECONDS, 0, 0, "0 0 0 0 0 0")
        signature = "L" if name in expected.logs else ""
        yield (
            name,
            records.pack(
                (
                    0,
                    rings.newest,
                    rings.newest // FINE_SECONDS,
                    rings.today,
                    *bucket,
                    *held,
                    *rates,
                    rings.code,
                    total,
                    signature,
                    0,
                )
            ),
        )


def funding_of(expected: Expected) -> Iterator[tuple[str, bytes]]:
    """The current and the previous period of every source, also if it used nothing: a hold that comes back must find its entry."""
    for subscription in expected.snapshot.billing.subscriptions:
        source = views.source_of(subscription)
        current, previous = views.two_periods(subscription, expected.rings.newest)
        # After a change of plan the last period that was drawn on may be a shorter one.
        earlier = [start for name, start in expected.funding if name == source and start < current]
        for tag, start in (("f", current), ("p", max([previous, *earlier]))):
            terms = views.terms_of(subscription, start)
            used, *others = expected.funding.get((source, start), (0, 0, 0, 0))
            granted = (terms.quota, int(terms.is_purchased_allowed), terms.overage_cap)
            yield f"{tag}:{source}", records.pack((start, *granted, used, 0, 0, *others))


def meta(epoch: int, version: int, now_ms: int, spent: int, granted: ledger.Granted) -> bytes:
    """The field `$`."""
    return records.pack((epoch, version, now_ms, spent, 0, granted.total, granted.version))


def tombstones(expected: Expected, parts: Iterable[Part], *, since_ms: int) -> tuple[dict[str, bytes], list[Stone]]:
    """Of the requests that ended since then, so that what is sent again finds them; orphans stay amendable."""
    requests: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        requests[part.request_id].append(part)
    fields: dict[str, bytes] = {}
    stones: list[Stone] = []
    for request_id, own in requests.items():
        ended = max(part.ended_ms for part in own)
        if ended >= since_ms:
            fields[f"h:{request_id}"] = _tombstone(expected, own, ended)
            stones.append((request_id, ended + engine.KEEP_MS))
    return fields, stones


def _tombstone(expected: Expected, own: Sequence[Part], ended_ms: int) -> bytes:
    first = min(own, key=lambda part: part.part)
    state = "O" if first.is_orphan and len(own) == 1 else "S"
    credits, tokens, _ = (sum(amounts) for amounts in zip(*(part.amounts for part in own), strict=True))
    funding = [sum(amounts) for amounts in zip(*(part.funding for part in own), strict=True)]
    second = first.second
    period, _ = views.organization_period(expected.snapshot, second)
    places = (second, second // FINE_SECONDS, expected.rings.day_of(second), records.code(records.PERIOD, period))
    names = expected.names_of(first.base, first.model, second) + expected.plan_record(first.source)
    estimate, observed, about = (0, 0), (0, 0), ""
    return records.pack(
        (state, *places, first.source, first.fund_start, *estimate, credits, tokens, *observed, about, *funding, ended_ms, *names)
    )
