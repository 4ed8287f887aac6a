"""The request log as a page shows it: requests of the usage log and kept refusals in one list by time, page by page.

A place in the list is named by what stands there: a request's id, a refusal's public id, or a moment (unix seconds).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from django.db.models import QuerySet, Sum

from billing import usage_log
from billing.models import UsageRecord
from billing.overview import Whose
from billing.usage_log import Logged, Mark, Sums, Wanted
from quotas.models import Refusal

PAGE = 50
REFUSED = "refused"
"""A status to look for beside those of the log."""
LATEST_S = 253_402_300_799


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the list: a request, or requests that were refused within a minute for one reason."""

    at: datetime
    logged: Logged | None = None
    refusal: Refusal | None = None

    @property
    def name(self) -> str:
        """What it is opened by."""
        return self.logged.row.request_id if self.logged is not None else str(self.refusal.uuid) if self.refusal else ""

    @property
    def member_id(self) -> int:
        row = self.logged.row if self.logged is not None else self.refusal
        assert row is not None
        return row.member_id

    @property
    def _order(self) -> tuple[datetime, int, int]:
        # Of one moment, requests stand above refusals.
        row: Any = self.logged.row if self.logged is not None else self.refusal
        return (self.at, 1 if self.logged is not None else 0, row.pk)


@dataclass(frozen=True, slots=True)
class Page:
    """Entries, the newest first. `older`, `newer`: what to ask for the neighbouring page by; "" where there is none."""

    entries: Sequence[Entry]
    older: str
    newer: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page begins, as marks of both tables."""

    logged: Mark
    refused: Mark


def place(whose: Whose, text: str) -> Place | None:
    """The place of that name in the reader's reach. None for no, a foreign, or a wrong name. One query at most."""
    if text.isascii() and text.isdigit():
        if len(text) > 12 or int(text) > LATEST_S:
            return None
        mark = Mark(datetime.fromtimestamp(int(text), UTC))
        return Place(mark, mark)
    if (uuid := as_uuid(text)) is not None:
        refusal = refusals(whose).filter(uuid=uuid).first()
        if refusal is None:
            return None
        # Requests of the same moment stand above.
        return Place(Mark(refusal.last_at), Mark(refusal.last_at, refusal.pk))
    rows = whose.rows().filter(request_id=text[:40], part=0) if "\0" not in text else UsageRecord.objects.none()
    found = rows.order_by().values_list("admitted_at", "id").first()
    if found is None:
        return None
    return Place(Mark(*found), Mark(found[0] + timedelta(microseconds=1)))


def entry(whose: Whose, name: str) -> Entry | None:
    """A request by its id, or a refusal by its public id, in the reader's reach. One query."""
    if "\0" in name or len(name) > 40:
        return None
    if (uuid := as_uuid(name)) is not None:
        refusal = refusals(whose).filter(uuid=uuid).first()
        return Entry(refusal.last_at, refusal=refusal) if refusal is not None else None
    logged = usage_log.one(whose, name)
    return Entry(logged.row.admitted_at, logged=logged) if logged is not None else None


def of_response(whose: Whose, response_id: str) -> Entry | None:
    """The request that made this response, in the reader's reach. Two queries."""
    if "\0" in response_id or len(response_id) > 128:
        return None
    name = usage_log.by_response(whose, response_id)
    return entry(whose, name) if name else None


def page(
    whose: Whose, wanted: Wanted, *, before: Place | None = None, after: Place | None = None, count: int = PAGE, now: datetime
) -> Page:
    """`count` entries older than `before`, or newer than `after`, or the newest. Where fewer are newer, the newest page.

    Four queries; eight where the last of it applies.
    """
    if after is not None:
        entries, reached = _read(whose, wanted, after, True, count, now)
        if len(entries) > count or reached is not None:
            shown = list(reversed(entries[:count]))
            newer = shown[0].name if len(entries) > count else _seconds(reached)
            return Page(shown, shown[-1].name if shown else "", newer)
    entries, reached = _read(whose, wanted, before if after is None else None, False, count, now)
    shown = entries[:count]
    older = shown[-1].name if len(entries) > count else _seconds(reached)
    is_first = before is None or after is not None
    return Page(shown, older, "" if is_first or not shown else shown[0].name)


