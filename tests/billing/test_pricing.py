"""Usage x rate -> cost, by rate R of the case catalogue."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing import credits, pricing, tokens
from billing.errors import ImplausibleUsage
from billing.snapshots import RateSnapshot
from billing.tokens import TokenUsage
from quotas import engine
from tests.billing.rates import R, rate


def price(usage: TokenUsage | None, *, fast: bool = False) -> str:
    assert usage is not None
    return credits.text(pricing.cost(usage, R, fast=fast))


def openai(read: int, written: int, **details: int) -> TokenUsage | None:
    return tokens.normalise(
        {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": details.get("cached", 0)},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": details.get("reasoning", 0)},
        }
    )


def test_cached_tokens_are_charged_once_at_their_own_rate() -> None:
    """C1: 2,006 in of which 1,920 cached, 300 out."""
    assert price(openai(2006, 300, cached=1920)) == "0.10668"


def test_the_cache_is_inside_openais_input() -> None:
    """C3: the OpenAI half; 10,000 in of which 9,500 cached, 200 out."""
    assert price(openai(10_000, 200, cached=9500)) == "0.147"


def test_the_same_call_costs_the_same_in_anthropics_shape() -> None:
    """C3: input 500, cache_read 9,500, output 200."""
    raw = {"input_tokens": 500, "cache_read_input_tokens": 9500, "cache_creation_input_tokens": 0, "output_tokens": 200}
    assert price(tokens.normalise(raw, "messages")) == "0.147"
    written = {**raw, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 1000}
    assert price(tokens.normalise(written, "messages")) == "0.165"


def test_cached_above_input_never_makes_the_price_negative() -> None:
    """C5: clamped to 300 cached, 10 out."""
    assert price(openai(300, 10, cached=500)) == "0.0048"


def test_reasoning_is_inside_output_and_not_all_of_it() -> None:
    """C6: output 482 of which reasoning 448, input 17."""
    assert price(openai(17, 482, reasoning=448)) == "0.14562"


def test_an_api_key_pays_the_tier_that_served() -> None:
    """C8: asked priority, served default: standard."""
    tier = pricing.tier_billed("openai", "priority", "default")
    assert tier == "standard"
    assert price(openai(1000, 100), fast=tier == "fast") == "0.09"


def test_a_sign_in_account_pays_the_tier_that_was_asked() -> None:
    """C9: the echo says default even for fast, so the request decides."""
    tier = pricing.tier_billed("chatgpt", "priority", "default")
    assert tier == "fast"
    assert price(openai(1000, 100), fast=tier == "fast") == "0.18"


@pytest.mark.parametrize(
    ("kind", "asked", "served", "billed"),
    [
        ("chatgpt", "fast", None, "fast"),
        ("chatgpt", None, "priority", "standard"),
        ("chatgpt", "", "default", "standard"),
        ("chatgpt", "default", "priority", "standard"),
        ("openai", "priority", "priority", "fast"),
        ("openai", "auto", "priority", "fast"),
        ("openai", "priority", None, "standard"),
        ("openai", "flex", "flex", "standard"),
    ],
)
def test_tier_billed(kind: str, asked: str | None, served: str | None, billed: str) -> None:
    assert pricing.tier_billed(kind, asked, served) == billed


def test_the_price_is_rounded_once_at_the_end_half_up() -> None:
    """D3: 123 in, 78 out, times 1.33 are 40,937.4 micro-credits; rounding on the way would give less."""
    assert pricing.cost(TokenUsage(input=123, output=78), rate(fast_thousandths=1330), fast=True) == 40_937
    assert pricing.cost(TokenUsage(input=1), rate(input=1_500_000), fast=False) == 2
    assert pricing.cost(TokenUsage(input=1), rate(input=1_499_999), fast=False) == 1
    assert pricing.cost(TokenUsage(input=1, output=1), rate(input=500_000, output=499_999), fast=False) == 1


def test_one_cached_token_is_stored_exactly() -> None:
    """D4: no smallest charge."""
    assert price(TokenUsage(cached_input=1)) == "0.000006"


def test_cache_writes_cost_their_own_rate_else_the_inputs() -> None:
    usage = TokenUsage(cache_write=1000)
    assert pricing.cost(usage, R, fast=False) == 75_000
    assert pricing.cost(usage, rate(cache_write=None), fast=False) == 60_000
    assert pricing.cost(usage, rate(cache_write=0), fast=False) == 0


def test_long_context_multiplies_the_whole_request_above_the_threshold() -> None:
    long = rate(long_context_threshold=1000, long_context_input_thousandths=2000, long_context_output_thousandths=1500)
    assert (
        pricing.cost(TokenUsage(input=400, cached_input=500, cache_write=100, output=10), long, fast=False)
        == 24_000 + 3000 + 7500 + 3000
    )
    assert pricing.cost(TokenUsage(input=401, cached_input=500, cache_write=100, output=10), long, fast=False) == (
        2 * (24_060 + 3000 + 7500) + 4500
    )
    assert pricing.cost(TokenUsage(input=1001), long, fast=True) == 1001 * 60 * 2 * 2


def test_a_third_of_a_micro_credit_is_summed_before_it_is_rounded() -> None:
    """D1, D3: three parts of a third each are one micro-credit, not three times nothing; text is exact."""
    thirds = rate(input=333_334, cached_input=333_333, cache_write=None, output=333_333)
    assert pricing.cost(TokenUsage(input=1, cached_input=1, output=1), thirds, fast=False) == 1
    assert pricing.cost(TokenUsage(input=1), thirds, fast=False) == 0
    assert credits.text(100_000 + 200_000) == "0.3"
    assert (credits.text(4), credits.text(0)) == ("0.000004", "0")


def test_the_long_context_threshold_counts_all_that_was_read_however_it_was_read() -> None:
    """One token more, fresh, cached or written to the cache, and the whole request is multiplied, the cached part too."""
    long = rate(long_context_threshold=1000, long_context_input_thousandths=2000, long_context_output_thousandths=1500)
    for name, each in (("input", 60), ("cached_input", 6), ("cache_write", 75)):
        at, above = TokenUsage(**{name: 1000}, output=10), TokenUsage(**{name: 1001}, output=10)
        assert pricing.cost(at, long, fast=False) == 1000 * each + 3000
        assert pricing.cost(above, long, fast=False) == 2 * 1001 * each + 4500
    assert not pricing.is_long_context(TokenUsage(input=1000, output=5000), long)


def test_no_usage_that_is_believed_costs_more_than_the_engine_takes() -> None:
    """The bounds of tokens, rates and multipliers together stay under 2^53 / 8; what came another way is refused."""
    dearest = rate(
        input=pricing.MOST_RATE,
        cached_input=pricing.MOST_RATE,
        cache_write=pricing.MOST_RATE,
        output=pricing.MOST_RATE,
        fast_thousandths=pricing.MOST_THOUSANDTHS,
        long_context_threshold=0,
        long_context_input_thousandths=pricing.MOST_THOUSANDTHS,
        long_context_output_thousandths=pricing.MOST_THOUSANDTHS,
    )
    most = TokenUsage(input=tokens.MOST_INPUT_TOKENS, output=tokens.MOST_OUTPUT_TOKENS)
    assert pricing.cost(most, dearest, fast=True) == 1_100_000_000_000_000 < pricing.MOST_COST == engine.MOST
    with pytest.raises(ImplausibleUsage):
        pricing.cost(TokenUsage(input=10**10), dearest, fast=True)


def test_an_explicit_zero_is_free() -> None:
    assert pricing.cost(TokenUsage(input=5, cached_input=5, output=5), rate(input=0, cached_input=0, output=0), fast=True) == 0


counts = st.integers(min_value=0, max_value=2_000_000)
prices = st.integers(min_value=0, max_value=5_000_000_000)
usages = st.builds(TokenUsage, input=counts, cached_input=counts, cache_write=counts, output=counts)
rates = st.builds(
    rate,
    input=prices,
    cached_input=prices,
    cache_write=st.none() | prices,
    output=prices,
    fast_thousandths=st.integers(min_value=0, max_value=5000),
    long_context_threshold=st.none() | counts,
    long_context_input_thousandths=st.integers(min_value=1000, max_value=3000),
    long_context_output_thousandths=st.integers(min_value=1000, max_value=3000),
)
plain = st.builds(rate, input=prices, cached_input=prices, cache_write=st.none() | prices, output=prices)


@given(usages, rates, st.booleans())
def test_the_cost_is_the_exact_sum_rounded_half_up(usage: TokenUsage, of: pricing.RateTerms, fast: bool) -> None:
    is_long = of.long_context_threshold is not None and usage.input_total > of.long_context_threshold
    read = Fraction(of.long_context_input_thousandths if is_long else 1000, 1000)
    written = Fraction(of.long_context_output_thousandths if is_long else 1000, 1000)
    speed = Fraction(of.fast_thousandths if fast else 1000, 1000)
    cache_write = of.input if of.cache_write is None else of.cache_write
    summed = usage.input * of.input + usage.cached_input * of.cached_input + usage.cache_write * cache_write
    exact = (summed * read + usage.output * of.output * written) * speed / 1_000_000
    cost = pricing.cost(usage, of, fast=fast)
    assert cost >= 0
    assert Fraction(-1, 2) < cost - exact <= Fraction(1, 2)


@given(usages, plain, st.booleans())
def test_parts_add_up_to_the_whole_within_half_a_micro_credit_each(usage: TokenUsage, of: pricing.RateTerms, fast: bool) -> None:
    parts = [
        TokenUsage(input=usage.input),
        TokenUsage(cached_input=usage.cached_input),
        TokenUsage(cache_write=usage.cache_write),
        TokenUsage(output=usage.output),
    ]
    summed = sum(pricing.cost(part, of, fast=fast) for part in parts)
    assert abs(summed - pricing.cost(usage, of, fast=fast)) <= 2  # five roundings, each by half at most


@given(usages, rates, st.booleans())
def test_the_cost_is_never_above_all_input_at_the_dearer_of_input_and_cache_write(
    usage: TokenUsage, of: RateSnapshot, fast: bool
) -> None:
    """Of every rate that may be stored: cached input is never dearer than both."""
    of = replace(of, cached_input=min(of.cached_input, max(of.input, of.cache_write or 0)))
    dearer = max(of.input, of.input if of.cache_write is None else of.cache_write)
    everything = TokenUsage(input=usage.input_total, output=usage.output)
    most = pricing.cost(everything, replace(of, input=dearer), fast=fast)
    assert 0 <= pricing.cost(usage, of, fast=fast) <= most


@given(usages, rates, counts, st.sampled_from(["input", "cached_input", "cache_write", "output"]), st.booleans())
def test_more_tokens_never_cost_less(usage: TokenUsage, of: RateSnapshot, more: int, part: str, fast: bool) -> None:
    """Monotone in each part, also across the long-context threshold."""
    larger = replace(usage, **{part: getattr(usage, part) + more})
    assert pricing.cost(larger, of, fast=fast) >= pricing.cost(usage, of, fast=fast)


@given(counts, counts, counts, counts, rates)
def test_the_same_call_costs_the_same_in_every_dialect(
    read: int, cached: int, cache_write: int, written: int, of: RateSnapshot
) -> None:
    """C3."""
    details = {"cached_tokens": cached, "cache_write_tokens": cache_write}
    ours = tokens.normalise({"input_tokens": read, "input_tokens_details": details, "output_tokens": written})
    assert ours is not None
    raw = {"input_tokens": ours.input, "cache_read_input_tokens": ours.cached_input, "output_tokens": written}
    raw["cache_creation_input_tokens"] = ours.cache_write
    theirs = tokens.normalise(raw, "messages")
    assert theirs is not None
    assert pricing.cost(theirs, of, fast=False) == pricing.cost(ours, of, fast=False)
