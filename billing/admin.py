"""The admin's pages of plans, subscriptions, and the usage log, which nobody can change."""

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from accounts import administration
from accounts.backoffice import OF_ORGANIZATION, InstallAdmin, LogAdmin, OperatorAdmin, actor
from accounts.models import Member, User
from accounts.permissions import Action
from billing import admin_money as admin_money  # registers its pages
from billing import admin_monthly as admin_monthly  # registers its pages
from billing import admin_rates as admin_rates  # registers its pages
from billing import credits, plans, subscriptions
from billing.models import Plan, Subscription, SubscriptionPeriod, UsageHour, UsageRecord
from config.clock import utc_now


@admin.register(Plan)
class PlanAdmin(InstallAdmin):
    """Rules hold on the next request of everyone who is on the plan; quota and price with each subscription's next period.

    An owner sees what is offered to all, and what their organization is or was on: another's own plan has another's name.
    """

    seen_by = Action.SEE_MONEY
    member_hidden = ("note",)
    list_display = ("name", "slug", "reset_period", "credits_per_period", "price", "currency", "is_offered", "note")
    list_filter = ("reset_period", "overage_policy", "currency", "is_offered")
    search_fields = ("name", "slug", "note")
    editable = (
        "name", "note", "multiplier_thousandths", "base_quota", "quota_strategy", "charging_mode", "overage_policy", "overage_cap",
        "overage_price", "fast_allowed", "models_allowed", "is_offered", "price", "currency",
    )  # fmt: skip
    domain = tuple(name for name in editable if name in plans.FIELDS)
    derived = ("credits_per_period",)

    def change(self, obj: Plan, fields: dict[str, Any], *, by: User) -> None:
        plans.set_plan(obj.slug, fields, by=by)

    def rows_of(self, member: Member, rows: QuerySet[Plan]) -> QuerySet[Plan]:
        own = Subscription.objects.filter(organization_id=member.organization_id)
        return rows.filter(Q(is_offered=True) | Q(pk__in=own.values("plan_id")) | Q(pk__in=own.values("next_plan_id")))

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        return [name for name in self.search_fields if name not in self.member_hidden or administration.is_operator(request)]

    def organizations_of(self, obj: Plan) -> list[int]:
        return list(obj.subscriptions.active().values_list("organization_id", flat=True))

    def get_form(
        self, request: HttpRequest, obj: Plan | None = None, change: bool = False, **options: Any
    ) -> "type[ModelForm[Plan]]":
        texts = {
            "overage_cap": _("Micro-credits of a period on the invoice at most. Empty: none."),
            "base_quota": _("Micro-credits of a period (1 credit is 1,000,000), in place of the multiplier."),
            "multiplier_thousandths": _("Thousandths of the baseline of 1,000,000 credits. Both empty: the plan cannot be used."),
        }
        form: type[ModelForm[Plan]] = super().get_form(request, obj, change, help_texts=texts, **options)
        return form

    @admin.display(description=_("Credits per period"))
    def credits_per_period(self, obj: Plan) -> str:
        return gettext("not set") if obj.quota is None else credits.text(obj.quota)


@admin.register(Subscription)
class SubscriptionAdmin(OperatorAdmin):
    """A suspension holds on the next request that draws on it."""

    seen_by = Action.SEE_MONEY
    list_display = ("organization", "member", "plan", "next_plan", "anchor", "started_at", "suspended_at", "ended_at")
    list_filter = (
        "plan",
        ("ended_at", admin.EmptyFieldListFilter),
        ("suspended_at", admin.EmptyFieldListFilter),
        OF_ORGANIZATION,
    )
    list_select_related = ("organization", "member__user", "plan", "next_plan")
    search_fields = ("organization__name", "organization__slug", "member__user__email")
    actions = ("suspend", "resume")

    @admin.action(description=_("Suspend"))
    def suspend(self, request: HttpRequest, queryset: QuerySet[Subscription]) -> None:
        self.apply(request, queryset, "suspended", lambda row: subscriptions.suspend(row, by=actor(request), now=utc_now()))

    @admin.action(description=_("Resume"))
    def resume(self, request: HttpRequest, queryset: QuerySet[Subscription]) -> None:
        self.apply(request, queryset, "resumed", lambda row: subscriptions.resume(row, by=actor(request)))


@admin.register(SubscriptionPeriod)
class SubscriptionPeriodAdmin(OperatorAdmin):
    seen_by = Action.SEE_MONEY
    list_display = ("subscription", "starts_at", "ends_at", "quota_credits", "used_credits", "requests", "tokens")
    list_filter = ("subscription__plan", "starts_at", "ends_at", ("closed_at", admin.EmptyFieldListFilter), OF_ORGANIZATION)
    list_select_related = ("subscription__organization", "subscription__member__user", "subscription__plan")
    search_fields = ("subscription__organization__slug", "subscription__organization__name")

    @admin.display(description=_("Quota, credits"), ordering="quota")
    def quota_credits(self, obj: SubscriptionPeriod) -> str:
        return credits.text(obj.quota)

    @admin.display(description=_("Used from quota, credits"), ordering="used_from_quota")
    def used_credits(self, obj: SubscriptionPeriod) -> str:
        return credits.text(obj.used_from_quota)


@admin.register(UsageRecord)
class UsageRecordAdmin(LogAdmin):
    """The log: read, never added to, changed or deleted. What was asked and answered was never in it."""

    seen_by = Action.SEE_REQUESTS
    list_display = (
        "admitted_at", "request_id", "part", "organization", "member", "model_served", "status", "credits_text", "is_estimated",
    )  # fmt: skip
    list_filter = ("status", "is_implausible", "is_estimated", "admitted_at", OF_ORGANIZATION)
    list_select_related = ("organization", "member__user")
    search_fields = ("=request_id", "=response_id", "=organization__slug", "=member__user__email")
    search_help_text = _("A request’s or response’s whole id, an organization’s slug, or a member’s address.")
    newest_first = ("-admitted_at", "-id")
    words = ("request_id", "response_id")
    derived = ("credits_text",)

    @admin.display(description=_("Credits"))
    def credits_text(self, obj: UsageRecord) -> str:
        return credits.text(obj.credits)


@admin.register(UsageHour)
class UsageHourAdmin(LogAdmin):
    """Sums of the log by local hour, which every report reads; made anew by `rebuild_rollups`."""

    seen_by = Action.SEE_USAGE
    list_display = ("hour", "organization", "member_id", "model", "requests", "credits_text")
    list_filter = (OF_ORGANIZATION, "hour")
    list_select_related = ("organization",)
    search_fields = ("=organization__slug", "=model")
    search_help_text = _("A model’s whole name, an organization’s slug, or a member’s address.")
    newest_first = ("-hour", "-id")
    words = ("model",)
    derived = ("credits_text",)

    @admin.display(description=_("Credits"))
    def credits_text(self, obj: UsageHour) -> str:
        return credits.text(obj.credits)
