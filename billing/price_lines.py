"""A priced line taken apart: tokens by type, rate, multipliers, and the sum that gives exactly what was booked. Pure but for the
rates, which one function looks up."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from accounts import display, locales
from accounts.models import Organization
from billing import pricing
from billing.credits import text
from billing.errors import ImplausibleUsage
from billing.models import Rate, RateOverride
from billing.tokens import TokenUsage

TIMES, BY = "×", "÷"
CACHE_WRITE = gettext_noop("Cache write")


@dataclass(frozen=True, slots=True)
class RateLabel:
    """A rate row and what it is called. `card`: the name of the card it came with; "" for an organization's own price."""

    rate: Rate | RateOverride
    card: str


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of one type. `rate`: credits per million as text, multipliers beside it; `credits`: micro-credits, rounded for
    itself, so that the parts may differ from their sum in the last digit. None where no rate explains the line."""

    name: str
    tokens: int
    rate: str
    credits: int | None


@dataclass(frozen=True, slots=True)
class Explained:
    """One attempt that was paid for. `formula`: how its credits come about; "" where they are not rate by tokens (`note` says why).

    `is_rounded`: the one division had a rest. `account_id`: the upstream account that carried it.
    """

    model: str
    account_id: int | None
    parts: Sequence[Part]
    credits: int
    rate: RateLabel | None
    tier: str
    formula: str
    is_rounded: bool = False
    is_long: bool = False
    reasoning: int = 0
    note: str = ""


def rates(organization: Organization, ids: Iterable[int | None]) -> Mapping[int, RateLabel]:
    """The rows that usage records name: a `Rate`'s id, or minus a `RateOverride`'s. Two queries at most."""
    wanted = {one for one in ids if one is not None}
    found: dict[int, RateLabel] = {}
    if own := {-one for one in wanted if one < 0}:
        for override in RateOverride.objects.filter(organization=organization, pk__in=own):
            found[-override.pk] = RateLabel(override, "")
    if cards := {one for one in wanted if one > 0}:
        for rate in Rate.objects.filter(pk__in=cards).select_related("card"):
            found[rate.pk] = RateLabel(rate, rate.card.name)
    return found


def explain(line: Mapping[str, Any], known: Mapping[int, RateLabel], *, tier: str, is_implausible: bool = False) -> Explained:
    """A line of a usage record, as `PriceLine` has its fields. `tier`: what the record was billed at; a line that this does not
    explain was an earlier attempt's, and the other tier is tried."""
    usage = TokenUsage(
        input=int(line.get("input", 0)),
        cached_input=int(line.get("cached_input", 0)),
        cache_write=int(line.get("cache_write", 0)),
        output=int(line.get("output", 0)),
        reasoning=int(line.get("reasoning", 0)),
    )
    credits, rate_id = int(line.get("credits", 0)), line.get("rate_id")
    label = known.get(rate_id) if rate_id is not None else None
    first = "fast" if tier == "fast" else "standard"
    found = ""
    if label is not None and _is_priced(label.rate):
        for one in (first, "standard" if first == "fast" else "fast"):
            if _cost(usage, label.rate, one) == credits:
                found = one
                break
    terms = label.rate if label is not None and found else None
    note = ""
    if terms is None or is_implausible:
        note = (
            _("The upstream’s counts cannot be, so what was held is charged.")
            if is_implausible
            else _("Its rate row is not there any more.")
            if label is None
            else _("This is not its rate times its tokens: it was booked as it stands here.")
        )
    is_long = terms is not None and pricing.is_long_context(usage, terms)  # type: ignore[arg-type]  # priced in full
    formula, is_rounded = _formula(usage, terms, found, is_long, credits) if terms is not None else ("", False)
    return Explained(
        model=str(line.get("model", "")),
        account_id=line.get("account_id"),
        parts=_parts(usage, terms, found, is_long),
        credits=credits,
        rate=label,
        tier=found or first,
        formula=formula,
        is_rounded=is_rounded,
        is_long=is_long,
        reasoning=usage.reasoning,
        note=note,
    )


