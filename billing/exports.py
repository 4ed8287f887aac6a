"""Usage as CSV: every request of a time, or its sums by one grouping. Columns and their order are a promise (docs/exports.md).

Requests are read in pages by key (time, id), each in a short transaction of its own, so that neither memory nor a connection is
held for as long as a client takes. The cut is made once, before the first page: no row that is committed later stands in the file.
A file ends with a closing record whose first cell says `total`; one without it is not complete.
"""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from django.db import connection, transaction

from accounts.models import Organization
from billing import csvfile, ledger, usage_report
from billing.credits import text as credit_text
from billing.labels import Labels, Sight
from billing.models import UsageRecord
from billing.usage_report import AMOUNTS, COLUMNS, CREDITS, Range, Report
from config import scope

PAGE = 2000
USAGE, TOTAL = "usage", "total"
"""What the first cell of a record says: one request, one group; or the closing line of the file."""

_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="export")
"""Of their own: the snapshots' threads belong to the request path. Two pages at once are made in a process, however many ask."""

_NUMBERS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "counted_requests",
    "credits",
    "from_quota",
    "from_purchased",
    "from_overage",
    "overdraft",
)
_READ = (
    "id",
    "admitted_at",
    "request_id",
    "part",
    "team_id",
    "member_id",
    "key_id",
    "account_id",
    "model_asked",
    "model_served",
    "tier_asked",
    "tier_billed",
    *_NUMBERS,
    "rate_id",
    "status",
    "is_estimated",
    "is_implausible",
    "latency_ms",
    "first_token_ms",
)
_NUMBERS_AT = _READ.index("input_tokens")
_SELECT = ", ".join((*_READ, "jsonb_array_length(lines)"))

ROW_COLUMNS = (
    "record",
    "rows",
    "admitted_at",
    "admitted_at_utc",
    "request_id",
    "part",
    "team",
    "team_id",
    "member",
    "member_email",
    "member_id",
    "key_name",
    "key_public_id",
    "key_id",
    "account",
    "account_id",
    "model_asked",
    "model_served",
    "tier_asked",
    "tier_billed",
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "requests",
    "credits",
    "from_quota",
    "from_purchased",
    "from_overage",
    "overdraft",
    "priced_lines",
    "rate_version",
    "status",
    "estimated",
    "implausible",
    "latency_ms",
    "first_token_ms",
)
_BEFORE_NUMBERS = ROW_COLUMNS.index("input_tokens")
_AFTER_NUMBERS = len(ROW_COLUMNS) - ROW_COLUMNS.index("overdraft") - 1


def total_columns(by: str) -> tuple[str, ...]:
    """Of the file of sums by `by`."""
    return ("record", "rows", *COLUMNS[by], *AMOUNTS)


class File(Protocol):
    """Something that is written piece by piece."""

    @property
    def organization(self) -> Organization: ...
    @property
    def count(self) -> int:
        """Records so far, without the closing one."""

    def next_piece(self) -> str | None:
        """The next part of the file, None after the last. Reads the database in the current scope."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows of the organization up to this id are committed; later ones are larger."""

    last_id: int


