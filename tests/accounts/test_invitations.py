"""One-time links."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.http import Http404
from django.test import Client

from accounts import invitations, members, organizations, tenancy
from accounts.errors import AlreadyMember, InvitationInvalid, NameInvalid, PasswordRefused
from accounts.invitations import VALID_FOR
from accounts.models import AuditEvent, Invitation, Member, Organization, User
from config.clock import utc_now
from tests import factories, secrets

NOW = utc_now()


def token_of(url: str | None) -> str:
    assert url is not None
    return secrets.register(url.rpartition("/")[2], "invitation token")


def owner_link(email: str = "ada@example.org", organization: Organization | None = None) -> tuple[Organization, str]:
    organization = organization or factories.organization(plan=None)
    return organization, token_of(invitations.create_owner_link(organization, email, now=NOW).url)


@pytest.fixture
def no_organizations() -> None:
    """As on an empty database: inside this test's transaction empty tables stand before what other tests committed."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA blank")
        for model in (User, Organization, Member, Invitation, AuditEvent):
            table = model._meta.db_table
            cursor.execute(f"CREATE TABLE blank.{table} (LIKE public.{table} INCLUDING ALL)")
        cursor.execute("SET LOCAL search_path = blank, public")


@pytest.mark.django_db
class TestOwnerLink:
    def test_it_makes_an_owner_at_once_who_sets_a_password_by_it(self, settings: Any) -> None:
        settings.PUBLIC_URL = "https://weir.example"
        organization = factories.organization(plan=None)
        link = invitations.create_owner_link(organization, "Ada@Example.org", now=NOW)
        assert link.url.startswith("https://weir.example/join/")
        assert link.url not in repr(link)
        token = token_of(link.url)
        assert token not in str(Invitation.objects.filter(pk=link.invitation.pk).values_list()[0])
        assert members.find(organization, "ada@example.org").role == "owner"
        offer = invitations.look_up(token, now=NOW)
        assert (offer.organization, offer.email, offer.has_password) == (organization, "ada@example.org", False)
        password = factories.password()
        accepted = invitations.accept(token, password=password, name="Ada", now=NOW)
        assert not accepted.is_first
        assert (str(accepted.member), accepted.member.organization, accepted.member.role) == ("Ada", organization, "owner")
        assert User.objects.get(email="ada@example.org").check_password(password)
        assert AuditEvent.objects.filter(organization=organization, action="invitation.accepted").count() == 1

    def test_who_has_a_name_here_already_is_not_asked_for_one(self) -> None:
        organization = factories.organization(plan=None)
        unnamed = token_of(invitations.invite(organization, "ada@example.org", role="developer", now=NOW, by=None).url)
        named = token_of(
            invitations.invite(organization, "bea@example.org", role="developer", name="Bea Bell", now=NOW, by=None).url
        )
        assert [invitations.look_up(token, now=NOW).name for token in (unnamed, named)] == ["", "Bea Bell"]
        pages = [Client().get(f"/join/{token}").content.decode() for token in (unnamed, named)]
        assert ['name="name"' in page for page in pages] == [True, False]
        assert "Bea Bell · as developer, bea@example.org" in pages[1]

    def test_it_works_once(self) -> None:
        _, token = owner_link()
        password = factories.password()
        invitations.accept(token, password=password, now=NOW)
        for call in (
            lambda: invitations.look_up(token, now=NOW),
            lambda: invitations.accept(token, password="another-one-9182", now=NOW),
        ):
            with pytest.raises(InvitationInvalid):
                call()
        assert User.objects.get(email="ada@example.org").check_password(password)

    def test_it_holds_for_seven_days(self) -> None:
        _, token = owner_link()
        assert timedelta(days=7) == VALID_FOR
        assert invitations.look_up(token, now=NOW + VALID_FOR - timedelta(seconds=1)).email == "ada@example.org"
        with pytest.raises(InvitationInvalid):
            invitations.look_up(token, now=NOW + VALID_FOR)
        with pytest.raises(InvitationInvalid):
            invitations.accept(token, password=factories.password(), now=NOW + VALID_FOR)
        assert not User.objects.get(email="ada@example.org").has_usable_password()

    def test_a_weak_password_leaves_it_as_it_was(self) -> None:
        _, token = owner_link()
        with pytest.raises(PasswordRefused):
            invitations.accept(token, password="short", now=NOW)
        assert invitations.look_up(token, now=NOW).email == "ada@example.org"
        assert not User.objects.get(email="ada@example.org").has_usable_password()

    def test_it_never_changes_the_password_that_a_person_has(self) -> None:
        password = factories.password()
        members.add(factories.organization(plan=None), "ada@example.org", role="developer", by=None, password=password)
        organization, token = owner_link()
        assert invitations.look_up(token, now=NOW).has_password
        with pytest.raises(PasswordRefused):
            invitations.accept(token, password=factories.password(), now=NOW)
        assert invitations.accept(token, password=password, now=NOW).member.organization == organization
        assert User.objects.get(email="ada@example.org").check_password(password)

    def test_it_gives_nothing_back_to_who_was_removed(self) -> None:
        organization, token = owner_link()
        factories.member(organization, role="owner")
        members.remove(members.find(organization, "ada@example.org"), by=None, now=NOW)
        with pytest.raises(InvitationInvalid):
            invitations.accept(token, password=factories.password(), now=NOW)
        assert not User.objects.get(email="ada@example.org").has_usable_password()

    @pytest.mark.parametrize("token", ["", "x", "a" * 43, "\udcff"])
    def test_an_unknown_one_is_refused_like_a_used_one(self, token: str) -> None:
        with pytest.raises(InvitationInvalid):
            invitations.look_up(token, now=NOW)


