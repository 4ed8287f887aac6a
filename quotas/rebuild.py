"""Counters from the log and the stream, after they were lost (quotas.md section 8).

One builder per organization, by an advisory lock. The stream is read before the log, and the log in one snapshot: an event that the
drain moves meanwhile is seen in the log or in both, and counts once. What is appended after the stream was read makes the script
answer RETRY. Nobody gets free credits from deleted keys.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import msgspec
from django.conf import settings
from django.db import connection, transaction
from redis import Redis as SyncRedis

from billing import ledger
from billing.events import decode_body
from billing.models import UsageRecord
from config import scope
from config import snapshot as config_snapshot
from config.redis import sync_client, translated
from config.snapshot import Snapshot
from quotas import charging, engine, publishing, records, views, windows
from quotas.records import Event

logger = logging.getLogger(__name__)

LOCK = 0x77656972
"""First key of the advisory lock; the second is the organization."""
TRIES = 50
PIECE = 1000
FINE_BUCKETS, COARSE_BUCKETS, DAYS = 288, 240, 40

Sums = list[int]


class RebuildFailed(Exception):
    """The stream kept moving, or the database did not answer."""


def rebuild(organization_id: int, *, expected_epoch: str = "", keep_holds: bool = False, now_ms: int | None = None) -> bool:
    """True once the counters are there (built here, or by somebody who was faster); False while another process builds.

    `expected_epoch` '' builds only what is missing; an epoch replaces living counters, with `keep_holds` under traffic. `now_ms`
    in tests. Raises RebuildFailed, RedisUnavailable, and what the database raises.
    """
    redis = sync_client()
    with scope.organization(organization_id), _builder(organization_id) as is_ours:
        if not is_ours:
            return False
        for _ in range(TRIES):
            with translated():
                if not expected_epoch and redis.hexists(engine.counters_key(organization_id), "$"):
                    return True
            if _attempt(redis, organization_id, expected_epoch, keep_holds, now_ms):
                return True
    raise RebuildFailed(f"the usage stream of organization {organization_id} kept moving")


@contextmanager
def _builder(organization_id: int) -> Iterator[bool]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [LOCK, _lock_id(organization_id)])
        is_ours = bool(cast(Any, cursor.fetchone())[0])
    try:
        yield is_ours
    finally:
        if is_ours:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [LOCK, _lock_id(organization_id)])


def _lock_id(organization_id: int) -> int:
    # The lock takes 32 bits, signed.
    return organization_id % 2**31


def _attempt(redis: "SyncRedis", organization_id: int, expected: str, keep_holds: bool, now_ms: int | None) -> bool:
    with translated():
        last, events = _stream(redis, organization_id)
        clock = now_ms if now_ms is not None else server_ms(redis)
    book = _read(organization_id, events, clock)
    stones = [value for request_id, end in book.stones for value in (request_id, end + engine.KEEP_MS)]
    with translated():
        staging = engine.staging_key(organization_id)
        redis.delete(staging)
        fields = list(book.fields.items())
        for start in range(0, len(fields), PIECE):
            redis.hset(staging, mapping=dict(fields[start : start + PIECE]))
        staged = engine.staged_log_key(organization_id)
        redis.delete(staged)
        for start in range(0, len(book.seconds), PIECE):
            redis.zadd(staged, dict.fromkeys(book.seconds[start : start + PIECE], 0))
        args = ("" if now_ms is None else now_ms, expected, last, int(keep_holds), *stones)
        answer = engine.REBUILD.run(redis, engine.keys(organization_id), args)
    logger.info(
        "counters rebuilt",
        extra={
            "organization_id": organization_id,
            "answer": answer[0].decode(),
            "fields": len(fields),
            "stream_entries": len(events),
        },
    )
    if answer[0] == b"OK" and now_ms is None:
        # What was granted between our reading and the rename was published to counters that were not there.
        publishing.publish_grants(organization_id)
    # LOST: somebody else's counters are there now.
    return answer[0] in (b"OK", b"LOST")


def server_ms(redis: "SyncRedis") -> int:
    """The server's clock, with the offset of the test settings."""
    seconds, micros = redis.time()
    offset = 0
    if key := getattr(settings, "QUOTAS_CLOCK_OFFSET_KEY", None):
        offset = int(cast(Any, redis.get(key)) or 0)
    return seconds * 1000 + micros // 1000 + offset


