"""Hourly sums of the usage log: what every report reads. Added to with the log, in one transaction; rebuilt from it.

* A bucket begins at the start of an hour as the organization's clock shows it, so that local days are whole buckets in every zone,
  also ones that are half an hour off. Where the clock changes, a bucket begins at the change, at the latest.
* Each priced line of a request counts its tokens and credits under its own model and account. The request itself, and whatever the
  lines do not explain, counts with the last line: the attempt that answered, under the rate card's name. A request without lines
  (an orphan's estimate) counts under the model that the record names. So the shares of a request sum to its record exactly.
* Funding follows the lines in order: quota first, then purchased, overage, overdraft; the last share takes what is left of each.
* An amendment (part 1) takes out what its orphan had put in, where that was, and puts in the settled request: together they stand
  as one request that ended once. An implausible request counts at what it was booked at, the hold's amount, like every other.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from django.db import connection, transaction

from accounts.models import Organization
from billing import partitions
from billing.models import UsageRecord

LOCK = 0x77656977
"""First key of the advisory lock; the second is the organization. Writers share it, a rebuild has it alone."""

TOKENS = {
    "input_tokens": "input",
    "cached_input_tokens": "cached_input",
    "cache_write_tokens": "cache_write",
    "output_tokens": "output",
    "reasoning_tokens": "reasoning",
}
"""A record's column and the key of a line."""
COUNTED = ("input", "cached_input", "cache_write", "output")
"""What of a line the limits count; reasoning is part of the output."""
FUNDING = ("from_quota", "from_purchased", "from_overage", "overdraft")
AMOUNTS = ("requests", *TOKENS, "counted_tokens", "credits", *FUNDING)
GROUP = ("hour", "team_id", "member_id", "key_id", "model", "account_id")

Group = tuple[datetime, int, int, int, str, int]
Sums = dict[Group, list[int]]

_RECORD = ("counted_requests", *AMOUNTS[1:])
_READ = ("request_id", "part", "admitted_at", "team_id", "member_id", "key_id", "account_id", "model_asked", "model_served")
_COLUMNS = (*_READ, *_RECORD, "lines")

UPSERT = f"""
    INSERT INTO billing_usagehour AS kept (organization_id, {", ".join(GROUP)}, {", ".join(AMOUNTS)})
    SELECT %s, added.* FROM unnest(
        %s::timestamptz[], %s::bigint[], %s::bigint[], %s::bigint[], %s::varchar[], %s::bigint[]
        {", %s::bigint[]" * len(AMOUNTS)}
    ) AS added ({", ".join(GROUP)}, {", ".join(AMOUNTS)})
    ORDER BY {", ".join(GROUP)}
    ON CONFLICT (organization_id, {", ".join(GROUP)}) DO UPDATE SET
        {", ".join(f"{name} = kept.{name} + EXCLUDED.{name}" for name in AMOUNTS)}
"""  # noqa: S608
DELETE_EMPTY = f"""
    DELETE FROM billing_usagehour WHERE organization_id = %s AND hour = ANY(%s::timestamptz[])
    AND {" AND ".join(f"{name} = 0" for name in AMOUNTS)}
"""  # noqa: S608

