"""Signing in by an organization's provider, over a real socket: who comes in, and what is refused."""

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.urls import resolve

from accounts import identity_login, members
from accounts.models import Member, Organization, User
from tests import factories
from tests.accounts.providing import ada, begun, is_nobody, returned, set_up, signed_in, told
from tests.flows.oidc_provider import CLIENT_ID, OidcProvider

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization(okta: OidcProvider) -> Organization:
    made = factories.organization()
    set_up(made, okta)
    return made


# -------------------------------------------------------------------------------------------------------------- coming in


def test_a_new_person_comes_in_and_lands_on_the_roles_page(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "eng")
    client = Client()
    answer = signed_in(client, organization)
    assert (answer.status_code, answer["location"]) == (302, f"/o/{organization.slug}/")
    member = Member.objects.get(organization=organization)
    assert (member.role, str(member), member.is_vouched) == ("developer", "Ada Byron", False)
    assert client.get(answer["location"])["location"] == f"/o/{organization.slug}/key"
    assert client.get(f"/o/{organization.slug}/key").status_code == 200
    assert client.get("/")["location"] == f"/o/{organization.slug}/key"


@pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=["NUL", "half a pair"])
@pytest.mark.parametrize("claim", ["sub", "nonce", "email", "name", "groups"])
def test_a_token_with_text_that_cannot_be_kept_is_refused(
    organization: Organization, okta: OidcProvider, claim: str, text: str
) -> None:
    """Said as any other that does not hold, not a fault of ours."""
    okta.person = ada(organization, "eng")
    okta.claims = {claim: [text] if claim == "groups" else text}
    client = Client()
    answer = signed_in(client, organization)
    assert (answer.status_code, told(answer)) == (
        403,
        "The provider’s token does not hold: its signature or its form is wrong.",
    )
    assert is_nobody(client)
    assert not Member.objects.filter(organization=organization).exists()


def test_a_vouched_session_sets_nothing_that_other_organizations_see(organization: Organization, okta: OidcProvider) -> None:
    """Any owner may set a provider up that says whatever address: not even a person's language is theirs to change."""
    okta.person = ada(organization, "eng")
    other = factories.organization()
    person = members.add(other, okta.person["email"], role="developer", by=None, password=factories.password()).user
    assert person is not None
    User.objects.filter(pk=person.pk).update(language="ru", last_organization=other)
    client = Client()
    assert signed_in(client, organization).status_code == 302
    assert client.get(f"/o/{organization.slug}/key").status_code == 200
    assert client.post("/language", {"language": "vi", "next": "/"}).status_code == 302
    person.refresh_from_db()
    assert (person.language, person.last_organization_id) == ("ru", other.pk)
    # Who belongs nowhere else is who the provider speaks of.
    okta.person = ada(organization, "eng")
    signed_in(client, organization)
    client.post("/language", {"language": "vi", "next": "/"})
    assert User.objects.get(email=okta.person["email"]).language == "vi"


def test_our_views_stand_before_allauths() -> None:
    assert resolve("/accounts/oidc/any.thing/login/").func is identity_login.login
    assert resolve("/accounts/oidc/any.thing/login/callback/").func is identity_login.callback


@pytest.mark.parametrize("path", ["3rdparty/", "3rdparty/signup/", "social/connections/", "social/signup/"])
def test_nobody_connects_or_disconnects_by_themselves(organization: Organization, okta: OidcProvider, path: str) -> None:
    client = Client()
    client.force_login(factories.member(organization, password=factories.password()).user)
    assert client.get(f"/accounts/{path}").status_code == 404
    assert client.post(f"/accounts/{path}", {"account": "1"}).status_code == 404


def test_the_way_there_has_state_nonce_and_pkce(organization: Organization, okta: OidcProvider) -> None:
    asked = "?scope=admin&auth_params=prompt%3Dnone&process=connect&next=//evil.example"
    query = parse_qs(urlsplit(begun(Client(), organization, asked)).query)
    assert query["response_type"] == ["code"]
    assert query["redirect_uri"] == [f"http://testserver/accounts/oidc/{organization.slug}/login/callback/"]
    assert query["code_challenge_method"] == ["S256"]
    assert len(query["code_challenge"][0]) == 43
    assert len(query["state"][0]) >= 16
    assert len(query["nonce"][0]) >= 32
    assert set(query["scope"][0].split()) == {"openid", "profile", "email"}
    assert "prompt" not in query


