"""Operators' pages: plans, rates, subscriptions, and the usage log, which nobody can change."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from accounts.backoffice import OperatorAdmin
from accounts.models import User
from billing import admin_money as admin_money  # registers its pages
from billing import admin_rates as admin_rates  # registers its pages
from billing import credits, subscriptions
from billing.models import Plan, Subscription, SubscriptionPeriod, UsageHour, UsageRecord
from config.clock import utc_now


@admin.register(Plan)
class PlanAdmin(OperatorAdmin):
    """Rules hold on the next request of everyone who is on the plan; quota and price with each subscription's next period."""

    list_display = ("name", "slug", "reset_period", "credits_per_period", "price", "currency", "is_offered", "note")
    list_filter = ("reset_period", "overage_policy", "currency", "is_offered")
    search_fields = ("name", "slug", "note")
    editable = (
        "name", "note", "multiplier_thousandths", "base_quota", "quota_strategy", "charging_mode", "overage_policy", "overage_cap",
        "overage_price", "fast_allowed", "models_allowed", "is_offered", "price", "currency",
    )  # fmt: skip
    derived = ("credits_per_period",)

    def organizations_of(self, obj: Plan) -> list[int]:
        return list(obj.subscriptions.active().values_list("organization_id", flat=True))

    def get_form(
        self, request: HttpRequest, obj: Plan | None = None, change: bool = False, **options: Any
    ) -> "type[ModelForm[Plan]]":
        texts = {
            "overage_cap": "Micro-credits of a period on the invoice at most. Empty: none.",
            "base_quota": "Micro-credits of a period (1 credit is 1,000,000), in place of the multiplier.",
            "multiplier_thousandths": "Thousandths of the baseline of 1,000,000 credits. Both empty: the plan cannot be used.",
        }
        form: type[ModelForm[Plan]] = super().get_form(request, obj, change, help_texts=texts, **options)
        return form

    @admin.display(description="Credits per period")
    def credits_per_period(self, obj: Plan) -> str:
        return "not set" if obj.quota is None else credits.text(obj.quota)


@admin.register(Subscription)
class SubscriptionAdmin(OperatorAdmin):
    """A suspension holds on the next request that draws on it."""

    list_display = ("organization", "member", "plan", "next_plan", "anchor", "started_at", "suspended_at", "ended_at")
    list_filter = ("plan", ("ended_at", admin.EmptyFieldListFilter), ("suspended_at", admin.EmptyFieldListFilter))
    list_select_related = ("organization", "member__user", "plan", "next_plan")
    search_fields = ("organization__name", "organization__slug", "member__user__email")
    actions = ("suspend", "resume")

    @admin.action(description="Suspend")
    def suspend(self, request: HttpRequest, queryset: QuerySet[Subscription]) -> None:
        self.apply(request, queryset, "suspended", lambda row: subscriptions.suspend(row, by=_operator(request), now=utc_now()))

    @admin.action(description="Resume")
    def resume(self, request: HttpRequest, queryset: QuerySet[Subscription]) -> None:
        self.apply(request, queryset, "resumed", lambda row: subscriptions.resume(row, by=_operator(request)))


@admin.register(SubscriptionPeriod)
class SubscriptionPeriodAdmin(OperatorAdmin):
    list_display = ("subscription", "starts_at", "ends_at", "quota_credits", "used_credits", "requests", "tokens")
    list_filter = ("subscription__plan", "starts_at")
    list_select_related = ("subscription__organization", "subscription__member__user", "subscription__plan")
    search_fields = ("subscription__organization__slug", "subscription__organization__name")

    @admin.display(description="Quota, credits", ordering="quota")
    def quota_credits(self, obj: SubscriptionPeriod) -> str:
        return credits.text(obj.quota)

    @admin.display(description="Used from quota, credits", ordering="used_from_quota")
    def used_credits(self, obj: SubscriptionPeriod) -> str:
        return credits.text(obj.used_from_quota)


@admin.register(UsageRecord)
class UsageRecordAdmin(OperatorAdmin):
    """The log: read, never added to, changed or deleted. Searched by exact ids, for it may be long."""

    list_display = (
        "admitted_at", "request_id", "part", "organization", "member", "model_served", "status", "credits_text", "is_estimated",
    )  # fmt: skip
    list_filter = ("status", "is_estimated", "is_implausible", "tier_billed", "organization")
    list_select_related = ("organization", "member__user")
    search_fields = ("=request_id", "=response_id", "=organization__slug", "=member__user__email")
    ordering = ("-admitted_at", "-id")
    derived = ("credits_text",)

    @admin.display(description="Credits", ordering="credits")
    def credits_text(self, obj: UsageRecord) -> str:
        return credits.text(obj.credits)


@admin.register(UsageHour)
class UsageHourAdmin(OperatorAdmin):
    """Sums of the log by local hour, which every report reads; made anew by `rebuild_rollups`."""

    list_display = ("hour", "organization", "member_id", "model", "requests", "credits_text")
    list_filter = ("organization", "hour")
    list_select_related = ("organization",)
    search_fields = ("=organization__slug", "=model")
    ordering = ("-hour", "-id")
    derived = ("credits_text",)

    @admin.display(description="Credits", ordering="credits")
    def credits_text(self, obj: UsageHour) -> str:
        return credits.text(obj.credits)


def _operator(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
