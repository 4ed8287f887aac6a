"""The usage normaliser: what an upstream counted, in one form for every dialect."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from billing.errors import ImplausibleUsage

MOST_INPUT_TOKENS = 10**8
"""No request reads this many: ten times the largest context there is, or a hundred turns of a tool loop run upstream."""
MOST_OUTPUT_TOKENS = 10**7
"""No request writes this many: the longest answers have some 10^5 tokens. At the dearest rate that a card may hold, both together
still cost less than the engine's largest amount (`pricing.MOST_COST`)."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one attempt. `input` excludes cached and cache-write tokens; `output` includes `reasoning`.

    `clamped`: the upstream gave a part that was larger than its whole.
    """

    input: int = 0
    cached_input: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    clamped: bool = False

    @property
    def input_total(self) -> int:
        """All that the model read."""
        return self.input + self.cached_input + self.cache_write

    @property
    def total(self) -> int:
        """All that was read and written; what token limits count."""
        return self.input_total + self.output


def normalise(raw: Any, dialect: str = "responses") -> TokenUsage | None:
    """The usage object of a terminal event as tokens; None if it holds no counts (then the caller estimates).

    `dialect`: `responses`, `chat` or `messages`. OpenAI's two name the same things in two spellings, and both are read in both;
    their input includes cached and cache-write tokens. Anthropic's `input_tokens` excludes both, which come beside it. A count that
    is absent or null beside another is 0; fields that are not known (server tools, tiers, predictions) are not looked at.

    Raises ImplausibleUsage, and nothing else, for a count that is negative, no whole number, or above MOST_INPUT_TOKENS or
    MOST_OUTPUT_TOKENS; ValueError for a dialect that does not exist. The caller keeps `raw` itself for the log.
    """
    read = _DIALECTS.get(dialect)
    if read is None:
        raise ValueError(f"no usage is known for the dialect {dialect!r}")
    return read(raw) if isinstance(raw, Mapping) else None


# ------------------------------------------------------------------------------------------------------------------ OpenAI

_READ = ("input_tokens", "prompt_tokens")
_WRITTEN = ("output_tokens", "completion_tokens")
_CACHED = ("cached_tokens",)
_CACHE_WRITE = ("cache_write_tokens", "cache_creation_tokens")
_REASONING = ("reasoning_tokens",)
# Where servers that speak OpenAI's dialects put what OpenAI keeps in the details: DeepSeek, Moonshot, gateways before Anthropic.
_CACHED_ELSEWHERE = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
_CACHE_WRITE_ELSEWHERE = ("cache_creation_input_tokens", "cache_write_tokens")


def _responses(raw: Mapping[str, Any]) -> TokenUsage | None:
    return _openai(raw, _first(raw, _READ), _first(raw, _WRITTEN))


def _chat(raw: Mapping[str, Any]) -> TokenUsage | None:
    return _openai(raw, _first(raw, reversed(_READ)), _first(raw, reversed(_WRITTEN)))


def _openai(raw: Mapping[str, Any], read: Any, written: Any) -> TokenUsage | None:
    if read is None and written is None:
        return None
    of_input, of_output = _details(raw, _READ), _details(raw, _WRITTEN)
    total, output = _count(read, "input", MOST_INPUT_TOKENS), _count(written, "output", MOST_OUTPUT_TOKENS)
    said_cached = max(_largest(of_input, _CACHED, "cached input"), _largest([raw], _CACHED_ELSEWHERE, "cached input"))
    said_cache_write = max(_largest(of_input, _CACHE_WRITE, "cache write"), _largest([raw], _CACHE_WRITE_ELSEWHERE, "cache write"))
    said_reasoning = max(
        _largest(of_output, _REASONING, "reasoning", MOST_OUTPUT_TOKENS),
        _largest([raw], _REASONING, "reasoning", MOST_OUTPUT_TOKENS),
    )
    if said_reasoning and _is_count(raw.get("total_tokens"), total + output + said_reasoning):
        # xAI counts reasoning beside the answer, and its own total proves it: what was written is both.
        output = _bounded(output + said_reasoning, "output", MOST_OUTPUT_TOKENS)
    cached = min(said_cached, total)
    cache_write = min(said_cache_write, total - cached)
    reasoning = min(said_reasoning, output)
    return TokenUsage(
        input=total - cached - cache_write,
        cached_input=cached,
        cache_write=cache_write,
        output=output,
        reasoning=reasoning,
        clamped=(cached, cache_write, reasoning) != (said_cached, said_cache_write, said_reasoning),
    )


# --------------------------------------------------------------------------------------------------------------- Anthropic


def _messages(raw: Mapping[str, Any]) -> TokenUsage | None:
    """`input_tokens` excludes what was read from the cache and written to it; writes of all lifetimes are one count."""
    by_lifetime = raw.get("cache_creation")
    lifetimes = [
        _count(value, "cache write", MOST_INPUT_TOKENS)
        for name, value in (by_lifetime if isinstance(by_lifetime, Mapping) else {}).items()
        if isinstance(name, str) and name.startswith("ephemeral_") and name.endswith("_input_tokens")
    ]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    if not lifetimes and all(raw.get(name) is None for name in names):
        return None
    said_cache_write = raw.get("cache_creation_input_tokens")
    # The sum is said beside its parts. Where a server leaves it out, or at 0, the parts are what there is.
    cache_write = max(_count(said_cache_write, "cache write", MOST_INPUT_TOKENS), sum(lifetimes))
    cached = _count(raw.get("cache_read_input_tokens"), "cached input", MOST_INPUT_TOKENS)
    fresh = _count(raw.get("input_tokens"), "input", MOST_INPUT_TOKENS)
    _bounded(fresh + cached + cache_write, "input", MOST_INPUT_TOKENS)
    output = _count(raw.get("output_tokens"), "output", MOST_OUTPUT_TOKENS)
    said_reasoning = _largest(_details(raw, _WRITTEN), ("thinking_tokens", "reasoning_tokens"), "reasoning", MOST_OUTPUT_TOKENS)
    reasoning = min(said_reasoning, output)
    return TokenUsage(
        input=fresh,
        cached_input=cached,
        cache_write=cache_write,
        output=output,
        reasoning=reasoning,
        clamped=reasoning != said_reasoning or (said_cache_write is not None and sum(lifetimes) > said_cache_write),
    )


_DIALECTS: Final[Mapping[str, Callable[[Mapping[str, Any]], TokenUsage | None]]] = {
    "responses": _responses,
    "chat": _chat,
    "messages": _messages,
}


# ------------------------------------------------------------------------------------------------------------------ counts


# Loops and not generators: this runs for every request.


def _first(raw: Mapping[str, Any], names: Iterable[str]) -> Any:
    for name in names:
        value = raw.get(name)
        if value is not None:
            return value
    return None


def _details(raw: Mapping[str, Any], names: Iterable[str]) -> list[Mapping[str, Any]]:
    """The `…_details` of a count in any spelling; what is no object tells nothing."""
    found: list[Mapping[str, Any]] = []
    for name in names:
        details = raw.get(f"{name}_details")
        if isinstance(details, dict):
            found.append(details)
    return found


def _largest(holders: Iterable[Mapping[str, Any]], names: Iterable[str], what: str, most: int = MOST_INPUT_TOKENS) -> int:
    """One part under the names it may have: servers that fill two say the same in both, or 0 in the one they do not use."""
    largest = 0
    for holder in holders:
        for name in names:
            value = holder.get(name)
            if value is not None:
                largest = max(largest, _count(value, what, most))
    return largest


def _is_count(value: Any, expected: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == expected


def _count(value: Any, what: str, most: int) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise ImplausibleUsage(f"The upstream's count of {what} tokens is not a whole number.")
    return _bounded(value, what, most)


def _bounded(count: int, what: str, most: int) -> int:
    if not 0 <= count <= most:
        # The number itself stays in the raw usage: one of a million digits could not even be printed.
        raise ImplausibleUsage(
            f"The upstream's count of {what} tokens cannot be: it is {'negative' if count < 0 else 'too large'}."
        )
    return count
