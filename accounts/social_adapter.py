"""How allauth's sign-in by OpenID Connect behaves here: each organization's provider is a row of ours, and every check is on.

The address of a provider is its organization's slug (`/accounts/oidc/<slug>/login/`); what a person is linked to is the row's uuid.
"""

import secrets
from collections.abc import Mapping
from typing import Any, NoReturn

from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialApp, SocialLogin, SocialToken
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from accounts import identity, identity_http, identity_tokens, vouching
from accounts.errors import ProviderUnreachable, SignInRefused
from accounts.identity_tokens import Claims, Discovery
from accounts.models import IdentityProvider
from config.clock import utc_now

PROVIDER = "openid_connect"


class SocialAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """Providers come from `accounts.models.IdentityProvider`; allauth's own table of them is not read."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return False

    def is_auto_signup_allowed(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return False

    def can_authenticate_by_email(self, login: SocialLogin, email: str) -> bool:
        """Never: any organization's owner may set up a provider that says whatever address."""
        return False

    def list_apps(self, request: HttpRequest, provider: str | None = None, client_id: str | None = None) -> list[SocialApp]:
        """The active provider of the organization with the slug `provider`; none are listed to who names none."""
        row = identity.by_slug(provider) if provider else None
        return [app_of(row)] if row is not None and client_id in (None, row.client_id) else []

    def get_app(self, request: HttpRequest, provider: str, client_id: str | None = None) -> SocialApp:
        found = self.list_apps(request, provider=provider, client_id=client_id)
        if not found:
            raise SocialApp.DoesNotExist
        return found[0]

    def get_provider(self, request: HttpRequest, provider: str, client_id: str | None = None) -> "OrganizationProvider":
        return OrganizationProvider(request, app=self.get_app(request, provider=provider, client_id=client_id))

    def get_requests_session(self) -> NoReturn:
        """Calls go through `identity_http`, which judges addresses; nothing else may be called."""
        raise RuntimeError("Identity providers are called by accounts.identity_http only.")

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """The sign-in itself; nothing of allauth's comes after it. Raises ImmediateHttpResponse, SignInRefused."""
        claims = getattr(sociallogin, "claims", None)
        provider = sociallogin.provider
        if not isinstance(claims, Claims) or not isinstance(provider, OrganizationProvider):
            raise SignInRefused(_("This is no sign-in by an organization’s provider."))
        admitted = identity.admit(provider.row, claims, now=utc_now())
        vouching.sign_in(request, admitted.user, provider.row, admitted.link)
        target = sociallogin.state.get("next") or ""
        if not is_ours(target):
            target = reverse("organization", kwargs={"slug": provider.row.organization.slug})
        raise ImmediateHttpResponse(redirect(target))


