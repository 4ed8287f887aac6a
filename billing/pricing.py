"""Usage x rate -> cost. Pure integers; knows nothing of enforcement."""

from typing import Literal, Protocol

from billing.credits import MicroCredits
from billing.tokens import TokenUsage

Tier = Literal["fast", "standard"]

FAST_TIERS = frozenset({"priority", "fast"})
SIGN_IN_KINDS = frozenset({"chatgpt"})

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

    Without a cache-write rate those tokens are priced as input. When all that was read exceeds the long-context threshold, its
    multipliers hold for the whole request. Reasoning is inside output and never priced on its own.
    """
    cache_write = rate.input if rate.cache_write is None else rate.cache_write
    read = usage.input * rate.input + usage.cached_input * rate.cached_input + usage.cache_write * cache_write
    written = usage.output * rate.output
    threshold = rate.long_context_threshold
    if threshold is not None and usage.input_total > threshold:
        summed = read * rate.long_context_input_thousandths + written * rate.long_context_output_thousandths
    else:
        summed = (read + written) * 1000
    summed *= rate.fast_thousandths if fast else 1000
    return MicroCredits((summed + _SCALE // 2) // _SCALE)


def tier_billed(account_kind: str, asked: str | None, served: str | None) -> Tier:
    """Which price holds: the request's tier on sign-in accounts, whose echo says nothing; the response's tier on API keys.

    `asked` and `served` are the `service_tier` of the request and of the terminal response; empty or None where none was named.
    An API key's answer that names no tier is billed standard: nobody said that it was fast.
    """
    named = asked if account_kind in SIGN_IN_KINDS else served
    return "fast" if named in FAST_TIERS else "standard"
