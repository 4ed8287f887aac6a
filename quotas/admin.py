"""The admin's pages of limits, alerts, and what the drain keeps."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from accounts import administration
from accounts.backoffice import OF_ORGANIZATION, InstallAdmin, OperatorAdmin, actor
from accounts.models import Member
from accounts.permissions import Action
from config.admin_words import named
from config.clock import utc_now
from quotas import limits, requests
from quotas.alerts import audience, delivery, endpoints, telling
from quotas.errors import RequestError
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

    seen_by = Action.SET_LIMITS
    list_display = ("organization", "scope", "team", "member", "key", "metric", "window", "amount")
    list_filter = ("scope", "metric", "window", OF_ORGANIZATION)
    list_select_related = ("organization", "team", "member__user", "key")
    search_fields = ("organization__slug", "team__name", "member__user__email", "=key__public_id")


@admin.register(ModelFilter)
class ModelFilterAdmin(OperatorAdmin):
    seen_by = Action.SET_LIMITS
    list_display = ("name", "organization", "model_names", "created_at", "filled_at")
    list_filter = (("filled_at", admin.EmptyFieldListFilter), OF_ORGANIZATION)
    list_select_related = ("organization",)
    search_fields = ("name", "organization__slug")


@admin.register(LimitRequest)
class LimitRequestAdmin(OperatorAdmin):
    """A member's request is decided by a lead or owner of the organization."""

    seen_by = Action.SET_LIMITS
    date_hierarchy = "created_at"
    list_display = ("created_at", "organization", "member", "metric", "window", "asked_amount", "until", "status", "decided_at")
    list_filter = ("status", "metric", OF_ORGANIZATION)
    list_select_related = ("organization", "member__user")
    search_fields = ("organization__slug", "member__user__email", "note")
    actions = ("approve",)
    member_actions = {"approve": Action.SET_LIMITS}

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Who decides is a member: an operator is none."""
        return super().get_actions(request) if administration.member(request) is not None else {}

    @admin.action(description=_("Approve: give what was asked for"))
    def approve(self, request: HttpRequest, queryset: QuerySet[LimitRequest]) -> None:
        decider = administration.member(request)
        assert decider is not None

        def change(row: LimitRequest) -> None:
            if not requests.may_decide(decider, row):
                raise RequestError(gettext("Somebody else decides this one: nobody but an owner gives more to themselves."))
            requests.approve(row, decider=decider, now=utc_now())

        self.apply(request, queryset, "approved", change)


@admin.register(LimitBoost)
class LimitBoostAdmin(OperatorAdmin):
    seen_by = Action.SET_LIMITS
    date_hierarchy = "starts_at"
    list_display = ("limit", "organization", "extra", "starts_at", "ends_at", "granted_by", "revoked_at")
    list_filter = (("revoked_at", admin.EmptyFieldListFilter), OF_ORGANIZATION)
    list_select_related = ("organization", "limit", "granted_by")
    search_fields = ("organization__slug", "reason")
    actions = ("end",)
    member_actions = {"end": Action.SET_LIMITS}

    @admin.action(description=_("End before its time"))
    def end(self, request: HttpRequest, queryset: QuerySet[LimitBoost]) -> None:
        def change(row: LimitBoost) -> bool:
            if row.revoked_at is not None:
                return False
            limits.end_boost(row, by=actor(request), now=utc_now())
            return True

        self.apply(request, queryset, "ended", change)


@admin.register(Refusal)
class RefusalAdmin(OperatorAdmin):
    """Why requests were refused, by key, limit and minute."""

    seen_by = Action.SEE_REQUESTS
    is_long = True
    list_display = ("last_at", "organization", "member_id", "key_id", "code", "scope", "metric", "window", "count")
    list_filter = ("code", "scope", "metric", "last_at", OF_ORGANIZATION)
    list_select_related = ("organization",)
    search_fields = ("organization__slug", "=model", "message")


@admin.register(Drift)
class DriftAdmin(OperatorAdmin):
    """Differences that the reconciler found; `manage.py reconcile --repair` puts them right."""

    plural = named("drift")
    seen_by = Action.MANAGE_ORGANIZATION
    date_hierarchy = "found_at"
    list_display = ("found_at", "organization", "kind", "record", "field", "expected", "counted", "repaired_at")
    list_filter = ("kind", ("repaired_at", admin.EmptyFieldListFilter), OF_ORGANIZATION)
    list_select_related = ("organization",)
    search_fields = ("organization__slug", "=record", "=repair_id")


@admin.register(UsageDrain)
class UsageDrainAdmin(OperatorAdmin):
    list_display = ("organization", "drained_id", "drained_at")
    list_filter = ("drained_at", OF_ORGANIZATION)
    list_select_related = ("organization",)
    search_fields = ("organization__slug",)


@admin.register(DeadLetter)
class DeadLetterAdmin(InstallAdmin):
    """Entries that could not be written; the raw entry is for the one who repairs it, in the database."""

    list_display = ("created_at", "organization_id", "stream_id", "error")
    list_filter = ("created_at",)
    search_fields = ("=stream_id", "error")
    hidden = ("raw",)


@admin.register(Alert)
class AlertAdmin(OperatorAdmin):
    """What was told; leads and owners acknowledge it on their own page."""

    seen_by = Action.SEE_ALERTS
    date_hierarchy = "told_at"
    list_display = ("told_at", "organization", "kind", "line", "scope", "period", "member", "ended_at", "acknowledged_at")
    list_filter = ("kind", "line", ("ended_at", admin.EmptyFieldListFilter), OF_ORGANIZATION)
    list_select_related = ("organization", "member__user")
    search_fields = ("organization__slug", "scope", "member__user__email")
    actions = ("acknowledge",)
    member_actions = {"acknowledge": Action.SET_LIMITS}

    def rows_of(self, member: Member, rows: QuerySet[Alert]) -> QuerySet[Alert]:
        return super().rows_of(member, rows).filter(audience.visible(member))

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Who acknowledges is a member: an operator is none."""
        return super().get_actions(request) if administration.member(request) is not None else {}

    @admin.action(description=_("Acknowledge"))
    def acknowledge(self, request: HttpRequest, queryset: QuerySet[Alert]) -> None:
        by = administration.member(request)
        assert by is not None
        self.apply(request, queryset, "acknowledged", lambda row: telling.acknowledge(row, by=by, now=utc_now()))


