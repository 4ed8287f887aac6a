"""The admin's pages of organizations, people, keys, long work and the audit trail."""

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from accounts import admin_sign_in as admin_sign_in  # registers its pages
from accounts import administration, api_tokens, audit, jobs, keys, members, organizations, permissions
from accounts.backoffice import OF_ORGANIZATION, InstallAdmin, OperatorAdmin, actor
from accounts.models import (
    ApiKey,
    ApiToken,
    AuditEvent,
    AuditHead,
    IdempotentCall,
    IdentityProvider,
    Invitation,
    Job,
    Member,
    Organization,
    Team,
    User,
)
from accounts.permissions import Action
from config.admin_words import named
from config.clock import utc_now


@admin.register(User)
class UserAdmin(InstallAdmin):
    """People. A member finds the addresses of their own organization's, and nothing else of them: the rest may be of elsewhere."""

    seen_by = Action.SEE_MEMBERS
    list_display = ("email", "is_active", "is_superuser", "last_login", "date_joined")
    list_filter = ("is_active", "is_superuser", "date_joined")
    search_fields = ("email", "first_name", "last_name")
    ordering = ("email",)
    editable = ("is_active", "is_superuser")
    hidden = ("password", "groups", "user_permissions")
    member_hidden = (
        "id", "is_active", "is_superuser", "is_staff", "last_login", "date_joined", "last_organization", "language", "first_name",
        "last_name",
    )  # fmt: skip

    def organizations_of(self, obj: User) -> list[int]:
        """Whose keys a switched off person holds: they are refused from the next request on."""
        return list(Member.objects.current().filter(user=obj).values_list("organization_id", flat=True))

    def rows_of(self, member: Member, rows: QuerySet[User]) -> QuerySet[User]:
        own = Member.objects.current().filter(organization_id=member.organization_id)
        return rows.filter(pk__in=own.values("user_id"))

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        return self.search_fields if administration.is_operator(request) else ("email",)


@admin.register(Organization)
class OrganizationAdmin(OperatorAdmin):
    seen_by = Action.MANAGE_ORGANIZATION
    tenant = "pk"
    list_display = ("name", "slug", "timezone", "second_factor", "is_active", "created_at")
    list_filter = ("is_active", "second_factor", "unpriced_models", "created_at")
    search_fields = ("name", "slug", "=uuid")
    date_hierarchy = "created_at"
    editable = ("name", "unpriced_models")
    actions = ("suspend", "resume")

    def organizations_of(self, obj: Organization) -> list[int]:
        return [obj.pk]

    @admin.action(description=_("Suspend: refuse all keys"))
    def suspend(self, request: HttpRequest, queryset: QuerySet[Organization]) -> None:
        self.apply(request, queryset, "suspended", lambda row: organizations.suspend(row, by=actor(request)))

    @admin.action(description=_("Resume"))
    def resume(self, request: HttpRequest, queryset: QuerySet[Organization]) -> None:
        self.apply(request, queryset, "resumed", lambda row: organizations.resume(row, by=actor(request)))


@admin.register(Team)
class TeamAdmin(OperatorAdmin):
    seen_by = Action.SEE_MEMBERS
    list_display = ("name", "organization", "created_at")
    list_filter = (OF_ORGANIZATION, "created_at")
    list_select_related = ("organization",)
    search_fields = ("name", "organization__name", "organization__slug")


@admin.register(Member)
class MemberAdmin(OperatorAdmin):
    seen_by = Action.SEE_MEMBERS
    list_display = ("__str__", "organization", "role", "team", "joined_at", "removed_at")
    list_filter = ("role", ("removed_at", admin.EmptyFieldListFilter), "is_awaited", OF_ORGANIZATION)
    list_select_related = ("organization", "team", "user")
    search_fields = ("display_name", "user__email", "organization__slug")
    date_hierarchy = "joined_at"
    actions = ("remove", "forbid_fast_mode", "allow_fast_mode")
    member_actions = dict.fromkeys(actions, Action.MANAGE_MEMBERS)

    @admin.action(description=_("Forbid fast mode"))
    def forbid_fast_mode(self, request: HttpRequest, queryset: QuerySet[Member]) -> None:
        self._demand(request, queryset)
        self.apply(request, queryset, "changed", lambda row: members.allow_fast_mode(row, False, by=actor(request)))

    @admin.action(description=_("Allow fast mode"))
    def allow_fast_mode(self, request: HttpRequest, queryset: QuerySet[Member]) -> None:
        self._demand(request, queryset)
        self.apply(request, queryset, "changed", lambda row: members.allow_fast_mode(row, True, by=actor(request)))

    @admin.action(description=_("Remove: revoke all keys, forget the person"))
    def remove(self, request: HttpRequest, queryset: QuerySet[Member]) -> None:
        self._demand(request, queryset)
        self.apply(request, queryset, "removed", lambda row: members.remove(row, by=actor(request), now=utc_now()))

    def _demand(self, request: HttpRequest, rows: QuerySet[Member]) -> None:
        """Leads look after developers. Raises PermissionDenied before anything is done."""
        by = administration.member(request)
        if by is not None and not all(permissions.may_give_role(by, row.role, team_id=row.team_id) for row in rows):
            raise PermissionDenied


