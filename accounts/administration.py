"""Whom the admin is for: operators see all organizations; owners and leads of a whole organization see that one.

Who has several chooses; until then it is the one last used. `config.middleware.ScopeMiddleware` enters what is found here, so that
the database itself shows nothing else; the admin's pages ask for the role's rights again.
"""

from uuid import UUID

from django.http import Http404, HttpRequest

from accounts import permissions, tenancy
from accounts.models import Member, User
from accounts.permissions import Action

CHOSEN = "admin_organization"
"""In the session: the id of the organization that was chosen."""
ROLES = (Member.Role.LEAD, Member.Role.OWNER)
_NOTED = "_weir_administers"


def administered(request: HttpRequest) -> list[Member]:
    """The memberships by which the user may open the admin, by the organizations' names."""
    if not isinstance(request.user, User) or not request.user.is_active:
        return []
    return [row for row in tenancy.memberships(request.user) if row.team_id is None and row.role in ROLES]


def note(request: HttpRequest) -> Member | None:
    """Finds out whose organization the request is about and keeps it with the request; None for operators and for strangers."""
    found = None if is_operator(request) else _current(request, administered(request))
    setattr(request, _NOTED, found)
    return found


def member(request: HttpRequest) -> Member | None:
    """Whose right the request's is, as noted; None for operators."""
    noted = getattr(request, _NOTED, None)
    return noted if isinstance(noted, Member) else None


def is_operator(request: HttpRequest) -> bool:
    return isinstance(request.user, User) and request.user.is_active and request.user.is_superuser


def may(request: HttpRequest, action: Action | None) -> bool:
    """May they do this in the organization? Operators may all; None is for operators alone."""
    if is_operator(request):
        return True
    noted = member(request)
    return noted is not None and action is not None and permissions.can(noted, action)


def choose(request: HttpRequest, uuid: UUID) -> Member:
    """From now on the admin is about this organization. Raises Http404 unless it is one of the user's own to administer."""
    for row in administered(request):
        if row.organization.uuid == uuid:
            found = tenancy.membership(actor_of(request), row.organization.slug)
            request.session[CHOSEN] = found.organization_id
            return found
    raise Http404


def actor_of(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def _current(request: HttpRequest, rows: list[Member]) -> Member | None:
    """The first that this session may come into: a page of the organization has the same door."""
    if not rows:
        return None
    user = actor_of(request)
    wanted = (request.session.get(CHOSEN), user.last_organization_id)
    for row in sorted(rows, key=lambda row: wanted.index(row.organization_id) if row.organization_id in wanted else len(wanted)):
        try:
            return tenancy.membership(user, row.organization.slug)
        except Http404:
            continue
    return None
