"""Operators' pages: limits, and what the drain keeps."""

from django.contrib import admin

from accounts.backoffice import OperatorAdmin
from quotas.models import DeadLetter, Limit, UsageDrain


@admin.register(Limit)
class LimitAdmin(OperatorAdmin):
    """Limits are set by their organization's leads, or by `set_limit`; here they are looked at."""

    list_display = ("organization", "scope", "team", "member", "key", "metric", "window", "amount")
    list_filter = ("scope", "metric", "window", "organization")
    list_select_related = ("organization", "team", "member__user", "key")
    search_fields = ("organization__slug", "team__name", "member__user__email", "=key__public_id")


@admin.register(UsageDrain)
class UsageDrainAdmin(OperatorAdmin):
    list_display = ("organization", "drained_id", "drained_at")
    list_filter = ("drained_at",)
    list_select_related = ("organization",)
    search_fields = ("organization__slug",)


@admin.register(DeadLetter)
class DeadLetterAdmin(OperatorAdmin):
    """Entries that could not be written; the raw entry is for the one who repairs it, in the database."""

    list_display = ("created_at", "organization_id", "stream_id", "error")
    list_filter = ("created_at",)
    search_fields = ("=stream_id", "error")
    hidden = ("raw",)
