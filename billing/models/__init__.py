"""Billing's tables, by noun."""

from billing.models.catalog import Plan, Rate, RateCard
from billing.models.subscriptions import Subscription, SubscriptionPeriod
from billing.models.usage import UsageRecord

__all__ = ["Plan", "Rate", "RateCard", "Subscription", "SubscriptionPeriod", "UsageRecord"]
