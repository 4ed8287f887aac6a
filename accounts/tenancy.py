"""Which organization a page request is about, and that nothing of another one is reached.

Foreign and missing are one answer (404, by the same query); one's own without the right is 403.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode

from accounts import identity, missing, permissions, policies, vouching
from accounts.identity import SignInElsewhere
from accounts.models import Member, Organization, User
from accounts.permissions import Action, Reach
from config import scope

P = ParamSpec("P")
M = TypeVar("M", bound=Model)


class SecondFactorMissing(Http404):
    """The organization requires a second factor that its member does not have. A door that does not know of it answers 404."""


def membership(user: User | AnonymousUser, slug: str) -> Member:
    """The user's membership in the organization with this slug, if their session reaches it (`accounts.vouching`).

    Raises Http404, also for an organization that is foreign; of them SignInElsewhere, where it asks for its provider's session, and
    SecondFactorMissing.
    """
    rows = vouching.reachable(user).select_related("organization__identity_provider", "team", "user")
    with scope.everything():
        member = rows.filter(organization__slug=slug).first()
    if member is None:
        raise Http404
    if vouching.vouch_of(user) is not None:
        # The provider has asked for whatever factors it wants.
        return member
    demanded = identity.demanded_of(member)
    if demanded is not None:
        raise SignInElsewhere(demanded)
    if policies.is_missing(member):
        raise SecondFactorMissing
    return member


def is_barred_anywhere(user: User) -> bool:
    """Does an organization of the user's require a second factor that they do not have? Of a vouched session none does."""
    return vouching.vouch_of(user) is None and any(policies.is_missing(member) for member in memberships(user))


def memberships(user: User) -> list[Member]:
    """Everything that the user belongs to and their session reaches, by the organizations' names."""
    rows = vouching.reachable(user).select_related("organization", "team", "user")
    with scope.everything():
        return list(rows.order_by("organization__name", "pk"))


def last_used(request: HttpRequest) -> Member | None:
    """The membership that `/` leads to: the one last used, else the first by name; None for who has none."""
    if not isinstance(request.user, User):
        return None
    rows = memberships(request.user)
    last = request.user.last_organization_id
    return next((row for row in rows if row.organization_id == last), rows[0] if rows else None)


def demand(member: Member, action: Action, *, of: Member | None = None, team_id: int | None = None) -> None:
    """Raises PermissionDenied (403) unless the member may (`permissions.can`)."""
    if not permissions.can(member, action, of=of, team_id=team_id):
        raise PermissionDenied


def owned(queryset: QuerySet[M], organization: Organization, uuid: UUID | str, *, field: str = "organization") -> M:
    """The row with this uuid, if it is the organization's. Raises Http404 otherwise, the same for foreign and missing."""
    row = queryset.filter(**{field: organization, "uuid": uuid}).first()
    if row is None:
        raise Http404
    return row


def page(
    action: Action | None = None,
) -> Callable[
    [Callable[Concatenate[HttpRequest, Member, P], HttpResponseBase]],
    Callable[..., HttpResponseBase],
]:
    """Decorates a view of `/o/<slug>/…`: it is called with the membership in place of the slug.

    The view and what it renders see this organization's rows only. Who is not signed in goes to the sign-in page; 404 for who is
    no member; 403 for whose role has no reach at all for `action`. What a narrower reach shows or allows is the view's to ask
    (`permissions.reach`, `demand`). Who must sign in at the organization's provider is led there. What is answered 404 is noted
    (`accounts.missing`).
    """

    def decorate(view: Callable[Concatenate[HttpRequest, Member, P], HttpResponseBase]) -> Callable[..., HttpResponseBase]:
        @wraps(view)
        def guarded(request: HttpRequest, slug: str, *args: Any, **kwargs: Any) -> HttpResponseBase:
            assert not isinstance(request.user, AnonymousUser)
            try:
                member = membership(request.user, slug)
            except SignInElsewhere:
                query = urlencode({"next": request.get_full_path()})
                return redirect(f"{reverse('sso_organization', kwargs={'slug': slug})}?{query}")
            except SecondFactorMissing:
                raise
            except Http404:
                with scope.everything():
                    missing.asked(request, None, request.user)
                raise
            if action is not None and permissions.reach(member, action) is Reach.NONE:
                raise PermissionDenied
            # A vouched session reaches this organization alone, and says nothing of where the person was last.
            if request.user.last_organization_id != member.organization_id and vouching.vouch_of(request.user) is None:
                User.objects.filter(pk=request.user.pk).update(last_organization=member.organization)
            with scope.organization(member.organization_id):
                try:
                    response = view(request, member, *args, **kwargs)
                except Http404:
                    missing.asked(request, member.organization, request.user)
                    raise
                if response.status_code == 404:
                    missing.asked(request, member.organization, request.user)
                return response

        return login_required(guarded)

    return decorate