# Requests of at most one line and without an amendment: their record is their only share.
SELECT_PLAIN = f"""
    SELECT organization_id, booked_hour, COALESCE(team_id, 0), member_id, key_id, booked_model, booked_account,
        {", ".join(f"SUM({name})::bigint" for name in _RECORD)}
    FROM (
        SELECT record.*,
            GREATEST(date_bin('1 hour', record.admitted_at, clock.origin), clock.starts) AS booked_hour,
            COALESCE(lines -> 0 ->> 'model', NULLIF(model_served, ''), model_asked) AS booked_model,
            CASE jsonb_array_length(lines) WHEN 0 THEN COALESCE(account_id, 0)
                ELSE COALESCE((lines -> 0 ->> 'account_id')::bigint, 0) END AS booked_account
        FROM billing_usagerecord AS record
        JOIN unnest(%s::timestamptz[], %s::timestamptz[], %s::timestamptz[]) AS clock (starts, ends, origin)
            ON record.admitted_at >= clock.starts AND record.admitted_at < clock.ends
        WHERE organization_id = %s AND admitted_at >= %s AND admitted_at < %s
            AND part = 0 AND jsonb_array_length(lines) < 2
    ) AS booked
    WHERE NOT EXISTS (
        SELECT FROM billing_usagerecord AS amendment
        WHERE amendment.organization_id = %s AND amendment.admitted_at >= %s AND amendment.admitted_at < %s
            AND amendment.part = 1
            AND amendment.request_id = booked.request_id AND amendment.admitted_at = booked.admitted_at
    )
    GROUP BY organization_id, booked_hour, COALESCE(team_id, 0), member_id, key_id, booked_model, booked_account
"""  # noqa: S608
INSERT_PLAIN = f"INSERT INTO billing_usagehour (organization_id, {', '.join(GROUP)}, {', '.join(AMOUNTS)}) {SELECT_PLAIN}"
# The others: few, and told apart in Python.
READ_OTHERS = f"""
    SELECT {", ".join(_COLUMNS)} FROM billing_usagerecord
    WHERE organization_id = %s AND admitted_at >= %s AND admitted_at < %s
        AND (
            (part = 0 AND jsonb_array_length(lines) >= 2)
            OR (request_id, admitted_at) IN (
                SELECT request_id, admitted_at FROM billing_usagerecord
                WHERE organization_id = %s AND admitted_at >= %s AND admitted_at < %s AND part = 1
            )
        )
    ORDER BY request_id, admitted_at, part
"""  # noqa: S608
READ_PARTS = f"""
    SELECT {", ".join(_COLUMNS)} FROM billing_usagerecord
    WHERE organization_id = %s AND request_id = ANY(%s) AND admitted_at = ANY(%s)
    ORDER BY request_id, admitted_at, part
"""  # noqa: S608


class Booked(Protocol):
    """A row of the log that was added: billing.usage.Row."""

    @property
    def columns(self) -> Mapping[str, Any]: ...


# ----------------------------------------------------------------------------------------------------------- the doors


def add(organization_id: int, rows: Sequence[Booked]) -> None:
    """Adds what was added to the log, in the caller's transaction. One statement, its rows in order, so that writers cannot block
    each other; one more query where an orphan or an amendment is among them."""
    if not rows:
        return
    _lock(organization_id, alone=False)
    zone = _zone(organization_id)
    new = [row.columns for row in rows]
    sums: Sums = defaultdict(lambda: [0] * len(AMOUNTS))
    plain = [columns for columns in new if not _may_have_another_part(columns)]
    for columns in plain:
        _put(sums, columns, zone, sign=1)
    if len(plain) < len(new):
        _put_amended(organization_id, sums, [columns for columns in new if _may_have_another_part(columns)], zone)
    _upsert(organization_id, sums)
    if falling := sorted({group[0] for group, amounts in sums.items() if min(amounts) < 0}):
        with connection.cursor() as cursor:
            cursor.execute(DELETE_EMPTY, [organization_id, falling])


def rebuild(organization_id: int, start: datetime, end: datetime) -> int:
    """Makes the buckets of [start, end) anew from the log; how many there are. Bounds are widened to whole buckets.

    In a transaction; writers of the organization wait for it. Equal to what `add` made. Where retention has taken the log, the
    buckets stay as they are.
    """
    zone = _zone(organization_id)
    start, end = next_hour(max(hour_of(start, zone), partitions.complete_since()), zone), next_hour(end, zone)
    if start >= end:
        return 0
    with transaction.atomic():
        _lock(organization_id, alone=True)
        span: list[Any] = [organization_id, start, end]
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM billing_usagehour WHERE organization_id = %s AND hour >= %s AND hour < %s", span)
            cursor.execute(INSERT_PLAIN, [*_clocks(zone, start, end), *span, *span])
        sums = _others(span, zone)
        _upsert(organization_id, sums)
        with connection.cursor() as cursor:
            cursor.execute(DELETE_EMPTY, [organization_id, sorted({group[0] for group in sums})])
            cursor.execute("SELECT count(*) FROM billing_usagehour WHERE organization_id = %s AND hour >= %s AND hour < %s", span)
            return int(cursor.fetchone()[0])


