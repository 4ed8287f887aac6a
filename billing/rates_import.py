"""A rate card on its way in: what it would change is shown, somebody confirms exactly that, then it is applied, once.

A difference is JSON, kept with the import: prices are decimal text in credits per million tokens, moments ISO 8601.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import User
from billing import cardfile, credits, ratecards
from billing.cardfile import Card, CardRate
from billing.errors import RateCardRefused, RatesMoved
from billing.models import Rate, RateAlias, RateImport
from billing.ratecards import Changes, Imported
from billing.snapshots import FALLBACK_MODEL
from billing.timelines import whole_second
from config import scope

MOST_BYTES = 1_000_000

Difference = dict[str, Any]

_LABELS = {
    "input": "input",
    "cached_input": "cached input",
    "cache_write": "cache write",
    "output": "output",
    "fast_thousandths": "fast mode, times",
    "long_context_threshold": "long context above, input tokens",
    "long_context_input_thousandths": "long context input, times",
    "long_context_output_thousandths": "long context output, times",
}
# What a confirmation is about; the rest of a difference only explains it.
_CONFIRMED = ("added", "changed", "ended", "aliases")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`is_repeated`: this file was applied before, and nothing was done now."""

    imported: Imported
    is_repeated: bool


def preview(content: bytes, *, name: str, now: datetime) -> tuple[Imported, Difference]:
    """What a file would change now, written down nowhere. Raises RateCardRefused."""
    card = _read(content, name)
    with scope.everything(), transaction.atomic():
        difference, changes = _difference(card, now)
    return ratecards.summary(card, changes), difference


def propose(content: bytes, *, name: str, now: datetime, by: User | None = None) -> RateImport:
    """The import of a file, with what it would change now; changes no rate.

    The same file again is the same import, applied or not: `applied_at` says so. Raises RateCardRefused.
    """
    card = _read(content, name)
    with scope.everything(), transaction.atomic():
        difference = _difference(card, now)[0]
        row, is_new = RateImport.objects.get_or_create(
            sha256=card.sha256,
            defaults={"name": card.name[:80], "text": content.decode(), "difference": difference, "uploaded_by": by},
        )
        if not is_new and row.applied_at is None:
            row.difference = difference
            row.save(update_fields=["difference"])
    return row


def look(row: RateImport, *, now: datetime) -> RateImport:
    """The import with what it would change now; one that was applied keeps what it did change. Raises RateCardRefused."""
    return row if row.applied_at is not None else propose(row.text.encode(), name=row.name, now=now)


def apply(row: RateImport, *, seen: str, now: datetime, by: User | None = None) -> Outcome:
    """Does what the difference with the fingerprint `seen` says, once. Every organization's next request is priced by it.

    Raises RatesMoved if it would now do something else, RateCardRefused if it can no longer be done; then nothing is changed.
    """
    with scope.everything(), transaction.atomic():
        ratecards.lock()
        row = RateImport.objects.select_for_update(no_key=True).get(pk=row.pk)
        card = replace(cardfile.read(row.text.encode(), name=row.name), name=row.name)
        difference, changes = _difference(card, now)
        if row.applied_at is not None:
            return Outcome(ratecards.summary(card, Changes((), (), (), ())), is_repeated=True)
        if fingerprint(difference) != seen:
            raise RatesMoved(_("The rates have changed since this difference was shown. Look at it again, then confirm."))
        row.card = ratecards.write(card, changes)
        row.applied_at = now
        row.difference = difference
        row.save(update_fields=["card", "applied_at", "difference"])
        counts = {"added": len(changes.added), "closed": len(changes.closed), "aliases": len(changes.aliases)}
        audit.record(
            None,
            actor=by,
            action="ratecard.imported",
            object_type="rateimport",
            object_id=str(row.uuid),
            data={"name": row.name, "sha256": row.sha256, **counts},
        )
    return Outcome(ratecards.summary(card, changes), is_repeated=False)