def cut(organization_id: int) -> Cut:
    """What an export sees from now on, exactly.

    Writers of an organization take the ledger's lock before their first row has an id. Who holds it reads from the sequence which
    ids were given out, and knows that those of the organization are committed and that none of them will be given out again.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        # A writer that hangs must not hang the exports of everybody: this one breaks off, without its closing record.
        cursor.execute("SET LOCAL lock_timeout = '10s'")
        ledger.lock(organization_id)
        cursor.execute(f"SELECT last_value FROM {SEQUENCE}")  # noqa: S608
        row = cursor.fetchone()
    assert row is not None
    return Cut(int(row[0]))


SEQUENCE = f"{UsageRecord._meta.db_table}_id_seq"


class RowsFile:
    """Every request of the range, oldest first; amendments (part 1) are records of their own, with differences."""

    def __init__(self, sight: Sight, chosen: Range, *, with_bom: bool = False, page: int = PAGE) -> None:
        self.sight, self.chosen, self.page = sight, chosen, page
        self.organization = sight.whose.organization
        self.count = 0
        self.sums = [0] * len(_NUMBERS)
        self._zone = ZoneInfo(self.organization.timezone)
        self._labels = Labels(self.organization)
        self._cut: Cut | None = None
        self._last = (chosen.start, 0)
        self._state = "head"
        self._with_bom = with_bom

    def next_piece(self) -> str | None:
        if self._state == "head":
            # Without a query, so that the client sees at once that the file comes.
            self._state = "rows"
            return (csvfile.BOM if self._with_bom else "") + csvfile.line(ROW_COLUMNS)
        if self._state == "rows":
            if self._cut is None:
                self._cut = cut(self.organization.pk)
            rows = self._read(self._cut)
            if len(rows) < self.page:
                self._state = "closing"
            if rows:
                return self._written(rows)
        if self._state == "closing":
            self._state = "end"
            return csvfile.line(self._closing())
        return None

    def _read(self, made: Cut) -> list[tuple[Any, ...]]:
        """The next page. One query on the index by organization (or member) and time."""
        whose = self.sight.whose
        at, last_id = self._last
        where = ["organization_id = %s", "admitted_at >= %s", "admitted_at < %s", "id <= %s", "(admitted_at, id) > (%s, %s)"]
        values: list[Any] = [self.organization.pk, at, self.chosen.end, made.last_id, at, last_id]
        for column, value in (("member_id", whose.member_id), ("team_id", whose.team_id)):
            if value is not None:
                where.append(f"{column} = %s")
                values.append(value)
        statement = f"SELECT {_SELECT} FROM billing_usagerecord WHERE {' AND '.join(where)} ORDER BY admitted_at, id LIMIT %s"  # noqa: S608
        with connection.cursor() as cursor:
            cursor.execute(statement, [*values, self.page])
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        if rows:
            self._last = (rows[-1][1], rows[-1][0])
        return rows

    def _written(self, rows: Sequence[tuple[Any, ...]]) -> str:
        self._labels.teams(row[4] for row in rows)
        self._labels.members(row[5] for row in rows)
        self._labels.keys(row[6] for row in rows)
        self._labels.accounts(row[7] for row in rows)
        named: dict[tuple[Any, ...], str] = {}
        lines = []
        for row in rows:
            numbers = row[_NUMBERS_AT : _NUMBERS_AT + len(_NUMBERS)]
            for index, amount in enumerate(numbers):
                self.sums[index] += amount
            who = row[4:8]
            names = named.get(who)
            if names is None:
                names = named[who] = ",".join(self._names(*who))
            rate_id, status, is_estimated, is_implausible, latency_ms, first_token_ms, priced = row[_NUMBERS_AT + len(_NUMBERS) :]
            lines.append(
                csvfile.line(
                    (
                        USAGE,
                        "1",
                        csvfile.moment(row[1], self._zone),
                        csvfile.moment(row[1], _UTC),
                        csvfile.encoded(row[2]),
                        csvfile.number(row[3]),
                        names,
                        *(csvfile.text(value) for value in row[8:12]),
                        *_amounts(numbers),
                        csvfile.number(priced),
                        csvfile.number(rate_id),
                        csvfile.text(status),
                        csvfile.flag(is_estimated),
                        csvfile.flag(is_implausible),
                        csvfile.number(latency_ms),
                        csvfile.number(first_token_ms),
                    )
                )
            )
        self.count += len(rows)
        return "".join(lines)

    def _names(self, team_id: int | None, member_id: int, key_id: int, account_id: int | None) -> Iterator[str]:
        team = self._labels.teams([team_id]).get(team_id) if team_id is not None else None
        key = self._labels.keys([key_id])[key_id]
        yield csvfile.text(team.name if team is not None else None)
        yield str(team.uuid) if team is not None else ""
        name, email, uuid = usage_report.member_names(self._labels, member_id)
        yield csvfile.text(name)
        yield csvfile.text(email or None)
        yield uuid
        yield csvfile.text(key.name)
        yield key.public_id if self.sight.sees_key_ids else ""
        yield str(key.uuid)
        label, uuid = usage_report.account_names(self.sight, self._labels, account_id)
        yield csvfile.text(label or None)
        yield uuid

    def _closing(self) -> Iterator[str]:
        yield from (TOTAL, str(self.count))
        yield from [""] * (_BEFORE_NUMBERS - 2)
        yield from _amounts(self.sums)
        yield from [""] * _AFTER_NUMBERS


_UTC = ZoneInfo("UTC")


def _amounts(numbers: Sequence[int]) -> Iterator[str]:
    """Tokens and requests as they are, then the five amounts of credits as decimal text."""
    yield from (str(number) for number in numbers[:6])
    yield from (credit_text(number) for number in numbers[6:])


class TotalsFile:
    """The sums of a report, one group a record, in the report's order."""

    def __init__(self, sight: Sight, by: str, chosen: Range, *, now: datetime, with_bom: bool = False) -> None:
        self.organization = sight.whose.organization
        self.count = 0
        self._make: Callable[[], Report] = lambda: usage_report.report(sight, by, chosen, now=now)
        self._is_done = False
        self._with_bom = with_bom

    def next_piece(self) -> str | None:
        """The whole file: as many records as there are groups."""
        if self._is_done:
            return None
        self._is_done = True
        report = self._make()
        self.count = len(report.lines)
        lines = [csvfile.line(total_columns(report.by))]
        for line in report.lines:
            names = (csvfile.text(name or None) for name in line.names)
            lines.append(csvfile.line((USAGE, "1", *names, *_sums(line.sums))))
        empty = [""] * len(COLUMNS[report.by])
        lines.append(csvfile.line((TOTAL, str(len(report.lines)), *empty, *_sums(report.total))))
        return (csvfile.BOM if self._with_bom else "") + "".join(lines)


