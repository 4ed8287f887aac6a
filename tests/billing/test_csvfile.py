"""Cells: nothing in them runs, and all of it comes back."""

import csv
import io
import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing import csvfile

SIGNS = ["=", "+", "-", "@", "＝", "＋", "－", "＠", "﹦", "﹢", "﹣", "﹫", "⁼", "⁺", "⁻", "₌", "₊", "₋", "−"]
FRONTS = [
    "",
    " ",
    "   ",
    "\u00a0",
    "\u3000",
    "\t",
    "\r",
    "\n",
    "\r\n",
    "\x0b",
    "\x1b",
    "\u200b",
    "\ufeff",
    "\u2028",
    "'",
    '"',
    "' \"",
]


def read(content: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content, newline="")))


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("sign", SIGNS)
def test_what_begins_a_formula_is_guarded(sign: str, front: str) -> None:
    """I1: = + - @, tab, CR and full-width variants, also behind spaces, invisible characters and quotes."""
    value = f'{front}{sign}HYPERLINK("http://x","y")'
    (cells,) = read(csvfile.line([csvfile.text(value), csvfile.number(1)]))
    assert cells[0].startswith("'")
    assert csvfile.unguarded(cells[0]) == value
    assert cells[1] == "1"


@pytest.mark.parametrize("value", ["\t1", "\rx", "\nx", "\x1bx", "\u2028x", "\t", "-1", "+49 30", "@home", "=", "－"])
def test_a_control_at_the_start_and_a_bare_sign_are_guarded(value: str) -> None:
    """I1: a tab or line break alone starts a cell anew in some readers."""
    assert read(csvfile.line([csvfile.text(value)])) == [["'" + value]]


@pytest.mark.parametrize(
    "value", ["gpt-5.5", "a=b", "x@y.example", "Ольга 李 🦊", "'tis", "''", "O'Neill", "", "1-1", "«=»", "#x", "a\nb"]
)
def test_other_text_is_left_alone(value: str) -> None:
    """I7: what does not begin a formula is written as it is."""
    assert read(csvfile.line([csvfile.text(value)])) == [[value]]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_no_separator_of_any_locale_ends_a_cell(separator: str) -> None:
    """I1: read with the separator of another locale, which takes cells apart, still none of them begins with a sign."""
    values = [f"a{separator}=1+1", f'"{separator}=1+1{separator}"', f'x"{separator}=cmd|1', "plain"]
    content = csvfile.line(csvfile.text(value) for value in values)
    for cells in csv.reader(io.StringIO(content, newline=""), delimiter=separator):
        assert not any(re.match(r"[=+\-@]", cell) for cell in cells), cells
    assert [csvfile.unguarded(cell) for cell in read(content)[0]] == values


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=5))
def test_every_text_reads_back_identical(values: list[str]) -> None:
    """I7: quotes, commas, line breaks, any script; the guard is taken off exactly where it was put on."""
    (cells,) = read(csvfile.line(csvfile.text(value) for value in values))
    assert [csvfile.unguarded(cell) for cell in cells] == [value.replace("\0", "\ufffd") for value in values]


@settings(max_examples=2000)
@given(st.text(st.sampled_from("'\"=- \t;|\n＝a\u200b"), max_size=7))
def test_the_guard_is_taken_off_exactly_where_it_was_put_on(value: str) -> None:
    """I1, I7: also for names that begin with apostrophes of their own."""
    ((cell,),) = read(csvfile.line([csvfile.text(value)])) or [[""]]
    assert csvfile.unguarded(cell) == value
    assert not csvfile.is_formula(cell) or cell.startswith("'")


@pytest.mark.parametrize(("value", "cell"), [(-5, "-5"), (0, "0"), (12, "12"), (None, "")])
def test_a_number_stays_a_number(value: int | None, cell: str) -> None:
    assert csvfile.number(value) == cell


def test_a_nul_is_replaced_by_a_mark() -> None:
    """I7: no database and no reader takes it."""
    assert read(csvfile.line([csvfile.text("a\0b"), csvfile.text("\0=1")])) == [["a\ufffdb", "\ufffd=1"]]


def test_a_missing_text_is_an_empty_cell_and_an_empty_one_is_quoted() -> None:
    assert (csvfile.text(None), csvfile.text("")) == ("", '""')


def test_a_moment_carries_the_offset_of_its_own_day() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert csvfile.moment(datetime(2026, 11, 24, 13, 20, 3, 999, tzinfo=UTC), berlin) == "2026-11-24T14:20:03+01:00"
    assert csvfile.moment(datetime(2026, 7, 24, 13, 20, 3, tzinfo=UTC), berlin) == "2026-07-24T15:20:03+02:00"
    # The hour that the clock shows twice is told apart.
    twice = [csvfile.moment(datetime(2026, 10, 25, hour, 30, tzinfo=UTC), berlin) for hour in (0, 1)]
    assert twice == ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("acme", "usage-rows", "2026-11-01"), "acme-usage-rows-2026-11-01.csv"),
        (('x"\r\nSet-Cookie: a=b', "by model"), "x---Set-Cookie--a-b-by-model.csv"),
        (("../../etc/passwd", "Ольга"), "etc-passwd.csv"),
        (("a" * 400,), "a" * 120 + ".csv"),
    ],
)
def test_a_file_name_holds_nothing_that_a_header_reads(parts: tuple[str, ...], name: str) -> None:
    assert csvfile.file_name(*parts) == name
