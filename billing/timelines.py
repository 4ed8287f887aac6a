"""Dated rows of one name lie end to end or apart, never over each other: where a new one fits among those that are there. Pure."""

from collections.abc import Iterable
from datetime import datetime
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
