"""What counters must hold by the log, and by what is added to it: the one account of where usage is counted.

The reconciler compares counters with it, a filter is filled from it, and a rebuild makes counters of it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from config.snapshot import Snapshot
from quotas import charging, tally
from quotas.copies import Amounts, Hold, StreamId
from quotas.parts import Part
from quotas.rings import Rings

Cell = tuple[str, str, int]
"""Record, tag, and bucket, day or second."""
Counted = tuple[int, int, int]


class Expected:
    """`cells`: by record, tag and place; `totals`: of the plan period, by record, also those that are 0; `funding`: by source and
    start of its period what was drawn of plan, purchased, overage and overdraft. Micro-credits, tokens, requests.

    Of records of filters those of `filters` (ids) are counted, of cells of seconds those of the records `logs`.
    """

    def __init__(self, snapshot: Snapshot, rings: Rings, *, filters: Iterable[int], logs: frozenset[str] = frozenset()) -> None:
        self.snapshot, self.rings, self.logs = snapshot, rings, logs
        self.cells: defaultdict[Cell, Amounts] = defaultdict(lambda: [0, 0, 0])
        self.totals: defaultdict[str, Amounts] = defaultdict(lambda: [0, 0, 0])
        self.funding: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        self.lately: list[str] = []
        """Ids of requests that ended lately, if they were asked for."""
        self._filters = frozenset(filters)
        self._names: dict[Any, tuple[str, ...]] = {}

    def like(self) -> "Expected":
        """The same, with nothing counted yet."""
        return Expected(self.snapshot, self.rings, filters=self._filters, logs=self.logs)

    @cached_property
    def has_models(self) -> bool:
        """Are there filters of models to be counted?"""
        return any(not one.source and one.filter_id in self._filters for one in self.snapshot.quotas.filters)

    def knows(self, name: str) -> bool:
        """Is all that belongs into this record counted here?"""
        base, _, part = name.partition("~")
        if not part:
            return True
        own = charging.plan_filter(self.snapshot, base)
        if own is not None and name == charging.plan_record(own):
            return own.filter_id in self._filters
        return part[:1] == "f" and part[1:].isdigit() and int(part[1:]) in self._filters

    # -- where a request counts

    def names_of(self, base: tuple[str, ...], model: str, era: int) -> tuple[str, ...]:
        """The records of a request but the plan's own; `era`: the second in which its model was asked for."""
        key = (base, model, era)
        if (names := self._names.get(key)) is None:
            matching = charging.matching(self.snapshot, model, era) if self.has_models else ()
            names = charging.names(base, [one for one in matching if one.filter_id in self._filters])
            self._names[key] = names
        return names

    def plan_record(self, source: str) -> tuple[str, ...]:
        """The record of what the source's plan pays in a rolling window, if it has one."""
        own = charging.plan_filter(self.snapshot, source)
        return () if own is None or own.filter_id not in self._filters else (charging.plan_record(own),)

    # -- counting

    def add_log(self, since: int, *, cut: StreamId | None = None, lately: int | None = None) -> None:
        """Everything that was admitted from `since` on, but for cells of seconds (`logbook`)."""
        organization_id = self.snapshot.organization_id
        moments = charging.moments(self.snapshot, since) if self.has_models else None
        found = tally.slices(organization_id, self.rings, since, cut=cut, moments=moments, lately=lately)
        # A key's requests come in many slices.
        bases: dict[tuple[int | None, int, int], tuple[str, ...]] = {}
        for one in found:
            whose = (one.team_id, one.member_id, one.key_id)
            if (base := bases.get(whose)) is None:
                base = bases[whose] = charging.base_names(*whose)
            places = list(self.rings.places(one.bucket, one.day))
            is_in_period = one.is_in_period and self._may_be_in_period(one.source, one.fund_start)
            self._count(self.names_of(base, one.model, one.era), places, is_in_period, one.amounts)
            own = (one.funding[0], *one.amounts[1:])
            self._count(self.plan_record(one.source), places, is_in_period, own)
            _add(self.funding[(one.source, one.fund_start)], one.funding)
            self.lately += one.lately

    def add_part(self, part: Part) -> None:
        """One end of a request, or its amendment."""
        day = self.rings.day_of(part.second)
        places = list(self.rings.places(part.second, day))
        is_in_period = part.second >= self.rings.period and self._may_be_in_period(part.source, part.fund_start)
        own = (part.funding[0], *part.amounts[1:])
        for names, amounts in (
            (self.names_of(part.base, part.model, part.second), part.amounts),
            (self.plan_record(part.source), own),
        ):
            self._count(names, places, is_in_period, amounts)
            self._log(names, part.second, amounts)
        _add(self.funding[(part.source, part.fund_start)], part.funding)

    def add_hold(self, hold: Hold) -> None:
        """A live hold, in the records that it names."""
        names = [name for name in hold.names if self.knows(name)]
        places = list(self.rings.places(hold.second, hold.day))
        self._count(names, places, hold.period_code == self.rings.code, hold.amounts)
        self._log(hold.names, hold.second, hold.amounts)

    def add(self, other: "Expected") -> set[Cell]:
        """All that another one counted; its cells."""
        pairs: Any = ((self.cells, other.cells), (self.totals, other.totals), (self.funding, other.funding))
        for own, others in pairs:
            for key, amounts in others.items():
                _add(own[key], amounts)
        return set(other.cells)

    def _count(self, names: Iterable[str], places: Sequence[tuple[str, int]], is_in_period: bool, amounts: Counted) -> None:
        credits, tokens, requests = amounts
        for name in names:
            kept = [self.cells[(name, tag, at)] for tag, at in places]
            total = self.totals[name]
            if is_in_period:
                kept.append(total)
            for sums in kept:
                sums[0] += credits
                sums[1] += tokens
                sums[2] += requests

    def _may_be_in_period(self, source: str, fund_start: int) -> bool:
        """A change of plan begins a period in a second in which the one before may have admitted something, too."""
        return source != "o" or fund_start >= self.rings.period

    def _log(self, names: Iterable[str], second: int, amounts: Counted) -> None:
        for name in self.logs.intersection(names):
            if second >= self.rings.low["s"]:
                _add(self.cells[(name, "s", second)], amounts)


def _add(sums: list[int], amounts: Iterable[int]) -> None:
    for index, amount in enumerate(amounts):
        sums[index] += amount
