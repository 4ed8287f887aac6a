"""What a rate card file may say beyond its rates: aliases, long contexts, cache writes; and what it may not."""

from typing import Any

import pytest

from billing import cardfile, ratecards
from billing.cardfile import CardAlias, Expansion
from billing.errors import RateCardRefused
from tests.billing.test_ratecards import content, day, entry, fast


def read(rates: list[dict[str, Any]], multipliers: list[dict[str, Any]] | None = None, **more: Any) -> cardfile.Card:
    return cardfile.read(content(rates, multipliers, **more), name="test.json")


def alias(name: str, model: str, start: str | None = None, end: str | None = None) -> dict[str, Any]:
    return {"alias": name, "model": model, "effective_from": start, "effective_to": end}


def test_a_cache_write_price_and_a_long_context_are_read_with_the_rate() -> None:
    prices = {"input": "60", "cached_input": "6", "cache_write": "75", "output": "300"}
    long = {"threshold_input_tokens": 272_000, "input_multiplier": "2", "output_multiplier": "1.5"}
    [rate] = read([entry("m", credits_per_million=prices, long_context=long)]).rates
    assert rate.cache_write == 75_000_000
    assert (rate.long_context_threshold, rate.long_context_input_thousandths, rate.long_context_output_thousandths) == (
        272_000, 2000, 1500,
    )  # fmt: skip
    [plain] = read([entry("m")]).rates
    assert (plain.long_context_threshold, plain.long_context_input_thousandths) == (None, 1000)


def test_aliases_are_dated_and_one_ends_where_the_next_begins() -> None:
    card = read([entry("a, b")], aliases=[alias("latest", "b", "2026-08-01"), alias("latest", "a")])
    assert card.aliases == (
        CardAlias("latest", "a", day("2026-04-02"), day("2026-08-01")),
        CardAlias("latest", "b", day("2026-08-01"), None),
    )


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ([alias("a", "a")], "names itself"),
        ([alias("two words", "a")], "not model names"),
        ([alias("x*", "a")], "not model names"),
        ([alias("x", "a"), alias("x", "b")], "two models"),
        ([alias("x", "a", end="2026-09-01"), alias("x", "b", "2026-08-01")], "two models"),
        ([alias("b", "a")], "a rate of its own"),
        ([alias("x", "a", "2026-08-01", "2026-07-01")], "not after its start"),
    ],
)
def test_aliases_that_cannot_be_are_refused_with_the_whole_file(bad: list[dict[str, Any]], says: str) -> None:
    """C24 relies on it: a name means one model at a time."""
    with pytest.raises(RateCardRefused, match=says):
        read([entry("a, b")], aliases=bad)


def test_a_name_may_become_an_alias_where_its_own_rate_ends() -> None:
    card = read([entry("a"), entry("b", end="2026-08-01")], aliases=[alias("b", "a", "2026-08-01")])
    assert [one.alias for one in card.aliases] == ["b"]


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        (entry("m", price="5"), "cached input is dearer than input"),
        (entry("m", price="100000.000001"), "above the dearest"),
        (entry("m", long_context={"threshold_input_tokens": -1}), "not a threshold"),
        (entry("m", long_context={"threshold_input_tokens": 1, "input_multiplier": "11"}), "above 10"),
        (entry("m", long_context={"threshold_input_tokens": 1, "input_multiplier": "2x"}), "not a decimal"),
        (entry("m", long_context={"threshold_input_tokens": "many"}), "threshold_input_tokens"),
    ],
)
def test_prices_out_of_bounds_are_refused(rate: dict[str, Any], says: str) -> None:
    with pytest.raises(RateCardRefused, match=says):
        read([rate])


def test_the_dearest_price_that_is_taken_is_the_bound() -> None:
    assert read([entry("m", price="100000")]).rates[0].input == 10**11


def test_a_multiplier_says_which_models_it_was_expanded_to() -> None:
    card = read([entry("a-1, a-2, b")], [fast("a-*", "3"), fast("*", "2"), fast("a-1", "4")])
    assert card.expansions == (
        Expansion("a-*", 3000, ("a-2",)),
        Expansion("*", 2000, ("b",)),
        Expansion("a-1", 4000, ("a-1",)),
    )


def test_the_packaged_card_speaks_of_long_contexts_and_applies_none() -> None:
    """Its figures are of API prices; the effect on credits is not established, and what is not known is not charged."""
    card = cardfile.read(ratecards.PACKAGED.read_bytes(), name="codex-2026.json")
    assert card.has_long_context_facts
    assert {rate.long_context_threshold for rate in card.rates} == {None}
    assert Expansion("gpt-5.6-*", 2500, ("gpt-5.6-luna", "gpt-5.6-sol", "gpt-5.6-terra")) in card.expansions