def _sums(sums: Any) -> Iterator[str]:
    for name in AMOUNTS:
        value = getattr(sums, name)
        yield credit_text(value) if name in CREDITS else str(value)


# -------------------------------------------------------------------------------------------------------------- writing


def pieces(file: File) -> Iterator[bytes]:
    """The file, UTF-8, in the caller's scope and thread."""
    while (piece := file.next_piece()) is not None:
        yield piece.encode()


def pieces_in_scope(file: File) -> Iterator[bytes]:
    """The same for a server that asks for the pieces when the door has been left."""
    while (piece := _next_piece(file)) is not None:
        yield piece.encode()


async def stream(file: File) -> AsyncIterator[bytes]:
    """The file, UTF-8, each piece made in a thread in the scope of its organization when the one before has been taken.

    A client that leaves ends it: the query that runs is the last, and no connection is held in between.
    """
    while (piece := await _in_thread(_next_piece, file)) is not None:
        yield piece.encode()


def _next_piece(file: File) -> str | None:
    with scope.organization(file.organization.pk):
        return file.next_piece()


async def _in_thread(call: Callable[[File], str | None], file: File) -> str | None:
    def run() -> str | None:
        try:
            return call(file)
        finally:
            # Back to the pool: the client decides when the next piece is asked for.
            connection.close()

    return await asyncio.get_running_loop().run_in_executor(_threads, contextvars.copy_context().run, run)


def headers(file_name: str) -> Mapping[str, str]:
    """What an answer with a file says of it."""
    return {
        "Content-Disposition": f'attachment; filename="{file_name}"',
        "Cache-Control": "no-store",
        # A proxy that gathers the answer would keep the client waiting, and all of it in memory.
        "X-Accel-Buffering": "no",
    }


def file_name(organization: Organization, what: str, chosen: Range) -> str:
    return csvfile.file_name(organization.slug, what, chosen.first_day.isoformat(), chosen.last_day.isoformat())
