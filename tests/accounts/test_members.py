"""Members join, change and leave."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from accounts import members, snapshots, teams
from accounts.errors import (
    AlreadyMember,
    EmailInvalid,
    LastOwner,
    MemberError,
    MemberRemoved,
    NotFound,
    PasswordRefused,
    TeamNotForRole,
)
from accounts.models import ApiKey, AuditEvent, Member, Organization, Team, User
from config.clock import utc_now
from tests import factories


@pytest.mark.django_db
class TestJoining:
    def test_a_new_person_gets_a_password_that_cannot_be_used(self) -> None:
        organization = factories.organization(plan=None)
        member = members.add(organization, "  Ada@Example.ORG ", role="developer", by=None)
        assert member.user is not None
        assert member.user.email == "ada@example.org"
        assert not member.user.has_usable_password()
        assert str(member) == "ada@example.org"

    def test_one_person_in_two_organizations_is_one_user(self) -> None:
        first, second = factories.organization(plan=None), factories.organization(plan=None)
        password = factories.password()
        one = members.add(first, "ada@example.org", role="owner", by=None, password=password)
        two = members.add(second, "ADA@example.org", role="developer", by=None, password=password)
        assert one.user == two.user
        assert (one.role, two.role) == ("owner", "developer")
        assert one.user is not None
        assert one.user.check_password(password)

    def test_the_password_of_somebody_who_has_one_is_never_changed(self) -> None:
        first, second = factories.organization(plan=None), factories.organization(plan=None)
        password = factories.password()
        members.add(first, "ada@example.org", role="owner", by=None, password=password)
        with pytest.raises(PasswordRefused):
            members.add(second, "ada@example.org", role="owner", by=None, password=factories.password())
        assert User.objects.get(email="ada@example.org").check_password(password)
        assert not Member.objects.filter(organization=second).exists()

    def test_a_weak_password_is_refused_with_its_reasons_and_nobody_is_made(self) -> None:
        organization = factories.organization(plan=None)
        with pytest.raises(PasswordRefused) as refused:
            members.add(organization, "ada@example.org", role="owner", by=None, password="12345")
        assert len(refused.value.facts["reasons"]) == 3
        assert not User.objects.filter(email="ada@example.org").exists()

    def test_the_same_person_joins_once(self) -> None:
        organization = factories.organization(plan=None)
        members.add(organization, "ada@example.org", role="owner", by=None)
        with pytest.raises(AlreadyMember):
            members.add(organization, "Ada@example.org", role="lead", by=None)
        assert Member.objects.filter(organization=organization).count() == 1

    @pytest.mark.parametrize(
        "email", ["", "ada", "ada@", "a b@example.org", "ada@example.org\nbcc: x@y.z", "a" * 250 + "@example.org"]
    )
    def test_what_is_no_address_is_refused(self, email: str) -> None:
        with pytest.raises(EmailInvalid):
            members.add(factories.organization(plan=None), email, role="owner", by=None)

    def test_an_unknown_role_names_the_roles_there_are(self) -> None:
        with pytest.raises(MemberError, match="developer, lead, finance, owner"):
            members.add(factories.organization(plan=None), "ada@example.org", role="admin", by=None)

    def test_owners_have_no_team_and_a_foreign_team_does_not_exist(self) -> None:
        organization, other = factories.organization(plan=None), factories.organization(plan=None)
        with pytest.raises(TeamNotForRole):
            members.add(organization, "ada@example.org", role="owner", team=factories.team(organization), by=None)
        with pytest.raises(NotFound):
            members.add(organization, "ada@example.org", role="lead", team=factories.team(other), by=None)
        assert not Member.objects.filter(organization=organization).exists()


@pytest.mark.django_db
class TestLeaving:
    def test_the_keys_end_and_the_person_is_forgotten(self) -> None:
        organization = factories.organization(plan=None)
        member = factories.member(organization)
        first, second = factories.api_key(member), factories.api_key(member)
        other = factories.api_key(factories.member(organization))
        now = utc_now()
        removed = members.remove(member, by=None, now=now)
        assert removed.keys_revoked == 2
        assert set(snapshots.load(organization.pk).keys) == {other.row.public_id}
        assert {ApiKey.objects.get(pk=key.row.pk).revoked_at for key in (first, second)} == {now}
        row = Member.objects.get(pk=member.pk)
        assert (str(row), row.user, row.removed_at) == ("former member 1", None, now)
        assert str(members.remove(factories.member(organization), by=None, now=now).member) == "former member 2"
        told = AuditEvent.objects.get(action="member.removed", object_id=str(member.uuid))
        assert told.data == {"keys_revoked": 2}

    def test_a_former_member_can_neither_leave_again_nor_change_and_may_come_back(self) -> None:
        organization = factories.organization(plan=None)
        member = members.add(organization, "ada@example.org", role="developer", by=None)
        members.remove(member, by=None, now=utc_now())
        with pytest.raises(MemberRemoved):
            members.remove(member, by=None, now=utc_now())
        with pytest.raises(MemberRemoved):
            members.change(member, role="owner", team=None, by=None, now=utc_now())
        back = members.add(organization, "ada@example.org", role="developer", by=None)
        assert back.pk != member.pk
        assert members.find(organization, "ada@example.org") == back

    def test_the_last_owner_stays_an_owner(self) -> None:
        organization = factories.organization(plan=None)
        owner = factories.member(organization, role="owner")
        factories.member(organization, role="lead")
        with pytest.raises(LastOwner):
            members.remove(owner, by=None, now=utc_now())
        with pytest.raises(LastOwner):
            members.change(owner, role="lead", team=None, by=None, now=utc_now())
        row = Member.objects.get(pk=owner.pk)
        assert (row.role, row.removed_at) == ("owner", None)
        factories.member(organization, role="owner")
        members.remove(owner, by=None, now=utc_now())
        assert Member.objects.get(pk=owner.pk).removed_at is not None

    def test_who_becomes_finance_loses_all_keys(self) -> None:
        organization = factories.organization(plan=None)
        member = factories.member(organization)
        factories.api_key(member)
        changed = members.change(member, role="finance", team=None, by=None, now=utc_now())
        assert changed.role == "finance"
        assert snapshots.load(organization.pk).keys == {}


@pytest.mark.django_db
class TestTeams:
    def test_a_team_is_made_once_whatever_its_case(self) -> None:
        organization = factories.organization(plan=None)
        first = teams.named(organization, " Platform ", by=None)
        assert teams.named(organization, "platform", by=None) == first
        assert Team.objects.filter(organization=organization).count() == 1
        assert teams.find(organization, "PLATFORM") == first

    def test_an_unknown_team_names_the_ones_there_are(self) -> None:
        organization = factories.organization(plan=None)
        teams.named(organization, "Apps", by=None)
        with pytest.raises(NotFound, match="Teams: Apps"):
            teams.find(organization, "Platform")

    def test_a_change_of_team_moves_the_version_and_reaches_the_snapshot(self) -> None:
        organization = factories.organization(plan=None)
        member = factories.member(organization)
        key = factories.api_key(member)
        before = Organization.objects.get(pk=organization.pk).config_version
        team = teams.named(organization, "Apps", by=None)
        members.change(member, role="developer", team=team, by=None, now=utc_now())
        assert Organization.objects.get(pk=organization.pk).config_version == before + 1
        assert snapshots.load(organization.pk).keys[key.row.public_id].team_id == team.pk


@pytest.mark.django_db
def test_the_audit_trail_is_never_changed() -> None:
    organization = factories.organization(plan=None)
    user = factories.member(organization).user
    assert user is not None
    event = AuditEvent.objects.filter(organization=organization).latest("pk")
    for change in (lambda: AuditEvent.objects.filter(pk=event.pk).update(action="x"), event.delete):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            change()
    told = AuditEvent.objects.create(
        organization=organization, actor=user, actor_label="a", action="b", object_type="c", object_id="d"
    )
    Member.objects.filter(user=user).update(user=None, removed_at=utc_now())
    user.delete()
    told.refresh_from_db()
    assert (told.actor, told.actor_label) == (None, "a")


@pytest.mark.django_db
def test_fast_mode_is_forbidden_to_a_person_and_allowed_again() -> None:
    organization = factories.organization(plan=None)
    member = factories.member(organization)
    key = factories.api_key(member)
    version = Organization.objects.get(pk=organization.pk).config_version
    members.allow_fast_mode(member, False, by=None)
    members.allow_fast_mode(member, False, by=None)
    loaded = snapshots.load(organization.pk).keys[key.row.public_id]
    assert (loaded.member_fast_allowed, loaded.fast_allowed) == (False, True)
    assert Organization.objects.get(pk=organization.pk).config_version == version + 1
    members.allow_fast_mode(member, True, by=None)
    assert snapshots.load(organization.pk).keys[key.row.public_id].member_fast_allowed
    told = AuditEvent.objects.filter(object_id=str(member.uuid)).order_by("pk").values_list("action", flat=True)
    assert list(told)[-2:] == ["member.fast_mode_forbidden", "member.fast_mode_allowed"]


def race(*calls: Callable[[], Any]) -> list[Any]:
    """Runs all at once, each in a thread with a connection of its own; their results or errors in order."""
    results: list[Any] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def run(index: int, call: Callable[[], Any]) -> None:
        start.wait()
        try:
            results[index] = call()
        except Exception as error:
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.django_db(transaction=True)
class TestRaces:
    def test_two_owners_who_remove_each_other_leave_one(self) -> None:
        for _ in range(5):
            organization = factories.organization(plan=None)
            pair = [factories.member(organization, role="owner") for _ in range(2)]
            results = race(*(lambda one=one: members.remove(one, by=None, now=utc_now()) for one in pair))
            assert sorted(type(result).__name__ for result in results) == ["LastOwner", "Removed"]
            assert Member.objects.for_organization(organization).current().filter(role="owner").count() == 1

    def test_one_e_mail_added_by_ten_at_once_joins_once(self) -> None:
        organization = factories.organization(plan=None)
        email = f"{factories.unique('ada')}@example.org"
        results = race(*(lambda: members.add(organization, email, role="developer", by=None) for _ in range(10)))
        assert sorted(type(result).__name__ for result in results) == ["AlreadyMember"] * 9 + ["Member"]
        assert User.objects.filter(email=email).count() == 1
