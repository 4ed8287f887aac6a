"""A rate card file, read: lists split, patterns expanded, text made exact integers. Pure; `billing.ratecards` imports the result.

The form is `ratecard-facts/1`, as in `billing/data/codex-2026.json`: credits per million tokens as decimal strings. A rate may also
bring a `cache_write` price and `long_context: {threshold_input_tokens, input_multiplier, output_multiplier}`; a card, `aliases`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from itertools import pairwise
from typing import Any

import msgspec

from billing import credits
from billing.errors import RateCardRefused
from billing.pricing import MOST_RATE, MOST_THOUSANDTHS

SCHEMA = "ratecard-facts/1"
UNKNOWN_START = datetime(2026, 4, 2, tzinfo=UTC)
"""What a null date means: the day from which tokens, not messages, were charged."""
STANDARD_THOUSANDTHS = 1000
_LONGEST_MODEL = 120


@dataclass(frozen=True, slots=True)
class CardRate:
    """One dated row. Rates are micro-credits per million tokens, all None where the card has none; `source` is JSON for the row."""

    model: str
    valid_from: datetime
    valid_to: datetime | None
    input: int | None
    cached_input: int | None
    cache_write: int | None
    output: int | None
    fast_thousandths: int
    source: dict[str, Any]
    long_context_threshold: int | None = None
    long_context_input_thousandths: int = STANDARD_THOUSANDTHS
    long_context_output_thousandths: int = STANDARD_THOUSANDTHS

    @property
    def is_priced(self) -> bool:
        return self.input is not None


@dataclass(frozen=True, slots=True)
class CardAlias:
    """Another name of a model in [valid_from, valid_to)."""

    alias: str
    model: str
    valid_from: datetime
    valid_to: datetime | None


@dataclass(frozen=True, slots=True)
class Expansion:
    """What became of a fast multiplier: the models of the card, sorted, of which some row has it."""

    pattern: str
    thousandths: int
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """A file: its rows by model and start, what was left out, and where its figures come from.

    `has_long_context_facts`: the file speaks of long contexts apart from its rates, which prices nothing. `is_partial`: models
    that it does not name are not missing from it.
    """

    name: str
    sha256: str
    rates: tuple[CardRate, ...]
    notices: tuple[str, ...]
    sources: dict[str, Any]
    aliases: tuple[CardAlias, ...] = ()
    expansions: tuple[Expansion, ...] = ()
    has_long_context_facts: bool = False
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Multiplier:
    """A fast multiplier for one name or, with `*` at its end, for the names that begin so; in [valid_from, valid_to)."""

    pattern: str
    valid_from: datetime
    valid_to: datetime | None
    thousandths: int

    def covers(self, model: str) -> bool:
        if self.pattern.endswith("*"):
            return model.startswith(self.pattern[:-1])
        return model == self.pattern

    def holds_at(self, moment: datetime) -> bool:
        return self.valid_from <= moment and (self.valid_to is None or moment < self.valid_to)

    @property
    def rank(self) -> tuple[bool, int, datetime]:
        """The most specific wins: a whole name, then the longest beginning; of equals the newest."""
        return (not self.pattern.endswith("*"), len(self.pattern), self.valid_from)


class _Prices(msgspec.Struct, frozen=True):
    input: str | None
    cached_input: str | None
    output: str | None
    cache_write: str | None = None


class _LongContext(msgspec.Struct, frozen=True):
    threshold_input_tokens: int
    input_multiplier: str = "1"
    output_multiplier: str = "1"


class _Rate(msgspec.Struct, frozen=True):
    model: str
    credits_per_million: _Prices
    long_context: _LongContext | None = None
    effective_from: str | None = None
    effective_to: str | None = None
    confidence: str | None = None
    sources: list[str] = []
    note: str | None = None


class _Multiplier(msgspec.Struct, frozen=True):
    model: str
    multiplier: str
    effective_from: str | None = None
    effective_to: str | None = None


class _Alias(msgspec.Struct, frozen=True):
    alias: str
    model: str
    effective_from: str | None = None
    effective_to: str | None = None


class _File(msgspec.Struct, frozen=True):
    schema: str
    unit: str
    rates: list[_Rate]
    fast_multiplier: list[_Multiplier] = []
    aliases: list[_Alias] = []
    long_context: Any = None
    is_partial: bool = False
    compiled: str = ""
    sources: dict[str, str] = {}


def read(content: bytes, *, name: str) -> Card:
    """The card of a file's bytes. Raises RateCardRefused with a sentence that names the place of the fault."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RateCardRefused(f"{name} is not a rate card: {error}") from error
    if file.schema != SCHEMA:
        raise RateCardRefused(f"{name} has the schema {file.schema!r}; {SCHEMA!r} is understood.")
    if not file.unit.startswith("credits per 1,000,000 tokens"):
        raise RateCardRefused(f"{name} has the unit {file.unit!r}; credits per 1,000,000 tokens is understood.")
    notices: list[str] = []
    rates: list[CardRate] = []
    for index, row in enumerate(file.rates):
        for model in _names(row.model, f"rates[{index}]"):
            if ":" in model:
                notices.append(f"{model} was skipped: a row for a part of a model is not understood yet.")
                continue
            if model.endswith("*"):
                raise RateCardRefused(f"rates[{index}]: {model!r} is a pattern; a rate names its models.")
            rates.append(_rate(row, model, f"rates[{index}] ({model})"))
    multipliers: list[Multiplier] = []
    for index, entry in enumerate(file.fast_multiplier):
        multipliers += _multipliers(entry, f"fast_multiplier[{index}]")
    notices += [
        f"The fast multiplier of {multiplier.pattern} fits no model of the card."
        for multiplier in multipliers
        if not any(multiplier.covers(rate.model) for rate in rates)
    ]
    applied: dict[Multiplier, set[str]] = {multiplier: set() for multiplier in multipliers}
    expanded = tuple(_expanded(_without_overlap(rates), multipliers, applied))
    return Card(
        name=f"{name} ({file.compiled})" if file.compiled else name,
        sha256=hashlib.sha256(content).hexdigest(),
        rates=expanded,
        notices=tuple(notices),
        sources=dict(file.sources),
        aliases=tuple(_aliases(file.aliases, expanded)),
        expansions=tuple(Expansion(one.pattern, one.thousandths, tuple(sorted(models))) for one, models in applied.items()),
        has_long_context_facts=file.long_context is not None,
        is_partial=file.is_partial,
    )


