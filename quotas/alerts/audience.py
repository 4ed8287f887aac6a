"""Who sees an alert, who may acknowledge it, and who is written to: from the one table of rights."""

from collections.abc import Iterable

from django.db.models import Q

from accounts import permissions
from accounts.models import Member, Organization
from accounts.permissions import Action, Reach
from quotas.alerts.models import Alert

MONEY = frozenset({Alert.Kind.QUOTA, Alert.Kind.OVERAGE})
"""What finance sees: no keys, limits or pool."""
OWN = frozenset({Alert.Kind.LIMIT, Alert.Kind.QUOTA, Alert.Kind.OVERAGE})
"""What the member whose it is gets by e-mail; the rest about them they see on the page."""
RELATED = ("organization", "team", "member__user", "member__team", "key__member__user", "key__member__team")
"""What must be read with an alert for the functions here to ask nothing."""


def holder(alert: Alert) -> Member | None:
    """The member that it is about, also by a key."""
    if alert.member is not None:
        return alert.member
    return alert.key.member if alert.key is not None else None


def visible(reader: Member) -> Q:
    """Which alerts of the organization the reader sees."""
    reach = permissions.reach(reader, Action.SEE_ALERTS)
    seen = Q(kind__in=MONEY) if reader.role == Member.Role.FINANCE else Q()
    if reach is Reach.WHOLE:
        return seen
    own = Q(member=reader) | Q(key__member=reader)
    if reach is Reach.SCOPE:
        own |= Q(team=reader.team) | Q(member__team=reader.team) | Q(key__member__team=reader.team)
    return seen & own if reach is not Reach.NONE else Q(pk=None)


def may_see(reader: Member, alert: Alert) -> bool:
    """As `visible`, of one."""
    if reader.role == Member.Role.FINANCE and alert.kind not in MONEY:
        return False
    return permissions.can(reader, Action.SEE_ALERTS, of=holder(alert), team_id=alert.team_id)


def may_acknowledge(reader: Member, alert: Alert) -> bool:
    """Who looks after the scope, not who is held by it."""
    return may_see(reader, alert) and permissions.can(reader, Action.SET_LIMITS, of=holder(alert), team_id=alert.team_id)


def of_organization(organization: Organization) -> list[Member]:
    """Who can be written to; one query for all alerts of a look."""
    rows = Member.objects.for_organization(organization).arrived().filter(user__is_active=True)
    return list(rows.select_related("organization", "team", "user").order_by("pk"))


def recipients(alert: Alert, members: Iterable[Member]) -> list[Member]:
    """Leads of the scope and owners; the member for own limits and quota; finance for what a quota will cost beyond."""
    about = holder(alert)
    told = []
    for member in members:
        is_own = about is not None and member.pk == about.pk and alert.kind in OWN
        is_wanted = member.role in (Member.Role.LEAD, Member.Role.OWNER) or (
            member.role == Member.Role.FINANCE and alert.kind == Alert.Kind.OVERAGE
        )
        if is_own or (is_wanted and may_see(member, alert)):
            told.append(member)
    return told