def _stream(redis: "SyncRedis", organization_id: int) -> tuple[str, list[Event]]:
    """The stream's last-generated id (`0-0` if there is none), and its entries. Ones that cannot be read are left to the drain."""
    key = engine.stream_key(organization_id)
    if not redis.exists(key):
        return "0-0", []
    information = cast(Any, redis.xinfo_stream(key))
    last = information["last-generated-id"].decode()
    events: list[Event] = []
    start = "-"
    while entries := cast(Any, redis.xrange(key, start, last, count=PIECE)):
        for stream_id, fields in entries:
            try:
                events.append(records.read_event(stream_id, fields))
            except ValueError:
                logger.warning("an event cannot be read", extra={"organization_id": organization_id, "id": stream_id.decode()})
        start = f"({entries[-1][0].decode()}"
    return last, events


# ----------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class _Line:
    """One part of an ended request, from the log or the stream."""

    request_id: str
    part: int
    is_orphan: bool
    admitted_s: int
    ended_ms: int
    source: str
    fund_start: int
    credits: int
    tokens: int
    requests: int
    funding: tuple[int, int, int, int]
    names: tuple[str, ...]
    plan_record: str
    """The plan's own record, which counts what the plan paid; "" if it has none."""


@dataclass(slots=True)
class _Book:
    """The hash that is being built."""

    fields: dict[str, Any] = field(default_factory=dict)
    stones: list[tuple[str, int]] = field(default_factory=list)
    """Request ids that ended lately, with their end in ms."""
    seconds: list[str] = field(default_factory=list)
    """The cells of records that are counted by the second."""


