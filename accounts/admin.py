"""Operators' pages: organizations, people, keys, the audit trail. Sign-in goes through allauth, with its limits on attempts."""

from typing import Any

from allauth.account.decorators import secure_admin_login
from allauth.account.models import EmailAddress
from django.contrib import admin
from django.contrib.auth.models import Group
from django.db.models import QuerySet
from django.http import HttpRequest

from accounts import api_tokens, keys, members, organizations
from accounts.backoffice import OperatorAdmin
from accounts.models import ApiKey, ApiToken, AuditEvent, AuditHead, Invitation, Member, Organization, Team, User
from config.clock import utc_now

admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]
# Rights are the table of `accounts.permissions`; addresses are the users' own.
admin.site.unregister(Group)
admin.site.unregister(EmailAddress)


@admin.register(User)
class UserAdmin(OperatorAdmin):
    list_display = ("email", "is_active", "is_superuser", "last_login", "date_joined")
    list_filter = ("is_active", "is_superuser")
    search_fields = ("email", "first_name", "last_name")
    ordering = ("email",)
    editable = ("is_active", "is_staff", "is_superuser")
    hidden = ("password",)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [name for name in super().get_fields(request, obj) if name not in ("groups", "user_permissions")]


@admin.register(Organization)
class OrganizationAdmin(OperatorAdmin):
    list_display = ("name", "slug", "timezone", "is_active", "created_at")
    list_filter = ("is_active",)
    search_fields = ("name", "slug", "=uuid")
    editable = ("name", "unpriced_models")
    actions = ("suspend", "resume")

    def organizations_of(self, obj: Organization) -> list[int]:
        return [obj.pk]

    @admin.action(description="Suspend: refuse all keys")
    def suspend(self, request: HttpRequest, queryset: QuerySet[Organization]) -> None:
        self.apply(request, queryset, "suspended", lambda row: organizations.suspend(row, by=_operator(request)))

    @admin.action(description="Resume")
    def resume(self, request: HttpRequest, queryset: QuerySet[Organization]) -> None:
        self.apply(request, queryset, "resumed", lambda row: organizations.resume(row, by=_operator(request)))


@admin.register(Team)
class TeamAdmin(OperatorAdmin):
    list_display = ("name", "organization", "created_at")
    list_filter = ("organization",)
    list_select_related = ("organization",)
    search_fields = ("name", "organization__name", "organization__slug")


@admin.register(Member)
class MemberAdmin(OperatorAdmin):
    list_display = ("__str__", "organization", "role", "team", "joined_at", "removed_at")
    list_filter = ("role", ("removed_at", admin.EmptyFieldListFilter), "organization")
    list_select_related = ("organization", "team", "user")
    search_fields = ("display_name", "user__email", "organization__slug")
    actions = ("remove", "forbid_fast_mode", "allow_fast_mode")

    @admin.action(description="Forbid fast mode")
    def forbid_fast_mode(self, request: HttpRequest, queryset: QuerySet[Member]) -> None:
        self.apply(request, queryset, "changed", lambda row: members.allow_fast_mode(row, False, by=_operator(request)))

    @admin.action(description="Allow fast mode")
    def allow_fast_mode(self, request: HttpRequest, queryset: QuerySet[Member]) -> None:
        self.apply(request, queryset, "changed", lambda row: members.allow_fast_mode(row, True, by=_operator(request)))

    @admin.action(description="Remove: revoke all keys, forget the person")
    def remove(self, request: HttpRequest, queryset: QuerySet[Member]) -> None:
        self.apply(request, queryset, "removed", lambda row: members.remove(row, by=_operator(request), now=utc_now()))


@admin.register(Invitation)
class InvitationAdmin(OperatorAdmin):
    list_display = ("email", "organization", "role", "created_at", "expires_at", "accepted_at")
    list_filter = ("role", ("accepted_at", admin.EmptyFieldListFilter))
    list_select_related = ("organization",)
    search_fields = ("email", "organization__slug")
    hidden = ("digest",)


@admin.register(ApiKey)
class ApiKeyAdmin(OperatorAdmin):
    """Keys are issued by the people they belong to; an operator may end one."""

    list_display = ("public_id", "name", "member", "organization", "created_at", "expires_at", "revoked_at")
    list_filter = (("revoked_at", admin.EmptyFieldListFilter), "organization")
    list_select_related = ("organization", "member__user")
    search_fields = ("=public_id", "name", "member__user__email", "organization__slug")
    hidden = ("digest", "pepper_id", "previous_digest", "previous_pepper_id")
    actions = ("revoke",)

    @admin.action(description="Revoke")
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        self.apply(request, queryset, "revoked", lambda row: keys.revoke(row, by=_operator(request), now=utc_now()))


@admin.register(ApiToken)
class ApiTokenAdmin(OperatorAdmin):
    """Tokens of the API act as their member; an operator may end one."""

    list_display = ("public_id", "name", "member", "organization", "scopes", "created_at", "expires_at", "revoked_at")
    list_filter = (("revoked_at", admin.EmptyFieldListFilter), "organization")
    list_select_related = ("organization", "member__user")
    search_fields = ("=public_id", "name", "member__user__email", "organization__slug")
    hidden = ("digest", "pepper_id")
    actions = ("revoke",)

    @admin.action(description="Revoke")
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        self.apply(request, queryset, "revoked", lambda row: api_tokens.revoke(row, by=_operator(request), now=utc_now()))


@admin.register(AuditEvent)
class AuditEventAdmin(OperatorAdmin):
    list_display = ("created_at", "action", "object_type", "object_id", "actor_label", "organization")
    list_filter = ("action", "object_type", "organization")
    list_select_related = ("organization",)
    search_fields = ("=object_id", "action", "actor_label", "organization__slug")


@admin.register(AuditHead)
class AuditHeadAdmin(OperatorAdmin):
    """Where each chain of the audit trail ends, to be noted down elsewhere. Only the database moves it."""

    list_display = ("organization", "number", "digest")
    list_filter = (("organization", admin.EmptyFieldListFilter),)
    list_select_related = ("organization",)
    search_fields = ("organization__slug", "=digest")
    ordering = ("id",)


def _operator(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
