"""Operators' pages: pools and accounts. Tokens stay in the database: not even their ciphertexts are read."""

from collections.abc import Iterable

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from accounts.backoffice import OperatorAdmin
from accounts.models import Organization
from routing.models import ModelFallback, Pool, PoolAccount, SignInFlow


def _users_of(pool: Pool) -> Iterable[int]:
    """A shared pool (no organization) may be used by any."""
    if pool.organization_id is not None:
        return [pool.organization_id]
    return Organization.objects.values_list("pk", flat=True)


@admin.register(Pool)
class PoolAdmin(OperatorAdmin):
    list_display = ("name", "organization", "strategy", "created_at")
    list_filter = ("strategy", "organization")
    list_select_related = ("organization",)
    search_fields = ("name", "organization__slug", "organization__name")
    editable = ("name", "strategy", "safety_percent", "loyalty_percent", "base_short_credits", "base_weekly_credits")

    def organizations_of(self, obj: Pool) -> Iterable[int]:
        return _users_of(obj)


@admin.register(PoolAccount)
class PoolAccountAdmin(OperatorAdmin):
    list_display = ("label", "pool", "kind", "plan_type", "email", "status", "polled_at", "poll_outcome", "access_expires_at")
    list_filter = ("status", "kind", "plan_type", "pool__organization")
    list_select_related = ("pool__organization",)
    search_fields = ("label", "email", "=uuid", "pool__organization__slug")
    editable = (
        "label",
        "weight_thousandths",
        "concurrency_cap",
        "floor_percent",
        "priority",
        "models_served",
        "efforts_served",
        "tiers_served",
    )
    hidden = ("access_token", "refresh_token", "refresh_claim", "refresh_claimed_until", "withdrawal_digest")

    def organizations_of(self, obj: PoolAccount) -> Iterable[int]:
        return _users_of(obj.pool)

    def get_queryset(self, request: HttpRequest) -> QuerySet[PoolAccount]:
        rows: QuerySet[PoolAccount] = super().get_queryset(request)
        return rows.defer("access_token", "refresh_token")


@admin.register(SignInFlow)
class SignInFlowAdmin(OperatorAdmin):
    """Sign-ins that were begun and are not finished; what is secret of them is not read."""

    list_display = ("label", "organization", "kind", "started_by", "started_at", "expires_at")
    list_filter = ("kind", "organization")
    list_select_related = ("organization", "started_by")
    search_fields = ("label", "=uuid", "organization__slug", "started_by__email")
    hidden = ("sealed",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[SignInFlow]:
        rows: QuerySet[SignInFlow] = super().get_queryset(request)
        return rows.defer("sealed")


@admin.register(ModelFallback)
class ModelFallbackAdmin(OperatorAdmin):
    """Rules are set as a whole (`manage.py set_fallback`): what each row means depends on the others."""

    list_display = ("model", "position", "fallback", "organization")
    list_filter = ("model", "fallback", "organization")
    list_select_related = ("organization",)
    search_fields = ("model", "fallback", "organization__slug", "organization__name")
