"""Plans of the tests' own, and what the ledger says of a period."""

from decimal import Decimal
from typing import Any

from django.db.models import Case, F, Sum, When

from billing.models import LedgerEntry, Plan, SubscriptionPeriod
from tests.factories import unique

CREDIT = 1_000_000


def plan(
    quota: int = 100, *, reset: str = "monthly", price: str | None = None, overage: str = "block", name: str = "", **fields: Any
) -> Plan:
    """A plan of `quota` credits a period."""
    if overage == "invoice":
        fields.setdefault("overage_price", Decimal("0.05"))
    return Plan.objects.create(
        slug=unique("plan"),
        name=name or unique("Plan"),
        reset_period=reset,
        base_quota=quota * CREDIT,
        price=None if price is None else Decimal(price),
        overage_policy=overage,
        **fields,
    )


def in_ledger(period: SubscriptionPeriod, kind: str, side: str) -> int:
    """Micro-credits of a kind of entry of the period: what the account `side` was debited, less what it was credited."""
    signed = Case(When(debit=side, then=F("amount")), When(credit=side, then=-F("amount")), default=0)
    return int(LedgerEntry.objects.filter(period=period, kind=kind).aggregate(sum=Sum(signed))["sum"] or 0)


def allowance(period: SubscriptionPeriod) -> int:
    """What the ledger granted for the period, all corrections included."""
    return in_ledger(period, "allowance", "allowance")


def expired(period: SubscriptionPeriod) -> int:
    return in_ledger(period, "expiry", "expired")
