"""What a role may do, held as a table: a changed right changes this file."""

import pytest

from accounts import members, permissions
from accounts.models import Member
from accounts.permissions import Action, Reach
from config.clock import utc_now
from tests import factories

RIGHTS = {
    # action:                  developer, lead,    finance, owner
    Action.USE_KEYS:            ("OWN", "SCOPE", "NONE", "SCOPE"),
    Action.SEE_USAGE:           ("OWN", "SCOPE", "SCOPE", "SCOPE"),
    Action.SEE_REQUESTS:        ("OWN", "SCOPE", "NONE", "SCOPE"),
    Action.SEE_MEMBERS:         ("NONE", "SCOPE", "NONE", "SCOPE"),
    Action.MANAGE_MEMBERS:      ("NONE", "SCOPE", "NONE", "SCOPE"),
    Action.SET_LIMITS:          ("NONE", "SCOPE", "NONE", "SCOPE"),
    Action.GLANCE_AT_POOL:      ("NONE", "WHOLE", "NONE", "SCOPE"),
    Action.SEE_POOL:            ("NONE", "WHOLE", "NONE", "SCOPE"),
    Action.MANAGE_POOL:         ("NONE", "WHOLE", "NONE", "SCOPE"),
    Action.SEE_ALERTS:          ("OWN", "SCOPE", "SCOPE", "SCOPE"),
    Action.SEE_MONEY:           ("NONE", "NONE", "SCOPE", "SCOPE"),
    Action.MANAGE_ORGANIZATION: ("NONE", "NONE", "NONE", "SCOPE"),
}  # fmt: skip


def test_the_table_is_this_one() -> None:
    roles = ("developer", "lead", "finance", "owner")
    assert set(RIGHTS) == set(Action)
    assert {action: tuple(permissions.TABLE[role][action].name for role in roles) for action in Action} == RIGHTS


def person(pk: int, role: str, team_id: int | None = None) -> Member:
    return Member(pk=pk, role=role, team_id=team_id)


DEVELOPER, COLLEAGUE, OTHER = person(1, "developer", 10), person(2, "developer", 10), person(3, "developer", 20)
TEAM_LEAD, LEAD, FINANCE, OWNER = person(4, "lead", 10), person(5, "lead"), person(6, "finance"), person(7, "owner")


@pytest.mark.parametrize(
    ("who", "reaches"),
    [(DEVELOPER, (1,)), (TEAM_LEAD, (1, 2, 4)), (LEAD, (1, 2, 3, 4, 5, 6, 7)), (OWNER, (1, 2, 3, 4, 5, 6, 7)), (FINANCE, ())],
)
def test_whose_requests_one_sees(who: Member, reaches: tuple[int, ...]) -> None:
    everyone = (DEVELOPER, COLLEAGUE, OTHER, TEAM_LEAD, LEAD, FINANCE, OWNER)
    assert tuple(one.pk for one in everyone if permissions.can(who, Action.SEE_REQUESTS, of=one)) == reaches


@pytest.mark.parametrize(
    ("who", "allowed"), [(DEVELOPER, False), (TEAM_LEAD, False), (LEAD, True), (FINANCE, False), (OWNER, True)]
)
def test_the_pool_is_for_the_whole_organization_s_leads_and_owners(who: Member, allowed: bool) -> None:
    assert permissions.can(who, Action.MANAGE_POOL) is allowed


def test_a_lead_sets_the_limits_of_the_own_team_only() -> None:
    assert permissions.can(TEAM_LEAD, Action.SET_LIMITS, team_id=10)
    assert not permissions.can(TEAM_LEAD, Action.SET_LIMITS, team_id=20)
    assert not permissions.can(TEAM_LEAD, Action.SET_LIMITS)
    assert not permissions.can(TEAM_LEAD, Action.SET_LIMITS, of=LEAD)
    assert permissions.can(LEAD, Action.SET_LIMITS)


def test_leads_add_developers_and_owners_everybody() -> None:
    assert permissions.may_give_role(TEAM_LEAD, "developer", team_id=10)
    assert not permissions.may_give_role(TEAM_LEAD, "developer", team_id=20)
    assert not permissions.may_give_role(TEAM_LEAD, "developer", team_id=None)
    assert [role for role in Member.Role.values if permissions.may_give_role(LEAD, role, team_id=None)] == ["developer"]
    assert all(permissions.may_give_role(OWNER, role, team_id=None) for role in Member.Role.values)
    assert not permissions.may_give_role(DEVELOPER, "developer", team_id=10)


def test_reach_says_what_holds_for_this_very_member() -> None:
    assert permissions.reach(TEAM_LEAD, Action.SEE_POOL) is Reach.NONE
    assert permissions.reach(LEAD, Action.SEE_POOL) is Reach.WHOLE
    assert permissions.reach(TEAM_LEAD, Action.SEE_USAGE) is Reach.SCOPE
    assert permissions.reach(OWNER, Action.SEE_USAGE) is Reach.WHOLE


@pytest.mark.django_db
def test_a_former_member_may_nothing() -> None:
    organization = factories.organization(plan=None)
    factories.member(organization, role="owner")
    gone = members.remove(factories.member(organization, role="owner"), by=None, now=utc_now()).member
    assert not any(permissions.can(gone, action) for action in Action)
