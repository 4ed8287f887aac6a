"""Writes the usage log and the periods' read model, each part of a request once, however often its event comes."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.db import connection, transaction
from django.db.models import Q

from billing import subscriptions
from billing.events import UsageEvent
from billing.models import Subscription, SubscriptionPeriod, UsageRecord

logger = logging.getLogger(__name__)

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
        quota = GREATEST(period.quota, period.used_from_quota + drawn.from_quota),
        used_from_quota = period.used_from_quota + drawn.from_quota,
        used_from_purchased = period.used_from_purchased + drawn.from_purchased,
        overage = period.overage + drawn.from_overage,
        overdraft = period.overdraft + drawn.overdraft,
        tokens = period.tokens + drawn.tokens,
        requests = period.requests + drawn.requests
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
        AS drawn(id, from_quota, from_purchased, from_overage, overdraft, tokens, requests)
    WHERE period.id = drawn.id
"""

Part = tuple[str, int, datetime]


@dataclass(frozen=True, slots=True)
class _Row:
    """An event as it will stand in the log, in part 1 as differences."""

    event: UsageEvent
    columns: dict[str, Any]

    @property
    def part(self) -> Part:
        return (self.columns["request_id"], self.columns["part"], self.columns["admitted_at"])


def record(organization_id: int, events: Sequence[UsageEvent]) -> int:
    """Writes what is new of `events` in the caller's transaction (or its own); how many rows were added.

    A part that is in the log already changes nothing, with one exception: a settlement (part 0, `S`) that meets its own orphan is
    stored as the difference, part 1, if there is none. Periods move only by what was added, keyed by the event's own period start.
    After LOGGED the engine did not know the funds: then the quota pays what is left of it, and the rest is overdraft. Where an
    event drew more from the quota than its period's row grants, the plan granted more by then, and the row follows.

    A handful of statements however many events. Raises IntegrityError for an event that names what does not exist.
    """
    with transaction.atomic():
        added = _write(organization_id, [_row(organization_id, event) for event in events if event.outcome != LOGGED])
        for event in events:
            if event.outcome == LOGGED:
                added += _write(organization_id, [_row(organization_id, _with_funds(organization_id, event))])
    return added


def _write(organization_id: int, rows: Sequence[_Row]) -> int:
    if not rows:
        return 0
    inserted = _insert(rows)
    new = {id(row) for row in inserted}
    again = [row for row in rows if id(row) not in new]
    amended = _insert(_amendments(organization_id, again)) if again else []
    _move_periods(organization_id, [*inserted, *amended])
    return len(inserted) + len(amended)


def _insert(rows: Sequence[_Row]) -> list[_Row]:
    """Adds the rows whose part is not in the log; the ones that were added."""
    first: dict[Part, _Row] = {}
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


def _row(organization_id: int, event: UsageEvent) -> _Row:
    body, lines = event.body, event.body.lines
    status = body.status[:16]
    if event.state == "O":
        status = ORPHANED
    elif status == ORPHANED:
        # The log tells orphans by their status; a settlement that names no status is none.
        status = UsageRecord.Status.FAILED.value
    served = body.model_served or (lines[-1].model if lines else body.model_asked)
    return _Row(
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


def _amendments(organization_id: int, rows: Sequence[_Row]) -> list[_Row]:
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
            amendments.append(_Row(row.event, {**row.columns, **differences, "part": 1}))
    return amendments


# ------------------------------------------------------------------------------------------------------------- periods


def _with_funds(organization_id: int, event: UsageEvent) -> UsageEvent:
    """The event with the split that the engine could not make. What its own orphan drew is given back first."""
    orphan = UsageRecord.objects.filter(
        organization_id=organization_id,
        request_id=event.request_id,
        admitted_at=datetime.fromtimestamp(event.admitted_at, UTC),
        part=0,
        status=ORPHANED,
    ).first()
    period = _periods(organization_id, [event]).get(_source(event))
    if period is None:
        return event
    left = period.quota - period.used_from_quota + (orphan.from_quota if orphan is not None else 0)
    from_quota = min(event.credits, max(0, left))
    return replace(event, from_quota=from_quota, from_purchased=0, from_overage=0, overdraft=event.credits - from_quota)


Source = tuple[str, int, int]


def _source(event: UsageEvent) -> Source:
    return (event.source, event.period_start, event.admitted_at)


def _move_periods(organization_id: int, rows: Sequence[_Row]) -> None:
    periods = _periods(organization_id, [row.event for row in rows])
    sums: dict[int, list[int]] = {}
    for row in rows:
        period = periods.get(_source(row.event))
        if period is None:
            continue
        drawn = sums.setdefault(period.pk, [0] * 6)
        for index, name in enumerate(
            ("from_quota", "from_purchased", "from_overage", "overdraft", "counted_tokens", "counted_requests")
        ):
            drawn[index] += row.columns[name]
    if sums:
        columns = zip(*((pk, *drawn) for pk, drawn in sorted(sums.items())), strict=True)
        with connection.cursor() as cursor:
            cursor.execute(UPDATE_PERIODS, [list(column) for column in columns])


def _periods(organization_id: int, events: Iterable[UsageEvent]) -> dict[Source, SubscriptionPeriod]:
    """The period row, locked, that each event draws on; made where it is missing. Absent for a source without a subscription."""
    wanted = {_source(event) for event in events}
    by_source = _subscriptions(organization_id, {source for source, _, _ in wanted})
    for source in {source for source, _, _ in wanted} - by_source.keys():
        logger.warning("usage without a subscription", extra={"organization_id": organization_id, "source": source})
    chosen: dict[Source, tuple[Subscription, datetime]] = {}
    for source, start, admitted_at in wanted:
        if (candidates := by_source.get(source)) is None:
            continue
        begun = [one for one in candidates if int(one.started_at.timestamp()) <= admitted_at]
        chosen[(source, start, admitted_at)] = ((begun or candidates[:1])[-1], datetime.fromtimestamp(start, UTC))
    pairs = set(chosen.values())
    rows = _locked(pairs)
    for subscription, start_at in sorted(pairs, key=lambda pair: (pair[0].pk, pair[1])):
        if (subscription.pk, start_at) not in rows:
            row = subscriptions.open_period(subscription, start_at, starts_at=start_at)
            rows[(subscription.pk, start_at)] = SubscriptionPeriod.objects.select_for_update().get(pk=row.pk)
    return {key: rows[(subscription.pk, start_at)] for key, (subscription, start_at) in chosen.items()}


def _subscriptions(organization_id: int, sources: set[str]) -> dict[str, list[Subscription]]:
    """All subscriptions of the sources (`o`, `m<member id>`), the oldest first."""
    members = [int(source[1:]) for source in sources if source.startswith("m")]
    subjects = Q(member_id__in=members)
    if "o" in sources:
        subjects |= Q(member_id=None)
    found = Subscription.objects.filter(subjects, organization_id=organization_id).select_related("organization", "plan")
    by_source: dict[str, list[Subscription]] = {}
    for subscription in found.order_by("started_at", "pk"):
        by_source.setdefault("o" if subscription.member_id is None else f"m{subscription.member_id}", []).append(subscription)
    return by_source


def _locked(pairs: set[tuple[Subscription, datetime]]) -> dict[tuple[int, datetime], SubscriptionPeriod]:
    rows = SubscriptionPeriod.objects.filter(
        subscription_id__in={subscription.pk for subscription, _ in pairs}, starts_at__in={start for _, start in pairs}
    )
    # In the order of their ids, so that two writers cannot wait for each other.
    return {(row.subscription_id, row.starts_at): row for row in rows.select_for_update().order_by("pk")}
