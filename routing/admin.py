"""The admin's pages of pools and accounts. Tokens stay in the database: not even their ciphertexts are read."""

from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.contrib.filters.admin import AutocompleteSelectFilter

from accounts.backoffice import OF_ORGANIZATION, OperatorAdmin, actor
from accounts.models import Organization, User
from accounts.permissions import Action
from routing import account_page, pools, upkeep
from routing.models import ModelFallback, Pool, PoolAccount, SignInFlow


def _users_of(pool: Pool) -> Iterable[int]:
    """A shared pool (no organization) may be used by any."""
    if pool.organization_id is not None:
        return [pool.organization_id]
    return Organization.objects.values_list("pk", flat=True)


@admin.register(Pool)
class PoolAdmin(OperatorAdmin):
    """A shared pool is the operators': members see their organization's own."""

    seen_by = Action.SEE_POOL
    list_display = ("name", "organization", "strategy", "created_at")
    list_filter = ("strategy", OF_ORGANIZATION, ("organization", admin.EmptyFieldListFilter))
    list_select_related = ("organization",)
    search_fields = ("name", "organization__slug", "organization__name")
    editable = ("name", *pools.SETTINGS)
    domain = pools.SETTINGS
    member_hidden = ("plans",)

    def organizations_of(self, obj: Pool) -> Iterable[int]:
        return _users_of(obj)

    def change(self, obj: Pool, fields: dict[str, Any], *, by: User) -> None:
        pools.set_strategy(obj, fields, by=by)


@admin.register(PoolAccount)
class PoolAccountAdmin(OperatorAdmin):
    seen_by = Action.SEE_POOL
    tenant = "pool__organization"
    list_display = ("label", "pool", "kind", "plan_type", "email", "status", "polled_at", "poll_outcome", "access_expires_at")
    list_filter = ("status", "kind", "plan_type", ("pool__organization", AutocompleteSelectFilter))
    list_select_related = ("pool__organization",)
    search_fields = ("label", "email", "=uuid", "pool__organization__slug")
    editable = upkeep.FIELDS
    domain = upkeep.FIELDS
    hidden = ("access_token", "refresh_token", "refresh_claim", "refresh_claimed_until", "withdrawal_digest")
    actions = ("pause", "resume", "poll", "remove")
    member_actions = dict.fromkeys(actions, Action.MANAGE_POOL)

    def organizations_of(self, obj: PoolAccount) -> Iterable[int]:
        return _users_of(obj.pool)

    def change(self, obj: PoolAccount, fields: dict[str, Any], *, by: User) -> None:
        # An emptied list is an empty one to the form.
        lifted = {name: None for name in upkeep.SERVED if fields.get(name) == []}
        upkeep.change(obj, {**fields, **lifted}, by=by)

    def get_queryset(self, request: HttpRequest) -> QuerySet[PoolAccount]:
        rows: QuerySet[PoolAccount] = super().get_queryset(request)
        return rows.defer("access_token", "refresh_token")

    @admin.action(description=_("Pause: it takes no request from the next one on"))
    def pause(self, request: HttpRequest, queryset: QuerySet[PoolAccount]) -> None:
        self.apply(request, queryset, "paused", lambda row: upkeep.pause(row, by=actor(request)))

    @admin.action(description=_("Resume"))
    def resume(self, request: HttpRequest, queryset: QuerySet[PoolAccount]) -> None:
        self.apply(request, queryset, "resumed", lambda row: upkeep.resume(row, by=actor(request)))

    @admin.action(description=_("Poll: ask the upstream how full its windows are"))
    def poll(self, request: HttpRequest, queryset: QuerySet[PoolAccount]) -> None:
        """One account at a time: an answer may take a minute."""
        chosen = list(queryset[:2])
        if len(chosen) != 1:
            messages.error(request, _("Choose one account: an upstream may take its time to answer."))
            return
        has_answered, said = account_page.poll_now(chosen[0])
        (messages.success if has_answered else messages.warning)(request, said)

    @admin.action(description=_("Take out: erase its secrets, for good"))
    def remove(self, request: HttpRequest, queryset: QuerySet[PoolAccount]) -> None:
        self.apply(request, queryset, "taken out", lambda row: upkeep.remove(row, by=actor(request)))


@admin.register(SignInFlow)
class SignInFlowAdmin(OperatorAdmin):
    """Sign-ins that were begun and are not finished; what is secret of them is not read."""

    seen_by = Action.MANAGE_POOL
    list_display = ("label", "organization", "kind", "started_by", "started_at", "expires_at")
    list_filter = ("kind", "started_at", OF_ORGANIZATION)
    list_select_related = ("organization", "started_by")
    search_fields = ("label", "=uuid", "organization__slug", "started_by__email")
    hidden = ("sealed",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[SignInFlow]:
        rows: QuerySet[SignInFlow] = super().get_queryset(request)
        return rows.defer("sealed")


@admin.register(ModelFallback)
class ModelFallbackAdmin(OperatorAdmin):
    """Rules are set as a whole (`manage.py set_fallback`): what each row means depends on the others."""

    seen_by = Action.MANAGE_ORGANIZATION
    list_display = ("model", "position", "fallback", "organization")
    list_filter = ("model", "fallback", OF_ORGANIZATION)
    list_select_related = ("organization",)
    search_fields = ("model", "fallback", "organization__slug", "organization__name")
