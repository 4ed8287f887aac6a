"""Who asked for something that is not there for them: of another organization, or of none; which of the two is never told (J5).

The doors (`accounts.tenancy.page`, `api.base.Resource`, the live socket) call this when the answer is there and whatever was begun
has been rolled back. The event goes to the chain of the caller's own organization, or to the install's where the caller is no
member. It holds the method and the route, nothing of what was asked for; ids stand in the log, for operators.
"""

import hashlib
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import Error, transaction
from django.http import HttpRequest
from django.urls import ResolverMatch

from accounts import audit
from accounts.models import AuditEvent, Organization, User
from config import redis as weir_redis
from config.clock import utc_now
from config.redis import RedisUnavailable, ReplyError

logger = logging.getLogger(__name__)

ACTION = "missing.asked"
EVERY = timedelta(hours=1)
"""One event in this time for each person, organization, route and method, however often they ask."""
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
POLLED = frozenset({"job", "poll_device"})
"""Routes whose lines ask again by themselves, as long as they are on a page, and may outlive what they show."""
NEAR = 500
"""So many of a chain's newest events are looked through while Redis does not answer."""


def asked(request: HttpRequest, organization: Organization | None, by: User) -> None:
    """Notes a request that was answered 404; never raises. In the scope of the chain's rows, outside of the request's transaction.

    Nothing is noted of a plain look at what an organization has one of or none, nor of a line that asks by itself.
    """
    match = request.resolver_match
    if match is None or _is_polling(request, match):
        return
    # Where there is no membership, the organization's own name is what is asked for.
    if organization is not None and not _names_something(request, match):
        return
    # Of texts that stand for ids only UUIDs: whatever else stands in a path may be a secret in the wrong place.
    ids = {name: str(value) for name, value in match.kwargs.items() if isinstance(value, UUID)}
    note(organization, by, route=match.route, method=_method(request), ids=ids)


def note(organization: Organization | None, by: User, *, route: str, method: str, ids: Mapping[str, str]) -> None:
    """As `asked`, for a door that has no request of its own: one that knows what was asked for and that it is no plain look."""
    logger.info(
        "asked for what is not there",
        extra={
            "route": route,
            "method": method,
            "organization_id": organization.pk if organization is not None else None,
            "user_id": by.pk,
            "asked": dict(ids),
        },
    )
    key = _key(organization, by, route, method)
    is_claimed = _claimed(key)
    if is_claimed is False or (is_claimed is None and _is_told(organization, by, route, method)):
        return
    try:
        with transaction.atomic():
            audit.record(
                organization,
                actor=by,
                action="missing.asked",
                object_type="route",
                object_id=route[:64],
                data={"method": method, "route": route},
            )
    except Error:
        # The answer is what it is; the line above has been written.
        logger.exception("a request for what is not there is not in the audit trail")
        if is_claimed:
            _give_back(key)


def _names_something(request: HttpRequest, match: ResolverMatch) -> bool:
    """By an id in the path, in a form or body, or in the query."""
    return bool(set(match.kwargs) - {"slug"}) or _method(request) != "GET" or bool(request.GET)


def _is_polling(request: HttpRequest, match: ResolverMatch) -> bool:
    return match.url_name in POLLED and request.headers.get("HX-Request") == "true"


def _method(request: HttpRequest) -> str:
    """A client may call its method anything; that must not make another event."""
    method = request.method or ""
    return "GET" if method == "HEAD" else method if method in METHODS else "other"


def _key(organization: Organization | None, by: User, route: str, method: str) -> str:
    about = hashlib.sha256(f"{method} {route}".encode()).hexdigest()[:32]
    return f"missing:{organization.pk if organization is not None else '-'}:{by.pk}:{about}"


def _claimed(key: str) -> bool | None:
    """Whether this is the first in EVERY; None: Redis does not say."""
    try:
        with weir_redis.translated():
            return bool(weir_redis.sync_client().set(key, "1", nx=True, ex=EVERY))
    except (RedisUnavailable, ReplyError):
        return None


def _give_back(key: str) -> None:
    try:
        with weir_redis.translated():
            weir_redis.sync_client().delete(key)
    except (RedisUnavailable, ReplyError):
        logger.warning("a claim stays for its hour", extra={"key": key})


def _is_told(organization: Organization | None, by: User, route: str, method: str) -> bool:
    """Without Redis: whether the newest events hold it. Two requests at once may then make two; a database that fails says yes."""
    rows = AuditEvent.objects.filter(organization=organization, number__isnull=False).order_by("-number")
    told: Mapping[str, Any] = {"method": method, "route": route}
    since = utc_now() - EVERY
    try:
        with transaction.atomic():
            newest = list(rows.values_list("action", "actor_id", "data", "created_at")[:NEAR])
    except Error:
        return True
    return any(action == ACTION and actor == by.pk and data == told and at > since for action, actor, data, at in newest)
