"""What records of filters, and logs of seconds, lack of the usage log."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db.models import Q, QuerySet, Sum
from django.db.models.expressions import RawSQL

from billing.models import UsageRecord
from config.snapshot import Snapshot
from quotas import charging, rings, tally
from quotas.adjusting import Cell, Delta, Total
from quotas.copies import Amounts, Copy, StreamId
from quotas.engine import MOST_LOGGED
from quotas.expected import Counted, Expected
from quotas.snapshots import FilterSnapshot

_EPOCH = "floor(date_part('epoch', admitted_at))::bigint"


def missing(snapshot: Snapshot, copy: Copy, filters: Sequence[FilterSnapshot], logs: frozenset[str]) -> list[Delta]:
    """What to add so that the records of the filters hold what the log, up to the copy's cut, and the copy's live holds say.

    `logs`: records whose cells of seconds are wanted too.
    """
    at = rings.at(snapshot, copy.newest, code=copy.period_code)
    expected = Expected(snapshot, at, filters=[one.filter_id for one in filters], logs=logs)
    if filters:
        expected.add_log(at.since, cut=copy.cut)
    add_seconds(expected, cut=copy.cut)
    for hold in copy.holds:
        expected.add_hold(hold)
    deltas: list[Delta] = []
    newest: dict[str, int] = defaultdict(int)
    for key in sorted(expected.cells.keys() | copy.cells.keys(), reverse=True):
        name, tag, place = key
        if place < at.low[tag] or not (name in logs if tag == "s" else "~" in name and expected.knows(name)):
            continue
        if tag == "s":
            # The newest seconds, no more than a log may have.
            newest[name] += 1
            if newest[name] > MOST_LOGGED:
                continue
        c, t, n = _less(expected.cells.get(key, (0, 0, 0)), copy.cells.get(key, (0, 0, 0)))
        if c or t or n:
            deltas.append(Cell(name, tag, place, c, t, n))
    for name in sorted(expected.totals.keys() | copy.records.keys()):
        if "~" in name and expected.knows(name):
            c, t, n = _less(expected.totals.get(name, (0, 0, 0)), copy.total_of(name, at.code))
            if c or t or n:
                deltas.append(Total(name, at.code, c, t, n))
    return deltas


def _less(wanted: Sequence[int], had: Sequence[int]) -> Counted:
    return wanted[0] - had[0], wanted[1] - had[1], wanted[2] - had[2]


# ----------------------------------------------------------------------------------------------------- logs of seconds


def add_seconds(expected: Expected, *, cut: StreamId | None = None) -> None:
    """Adds the cells of seconds of the records that have a log: the newest, no more than it may have. One query for each."""
    since = expected.rings.low["s"]
    for name in sorted(expected.logs):
        for second, amounts in _seconds(expected.snapshot, name, since, cut):
            expected.cells[(name, "s", second)] = amounts


def _seconds(snapshot: Snapshot, name: str, since: int, cut: StreamId | None) -> Iterator[tuple[int, Amounts]]:
    base, _, part = name.partition("~")
    rows: QuerySet[UsageRecord] = UsageRecord.objects.filter(
        organization_id=snapshot.organization_id, admitted_at__gte=_time(since)
    )
    if cut is not None:
        rows = rows.extra(where=[tally.SEEN], params=[*cut])  # noqa: S610
    paid = "credits"
    if part.startswith("s"):
        # The plan's own record: what it paid of the requests that draw on it.
        rows, paid = rows.filter(source=base), "from_quota"
    elif base != "o":
        rows = rows.filter(**{{"t": "team_id", "m": "member_id", "k": "key_id"}[base[0]]: int(base[1:])})
    if part.startswith("f"):
        found = [one for one in snapshot.quotas.filters if f"f{one.filter_id}" == part]
        rows = _of_models(snapshot, rows, found[0], since) if found else rows.none()
    by_second = rows.order_by().annotate(second=RawSQL(_EPOCH, [])).values("second")  # noqa: S611
    summed = by_second.annotate(c=Sum(paid), t=Sum("counted_tokens"), n=Sum("counted_requests")).order_by("-second")
    for second, *sums in summed.values_list("second", "c", "t", "n")[:MOST_LOGGED]:
        yield second, [int(amount) for amount in sums]


def _of_models(snapshot: Snapshot, rows: "QuerySet[UsageRecord]", one: FilterSnapshot, since: int) -> "QuerySet[UsageRecord]":
    """The rows that a filter of models counts: by the model that was asked for, as aliases stood then."""
    wanted = Q(pk__in=[])
    for asked in rows.order_by().values_list("model_asked", flat=True).distinct():
        for start, end in _spans(snapshot, asked, one, since):
            span = Q(model_asked=asked, admitted_at__gte=_time(start))
            wanted |= span if end is None else span & Q(admitted_at__lt=_time(end))
    return rows.filter(wanted)


def _spans(snapshot: Snapshot, asked: str, one: FilterSnapshot, since: int) -> Iterator[tuple[int, int | None]]:
    """When the name meant a model of the filter: [start, end) in unix seconds."""
    starts = [since, *charging.moments(snapshot, since)]
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        if charging.model_of(snapshot, asked, start) in one.models:
            yield start, end


def _time(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def entries(organization_id: int, target: dict[str, Any], since: datetime, most: int) -> int:
    """How many rows of the log a scope has since then; counting ends above `most`."""
    rows = UsageRecord.objects.filter(organization_id=organization_id, admitted_at__gte=since, **target)
    return rows.order_by().values("pk")[: most + 1].count()
