"""Operators' pages: limits, alerts, and what the drain keeps."""

from django.contrib import admin

from accounts.backoffice import OperatorAdmin
from quotas.models import (
    Alert,
    AlertDelivery,
    AlertRule,
    DeadLetter,
    Drift,
    Limit,
    LimitBoost,
    LimitRequest,
    ModelFilter,
    Refusal,
    UsageDrain,
    WebhookEndpoint,
)


@admin.register(Limit)
class LimitAdmin(OperatorAdmin):
    """Limits are set by their organization's leads, or by `set_limit`; here they are looked at."""

    list_display = ("organization", "scope", "team", "member", "key", "metric", "window", "amount")
    list_filter = ("scope", "metric", "window", "organization")
    list_select_related = ("organization", "team", "member__user", "key")
    search_fields = ("organization__slug", "team__name", "member__user__email", "=key__public_id")


@admin.register(ModelFilter)
class ModelFilterAdmin(OperatorAdmin):
    list_display = ("name", "organization", "model_names", "created_at", "filled_at")
    list_filter = (("filled_at", admin.EmptyFieldListFilter), "organization")
    list_select_related = ("organization",)
    search_fields = ("name", "organization__slug")


@admin.register(LimitRequest)
class LimitRequestAdmin(OperatorAdmin):
    """A member's request is decided by a lead or owner of the organization."""

    list_display = ("created_at", "organization", "member", "metric", "window", "asked_amount", "until", "status", "decided_at")
    list_filter = ("status", "metric", "organization")
    list_select_related = ("organization", "member__user")
    search_fields = ("organization__slug", "member__user__email", "note")


@admin.register(LimitBoost)
class LimitBoostAdmin(OperatorAdmin):
    list_display = ("limit", "organization", "extra", "starts_at", "ends_at", "granted_by", "revoked_at")
    list_filter = (("revoked_at", admin.EmptyFieldListFilter), "organization")
    list_select_related = ("organization", "limit", "granted_by")
    search_fields = ("organization__slug", "reason")


@admin.register(Refusal)
class RefusalAdmin(OperatorAdmin):
    """Why requests were refused, by key, limit and minute."""

    list_display = ("last_at", "organization", "member_id", "key_id", "code", "scope", "metric", "window", "count")
    list_filter = ("code", "scope", "metric", "organization")
    list_select_related = ("organization",)
    search_fields = ("organization__slug", "=model", "message")


@admin.register(Drift)
class DriftAdmin(OperatorAdmin):
    """Differences that the reconciler found; `manage.py reconcile --repair` puts them right."""

    list_display = ("found_at", "organization", "kind", "record", "field", "expected", "counted", "repaired_at")
    list_filter = ("kind", ("repaired_at", admin.EmptyFieldListFilter), "organization")
    list_select_related = ("organization",)
    search_fields = ("organization__slug", "=record", "=repair_id")


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


@admin.register(Alert)
class AlertAdmin(OperatorAdmin):
    """What was told; leads and owners acknowledge it on their own page."""

    list_display = ("told_at", "organization", "kind", "line", "scope", "period", "member", "ended_at", "acknowledged_at")
    list_filter = ("kind", "line", ("ended_at", admin.EmptyFieldListFilter), "organization")
    list_select_related = ("organization", "member__user")
    search_fields = ("organization__slug", "scope", "member__user__email")


@admin.register(AlertRule)
class AlertRuleAdmin(OperatorAdmin):
    list_display = ("organization", "kind", "is_on")
    list_filter = ("kind", "is_on", "organization")
    list_select_related = ("organization",)
    search_fields = ("organization__slug",)


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(OperatorAdmin):
    """Endpoints are an owner's; the address itself is a secret."""

    hidden = ("url", "secret", "previous_secret")
    list_display = ("name", "organization", "format", "origin", "created_at", "disabled_at", "removed_at")
    list_filter = ("format", ("disabled_at", admin.EmptyFieldListFilter), "organization")
    list_select_related = ("organization",)
    search_fields = ("organization__slug", "name", "origin")


@admin.register(AlertDelivery)
class AlertDeliveryAdmin(OperatorAdmin):
    """The delivery log: every message, how often it was tried, and what came back."""

    list_display = ("created_at", "organization", "channel", "alert", "member", "endpoint", "status", "attempts", "response_code")
    list_filter = ("status", "channel", "organization")
    list_select_related = ("organization", "alert", "member__user", "endpoint")
    search_fields = ("organization__slug", "=uuid", "member__user__email", "endpoint__name")
