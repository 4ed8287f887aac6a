"""Writes the usage log, its ledger entries and read models, each part of a request once, however often its event comes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.db import connection, transaction

from billing import funding, ledger, rollups
from billing.events import UsageEvent
from billing.models import SubscriptionPeriod, UsageRecord

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ORPHANED = UsageRecord.Status.ORPHANED.value
LOGGED = "LOGGED"

# Name and type of every column that a row brings; the id is the database's.
COLUMNS: Mapping[str, str] = {
    "request_id": "varchar(40)",
    "part": "smallint",
    "admitted_at": "timestamptz",
    "ended_at": "timestamptz",
    "organization_id": "bigint",
    "team_id": "bigint",
    "member_id": "bigint",
    "key_id": "bigint",
    "session": "varchar(64)",
    "account_id": "bigint",
    "response_id": "varchar(128)",
    "model_asked": "varchar(120)",
    "model_served": "varchar(120)",
    "tier_asked": "varchar(20)",
    "tier_billed": "varchar(20)",
    "input_tokens": "bigint",
    "cached_input_tokens": "bigint",
    "cache_write_tokens": "bigint",
    "output_tokens": "bigint",
    "reasoning_tokens": "bigint",
    "counted_tokens": "bigint",
    "counted_requests": "smallint",
    "credits": "bigint",
    "from_quota": "bigint",
    "from_purchased": "bigint",
    "from_overage": "bigint",
    "overdraft": "bigint",
    "source": "varchar(24)",
    "period_starts_at": "timestamptz",
    "rate_id": "bigint",
    "status": "varchar(16)",
    "is_estimated": "boolean",
    "is_implausible": "boolean",
    "is_clamped": "boolean",
    "latency_ms": "integer",
    "first_token_ms": "integer",
    "trace": "jsonb",
    "lines": "jsonb",
    "raw_usage": "jsonb",
    "held": "bigint",
    "stream_id": "varchar(40)",
}
_NAMES = ", ".join(COLUMNS)
INSERT = f"""
    INSERT INTO billing_usagerecord ({_NAMES})
    SELECT {_NAMES} FROM json_to_recordset(%s::json) AS event({", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())})
    ON CONFLICT (request_id, part, admitted_at) DO NOTHING
    RETURNING request_id, part, admitted_at
"""  # noqa: S608

UPDATE_PERIODS = """
    UPDATE billing_subscriptionperiod AS period SET
        quota = period.quota + drawn.grown,
        granted = period.granted + drawn.grown,
        used_from_quota = period.used_from_quota + drawn.from_quota,
        used_from_purchased = period.used_from_purchased + drawn.from_purchased,
        overage = period.overage + drawn.from_overage,
        overdraft = period.overdraft + drawn.overdraft,
        tokens = period.tokens + drawn.tokens,
        requests = period.requests + drawn.requests
    FROM unnest(
        %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]
    ) AS drawn (id, grown, from_quota, from_purchased, from_overage, overdraft, tokens, requests)
    WHERE period.id = drawn.id
"""

Part = tuple[str, int, datetime]


@dataclass(frozen=True, slots=True)
class Row:
    """An event as it will stand in the log, in part 1 as differences. `period_id`: the period that pays, once it is known."""

    event: UsageEvent
    columns: dict[str, Any]
    period_id: int | None = None

    @property
    def part(self) -> Part:
        return (self.columns["request_id"], self.columns["part"], self.columns["admitted_at"])


def record(organization_id: int, events: Sequence[UsageEvent]) -> int:
    """Writes what is new of `events` in the caller's transaction (or its own); how many rows were added.

    A part that is in the log already changes nothing, with one exception: a settlement (part 0, `S`) that meets its own orphan is
    stored as the difference, part 1, if there is none. Ledger, hourly sums and periods move only by what was added; periods are
    keyed by the event's own period start. After LOGGED the engine did not know the funds: then they are split here, by the terms
    of the period. Where an event drew more from the quota than its period's row grants, the plan granted more by then, and the row
    follows.

    A handful of statements however many events; writers of one organization wait for each other, in the ledger's lock. Raises
    IntegrityError for an event that names what does not exist.
    """
    if not events:
        return 0
    with transaction.atomic():
        # Before any row: two writers that bring the same rows in different order cannot wait for each other.
        ledger.lock(organization_id)
        added = _write(organization_id, [_row(organization_id, event) for event in events if event.outcome != LOGGED])
        logged = [event for event in events if event.outcome == LOGGED]
        while logged:
            first: dict[funding.Part, UsageEvent] = {}
            for event in logged:
                first.setdefault(funding.part_of(event), event)
            added += _write(organization_id, [_row(organization_id, event) for event in funding.split(organization_id, first)])
            logged = [event for event in logged if first[funding.part_of(event)] is not event]
    return added


def _write(organization_id: int, rows: Sequence[Row]) -> int:
    if not rows:
        return 0
    inserted = _insert(rows)
    new = {id(row) for row in inserted}
    again = [row for row in rows if id(row) not in new]
    amended = _insert(_amendments(organization_id, again)) if again else []
    added = _move_periods(organization_id, [*inserted, *amended])
    ledger.post_usage(organization_id, added)
    rollups.add(organization_id, added)
    return len(added)


def _insert(rows: Sequence[Row]) -> list[Row]:
    """Adds the rows whose part is not in the log; the ones that were added."""
    first: dict[Part, Row] = {}
    for row in rows:
        first.setdefault(row.part, row)
    if not first:
        return []
    payload = msgspec.json.encode([row.columns for row in first.values()])
    if b"\\u0000" in payload:
        # PostgreSQL takes no NUL in text; names and ids of clients and upstreams may hold one.
        payload = msgspec.json.encode([_without_nul(row.columns) for row in first.values()])
    with connection.cursor() as cursor:
        cursor.execute(INSERT, [payload.decode()])
        return [first[(request_id, part, admitted_at)] for request_id, part, admitted_at in cursor.fetchall()]


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, Mapping):
        return {_without_nul(name): _without_nul(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nul(item) for item in value]
    return value


def _row(organization_id: int, event: UsageEvent) -> Row:
    body, lines = event.body, event.body.lines
    status = body.status[:16]
    if event.state == "O":
        status = ORPHANED
    elif status == ORPHANED:
        # The log tells orphans by their status; a settlement that names no status is none.
        status = UsageRecord.Status.FAILED.value
    served = body.model_served or (lines[-1].model if lines else body.model_asked)
    return Row(
        event,
        {
            "request_id": event.request_id,
            "part": event.part,
            "admitted_at": datetime.fromtimestamp(event.admitted_at, UTC),
            "ended_at": EPOCH + timedelta(milliseconds=event.ended_ms),
            "organization_id": organization_id,
            "team_id": body.team_id,
            "member_id": body.member_id,
            "key_id": body.key_id,
            "session": body.session[:64],
            "account_id": body.account_id,
            "response_id": body.response_id[:128],
            "model_asked": body.model_asked[:120],
            "model_served": served[:120],
            "tier_asked": body.tier_asked[:20],
            "tier_billed": body.tier_billed[:20],
            "input_tokens": sum(line.input for line in lines),
            "cached_input_tokens": sum(line.cached_input for line in lines),
            "cache_write_tokens": sum(line.cache_write for line in lines),
            "output_tokens": sum(line.output for line in lines),
            "reasoning_tokens": sum(line.reasoning for line in lines),
            "counted_tokens": event.tokens,
            "counted_requests": event.requests,
            "credits": event.credits,
            "from_quota": event.from_quota,
            "from_purchased": event.from_purchased,
            "from_overage": event.from_overage,
            "overdraft": event.overdraft,
            "source": event.source,
            "period_starts_at": datetime.fromtimestamp(event.period_start, UTC),
            "rate_id": body.rate_id if body.rate_id is not None or not lines else lines[-1].rate_id,
            "status": status,
            "is_estimated": body.is_estimated,
            "is_implausible": body.is_implausible,
            "is_clamped": body.is_clamped,
            "latency_ms": body.latency_ms,
            "first_token_ms": body.first_token_ms,
            "trace": body.trace,
            "lines": [msgspec.structs.asdict(line) for line in lines],
            "raw_usage": body.raw_usage,
            "held": body.held,
            "stream_id": event.stream_id,
        },
    )


# --------------------------------------------------------------------------------------- settlements that meet orphans

DIFFERENCES = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "counted_tokens",
    "counted_requests",
    "credits",
    "from_quota",
    "from_purchased",
    "from_overage",
    "overdraft",
)


def _amendments(organization_id: int, rows: Sequence[Row]) -> list[Row]:
    """Part 1 for each settlement whose part 0 in the log is its own orphan; empty for those that are there already."""
    settled = {row.part: row for row in rows if row.event.part == 0 and row.event.state == "S"}
    if not settled:
        return []
    orphans = UsageRecord.objects.filter(
        organization_id=organization_id,
        request_id__in={request_id for request_id, _, _ in settled},
        admitted_at__in={admitted_at for _, _, admitted_at in settled},
        part=0,
        status=ORPHANED,
    )
    amendments = []
    for orphan in orphans:
        row = settled.get((orphan.request_id, 0, orphan.admitted_at))
        if row is not None:
            differences = {name: row.columns[name] - getattr(orphan, name) for name in DIFFERENCES}
            amendments.append(Row(row.event, {**row.columns, **differences, "part": 1}))
    return amendments


# ------------------------------------------------------------------------------------------------------------- periods

_DRAWN = ("from_quota", "from_purchased", "from_overage", "overdraft", "counted_tokens", "counted_requests")


def _move_periods(organization_id: int, rows: Sequence[Row]) -> list[Row]:
    """Adds the rows to their periods, in one statement; the rows again, each with its period."""
    if not rows:
        return []
    periods = funding.periods(organization_id, [row.event for row in rows])
    by_id = {period.pk: period for period in periods.values()}
    sums: dict[int, list[int]] = {}
    placed = []
    for row in rows:
        period = periods.get(funding.source_of(row.event))
        placed.append(row if period is None else replace(row, period_id=period.pk))
        if period is None:
            continue
        drawn = sums.setdefault(period.pk, [0] * len(_DRAWN))
        for index, name in enumerate(_DRAWN):
            drawn[index] += row.columns[name]
    grown = {pk: max(0, by_id[pk].used_from_quota + drawn[0] - by_id[pk].quota) for pk, drawn in sums.items()}
    if sums:
        columns = zip(*((pk, grown[pk], *drawn) for pk, drawn in sorted(sums.items())), strict=True)
        with connection.cursor() as cursor:
            cursor.execute(UPDATE_PERIODS, [list(column) for column in columns])
    ledger.post(organization_id, [_growth(by_id[pk], amount, rows[-1]) for pk, amount in sorted(grown.items()) if amount])
    return placed


def _growth(period: SubscriptionPeriod, amount: int, row: Row) -> ledger.Entry:
    request_id, part, admitted_at = row.part
    return ledger.Entry(
        kind=ledger.Kind.ALLOWANCE.value,
        amount=amount,
        reference=f"allowance:{period.uuid}:{request_id}:{part}",
        occurred_at=admitted_at,
        period_id=period.pk,
        member_id=period.subscription.member_id,
        reason="The engine knew of a larger quota.",
    )
