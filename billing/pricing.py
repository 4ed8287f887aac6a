"""Usage x rate -> cost. Pure integers; knows nothing of enforcement."""

from typing import Literal, Protocol

from billing.credits import MicroCredits
from billing.errors import ImplausibleUsage
from billing.tokens import TokenUsage

Tier = Literal["fast", "standard"]

FAST_TIERS = frozenset({"priority", "fast"})
SIGN_IN_KINDS = frozenset({"chatgpt"})

MOST_RATE = 10**11
"""The dearest rate a card may hold, in micro-credits per million tokens: 100,000 credits, thirty times the dearest one known."""
MOST_THOUSANDTHS = 10_000
"""The largest multiplier a card may hold."""
MOST_COST = 2**53 // 8
"""The largest amount that the engine takes: sums of such stay exact in its doubles. No normalised usage at a rate within the bounds
above costs more, so the check in `cost` is for rates and tokens that came another way."""

# Tokens x micro-credits per million tokens x two multipliers in thousandths: what the one division takes back out.
_SCALE = 1_000_000 * 1000 * 1000


class RateTerms(Protocol):
    """What `cost` reads of a rate: micro-credits per million tokens, multipliers in thousandths."""

    @property
    def input(self) -> int: ...
    @property
    def cached_input(self) -> int: ...
    @property
    def cache_write(self) -> int | None: ...
    @property
    def output(self) -> int: ...
    @property
    def fast_thousandths(self) -> int: ...
    @property
    def long_context_threshold(self) -> int | None: ...
    @property
    def long_context_input_thousandths(self) -> int: ...
    @property
    def long_context_output_thousandths(self) -> int: ...


def cost(usage: TokenUsage, rate: RateTerms, *, fast: bool) -> MicroCredits:
    """Micro-credits of one attempt: one sum over token types, one division at the end, half up.

    Without a cache-write rate those tokens are priced as input. Reasoning is inside output and never priced on its own.

    Long context: when all that was read (fresh, cached and written to the cache) is more than the threshold, the input multiplier
    holds for all of it, the cached and cache-write tokens too, and the output multiplier for all that was written, not only for
    what lies above. So OpenAI prices it: "input x2, output x1.5 for the whole request when input exceeds the threshold" of 272,000
    (`billing/data/codex-2026.json`, long_context, source S14). Fast mode multiplies the whole.

    Raises ImplausibleUsage for a cost above MOST_COST.
    """
    cache_write = rate.input if rate.cache_write is None else rate.cache_write
    read = usage.input * rate.input + usage.cached_input * rate.cached_input + usage.cache_write * cache_write
    written = usage.output * rate.output
    if is_long_context(usage, rate):
        summed = read * rate.long_context_input_thousandths + written * rate.long_context_output_thousandths
    else:
        summed = (read + written) * 1000
    summed *= rate.fast_thousandths if fast else 1000
    amount = (summed + _SCALE // 2) // _SCALE
    if amount > MOST_COST:
        raise ImplausibleUsage("A request cannot cost this much.")
    return MicroCredits(amount)


def is_long_context(usage: TokenUsage, rate: RateTerms) -> bool:
    """Is the request above the rate's threshold? One that reads exactly as much is not."""
    threshold = rate.long_context_threshold
    return threshold is not None and usage.input_total > threshold


def tier_billed(account_kind: str, asked: str | None, served: str | None) -> Tier:
    """Which price holds: the request's tier on sign-in accounts, whose echo says nothing; the response's tier on API keys.

    `asked` and `served` are the `service_tier` of the request and of the terminal response; empty or None where none was named.
    An API key's answer that names no tier is billed standard: nobody said that it was fast.
    """
    named = asked if account_kind in SIGN_IN_KINDS else served
    return "fast" if named in FAST_TIERS else "standard"
