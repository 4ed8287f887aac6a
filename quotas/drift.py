"""Where a copy of the counters differs from the log: what to store about it, and what to add so that it does not."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Max

from billing import ledger
from billing.models import UsageRecord
from config.snapshot import Snapshot
from quotas import records, tally, views, windows
from quotas.adjusting import Cell, Delta, Funding, Spent, Total
from quotas.copies import Amounts, Copy, StreamId

FINE, COARSE, DAYS = 288, 240, 40
"""How many cells besides the newest any window still needs (quotas.md section 2)."""
HORIZON = 62 * 86400
"""Two months: periods that began earlier are neither the current nor the previous one of any source."""
METRICS = ("credits", "tokens", "requests")
FUNDS = ("plan", "purchased", "overage", "overdraft")


@dataclass(frozen=True, slots=True)
class Difference:
    """One amount that is not what the log makes of it: micro-credits, tokens or requests, as `field` says."""

    kind: str
    record: str
    field: str
    expected: int
    counted: int


@dataclass(slots=True)
class Found:
    """`deltas` put all right but what is held, which only a rebuild can."""

    differences: list[Difference] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)

    def compare(self, kind: str, record: str, names: Iterable[str], expected: Iterable[int], counted: Iterable[int]) -> bool:
        """Are they different?"""
        pairs = list(zip(names, expected, counted, strict=True))
        self.differences += [Difference(kind, record, name, one, other) for name, one, other in pairs if one != other]
        return any(one != other for _, one, other in pairs)


def compare(organization_id: int, snapshot: Snapshot, copy: Copy, cut: StreamId) -> Found:
    """The copy against the log up to `cut` and the holds that live in the copy. Reads in the caller's snapshot of the database."""
    found = Found()
    newest = _newest(organization_id, copy)
    _compare_cells(found, organization_id, snapshot, copy, cut, newest)
    _compare_totals(found, organization_id, snapshot, copy, cut, newest)
    _compare_funding(found, organization_id, snapshot, copy, cut, newest)
    _compare_holds(found, copy)
    return found


def add_deltas(found: Found, copy: Copy, deltas: Iterable[Delta]) -> None:
    """Cells and totals that somebody else found to be lacking, with the values that they have in the copy."""
    for delta in deltas:
        less: tuple[int, int, int]
        match delta:
            case Cell():
                counted: Iterable[int] = copy.cells.get((delta.record, delta.tag, delta.at), [0, 0, 0])
                kind, record, field_name = "cell", delta.record, f"{delta.tag}{delta.at}"
            case Total():
                own = copy.records.get(delta.record)
                counted = own.total if own is not None and own.period_code == delta.period_code else (0, 0, 0)
                kind, record, field_name = "total", delta.record, "period"
            case _:
                raise TypeError("neither a cell nor a total")
        less = (delta.credits, delta.tokens, delta.requests)
        had = tuple(counted)
        wanted = [one + other for one, other in zip(had, less, strict=True)]
        found.compare(kind, record, [f"{field_name} {metric}" for metric in METRICS], wanted, had)
        found.deltas.append(delta)


def _newest(organization_id: int, copy: Copy) -> int:
    """The newest second of the counters or of the log, which may be ahead of counters that were restored."""
    latest = UsageRecord.objects.filter(organization_id=organization_id).aggregate(Max("admitted_at"))["admitted_at__max"]
    return max(copy.newest, int(latest.timestamp()) if latest is not None and _is_past(latest, copy) else 0)


def _is_past(moment: datetime, copy: Copy) -> bool:
    # Rows with a time of their own, such as a test's, may lie in the future; no counter has got there.
    return moment.timestamp() <= copy.taken_ms / 1000 + 1


def _is_known(name: str) -> bool:
    """A record that every request of its scope is counted in: the log says what it must hold."""
    return "~" not in name


