"""The settings of the sign-in provider: owners only, the secret never comes back, a test says what it found."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from accounts import identity
from accounts.identity_page import context_for
from accounts.models import IdentityProvider, Member, Organization
from tests import factories, secrets
from tests.flows.oidc_provider import OidcProvider

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def running() -> Iterator[OidcProvider]:
    with OidcProvider() as provider:
        secrets.register(provider.client_secret, "client secret of a provider")
        yield provider


@pytest.fixture
def okta(running: OidcProvider, settings: Any) -> OidcProvider:
    running.reset()
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    return running


@pytest.fixture
def organization() -> Organization:
    return factories.organization(plan="free")


def as_role(organization: Organization, role: str) -> tuple[Client, Member]:
    member = factories.member(organization, role=role)
    assert member.user is not None
    client = Client()
    client.force_login(member.user)
    return client, member


def form(okta: OidcProvider, **fields: str) -> dict[str, str]:
    return {
        "name": "Okta",
        "issuer": okta.issuer,
        "client_id": "weir",
        "client_secret": okta.client_secret,
        "email_domains": "acme.example, acme.test",
        "role_claim": "groups",
        "map_lead": "leads\nteam leads\n",
        "map_developer": "eng",
        "default_role": "",
        "is_active": "on",
        **fields,
    }


def test_an_owner_sets_it_up(organization: Organization, okta: OidcProvider, django_assert_num_queries: Any) -> None:
    client, member = as_role(organization, "owner")
    url = f"/o/{organization.slug}/settings/identity"
    answer = client.post(url, form(okta))
    assert (answer.status_code, answer["location"]) == (302, url)
    row = IdentityProvider.objects.get(organization=organization)
    assert row.email_domains == ["acme.example", "acme.test"]
    assert row.role_map == {"leads": "lead", "team leads": "lead", "eng": "developer"}
    assert (row.is_active, row.is_required, identity.secret_of(row)) == (True, False, okta.client_secret)
    shown = client.get(url).content.decode()
    assert "leads\nteam leads" in shown
    assert okta.client_secret not in shown
    assert row.client_secret not in shown
    with django_assert_num_queries(1):
        context_for(member)


def test_a_form_that_does_not_do_comes_back_with_its_sentence_and_without_the_secret(
    organization: Organization, okta: OidcProvider
) -> None:
    client, _ = as_role(organization, "owner")
    url = f"/o/{organization.slug}/settings/identity"
    for fields, said in (
        ({"email_domains": "nodots"}, "is no domain of e-mail addresses"),
        ({"map_owner": "eng"}, "eng stands for two roles."),
        ({"issuer": "http://10.0.0.1/"}, "inside a private network"),
        ({"name": ""}, "This field is required."),
        ({"role_claim": "", "map_lead": "", "map_developer": ""}, "Nobody could come in"),
    ):
        answer = client.post(url, form(okta, **fields))
        assert answer.status_code == 422
        assert said in answer.content.decode()
        assert okta.client_secret not in answer.content.decode()
    assert not IdentityProvider.objects.filter(organization=organization).exists()


@pytest.mark.parametrize("role", ["developer", "lead", "finance"])
def test_nobody_else_does(organization: Organization, okta: OidcProvider, role: str) -> None:
    client, _ = as_role(organization, role)
    url = f"/o/{organization.slug}/settings/identity"
    assert client.get(url).status_code == 403
    for path in (url, f"{url}/test", f"{url}/remove"):
        assert client.post(path, form(okta)).status_code == 403
    assert not IdentityProvider.objects.filter(organization=organization).exists()


def test_a_test_says_what_it_found(organization: Organization, okta: OidcProvider) -> None:
    client, _ = as_role(organization, "owner")
    url = f"/o/{organization.slug}/settings/identity"
    assert "no sign-in provider is set up" in client.post(f"{url}/test", follow=True).content.decode()
    client.post(url, form(okta))
    shown = client.post(f"{url}/test").content.decode()
    assert "The provider answers, and is who the issuer says." in shown
    assert "1 key to check signatures by." in shown
    assert f"{okta.issuer}/authorize" in shown
    for faults, said in (
        ({"discovery": {"issuer": "https://evil.example"}}, "is of the issuer https://evil.example"),
        ({"discovery": {"token_endpoint": "http://10.0.0.1/"}}, "10.0.0.1 is an address inside a private network"),
        ({"redirect": "/.well-known/openid-configuration"}, "The discovery document is not there: status 302"),
        ({"redirect": "/keys"}, "The provider&#x27;s keys are not where its discovery document says."),
        ({"endless": "/keys"}, "answered more than 256 KiB"),
    ):
        okta.faults = faults
        assert said in client.post(f"{url}/test").content.decode()


def test_removal_asks_for_the_name(organization: Organization, okta: OidcProvider) -> None:
    client, _ = as_role(organization, "owner")
    url = f"/o/{organization.slug}/settings/identity"
    client.post(url, form(okta))
    client.post(f"{url}/remove", {"confirm": "Oktopus"})
    assert IdentityProvider.objects.filter(organization=organization).exists()
    client.post(f"{url}/remove", {"confirm": "Okta"})
    assert not IdentityProvider.objects.filter(organization=organization).exists()
