"""Signing in by an organization's provider, over a real socket: what is checked, and what such a session reaches."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from django.contrib.auth import SESSION_KEY
from django.http import HttpResponse
from django.test import Client
from django.urls import resolve

from accounts import identity, identity_login, invitations, members, vouching
from accounts.identity import Asked
from accounts.models import AuditEvent, Member, Organization, User
from config.clock import utc_now
from tests import factories, secrets
from tests.flows.oidc_provider import CLIENT_ID, OidcProvider

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
    settings.PUBLIC_URL = "http://testserver"
    return running


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


@pytest.fixture
def organization(okta: OidcProvider) -> Organization:
    made = factories.organization()
    set_up(made, okta)
    return made


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


# ------------------------------------------------------------------------------------------------------ what it reaches


@pytest.fixture
def victim(okta: OidcProvider) -> Member:
    """Somebody's owner, with a password."""
    return factories.member(factories.organization(), role="owner", password=factories.password())


@pytest.fixture
def hostile(okta: OidcProvider, victim: Member) -> Organization:
    """An organization whose owner has set up a provider of their own for the victim's domain. It says who they like."""
    assert victim.user is not None
    made = factories.organization()
    set_up(made, okta, email_domains=(identity.domain_of(victim.user.email),))
    okta.person = ada(made, "chiefs", email=victim.user.email)
    return made


CLOSED = [
    "/accounts/security/",
    "/accounts/password/change/",
    "/accounts/password/set/",
    "/accounts/password/reset/",
    "/accounts/email/",
    "/accounts/reauthenticate/",
    "/accounts/2fa/totp/activate/",
    "/accounts/2fa/webauthn/add/",
    "/accounts/2fa/recovery-codes/",
    "/accounts/sessions/",
    "/accounts/3rdparty/",
]


def test_a_hostile_provider_reaches_its_own_organization_only(hostile: Organization, victim: Member) -> None:
    """An owner sets up a provider for somebody else's domain: the session is worth their own organization and nothing else."""
    client = Client()
    assert signed_in(client, hostile).status_code == 302
    assert victim.user is not None
    theirs = victim.organization.slug
    for page in ("", "key", "overview", "members", "pool", "invoices", "alerts", "requests", "usage", "settings/identity"):
        assert client.get(f"/o/{theirs}/{page}").status_code == 404, page
    assert client.post(f"/o/{theirs}/key/issue", {"name": "x"}).status_code == 404
    assert victim.api_keys.count() == 0
    shown = client.get(f"/o/{hostile.slug}/key").content.decode()
    assert theirs not in shown
    assert victim.organization.name not in shown
    assert client.get("/")["location"].startswith(f"/o/{hostile.slug}/")
    # The admin is scoped to what the session reaches.
    shown = client.get("/admin/accounts/member/").content.decode()
    assert str(Member.objects.get(organization=hostile)) in shown
    assert str(victim.uuid) not in shown
    assert victim.organization.name not in shown
    assert client.get(f"/admin/accounts/member/{victim.pk}/change/").status_code in (302, 403, 404)


@pytest.mark.parametrize("path", CLOSED)
def test_what_is_the_persons_own_is_closed_to_it(hostile: Organization, victim: Member, path: str) -> None:
    client = Client()
    signed_in(client, hostile)
    assert victim.user is not None
    before = victim.user.password
    for answer in (client.get(path), client.post(path, {"password1": "another password 1", "password2": "another password 1"})):
        assert answer.status_code == 403, path
    victim.user.refresh_from_db()
    assert victim.user.password == before


def test_the_victims_password_does_not_reach_what_the_provider_made(hostile: Organization, victim: Member) -> None:
    """The other way round: who holds a password, by whatever link it was set, does not get in where a provider let them in."""
    signed_in(Client(), hostile)
    member = Member.objects.get(organization=hostile)
    assert (member.user, member.is_vouched) == (victim.user, True)
    client = Client()
    client.force_login(victim.user)
    assert client.get(f"/o/{hostile.slug}/").status_code == 404
    assert hostile.name not in client.get(f"/o/{victim.organization.slug}/key").content.decode()
    invitations.invite(hostile, member.user.email, role="owner", now=utc_now(), by=None)
    assert client.get(f"/o/{hostile.slug}/").status_code == 404


def test_a_password_set_by_a_hostile_link_opens_nothing_of_a_provider(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "chiefs")
    signed_in(Client(), organization)
    hostile = factories.organization()
    link = invitations.invite(hostile, okta.person["email"], role="developer", now=utc_now(), by=None)
    intruder = invitations.accept(link.url.rpartition("/")[2], password="an intruder's password 1", now=utc_now()).user
    client = Client()
    client.force_login(intruder)
    assert client.get(f"/o/{hostile.slug}/").status_code == 302
    assert client.get(f"/o/{organization.slug}/").status_code == 404
    mine = Client()
    signed_in(mine, organization)
    assert mine.get(f"/o/{organization.slug}/").status_code == 302


def test_a_session_by_password_becomes_one_of_the_provider_and_back(hostile: Organization, victim: Member) -> None:
    """The two do not add up, in either order."""
    client = Client()
    client.force_login(victim.user)
    signed_in(client, hostile)
    assert client.get(f"/o/{victim.organization.slug}/").status_code == 404
    assert client.get(f"/o/{hostile.slug}/").status_code == 302
    client.force_login(victim.user)
    assert client.get(f"/o/{victim.organization.slug}/").status_code == 302
    assert client.get(f"/o/{hostile.slug}/").status_code == 404


