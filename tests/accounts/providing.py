"""An organization with a provider of identities, and a browser that signs in there."""

import re
from typing import Any
from urllib.parse import urlsplit

import httpx
from django.contrib.auth import SESSION_KEY
from django.http import HttpResponse
from django.test import Client

from accounts import identity
from accounts.identity import Asked
from accounts.models import Organization
from tests import factories
from tests.flows.oidc_provider import CLIENT_ID, OidcProvider


def set_up(organization: Organization, okta: OidcProvider, **fields: Any) -> None:
    asked: dict[str, Any] = {
        "name": "Okta",
        "issuer": okta.issuer,
        "client_id": CLIENT_ID,
        "client_secret": okta.client_secret,
        "email_domains": (f"{organization.slug}.example",),
        "role_claim": "groups",
        "role_map": {"eng": "developer", "leads": "lead", "chiefs": "owner"},
    }
    identity.set_provider(organization, Asked(**{**asked, **fields}), by=None)


def ada(organization: Organization, *groups: str, **claims: Any) -> dict[str, Any]:
    email = f"{factories.unique('ada')}@{organization.slug}.example"
    found = {"sub": factories.unique("sub"), "email": email, "email_verified": True, "name": "Ada Byron", "groups": list(groups)}
    return {**found, **claims}


def begun(client: Client, organization: Organization, query: str = "") -> str:
    """The address of the provider that the browser is led to."""
    answer = client.get(f"/accounts/oidc/{organization.slug}/login/{query}")
    assert answer.status_code == 302, answer.content.decode()
    return str(answer["location"])


def returned(location: str) -> str:
    """The path that the provider leads back to."""
    back = urlsplit(httpx.get(location, follow_redirects=False).headers["location"])
    return f"{back.path}?{back.query}"


def signed_in(client: Client, organization: Organization, query: str = "") -> Any:
    return client.get(returned(begun(client, organization, query)))


def told(answer: HttpResponse) -> str:
    """The sentence of a page that refuses."""
    found = re.search(r'role="alert">([^<]+)<', answer.content.decode())
    return found[1] if found else ""


def is_nobody(client: Client) -> bool:
    return SESSION_KEY not in client.session