def of_log(organization_id: int, start: datetime, end: datetime) -> Sums:
    """What the log's requests of [start, end) count, whatever the buckets say: where a report cuts an hour, and to check them."""
    zone = _zone(organization_id)
    span: list[Any] = [organization_id, start, end]
    sums = _others(span, zone)
    with connection.cursor() as cursor:
        cursor.execute(SELECT_PLAIN, [*_clocks(zone, start, end), *span, *span])
        for _, hour, *row in cursor.fetchall():
            # A cut hour is cut by the report, not by the clock.
            group = (hour_of(hour, zone), *row[:5])
            sums[group] = [kept + added for kept, added in zip(sums[group], row[5:], strict=True)]
    return sums


def _others(span: list[Any], zone: ZoneInfo) -> Sums:
    """Of the requests with several lines or an amendment."""
    sums: Sums = defaultdict(lambda: [0] * len(AMOUNTS))
    with connection.cursor() as cursor:
        cursor.execute(READ_OTHERS, [*span, *span])
        for parts in _requests(cursor.fetchall()):
            _put(sums, _as_one(parts), zone, sign=1)
    return sums


def _clocks(zone: ZoneInfo, start: datetime, end: datetime) -> list[list[datetime]]:
    return [list(column) for column in zip(*clock(zone, start, end), strict=True)]


def _lock(organization_id: int, *, alone: bool) -> None:
    """A writer adds its log rows before their sums: a rebuild between the two would miss or double them."""
    kind = "pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {kind}(%s, %s)", [LOCK, organization_id % 2**31])


def _zone(organization_id: int) -> ZoneInfo:
    return ZoneInfo(Organization.objects.values_list("timezone", flat=True).get(pk=organization_id))


def _upsert(organization_id: int, sums: Sums) -> None:
    rows = [(*group, *amounts) for group, amounts in sums.items() if any(amounts)]
    if rows:
        with connection.cursor() as cursor:
            cursor.execute(UPSERT, [organization_id, *(list(column) for column in zip(*rows, strict=True))])


# ------------------------------------------------------------------------------------------------ what a request counts


def _put(sums: Sums, columns: Mapping[str, Any], zone: ZoneInfo, *, sign: int) -> None:
    hour = hour_of(columns["admitted_at"], zone)
    whose = (hour, columns["team_id"] or 0, columns["member_id"], columns["key_id"])
    for model, account_id, amounts in shares(columns):
        kept = sums[(*whose, model, account_id)]
        for index, amount in enumerate(amounts):
            kept[index] += sign * amount


def shares(columns: Mapping[str, Any]) -> Iterator[tuple[str, int, list[int]]]:
    """Model, account and AMOUNTS of each share of a record; they sum to it exactly.

    The last share is the last line's (the record's, if it has none) with the request and all that is left. With amounts that are
    negative (an amendment whose orphan is not known) it may hold more or less than nothing.
    """
    lines = columns["lines"]
    left = [columns[name] for name in _RECORD]
    funds = left[-len(FUNDING) :]
    for line in lines[:-1]:
        credits = line.get("credits", 0)
        share = [0, *(line.get(key, 0) for key in TOKENS.values()), sum(line.get(key, 0) for key in COUNTED), credits]
        for position in range(len(FUNDING)):
            drawn = min(credits, max(0, funds[position]))
            if position == len(FUNDING) - 1:
                # Nothing else is left to draw on: a line that cost more than its record owes the rest to the last share.
                drawn = credits
            funds[position] -= drawn
            credits -= drawn
            share.append(drawn)
        left = [amount - taken for amount, taken in zip(left, share, strict=True)]
        yield line["model"], line.get("account_id") or 0, share
    if lines:
        yield lines[-1]["model"], lines[-1].get("account_id") or 0, left
    else:
        yield columns["model_served"] or columns["model_asked"], columns["account_id"] or 0, left


