"""Imports rate cards: rows are added, an open row is closed when a later one begins, and nothing that is past changes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from django.db import connection, transaction

from accounts.models import Organization
from billing import cardfile, timelines
from billing.cardfile import Card, CardAlias, CardRate
from billing.errors import RateCardRefused
from billing.models import Rate, RateAlias, RateCard
from config import snapshot

PACKAGED = Path(__file__).resolve().parent / "data" / "codex-2026.json"
"""The card that a new install prices with; its figures' sources stand in the file."""

TERMS = (
    "input",
    "cached_input",
    "cache_write",
    "output",
    "fast_thousandths",
    "long_context_threshold",
    "long_context_input_thousandths",
    "long_context_output_thousandths",
)
"""What a row says about the price, in the words of `Rate`, `RateOverride` and `CardRate`; what never changes under it."""

_LOCK = 0x7261746573  # "rates"

R = TypeVar("R", Rate, RateAlias)


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did, or would do. `closed`: rows that got an end; `unpriced`: models of the card without rates."""

    added: int
    unchanged: int
    closed: int
    unpriced: tuple[str, ...]
    notices: tuple[str, ...]
    aliases: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """What a card brings to the stored rows. `closed`, `aliases_closed`: stored rows whose `valid_to` is set and not saved yet."""

    added: tuple[CardRate, ...]
    closed: tuple[Rate, ...]
    aliases: tuple[CardAlias, ...]
    aliases_closed: tuple[RateAlias, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.closed or self.aliases or self.aliases_closed)


def import_file(path: Path, *, dry_run: bool = False) -> Imported:
    """`import_card` for a file. Raises RateCardRefused, also for a file that cannot be read."""
    return import_card(cardfile.read(read_bytes(path), name=path.name), dry_run=dry_run)


def read_bytes(path: Path) -> bytes:
    """Raises RateCardRefused for a file that cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RateCardRefused(f"{path} cannot be read: {error.strerror or error}.") from error


def import_card(card: Card, *, dry_run: bool = False) -> Imported:
    """Adds the card's new rows, all or none; the same card again changes nothing. Every organization hears of a change.

    Raises RateCardRefused where a row would change a price that is there already, or lie over another row.
    """
    with transaction.atomic():
        changes = compare(card, *stored())
        if not dry_run:
            write(card, changes)
    return summary(card, changes)


def summary(card: Card, changes: Changes) -> Imported:
    return Imported(
        added=len(changes.added),
        unchanged=len(card.rates) - len(changes.added),
        closed=len(changes.closed),
        unpriced=tuple(sorted({rate.model for rate in card.rates if not rate.is_priced})),
        notices=card.notices,
        aliases=len(changes.aliases),
    )


def lock() -> None:
    """One change of the shared rows at a time: who comes second waits here, and then sees what the first one did."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


def stored() -> tuple[list[Rate], list[RateAlias]]:
    """All rows, locked until the caller's transaction ends."""
    lock()
    return list(Rate.objects.order_by("model", "valid_from")), list(RateAlias.objects.order_by("alias", "valid_from"))


def write(card: Card, changes: Changes) -> RateCard | None:
    """Saves the changes in the caller's transaction, which holds `stored`'s lock; None if there are none."""
    if not changes:
        return None
    row, _ = RateCard.objects.get_or_create(sha256=card.sha256, defaults={"name": card.name[:80], "sources": card.sources})
    Rate.objects.bulk_update(changes.closed, ["valid_to"])
    RateAlias.objects.bulk_update(changes.aliases_closed, ["valid_to"])
    Rate.objects.bulk_create([_row(rate, row) for rate in changes.added])
    RateAlias.objects.bulk_create(
        RateAlias(alias=one.alias, model=one.model, valid_from=one.valid_from, valid_to=one.valid_to, card=row)
        for one in changes.aliases
    )
    bump_everyone()
    return row


def bump_everyone() -> None:
    """The card is everybody's: each organization's next request is priced by what holds then."""
    snapshot.bump_all(Organization.objects.values_list("pk", flat=True))


