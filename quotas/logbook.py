"""What the log says that the records of filters must hold, and what they lack of it."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet, Sum
from django.db.models.expressions import RawSQL

from billing.models import UsageRecord
from config.snapshot import Snapshot
from quotas import charging, records, views, windows
from quotas.adjusting import Cell, Delta, Total
from quotas.copies import Amounts, Copy, Hold
from quotas.drift import COARSE, DAYS, FINE
from quotas.engine import MOST_LOGGED
from quotas.snapshots import FilterSnapshot

_EPOCH = "floor(date_part('epoch', admitted_at))::bigint"
_SEEN = "(split_part(stream_id, '-', 1)::bigint, split_part(stream_id, '-', 2)::bigint) <= (%s, %s)"
Key = tuple[str, str, int]
"""Record, tag (`p` for the plan period), bucket."""


def missing(snapshot: Snapshot, copy: Copy, filters: Sequence[FilterSnapshot], logs: frozenset[str]) -> list[Delta]:
    """What to add so that the records of the filters hold what the log, up to the copy's cut, and the copy's live holds say.

    `logs`: records whose cells of seconds are wanted too. A handful of grouped queries for each filter.
    """
    zone = ZoneInfo(snapshot.accounts.timezone)
    newest = copy.newest
    first_day = windows.day_of(newest, zone) - DAYS
    period, _ = views.organization_period(snapshot, newest)
    code = max(records.code(records.PERIOD, period), copy.records["o"].period_code if "o" in copy.records else 0)
    low = {"f": newest // 300 - FINE, "c": newest // 10800 - COARSE, "d": first_day, "p": 0}
    low["s"] = low["c"] * 10800
    midnights = [windows.midnight(first_day + number, zone) for number in range(DAYS + 3)]
    edges = [datetime.fromtimestamp(second, UTC) for second in midnights]
    since = {"f": low["f"] * 300, "c": low["s"], "d": midnights[0], "p": code // 16, "s": low["s"]}
    buckets = {
        "f": RawSQL(f"{_EPOCH} / 300", []),  # noqa: S611
        "c": RawSQL(f"{_EPOCH} / 10800", []),  # noqa: S611
        "d": RawSQL("%s + width_bucket(admitted_at, %s::timestamptz[])", [first_day - 1, edges]),
        "p": RawSQL("0", []),
        "s": RawSQL(_EPOCH, []),  # noqa: S611
    }
    rows = UsageRecord.objects.filter(organization_id=snapshot.organization_id).extra(where=[_SEEN], params=[*copy.cut])  # noqa: S610
    deltas: list[Delta] = []
    parts: list[FilterSnapshot | None] = [*filters, *([None] if logs else [])]
    for one in parts:
        expected: dict[Key, Amounts] = defaultdict(lambda: [0, 0, 0])
        for tag, start in since.items():
            if one is None and tag != "s":
                # Records of all requests are the reconciler's; here they lack their seconds only.
                continue
            if tag == "s" and not logs:
                continue
            own = _of_filter(snapshot, rows.filter(admitted_at__gte=datetime.fromtimestamp(start, UTC)), one, start)
            for name, at, amounts in _summed(own, one, buckets[tag]):
                if tag != "s" or name in logs:
                    _add(expected[(name, tag, at)], amounts)
        for hold in copy.holds:
            _count_hold(expected, hold, one, code, logs)
        deltas += _differences(expected, copy, one, code, low, logs)
    return deltas


def _of_filter(
    snapshot: Snapshot, rows: "QuerySet[UsageRecord]", one: FilterSnapshot | None, since: int
) -> "QuerySet[UsageRecord]":
    """The rows that a filter counts: by their source, or by the model that was asked for, as aliases stood then."""
    if one is None:
        return rows
    if one.source:
        return rows.filter(source=one.source)
    wanted = Q(pk__in=[])
    for asked in rows.order_by().values_list("model_asked", flat=True).distinct():
        for start, end in _spans(snapshot, asked, one, since):
            span = Q(model_asked=asked, admitted_at__gte=datetime.fromtimestamp(start, UTC))
            wanted |= span if end is None else span & Q(admitted_at__lt=datetime.fromtimestamp(end, UTC))
    return rows.filter(wanted)


def _spans(snapshot: Snapshot, asked: str, one: FilterSnapshot, since: int) -> Iterator[tuple[int, int | None]]:
    """When the name meant a model of the filter: [start, end) in unix seconds."""
    rates = snapshot.billing.rates
    moments: set[int] = {since}
    for dated in (*rates.aliases.get(asked, ()), *rates.rows.get(asked, ()), *rates.overrides.get(asked, ())):
        # The first whole second of it: requests are admitted in whole ones.
        moments |= {math.ceil(moment.timestamp()) for moment in (dated.valid_from, dated.valid_to) if moment is not None}
    starts = sorted(moment for moment in moments if moment >= since)
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        if charging.model_of(snapshot, asked, start) in one.models:
            yield start, end


def _summed(rows: "QuerySet[UsageRecord]", one: FilterSnapshot | None, bucket: RawSQL) -> Iterator[tuple[str, int, Amounts]]:
    """By record and bucket, as PostgreSQL sums them by key. A plan's own record counts what the plan paid."""
    paid = one is not None and bool(one.source)
    columns = ("from_quota" if paid else "credits", "counted_tokens", "counted_requests")
    by = ("bucket",) if paid else ("team_id", "member_id", "key_id", "bucket")
    grouped = rows.order_by().annotate(bucket=bucket).values(*by).annotate(*[Sum(column) for column in columns])
    for row in grouped.iterator(chunk_size=5000):
        amounts = [int(row[f"{column}__sum"]) for column in columns]
        if one is not None and paid:
            yield charging.plan_record(one), row["bucket"], amounts
            continue
        for base in charging.base_names(row["team_id"], row["member_id"], row["key_id"]):
            yield (base if one is None else charging.filtered(base, one.filter_id)), row["bucket"], amounts