def _compare_cells(found: Found, organization_id: int, snapshot: Snapshot, copy: Copy, cut: StreamId, newest: int) -> None:
    zone = ZoneInfo(snapshot.accounts.timezone)
    first_day = windows.day_of(newest, zone) - DAYS
    low = {"f": newest // 300 - FINE, "c": newest // 10800 - COARSE, "d": first_day}
    midnights = [windows.midnight(first_day + number, zone) for number in range(DAYS + 3)]
    since = {"f": low["f"] * 300, "c": low["c"] * 10800, "d": midnights[0]}
    expected: dict[tuple[str, str, int], Amounts] = defaultdict(lambda: [0, 0, 0])
    for tag, second in since.items():
        for name, at, amounts in tally.cells(organization_id, tag, second, cut, midnights=midnights, day=first_day):
            expected[(name, tag, at)] = list(amounts)
    for hold in copy.holds:
        for name in filter(_is_known, hold.names):
            for tag, at in (("f", hold.second // 300), ("c", hold.second // 10800), ("d", hold.day)):
                _add(expected[(name, tag, at)], hold.amounts)
    for key in sorted(expected.keys() | copy.cells.keys()):
        name, tag, at = key
        if tag not in low or at < low[tag] or not _is_known(name):
            continue
        wanted, counted = expected.get(key, [0, 0, 0]), copy.cells.get(key, [0, 0, 0])
        if found.compare("cell", name, [f"{tag}{at} {metric}" for metric in METRICS], wanted, counted):
            found.deltas.append(Cell(name, tag, at, *_less(wanted, counted)))


def _compare_totals(found: Found, organization_id: int, snapshot: Snapshot, copy: Copy, cut: StreamId, newest: int) -> None:
    start, _ = views.organization_period(snapshot, newest)
    code = max(records.code(records.PERIOD, start), copy.records["o"].period_code if "o" in copy.records else 0)
    expected: dict[str, Amounts] = defaultdict(lambda: [0, 0, 0])
    for name, _, amounts in tally.totals(organization_id, code // 16, cut):
        expected[name] = list(amounts)
    for hold in copy.holds:
        if hold.period_code == code:
            for name in filter(_is_known, hold.names):
                _add(expected[name], hold.amounts)
    for name in sorted(expected.keys() | copy.records.keys()):
        record = copy.records.get(name)
        if not _is_known(name) or (record is not None and record.period_code > code):
            continue
        counted = record.total if record is not None and record.period_code == code else (0, 0, 0)
        wanted = expected.get(name, [0, 0, 0])
        if found.compare("total", name, [f"period {metric}" for metric in METRICS], wanted, counted):
            found.deltas.append(Total(name, code, *_less(wanted, counted)))


def _compare_funding(found: Found, organization_id: int, snapshot: Snapshot, copy: Copy, cut: StreamId, newest: int) -> None:
    low = newest - HORIZON
    wanted = {key for key in copy.funding if key[1] >= low}
    for subscription in snapshot.billing.subscriptions:
        source = views.source_of(subscription)
        current, _ = views.period_of(subscription, newest)
        previous, _ = views.period_of(subscription, current - 1)
        wanted |= {(source, start) for start in (current, previous) if start >= low}
    since = min((start for _, start in wanted), default=newest)
    expected = tally.funding(organization_id, since, cut)
    starts: dict[str, list[int]] = defaultdict(list)
    for source, start in copy.funding:
        starts[source].append(start)
    # A period that is newer than those of the counters, though its requests are in the log: it was lost.
    wanted |= {(source, start) for source, start in expected if start > max(starts[source], default=since - 1)}
    for source, start in sorted(wanted):
        if (source, start) not in copy.funding and len(starts[source]) == 2 and start < min(starts[source]):
            # Only the two newest periods have an entry.
            continue
        drawn, counted = expected.get((source, start), (0, 0, 0, 0)), copy.funding.get((source, start), (0, 0, 0, 0))
        if found.compare("funding", source, [f"{start} {fund}" for fund in FUNDS], drawn, counted):
            found.deltas.append(Funding(source, start, *_less(drawn, counted)))
    spent = ledger.spent(organization_id) - tally.purchased_after(organization_id, low, cut)
    if found.compare("spent", "$", ["purchased spent"], [spent], [copy.spent]):
        found.deltas.append(Spent(spent - copy.spent))


def _compare_holds(found: Found, copy: Copy) -> None:
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for hold in copy.holds:
        for name in filter(_is_known, hold.names):
            _add(expected[name], (1, *hold.amounts[:2]))
    for name in sorted(expected.keys() | copy.records.keys()):
        if _is_known(name):
            record = copy.records.get(name)
            held = (record.live, *record.held) if record is not None else (0, 0, 0)
            found.compare("held", name, ("live holds", "held credits", "held tokens"), expected.get(name, [0, 0, 0]), held)


def _add(sums: Amounts, amounts: Iterable[int]) -> None:
    for index, amount in enumerate(amounts):
        sums[index] += amount


def _less(wanted: Iterable[int], counted: Iterable[int]) -> Any:
    return tuple(one - other for one, other in zip(wanted, counted, strict=True))