def _names(listed: str, where: str) -> list[str]:
    names = [name.strip() for name in listed.split(",")]
    for name in names:
        if not is_name(name) or "*" in name[:-1]:
            raise RateCardRefused(f"{where}: {listed!r} is not a model name or a list of them.")
    return names


def is_name(text: str) -> bool:
    """Could this be a model's name: one printable word, no longer than the log's column?"""
    return 0 < len(text) <= _LONGEST_MODEL and text.isprintable() and not any(character.isspace() for character in text)


def _rate(row: _Rate, model: str, where: str) -> CardRate:
    prices = row.credits_per_million
    given = [prices.input, prices.cached_input, prices.output]
    if any(price is None for price in given) and any(price is not None for price in (*given, prices.cache_write)):
        raise RateCardRefused(f"{where}: input, cached_input and output are given all together or not at all.")
    valid_from, valid_to = _interval(row.effective_from, row.effective_to, where)
    long = row.long_context
    if long is not None and not 0 <= long.threshold_input_tokens < 2**31:
        raise RateCardRefused(f"{where}: {long.threshold_input_tokens} is not a threshold of input tokens.")
    rate = CardRate(
        model=model,
        valid_from=valid_from,
        valid_to=valid_to,
        input=_price(prices.input, where),
        cached_input=_price(prices.cached_input, where),
        cache_write=_price(prices.cache_write, where),
        output=_price(prices.output, where),
        fast_thousandths=STANDARD_THOUSANDTHS,
        source={
            "confidence": row.confidence,
            "sources": row.sources,
            "note": row.note,
            "is_start_known": row.effective_from is not None,
        },
        long_context_threshold=None if long is None else long.threshold_input_tokens,
        long_context_input_thousandths=STANDARD_THOUSANDTHS if long is None else _thousandths(long.input_multiplier, where),
        long_context_output_thousandths=STANDARD_THOUSANDTHS if long is None else _thousandths(long.output_multiplier, where),
    )
    if rate.input is not None and rate.cached_input is not None and rate.cached_input > max(rate.input, rate.cache_write or 0):
        raise RateCardRefused(f"{where}: cached input is dearer than input.")
    return rate


def _multipliers(entry: _Multiplier, where: str) -> Iterable[Multiplier]:
    valid_from, valid_to = _interval(entry.effective_from, entry.effective_to, where)
    factor = _thousandths(entry.multiplier, where)
    for name in _names(entry.model, where):
        yield Multiplier(name, valid_from, valid_to, factor)


def _thousandths(text: str, where: str) -> int:
    try:
        return thousandths(text)
    except ValueError as error:
        raise RateCardRefused(f"{where}: {error}") from error


def thousandths(text: str) -> int:
    """A multiplier's decimal text as thousandths. Raises ValueError."""
    whole, _, part = text.strip().partition(".")
    digits = whole + part
    if not digits.isascii() or not digits.isdigit() or len(part) > 3 or len(whole) > 4:
        raise ValueError(f"the multiplier {text!r} is not a decimal number with up to 3 places.")
    found = int(whole or "0") * 1000 + int(part.ljust(3, "0"))
    if found > MOST_THOUSANDTHS:
        raise ValueError(f"the multiplier {text!r} is above {MOST_THOUSANDTHS // 1000}.")
    return found


def price(text: str) -> int:
    """A price's decimal text, credits per million tokens, as micro-credits. Raises ValueError."""
    found = credits.parse(text)
    if found < 0:
        raise ValueError(f"the rate {text!r} is negative.")
    if found > MOST_RATE:
        raise ValueError(f"the rate {text!r} is above the dearest one that is taken, {credits.text(MOST_RATE)} credits.")
    return found


