"""Providers of organizations: set up, found, and whom they let in as what."""

from dataclasses import replace
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount

from accounts import identity, invitations, members
from accounts.errors import ProviderInvalid, SignInRefused
from accounts.identity import Asked
from accounts.identity_tokens import Claims
from accounts.models import AuditEvent, IdentityProvider, Member, Organization, User
from config.clock import utc_now
from tests import factories, secrets

pytestmark = pytest.mark.django_db


def domain_of(organization: Organization) -> str:
    return f"{organization.slug}.example"


def asked(organization: Organization, **fields: Any) -> Asked:
    base = Asked(
        name="Okta",
        issuer="http://127.0.0.1:9/tenant",
        client_id="weir",
        client_secret=secrets.register("s3cret-of-the-client-of-a-test", "client secret"),
        email_domains=(domain_of(organization),),
        role_claim="groups",
        role_map={"eng": "developer", "leads": "lead", "books": "finance", "chiefs": "owner"},
    )
    return replace(base, **fields)


def provider(organization: Organization, **fields: Any) -> IdentityProvider:
    return identity.set_provider(organization, asked(organization, **fields), by=None)


def claims(email: str, *names: str, sub: str = "1", name: str = "Ada Byron") -> Claims:
    return Claims(subject=sub, email=email, name=name, values={"groups": list(names)})


def events(organization: Organization) -> list[str]:
    return list(AuditEvent.objects.filter(organization=organization).order_by("id").values_list("action", flat=True))


@pytest.fixture(autouse=True)
def _this_machine_is_allowed(settings: Any) -> None:
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]


@pytest.fixture
def organization() -> Organization:
    return factories.organization(plan=None)


@pytest.fixture
def owner(organization: Organization) -> Member:
    return factories.member(organization, role="owner", password=factories.password())


def address(organization: Organization) -> str:
    return f"{factories.unique('ada')}@{domain_of(organization)}"


def test_the_secret_is_sealed_and_in_no_event(organization: Organization, owner: Member) -> None:
    row = identity.set_provider(organization, asked(organization), by=owner.user)
    assert "s3cret" not in row.client_secret
    assert identity.secret_of(row) == "s3cret-of-the-client-of-a-test"
    event = AuditEvent.objects.get(organization=organization, action="identity_provider.set")
    assert event.actor == owner.user
    assert event.data["changed"]["client_secret"] == ["", "changed"]
    assert "s3cret" not in str(event.data)
    assert "s3cret" not in repr(asked(organization))


def test_a_change_keeps_the_secret_and_tells_what_changed(organization: Organization) -> None:
    row = provider(organization)
    changed = identity.set_provider(organization, asked(organization, client_secret=None, default_role="developer"), by=None)
    assert changed.pk == row.pk
    assert identity.secret_of(changed) == "s3cret-of-the-client-of-a-test"
    event = AuditEvent.objects.filter(organization=organization, action="identity_provider.set").latest("id")
    assert event.data["changed"] == {"default_role": ["", "developer"]}


def test_the_same_again_is_no_event(organization: Organization) -> None:
    provider(organization)
    identity.set_provider(organization, asked(organization, client_secret=None), by=None)
    assert events(organization).count("identity_provider.set") == 1


def test_another_issuer_never_gets_the_secret_of_the_one_before(organization: Organization) -> None:
    row = provider(organization)
    other = asked(organization, client_secret=None, issuer="http://127.0.0.1:9/mine")
    with pytest.raises(ProviderInvalid, match="Enter the client secret again"):
        identity.set_provider(organization, other, by=None)
    row.refresh_from_db()
    assert row.issuer == "http://127.0.0.1:9/tenant"


