"""What upstreams count, in one form."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing import tokens
from billing.errors import ImplausibleUsage
from billing.tokens import TokenUsage


def responses(read: int, written: int, *, cached: int = 0, cache_write: int = 0, reasoning: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": cache_write},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": read + written,
    }


def test_cached_tokens_are_taken_out_of_the_input() -> None:
    """C1: OpenAI's input includes what came from the cache; C6: output includes reasoning."""
    usage = tokens.normalise(responses(2006, 300, cached=1920, reasoning=120))
    assert usage == TokenUsage(input=86, cached_input=1920, cache_write=0, output=300, reasoning=120)
    assert usage is not None
    assert (usage.input_total, usage.total) == (2006, 2306)


def test_the_cached_count_is_found_under_both_names() -> None:
    """C7: input_tokens_details and prompt_tokens_details give the same."""
    first = tokens.normalise(responses(120, 9, cached=64, reasoning=3))
    second = tokens.normalise(
        {
            "prompt_tokens": 120,
            "completion_tokens": 9,
            "total_tokens": 129,
            "prompt_tokens_details": {"cached_tokens": 64},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        "chat",
    )
    mixed = tokens.normalise({"input_tokens": 120, "output_tokens": 9, "prompt_tokens_details": {"cached_tokens": 64}})
    assert first == second == TokenUsage(input=56, cached_input=64, output=9, reasoning=3)
    assert mixed == TokenUsage(input=56, cached_input=64, output=9)


def test_cached_above_input_is_clamped_and_flagged() -> None:
    """C5: cached 500 of input 300 counts as 300; nothing is negative."""
    assert tokens.normalise(responses(300, 10, cached=500)) == TokenUsage(cached_input=300, output=10, clamped=True)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (responses(100, 5, cached=60, cache_write=70), TokenUsage(cached_input=60, cache_write=40, output=5, clamped=True)),
        (responses(100, 5, cached=60, cache_write=30), TokenUsage(input=10, cached_input=60, cache_write=30, output=5)),
        (responses(1, 5, reasoning=9), TokenUsage(input=1, output=5, reasoning=5, clamped=True)),
        ({"input_tokens": 5, "input_tokens_details": None, "output_tokens": 2}, TokenUsage(input=5, output=2)),
        ({"input_tokens": 5, "output_tokens": None}, TokenUsage(input=5)),
        (responses(0, 0), TokenUsage()),
    ],
)
def test_details_stay_within_their_whole(raw: dict[str, Any], expected: TokenUsage) -> None:
    assert tokens.normalise(raw) == expected


@pytest.mark.parametrize("raw", [None, {}, {"total_tokens": 12}, {"input_tokens": None, "output_tokens": None}])
def test_no_counts_are_no_usage(raw: dict[str, Any] | None) -> None:
    """B4 relies on it: what is missing is estimated by the caller, never taken for zero."""
    assert tokens.normalise(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        responses(-1_000_000, 10),
        responses(10, -1),
        responses(10, 1, cached=-5),
        responses(10, 1, cache_write=-5),
        responses(10, 1, reasoning=-5),
        responses(10**11, 1),
        {"input_tokens": 1.5, "output_tokens": 1},
        {"input_tokens": "12", "output_tokens": 1},
        {"input_tokens": True, "output_tokens": 1},
    ],
)
def test_counts_that_cannot_be_are_refused(raw: dict[str, Any]) -> None:
    """D5: a negative count never becomes a refund; the caller books the hold's amount instead."""
    with pytest.raises(ImplausibleUsage):
        tokens.normalise(raw)


def test_a_dialect_that_is_not_known_is_no_usage_by_accident() -> None:
    with pytest.raises(ValueError, match="anthropic"):
        tokens.normalise(responses(1, 1), "anthropic")


@given(st.dictionaries(st.sampled_from([*responses(1, 1), "prompt_tokens"]), st.one_of(st.none(), st.integers(-5, 5), st.text())))
def test_any_object_is_usage_without_negatives_or_none_or_refused(raw: dict[str, Any]) -> None:
    try:
        usage = tokens.normalise(raw)
    except ImplausibleUsage:
        return
    if usage is not None:
        assert min(usage.input, usage.cached_input, usage.cache_write, usage.output, usage.reasoning) >= 0
        assert usage.reasoning <= usage.output


def test_the_captured_answers_are_read() -> None:
    sample = Path(__file__).parent.parent / "proxy" / "samples" / "responses_text.sse"
    events = [json.loads(line[6:]) for line in sample.read_text().splitlines() if line.startswith("data: {")]
    assert tokens.normalise(events[-1]["response"]["usage"]) == TokenUsage(input=56, cached_input=64, output=9, reasoning=3)
