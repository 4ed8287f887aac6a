"""Lots: which credits a draw takes, and to which it is given back. Knows rows, not why they move: `billing.ledger` does.

A draw takes the lot that expires first, then the oldest; lots without an expiry come last. What no lot can cover is drawn all the
same, without a lot: the engine allowed it before credits were taken back, so it is owed. The next lot covers it first.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import F, Sum

from billing.models import CreditLot, LedgerEntry

DRAWN = LedgerEntry.Kind.USAGE_PURCHASED.value

MOVE = """
    UPDATE billing_creditlot AS lot SET drawn = lot.drawn + moved.drawn, expired = lot.expired + moved.expired
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS moved (id, drawn, expired)
    WHERE lot.id = moved.id
"""


@dataclass(slots=True, eq=False)
class Lot:
    """A lot as it stands while the ledger's lock is held. Amounts are micro-credits."""

    lot_id: int
    uuid: str
    left: int
    expires_at: datetime | None
    created_at: datetime
    drawn: int = 0
    """Moved since it was read, like `expired`."""
    expired: int = 0

    @property
    def order(self) -> tuple[bool, float, datetime, int]:
        expires = 0.0 if self.expires_at is None else self.expires_at.timestamp()
        return (self.expires_at is None, expires, self.created_at, self.lot_id)


Draw = tuple[Lot | None, int]
"""A lot (None: none was left) and what is drawn from it; negative where it is given back."""


@dataclass(slots=True)
class Shelf:
    """An organization's lots that have something left, the first to be drawn first; `save` writes what moved.

    `owed` is what was drawn without a lot; negative: given back without one, and the first to be drawn again.
    """

    organization_id: int
    lots: list[Lot]
    owed: int
    draws: dict[str, list[Draw]] = field(default_factory=dict)
    """By request: what it drew, in that order, for `give_back`."""

    @property
    def left(self) -> int:
        """Negative: more was drawn than lots held."""
        return sum(lot.left for lot in self.lots) - self.owed

    def draw(self, amount: int, request_id: str = "") -> list[Draw]:
        """Takes `amount` (above 0); the parts sum to it, at most one per lot."""
        taken: list[Draw] = []
        without = min(amount, max(0, -self.owed))
        rest = amount - without
        for lot in self.lots:
            if not rest:
                break
            if part := min(rest, lot.left):
                _move(lot, part)
                taken.append((lot, part))
                rest -= part
        if without + rest:
            self.owed += without + rest
            taken.append((None, without + rest))
        self.draws.setdefault(request_id, []).extend(taken)
        return taken

    def give_back(self, amount: int, request_id: str) -> list[Draw]:
        """Returns `amount` (above 0) to what the request drew from, the last drawn first; parts are negative.

        More than it drew (an amendment that came before its request) is given back without a lot.
        """
        drawn: dict[Lot | None, int] = defaultdict(int)
        for lot, part in self.draws.get(request_id, []):
            drawn[lot] += part
        given: list[Draw] = []
        rest = amount
        for lot in sorted(drawn, key=lambda lot: (lot is None, () if lot is None else lot.order), reverse=True):
            if part := min(rest, drawn[lot]):
                given.append((lot, -part))
                rest -= part
        if rest:
            without = sum(part for lot, part in given if lot is None) - rest
            given = [(lot, part) for lot, part in given if lot is not None]
            given.append((None, without))
        for lot, part in given:
            if lot is None:
                self.owed += part
                continue
            _move(lot, part)
            if lot not in self.lots:
                self.lots.append(lot)
        self.lots.sort(key=lambda lot: lot.order)
        self.draws.setdefault(request_id, []).extend(given)
        return given

    def take_away(self, amount: int, only: int | None = None) -> list[Draw]:
        """Takes back up to `amount` of what is left, of one lot or in drawing order; the parts taken."""
        taken: list[Draw] = []
        rest = amount
        for lot in self.lots:
            if only is not None and lot.lot_id != only:
                continue
            if part := min(rest, lot.left):
                lot.left -= part
                lot.expired += part
                taken.append((lot, part))
                rest -= part
        return taken

    def save(self) -> None:
        """One statement for all lots that moved; none if none did."""
        seen = {id(lot): lot for lot in self.lots}
        for parts in self.draws.values():
            seen.update({id(lot): lot for lot, _ in parts if lot is not None})
        moved = sorted((lot.lot_id, lot.drawn, lot.expired) for lot in seen.values() if lot.drawn or lot.expired)
        if not moved:
            return
        with connection.cursor() as cursor:
            cursor.execute(MOVE, [list(column) for column in zip(*moved, strict=True)])
        for lot in seen.values():
            lot.drawn = lot.expired = 0


def _move(lot: Lot, amount: int) -> None:
    lot.left -= amount
    lot.drawn += amount


def shelf(organization_id: int, *, requests: Iterable[str] = ()) -> Shelf:
    """The lots with something left, and those that `requests` drew from; two or three queries. Who moves them holds the lock."""
    wanted = sorted(set(requests))
    drawn = _drawn_by(organization_id, wanted) if wanted else []
    concerned = {lot_id for _, lot_id, _ in drawn if lot_id is not None}
    rows = CreditLot.objects.filter(organization_id=organization_id)
    with_something = rows.filter(amount__gt=F("drawn") + F("expired"))
    found = (with_something | rows.filter(pk__in=concerned)) if concerned else with_something
    lots = {row.pk: _lot(row) for row in found.order_by("pk")}
    made = Shelf(organization_id, sorted(lots.values(), key=lambda lot: lot.order), without_lot(organization_id))
    for request_id, lot_id, amount in drawn:
        made.draws.setdefault(request_id, []).append((None if lot_id is None else lots[lot_id], amount))
    return made


def _lot(row: CreditLot) -> Lot:
    return Lot(row.pk, str(row.uuid), row.amount - row.drawn - row.expired, row.expires_at, row.created_at)


def _drawn_by(organization_id: int, requests: list[str]) -> list[tuple[str, int | None, int]]:
    """Request, lot, amount (negative: given back), in the order they were booked."""
    rows: Iterable[Any] = (
        LedgerEntry.objects.filter(organization_id=organization_id, kind=DRAWN, request_id__in=requests)
        .order_by("id")
        .values_list("request_id", "lot_id", "amount", "debit")
    )
    usage = LedgerEntry.Account.USAGE.value
    return [(request_id, lot_id, amount if debit == usage else -amount) for request_id, lot_id, amount, debit in rows]


def without_lot(organization_id: int) -> int:
    """What was drawn without a lot and is not covered yet; negative: given back without one."""
    rows = LedgerEntry.objects.filter(organization_id=organization_id, kind=DRAWN, lot=None)
    sums = dict(rows.values_list("debit").annotate(total=Sum("amount")).order_by())
    return int(sums.get(LedgerEntry.Account.USAGE.value, 0)) - int(sums.get(LedgerEntry.Account.CREDITS.value, 0))


def organizations_due(before: datetime) -> list[int]:
    """Organizations with lots that expire at `before` or earlier and have something left."""
    rows = CreditLot.objects.filter(expires_at__lte=before, amount__gt=F("drawn") + F("expired"))
    return list(rows.order_by("organization_id").values_list("organization_id", flat=True).distinct())


def due(organization_id: int, before: datetime) -> list[CreditLot]:
    """Lots that expire at `before` or earlier and have something left, the first to expire first."""
    rows = CreditLot.objects.filter(organization_id=organization_id, expires_at__lte=before, amount__gt=F("drawn") + F("expired"))
    return list(rows.order_by("expires_at", "pk"))