class OrganizationProvider(OpenIDConnectProvider):  # type: ignore[misc]  # allauth has no types
    """The provider of one organization."""

    @property
    def row(self) -> IdentityProvider:
        row = self.app.row
        assert isinstance(row, IdentityProvider)
        return row

    @property
    def sub_id(self) -> str:
        return str(self.row.uuid)

    def get_oauth2_adapter(self, request: HttpRequest) -> "OrganizationAdapter":
        return OrganizationAdapter(request, self.app.provider_id)

    def redirect_from_request(self, request: HttpRequest) -> HttpResponse:
        """Of what the request holds only `next` counts: no scope, no parameter of the provider's, nothing but a sign-in."""
        target = request.GET.get("next", "")
        nonce = secrets.token_urlsafe(32)
        answer: HttpResponse = self.redirect(
            request,
            "login",
            next_url=target if is_ours(target) else None,
            data={"nonce": nonce},
            auth_params={"nonce": nonce},
            scope=self.get_default_scope(),
        )
        return answer

    def extract_extra_data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing of what the provider tells is kept with the link."""
        return {}


class OrganizationAdapter(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]  # allauth has no types
    """Asks the provider by `identity_http`, and believes a token only by its signature."""

    def __init__(self, request: HttpRequest, provider_id: str) -> None:
        super().__init__(request, provider_id)
        self._discovery: Discovery | None = None

    @property
    def discovery(self) -> Discovery:
        if self._discovery is None:
            self._discovery = identity_tokens.discover(self.get_provider().row.issuer)
        return self._discovery

    @property
    def access_token_url(self) -> str:
        return self.discovery.token

    @property
    def authorize_url(self) -> str:
        return self.discovery.authorization

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:
        return callback_url(self.provider_id)

    def get_client(self, request: HttpRequest, app: SocialApp) -> Any:
        # It only writes the way there: the secret and the call are `get_access_token_data`'s.
        return self.client_class(
            request, app.client_id, "", self.access_token_method, self.access_token_url, self.get_callback_url(request, app)
        )

    def get_access_token_data(
        self, request: HttpRequest, app: SocialApp, client: Any, pkce_code_verifier: str | None = None
    ) -> dict[str, Any]:
        row = app.row
        if request.GET.get("iss", row.issuer) != row.issuer:
            raise SignInRefused(_("The answer is of another issuer."))
        form = {
            "grant_type": "authorization_code",
            "code": request.GET.get("code", ""),
            "redirect_uri": self.get_callback_url(request, app),
            "code_verifier": pkce_code_verifier or "",
            "client_id": row.client_id,
        }
        secret = identity.secret_of(row)
        basic = None
        if secret and "client_secret_post" in self.discovery.auth_methods:
            form["client_secret"] = secret
        elif secret:
            basic = (row.client_id, secret)
        answer = identity_http.fetch(self.discovery.token, name="The token endpoint", form=form, basic=basic)
        if answer.status != 200:
            raise SignInRefused(
                _("%(name)s did not take the sign-in: its token endpoint answered %(status)s. Sign in again.")
                % {"name": row.name, "status": answer.status}
            )
        if not isinstance(answer.body.get("access_token"), str) or not isinstance(answer.body.get("id_token"), str):
            raise ProviderUnreachable(_("The token endpoint answered without an id_token."))
        return dict(answer.body)

    def parse_token(self, data: Mapping[str, Any]) -> SocialToken:
        return SocialToken(token=data["access_token"])

    def complete_login(self, request: HttpRequest, app: SocialApp, token: SocialToken, **kwargs: Any) -> SocialLogin:
        row = app.row
        claims = identity_tokens.verified(
            kwargs["response"]["id_token"],
            discovery=self.discovery,
            keys=identity_tokens.keys_of(self.discovery),
            client_id=row.client_id,
            nonce=self.nonce,
        )
        userinfo: Mapping[str, Any] = {}
        if self.discovery.userinfo:
            answer = identity_http.fetch(self.discovery.userinfo, name="The userinfo endpoint", bearer=token.token)
            userinfo = answer.body if answer.status == 200 else {}
        found = identity_tokens.person(claims, userinfo)
        login = self.get_provider().sociallogin_from_response(request, {"id_token": {"sub": found.subject}})
        login.claims = found
        return login

    nonce = ""
    """Of the sign-in that the answer belongs to; `identity_login` puts it there."""


def app_of(row: IdentityProvider) -> SocialApp:
    """What allauth knows of a provider. The secret is not in it: `get_access_token_data` reads it where it is sent."""
    app = SocialApp(
        provider=PROVIDER,
        provider_id=row.organization.slug,
        name=row.name,
        client_id=row.client_id,
        settings={"server_url": row.issuer, "oauth_pkce_enabled": True},
    )
    app.row = row
    return app


def callback_url(slug: str) -> str:
    """Below PUBLIC_URL, so that no Host header leads elsewhere. What an owner enters at the provider."""
    path: str = reverse("openid_connect_callback", kwargs={"provider_id": slug})
    return f"{settings.PUBLIC_URL}{path}"


def is_ours(target: str) -> bool:
    """A path on this Weir, where somebody may be led after the sign-in."""
    return target.startswith("/") and url_has_allowed_host_and_scheme(target, allowed_hosts=None)