def fallback_card(prices: Mapping[str, str | None], *, start: datetime) -> bytes:
    """A card with the one row that prices what has no rate; `prices` are decimal credits per million tokens, by column."""
    row = {
        "model": FALLBACK_MODEL,
        "effective_from": start.isoformat(),
        "credits_per_million": prices,
        "note": "set by the operator",
    }
    card = {"schema": cardfile.SCHEMA, "unit": "credits per 1,000,000 tokens", "is_partial": True, "rates": [row]}
    return json.dumps(card, indent=1).encode()


def _read(content: bytes, name: str) -> Card:
    if len(content) > MOST_BYTES:
        raise RateCardRefused(f"{name} is larger than {MOST_BYTES} bytes.")
    return cardfile.read(content, name=name)


def fingerprint(difference: Difference) -> str:
    """Names what a difference would do, so that a confirmation is of that and of nothing else."""
    confirmed = {name: difference[name] for name in _CONFIRMED}
    return hashlib.sha256(json.dumps(confirmed, sort_keys=True).encode()).hexdigest()


def is_empty(difference: Difference) -> bool:
    return not any(difference[name] for name in _CONFIRMED)


# --------------------------------------------------------------------------------------------------- the difference


def _difference(card: Card, now: datetime) -> tuple[Difference, Changes]:
    """Both, against the stored rows, which stay locked until the caller's transaction ends."""
    rates, aliases = ratecards.stored()
    changes = ratecards.compare(card, rates, aliases)
    return describe(card, changes, rates, aliases, now=now), changes


def describe(card: Card, changes: Changes, rates: Sequence[Rate], aliases: Sequence[RateAlias], *, now: datetime) -> Difference:
    """What the changes would do to the stored rows, of which `compare` has ended those that end; pure."""
    by_model: dict[str, list[Rate | CardRate]] = {}
    every: list[Rate | CardRate] = [*rates, *changes.added]
    for row in every:
        by_model.setdefault(row.model, []).append(row)
    added: list[dict[str, Any]] = []
    changed: list[dict[str, Any]] = []
    for rate in changes.added:
        earlier = _just_before(by_model[rate.model], rate.valid_from)
        entry = {"model": rate.model, **_interval(rate), "is_priced": rate.is_priced}
        if earlier is None:
            added.append({**entry, "terms": _terms(rate)})
        else:
            changed.append({**entry, "terms": _moved(earlier, rate)})
    starts = {(rate.model, rate.valid_from) for rate in changes.added}
    named = {rate.model for rate in card.rates}
    return {
        "added": added,
        "changed": changed,
        "ended": [
            {"model": row.model, "at": _iso(row.valid_to)} for row in changes.closed if (row.model, row.valid_to) not in starts
        ],
        "aliases": [
            {"alias": one.alias, "old": _alias_before(aliases, one.alias, one.valid_from), "new": one.model, **_interval(one)}
            for one in changes.aliases
        ]
        + [
            {"alias": row.alias, "old": row.model, "new": None, "from": _iso(row.valid_to), "to": None}
            for row in changes.aliases_closed
            if (row.alias, row.valid_to) not in {(one.alias, one.valid_from) for one in changes.aliases}
        ],
        "removed": [] if card.is_partial else sorted({row.model for row in rates if _holds(row, now)} - named - {FALLBACK_MODEL}),
        "unpriced": sorted({rate.model for rate in card.rates if not rate.is_priced}),
        "past": sorted({rate.model for rate in changes.added if rate.valid_from < whole_second(now)}),
        "unchanged": len(card.rates) - len(changes.added),
        "notices": list(card.notices),
        "expansions": [
            {"pattern": one.pattern, "multiplier": _multiplier(one.thousandths), "models": list(one.models)}
            for one in card.expansions
        ],
        "long_context": [
            {"model": rate.model, **_interval(rate), "terms": _terms(rate, "long_context_")}
            for rate in card.rates
            if rate.long_context_threshold is not None
        ],
        "has_long_context_facts": card.has_long_context_facts,
    }


