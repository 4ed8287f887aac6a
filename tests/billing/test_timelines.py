"""Where a dated row fits among those of its name."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing import timelines
from billing.timelines import Overlap

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@dataclass
class Row:
    valid_from: datetime
    valid_to: datetime | None


def at(hour: int) -> datetime:
    return NOON + timedelta(hours=hour)


def row(start: int, end: int | None) -> Row:
    return Row(at(start), None if end is None else at(end))


def test_an_open_row_ends_where_the_new_one_begins() -> None:
    old = row(0, None)
    assert timelines.fit([old], at(5), None) == (old, None)
    assert old.valid_to is None


def test_a_row_without_an_end_ends_where_the_next_one_begins() -> None:
    assert timelines.fit([row(9, None), row(20, None)], at(5), None) == (None, at(9))
    assert timelines.fit([row(0, 3), row(9, None)], at(3), None) == (None, at(9))


def test_ends_and_starts_may_touch() -> None:
    assert timelines.fit([row(0, 5), row(9, None)], at(5), at(9)) == (None, at(9))


@pytest.mark.parametrize(
    ("rows", "start", "end"),
    [
        ([(0, 5)], 4, None),
        ([(0, 5)], 4, 9),
        ([(5, 9)], 4, 6),
        ([(5, None)], 5, None),
        ([(5, 9)], 5, 9),
        ([(5, 9)], 4, 20),
        ([(0, None), (5, 9)], 4, 6),
    ],
)
def test_rows_never_lie_over_each_other(rows: list[tuple[int, int | None]], start: int, end: int | None) -> None:
    with pytest.raises(Overlap):
        timelines.fit([row(*one) for one in rows], at(start), None if end is None else at(end))


def test_what_may_be_shortened_ends_earlier() -> None:
    old = row(0, 9)
    assert timelines.fit([old], at(5), None, may_shorten=True) == (old, None)


def test_the_second_change_of_a_second_holds_from_the_next_one() -> None:
    rows = [Row(NOON, None), Row(NOON + timedelta(seconds=1), None)]
    assert timelines.next_free(rows, NOON) == NOON + timedelta(seconds=2)
    assert timelines.next_free([], NOON) == NOON


def test_what_is_ended_held_for_a_second_at_least_and_what_has_not_begun_can_go() -> None:
    assert timelines.ending(row(0, None), at(5) + timedelta(microseconds=7)) == at(5)
    assert timelines.ending(row(0, None), NOON) == NOON + timedelta(seconds=1)
    assert timelines.ending(row(5, None), NOON) is None


@given(st.lists(st.tuples(st.integers(0, 40), st.none() | st.integers(1, 12)), max_size=12), st.booleans())
def test_whatever_fits_leaves_rows_apart(wanted: list[tuple[int, int | None]], may_shorten: bool) -> None:
    """C17: of one name, at most one row holds at any moment, in whatever order rows come."""
    rows: list[Row] = []
    for start, length in wanted:
        try:
            ending, end = timelines.fit(rows, at(start), None if length is None else at(start + length), may_shorten=may_shorten)
        except Overlap:
            continue
        if ending is not None:
            ending.valid_to = at(start)
        rows.append(Row(at(start), end))
    for hour in range(-1, 60):
        holding = [one for one in rows if one.valid_from <= at(hour) and (one.valid_to is None or at(hour) < one.valid_to)]
        assert len(holding) <= 1
    assert all(one.valid_to is None or one.valid_from < one.valid_to for one in rows)
