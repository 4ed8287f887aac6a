"""How people sign in, for operators to look at: second factors, sessions, accounts at identity providers. No secret is shown.

allauth brings pages of its own, on which secrets are read and changed; ours take their place.
"""

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from allauth.usersessions.models import UserSession
from django.contrib import admin
from django.contrib.auth.models import Group
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from accounts import audit
from accounts.backoffice import InstallAdmin, actor

# Rights are the table of `accounts.permissions`; addresses are the users' own; providers are `IdentityProvider`, each of one
# organization.
for model in (Group, EmailAddress, Authenticator, UserSession, SocialAccount, SocialApp, SocialToken):
    if admin.site.is_registered(model):
        admin.site.unregister(model)


@admin.register(Authenticator)
class AuthenticatorAdmin(InstallAdmin):
    """A person's second factors: which kinds, and when they were used."""

    list_display = ("user", "type", "created_at", "last_used_at")
    list_filter = ("type", "created_at", "last_used_at")
    list_select_related = ("user",)
    search_fields = ("user__email",)
    ordering = ("-id",)
    hidden = ("data",)


@admin.register(UserSession)
class UserSessionAdmin(InstallAdmin):
    """Where a person is signed in."""

    list_display = ("user", "ip", "user_agent", "created_at", "last_seen_at")
    list_filter = ("created_at", "last_seen_at")
    list_select_related = ("user",)
    search_fields = ("user__email", "=ip")
    ordering = ("-id",)
    hidden = ("session_key", "data")
    actions = ("end",)

    @admin.action(description=_("End: the person signs in again"))
    def end(self, request: HttpRequest, queryset: QuerySet[UserSession]) -> None:
        def change(row: UserSession) -> None:
            number, whose = row.pk, row.user.email
            row.end()
            audit.record(
                None, actor=actor(request), action="session.ended", object_type="session", object_id=str(number), data={"of": whose}
            )

        self.apply(request, queryset, "ended", change)


@admin.register(SocialAccount)
class SocialAccountAdmin(InstallAdmin):
    """Which identity of which provider is whose."""

    list_display = ("user", "provider", "uid", "last_login", "date_joined")
    list_filter = ("provider", "last_login", "date_joined")
    list_select_related = ("user",)
    search_fields = ("user__email", "=uid")
    ordering = ("-id",)
    hidden = ("extra_data",)