def test_the_code_is_exchanged_with_its_verifier_and_the_secret(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "eng")
    signed_in(Client(), organization)
    forms = [form for path, form in okta.asked if path == "/token"]
    assert len(forms) == 1
    assert len(forms[0]["code_verifier"]) >= 43
    assert forms[0]["client_secret"] == okta.client_secret


def test_it_goes_on_to_the_page_that_was_asked_for_on_this_host_only(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "eng")
    assert (
        signed_in(Client(), organization, f"?next=/o/{organization.slug}/requests")["location"]
        == f"/o/{organization.slug}/requests"
    )
    for target in ("//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"):
        assert signed_in(Client(), organization, f"?next={target}")["location"] == f"/o/{organization.slug}/"


def test_userinfo_adds_the_groups_that_the_token_has_not(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "leads")
    okta.claims = {"groups": None, "email": None, "email_verified": None}
    assert signed_in(Client(), organization).status_code == 302
    assert Member.objects.get(organization=organization).role == "lead"


def test_another_group_another_role_at_the_next_sign_in(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "eng")
    signed_in(Client(), organization)
    okta.person["groups"] = ["leads"]
    client = Client()
    signed_in(client, organization)
    assert Member.objects.get(organization=organization).role == "lead"
    assert client.get(f"/o/{organization.slug}/members").status_code == 200


def test_who_has_no_group_is_told_and_nothing_is_made(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "others")
    client = Client()
    answer = signed_in(client, organization)
    assert answer.status_code == 403
    assert told(answer).startswith("Okta names no group of yours that has a role here.")
    assert is_nobody(client)
    assert not Member.objects.filter(organization=organization).exists()
    assert not User.objects.filter(email=okta.person["email"]).exists()


# --------------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"iss": "https://evil.example"}, "is of another issuer"),
        ({"aud": "somebody-else"}, "is for another client"),
        ({"aud": [CLIENT_ID, "somebody-else"]}, "is for another client"),
        ({"azp": "somebody-else"}, "is for another client"),
        ({"exp": 1_600_000_000}, "has expired"),
        ({"exp": None}, "does not hold"),
        ({"iat": 99_999_999_999}, "does not hold"),
        ({"nonce": "another"}, "belongs to another sign-in"),
        ({"nonce": None}, "belongs to another sign-in"),
        ({"sub": None}, "does not hold"),
        ({"sub": "somebody-else"}, "tells of another person"),
    ],
)
def test_a_token_that_does_not_hold_lets_nobody_in(
    organization: Organization, okta: OidcProvider, claims: dict[str, Any], said: str
) -> None:
    okta.person, okta.claims = ada(organization, "eng"), claims
    client = Client()
    answer = signed_in(client, organization)
    assert answer.status_code == 403
    assert said in told(answer)
    assert is_nobody(client)
    assert not Member.objects.filter(organization=organization).exists()


@pytest.mark.parametrize("signed", ["none", "secret", "other"])
def test_a_token_that_the_providers_key_has_not_signed_lets_nobody_in(
    organization: Organization, okta: OidcProvider, signed: str
) -> None:
    okta.person, okta.faults = ada(organization, "eng"), {"signed": signed}
    client = Client()
    answer = signed_in(client, organization)
    assert answer.status_code == 403
    assert "token" in told(answer)
    assert is_nobody(client)
    assert not Member.objects.filter(organization=organization).exists()


@pytest.mark.parametrize(
    "person",
    [
        {"email_verified": False},
        {"email_verified": None},
        {"email_verified": "yes"},
        {"email": None},
        {"email": "ada@elsewhere.example"},
    ],
)
def test_an_address_that_is_not_verified_or_not_theirs_lets_nobody_in(
    organization: Organization, okta: OidcProvider, person: dict[str, Any]
) -> None:
    okta.person = ada(organization, "eng", **person)
    client = Client()
    assert signed_in(client, organization).status_code == 403
    assert is_nobody(client)
    assert not Member.objects.filter(organization=organization).exists()


