"""The usage log as people browse it: requests by filters, page by page, in both directions; one request with all its parts.

A page costs a fixed number of queries, and few rows are read for it however long the log is: members and whatever did not end well
have an index of their own; for a team, key, model or account the hourly sums say in which hours of whom there is something.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import QuerySet

from billing import partitions, reports, rollups
from billing.models import UsageHour, UsageRecord
from billing.overview import Whose

OK = UsageRecord.Status.OK.value
MOST_SPOTS = 300
"""Hours of members that one page looks into; where one hour has more than these, it is read without looking."""
MOST_SUMMED = timedelta(days=32)
"""A longer time is shown without its sums."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for, by row ids, all of it together; [start, end), None: as far as the log goes.

    `model` and `account_id` are those of the priced lines, as in the usage report.
    """

    member_id: int | None = None
    team_id: int | None = None
    key_id: int | None = None
    account_id: int | None = None
    model: str = ""
    status: str = ""
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the log: beside the row of this id; without one, before all rows of the moment, seen from the past."""

    at: datetime
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Logged:
    """One request: its end (part 0), and the amendment of an orphan whose real end came later (part 1, differences)."""

    row: UsageRecord
    amendment: UsageRecord | None = None

    @property
    def settled(self) -> UsageRecord:
        """The part that tells how it went: lines, trace, models, times."""
        return self.amendment or self.row

    def total(self, name: str) -> int:
        """A number of both parts together."""
        own = int(getattr(self.row, name))
        return own + (int(getattr(self.amendment, name)) if self.amendment is not None else 0)

    @property
    def credits(self) -> int:
        return self.total("credits")

    @property
    def read_tokens(self) -> int:
        """What was read and not cached: fresh input and cache writes."""
        return self.total("input_tokens") + self.total("cache_write_tokens")

    @property
    def cached_tokens(self) -> int:
        return self.total("cached_input_tokens")

    @property
    def output_tokens(self) -> int:
        return self.total("output_tokens")


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows in the order asked for. `reached`: what lies beyond this moment was not looked at; None: there is no more."""

    rows: Sequence[Logged]
    reached: datetime | None = None


def find(whose: Whose, wanted: Wanted, *, mark: Mark | None = None, is_newer: bool = False, count: int, now: datetime) -> Piece:
    """The `count` requests next to `mark`: older ones, the newest first; or (`is_newer`) newer ones, the oldest first. Without a
    mark from the beginning. Three queries at most."""
    spots, reached = _spots(whose, wanted, mark, is_newer, count) if _is_narrowed(whose, wanted) else (None, None)
    keys = _keys(whose, wanted, mark, is_newer, count, spots, now) if spots is None or spots[0] else []
    return Piece(_logged(whose, keys), reached if len(keys) < count else None)


def one(whose: Whose, request_id: str) -> Logged | None:
    """By its id. One query."""
    parts = list(whose.rows().filter(request_id=request_id).select_related("organization").order_by("admitted_at", "part"))
    first = next((row for row in parts if row.part == 0), None)
    if first is None:
        return None
    return Logged(first, next((row for row in parts if row.part == 1 and row.admitted_at == first.admitted_at), None))


def by_response(whose: Whose, response_id: str) -> str:
    """The id of the request that made this response, "" if there is none. One query."""
    rows = whose.rows().filter(response_id=response_id, part=0) if response_id else UsageRecord.objects.none()
    return rows.order_by("-admitted_at").values_list("request_id", flat=True).first() or ""


@dataclass(frozen=True, slots=True)
class Sums:
    requests: int
    credits: int


def sums(whose: Whose, wanted: Wanted, *, now: datetime) -> Sums | None:
    """Requests and credits of all that `find` would find, from the hourly sums: what every report says of the same time. None for
    more than MOST_SUMMED, and by status, which the sums do not know. A few queries."""
    zone = ZoneInfo(whose.organization.timezone)
    end = min(wanted.end, rollups.next_hour(now, zone)) if wanted.end is not None else rollups.next_hour(now, zone)
    if wanted.status or wanted.start is None or end - wanted.start > MOST_SUMMED:
        return None
    if wanted.start >= end:
        return Sums(0, 0)
    asked = {"team": wanted.team_id, "key": wanted.key_id, "model": wanted.model or None, "account": wanted.account_id}
    by = [name for name, value in asked.items() if value is not None] or ["team"]
    of = whose.of_reports()
    if wanted.member_id is not None:
        if whose.member_id not in (None, wanted.member_id):
            return Sums(0, 0)
        of = {"members": [wanted.member_id], "team_id": whose.team_id}
    found = reports.sums(whose.organization, by, wanted.start, end, **of, amounts=("requests", "credits"))
    kept = [amounts for group, amounts in found.items() if all(asked[n] in (None, g) for n, g in zip(by, group, strict=True))]
    return Sums(sum(requests for requests, _ in kept), sum(credits for _, credits in kept))


# ---------------------------------------------------------------------------------------------------------- narrowing

Spots = tuple[list[datetime], list[int]]
"""Parallel: an hour, and a member who used something in it."""


def _is_narrowed(whose: Whose, wanted: Wanted) -> bool:
    """By the hourly sums: where no index of the log leads to it."""
    if wanted.status not in ("", OK):
        return False
    if any(value is not None for value in (wanted.key_id, wanted.account_id, wanted.model or None)):
        return True
    is_of_member = wanted.member_id is not None or whose.member_id is not None
    return not is_of_member and (wanted.team_id is not None or whose.team_id is not None)


def _spots(whose: Whose, wanted: Wanted, mark: Mark | None, is_newer: bool, count: int) -> tuple[Spots | None, datetime | None]:
    """Where to look for `count` rows from `mark` on, and how far that reaches (None: to the end). None in place of the spots: there
    are so many that looking everywhere is quicker. One query."""
    hour = rollups.HOUR
    rows = UsageHour.objects.filter(organization=whose.organization)
    for name, value in (
        ("member_id", wanted.member_id),
        ("member_id", whose.member_id),
        ("team_id", wanted.team_id),
        ("team_id", whose.team_id),
        ("key_id", wanted.key_id),
        ("account_id", wanted.account_id),
        ("model", wanted.model or None),
    ):
        if value is not None:
            rows = rows.filter(**{name: value})
    if wanted.start is not None:
        rows = rows.filter(hour__gt=wanted.start - hour)
    if wanted.end is not None:
        rows = rows.filter(hour__lt=wanted.end)
    if mark is not None:
        rows = rows.filter(hour__gt=mark.at - hour) if is_newer else rows.filter(hour__lte=mark.at)
    entries = list(rows.order_by("hour" if is_newer else "-hour").values_list("hour", "member_id")[: MOST_SPOTS + 1])
    found: dict[tuple[datetime, int], None] = {}
    whole = 0
    last: datetime | None = None
    for at, member_id in entries:
        # The hours are looked into to their ends, so that rows of different members come in order.
        if last is not None and at != last and whole >= count:
            return _parallel(found), (last + hour if is_newer else last)
        found[(at, member_id)] = None
        # Of an hour that is cut, all may lie on the other side.
        whole += not any(edge is not None and at <= edge < at + hour for edge in (mark.at if mark else None, wanted.end))
        last = at
    if len(entries) > MOST_SPOTS:
        return None, None
    return _parallel(found), None


def _parallel(found: dict[tuple[datetime, int], None]) -> Spots:
    return [at for at, _ in found], [member_id for _, member_id in found]


# ------------------------------------------------------------------------------------------------------------- reading

Key = tuple[datetime, int, str]
MONTHS = 24
"""So many are looked into one after the other; what is older, at once."""
_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


def _keys(
    whose: Whose, wanted: Wanted, mark: Mark | None, is_newer: bool, count: int, spots: Spots | None, now: datetime
) -> list[Key]:
    """Time, id and request id of the rows that match, in order.

    Each span of time is asked for its own next rows: a partition then is read only if those before it did not have enough, and a
    member's hour by their index. (One question over all partitions would merge them, and for that find the first row of each.)
    """
    where = ["organization_id = %s", "part = 0"]
    values: list[Any] = [whose.organization.pk]
    for condition, value in (
        ("member_id = %s", whose.member_id),
        ("member_id = %s", wanted.member_id),
        ("team_id = %s", whose.team_id),
        ("team_id = %s", wanted.team_id),
        ("key_id = %s", wanted.key_id),
        ("status = %s", wanted.status or None),
        ("admitted_at >= %s", wanted.start),
        ("admitted_at < %s", wanted.end),
    ):
        if value is not None:
            where.append(condition)
            values.append(value)
    for name, line_value, own in (
        ("model", wanted.model or None, "COALESCE(NULLIF(model_served, ''), model_asked)"),
        ("account_id", wanted.account_id, "account_id"),
    ):
        if line_value is not None:
            where.append(f"(lines @> %s::jsonb OR (lines = '[]' AND {own} = %s))")
            values += [json.dumps([{name: line_value}]), line_value]
    if mark is not None:
        # The first condition alone leads into the index; the second parts the rows of one moment.
        if mark.id is None:
            where.append("admitted_at >= %s" if is_newer else "admitted_at < %s")
            values.append(mark.at)
        else:
            where += (
                ["admitted_at >= %s", "(admitted_at > %s OR id > %s)"]
                if is_newer
                else ["admitted_at <= %s", "(admitted_at < %s OR id < %s)"]
            )
            values += [mark.at, mark.at, mark.id]
    direction = "ASC" if is_newer else "DESC"
    order = f"ORDER BY admitted_at {direction}, id {direction} LIMIT %s"
    if spots is not None:
        hours, members = spots
        spans: list[Any] = [hours, [hour + rollups.HOUR for hour in hours], members]
        where.append("member_id = span.member_id")
        # Where the clock was changed two hours may overlap.
        select, last = "SELECT DISTINCT", order
    else:
        months = _months(wanted, mark, is_newer, now)
        spans = [[start for start, _ in months], [end for _, end in months], [0] * len(months)]
        # They follow each other, so their rows do; an order asked for here would have every span read.
        select, last = "SELECT", "LIMIT %s"
    statement = f"""
        {select} found.admitted_at, found.id, found.request_id
        FROM unnest(%s::timestamptz[], %s::timestamptz[], %s::bigint[]) AS span (starts, ends, member_id)
        CROSS JOIN LATERAL (
            SELECT admitted_at, id, request_id FROM billing_usagerecord
            WHERE admitted_at >= span.starts AND admitted_at < span.ends AND {" AND ".join(where)} {order}
        ) AS found {last}
    """  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(statement, [*spans, *values, count, count])
        found: list[Key] = cursor.fetchall()
    return sorted(found, key=lambda key: key[:2], reverse=not is_newer)


def _months(wanted: Wanted, mark: Mark | None, is_newer: bool, now: datetime) -> list[tuple[datetime, datetime]]:
    """All of time in spans, in the order they are to be read in: UTC months, as the partitions are, from where the page begins."""
    edge = mark.at if mark is not None else wanted.start or _FIRST if is_newer else wanted.end or now
    edge = max(_EARLIEST, min(edge, now))
    if is_newer:
        starts = [_FIRST, *(partitions.month(edge, number) for number in range(1, MONTHS))]
        return list(zip(starts, [*starts[1:], _LAST], strict=True))
    ends = [_LAST, *(partitions.month(edge, -number) for number in range(MONTHS - 1))]
    return list(zip([*ends[1:], _FIRST], ends, strict=True))


_UNSHOWN = ("trace", "raw_usage", "response_id", "session", "stream_id", "lines")


def _logged(whose: Whose, keys: Sequence[Key]) -> list[Logged]:
    """The rows of these keys with their amendments, in the same order. One query; what only an opened row shows stays behind."""
    if not keys:
        return []
    moments = [at for at, _, _ in keys]
    parts: QuerySet[UsageRecord] = UsageRecord.objects.filter(
        organization=whose.organization,
        request_id__in=[request_id for _, _, request_id in keys],
        admitted_at__gte=min(moments),
        admitted_at__lte=max(moments),
    ).defer(*_UNSHOWN)
    found = {(row.admitted_at, row.request_id, row.part): row for row in parts.order_by()}
    rows = [(found.get((at, request_id, 0)), found.get((at, request_id, 1))) for at, _, request_id in keys]
    return [Logged(row, amendment) for row, amendment in rows if row is not None]