def test_operators_do_not_come_in_and_whoever_becomes_one_is_out(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "eng")
    client = Client()
    signed_in(client, organization)
    User.objects.filter(email=okta.person["email"]).update(is_superuser=True, is_staff=True)
    assert client.get(f"/o/{organization.slug}/key").status_code == 302
    assert client.get("/admin/").status_code == 302
    again = Client()
    answer = signed_in(again, organization)
    assert (answer.status_code, told(answer)) == (403, "Operators of this Weir sign in with their password.")


@pytest.mark.parametrize("what", ["switched off", "removed", "another issuer", "member removed", "user switched off"])
def test_the_session_ends_at_once(organization: Organization, okta: OidcProvider, what: str) -> None:
    okta.person = ada(organization, "eng")
    client = Client()
    signed_in(client, organization)
    assert client.get(f"/o/{organization.slug}/key").status_code == 200
    match what:
        case "switched off":
            set_up(organization, okta, is_active=False)
        case "removed":
            identity.remove_provider(organization, by=None)
        case "another issuer":
            set_up(organization, okta, issuer=f"{okta.issuer}/other")
        case "member removed":
            members.remove(Member.objects.get(organization=organization), by=None, now=utc_now())
        case _:
            User.objects.filter(email=okta.person["email"]).update(is_active=False)
    answer = client.get(f"/o/{organization.slug}/key")
    assert answer.status_code == 302
    assert answer["location"].startswith("/accounts/login/")


def test_signing_out_ends_our_session(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "eng")
    client = Client()
    signed_in(client, organization)
    client.post("/accounts/logout/")
    assert is_nobody(client)
    assert client.get(f"/o/{organization.slug}/key").status_code == 302


def test_who_forgets_to_attach_the_session_reaches_nothing(organization: Organization, okta: OidcProvider) -> None:
    okta.person = ada(organization, "eng")
    client = Client()
    signed_in(client, organization)
    user = User.objects.get(email=okta.person["email"])
    bare = vouching.VouchedBackend().get_user(user.pk)
    assert bare is not None
    assert not vouching.reachable(bare).exists()
    assert vouching.reachable(vouching.user_of(client.session)).get().organization == organization


# ---------------------------------------------------------------------------------------------------- finding the provider


def test_the_page_finds_the_provider_by_address(organization: Organization, okta: OidcProvider) -> None:
    client = Client()
    assert "Sign in with your organization" in client.get("/accounts/login/").content.decode()
    shown = client.post("/accounts/sso/", {"email": f"Ada@{organization.slug}.example"})
    assert shown.status_code == 200
    assert f'href="/accounts/oidc/{organization.slug}/login/"' in shown.content.decode()
    assert organization.name not in shown.content.decode()
    refused = client.post("/accounts/sso/", {"email": "ada@nowhere.example"})
    assert refused.status_code == 400
    assert told(refused).startswith("No provider is set up for this address.")


def test_the_organizations_own_link(organization: Organization, okta: OidcProvider) -> None:
    assert "Sign in with Okta" in Client().get(f"/accounts/sso/{organization.slug}").content.decode()
    assert Client().get("/accounts/sso/no-such-organization").status_code == 404
    assert Client().get("/accounts/oidc/no-such-organization/login/").status_code == 404
    assert Client().get("/accounts/oidc/no-such-organization/login/callback/").status_code == 404
    set_up(organization, okta, is_active=False)
    assert Client().get(f"/accounts/sso/{organization.slug}").status_code == 404


def test_where_it_is_required_a_password_does_not_do(organization: Organization, okta: OidcProvider) -> None:
    password = factories.password()
    developer = factories.member(organization, password=password)
    owner = factories.member(organization, role="owner", password=password)
    before = Client()
    before.force_login(developer.user)
    set_up(organization, okta, is_required=True)
    assert developer.user is not None
    client = Client()
    answer = client.post("/accounts/login/", {"login": developer.user.email, "password": password})
    assert answer.status_code == 403
    assert told(answer) == "Your organization lets you in by Okta only, not by a password."
    assert is_nobody(client)
    # A session that was there before is led to the provider, and on to what was asked for.
    led = before.get(f"/o/{organization.slug}/requests")
    assert led["location"] == f"/accounts/sso/{organization.slug}?next=%2Fo%2F{organization.slug}%2Frequests"
    assert f"next=%2Fo%2F{organization.slug}%2Frequests" in before.get(led["location"]).content.decode()
    assert owner.user is not None
    assert client.post("/accounts/login/", {"login": owner.user.email, "password": password}).status_code == 302
    assert client.get(f"/o/{organization.slug}/").status_code == 302
    assert AuditEvent.objects.filter(organization=organization, action="identity_provider.set").count() == 2


def test_a_hostile_organization_keeps_nobody_out_of_another(hostile: Organization, okta: OidcProvider, victim: Member) -> None:
    """Somebody else's provider that is required for the victim's domain does not stand in the way of their password."""
    assert victim.user is not None
    signed_in(Client(), hostile)
    set_up(hostile, okta, email_domains=(identity.domain_of(victim.user.email),), is_required=True)
    assert identity.instead_of_password(victim.user) is None
    client = Client()
    client.force_login(victim.user)
    assert client.get(f"/o/{victim.organization.slug}/").status_code == 302
