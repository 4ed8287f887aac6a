"""What the log says, summed in PostgreSQL: an organization's month may be millions of rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db import connection, transaction

from quotas.copies import StreamId
from quotas.rings import Rings

PIECE_SECONDS = 14 * 86400
"""So much of the log goes into one statement: what comes back is never all at once in memory."""
# There are far fewer groups than the planner believes of ten columns: it would sort the rows, through files.
_BY_HASH = "SET LOCAL work_mem = '64MB'; SET LOCAL enable_sort = off"

# Rows of the log up to a stream entry: what was written through no stream is `0-0`, older than all.
SEEN = "(split_part(stream_id, '-', 1)::bigint, split_part(stream_id, '-', 2)::bigint) <= (%s, %s)"
# One pass: by fine bucket as far back as those are kept, by coarse bucket before; a local day and a period may begin within it.
_SLICES = """
    SELECT team_id, member_id, key_id, source, period_starts_at, model, era, bucket, day, is_in_period,
        SUM(credits)::bigint, SUM(counted_tokens)::bigint, SUM(counted_requests)::bigint, SUM(from_quota)::bigint,
        SUM(from_purchased)::bigint, SUM(from_overage)::bigint, SUM(overdraft)::bigint,
        array_agg(request_id) FILTER (WHERE ended_at >= %s)
    FROM (
        SELECT *, {model} AS model, {era} AS era,
            CASE WHEN admitted_at >= %s THEN floor(date_part('epoch', admitted_at))::bigint / 300 * 300
                ELSE floor(date_part('epoch', admitted_at))::bigint / 10800 * 10800 END AS bucket,
            %s + width_bucket(admitted_at, %s::timestamptz[]) AS day,
            admitted_at >= %s AS is_in_period
        FROM billing_usagerecord WHERE organization_id = %s AND admitted_at >= %s AND admitted_at < %s{seen}
    ) AS record
    GROUP BY team_id, member_id, key_id, source, period_starts_at, model, era, bucket, day, is_in_period
"""
_PURCHASED_SINCE = """
    SELECT COALESCE(SUM(from_purchased), 0)::bigint FROM billing_usagerecord
    WHERE organization_id = %s AND admitted_at >= %s
    AND (split_part(stream_id, '-', 1)::bigint, split_part(stream_id, '-', 2)::bigint) > (%s, %s)
"""
_NEWEST = "SELECT MAX(admitted_at) FROM billing_usagerecord WHERE organization_id = %s"
_NEVER = datetime.max.replace(tzinfo=UTC)


class Slice(NamedTuple):
    """What requests of one key have in common that are counted in the same places, and their sums.

    `era`: a second in which names of models meant what they did when the requests were admitted. `bucket`: the second at which
    their bucket begins. `lately`: ids of those that ended lately.
    """

    team_id: int | None
    member_id: int
    key_id: int
    source: str
    fund_start: int
    model: str
    era: int
    bucket: int
    day: int
    is_in_period: bool
    amounts: tuple[int, int, int]
    funding: tuple[int, int, int, int]
    lately: Sequence[str]


@contextmanager
def one_snapshot() -> Iterator[None]:
    """A transaction that sees the database as of one moment; inside another one it is part of that."""
    is_nested = connection.in_atomic_block
    with transaction.atomic():
        if not is_nested:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute(_BY_HASH)
        yield


def slices(
    organization_id: int,
    rings: Rings,
    since: int,
    *,
    cut: StreamId | None = None,
    moments: Sequence[int] | None = None,
    lately: int | None = None,
) -> Iterator[Slice]:
    """Everything that was admitted from the second `since` on, and, if there is a cut, written up to it.

    `moments`: ascending, the seconds at which names of models begin to mean another; None: models do not matter, and are "".
    `lately`: the ms from which on ended requests are named.
    """
    midnights = [_time(second) for second in rings.midnights]
    model, era, of_era = "''", "0", []
    if moments is not None:
        model, era, of_era = "model_asked", "width_bucket(admitted_at, %s::timestamptz[])", [[_time(one) for one in moments]]
        if not moments:
            era, of_era = "0", []
    statement = _SLICES.format(model=model, era=era, seen="" if cut is None else f" AND {SEEN}")
    begins = [since, *(moments or ())]
    ended = _NEVER if lately is None else _time(lately / 1000)
    starts = list(range(since, max(rings.newest, since + 1), PIECE_SECONDS))
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        parameters: list[Any] = [ended, *of_era, _time(rings.first_fine), rings.low["d"] - 1, midnights, _time(rings.period)]
        parameters += [organization_id, _time(start), _NEVER if end is None else _time(end), *(cut or ())]
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            for row in cursor:
                team_id, member_id, key_id, source, fund_start, asked, number, bucket, day, is_in_period, *sums, ids = row
                yield Slice(
                    team_id,
                    member_id,
                    key_id,
                    source,
                    int(fund_start.timestamp()),
                    asked,
                    begins[number],
                    bucket,
                    day,
                    is_in_period,
                    (sums[0], sums[1], sums[2]),
                    (sums[3], sums[4], sums[5], sums[6]),
                    ids or (),
                )


def purchased_after(organization_id: int, since: int, cut: StreamId) -> int:
    """What rows that came after the cut drew of purchased credits; they were admitted from `since` on."""
    with connection.cursor() as cursor:
        cursor.execute(_PURCHASED_SINCE, [organization_id, _time(since), *cut])
        return int(cursor.fetchone()[0])


def newest(organization_id: int) -> int:
    """The second of the newest admission in the log; 0 if there is none."""
    with connection.cursor() as cursor:
        cursor.execute(_NEWEST, [organization_id])
        found = cursor.fetchone()[0]
    return 0 if found is None else int(found.timestamp())


def _time(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)