def _is_of(name: str, one: FilterSnapshot | None) -> bool:
    if one is None:
        return "~" not in name
    return name == charging.plan_record(one) if one.source else name.endswith(f"~f{one.filter_id}")


def _count_hold(expected: dict[Key, Amounts], hold: Hold, one: FilterSnapshot | None, code: int, logs: frozenset[str]) -> None:
    for name in hold.names:
        if _is_of(name, one):
            if name in logs:
                _add(expected[(name, "s", hold.second)], hold.amounts)
            if one is not None:
                for tag, at in (("f", hold.second // 300), ("c", hold.second // 10800), ("d", hold.day)):
                    _add(expected[(name, tag, at)], hold.amounts)
                if hold.period_code == code:
                    _add(expected[(name, "p", 0)], hold.amounts)


def _differences(
    expected: dict[Key, Amounts], copy: Copy, one: FilterSnapshot | None, code: int, low: dict[str, int], logs: frozenset[str]
) -> list[Delta]:
    counted: dict[Key, Sequence[int]] = {key: sums for key, sums in copy.cells.items() if _is_of(key[0], one)}
    for name, record in copy.records.items():
        if _is_of(name, one):
            counted[(name, "p", 0)] = record.total if record.period_code == code else (0, 0, 0)
    deltas: list[Delta] = []
    newest: dict[str, int] = defaultdict(int)
    for key in sorted(expected.keys() | counted.keys(), reverse=True):
        name, tag, at = key
        if at < low[tag] or (one is None and tag != "s") or (tag == "s" and name not in logs):
            continue
        if tag == "s":
            # The newest seconds, no more than a log may have.
            newest[name] += 1
            if newest[name] > MOST_LOGGED:
                continue
        c, t, n = (wanted - had for wanted, had in zip(expected.get(key, (0, 0, 0)), counted.get(key, (0, 0, 0)), strict=True))
        if c or t or n:
            deltas.append(Total(name, code, c, t, n) if tag == "p" else Cell(name, tag, at, c, t, n))
    return deltas


def _add(sums: Amounts, amounts: Sequence[int]) -> None:
    for index, amount in enumerate(amounts):
        sums[index] += amount


def entries(organization_id: int, target: dict[str, Any], since: datetime, most: int) -> int:
    """How many rows of the log a scope has since then; counting ends above `most`."""
    rows = UsageRecord.objects.filter(organization_id=organization_id, admitted_at__gte=since, **target)
    return rows.order_by().values("pk")[: most + 1].count()
