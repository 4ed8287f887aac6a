"""Imports rate cards: rows are added, an open row is closed when a later one begins, and nothing that is past changes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from django.db import transaction

from accounts.models import Organization
from billing import cardfile
from billing.cardfile import Card, CardRate
from billing.errors import RateCardRefused
from billing.models import Rate, RateCard
from config import snapshot

PACKAGED = Path(__file__).resolve().parent / "data" / "codex-2026.json"
"""The card that a new install prices with; its figures' sources stand in the file."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did, or would do. `closed`: rows that got an end; `unpriced`: models of the card without rates."""

    added: int
    unchanged: int
    closed: int
    unpriced: tuple[str, ...]
    notices: tuple[str, ...]


def import_file(path: Path, *, dry_run: bool = False) -> Imported:
    """`import_card` for a file. Raises RateCardRefused, also for a file that cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RateCardRefused(f"{path} cannot be read: {error.strerror or error}.") from error
    return import_card(cardfile.read(content, name=path.name), dry_run=dry_run)


def import_card(card: Card, *, dry_run: bool = False) -> Imported:
    """Adds the card's new rows, all or none; the same card again changes nothing. Every organization hears of a change.

    Raises RateCardRefused where a row would change a price that is there already, or lie over another row.
    """
    with transaction.atomic():
        # Two imports at once: the second one waits here and then sees what the first one added.
        stored = list(Rate.objects.select_for_update().order_by("model", "valid_from"))
        added, closed = _compare(card, stored)
        if not dry_run and (added or closed):
            row, _ = RateCard.objects.get_or_create(sha256=card.sha256, defaults={"name": card.name[:80], "sources": card.sources})
            Rate.objects.bulk_update(closed, ["valid_to"])
            Rate.objects.bulk_create([_row(rate, row) for rate in added])
            snapshot.bump_all(Organization.objects.values_list("pk", flat=True))
    return Imported(
        added=len(added),
        unchanged=len(card.rates) - len(added),
        closed=len(closed),
        unpriced=tuple(sorted({rate.model for rate in card.rates if not rate.is_priced})),
        notices=card.notices,
    )


def _row(rate: CardRate, card: RateCard) -> Rate:
    return Rate(
        card=card,
        model=rate.model,
        valid_from=rate.valid_from,
        valid_to=rate.valid_to,
        input=rate.input,
        cached_input=rate.cached_input,
        cache_write=rate.cache_write,
        output=rate.output,
        fast_thousandths=rate.fast_thousandths,
        source=rate.source,
    )


def _compare(card: Card, stored: Iterable[Rate]) -> tuple[list[CardRate], list[Rate]]:
    """What the card adds to the stored rows, and which of these it closes (their `valid_to` is set, unsaved)."""
    by_model: dict[str, list[Rate]] = {}
    for row in stored:
        by_model.setdefault(row.model, []).append(row)
    new: list[CardRate] = []
    closed: list[Rate] = []
    for rate in card.rates:
        same = next((row for row in by_model.get(rate.model, []) if row.valid_from == rate.valid_from), None)
        if same is None:
            new.append(rate)
        elif (same.input, same.cached_input, same.cache_write, same.output, same.fast_thousandths) != rate.prices:
            raise RateCardRefused(
                f"{rate.model} has other rates from {rate.valid_from:%Y-%m-%d} already. The past is not repriced: "
                "a change is a row with a new date, and the earlier one ends there.",
                model=rate.model,
            )
        elif rate.valid_to is not None and same.valid_to is None:
            same.valid_to = rate.valid_to
            closed.append(same)
        elif rate.valid_to is not None and same.valid_to is not None and same.valid_to != rate.valid_to:
            raise RateCardRefused(
                f"{rate.model} from {rate.valid_from:%Y-%m-%d} ends at {same.valid_to:%Y-%m-%d} already, not at "
                f"{rate.valid_to:%Y-%m-%d}.",
                model=rate.model,
            )
        # Else it is there; an end that a later file brought stands.
    return [_fitted(rate, by_model.get(rate.model, []), closed) for rate in new], closed


def _fitted(rate: CardRate, rows: list[Rate], closed: list[Rate]) -> CardRate:
    """The new row among the stored ones of its model: closes the open row before it, ends where the next one begins."""
    for row in rows:
        if row.valid_from < rate.valid_from:
            if row.valid_to is None:
                row.valid_to = rate.valid_from
                closed.append(row)
            elif row.valid_to > rate.valid_from:
                raise RateCardRefused(
                    f"{rate.model} from {rate.valid_from:%Y-%m-%d} would lie over the row from {row.valid_from:%Y-%m-%d}, which "
                    f"holds until {row.valid_to:%Y-%m-%d}.",
                    model=rate.model,
                )
        elif rate.valid_to is None:
            return replace(rate, valid_to=row.valid_from)
        elif rate.valid_to > row.valid_from:
            raise RateCardRefused(
                f"{rate.model} from {rate.valid_from:%Y-%m-%d} would lie over the row from {row.valid_from:%Y-%m-%d}.",
                model=rate.model,
            )
    return rate
