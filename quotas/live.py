"""Open pages: what each may hear, that its organization's usage has moved, and by which marks it knows what to fetch again.

A mark is an opaque text that is another one when what it stands for has changed. A page carries the marks it was made with
(`seen_all`), its socket tells the newest ones, and the page fetches the parts again that watch a mark which is another one by now.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db.models import Count, Max

from accounts import permissions
from accounts.models import Member
from accounts.permissions import Action, Reach
from billing import overview
from billing.overview import Whose
from quotas import request_log
from quotas.alerts import audience
from quotas.alerts.models import Alert
from quotas.models import LimitRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """A page that hears. `action`: who may (None: every member). `is_about_usage`: requests move it. `has_meters`: it is told what
    is left. `has_alerts`: it shows some, not their number alone."""

    action: Action | None
    is_about_usage: bool = False
    has_meters: bool = False
    has_alerts: bool = False


PAGES: Mapping[str, Page] = {
    "": Page(None),
    "key": Page(Action.USE_KEYS, is_about_usage=True, has_meters=True),
    "overview": Page(Action.SEE_USAGE, is_about_usage=True, has_meters=True, has_alerts=True),
    "members": Page(Action.SEE_MEMBERS, is_about_usage=True),
    "pool": Page(Action.GLANCE_AT_POOL),
    "requests": Page(Action.SEE_REQUESTS, is_about_usage=True),
    "alerts": Page(Action.SEE_ALERTS, has_alerts=True),
}
"""By the name in the socket's query. The one without a name hears of open alerts only: every page shows how many there are."""


def group(organization_id: int) -> str:
    return f"usage.{organization_id}"


def announce(organization_id: int) -> None:
    """Sends one message to the pages of the organization. Never raises: a page that misses it asks again by itself."""
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        async_to_sync(layer.group_send)(group(organization_id), {"type": "usage.moved"})
    except Exception:
        logger.warning("pages were not told", extra={"organization_id": organization_id}, exc_info=True)


def whose(member: Member, action: Action) -> Whose:
    """The rows that the member sees by this right; the caller has made sure that there are any."""
    reach = permissions.reach(member, action)
    if reach is Reach.WHOLE:
        return Whose(member.organization)
    if reach is Reach.SCOPE:
        return Whose(member.organization, team_id=member.team_id)
    return Whose(member.organization, member_id=member.pk)


def about(member: Member, page: str) -> Whose:
    """Whose requests the page shows: My key one's own, the others all in the reach."""
    if page == "key":
        return Whose(member.organization, member_id=member.pk)
    sees_requests = permissions.reach(member, Action.SEE_REQUESTS) is not Reach.NONE
    return whose(member, Action.SEE_REQUESTS if sees_requests else Action.SEE_USAGE)


def mark(*values: object) -> str:
    """Opaque: what a page may not name is not in it."""
    return hashlib.blake2b(repr(values).encode(), digest_size=6).hexdigest()


def usage_mark(request_id: str) -> str:
    """`request_id`: the newest logged request in the reach of the page."""
    return mark("usage", request_id)


def config_mark(member: Member) -> str:
    """Another one with every change of limits, members, keys, pools."""
    return mark("config", member.organization_id, member.organization.config_version)


def seen_all(member: Member, page: str, *, now: datetime) -> str:
    """The marks of the database that a page is made with, as its socket's element carries them. To be asked before its rows are
    read: what comes in between is fetched once more, while a mark that is told first by the socket is taken for the page's own."""
    return json.dumps(_marks(member, page, now) | (_alerts(member)[0] if PAGES[page].has_alerts else {}))


@dataclass(frozen=True, slots=True)
class Stored:
    """What the database says of a member's open page: its marks, and how many alerts are open."""

    marks: dict[str, str]
    open_alerts: int


def stored(member: Member, page: str, *, now: datetime) -> Stored:
    """At most five queries."""
    alerts, count = _alerts(member)
    return Stored(_marks(member, page, now) | alerts, count)


def _marks(member: Member, page: str, now: datetime) -> dict[str, str]:
    marks = {"config": config_mark(member)}
    if PAGES[page].is_about_usage:
        marks |= _usage(member, page, now)
    return marks


def _alerts(member: Member) -> tuple[dict[str, str], int]:
    """Their mark, and how many are open. One query."""
    count, latest = 0, None
    if permissions.reach(member, Action.SEE_ALERTS) is not Reach.NONE:
        rows = Alert.objects.for_organization(member.organization).filter(audience.visible(member)).open().order_by()
        found = rows.aggregate(count=Count("pk", distinct=True), latest=Max("pk"))
        count, latest = found["count"], found["latest"]
    return {"alerts": mark("alerts", count, latest)}, count


def _usage(member: Member, page: str, now: datetime) -> dict[str, str]:
    rows = about(member, page)
    marks = {"usage": usage_mark(overview.newest_request_id(rows, now=now))}
    if permissions.reach(member, Action.SEE_REQUESTS) is not Reach.NONE:
        last = request_log.refusals(rows).order_by("-last_at", "-pk").values_list("pk", "count").first()
        marks["refused"] = mark("refused", last)
    if page in ("key", "members"):
        asked: dict[str, Any] = LimitRequest.objects.filter(organization=member.organization).aggregate(
            count=Count("pk"), decided=Count("decided_at"), latest=Max("pk")
        )
        marks["asked"] = mark("asked", asked["count"], asked["decided"], asked["latest"])
    return marks
