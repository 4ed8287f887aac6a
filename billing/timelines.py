"""Dated rows of one name lie end to end or apart, never over each other: where a new one fits among those that are there. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Protocol, TypeVar


class Dated(Protocol):
    """A row that holds in [valid_from, valid_to); without an end, for good."""

    valid_from: datetime
    valid_to: datetime | None


R = TypeVar("R", bound=Dated)


class Overlap(ValueError):
    """The new row would lie over `row`."""

    def __init__(self, row: Dated) -> None:
        super().__init__(f"a row holds from {row.valid_from} to {row.valid_to}")
        self.row = row


def fit(rows: Iterable[R], start: datetime, end: datetime | None, *, may_shorten: bool = False) -> tuple[R | None, datetime | None]:
    """The row that has to end at `start`, if one does, and where the new row [start, end) ends.

    An earlier row without an end ends where the new one begins, with `may_shorten` one with an end too; a new row without an end
    ends where the next one begins. Changes nothing. Raises Overlap for every other meeting, also for a row of the same start.
    """
    ending: R | None = None
    for row in sorted(rows, key=lambda one: one.valid_from):
        if row.valid_from < start:
            if row.valid_to is None or (may_shorten and row.valid_to > start):
                ending = row
            elif row.valid_to > start:
                raise Overlap(row)
        elif row.valid_from > start and end is None:
            return ending, row.valid_from
        elif end is None or end > row.valid_from:
            raise Overlap(row)
        else:
            break
    return ending, end


SECOND = timedelta(seconds=1)


def whole_second(moment: datetime) -> datetime:
    """A request's admission is known to the second, so what prices it changes on a second: a change that is made now holds for
    the very next request."""
    return moment.replace(microsecond=0)


def next_free(rows: Iterable[Dated], start: datetime) -> datetime:
    """The first second from `start` on in which no row begins: the second change within one second holds from the next one on."""
    taken = {row.valid_from for row in rows}
    while start in taken:
        start += SECOND
    return start


def ending(row: Dated, moment: datetime) -> datetime | None:
    """Where a row ends that is ended at `moment`; None if it has not begun, so that nothing was priced by it and it can go."""
    if row.valid_from > moment:
        return None
    return max(whole_second(moment), row.valid_from + SECOND)