def _just_before(rows: Iterable[Rate | CardRate], start: datetime) -> Rate | CardRate | None:
    """The row of the same model that holds until `start`."""
    return next((row for row in rows if row.valid_from < start and row.valid_to == start), None)


def _alias_before(aliases: Iterable[RateAlias], alias: str, start: datetime) -> str | None:
    return next((row.model for row in aliases if row.alias == alias and row.valid_to == start), None)


def _holds(row: Rate, at: datetime) -> bool:
    return row.valid_from <= at and (row.valid_to is None or at < row.valid_to)


def _terms(row: Any, beginning: str = "") -> list[dict[str, str]]:
    """What a row says; of the multipliers only those that do something."""
    plain = {"cache_write": None, "fast_thousandths": 1000, "long_context_threshold": None}
    said = [(name, getattr(row, name)) for name in ratecards.TERMS if name.startswith(beginning)]
    if row.long_context_threshold is None:
        said = [(name, value) for name, value in said if not name.startswith("long_context_")]
    return [{"name": _LABELS[name], "new": shown(name, value)} for name, value in said if name not in plain or value != plain[name]]


def _moved(old: Any, new: Any) -> list[dict[str, str]]:
    return [
        {"name": _LABELS[name], "old": shown(name, getattr(old, name)), "new": shown(name, getattr(new, name))}
        for name in ratecards.TERMS
        if getattr(old, name) != getattr(new, name)
    ]


def shown(name: str, value: int | None) -> str:
    """A term's value for people."""
    if value is None:
        return "as input" if name == "cache_write" else "none" if name == "long_context_threshold" else "unpriced"
    if name == "long_context_threshold":
        return str(value)
    return _multiplier(value) if name.endswith("_thousandths") else credits.text(value)


def _multiplier(thousandths: int) -> str:
    return credits.text(thousandths * 1000)


def _interval(row: Any) -> dict[str, str | None]:
    return {"from": _iso(row.valid_from), "to": _iso(row.valid_to)}


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


# ------------------------------------------------------------------------------------------------------ for a terminal


def lines(difference: Difference) -> list[str]:
    """The difference as sentences, what it would do first."""
    said: list[str] = []
    for one in difference["added"]:
        terms = ", ".join(f"{term['name']} {term['new']}" for term in one["terms"]) if one["is_priced"] else "unpriced: refused"
        said.append(f"+ {one['model']} {_when(one)}: {terms}")
    for one in difference["changed"]:
        terms = ", ".join(f"{term['name']} {term['old']} -> {term['new']}" for term in one["terms"]) or "the same rates"
        said.append(f"~ {one['model']} {_when(one)}: {terms}")
    said += [f"- {one['model']} ends at {one['at']}" for one in difference["ended"]]
    said += [
        f"~ alias {one['alias']} {_when(one)}: {one['old'] or 'nothing'} -> {one['new'] or 'nothing'}"
        for one in difference["aliases"]
    ]
    if not said:
        said.append("Nothing would change.")
    if difference["past"]:
        said.append(f"Begins in the past, requests already made keep their price: {', '.join(difference['past'])}.")
    if difference["removed"]:
        said.append(f"Not on this card, stays as it is: {', '.join(difference['removed'])}.")
    if difference["unpriced"]:
        said.append(f"Without a rate, refused or priced by the fallback: {', '.join(difference['unpriced'])}.")
    for one in difference["expansions"]:
        if one["pattern"] not in one["models"]:
            said.append(f"Fast mode {one['pattern']} times {one['multiplier']}: {', '.join(one['models']) or 'no model'}.")
    if difference["has_long_context_facts"] and not difference["long_context"]:
        said.append("The card's remarks on long contexts are about API prices; no rate of it has a threshold, so none is applied.")
    return [*said, *difference["notices"]]


def _when(entry: dict[str, Any]) -> str:
    return f"from {entry['from']}" + (f" to {entry['to']}" if entry["to"] else "")
