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
        responses(10**8 + 1, 1),
        responses(1, 10**7 + 1),
        responses(10**10, 1),
        responses(1, 10**10),
        responses(10, 1, cached=10**8 + 1),
        {"input_tokens": 10**5000, "output_tokens": 1},
        {"input_tokens": 1e300, "output_tokens": 1},
        {"input_tokens": {"count": 1}, "output_tokens": 1},
        {"input_tokens": [1], "output_tokens": 1},
        {"input_tokens": 1, "output_tokens": 1, "input_tokens_details": {"cached_tokens": "1"}},
        {"input_tokens": 1, "output_tokens": 1, "prompt_cache_hit_tokens": -1},
        {"input_tokens": 1.5, "output_tokens": 1},
        {"input_tokens": "12", "output_tokens": 1},
        {"input_tokens": True, "output_tokens": 1},
    ],
)
def test_counts_that_cannot_be_are_refused(raw: dict[str, Any]) -> None:
    """D5: a negative count never becomes a refund; the caller books the hold's amount instead."""
    with pytest.raises(ImplausibleUsage):
        tokens.normalise(raw)


def test_the_largest_counts_that_are_believed() -> None:
    """D5: the bounds themselves are within."""
    usage = tokens.normalise(responses(10**8, 10**7))
    assert usage == TokenUsage(input=10**8, output=10**7)


def test_a_dialect_that_is_not_known_is_no_usage_by_accident() -> None:
    with pytest.raises(ValueError, match="anthropic"):
        tokens.normalise(responses(1, 1), "anthropic")


# --------------------------------------------------------------------------------- other servers of OpenAI's two dialects


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        # DeepSeek
        ({"prompt_tokens": 120, "completion_tokens": 9, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 56}, 64),
        # Moonshot
        ({"prompt_tokens": 120, "completion_tokens": 9, "cached_tokens": 64}, 64),
        # A gateway before Anthropic that speaks Chat Completions: input includes the cache.
        ({"prompt_tokens": 120, "completion_tokens": 9, "cache_read_input_tokens": 64}, 64),
        # The same count twice, or 0 where it is not kept.
        (
            {
                "prompt_tokens": 120,
                "completion_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 0},
                "prompt_cache_hit_tokens": 64,
            },
            64,
        ),
        ({"prompt_tokens": 120, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 64}, "cached_tokens": 64}, 64),
        ({"prompt_tokens": 120, "completion_tokens": 9, "prompt_tokens_details": [64], "completion_tokens_details": "x"}, 0),
    ],
)
def test_the_cached_count_is_found_wherever_servers_keep_it(raw: dict[str, Any], expected: int) -> None:
    """C7: the detail under every name that is known; what is no object tells nothing."""
    for dialect in ("chat", "responses"):
        assert tokens.normalise(raw, dialect) == TokenUsage(input=120 - expected, cached_input=expected, output=9)


def test_reasoning_that_is_counted_beside_the_answer_is_taken_into_the_output() -> None:
    """C6: by the server's own total; without that proof reasoning is inside, and clamped to it."""
    raw = {
        "prompt_tokens": 17,
        "completion_tokens": 34,
        "completion_tokens_details": {"reasoning_tokens": 448},
        "total_tokens": 499,
    }
    assert tokens.normalise(raw, "chat") == TokenUsage(input=17, output=482, reasoning=448)
    inside = {**raw, "completion_tokens": 482}
    assert tokens.normalise(inside, "chat") == TokenUsage(input=17, output=482, reasoning=448)
    unproved = {**raw, "total_tokens": 51}
    assert tokens.normalise(unproved, "chat") == TokenUsage(input=17, output=34, reasoning=34, clamped=True)


# -------------------------------------------------------------------------------------------------------------- Anthropic


def anthropic(fresh: int, written: int, *, cached: int = 0, cache_write: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": fresh,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": cache_write,
        "cache_creation": {"ephemeral_5m_input_tokens": cache_write, "ephemeral_1h_input_tokens": 0},
        "output_tokens": written,
        "server_tool_use": {"web_search_requests": 3},
        "service_tier": "standard",
    }


def test_anthropics_input_excludes_the_cache() -> None:
    """C3: input 500 and 9,500 from the cache are 10,000 read; in OpenAI's shape 10,000 of which 9,500 cached: the same."""
    usage = tokens.normalise(anthropic(500, 200, cached=9500), "messages")
    assert usage == TokenUsage(input=500, cached_input=9500, output=200)
    assert (
        usage == tokens.normalise(responses(10_000, 200, cached=9500)) == tokens.normalise(chat(10_000, 200, cached=9500), "chat")
    )


