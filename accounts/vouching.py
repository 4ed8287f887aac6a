"""Sessions that an organization's identity provider has vouched for: they reach that organization, and nothing else.

A person's account is one for all organizations, and any owner may set up a provider that says whatever they like. So such a session
is worth as much as its organization: no other membership, no password, factor or other session of the person. It lives as long as
the provider is switched on, the person is a member and the link between the two holds; it is asked each time.

Django keeps the way in by which somebody signed in; a session of this one gets a user with a `vouch` that reaches nothing until
what stands in the session is attached. Who forgets that shows too little, never too much.
"""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, get_user, login, logout
from django.contrib.auth.backends import BaseBackend
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.base import SessionBase
from django.db.models import Exists, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.models import IdentityProvider, Member, User
from config import scope

BACKEND = "accounts.vouching.VouchedBackend"
_KEY = "vouched_by"
OPEN = ("account_login", "account_logout", "sso")
"""Pages below /accounts/ that such a session may use, and what lies below them."""


@dataclass(frozen=True, slots=True)
class Vouch:
    """Who vouches for a session: ids of the organization, its provider, and the link of the person to the provider."""

    organization_id: int
    provider: UUID
    link_id: int


NOBODY = Vouch(organization_id=0, provider=UUID(int=0), link_id=0)


class VouchedBackend(BaseBackend):
    """The way in by a provider. Operators have none: what one of them may do is more than any organization."""

    def get_user(self, user_id: int) -> User | None:
        user = User.objects.filter(pk=user_id, is_active=True, is_staff=False, is_superuser=False).first()
        if user is not None:
            user.vouch = NOBODY
        return user


def sign_in(request: HttpRequest, user: User, provider: IdentityProvider, link: SocialAccount) -> None:
    """A new session, of which nothing of the one before is left."""
    request.session.flush()
    login(request, user, backend=BACKEND)
    request.session[_KEY] = [provider.organization_id, str(provider.uuid), link.pk]
    attach(user, request.session)


def attach(user: User, session: SessionBase) -> None:
    """Tells the user of a vouched session who vouches for it."""
    organization_id, provider, link_id = session.get(_KEY) or (0, str(NOBODY.provider), 0)
    user.vouch = Vouch(organization_id, UUID(provider), link_id)


def is_vouched(session: SessionBase) -> bool:
    return bool(session.get(BACKEND_SESSION_KEY) == BACKEND)


def user_of(session: SessionBase) -> User | AnonymousUser:
    """Whose session it is, with who vouches for it: for doors that no middleware stands before."""
    request = HttpRequest()
    request.session = session
    user = get_user(request)
    if isinstance(user, User) and is_vouched(session):
        attach(user, session)
    return user if isinstance(user, User) else AnonymousUser()


def vouch_of(user: User | AnonymousUser) -> Vouch | None:
    """Who vouches for the user's session; None for one by password or passkey."""
    return user.vouch if isinstance(user, User) else None


def reachable(user: User | AnonymousUser) -> QuerySet[Member]:
    """The memberships that the user's session reaches. The caller enters a scope that shows them."""
    vouch = vouch_of(user)
    if vouch is None:
        return Member.objects.arrived().filter(user_id=user.pk or 0, is_vouched=False)
    user_id = user.pk or 0
    link = SocialAccount.objects.filter(pk=vouch.link_id, user_id=user_id, provider=str(vouch.provider))
    rows = Member.objects.current().filter(user_id=user_id, organization_id=vouch.organization_id)
    of_provider = rows.filter(organization__identity_provider__uuid=vouch.provider, organization__identity_provider__is_active=True)
    return of_provider.filter(Exists(link))


def speaks_for_person(user: User) -> bool:
    """May the user's session set what all of the person's organizations see? A vouched one where they belong to no other."""
    vouch = vouch_of(user)
    if vouch is None:
        return True
    with scope.everything():
        return not Member.objects.current().filter(user_id=user.pk).exclude(organization_id=vouch.organization_id).exists()


class VouchedSessionMiddleware:
    """Ends a session that nobody vouches for any more, and closes what belongs to the person and not to the organization.

    Comes after AuthenticationMiddleware. One query for vouched sessions, none for all others.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.SESSION_COOKIE_NAME in request.COOKIES and is_vouched(request.session):
            user = request.user
            if isinstance(user, User):
                attach(user, request.session)
                with scope.everything():
                    is_live = reachable(user).exists()
                if not is_live:
                    logout(request)
                elif _is_closed(request.path_info):
                    return render(request, "accounts/vouched.html", status=403)
        return self.get_response(request)


def _is_closed(path: str) -> bool:
    if path.startswith(reverse("openid_connect_login", kwargs={"provider_id": "x"}).removesuffix("x/login/")):
        return False
    return path.startswith("/accounts/") and not path.startswith(tuple(reverse(name) for name in OPEN))