def _is_priced(rate: Rate | RateOverride) -> bool:
    return rate.input is not None and rate.cached_input is not None and rate.output is not None


def _cost(usage: TokenUsage, rate: Rate | RateOverride, tier: str) -> int | None:
    try:
        return pricing.cost(usage, rate, fast=tier == "fast")  # type: ignore[arg-type]  # priced in full
    except ImplausibleUsage:
        return None


def _types(usage: TokenUsage, rate: Rate | RateOverride | None) -> list[tuple[str, int, int, bool]]:
    """Name, tokens, micro-credits per million, and whether it was written, of every type; without a rate at 0."""
    if rate is None:
        prices = [0, 0, 0, 0]
    else:
        cache_write = rate.input if rate.cache_write is None else rate.cache_write
        prices = [rate.input or 0, rate.cached_input or 0, cache_write or 0, rate.output or 0]
    named = [
        (gettext_noop("Input, new"), usage.input, False),
        (gettext_noop("Input, cached"), usage.cached_input, False),
        (CACHE_WRITE, usage.cache_write, False),
        (gettext_noop("Output"), usage.output, True),
    ]
    return [(name, tokens, price, written) for (name, tokens, written), price in zip(named, prices, strict=True)]


def _parts(usage: TokenUsage, rate: Rate | RateOverride | None, tier: str, is_long: bool) -> list[Part]:
    parts = []
    for name, tokens, price, written in _types(usage, rate):
        if name == CACHE_WRITE and not tokens:
            continue
        if rate is None:
            parts.append(Part(_(name), tokens, "–", None))
            continue
        factors = _factors(rate, tier, is_long, written)
        amount, scale = tokens * price, 10**6
        for factor in factors:
            amount, scale = amount * factor, scale * 1000
        shown = _written(price) + "".join(f" {TIMES} {thousandths(factor)}" for factor in factors)
        parts.append(Part(_(name), tokens, shown, (amount + scale // 2) // scale))
    return parts


def _factors(rate: Rate | RateOverride, tier: str, is_long: bool, written: bool) -> list[int]:
    """The multipliers, in thousandths, that are not 1."""
    long = (rate.long_context_output_thousandths if written else rate.long_context_input_thousandths) if is_long else 1000
    fast = rate.fast_thousandths if tier == "fast" else 1000
    return [factor for factor in (long, fast) if factor != 1000]


def thousandths(value: int) -> str:
    """As a factor: 2500 is `2.5`."""
    return _written(value * 1000)


def _written(amount: int) -> str:
    """Credits in full, no thousands set apart."""
    return text(amount).replace(".", locales.current().decimal)


def _formula(usage: TokenUsage, rate: Rate | RateOverride, tier: str, is_long: bool, credits: int) -> tuple[str, bool]:
    """`(61,204 × 50 + 8,930 × 250) × 1.5 ÷ 1,000,000 = 7.939050`, and whether the division had a rest."""
    terms, exact = [], 0
    for _name, tokens, price, written in _types(usage, rate):
        if not tokens:
            continue
        long = _factors(rate, "standard", is_long, written)
        terms.append(f"{display.count(tokens)} {TIMES} {_written(price)}" + "".join(f" {TIMES} {thousandths(f)}" for f in long))
        exact += tokens * price * (long[0] if long else 1000)
    fast = rate.fast_thousandths if tier == "fast" else 1000
    exact *= fast
    sums = " + ".join(terms) or "0"
    if fast != 1000 or len(terms) > 1:
        sums = f"({sums})"
    if fast != 1000:
        sums += f" {TIMES} {thousandths(fast)}"
    return f"{sums} {BY} {display.count(10**6)} = {''.join(display.exact(credits))}", exact % 10**12 != 0
