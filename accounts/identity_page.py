"""Settings, sign-in provider: the form, what a test of the provider found, and taking it away. Owners only."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from accounts import context, identity, identity_tokens, tenancy
from accounts.errors import IdentityError, ProviderInvalid
from accounts.identity import Asked
from accounts.models import IdentityProvider, Member
from accounts.permissions import Action
from accounts.social_adapter import callback_url
from config.clock import utc_now

MAPPED = (
    (Member.Role.OWNER, gettext_lazy("Groups of owners")),
    (Member.Role.LEAD, gettext_lazy("Groups of leads")),
    (Member.Role.FINANCE, gettext_lazy("Groups of finance")),
    (Member.Role.DEVELOPER, gettext_lazy("Groups of developers")),
)
_LINES = forms.Textarea(attrs={"rows": 2})


class ProviderForm(forms.Form):
    """The secret is never rendered: left empty, it stays as it is."""

    name = forms.CharField(max_length=40, label=gettext_lazy("Name"))
    issuer = forms.CharField(max_length=400, label=gettext_lazy("Issuer"))
    client_id = forms.CharField(max_length=191, label=gettext_lazy("Client id"))
    client_secret = forms.CharField(max_length=1000, label=gettext_lazy("Client secret"), required=False, strip=True)
    email_domains = forms.CharField(max_length=10_000, label=gettext_lazy("E-mail domains"))
    role_claim = forms.CharField(max_length=80, label=gettext_lazy("Claim that holds the groups"), required=False)
    map_owner = forms.CharField(max_length=50_000, required=False, widget=_LINES)
    map_lead = forms.CharField(max_length=50_000, required=False, widget=_LINES)
    map_finance = forms.CharField(max_length=50_000, required=False, widget=_LINES)
    map_developer = forms.CharField(max_length=50_000, required=False, widget=_LINES)
    default_role = forms.ChoiceField(
        choices=[("", gettext_lazy("Nobody else comes in")), *Member.Role.choices],
        required=False,
        label=gettext_lazy("Everybody else"),
    )
    is_active = forms.BooleanField(required=False)
    is_required = forms.BooleanField(required=False)

    def asked(self) -> Asked:
        """Raises ProviderInvalid for a group that stands for two roles."""
        found: dict[str, str] = {}
        for role, _label in MAPPED:
            for line in self.cleaned_data[f"map_{role.value}"].splitlines():
                value = line.strip()
                if value and found.setdefault(value, role.value) != role.value:
                    raise ProviderInvalid(_("%(group)s stands for two roles.") % {"group": value[:80]}, field=f"map_{role.value}")
        data = self.cleaned_data
        return Asked(
            name=data["name"],
            issuer=data["issuer"],
            client_id=data["client_id"],
            client_secret=data["client_secret"] or None,
            email_domains=tuple(data["email_domains"].replace(",", " ").split()),
            role_claim=data["role_claim"],
            role_map=found,
            default_role=data["default_role"],
            is_active=data["is_active"],
            is_required=data["is_required"],
        )


def context_for(member: Member, *, form: ProviderForm | None = None, found: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `accounts/_identity.html` shows. `form`: one that was not taken; `found`: what a test told. One query."""
    row = identity.of(member.organization)
    slug = member.organization.slug
    form = form or ProviderForm(initial=_initial(row))
    return {
        "identity": {
            "row": row,
            "form": form,
            "mapped": [(form[f"map_{role.value}"], label) for role, label in MAPPED],
            "redirect_uri": callback_url(slug),
            "link": f"{settings.PUBLIC_URL}{reverse('sso_organization', kwargs={'slug': slug})}",
            "found": found,
        }
    }


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@tenancy.page(Action.MANAGE_ORGANIZATION)
def identity_settings(request: HttpRequest, member: Member) -> HttpResponse:
    """The provider on a page of its own; a POST sets it up or changes it."""
    if request.method != "POST":
        return _show(request, member)
    form = ProviderForm(request.POST)
    if not form.is_valid():
        return _show(request, member, form=form, status=422)
    try:
        identity.set_provider(member.organization, form.asked(), by=member.user)
    except ProviderInvalid as error:
        name = str(error.facts.get("field", ""))
        form.add_error(name if name in form.fields else None, error.message)
        return _show(request, member, form=form, status=422)
    messages.success(request, _("The sign-in provider is saved. Test it before you tell your people."))
    return _back(member)


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def test_identity(request: HttpRequest, member: Member) -> HttpResponse:
    """Fetches the discovery document and the keys of what is saved, and says what it found."""
    row = identity.of(member.organization)
    if row is None:
        messages.warning(request, _("Nothing was tested: no sign-in provider is set up."))
        return _back(member)
    try:
        discovery = identity_tokens.discover(row.issuer)
        keys = identity_tokens.keys_of(discovery)
    except IdentityError as error:
        return _show(request, member, found={"error": error.message})
    return _show(request, member, found={"discovery": discovery, "keys": len(keys)})


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def remove_identity(request: HttpRequest, member: Member) -> HttpResponse:
    """Takes it away; its name is typed to confirm."""
    row = identity.of(member.organization)
    if row is None or request.POST.get("confirm", "").strip() != row.name:
        messages.warning(request, _("Nothing was removed: the name that was typed is another one."))
        return _back(member)
    identity.remove_provider(member.organization, by=member.user)
    messages.success(request, _("The sign-in provider is removed. Who came in by it is signed out."))
    return _back(member)


def _back(member: Member) -> HttpResponse:
    return redirect("identity_settings", slug=member.organization.slug)


def _show(
    request: HttpRequest,
    member: Member,
    *,
    form: ProviderForm | None = None,
    found: Mapping[str, Any] | None = None,
    status: int = 200,
) -> HttpResponse:
    try:
        settings_url = reverse("settings", kwargs={"slug": member.organization.slug})
    except NoReverseMatch:
        settings_url = ""
    page = {
        **context.frame(member, "settings", utc_now()),
        **context_for(member, form=form, found=found),
        "settings_url": settings_url,
    }
    return render(request, "accounts/identity.html", page, status=status)


def _initial(row: IdentityProvider | None) -> dict[str, Any]:
    if row is None:
        return {"is_active": True, "role_claim": "groups"}
    told: dict[str, Any] = {
        name: getattr(row, name)
        for name in ("name", "issuer", "client_id", "role_claim", "default_role", "is_active", "is_required")
    }
    told["email_domains"] = ", ".join(row.email_domains)
    for role, _label in MAPPED:
        told[f"map_{role.value}"] = "\n".join(value for value, given in row.role_map.items() if given == role.value)
    return told