def nearest(whose: Whose, wanted: Wanted, *, now: datetime) -> Entry | None:
    """What was newest before the time that was looked in."""
    if wanted.start is None:
        return None
    earlier = replace(wanted, start=None, end=wanted.start)
    return next(iter(page(whose, earlier, count=1, now=now).entries), None)


def refused_count(whose: Whose, wanted: Wanted) -> int:
    """How many requests were refused of what is looked for. One query."""
    found = _refused(whose, wanted)
    return 0 if found is None else int(found.order_by().aggregate(count=Sum("count"))["count"] or 0)


def sums(whose: Whose, wanted: Wanted, *, now: datetime) -> Sums | None:
    return None if wanted.status else usage_log.sums(whose, wanted, now=now)


def _seconds(reached: datetime | None) -> str:
    return "" if reached is None else str(int(reached.timestamp()))


def as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text) if len(text) == 36 else None
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------------------------- reading


def _read(
    whose: Whose, wanted: Wanted, start: Place | None, is_newer: bool, count: int, now: datetime
) -> tuple[list[Entry], datetime | None]:
    """One entry more than `count`, if there are so many; and what was not looked beyond."""
    entries: list[Entry] = []
    reached = None
    if wanted.status != REFUSED:
        piece = usage_log.find(whose, wanted, mark=start.logged if start else None, is_newer=is_newer, count=count + 1, now=now)
        entries += [Entry(one.row.admitted_at, logged=one) for one in piece.rows]
        reached = piece.reached
    if (found := _refused(whose, wanted)) is not None:
        if start is not None:
            found = _beyond(found, start.refused, is_newer)
        if reached is not None:
            # What was not looked for in the log would be missing between them.
            found = found.filter(last_at__lt=reached) if is_newer else found.filter(last_at__gte=reached)
        order = ("last_at", "id") if is_newer else ("-last_at", "-id")
        entries += [Entry(row.last_at, refusal=row) for row in found.order_by(*order)[: count + 1]]
    entries.sort(key=lambda entry: entry._order, reverse=not is_newer)
    return list(islice(entries, count + 1)), reached if len(entries) <= count else None


def refusals(whose: Whose) -> QuerySet[Refusal]:
    """In the reach: of a team those of the time when their member was in it."""
    rows = Refusal.objects.filter(organization=whose.organization)
    if whose.member_id is not None:
        return rows.filter(member_id=whose.member_id)
    return rows if whose.team_id is None else rows.filter(team_id=whose.team_id)


def _refused(whose: Whose, wanted: Wanted) -> QuerySet[Refusal] | None:
    """None: nothing that was refused can match. No account carried it."""
    if wanted.status not in ("", REFUSED) or wanted.account_id is not None:
        return None
    rows = refusals(whose)
    for name, value in (
        ("member_id", wanted.member_id),
        ("team_id", wanted.team_id),
        ("key_id", wanted.key_id),
        ("model", wanted.model or None),
        ("last_at__gte", wanted.start),
        ("last_at__lt", wanted.end),
    ):
        if value is not None:
            rows = rows.filter(**{name: value})
    return rows


def _beyond(rows: QuerySet[Refusal], mark: Mark, is_newer: bool) -> QuerySet[Refusal]:
    if mark.id is None:
        return rows.filter(last_at__gte=mark.at) if is_newer else rows.filter(last_at__lt=mark.at)
    same = rows.filter(last_at=mark.at)
    if is_newer:
        return rows.filter(last_at__gt=mark.at) | same.filter(id__gt=mark.id)
    return rows.filter(last_at__lt=mark.at) | same.filter(id__lt=mark.id)
