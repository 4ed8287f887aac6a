"""Whose limits a member may set: by level, from the one table of rights."""

from accounts import permissions
from accounts.models import ApiKey, Member, Team
from accounts.permissions import Action
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
