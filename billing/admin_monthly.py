"""The admin's pages of the monthly export. It is set up on the organization's own page."""

from django.contrib import admin

from accounts.backoffice import OF_ORGANIZATION, OperatorAdmin
from accounts.permissions import Action
from billing.models import MonthlyExport, MonthlySend


@admin.register(MonthlyExport)
class MonthlyExportAdmin(OperatorAdmin):
    seen_by = Action.SEE_MONEY
    list_display = ("organization", "is_on", "since", "changed_at")
    list_filter = ("is_on", OF_ORGANIZATION, "changed_at")
    list_select_related = ("organization",)
    search_fields = ("=organization__slug", "organization__name")


@admin.register(MonthlySend)
class MonthlySendAdmin(OperatorAdmin):
    seen_by = Action.SEE_MONEY
    list_display = ("month", "organization", "state", "tries", "ended_at", "error")
    list_filter = ("state", OF_ORGANIZATION, "month")
    list_select_related = ("organization",)
    search_fields = ("=uuid", "=organization__slug")
    ordering = ("-id",)
