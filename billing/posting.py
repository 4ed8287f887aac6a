"""How an entry gets into the ledger: once, under its organization's lock, in one statement."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from django.db import connection
from django.db.models import Q, Sum

from billing.errors import ReferenceReused
from billing.models import LedgerEntry
from billing.models.ledger import SIDES

LOCK = 0x77656975
"""First key of the advisory lock; the second is the organization."""

Kind = LedgerEntry.Kind

_COLUMNS = {
    "kind": "varchar",
    "debit": "varchar",
    "credit": "varchar",
    "amount": "bigint",
    "reference": "varchar",
    "occurred_at": "timestamptz",
    "period_id": "bigint",
    "lot_id": "bigint",
    "member_id": "bigint",
    "request_id": "varchar",
    "corrects_id": "bigint",
    "actor_id": "bigint",
    "reason": "varchar",
}
_NAMES = ", ".join(_COLUMNS)
INSERT = f"""
    INSERT INTO billing_ledgerentry (uuid, organization_id, created_at, {_NAMES})
    SELECT gen_random_uuid(), %s, now(), {_NAMES}
    FROM json_to_recordset(%s::json) AS entry ({", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())})
    ON CONFLICT (organization_id, reference) DO NOTHING
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Entry:
    """One movement to post. `amount` is micro-credits; negative swaps the sides, 0 is left out.

    `debit` and `credit` follow from the kind when they are empty. `occurred_at` is when it happened, not when it was written.
    """

    kind: str
    amount: int
    reference: str
    occurred_at: datetime
    period_id: int | None = None
    lot_id: int | None = None
    member_id: int | None = None
    request_id: str = ""
    corrects_id: int | None = None
    actor_id: int | None = None
    reason: str = ""
    debit: str = ""
    credit: str = ""

    def columns(self) -> dict[str, Any]:
        """The row, its amount above 0."""
        debit, credit = (self.debit, self.credit) if self.debit else SIDES[self.kind]
        if self.amount < 0:
            debit, credit = credit, debit
        return {
            "kind": self.kind,
            "debit": debit,
            "credit": credit,
            "amount": abs(self.amount),
            "reference": self.reference,
            "occurred_at": self.occurred_at,
            "period_id": self.period_id,
            "lot_id": self.lot_id,
            "member_id": self.member_id,
            "request_id": self.request_id,
            "corrects_id": self.corrects_id,
            "actor_id": self.actor_id,
            "reason": self.reason,
        }


def lock(organization_id: int) -> None:
    """One writer at a time for an organization's money, until the caller's transaction ends. May be taken again."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [LOCK, organization_id % 2**31])


def post(organization_id: int, entries: Sequence[Entry]) -> int:
    """Adds the entries whose reference is not there yet; how many were added. One statement, in the caller's transaction.

    Raises ReferenceReused where a reference stands for something else, and IntegrityError for what the constraints refuse.
    """
    rows = [entry.columns() for entry in entries if entry.amount]
    if not rows:
        return 0
    lock(organization_id)
    added = insert(organization_id, rows)
    if added < len(rows):
        _check_repeated(organization_id, rows)
    return added


def insert(organization_id: int, rows: Sequence[dict[str, Any]]) -> int:
    """Adds rows as `Entry.columns` makes them, as far as their references are new; how many. The caller holds the lock."""
    payload = msgspec.json.encode(rows)
    with connection.cursor() as cursor:
        cursor.execute(INSERT, [organization_id, payload.decode()])
        return int(cursor.rowcount)


def _check_repeated(organization_id: int, rows: Sequence[dict[str, Any]]) -> None:
    stored = LedgerEntry.objects.filter(organization_id=organization_id, reference__in=[row["reference"] for row in rows])
    by_reference = {entry.reference: entry for entry in stored}
    for row in rows:
        entry = by_reference[row["reference"]]
        if (entry.kind, entry.debit, entry.credit, entry.amount) != (row["kind"], row["debit"], row["credit"], row["amount"]):
            raise ReferenceReused(f"The reference {row['reference']} stands for another entry.", reference=row["reference"])


def check_taken(organization_id: int, amount: int, reference: str, *, at_most: bool) -> None:
    """A repeat says the same again. Raises ReferenceReused where the reference stands for another entry or amount."""
    entries = LedgerEntry.objects.filter(organization_id=organization_id, kind=Kind.ADJUSTMENT, credit=LedgerEntry.Account.CREDITS)
    taken = entries.filter(Q(reference=reference) | Q(reference__startswith=f"{reference}:")).aggregate(sum=Sum("amount"))["sum"]
    if taken is None or (taken != amount and not at_most):
        raise ReferenceReused(f"The reference {reference} stands for another entry.", reference=reference)