def _read(organization_id: int, events: list[Event], now_ms: int) -> _Book:
    in_transaction = connection.in_atomic_block
    with transaction.atomic():
        if not in_transaction:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        snapshot = config_snapshot.load(organization_id)
        periods = _periods(snapshot, now_ms // 1000)
        since = min([now_ms // 1000 - (DAYS + 1) * 86400, *(previous for _, previous in periods.values())])
        logged = list(_log(organization_id, since, snapshot))
        known = {(line.request_id, line.part) for line in logged}
        # The stream is short; what it holds may be in the log already, also where the log was not read.
        ids = [event.request_id for event in events]
        rows = UsageRecord.objects.filter(organization_id=organization_id, request_id__in=ids).values_list("request_id", "part")
        known.update(rows)
        undrained = [_from_event(event, snapshot) for event in events if (event.request_id, event.part) not in known]
        spent = ledger.spent(organization_id) + sum(line.funding[1] for line in undrained)
        granted = ledger.granted(organization_id)
        with connection.cursor() as cursor:
            cursor.execute("SELECT nextval('quotas_epoch')")
            epoch = int(cast(Any, cursor.fetchone())[0])
    return _compose(snapshot, periods, _once([*logged, *undrained]), epoch=epoch, spent=spent, granted=granted, now_ms=now_ms)


def _once(lines: Iterable[_Line]) -> list[_Line]:
    """Each (request id, part) once, the first one: a settlement that was logged twice counts once."""
    seen: dict[tuple[str, int], _Line] = {}
    for line in lines:
        seen.setdefault((line.request_id, line.part), line)
    return list(seen.values())


def _periods(snapshot: Snapshot, now_s: int) -> dict[str, tuple[int, int]]:
    """By source: the starts of the current and of the previous period."""
    starts: dict[str, tuple[int, int]] = {}
    for subscription in snapshot.billing.subscriptions:
        start, _ = views.period_of(subscription, now_s)
        previous, _ = views.period_of(subscription, start - 1)
        starts[views.source_of(subscription)] = (start, previous)
    return starts


def _log(organization_id: int, since: int, snapshot: Snapshot) -> Iterator[_Line]:
    rows = UsageRecord.objects.filter(
        organization_id=organization_id, admitted_at__gte=datetime.fromtimestamp(since, UTC)
    ).values_list(
        "request_id",
        "part",
        "status",
        "admitted_at",
        "ended_at",
        "source",
        "period_starts_at",
        "credits",
        "counted_tokens",
        "counted_requests",
        "from_quota",
        "from_purchased",
        "from_overage",
        "overdraft",
        "team_id",
        "member_id",
        "key_id",
        "model_asked",
    )
    for row in rows.iterator(chunk_size=5000):
        request_id, part, status, admitted, ended, source, fund, credits, tokens, requests, *funding, team, member, key, model = row
        base, second = charging.base_names(team, member, key), int(admitted.timestamp())
        yield _Line(
            request_id=request_id,
            part=part,
            is_orphan=part == 0 and status == UsageRecord.Status.ORPHANED,
            admitted_s=second,
            ended_ms=_milliseconds(ended),
            source=source,
            fund_start=int(fund.timestamp()),
            credits=credits,
            tokens=tokens,
            requests=requests,
            funding=cast("tuple[int, int, int, int]", tuple(funding)),
            names=charging.names(base, charging.matching(snapshot, model, second)),
            plan_record=_plan_record(snapshot, source),
        )


def _plan_record(snapshot: Snapshot, source: str) -> str:
    own = charging.plan_filter(snapshot, source)
    return "" if own is None else charging.plan_record(own)


def _milliseconds(when: datetime) -> int:
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _from_event(event: Event, snapshot: Snapshot) -> _Line:
    """Counted where its log row will say, also if it was admitted before a filter was made."""
    try:
        model: str = decode_body(event.body).model_asked
    except msgspec.MsgspecError:
        model = ""
    base = tuple(name for name in event.records if "~" not in name)
    return _Line(
        request_id=event.request_id,
        part=event.part,
        is_orphan=event.state == "O",
        admitted_s=event.admitted_s,
        ended_ms=event.ended_ms,
        source=event.source,
        fund_start=event.fund_start,
        credits=event.credits,
        tokens=event.tokens,
        requests=event.requests,
        funding=(event.plan, event.purchased, event.overage, event.overdraft),
        names=charging.names(base, charging.matching(snapshot, model, event.admitted_s)),
        plan_record=_plan_record(snapshot, event.source),
    )


# --------------------------------------------------------------------------------------------------------- composing


def _compose(
    snapshot: Snapshot,
    periods: dict[str, tuple[int, int]],
    lines: list[_Line],
    *,
    epoch: int,
    spent: int,
    granted: ledger.Granted,
    now_ms: int,
) -> _Book:
    """Cells and period totals of every record, funding of both periods of every source, tombstones, meta."""
    newest = max([now_ms // 1000, *(line.admitted_s for line in lines)])
    zone = ZoneInfo(snapshot.accounts.timezone)
    today = windows.day_of(newest, zone)
    period_start, _ = views.organization_period(snapshot, newest)
    cells: dict[str, Sums] = defaultdict(lambda: [0, 0, 0])
    totals: dict[str, Sums] = defaultdict(lambda: [0, 0, 0])
    spans = _spans(newest, today)
    logged = charging.logged(snapshot)
    for line in lines:
        amount, paid = (line.credits, line.tokens, line.requests), (line.funding[0], line.tokens, line.requests)
        day = windows.day_of(line.admitted_s, zone)
        places = (("f", line.admitted_s // 300), ("c", line.admitted_s // 10800), ("d", day))
        for name in (*line.names, line.plan_record) if line.plan_record else line.names:
            own = paid if name == line.plan_record else amount
            _add(totals[name], own if line.admitted_s >= period_start else (0, 0, 0))
            for tag, at in (*places, ("s", line.admitted_s)) if name in logged else places:
                if at >= spans[tag]:
                    _add(cells[f"{name}|{tag}{at}"], own)
    book = _Book()
    for cell, sums in cells.items():
        if any(sums):
            book.fields[cell] = "{} {} {}".format(*sums)
            if "|s" in cell:
                book.seconds.append(cell)
    for name in logged:
        book.fields[f"l:{name}"] = 1
        totals.setdefault(name, [0, 0, 0])
    code = records.code(records.PERIOD, period_start)
    for name, sums in totals.items():
        # No windows: the next admission sums them from the cells. The newest second, or a step back would roll it again.
        packed = records.pack(sums)
        slot = newest // 10
        values = [
            0,
            newest,
            newest // 300,
            today,
            0,
            0,
            0,
            0,
            0,
            slot,
            0,
            0,
            "0 0 0 0 0 0",
            code,
            packed,
            "L" if name in logged else "",
            0,
        ]
        book.fields[name] = records.pack(values)
    _fund(book, snapshot, periods, lines)
    _entomb(book, lines, zone, snapshot, since_ms=now_ms - engine.KEEP_MS)
    book.fields["$"] = records.pack([epoch, snapshot.version, now_ms, spent, 0, granted.total, granted.version])
    return book


def _spans(newest: int, today: int) -> dict[str, int]:
    """The oldest cell of each kind that any window still needs."""
    coarse = newest // 10800 - COARSE_BUCKETS
    return {"f": newest // 300 - FINE_BUCKETS, "c": coarse, "d": today - DAYS, "s": coarse * 10800}


def _add(sums: Sums, amount: tuple[int, int, int]) -> None:
    for i in range(3):
        sums[i] += amount[i]


def _fund(book: _Book, snapshot: Snapshot, periods: dict[str, tuple[int, int]], lines: list[_Line]) -> None:
    """Also for sources that used nothing: a hold that comes back must find its entry."""
    drawn: dict[tuple[str, int], Sums] = defaultdict(lambda: [0, 0, 0, 0])
    for line in lines:
        sums = drawn[(line.source, line.fund_start)]
        for i in range(4):
            sums[i] += line.funding[i]
    subscriptions = {views.source_of(subscription): subscription for subscription in snapshot.billing.subscriptions}
    for source, (current, previous) in periods.items():
        earlier = [start for name, start in drawn if name == source and start < current]
        for field_name, start in (("f", current), ("p", max([previous, *earlier]))):
            used, purchased, overage, overdraft = drawn.get((source, start), [0, 0, 0, 0])
            term = views.terms_of(subscriptions[source], start)
            values = [
                start,
                term.quota,
                int(term.is_purchased_allowed),
                term.overage_cap,
                used,
                0,
                0,
                purchased,
                overage,
                overdraft,
            ]
            book.fields[f"{field_name}:{source}"] = records.pack(values)


def _entomb(book: _Book, lines: list[_Line], zone: ZoneInfo, snapshot: Snapshot, *, since_ms: int) -> None:
    """Tombstones of requests that ended lately, so that what is sent again finds them; orphans stay amendable."""
    parts: dict[str, list[_Line]] = defaultdict(list)
    for line in lines:
        parts[line.request_id].append(line)
    for request_id, own in parts.items():
        ended = max(line.ended_ms for line in own)
        if ended < since_ms:
            continue
        first = min(own, key=lambda line: line.part)
        state = "O" if first.is_orphan and len(own) == 1 else "S"
        credits, tokens = sum(line.credits for line in own), sum(line.tokens for line in own)
        split = [sum(line.funding[i] for line in own) for i in range(4)]
        second = first.admitted_s
        period_start, _ = views.organization_period(snapshot, second)
        book.fields[f"h:{request_id}"] = records.pack(
            [
                state,
                second,
                second // 300,
                windows.day_of(second, zone),
                records.code(records.PERIOD, period_start),
                first.source,
                first.fund_start,
                0,
                0,
                credits,
                tokens,
                0,
                0,
                "",
                *split,
                ended,
                *first.names,
                *((first.plan_record,) if first.plan_record else ()),
            ]
        )
        book.stones.append((request_id, ended))