@pytest.mark.django_db
@pytest.mark.usefixtures("no_organizations")
class TestFirstOwnerLink:
    def test_it_creates_the_organization_and_its_owner(self) -> None:
        """J7: who sets the product up holds a link; there is no open page that does it."""
        token = token_of(invitations.first_owner_link(base_url="http://127.0.0.1:9/", now=NOW))
        offer = invitations.look_up(token, now=NOW)
        assert (offer.organization, offer.email, offer.has_password) == (None, "", False)
        password = factories.password()
        with pytest.raises(NameInvalid):
            invitations.accept(token, password=password, email="first@example.org", organization_name="", now=NOW)
        assert not Organization.objects.exists()
        accepted = invitations.accept(
            token,
            password=password,
            email="First@Example.org",
            organization_name="Acme",
            timezone="Asia/Tokyo",
            name="Ada",
            now=NOW,
        )
        assert accepted.is_first
        assert (accepted.member.role, str(accepted.member), accepted.user.email) == ("owner", "Ada", "first@example.org")
        assert (accepted.member.organization.slug, accepted.member.organization.timezone) == ("acme", "Asia/Tokyo")
        assert User.objects.get(email="first@example.org").check_password(password)
        with pytest.raises(InvitationInvalid):
            invitations.look_up(token, now=NOW)
        assert invitations.first_owner_link(now=NOW) is None

    def test_it_is_void_once_there_is_an_organization(self) -> None:
        token = token_of(invitations.first_owner_link(now=NOW))
        organizations.create("Made meanwhile", by=None)
        with pytest.raises(InvitationInvalid):
            invitations.accept(token, password=factories.password(), email="a@example.org", organization_name="Acme", now=NOW)
        assert [one.name for one in Organization.objects.all()] == ["Made meanwhile"]
        assert not User.objects.exists()

    def test_a_new_link_takes_the_place_of_the_one_before(self) -> None:
        first = token_of(invitations.first_owner_link(now=NOW))
        second = token_of(invitations.first_owner_link(now=NOW))
        with pytest.raises(InvitationInvalid):
            invitations.look_up(first, now=NOW)
        assert invitations.look_up(second, now=NOW).organization is None


@pytest.mark.django_db
def test_there_is_no_first_owner_once_there_is_an_organization() -> None:
    factories.organization(plan=None)
    before = Invitation.objects.count()
    assert invitations.first_owner_link(now=NOW) is None
    assert Invitation.objects.count() == before