@admin.register(AlertRule)
class AlertRuleAdmin(OperatorAdmin):
    seen_by = Action.MANAGE_ORGANIZATION
    list_display = ("organization", "kind", "is_on")
    list_filter = ("kind", "is_on", OF_ORGANIZATION)
    list_select_related = ("organization",)
    search_fields = ("organization__slug",)


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(OperatorAdmin):
    """Endpoints are an owner's; the address itself is a secret."""

    seen_by = Action.MANAGE_ORGANIZATION
    actions = ("resume", "remove")
    member_actions = dict.fromkeys(actions, Action.MANAGE_ORGANIZATION)
    hidden = ("url", "secret", "previous_secret")
    list_display = ("name", "organization", "format", "origin", "created_at", "disabled_at", "removed_at")
    list_filter = ("format", ("disabled_at", admin.EmptyFieldListFilter), OF_ORGANIZATION)
    list_select_related = ("organization",)
    search_fields = ("organization__slug", "name", "origin")

    @admin.action(description=_("Resume: post to it again"))
    def resume(self, request: HttpRequest, queryset: QuerySet[WebhookEndpoint]) -> None:
        self.apply(request, queryset, "resumed", lambda row: endpoints.resume(row, by=actor(request)))

    @admin.action(description=_("Remove: its address and secret are erased"))
    def remove(self, request: HttpRequest, queryset: QuerySet[WebhookEndpoint]) -> None:
        def change(row: WebhookEndpoint) -> bool:
            if row.removed_at is not None:
                return False
            endpoints.remove(row, by=actor(request), now=utc_now())
            return True

        self.apply(request, queryset, "removed", change)


@admin.register(AlertDelivery)
class AlertDeliveryAdmin(OperatorAdmin):
    """The delivery log: every message, how often it was tried, and what came back."""

    plural = named("alert deliveries")
    seen_by = Action.SEE_ALERTS
    is_long = True
    actions = ("retry",)
    member_actions = {"retry": Action.MANAGE_ORGANIZATION}
    list_display = ("created_at", "organization", "channel", "alert", "member", "endpoint", "status", "attempts", "response_code")
    list_filter = ("status", "channel", "created_at", OF_ORGANIZATION)
    list_select_related = ("organization", "alert", "member__user", "endpoint")
    search_fields = ("organization__slug", "=uuid", "member__user__email", "endpoint__name")

    @admin.action(description=_("Try again: from its first try on"))
    def retry(self, request: HttpRequest, queryset: QuerySet[AlertDelivery]) -> None:
        self.apply(request, queryset, "tried again", lambda row: delivery.retry(row, by=actor(request), now=utc_now()))
