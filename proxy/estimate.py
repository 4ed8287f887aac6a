"""What a request will probably use, so that the hold is neither empty nor the whole limit (design section 5)."""

from collections import deque
from dataclasses import dataclass

from billing import pricing
from billing.snapshots import RateSnapshot
from billing.tokens import MOST_OUTPUT_TOKENS, TokenUsage
from proxy.dialects.inspection import Inspection

BYTES_PER_TOKEN = 4.0
OUTPUT_TOKENS = 4096
"""The upper quantile before anything is learned."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens and micro-credits; `input_credits` is the price of the input alone, owed as soon as the request is sent."""

    input_tokens: int
    output_tokens: int
    input_credits: int
    credits: int

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Learned:
    """What this process has seen of a model: bytes per input token, and the 95th percentile of output tokens.

    Nothing is believed before there are enough samples, and never anything absurd.
    """

    ENOUGH_INPUTS = 20
    SMALLEST_BODY = 4096
    ENOUGH_OUTPUTS = 50
    MOST_MODELS = 500

    MOST_RESPONSES = 50_000

    def __init__(self) -> None:
        self._totals: dict[tuple[int, str], int] = {}
        self._ratios: dict[str, tuple[int, float]] = {}
        self._outputs: dict[str, deque[int]] = {}
        self._quantiles: dict[str, int] = {}

    def bytes_per_token(self, model: str) -> float:
        count, ratio = self._ratios.get(model, (0, BYTES_PER_TOKEN))
        return min(8.0, max(2.0, ratio)) if count >= self.ENOUGH_INPUTS else BYTES_PER_TOKEN

    def output_tokens(self, model: str) -> int:
        return self._quantiles.get(model, OUTPUT_TOKENS)

    def total_of(self, organization_id: int, response_id: str | None) -> int:
        """Tokens of the conversation up to an earlier response, which a continuation reads again; 0 if not seen here."""
        return self._totals.get((organization_id, response_id), 0) if response_id else 0

    def remember(self, organization_id: int, response_id: str, total: int) -> None:
        if not response_id:
            return
        if len(self._totals) >= self.MOST_RESPONSES:
            del self._totals[next(iter(self._totals))]
        self._totals[(organization_id, response_id)] = total

    def learn(self, model: str, *, body_bytes: int | None, input_tokens: int, output_tokens: int) -> None:
        """`body_bytes` None where the upstream read more than was sent."""
        if len(self._outputs) >= self.MOST_MODELS and model not in self._outputs:
            return
        if body_bytes is not None and body_bytes >= self.SMALLEST_BODY and input_tokens > 0:
            count, ratio = self._ratios.get(model, (0, BYTES_PER_TOKEN))
            weight = 0.05 if count >= self.ENOUGH_INPUTS else 1 / (count + 1)
            self._ratios[model] = (count + 1, ratio + weight * (body_bytes / input_tokens - ratio))
        outputs = self._outputs.setdefault(model, deque(maxlen=200))
        outputs.append(output_tokens)
        if len(outputs) >= self.ENOUGH_OUTPUTS and len(outputs) % 10 == 0:
            quantile = sorted(outputs)[len(outputs) * 95 // 100]
            self._quantiles[model] = min(32_768, max(256, quantile))

    def knows(self, model: str) -> bool:
        return model in self._outputs


learned = Learned()
own = Learned()
"""Of endpoints that organizations named themselves, whose word about tokens is for the organization alone: else who runs one could
make everybody's holds of a model as large, or as small, as it likes. By `own_name`."""


def own_name(organization_id: int, model: str) -> str:
    return f"{organization_id}/{model}"


def estimate(
    inspection: Inspection, rate: RateSnapshot, *, has_sign_in_account: bool, organization_id: int = 0, known: Learned = learned
) -> Estimate:
    """Input from the body's bytes; output from max_output_tokens where it will be obeyed, else the learned upper quantile.

    A continuation reads its whole conversation again: what that had by its parent is added to the input.

    Where a sign-in account may serve, the bound is taken out of the body, so it bounds nothing (A24).
    """
    source, name = known, rate.model
    if own.knows(own_name(organization_id, name)):
        source, name = own, own_name(organization_id, name)
    input_tokens = -(-len(inspection.body) // source.bytes_per_token(name)).__trunc__()
    input_tokens += known.total_of(organization_id, inspection.previous_response_id)
    bound = inspection.max_output_tokens
    if inspection.is_warm_up:
        output_tokens = 0
    elif bound is None or bound < 0 or has_sign_in_account:
        output_tokens = source.output_tokens(name)
    else:
        # No answer has more, and what is held has a largest amount.
        output_tokens = min(bound, MOST_OUTPUT_TOKENS)
    is_fast = inspection.is_fast
    return Estimate(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        input_credits=price(rate, input_tokens, 0, fast=is_fast),
        credits=price(rate, input_tokens, output_tokens, fast=is_fast),
    )


def price(rate: RateSnapshot, input_tokens: int, output_tokens: int, *, fast: bool) -> int:
    """Micro-credits of uncached input and output."""
    return pricing.cost(usage_of(input_tokens, output_tokens), rate, fast=fast)


def usage_of(input_tokens: int, output_tokens: int) -> TokenUsage:
    return TokenUsage(input=input_tokens, cached_input=0, cache_write=0, output=output_tokens, reasoning=0, clamped=False)
