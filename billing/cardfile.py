"""A rate card file, read: lists split, patterns expanded, text made exact integers. Pure; `billing.ratecards` imports the result.

The form is `ratecard-facts/1`, as in `billing/data/codex-2026.json`: credits per million tokens as decimal strings.
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

    @property
    def is_priced(self) -> bool:
        return self.input is not None

    @property
    def prices(self) -> tuple[int | None, ...]:
        """What must not change under the same model and start."""
        return (self.input, self.cached_input, self.cache_write, self.output, self.fast_thousandths)


@dataclass(frozen=True, slots=True)
class Card:
    """A file: its rows by model and start, what was left out, and where its figures come from."""

    name: str
    sha256: str
    rates: tuple[CardRate, ...]
    notices: tuple[str, ...]
    sources: dict[str, Any]


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


class _Rate(msgspec.Struct, frozen=True):
    model: str
    credits_per_million: _Prices
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


class _File(msgspec.Struct, frozen=True):
    schema: str
    unit: str
    rates: list[_Rate]
    fast_multiplier: list[_Multiplier] = []
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
    return Card(
        name=f"{name} ({file.compiled})" if file.compiled else name,
        sha256=hashlib.sha256(content).hexdigest(),
        rates=tuple(_expanded(_without_overlap(rates), multipliers)),
        notices=tuple(notices),
        sources=dict(file.sources),
    )


def _names(listed: str, where: str) -> list[str]:
    names = [name.strip() for name in listed.split(",")]
    for name in names:
        if not name or len(name) > _LONGEST_MODEL or any(character.isspace() for character in name) or "*" in name[:-1]:
            raise RateCardRefused(f"{where}: {listed!r} is not a model name or a list of them.")
    return names


def _rate(row: _Rate, model: str, where: str) -> CardRate:
    prices = row.credits_per_million
    given = [prices.input, prices.cached_input, prices.output]
    if any(price is None for price in given) and any(price is not None for price in (*given, prices.cache_write)):
        raise RateCardRefused(f"{where}: input, cached_input and output are given all together or not at all.")
    valid_from, valid_to = _interval(row.effective_from, row.effective_to, where)
    return CardRate(
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
    )


def _multipliers(entry: _Multiplier, where: str) -> Iterable[Multiplier]:
    valid_from, valid_to = _interval(entry.effective_from, entry.effective_to, where)
    whole, _, part = entry.multiplier.partition(".")
    digits = whole + part
    if not digits.isascii() or not digits.isdigit() or len(part) > 3 or len(whole) > 4:
        raise RateCardRefused(f"{where}: the multiplier {entry.multiplier!r} is not a decimal number with up to 3 places.")
    thousandths = int(whole or "0") * 1000 + int(part.ljust(3, "0"))
    for name in _names(entry.model, where):
        yield Multiplier(name, valid_from, valid_to, thousandths)


def _price(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    try:
        price = credits.parse(text)
    except ValueError as error:
        raise RateCardRefused(f"{where}: {error}") from error
    if price < 0:
        raise RateCardRefused(f"{where}: the rate {text!r} is negative.")
    return price


def _interval(start: str | None, end: str | None, where: str) -> tuple[datetime, datetime | None]:
    valid_from = UNKNOWN_START if start is None else _moment(start, where)
    valid_to = None if end is None else _moment(end, where)
    if valid_to is not None and valid_to <= valid_from:
        raise RateCardRefused(f"{where}: it ends at {end}, which is not after its start.")
    return valid_from, valid_to


def _moment(text: str, where: str) -> datetime:
    """A day is its midnight in UTC; an instant needs its zone."""
    try:
        if len(text) == len("2026-04-02"):
            return datetime.combine(date.fromisoformat(text), time(), UTC)
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise RateCardRefused(f"{where}: {text!r} is not a date.") from error
    if moment.tzinfo is None:
        raise RateCardRefused(f"{where}: {text!r} has no zone.")
    return moment.astimezone(UTC)


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


def _expanded(rates: Iterable[CardRate], multipliers: Sequence[Multiplier]) -> Iterable[CardRate]:
    """Each row with the multiplier that holds for it; a row is cut where another multiplier takes over."""
    for rate in rates:
        fitting = sorted((one for one in multipliers if one.covers(rate.model)), key=lambda one: one.rank, reverse=True)
        edges = {moment for one in fitting for moment in (one.valid_from, one.valid_to) if moment is not None}
        inside = sorted(edge for edge in edges if rate.valid_from < edge and (rate.valid_to is None or edge < rate.valid_to))
        pieces: list[CardRate] = []
        for start, end in zip([rate.valid_from, *inside], [*inside, rate.valid_to], strict=True):
            thousandths = next((one.thousandths for one in fitting if one.holds_at(start)), STANDARD_THOUSANDTHS)
            if pieces and pieces[-1].fast_thousandths == thousandths:
                pieces[-1] = replace(pieces[-1], valid_to=end)
            else:
                pieces.append(replace(rate, valid_from=start, valid_to=end, fast_thousandths=thousandths))
        yield from pieces