def test_another_issuer_ends_all_links(organization: Organization) -> None:
    row = provider(organization)
    identity.admit(row, claims(address(organization), "eng"), now=utc_now())
    provider(organization, issuer="http://127.0.0.1:9/mine")
    assert not SocialAccount.objects.filter(provider=str(row.uuid)).exists()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"issuer": "http://10.0.0.1/"}, "issuer"),
        ({"issuer": "http://93.184.215.14/"}, "issuer"),
        ({"issuer": "ftp://127.0.0.1/"}, "issuer"),
        ({"issuer": "https://user:pw@127.0.0.1/"}, "issuer"),
        ({"issuer": "http://127.0.0.1/?x=1"}, "issuer"),
        ({"client_id": " "}, "client_id"),
        ({"email_domains": ()}, "email_domains"),
        ({"email_domains": ("example",)}, "email_domains"),
        ({"email_domains": ("*.example.com",)}, "email_domains"),
        ({"role_claim": ""}, "role_claim"),
        ({"role_claim": "", "role_map": {}}, "default_role"),
        ({"default_role": "king"}, "default_role"),
        ({"role_map": {"eng": "king"}}, "role_map"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(organization: Organization, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ProviderInvalid) as refused:
        provider(organization, **fields)
    assert refused.value.facts["field"] == field
    assert identity.of(organization) is None


def test_removal_takes_links_and_secret(organization: Organization) -> None:
    row = provider(organization)
    identity.admit(row, claims(address(organization), "eng"), now=utc_now())
    identity.remove_provider(organization, by=None)
    identity.remove_provider(organization, by=None)
    assert identity.of(organization) is None
    assert not SocialAccount.objects.filter(provider=str(row.uuid)).exists()
    assert events(organization).count("identity_provider.removed") == 1


def test_it_is_found_by_slug_and_address_while_active(organization: Organization) -> None:
    row = provider(organization)
    assert identity.by_slug(organization.slug) == row
    assert identity.by_email(f"Somebody@{domain_of(organization).upper()}") == [row]
    assert identity.by_email(f"x@sub.{domain_of(organization)}") == []
    provider(organization, is_active=False)
    assert identity.by_slug(organization.slug) is None
    assert identity.by_email(f"x@{domain_of(organization)}") == []


@pytest.mark.parametrize(
    ("names", "role"),
    [(["eng"], "developer"), (["books", "eng"], "finance"), (["eng", "leads", "books"], "lead"), (["leads", "chiefs"], "owner")],
)
def test_the_highest_role_wins(organization: Organization, names: list[str], role: str) -> None:
    assert identity.decide(provider(organization), {"groups": names}) == role


def test_who_has_no_group_is_refused_or_gets_the_default(organization: Organization) -> None:
    row = provider(organization)
    with pytest.raises(SignInRefused, match="names no group of yours"):
        identity.decide(row, {"groups": ["others", 7, None, {"eng": 1}]})
    with pytest.raises(SignInRefused):
        identity.decide(row, {})
    row.default_role = "developer"
    assert identity.decide(row, {}) == "developer"
    row.role_claim = ""
    assert identity.decide(row, {"groups": ["chiefs"]}) is None


def test_a_claim_is_found_as_it_is_then_inside() -> None:
    assert identity.groups({"realm_access": {"roles": ["a", "b"]}}, "realm_access.roles") == ["a", "b"]
    assert identity.groups({"https://x.example/roles": "a"}, "https://x.example/roles") == ["a"]
    assert identity.groups({"a": ["x"]}, "a.b") == []


def test_a_new_person_becomes_a_member_with_the_role(organization: Organization) -> None:
    row = provider(organization)
    email = address(organization)
    admitted = identity.admit(row, claims(email, "leads"), now=utc_now())
    assert (admitted.member.organization, admitted.member.role) == (organization, "lead")
    assert (admitted.member.display_name, admitted.user.email) == ("Ada Byron", email)
    assert not admitted.user.has_usable_password()
    assert (admitted.link.uid, admitted.link.provider, admitted.link.extra_data) == ("1", str(row.uuid), {})
    added = AuditEvent.objects.get(organization=organization, action="member.added")
    assert (added.actor, added.actor_label) == (None, "Okta (sign-in provider)")


def test_who_had_a_passkey_before_comes_in_by_the_provider_only(organization: Organization) -> None:
    row = provider(organization)
    user = User.objects.create_user(address(organization))
    Authenticator.objects.create(user=user, type=Authenticator.Type.WEBAUTHN, data={})
    assert identity.admit(row, claims(user.email, "eng"), now=utc_now()).member.is_vouched


def test_the_same_person_again_is_known_by_the_providers_id(organization: Organization) -> None:
    row = provider(organization)
    first = identity.admit(row, claims(address(organization), "eng"), now=utc_now())
    again = identity.admit(row, claims(address(organization), "eng"), now=utc_now())
    assert (again.user, again.member, again.link) == (first.user, first.member, first.link)
    assert again.user.email == first.user.email


def test_another_group_another_role(organization: Organization, owner: Member) -> None:
    row = provider(organization)
    email = address(organization)
    identity.admit(row, claims(email, "eng"), now=utc_now())
    admitted = identity.admit(row, claims(email, "books"), now=utc_now())
    assert admitted.member.role == "finance"
    event = AuditEvent.objects.get(organization=organization, action="member.changed")
    assert (event.actor, event.actor_label) == (None, "Okta (sign-in provider)")
    assert event.data["after"]["role"] == "finance"


def test_without_a_claim_a_members_role_stays(organization: Organization) -> None:
    row = provider(organization, role_claim="", role_map={}, default_role="developer")
    lead = factories.member(organization, role="lead")
    assert lead.user is not None
    assert identity.admit(row, claims(lead.user.email), now=utc_now()).member.role == "lead"
    assert identity.admit(row, claims(address(organization), sub="2"), now=utc_now()).member.role == "developer"


def test_the_last_owner_stays_one(organization: Organization, owner: Member) -> None:
    row = provider(organization)
    assert owner.user is not None
    admitted = identity.admit(row, claims(owner.user.email, "eng"), now=utc_now())
    assert admitted.member.role == "owner"
    kept = AuditEvent.objects.get(organization=organization, action="member.kept_owner")
    assert kept.data == {"role_by_provider": "developer"}
    factories.member(organization, role="owner")
    assert identity.admit(row, claims(owner.user.email, "eng"), now=utc_now()).member.role == "developer"


@pytest.mark.parametrize("is_other", [True, False])
def test_an_address_that_is_not_proven_or_not_theirs_is_refused(organization: Organization, is_other: bool) -> None:
    row = provider(organization)
    before = User.objects.count()
    with pytest.raises(SignInRefused, match="not of a domain" if is_other else "is verified"):
        identity.admit(row, claims("ada@elsewhere.example" if is_other else "", "eng"), now=utc_now())
    assert User.objects.count() == before


def test_operators_and_the_switched_off_never_come_in(organization: Organization) -> None:
    row = provider(organization)
    for fields in ({"is_superuser": True}, {"is_staff": True}, {"is_active": False}):
        user = User.objects.create_user(address(organization), factories.password(), **fields)
        with pytest.raises(SignInRefused):
            identity.admit(row, claims(user.email, "chiefs", sub=user.email), now=utc_now())
        assert not Member.objects.filter(user=user).exists()
        assert not SocialAccount.objects.filter(user=user).exists()


def test_who_was_removed_comes_back_by_an_invitation_only(organization: Organization, owner: Member) -> None:
    row = provider(organization)
    email = address(organization)
    admitted = identity.admit(row, claims(email, "eng"), now=utc_now())
    members.remove(admitted.member, by=owner.user, now=utc_now())
    for sub in ("1", "2"):
        with pytest.raises(SignInRefused, match="You have been removed"):
            identity.admit(row, claims(email, "eng", sub=sub), now=utc_now())
    invitations.invite(organization, email, role="developer", now=utc_now(), by=owner.user)
    back = identity.admit(row, claims(email, "eng", sub="2"), now=utc_now())
    assert back.member.pk != admitted.member.pk
    assert (back.link.uid, back.member.is_awaited) == ("2", False)


def test_an_address_that_was_given_to_somebody_else_opens_nothing(organization: Organization) -> None:
    row = provider(organization)
    email = address(organization)
    identity.admit(row, claims(email, "eng"), now=utc_now())
    with pytest.raises(SignInRefused, match="Somebody else"):
        identity.admit(row, claims(email, "eng", sub="2"), now=utc_now())


def test_a_provider_that_was_switched_off_meanwhile_lets_nobody_in(organization: Organization) -> None:
    row = provider(organization)
    provider(organization, is_active=False)
    with pytest.raises(SignInRefused, match="switched off"):
        identity.admit(row, claims(address(organization), "eng"), now=utc_now())


def test_instead_of_a_password_where_all_organizations_say_so(organization: Organization, owner: Member) -> None:
    row = provider(organization, is_required=True)
    developer = factories.member(organization, password=factories.password())
    assert developer.user is not None
    assert owner.user is not None
    assert identity.instead_of_password(developer.user) == row
    assert identity.instead_of_password(owner.user) is None
    elsewhere = factories.organization(plan=None)
    members.add(elsewhere, developer.user.email, role="developer", by=None)
    assert identity.instead_of_password(developer.user) is None
