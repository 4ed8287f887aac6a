"""A priced line taken apart: every formula gives exactly what was booked; what no rate explains says so."""

from fractions import Fraction
from math import floor, prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing import price_lines, pricing
from billing.models import Rate, RateOverride
from billing.price_lines import RateLabel
from billing.tokens import TokenUsage
from config.clock import utc_now
from tests import factories

CREDIT = 1_000_000


def rate(**fields: Any) -> Rate:
    return Rate(
        **{"model": "m", "valid_from": utc_now(), "input": 50 * CREDIT, "cached_input": 2_500_000, "output": 250 * CREDIT, **fields}
    )


def line(terms: Rate, tier: str = "standard", **tokens: int) -> dict[str, Any]:
    credits = pricing.cost(TokenUsage(**tokens), terms, fast=tier == "fast")  # type: ignore[arg-type]
    return {"model": "m", "rate_id": 7, "account_id": 3, "credits": int(credits), **tokens}


def explain(terms: Rate, one: dict[str, Any], tier: str = "standard", **kind: bool) -> price_lines.Explained:
    return price_lines.explain(one, {7: RateLabel(terms, "card")}, tier=tier, **kind)


def test_the_line_of_the_mock_is_told_to_the_last_digit() -> None:
    told = explain(rate(), line(rate(), input=61204, cached_input=412672, output=8930, reasoning=1204))
    assert [(part.name, part.tokens, part.rate, part.credits) for part in told.parts] == [
        ("Input, new", 61204, "50", 3_060_200),
        ("Input, cached", 412672, "2.5", 1_031_680),
        ("Output", 8930, "250", 2_232_500),
    ]
    assert told.credits == 6_324_380
    assert told.formula == "(61,204 × 50 + 412,672 × 2.5 + 8,930 × 250) ÷ 1,000,000 = 6.324380"
    assert (told.tier, told.reasoning, told.is_rounded, told.note) == ("standard", 1204, False, "")


def test_fast_mode_and_long_context_stand_beside_the_rate() -> None:
    terms = rate(
        fast_thousandths=2500,
        long_context_threshold=1000,
        long_context_input_thousandths=2000,
        long_context_output_thousandths=1500,
    )
    told = explain(terms, line(terms, "fast", input=1001, output=10), "fast")
    assert [(part.rate, part.credits) for part in told.parts] == [
        ("50 × 2 × 2.5", 250_250),
        ("2.5 × 2 × 2.5", 0),
        ("250 × 1.5 × 2.5", 9_375),
    ]
    assert told.formula == "(1,001 × 50 × 2 + 10 × 250 × 1.5) × 2.5 ÷ 1,000,000 = 0.259625"
    assert (told.tier, told.is_long) == ("fast", True)


def test_a_single_token_is_rounded_once_and_told_so() -> None:
    told = explain(rate(), line(rate(), cached_input=1))
    assert told.credits == 3
    assert told.is_rounded
    assert told.formula == "1 × 2.5 ÷ 1,000,000 = 0.000003"


def test_tokens_written_to_the_cache_are_priced_as_input_where_they_have_no_rate() -> None:
    told = explain(rate(), line(rate(), cache_write=100, output=1))
    assert ("Cache write", 100, "50", 5_000) in [(part.name, part.tokens, part.rate, part.credits) for part in told.parts]


def test_an_earlier_attempt_of_the_other_tier_is_explained_by_that() -> None:
    terms = rate(fast_thousandths=2000)
    told = explain(terms, line(terms, "standard", input=10), "fast")
    assert (told.tier, told.note) == ("standard", "")


def test_what_is_not_rate_by_tokens_has_no_formula() -> None:
    booked = {**line(rate(), input=10, output=5), "credits": 9_100_000}
    told = explain(rate(), booked, is_implausible=True)
    assert (told.formula, [part.credits for part in told.parts]) == ("", [None, None, None])
    assert told.note == "The upstream’s counts cannot be, so what was held is charged."
    assert told.credits == 9_100_000
    assert explain(rate(), booked).note == "This is not its rate times its tokens: it was booked as it stands here."
    gone = price_lines.explain(booked, {}, tier="standard")
    assert (gone.note, gone.formula) == ("Its rate row is not there any more.", "")


def test_an_implausible_line_that_happens_to_fit_its_rate_is_still_told_as_held() -> None:
    told = explain(rate(), line(rate(), input=10), is_implausible=True)
    assert told.note == "The upstream’s counts cannot be, so what was held is charged."


def value_of(sums: str) -> Fraction:
    """Of `(a × b + c × d) × e ÷ 1000000`, exactly."""
    inner, _, outer = sums.removesuffix(" ÷ 1000000").removeprefix("(").partition(")")
    total = Fraction(0)
    for term in inner.split(" + "):
        total += prod(Fraction(number) for number in term.split(" × "))
    return total * prod(Fraction(number) for number in outer.split(" × ") if number) / 10**6


@given(
    st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 10**5),
    st.sampled_from([1000, 1500, 2500]), st.sampled_from([None, 0, 5000]), st.booleans(),
)  # fmt: skip
def test_any_formula_gives_what_was_booked(
    fresh: int, cached: int, written: int, output: int, fast: int, threshold: int | None, is_fast: bool
) -> None:
    """D3: computed from the text alone, with one rounding at the end."""
    terms = rate(
        cached_input=2_345_678,
        cache_write=60 * CREDIT,
        fast_thousandths=fast,
        long_context_threshold=threshold,
        long_context_input_thousandths=2000,
        long_context_output_thousandths=1500,
    )
    tier = "fast" if is_fast else "standard"
    told = explain(terms, line(terms, tier, input=fresh, cached_input=cached, cache_write=written, output=output), tier)
    sums, result = told.formula.replace(",", "").split(" = ")
    assert floor(value_of(sums) * CREDIT + Fraction(1, 2)) == told.credits
    assert Fraction(result) * CREDIT == told.credits


@pytest.mark.django_db
def test_rates_are_found_of_the_card_and_of_the_organizations_own() -> None:
    organization, other = factories.organization(), factories.organization()
    card = Rate.objects.select_related("card").first()
    assert card is not None
    fields: dict[str, Any] = {"model": "m", "valid_from": utc_now(), "input": 1, "cached_input": 1, "output": 1}
    own = RateOverride.objects.create(organization=organization, **fields)
    foreign = RateOverride.objects.create(organization=other, **fields)
    found = price_lines.rates(organization, [card.pk, -own.pk, -foreign.pk, None])
    assert {key: label.card for key, label in found.items()} == {card.pk: card.card.name, -own.pk: ""}
