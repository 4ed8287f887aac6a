"""Where a copy of the counters differs from the log: what to store about it, and what to add so that it does not."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from billing import ledger
from config.snapshot import Snapshot
from quotas import rings, tally, views
from quotas.adjusting import Cell, Delta, Funding, Spent, Total
from quotas.copies import Copy, StreamId
from quotas.expected import Expected

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
    at = rings.at(snapshot, _newest(organization_id, copy), code=copy.period_code)
    # Filters that are not filled yet lack what was before them, and that is known.
    filled = [one.filter_id for one in snapshot.quotas.filters if one.is_filled]
    expected = Expected(snapshot, at, filters=filled)
    funded = _funded(snapshot, copy, at.newest)
    since = min((start for _, start in funded), default=at.newest)
    expected.add_log(min(at.since, since), cut=cut)
    for hold in copy.holds:
        expected.add_hold(hold)
    _compare_cells(found, expected, copy)
    _compare_totals(found, expected, copy)
    _compare_funding(found, expected, copy, funded, since)
    spent = ledger.spent(organization_id) - tally.purchased_after(organization_id, at.newest - HORIZON, cut)
    if found.compare("spent", "$", ["purchased spent"], [spent], [copy.spent]):
        found.deltas.append(Spent(spent - copy.spent))
    _compare_holds(found, copy)
    return found


def _newest(organization_id: int, copy: Copy) -> int:
    """The newest second of the counters or of the log, which may be ahead of counters that were restored."""
    latest = tally.newest(organization_id)
    # Rows with a time of their own, such as a test's, may lie in the future; no counter has got there.
    return max(copy.newest, latest if latest <= copy.taken_ms / 1000 + 1 else 0)


def _compare_cells(found: Found, expected: Expected, copy: Copy) -> None:
    low = expected.rings.low
    for key in sorted(expected.cells.keys() | copy.cells.keys()):
        name, tag, place = key
        if tag == "s" or place < low[tag] or not expected.knows(name):
            continue
        wanted, counted = expected.cells.get(key, [0, 0, 0]), copy.cells.get(key, [0, 0, 0])
        if found.compare("cell", name, [f"{tag}{place} {metric}" for metric in METRICS], wanted, counted):
            found.deltas.append(Cell(name, tag, place, *_less(wanted, counted)))


def _compare_totals(found: Found, expected: Expected, copy: Copy) -> None:
    code = expected.rings.code
    for name in sorted(expected.totals.keys() | copy.records.keys()):
        record = copy.records.get(name)
        if not expected.knows(name) or (record is not None and record.period_code > code):
            continue
        wanted, counted = expected.totals.get(name, [0, 0, 0]), copy.total_of(name, code)
        if found.compare("total", name, [f"period {metric}" for metric in METRICS], wanted, counted):
            found.deltas.append(Total(name, code, *_less(wanted, counted)))


def _funded(snapshot: Snapshot, copy: Copy, newest: int) -> set[tuple[str, int]]:
    """The sources and starts of their periods that the counters have, or should have, an entry for."""
    low = newest - HORIZON
    wanted = {key for key in copy.funding if key[1] >= low}
    for subscription in snapshot.billing.subscriptions:
        source = views.source_of(subscription)
        wanted |= {(source, start) for start in views.two_periods(subscription, newest) if start >= low}
    return wanted


def _compare_funding(found: Found, expected: Expected, copy: Copy, wanted: set[tuple[str, int]], since: int) -> None:
    starts: dict[str, list[int]] = defaultdict(list)
    for source, start in copy.funding:
        starts[source].append(start)
    # A period that is newer than those of the counters, though its requests are in the log: it was lost.
    lost = {(source, start) for source, start in expected.funding if start > max(starts[source], default=since - 1)}
    for source, start in sorted(wanted | lost):
        if (source, start) not in copy.funding and len(starts[source]) == 2 and start < min(starts[source]):
            # Only the two newest periods have an entry.
            continue
        drawn, counted = expected.funding.get((source, start), (0, 0, 0, 0)), copy.funding.get((source, start), (0, 0, 0, 0))
        if found.compare("funding", source, [f"{start} {fund}" for fund in FUNDS], drawn, counted):
            found.deltas.append(Funding(source, start, *_less(drawn, counted)))


def _compare_holds(found: Found, copy: Copy) -> None:
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for hold in copy.holds:
        for name in filter(_is_base, hold.names):
            for index, amount in enumerate((1, *hold.amounts[:2])):
                expected[name][index] += amount
    for name in sorted(expected.keys() | copy.records.keys()):
        if _is_base(name):
            record = copy.records.get(name)
            held = (record.live, *record.held) if record is not None else (0, 0, 0)
            found.compare("held", name, ("live holds", "held credits", "held tokens"), expected.get(name, [0, 0, 0]), held)


def _is_base(name: str) -> bool:
    """A record that every request of its scope is counted in."""
    return "~" not in name


def _less(wanted: Iterable[int], counted: Iterable[int]) -> Any:
    return tuple(one - other for one, other in zip(wanted, counted, strict=True))
