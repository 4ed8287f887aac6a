"""The usage normaliser: what an upstream counted, in one form for every dialect."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from billing.errors import ImplausibleUsage

MOST_TOKENS = 10**10
"""No request reads or writes this many; what is above is a fault, and would overflow the counters."""


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


def normalise(raw: Mapping[str, Any] | None, dialect: str = "responses") -> TokenUsage | None:
    """The usage object of a terminal event as tokens; None if it holds no counts (then the caller estimates).

    Both spellings of OpenAI are read, `input_tokens` / `output_tokens` of Responses and `prompt_tokens` / `completion_tokens`
    of Chat Completions, each with its `…_details`; their input includes cached and cache-write tokens. A count that is absent or
    null beside another is 0. Raises ImplausibleUsage for a count that is negative, no whole number, or above MOST_TOKENS.
    """
    if dialect not in ("responses", "chat"):
        raise ValueError(f"no usage is known for the dialect {dialect!r}")
    if not isinstance(raw, Mapping):
        return None
    read = _first(raw, "input_tokens", "prompt_tokens")
    written = _first(raw, "output_tokens", "completion_tokens")
    if read is None and written is None:
        return None
    read_details = _details(raw, "input_tokens_details", "prompt_tokens_details")
    written_details = _details(raw, "output_tokens_details", "completion_tokens_details")
    total = _count(read, "input")
    output = _count(written, "output")
    said_cached = _count(read_details.get("cached_tokens"), "cached input")
    said_cache_write = _count(read_details.get("cache_write_tokens"), "cache write")
    said_reasoning = _count(written_details.get("reasoning_tokens"), "reasoning")
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


def _first(raw: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if (value := raw.get(name)) is not None:
            return value
    return None


def _details(raw: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    found = _first(raw, *names)
    return found if isinstance(found, Mapping) else {}


def _count(value: Any, what: str) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise ImplausibleUsage(f"The upstream's count of {what} tokens is not a whole number.")
    if not 0 <= value <= MOST_TOKENS:
        raise ImplausibleUsage(f"The upstream's count of {what} tokens cannot be: {value}.")
    return value
