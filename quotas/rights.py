"""Whose limits a member may set: by level, from the one table of rights."""

from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404

from accounts import managing, permissions, tenancy
from accounts.models import ApiKey, Member, Team
from accounts.permissions import Action, Reach
from quotas.models import Limit

Subject = Team | Member | ApiKey | None
"""What a limit is about; None is the organization."""


def subject_of(limit: Limit) -> Subject:
    return limit.team or limit.member or limit.key


def may_set(member: Member, subject: Subject) -> bool:
    """May the member set limits of this subject of the same organization at all? How high they may be is `limits.may_set`."""
    if isinstance(subject, Team):
        return permissions.can(member, Action.SET_LIMITS, team_id=subject.pk)
    if isinstance(subject, Member):
        return permissions.can(member, Action.SET_LIMITS, of=subject)
    if isinstance(subject, ApiKey):
        return permissions.can(member, Action.SET_LIMITS, of=subject.member)
    return permissions.can(member, Action.SET_LIMITS)


def may_change(member: Member, limit: Limit) -> bool:
    return may_set(member, subject_of(limit))


RELATED = ("organization", "team", "member__user", "member__team", "key__member__user", "key__member__team", "model_filter")
"""What naming a limit and asking whose it is needs."""


def find_limit(member: Member, uuid: UUID | str) -> Limit:
    """A limit that the member may change. Raises Http404, also for another organization's; PermissionDenied."""
    limit = tenancy.owned(Limit.objects.select_related(*RELATED), member.organization, uuid)
    if not may_change(member, limit):
        raise PermissionDenied
    return limit


def find_subject(member: Member, scope: str, uuid: UUID | None) -> Subject:
    """What a limit of this scope is to be about, where the member may set one. Raises Http404, PermissionDenied."""
    subject: Subject
    if scope == Limit.Scope.TEAM and uuid is not None:
        subject = tenancy.owned(Team.objects.all(), member.organization, uuid)
    elif scope == Limit.Scope.MEMBER and uuid is not None:
        subject = managing.find(member, uuid)
    elif scope == Limit.Scope.KEY and uuid is not None:
        keys = ApiKey.objects.unrevoked().select_related("member__user", "member__team", "organization")
        subject = tenancy.owned(keys, member.organization, uuid)
        managing.find(member, subject.member.uuid)
    elif scope == Limit.Scope.ORGANIZATION and uuid is None:
        subject = None
    else:
        raise Http404
    if not may_set(member, subject):
        raise PermissionDenied
    return subject


def name_of(subject: Subject) -> str:
    """What `limits.set_limit` calls it: a team's name, a member's e-mail, a key's public id; "" for the organization."""
    if isinstance(subject, Team):
        return subject.name
    if isinstance(subject, Member):
        assert subject.user is not None
        return subject.user.email
    return subject.public_id if isinstance(subject, ApiKey) else ""


def visible(reader: Member) -> QuerySet[Limit]:
    """The limits that the reader sees: those that hold them, and those of whom they look after. Of keys that work, and of members
    who are there."""
    rows = Limit.objects.for_organization(reader.organization).select_related(*RELATED)
    rows = rows.filter(Q(key=None) | Q(key__revoked_at=None), Q(member=None) | Q(member__removed_at=None))
    reach = permissions.reach(reader, Action.SEE_MEMBERS)
    if reach is Reach.WHOLE:
        return rows
    seen = Q(scope=Limit.Scope.ORGANIZATION) | Q(member=reader) | Q(key__member=reader)
    if reader.team is not None:
        seen |= Q(team=reader.team)
        if reach is Reach.SCOPE:
            seen |= Q(member__team=reader.team) | Q(key__member__team=reader.team)
    return rows.filter(seen)