def chat(read: int, written: int, *, cached: int = 0, cache_write: int = 0, reasoning: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": read,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": cache_write},
        "completion_tokens": written,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": read + written,
    }


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (anthropic(10, 5, cached=20, cache_write=30), TokenUsage(input=10, cached_input=20, cache_write=30, output=5)),
        # Lifetimes are summed where their sum is missing, and believed where it is smaller.
        (
            {
                "input_tokens": 1,
                "output_tokens": 2,
                "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4},
            },
            TokenUsage(input=1, cache_write=7, output=2),
        ),
        ({**anthropic(1, 2), "cache_creation": {"ephemeral_1h_input_tokens": 4}}, TokenUsage(1, 0, 4, 2, 0, clamped=True)),
        ({**anthropic(1, 2, cache_write=9), "cache_creation": None}, TokenUsage(1, 0, 9, 2)),
        ({**anthropic(1, 2, cache_write=9), "cache_creation": "x"}, TokenUsage(1, 0, 9, 2)),
        # Of a message_start alone; of an answer that read only from the cache.
        ({"input_tokens": 25, "output_tokens": None}, TokenUsage(input=25)),
        ({"cache_read_input_tokens": 25}, TokenUsage(cached_input=25)),
        ({**anthropic(1, 9), "output_tokens_details": {"thinking_tokens": 7}}, TokenUsage(1, 0, 0, 9, 7)),
        ({**anthropic(1, 9), "output_tokens_details": {"thinking_tokens": 70}}, TokenUsage(1, 0, 0, 9, 9, clamped=True)),
    ],
)
def test_anthropics_counts_stand_beside_each_other(raw: dict[str, Any], expected: TokenUsage) -> None:
    assert tokens.normalise(raw, "messages") == expected


@pytest.mark.parametrize(
    "raw",
    [
        anthropic(-1_000_000, 10),
        anthropic(10, 1, cached=-5),
        anthropic(10**8, 1, cached=1),
        {**anthropic(1, 1), "cache_creation": {"ephemeral_5m_input_tokens": 1.5}},
        {**anthropic(1, 1), "cache_creation_input_tokens": False},
        {**anthropic(1, 1), "output_tokens": "1"},
    ],
)
def test_anthropics_counts_that_cannot_be_are_refused(raw: dict[str, Any]) -> None:
    """D5."""
    with pytest.raises(ImplausibleUsage):
        tokens.normalise(raw, "messages")


@pytest.mark.parametrize(
    "raw", [{}, {"server_tool_use": {"web_search_requests": 1}}, {"cache_creation": {}}, {"input_tokens": None}]
)
def test_no_counts_of_anthropic_are_no_usage(raw: dict[str, Any]) -> None:
    assert tokens.normalise(raw, "messages") is None


# ------------------------------------------------------------------------------------------------------------- properties

FIELDS = [
    *responses(1, 1), *chat(1, 1), *anthropic(1, 1), "prompt_cache_hit_tokens", "cached_tokens", "reasoning_tokens",
    "cache_write_tokens", "ephemeral_5m_input_tokens", "thinking_tokens",
]  # fmt: skip
odd = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 500) | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(FIELDS), odd), st.sampled_from(["responses", "chat", "messages"]))
def test_any_object_is_usage_without_negatives_or_none_or_refused(raw: dict[str, Any], dialect: str) -> None:
    """D5: whatever the upstream sends, nothing but ImplausibleUsage is raised, and what is believed is within its bounds."""
    try:
        usage = tokens.normalise(raw, dialect)
    except ImplausibleUsage:
        return
    if usage is not None:
        parts = (usage.input, usage.cached_input, usage.cache_write, usage.output, usage.reasoning)
        assert all(type(part) is int for part in parts)
        assert min(parts) >= 0
        assert usage.reasoning <= usage.output <= tokens.MOST_OUTPUT_TOKENS
        assert usage.input_total <= tokens.MOST_INPUT_TOKENS


@given(odd, st.sampled_from(["responses", "chat", "messages"]))
def test_what_is_no_object_is_no_usage(raw: Any, dialect: str) -> None:
    if not isinstance(raw, dict):
        assert tokens.normalise(raw, dialect) is None


counts = st.integers(0, 2_000_000)


@given(counts, counts, counts, counts)
def test_the_parts_sum_to_the_total_in_every_dialect(read: int, cached: int, cache_write: int, written: int) -> None:
    """C3: and the same call is the same usage in all three."""
    ours = tokens.normalise(responses(read, written, cached=cached, cache_write=cache_write))
    assert ours is not None
    assert ours.input + ours.cached_input + ours.cache_write == ours.input_total == read
    assert ours.total == read + written
    assert ours.clamped == (cached + cache_write > read)
    assert tokens.normalise(chat(read, written, cached=cached, cache_write=cache_write), "chat") == ours
    theirs = tokens.normalise(anthropic(ours.input, written, cached=ours.cached_input, cache_write=ours.cache_write), "messages")
    assert theirs is not None
    assert (theirs.input, theirs.cached_input, theirs.cache_write, theirs.output) == (
        ours.input, ours.cached_input, ours.cache_write, ours.output,
    )  # fmt: skip


def test_the_captured_answers_are_read() -> None:
    sample = Path(__file__).parent.parent / "proxy" / "samples" / "responses_text.sse"
    events = [json.loads(line[6:]) for line in sample.read_text().splitlines() if line.startswith("data: {")]
    assert tokens.normalise(events[-1]["response"]["usage"]) == TokenUsage(input=56, cached_input=64, output=9, reasoning=3)
