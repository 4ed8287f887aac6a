"""Credits as integers and as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing import credits

amounts = st.integers(min_value=-credits.UNLIMITED, max_value=credits.UNLIMITED)


def test_a_tenth_and_two_tenths_are_three_tenths() -> None:
    """D1: no binary float is on the way from text to text."""
    assert credits.text(credits.parse("0.1") + credits.parse("0.2")) == "0.3"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1, "0.000001"),
        (4, "0.000004"),
        (-1, "-0.000001"),
        (300_000, "0.3"),
        (1_000_000, "1"),
        (-1_500_000, "-1.5"),
        (1_615, "0.001615"),
        (10**15, "1000000000"),
    ],
)
def test_text_is_exact_and_without_trailing_zeros(amount: int, text: str) -> None:
    assert credits.text(amount) == text


@pytest.mark.parametrize(("text", "amount"), [("12", 12_000_000), (" 12.5 ", 12_500_000), ("0.625", 625_000), ("-0.5", -500_000)])
def test_decimal_text_becomes_micro_credits(text: str, amount: int) -> None:
    assert credits.parse(text) == amount


@pytest.mark.parametrize(
    "text", ["", ".5", "-", "1e3", "0.0000001", "1,5", "NaN", "٣", "1_000", "--1", "+1", "1.", "1.2.3", "10000000000"]
)
def test_what_is_no_decimal_number_of_credits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"credits|decimal places"):
        credits.parse(text)


@given(amounts)
def test_text_and_parse_undo_each_other(amount: int) -> None:
    assert credits.parse(credits.text(amount)) == amount
