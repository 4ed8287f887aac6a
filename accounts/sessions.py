"""Who is signed in as a person: the list of sessions, when each was seen last, and how one is ended.

allauth keeps a row beside Django's session (`UserSession`). It is written at the first page, and again when a minute has passed or
the address or the browser is another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from allauth.usersessions.models import UserSession
from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare, salted_hmac

from accounts import devices
from accounts.models import User
from config.clock import utc_now

SEEN_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session of a person. `name` says which to the page that ends it, and is no key to it."""

    name: str
    device: str
    address: str
    began_at: datetime
    seen_at: datetime
    is_current: bool


def listed(user: User, current: str | None) -> list[SignedIn]:
    """The person's sessions that still hold: the one with the key `current` first, then by when they were seen. Two queries."""
    rows = list(UserSession.objects.filter(user=user).order_by("-last_seen_at", "-pk"))
    alive = _alive(user, [row.session_key for row in rows])
    found = [
        SignedIn(
            name=_name(row.session_key),
            device=devices.described(row.user_agent),
            address=row.ip,
            began_at=row.created_at,
            seen_at=row.last_seen_at,
            is_current=row.session_key == current,
        )
        for row in rows
        if row.session_key in alive
    ]
    return sorted(found, key=lambda one: not one.is_current)


def end(user: User, name: str) -> bool:
    """Ends the person's session of this name; False if there is none any more."""
    row = next((row for row in UserSession.objects.filter(user=user) if constant_time_compare(_name(row.session_key), name)), None)
    return row is not None and _end([row.session_key]) > 0


def end_others(user: User, request: HttpRequest) -> int:
    """Ends all sessions but the request's; says how many there were."""
    rows = UserSession.objects.filter(user=user).exclude(session_key=request.session.session_key)
    return _end(list(rows.values_list("session_key", flat=True)))


def end_all(user: User) -> int:
    return _end(list(UserSession.objects.filter(user=user).values_list("session_key", flat=True)))


def seen(request: HttpRequest) -> None:
    """Writes down that the request's session was used, where it is time to."""
    key, address = request.session.session_key, request.META.get("REMOTE_ADDR")
    if not request.user.is_authenticated or not key or not address:
        return
    row = UserSession.objects.filter(session_key=key).only("user_id", "ip", "user_agent", "last_seen_at").first()
    agent = request.META.get("HTTP_USER_AGENT", "")[:200]
    is_known = row is not None and (row.user_id, row.ip, row.user_agent) == (request.user.pk, address, agent)
    if row is None or not is_known or utc_now() - row.last_seen_at >= SEEN_EVERY:
        UserSession.objects.create_from_request(request)


class SeenMiddleware:
    """Comes after AccountMiddleware: allauth asks the adapter for the client's address."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        seen(request)
        return self.get_response(request)


def _end(keys: list[str]) -> int:
    with transaction.atomic():
        ended = Session.objects.filter(session_key__in=keys).delete()[0]
        UserSession.objects.filter(session_key__in=keys).delete()
    return ended


def _alive(user: User, keys: list[str]) -> set[str]:
    """Those that have not run out, and not been ended by another password."""
    fitting = {user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()}
    rows = Session.objects.filter(session_key__in=keys, expire_date__gt=utc_now())
    return {row.session_key for row in rows if row.get_decoded().get(HASH_SESSION_KEY) in fitting}


def _name(session_key: str) -> str:
    return salted_hmac("accounts.session", session_key, algorithm="sha256").hexdigest()[:32]
