"""What the ledger comes to: balances of accounts, of granted and bought credits."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from billing import lots


@dataclass(frozen=True, slots=True)
class Granted:
    """What requests may use of granted and bought credits in all, used or not: absolute, and the version that says so."""

    version: int
    total: int


@dataclass(frozen=True, slots=True)
class Balance:
    """Granted and bought credits, in micro-credits. `left` = granted - drawn; negative: drawn before it was taken back."""

    granted: int
    drawn: int
    expires_at: datetime | None
    """When the next part of what is left expires, and how much of it; None and 0 if nothing does."""
    expiring: int

    @property
    def left(self) -> int:
        return self.granted - self.drawn


@dataclass(frozen=True, slots=True)
class Sums:
    """One account's two sides."""

    debits: int
    credits: int

    @property
    def balance(self) -> int:
        return self.debits - self.credits


GRANTED = """
    SELECT id, grant_version, (
        SELECT COALESCE(SUM(amount - expired), 0) FROM billing_creditlot WHERE organization_id = organization.id
    ) FROM accounts_organization AS organization WHERE id = ANY(%s)
"""
TRIAL_BALANCE = """
    SELECT account, SUM(debited), SUM(credited) FROM (
        SELECT debit AS account, amount AS debited, 0 AS credited FROM billing_ledgerentry
        WHERE organization_id = %(organization)s AND (%(period)s::bigint IS NULL OR period_id = %(period)s)
        UNION ALL
        SELECT credit, 0, amount FROM billing_ledgerentry
        WHERE organization_id = %(organization)s AND (%(period)s::bigint IS NULL OR period_id = %(period)s)
    ) AS side GROUP BY account ORDER BY account
"""


def granted(organization_id: int) -> Granted:
    """What counters are told. Raises LookupError for an unknown organization."""
    found = granted_of([organization_id]).get(organization_id)
    if found is None:
        raise LookupError(f"organization {organization_id} does not exist")
    return found


def granted_of(organization_ids: Sequence[int]) -> dict[int, Granted]:
    """By organization; one statement, so that version and total belong together."""
    with connection.cursor() as cursor:
        cursor.execute(GRANTED, [list(organization_ids)])
        return {int(pk): Granted(version=int(version), total=int(total)) for pk, version, total in cursor.fetchall()}


def balance(organization_id: int) -> Balance:
    """From the lots: a few queries, however long the ledger is."""
    shelf = lots.shelf(organization_id)
    total = granted(organization_id).total
    expiring = [lot for lot in shelf.lots if lot.expires_at is not None]
    first = expiring[0].expires_at if expiring else None
    return Balance(
        granted=total,
        drawn=total - shelf.left,
        expires_at=first,
        expiring=sum(lot.left for lot in expiring if lot.expires_at == first),
    )


def spent(organization_id: int) -> int:
    """What requests drew of granted and bought credits, of all time: what a rebuild of the counters starts from."""
    return balance(organization_id).drawn


def trial_balance(organization_id: int, *, period_id: int | None = None) -> dict[str, Sums]:
    """Both sides of every account that moved, of all time or of one period. Their debits and credits sum to the same."""
    with connection.cursor() as cursor:
        cursor.execute(TRIAL_BALANCE, {"organization": organization_id, "period": period_id})
        return {str(account): Sums(int(debits), int(credits)) for account, debits, credits in cursor.fetchall()}


def balances(organization_id: int, *, period_id: int | None = None) -> dict[str, int]:
    """Debits less credits of every account; they sum to 0."""
    return {account: sums.balance for account, sums in trial_balance(organization_id, period_id=period_id).items()}