def terms_of(row: Any) -> tuple[int | None, ...]:
    """The price of a `Rate`, `RateOverride` or `CardRate`, in the order of TERMS."""
    return tuple(getattr(row, name) for name in TERMS)


def _row(rate: CardRate, card: RateCard) -> Rate:
    terms = dict(zip(TERMS, terms_of(rate), strict=True))
    return Rate(card=card, model=rate.model, valid_from=rate.valid_from, valid_to=rate.valid_to, source=rate.source, **terms)


# ------------------------------------------------------------------------------------------------------- what is new


def compare(card: Card, rates: Iterable[Rate], aliases: Iterable[RateAlias]) -> Changes:
    """What the card adds to the stored rows, and which of these it closes. Raises RateCardRefused."""
    by_model = _grouped(rates, lambda row: row.model)
    by_alias = _grouped(aliases, lambda row: row.alias)
    for one in card.aliases:
        own = [row for row in by_model.get(one.alias, ()) if _meet(row, one)]
        if own:
            raise RateCardRefused(f"{one.alias} has a rate of its own and cannot be an alias at the same time.", model=one.alias)
    for rate in card.rates:
        if any(_meet(row, rate) for row in by_alias.get(rate.model, ())):
            raise RateCardRefused(f"{rate.model} is an alias and cannot have a rate at the same time.", model=rate.model)
    new, closed = _new(card.rates, by_model, lambda rate: rate.model, terms_of)
    new_aliases, aliases_closed = _new(card.aliases, by_alias, lambda one: one.alias, lambda one: (one.model,))
    return Changes(tuple(new), tuple(closed), tuple(new_aliases), tuple(aliases_closed))


C = TypeVar("C", CardRate, CardAlias)


def _new(
    wanted: Sequence[C], by_name: Mapping[str, list[R]], name_of: Callable[[C], str], said_by: Callable[[Any], tuple[object, ...]]
) -> tuple[list[C], list[R]]:
    new: list[C] = []
    closed: list[R] = []
    for one in wanted:
        name, rows = name_of(one), by_name.get(name_of(one), [])
        same = next((row for row in rows if row.valid_from == one.valid_from), None)
        if same is None:
            new.append(one)
        elif said_by(same) != said_by(one):
            raise RateCardRefused(
                f"{name} has other rates from {one.valid_from:%Y-%m-%d} already. The past is not repriced: "
                "a change is a row with a new date, and the earlier one ends there.",
                model=name,
            )
        elif one.valid_to is not None and same.valid_to is None:
            same.valid_to = one.valid_to
            closed.append(same)
        elif one.valid_to is not None and same.valid_to is not None and same.valid_to != one.valid_to:
            raise RateCardRefused(
                f"{name} from {one.valid_from:%Y-%m-%d} ends at {same.valid_to:%Y-%m-%d} already, not at {one.valid_to:%Y-%m-%d}.",
                model=name,
            )
        # Else it is there; an end that a later file brought stands.
    return [_fitted(one, name_of(one), by_name.get(name_of(one), []), closed) for one in new], closed


def _fitted(one: C, name: str, rows: list[R], closed: list[R]) -> C:
    """The new row among the stored ones of its name: closes the open row before it, ends where the next one begins."""
    try:
        ending, end = timelines.fit(rows, one.valid_from, one.valid_to)
    except timelines.Overlap as error:
        until = f", which holds until {error.row.valid_to:%Y-%m-%d}" if error.row.valid_to is not None else ""
        raise RateCardRefused(
            f"{name} from {one.valid_from:%Y-%m-%d} would lie over the row from {error.row.valid_from:%Y-%m-%d}{until}.", model=name
        ) from error
    if ending is not None:
        ending.valid_to = one.valid_from
        closed.append(ending)
    return one if end == one.valid_to else replace(one, valid_to=end)


def _grouped(rows: Iterable[R], name_of: Callable[[R], str]) -> dict[str, list[R]]:
    grouped: dict[str, list[R]] = {}
    for row in rows:
        grouped.setdefault(name_of(row), []).append(row)
    return grouped


def _meet(row: Any, other: Any) -> bool:
    return cardfile.overlap(row.valid_from, row.valid_to, other.valid_from, other.valid_to)
