"""What a session by an organization's provider reaches, when it ends, and how one finds the provider."""

import pytest
from django.test import Client

from accounts import identity, invitations, members, vouching
from accounts.models import AuditEvent, Member, Organization, User
from config.clock import utc_now
from tests import factories
from tests.accounts.providing import ada, is_nobody, set_up, signed_in, told
from tests.flows.oidc_provider import OidcProvider

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization(okta: OidcProvider) -> Organization:
    made = factories.organization()
    set_up(made, okta)
    return made


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