@admin.register(Invitation)
class InvitationAdmin(OperatorAdmin):
    seen_by = Action.MANAGE_MEMBERS
    list_display = ("email", "organization", "role", "created_at", "expires_at", "accepted_at")
    list_filter = ("role", ("accepted_at", admin.EmptyFieldListFilter), OF_ORGANIZATION)
    list_select_related = ("organization",)
    search_fields = ("email", "organization__slug")
    date_hierarchy = "created_at"
    hidden = ("digest",)


@admin.register(ApiKey)
class ApiKeyAdmin(OperatorAdmin):
    """Keys are issued and rotated by the people they belong to, who alone see the secret; here they are ended."""

    plural = named("API keys")
    seen_by = Action.USE_KEYS
    list_display = ("public_id", "name", "member", "organization", "created_at", "expires_at", "revoked_at")
    list_filter = (("revoked_at", admin.EmptyFieldListFilter), OF_ORGANIZATION, "created_at", "expires_at")
    list_select_related = ("organization", "member__user")
    search_fields = ("=public_id", "name", "member__user__email", "organization__slug")
    date_hierarchy = "created_at"
    hidden = ("digest", "pepper_id", "previous_digest", "previous_pepper_id")
    actions = ("revoke",)
    member_actions = {"revoke": Action.USE_KEYS}

    @admin.action(description=_("Revoke"))
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        self.apply(request, queryset, "revoked", lambda row: keys.revoke(row, by=actor(request), now=utc_now()))


@admin.register(ApiToken)
class ApiTokenAdmin(OperatorAdmin):
    """Tokens of the API act as their member; here they are ended."""

    plural = named("API tokens")
    seen_by = Action.MANAGE_ORGANIZATION
    list_display = (
        "public_id",
        "name",
        "member",
        "organization",
        "scopes",
        "created_at",
        "expires_at",
        "revoked_at",
        "last_used_at",
    )
    list_filter = (("revoked_at", admin.EmptyFieldListFilter), OF_ORGANIZATION, "created_at", "expires_at")
    list_select_related = ("organization", "member__user")
    search_fields = ("=public_id", "name", "member__user__email", "organization__slug")
    date_hierarchy = "created_at"
    hidden = ("digest", "pepper_id")
    actions = ("revoke",)
    member_actions = {"revoke": Action.MANAGE_ORGANIZATION}

    @admin.action(description=_("Revoke"))
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        self.apply(request, queryset, "revoked", lambda row: api_tokens.revoke(row, by=actor(request), now=utc_now()))


@admin.register(IdentityProvider)
class IdentityProviderAdmin(OperatorAdmin):
    """Set by its organization's owners, on their settings page."""

    seen_by = Action.MANAGE_ORGANIZATION
    list_display = ("name", "organization", "issuer", "email_domains", "default_role", "is_active", "is_required")
    list_filter = ("is_active", "is_required", OF_ORGANIZATION)
    list_select_related = ("organization",)
    search_fields = ("name", "issuer", "organization__slug", "=uuid")
    hidden = ("client_secret",)


@admin.register(IdempotentCall)
class IdempotentCallAdmin(OperatorAdmin):
    """Calls of the API that are done once. What was asked and answered is between the caller and the API."""

    list_display = ("started_at", "organization", "member", "route", "status")
    list_filter = ("status", OF_ORGANIZATION, "started_at")
    list_select_related = ("organization", "member__user")
    search_fields = ("route", "organization__slug", "member__user__email")
    ordering = ("-id",)
    hidden = ("key", "body_digest", "answer")
    is_long = True


@admin.register(Job)
class JobAdmin(OperatorAdmin):
    """Long work. Its file is fetched by who may have it, on the organization's own page."""

    seen_by = Action.MANAGE_ORGANIZATION
    list_display = ("created_at", "organization", "kind", "title", "member", "state", "done", "total", "finished_at", "error")
    list_filter = ("state", "kind", OF_ORGANIZATION, "created_at")
    list_select_related = ("organization", "member__user")
    search_fields = ("title", "=uuid", "organization__slug", "member__user__email")
    date_hierarchy = "created_at"
    actions = ("stop",)
    member_actions = {"stop": Action.MANAGE_ORGANIZATION}

    @admin.action(description=_("Stop"))
    def stop(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        def change(row: Job) -> bool:
            stopped = jobs.stop(row, now=utc_now())
            if stopped:
                audit.record(
                    row.organization, actor=actor(request), action="job.stopped", object_type="job", object_id=str(row.uuid),
                    data={"kind": row.kind},
                )  # fmt: skip
            return stopped

        self.apply(request, queryset, "stopped", change)


@admin.register(AuditEvent)
class AuditEventAdmin(OperatorAdmin):
    """Added to, never changed."""

    seen_by = Action.MANAGE_ORGANIZATION
    list_display = ("created_at", "action", "object_type", "object_id", "actor_label", "organization")
    list_filter = ("object_type", OF_ORGANIZATION, "created_at")
    list_select_related = ("organization",)
    search_fields = ("=object_id", "=action", "actor_label", "organization__slug")
    ordering = ("-id",)
    is_long = True


@admin.register(AuditHead)
class AuditHeadAdmin(OperatorAdmin):
    """Where each chain of the audit trail ends, to be noted down elsewhere. Only the database moves it."""

    list_display = ("organization", "number", "digest")
    list_filter = (("organization", admin.EmptyFieldListFilter),)
    list_select_related = ("organization",)
    search_fields = ("organization__slug", "=digest")
    ordering = ("id",)
