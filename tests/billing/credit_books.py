"""A tenant with purchased credits, and what its books must always say."""

from datetime import UTC, datetime
from typing import Any

from django.db.models import Sum

from accounts.models import Organization
from billing import ledger, lots, subscriptions, usage
from billing.models import CreditLot, LedgerEntry, Plan, SubscriptionPeriod, UsageRecord
from tests import factories
from tests.billing.usage_events import event_for

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
FUNDS = ("from_quota", "from_purchased", "from_overage", "overdraft")
KINDS = {"from_quota": "usage_quota", "from_purchased": "usage_purchased", "from_overage": "overage", "overdraft": "overdraft"}


class Books:
    """An organization on a weekly plan since before NOW, with one key."""

    def __init__(self, plan: str = "plus") -> None:
        self.organization = factories.organization(plan=None)
        self.subscription = subscriptions.start(self.organization, Plan.objects.get(slug=plan), now=NOW)
        self.key = factories.api_key(factories.member(self.organization)).row

    @property
    def pk(self) -> int:
        return self.organization.pk

    def grant(self, amount: int, *, expires_at: datetime | None = None, now: datetime = NOW, **fields: Any) -> CreditLot:
        return ledger.grant(self.organization, amount, reason="A gift", actor=None, now=now, **{"expires_at": expires_at, **fields})

    def adjust(self, amount: int, **fields: Any) -> int:
        return ledger.adjust(
            self.organization, amount, **{"reason": "Put right", "actor": None, "now": NOW, "expires_at": None, **fields}
        )

    def use(self, *funds: int, request_id: str | None = None, part: int = 0, state: str = "S", at: datetime = NOW) -> str:
        """Books micro-credits from quota, purchased, overage, overdraft; the request's id."""
        split = (*funds, 0, 0, 0, 0)[:4]
        event = event_for(self.key, credits=sum(split), funds=split, request_id=request_id, part=part, state=state, admitted_at=at)  # type: ignore[arg-type]
        assert usage.record(self.pk, [event]) == 1
        return event.request_id

    def lots(self) -> list[tuple[int, int, int]]:
        """Amount, drawn, expired of each lot, in the order they were made."""
        return list(CreditLot.objects.filter(organization_id=self.pk).order_by("pk").values_list("amount", "drawn", "expired"))

    def entries(self, **filters: Any) -> list[tuple[str, str, str, int]]:
        rows = LedgerEntry.objects.for_organization(self.organization).filter(**filters).order_by("pk")
        return list(rows.values_list("kind", "debit", "credit", "amount"))

    def version(self) -> int:
        return Organization.objects.get(pk=self.pk).grant_version


def assert_books_agree(organization_id: int) -> None:
    """Ledger sums = log sums = period sums = lots; nothing is overdrawn."""
    log = UsageRecord.objects.filter(organization_id=organization_id).aggregate(**{name: Sum(name) for name in FUNDS})
    periods = SubscriptionPeriod.objects.filter(organization_id=organization_id).aggregate(
        from_quota=Sum("used_from_quota"),
        from_purchased=Sum("used_from_purchased"),
        from_overage=Sum("overage"),
        overdraft=Sum("overdraft"),
    )
    booked = {name: kind_sum(organization_id, kind) for name, kind in KINDS.items()}
    assert booked == {name: log[name] or 0 for name in FUNDS} == {name: periods[name] or 0 for name in FUNDS}

    balances = ledger.balances(organization_id)
    balance = ledger.balance(organization_id)
    own = list(CreditLot.objects.filter(organization_id=organization_id))
    left = sum(lot.amount - lot.drawn - lot.expired for lot in own) - lots.without_lot(organization_id)
    assert balances.get("credits", 0) == balance.left == left
    assert balance.granted == ledger.granted(organization_id).total == sum(lot.amount - lot.expired for lot in own)
    assert balance.drawn == booked["from_purchased"]
    assert balances.get("usage", 0) == sum(booked.values())
    sums = ledger.trial_balance(organization_id).values()
    assert sum(one.debits for one in sums) == sum(one.credits for one in sums)
    for lot in own:
        assert lot.drawn >= 0 <= lot.expired
        assert lot.drawn + lot.expired <= lot.amount
        assert kind_sum(organization_id, "usage_purchased", lot=lot) == lot.drawn


def kind_sum(organization_id: int, kind: str, **filters: Any) -> int:
    """What entries of a kind debited, less what they gave back."""
    debit = {"usage_quota": "usage", "usage_purchased": "usage", "overage": "usage", "overdraft": "usage"}[kind]
    total = 0
    rows = LedgerEntry.objects.filter(organization_id=organization_id, kind=kind, **filters).values_list("debit", "amount")
    for side, amount in rows:
        total += amount if side == debit else -amount
    return total