@pytest.mark.django_db(transaction=True)
def test_of_two_who_race_for_one_link_one_is_let_in() -> None:
    email = f"{factories.unique('ada')}@example.org"
    organization, token = owner_link(email)
    passwords = [factories.password(), factories.password()]
    results: dict[str, Any] = {}
    start = threading.Barrier(2)

    def accept(password: str) -> None:
        start.wait()
        try:
            results[password] = invitations.accept(token, password=password, now=NOW)
        except InvitationInvalid as error:
            results[password] = error
        connection.close()

    threads = [threading.Thread(target=accept, args=(password,)) for password in passwords]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [password for password in passwords if isinstance(results[password], invitations.Accepted)]
    assert len(won) == 1
    assert User.objects.get(email=email).check_password(won[0])
    assert Member.objects.for_organization(organization).count() == 1


@pytest.mark.django_db
class TestTwoOrganizationsInviteOnePerson:
    """A person's account is one for all: a link of one organization must not open another one."""

    def test_a_link_of_one_does_not_open_the_other(self) -> None:
        """J5: without a password yet, whoever opens a link first chooses it; that is no way into where they were invited before."""
        theirs, _ = owner_link("bob@example.org")
        _, taken = owner_link("bob@example.org")
        intruder = invitations.accept(taken, password=factories.password(), now=NOW)
        assert [row.organization for row in tenancy.memberships(intruder.user)] == [intruder.member.organization]
        with pytest.raises(Http404):
            tenancy.membership(intruder.user, theirs.slug)

    def test_nor_one_that_invites_later(self) -> None:
        _, taken = owner_link("bob@example.org")
        intruder = invitations.accept(taken, password=factories.password(), now=NOW)
        theirs, token = owner_link("bob@example.org")
        with pytest.raises(Http404):
            tenancy.membership(intruder.user, theirs.slug)
        with pytest.raises(PasswordRefused):
            invitations.accept(token, password=factories.password(), now=NOW)
        with pytest.raises(Http404):
            tenancy.membership(intruder.user, theirs.slug)

    def test_nor_one_where_an_operator_added_them_without_a_password(self) -> None:
        theirs = factories.organization(plan=None)
        members.add(theirs, "bob@example.org", role="owner", by=None)
        _, taken = owner_link("bob@example.org")
        intruder = invitations.accept(taken, password=factories.password(), now=NOW)
        with pytest.raises(Http404):
            tenancy.membership(intruder.user, theirs.slug)

    def test_another_address_does_not_open_it_either(self) -> None:
        _, taken = owner_link("bob@example.org")
        intruder = invitations.accept(taken, password=factories.password(), now=NOW).user
        theirs, _ = owner_link("bob@example.org")
        intruder.email = "other@example.org"
        intruder.save(update_fields=["email"])
        with pytest.raises(Http404):
            tenancy.membership(intruder, theirs.slug)

    def test_each_opens_by_its_own_link(self) -> None:
        first, one = owner_link("bob@example.org")
        second, two = owner_link("bob@example.org")
        password = factories.password()
        invitations.accept(two, password=password, now=NOW)
        user = invitations.accept(one, password=password, now=NOW).user
        assert {tenancy.membership(user, slug).organization for slug in (first.slug, second.slug)} == {first, second}

    def test_who_has_not_come_gets_another_link_as_the_same_and_as_nothing_else(self) -> None:
        organization, _ = owner_link("bob@example.org")
        with pytest.raises(AlreadyMember):
            invitations.invite(organization, "bob@example.org", role="developer", now=NOW, by=None)
        token = token_of(invitations.invite(organization, "Bob@example.org ", role="owner", now=NOW, by=None).url)
        assert Member.objects.for_organization(organization).count() == 1
        user = invitations.accept(token, password=factories.password(), now=NOW).user
        assert tenancy.membership(user, organization.slug).role == "owner"
        with pytest.raises(AlreadyMember):
            invitations.invite(organization, "bob@example.org", role="owner", now=NOW, by=None)

    def test_nobody_becomes_an_operator_by_it(self) -> None:
        User.objects.create_superuser("operator@example.org", None)
        _, token = owner_link("operator@example.org")
        with pytest.raises(PasswordRefused):
            invitations.accept(token, password=factories.password(), now=NOW)
        assert not User.objects.get(email="operator@example.org").has_usable_password()