# ---------------------------------------------------------------------------------------------------------- amendments


def _may_have_another_part(columns: Mapping[str, Any]) -> bool:
    return bool(columns["part"] == 1 or columns["status"] == UsageRecord.Status.ORPHANED)


def _put_amended(organization_id: int, sums: Sums, new: list[Mapping[str, Any]], zone: ZoneInfo) -> None:
    """For each request: what its parts count together now, less what those that were there before counted."""
    ids, moments = [columns["request_id"] for columns in new], [columns["admitted_at"] for columns in new]
    with connection.cursor() as cursor:
        cursor.execute(READ_PARTS, [organization_id, ids, moments])
        stored = cursor.fetchall()
    added = {(columns["request_id"], columns["part"], columns["admitted_at"]) for columns in new}
    wanted = {(columns["request_id"], columns["admitted_at"]) for columns in new}
    for parts in _requests(stored):
        if (parts[0]["request_id"], parts[0]["admitted_at"]) not in wanted:
            continue
        before = [part for part in parts if (part["request_id"], part["part"], part["admitted_at"]) not in added]
        _put(sums, _as_one(parts), zone, sign=1)
        if before:
            _put(sums, _as_one(before), zone, sign=-1)


def _requests(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[dict[str, Any]]]:
    """The parts of each request, in order, of rows that are sorted by request."""
    found = (dict(zip(_COLUMNS, row, strict=True)) for row in rows)
    for _, parts in groupby(found, key=lambda columns: (columns["request_id"], columns["admitted_at"])):
        yield [{**part, "lines": _parsed(part["lines"])} for part in parts]


def _parsed(lines: Any) -> Any:
    return json.loads(lines) if isinstance(lines, str) else lines


def _as_one(parts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The request as if it had ended once, as its last part says."""
    return {**parts[-1], **{name: sum(part[name] for part in parts) for name in _RECORD}}


# ------------------------------------------------------------------------------------------------------------- the clock

HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def hour_of(moment: datetime, zone: ZoneInfo) -> datetime:
    """The start of the bucket that `moment` (aware) counts in, in UTC."""
    moment = moment.astimezone(UTC)
    offset = _offset(moment, zone)
    since = moment - EPOCH + offset
    start = EPOCH + (since - since % HOUR) - offset
    # Before the change the clock showed another hour.
    return start if _offset(start, zone) == offset else _change(start, moment, zone)


def clock(zone: ZoneInfo, start: datetime, end: datetime) -> list[tuple[datetime, datetime, datetime]]:
    """[start, end) cut where the zone's offset changes: (from, until, an instant at which a local hour begins)."""
    segments = []
    while start < end:
        offset = _offset(start, zone)
        until = start
        while until < end and _offset(until, zone) == offset:
            # No zone changes its clock twice within the step.
            until += timedelta(hours=12)
        until = (
            end if until >= end and _offset(end, zone) == offset else min(end, _change(until - timedelta(hours=12), until, zone))
        )
        segments.append((start, until, EPOCH - offset % HOUR))
        start = until
    return segments


def next_hour(moment: datetime, zone: ZoneInfo) -> datetime:
    """The first start of a bucket that is not before `moment`."""
    start = hour_of(moment, zone)
    if start == moment:
        return start
    following = hour_of(start + HOUR, zone)
    # A change within the hour begins another bucket.
    return following if _offset(start, zone) == _offset(following, zone) else max(moment, _change(start, start + HOUR, zone))


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


@lru_cache(maxsize=1000)
def _change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The first second in (before, after] with `after`'s offset, where the two differ."""
    offset = _offset(after, zone)
    low, high = int(before.timestamp()), int(after.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(datetime.fromtimestamp(middle, UTC), zone) == offset:
            high = middle
        else:
            low = middle
    return datetime.fromtimestamp(high, UTC)
