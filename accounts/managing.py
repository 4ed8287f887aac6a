"""Looking after members: what one member may do with others. Pages, the API and commands of a person ask here.

Owners manage everybody, leads the developers of their scope. Foreign members never come here: their doors found no row.
"""

from datetime import datetime
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from accounts import invitations, members, permissions, tenancy
from accounts.errors import NotAwaited, RoleNotYours
from accounts.invitations import Link
from accounts.models import Invitation, Member, Team
from accounts.permissions import Action, Reach


def find(reader: Member, uuid: UUID | str, *, action: Action = Action.SEE_MEMBERS) -> Member:
    """A current member of the reader's organization. Raises Http404; PermissionDenied where it is out of the reader's scope."""
    current = Member.objects.current().select_related("organization", "user", "team")
    found = tenancy.owned(current, reader.organization, uuid)
    tenancy.demand(reader, action, of=found)
    return found


def team(manager: Member, uuid: UUID | str) -> Team:
    """A team that the manager may put people into. Raises Http404, PermissionDenied."""
    found = tenancy.owned(Team.objects.all(), manager.organization, uuid)
    tenancy.demand(manager, Action.MANAGE_MEMBERS, team_id=found.pk)
    return found


def may_manage(manager: Member, found: Member) -> bool:
    return permissions.can(manager, Action.MANAGE_MEMBERS, of=found) and permissions.may_give_role(
        manager, found.role, team_id=found.team_id
    )


def invite(manager: Member, email: str, *, role: str, team: Team | None, name: str = "", now: datetime) -> Link:
    """Makes the person a member at once, and the link by which they come in, to be shown this one time.

    Raises RoleNotYours, PermissionDenied for a team that is not the manager's, and what `invitations.invite` raises.
    """
    check_role(manager, role)
    tenancy.demand(manager, Action.MANAGE_MEMBERS, team_id=team.pk if team is not None else None)
    return invitations.invite(manager.organization, email, role=role, team=team, name=name, by=manager.user, now=now)


def invite_again(manager: Member, found: Member, *, now: datetime) -> Link:
    """Another link for who was invited and has not come. Raises RoleNotYours, NotAwaited."""
    if not found.is_awaited:
        raise NotAwaited(_("%(found)s has come in already.") % {"found": found})
    if not may_manage(manager, found):
        raise RoleNotYours(_("Leads invite developers; other roles are an owner’s to give."))
    assert found.user is not None
    return invitations.invite(manager.organization, found.user.email, role=found.role, team=found.team, by=manager.user, now=now)


def open_invitations(reader: Member, *, now: datetime) -> QuerySet[Invitation]:
    """Links that still hold, of the members whom the reader looks after."""
    awaited = Member.objects.for_organization(reader.organization).current().filter(is_awaited=True)
    if permissions.reach(reader, Action.MANAGE_MEMBERS) is not Reach.WHOLE:
        awaited = awaited.filter(team=reader.team)
    emails = awaited.values("user__email")
    return Invitation.objects.filter(organization=reader.organization, accepted_at=None, expires_at__gt=now, email__in=emails)


def withdraw(manager: Member, invitation: Invitation, *, now: datetime) -> None:
    """Ends a link. Raises PermissionDenied unless the manager gives such a role to such a member."""
    rows = Member.objects.for_organization(manager.organization).current().select_related("user", "team")
    found = rows.filter(user__email__iexact=invitation.email).first()
    if found is None:
        tenancy.demand(manager, Action.MANAGE_MEMBERS)
    elif not may_manage(manager, found):
        raise PermissionDenied
    invitations.withdraw(invitation, by=manager.user, now=now)


def change(
    manager: Member,
    found: Member,
    *,
    role: str | None = None,
    team: Team | None = None,
    has_team: bool = False,
    fast_allowed: bool | None = None,
    now: datetime,
) -> Member:
    """Gives the member another role, another team (`has_team`; None: the whole organization), or forbids fast mode, all or nothing.

    Raises RoleNotYours, PermissionDenied, and what `members.change` raises.
    """
    role = found.role if role is None else role
    wanted = team if has_team else found.team
    if not may_manage(manager, found):
        raise RoleNotYours(_("Leads look after the developers of their scope; others are an owner’s to change."))
    check_role(manager, role)
    if has_team:
        tenancy.demand(manager, Action.MANAGE_MEMBERS, team_id=wanted.pk if wanted is not None else None)
    with transaction.atomic():
        if role != found.role or (wanted and wanted.pk) != found.team_id:
            found = members.change(found, role=role, team=wanted, by=manager.user, now=now)
        if fast_allowed is not None:
            found = members.allow_fast_mode(found, fast_allowed, by=manager.user)
    return found


def check_role(manager: Member, role: str) -> None:
    """Raises RoleNotYours unless the manager may give this role."""
    if not permissions.may_give_role(manager, role, team_id=manager.team_id):
        raise RoleNotYours(_("Leads invite developers and look after them; other roles are an owner’s to give."))