def test_an_answer_is_taken_once_and_in_its_own_browser(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "eng")
    client, other = Client(), Client()
    back = returned(begun(client, organization))
    assert other.get(back).status_code == 401
    assert is_nobody(other)
    assert client.get(back).status_code == 302
    calls = len(okta.asked)
    assert client.get(back).status_code == 401
    assert len(okta.asked) == calls
    assert Client().get(f"/accounts/oidc/{organization.slug}/login/callback/?code=x&state=y").status_code == 401


def test_an_answer_for_one_organization_is_none_for_another(organization: Organization, okta: OidcProvider) -> None:
    other = factories.organization()
    set_up(other, okta)
    okta.person = ada(organization, "eng")
    client = Client()
    back = returned(begun(client, organization)).replace(organization.slug, other.slug, 1)
    assert client.get(back).status_code == 401
    assert is_nobody(client)


def test_a_code_of_another_sign_in_is_refused_by_pkce(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "eng")
    client = Client()
    mine, stolen = returned(begun(client, organization)), returned(begun(Client(), organization))
    code = parse_qs(urlsplit(stolen).query)["code"][0]
    answer = client.get(re.sub("code=[^&]+", f"code={code}", mine))
    assert answer.status_code == 403
    assert "token endpoint answered 400" in told(answer)
    assert is_nobody(client)


def test_an_answer_of_another_issuer_is_refused(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "eng")
    client = Client()
    answer = client.get(returned(begun(client, organization)) + "&iss=https://evil.example")
    assert (answer.status_code, told(answer)) == (403, "The answer is of another issuer.")


@pytest.mark.parametrize(
    "faults",
    [
        {"discovery": {"issuer": "https://evil.example"}},
        {"discovery": {"authorization_endpoint": "javascript:alert(1)"}},
        {"discovery": {"token_endpoint": "http://10.0.0.1/token"}},
        {"discovery": {"jwks_uri": "http://169.254.169.254/latest/meta-data/"}},
        {"discovery": {"userinfo_endpoint": "http://[::ffff:10.0.0.1]/"}},
        {"discovery": {"token_endpoint": "http://93.184.215.14/token"}},
        {"discovery": {"token_endpoint": None}},
        {"redirect": "/.well-known/openid-configuration"},
        {"endless": "/.well-known/openid-configuration"},
    ],
)
def test_a_provider_that_leads_elsewhere_is_not_followed(
    organization: Organization, okta: OidcProvider, faults: dict[str, Any]
) -> None:
    okta.faults = faults
    answer = Client().get(f"/accounts/oidc/{organization.slug}/login/")
    assert answer.status_code == 502
    assert told(answer).startswith("The provider could not be asked.")
    assert [path for path, _ in okta.asked] == ["/.well-known/openid-configuration"]


def test_a_private_address_is_not_called(organization: Organization, okta: OidcProvider, settings: Any) -> None:
    settings.UPSTREAM_ALLOWED_NETWORKS = []
    assert Client().get(f"/accounts/oidc/{organization.slug}/login/").status_code == 502
    assert okta.asked == []


@pytest.mark.parametrize("path", ["/token", "/keys"])
def test_redirects_of_keys_lead_nowhere(organization: Organization, okta: OidcProvider, path: str) -> None:
    okta.person, okta.faults = ada(organization, "eng"), {"redirect": path}
    client = Client()
    answer = signed_in(client, organization)
    assert (answer.status_code, is_nobody(client)) == ((502, True) if path == "/keys" else (302, False))
    assert "/elsewhere" not in [path for path, _ in okta.asked]


def test_who_is_not_let_in_there_is_told_so(organization: Organization, okta: OidcProvider) -> None:
    okta.faults = {"error": "access_denied"}
    client = Client()
    answer = signed_in(client, organization)
    assert "does not let you in" in client.get(answer["location"]).content.decode()
    okta.faults = {"error": "server_error"}
    assert signed_in(Client(), organization).status_code == 401
