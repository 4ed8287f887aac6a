"""Signing in at an organization's provider: who speaks for one's address, the way there and the way back.

The way there is a link, not a form: the content policy lets forms lead to this Weir alone.
"""

from typing import Any

from allauth.socialaccount.models import SocialApp
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from accounts import identity
from accounts.errors import SignInRefused
from accounts.models import IdentityProvider, User
from accounts.social_adapter import OrganizationAdapter, is_ours
from config.errors import DomainError

UNKNOWN = gettext_noop("No provider is set up for this address. Sign in with your password, or ask an owner of your organization.")


class _Callback(OAuth2CallbackView):  # type: ignore[misc]  # allauth has no types
    """Hands the nonce of the sign-in over to where the token is checked against it."""

    def _get_state(self, request: HttpRequest, provider: Any) -> tuple[dict[str, Any] | None, HttpResponse | None]:
        state, answer = super()._get_state(request, provider)
        if state is not None:
            self.adapter.nonce = (state.get("data") or {}).get("nonce", "")
        return state, answer


@never_cache
@require_safe
def login(request: HttpRequest, provider_id: str) -> HttpResponse:
    """To the organization's provider."""
    try:
        answer: HttpResponse = OrganizationAdapter(request, provider_id).get_provider().redirect_from_request(request)
    except SocialApp.DoesNotExist:
        raise Http404 from None
    except DomainError as error:
        return refused(request, provider_id, error)
    return answer


@never_cache
@require_safe
def callback(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Back from it: signs the person in, or says why not."""
    try:
        answer: HttpResponse = _Callback.adapter_view(OrganizationAdapter(request, provider_id))(request)
    except SocialApp.DoesNotExist:
        raise Http404 from None
    except DomainError as error:
        return refused(request, provider_id, error)
    return answer


def refused(request: HttpRequest, slug: str, error: DomainError) -> HttpResponse:
    """What did not hold. Details of the provider's answers are for the owner's test in the settings, not for whoever comes by."""
    row = identity.by_slug(slug)
    if isinstance(error, SignInRefused):
        message = error.message
    else:
        message = _("The provider could not be asked. Try again; if it stays so, an owner can test it in Settings.")
    return render(request, "accounts/sso_refused.html", {"message": message, "provider": row}, status=error.status)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sso(request: HttpRequest) -> HttpResponse:
    """Which providers speak for an address. A POST, so that no address stands in logs."""
    email = request.POST.get("email", "").strip()[:254]
    target = request.GET.get("next", "")
    ways = [_way(row, target) for row in identity.by_email(email)] if email else []
    error = _(UNKNOWN) if request.method == "POST" and not ways else ""
    page = {"email": email, "ways": ways, "error": error}
    return render(request, "accounts/sso.html", page, status=400 if error else 200)


@never_cache
@require_safe
def sso_organization(request: HttpRequest, slug: str) -> HttpResponse:
    """The link that an organization gives its people."""
    row = identity.by_slug(slug)
    if row is None:
        raise Http404
    page = {"ways": [_way(row, request.GET.get("next", ""))], "is_direct": True}
    return render(request, "accounts/sso.html", page)


def gone(request: HttpRequest) -> HttpResponse:
    """Pages of allauth's that have no place here: links of persons to providers come and go by `accounts.identity` only."""
    raise Http404


def demand(request: HttpRequest, user: User) -> HttpResponse | None:
    """The answer in place of a sign-in by password or passkey, if all of the person's organizations ask for their providers."""
    row = identity.instead_of_password(user)
    if row is None:
        return None
    page = {"ways": [_way(row, "")], "is_direct": True, "is_required": True}
    return render(request, "accounts/sso.html", page, status=403)


def _way(row: IdentityProvider, target: str) -> dict[str, str]:
    url = reverse("openid_connect_login", kwargs={"provider_id": row.organization.slug})
    query = f"?{urlencode({'next': target})}" if is_ours(target) else ""
    return {"name": row.name, "host": identity.host_of(row), "url": url + query}