def _aliases(entries: Sequence[_Alias], rates: Sequence[CardRate]) -> Iterable[CardAlias]:
    """By alias and start. One that names itself, has two models at a time, or a rate of its own at that time, is refused."""
    found = []
    for index, entry in enumerate(entries):
        where = f"aliases[{index}]"
        if not is_name(entry.alias) or not is_name(entry.model) or "*" in entry.alias + entry.model:
            raise RateCardRefused(f"{where}: {entry.alias!r} and {entry.model!r} are not model names.")
        if entry.alias == entry.model:
            raise RateCardRefused(f"{where}: {entry.alias!r} names itself.")
        found.append(CardAlias(entry.alias, entry.model, *_interval(entry.effective_from, entry.effective_to, where)))
    ordered = sorted(found, key=lambda one: (one.alias, one.valid_from))
    for index, (earlier, later) in enumerate(pairwise(ordered)):
        if earlier.alias != later.alias:
            continue
        if earlier.valid_to is None and earlier.valid_from < later.valid_from:
            ordered[index] = replace(earlier, valid_to=later.valid_from)
        elif earlier.valid_to is None or earlier.valid_to > later.valid_from:
            raise RateCardRefused(f"The alias {later.alias} has two models from {later.valid_from:%Y-%m-%d}.")
    for alias in ordered:
        for rate in rates:
            if rate.model == alias.alias and overlap(alias.valid_from, alias.valid_to, rate.valid_from, rate.valid_to):
                raise RateCardRefused(f"{alias.alias} is an alias and has a rate of its own at the same time.")
    return ordered


def overlap(start: datetime, end: datetime | None, other_start: datetime, other_end: datetime | None) -> bool:
    """Do two intervals [start, end) share a moment? An end of None is never."""
    return (other_end is None or start < other_end) and (end is None or other_start < end)


def _price(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    try:
        return price(text)
    except ValueError as error:
        raise RateCardRefused(f"{where}: {error}") from error


def _interval(start: str | None, end: str | None, where: str) -> tuple[datetime, datetime | None]:
    valid_from = UNKNOWN_START if start is None else moment(start, where)
    valid_to = None if end is None else moment(end, where)
    if valid_to is not None and valid_to <= valid_from:
        raise RateCardRefused(f"{where}: it ends at {end}, which is not after its start.")
    return valid_from, valid_to


def moment(text: str, where: str) -> datetime:
    """A day is its midnight in UTC; an instant needs its zone."""
    try:
        if len(text) == len("2026-04-02"):
            return datetime.combine(date.fromisoformat(text), time(), UTC)
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise RateCardRefused(f"{where}: {text!r} is not a date.") from error
    if found.tzinfo is None:
        raise RateCardRefused(f"{where}: {text!r} has no zone.")
    return found.astimezone(UTC)


def _without_overlap(rates: Sequence[CardRate]) -> list[CardRate]:
    """In order of model and start; a row without an end ends where the next one of its model begins."""
    ordered = sorted(rates, key=lambda rate: (rate.model, rate.valid_from))
    for index, (earlier, later) in enumerate(pairwise(ordered)):
        if earlier.model != later.model:
            continue
        if earlier.valid_from == later.valid_from:
            raise RateCardRefused(f"{later.model} has two rates from {later.valid_from:%Y-%m-%d}.")
        if earlier.valid_to is None:
            ordered[index] = replace(earlier, valid_to=later.valid_from)
        elif earlier.valid_to > later.valid_from:
            raise RateCardRefused(f"{later.model} has a rate from {later.valid_from:%Y-%m-%d} while an earlier one still holds.")
    return ordered


def _expanded(
    rates: Iterable[CardRate], multipliers: Sequence[Multiplier], applied: dict[Multiplier, set[str]]
) -> Iterable[CardRate]:
    """Each row with the multiplier that holds for it, noted in `applied`; a row is cut where another multiplier takes over."""
    for rate in rates:
        fitting = sorted((one for one in multipliers if one.covers(rate.model)), key=lambda one: one.rank, reverse=True)
        edges = {moment for one in fitting for moment in (one.valid_from, one.valid_to) if moment is not None}
        inside = sorted(edge for edge in edges if rate.valid_from < edge and (rate.valid_to is None or edge < rate.valid_to))
        pieces: list[CardRate] = []
        for start, end in zip([rate.valid_from, *inside], [*inside, rate.valid_to], strict=True):
            holding = next((one for one in fitting if one.holds_at(start)), None)
            if holding is not None:
                applied[holding].add(rate.model)
            factor = STANDARD_THOUSANDTHS if holding is None else holding.thousandths
            if pieces and pieces[-1].fast_thousandths == factor:
                pieces[-1] = replace(pieces[-1], valid_to=end)
            else:
                pieces.append(replace(rate, valid_from=start, valid_to=end, fast_thousandths=factor))
        yield from pieces
