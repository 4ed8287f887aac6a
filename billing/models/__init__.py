"""Billing's tables, by noun."""

from billing.models.catalog import Plan, Rate, RateAlias, RateCard, RateImport, RateOverride
from billing.models.invoices import Invoice, InvoiceLine, InvoiceSeries
from billing.models.ledger import CreditLot, LedgerEntry, Purchase
from billing.models.monthly import MonthlyExport, MonthlySend
from billing.models.subscriptions import Subscription, SubscriptionPeriod
from billing.models.usage import UsageHour, UsageRecord

__all__ = [
    "CreditLot",
    "Invoice",
    "InvoiceLine",
    "InvoiceSeries",
    "LedgerEntry",
    "MonthlyExport",
    "MonthlySend",
    "Plan",
    "Purchase",
    "Rate",
    "RateAlias",
    "RateCard",
    "RateImport",
    "RateOverride",
    "Subscription",
    "SubscriptionPeriod",
    "UsageHour",
    "UsageRecord",
]
