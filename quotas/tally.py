"""What the log says that counters must hold, summed in PostgreSQL: an organization's month may be millions of rows."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import connection

from quotas.copies import StreamId

# Rows of the log up to a stream entry: what was written through no stream is `0-0`, older than all.
_WHERE = """
    organization_id = %s AND admitted_at >= %s
    AND (split_part(stream_id, '-', 1)::bigint, split_part(stream_id, '-', 2)::bigint) <= (%s, %s)
"""
_SUMS = "SUM(credits)::bigint, SUM(counted_tokens)::bigint, SUM(counted_requests)::bigint"
_BUCKETS = {
    "f": "floor(date_part('epoch', admitted_at))::bigint / 300",
    "c": "floor(date_part('epoch', admitted_at))::bigint / 10800",
    "d": "%s + width_bucket(admitted_at, %s::timestamptz[])",
}
FUNDING = f"""
    SELECT source, period_starts_at, SUM(from_quota)::bigint, SUM(from_purchased)::bigint, SUM(from_overage)::bigint,
        SUM(overdraft)::bigint
    FROM billing_usagerecord WHERE {_WHERE} GROUP BY source, period_starts_at
"""  # noqa: S608
PURCHASED_SINCE = """
    SELECT COALESCE(SUM(from_purchased), 0)::bigint FROM billing_usagerecord
    WHERE organization_id = %s AND admitted_at >= %s
    AND (split_part(stream_id, '-', 1)::bigint, split_part(stream_id, '-', 2)::bigint) > (%s, %s)
"""

Counted = tuple[str, int, tuple[int, int, int]]
"""A record's name, a bucket or day, and credits, tokens, requests."""


def cells(
    organization_id: int, tag: str, since: int, cut: StreamId, *, midnights: Sequence[int] = (), day: int = 0
) -> Iterator[Counted]:
    """The cells of every record from the second `since` on. For days: `midnights` are the seconds at which each day begins, the
    first one's ordinal being `day`."""
    edges = [datetime.fromtimestamp(second, UTC) for second in midnights]
    return _by_record(organization_id, _BUCKETS[tag], [day - 1, edges] if tag == "d" else [], since, cut)


def totals(organization_id: int, since: int, cut: StreamId) -> Iterator[Counted]:
    """What every record counts from the second `since` on; the bucket is 0."""
    return _by_record(organization_id, "0", [], since, cut)


def _by_record(organization_id: int, bucket: str, parameters: list[Any], since: int, cut: StreamId) -> Iterator[Counted]:
    statement = f"""
        SELECT GROUPING(team_id, member_id, key_id), team_id, member_id, key_id, bucket, {_SUMS}
        FROM (SELECT *, {bucket} AS bucket FROM billing_usagerecord WHERE {_WHERE}) AS record
        GROUP BY GROUPING SETS ((bucket), (team_id, bucket), (member_id, bucket), (key_id, bucket))
    """  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(statement, [*parameters, organization_id, datetime.fromtimestamp(since, UTC), *cut])
        for grouping, team_id, member_id, key_id, at, *sums in cursor:
            amounts = (sums[0], sums[1], sums[2])
            # A bit is set for each column that the row is not grouped by.
            if grouping == 0b111:
                yield "o", at, amounts
            elif grouping == 0b011:
                if team_id is not None:
                    yield f"t{team_id}", at, amounts
            elif grouping == 0b101:
                yield f"m{member_id}", at, amounts
            else:
                yield f"k{key_id}", at, amounts


def funding(organization_id: int, since: int, cut: StreamId) -> dict[tuple[str, int], tuple[int, int, int, int]]:
    """By source and start of its period: what requests admitted from `since` on drew from plan, purchased, overage, overdraft."""
    with connection.cursor() as cursor:
        cursor.execute(FUNDING, [organization_id, datetime.fromtimestamp(since, UTC), *cut])
        return {(source, int(start.timestamp())): (a, b, c, d) for source, start, a, b, c, d in cursor.fetchall()}


def purchased_after(organization_id: int, since: int, cut: StreamId) -> int:
    """What rows that came after the cut drew of purchased credits; they were admitted from `since` on."""
    with connection.cursor() as cursor:
        cursor.execute(PURCHASED_SINCE, [organization_id, datetime.fromtimestamp(since, UTC), *cut])
        return int(cursor.fetchone()[0])
