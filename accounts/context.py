"""What the page frame shows: the organizations one belongs to, and where the navigation leads."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest
from django.urls import reverse

from accounts import permissions, tenancy
from accounts.models import Member, User
from accounts.permissions import Action, Reach


@dataclass(frozen=True, slots=True)
class Link:
    """One entry of the navigation; `icon` names the drawing in `_nav_icon.html`."""

    name: str
    url: str
    icon: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    links: tuple[Link, ...]


def shell(request: HttpRequest) -> dict[str, Any]:
    """Template context of every page. The query runs only if a template asks."""

    def organizations() -> list[Member]:
        return tenancy.memberships(request.user) if isinstance(request.user, User) else []

    return {"organizations": organizations}


def frame(member: Member, current: str, now: datetime) -> dict[str, Any]:
    """The frame of a page of `member`'s organization at `now`; `current` is the page's route name."""
    zone = ZoneInfo(member.organization.timezone)
    return {
        "member": member,
        "organization": member.organization,
        "navigation": navigation(member, current),
        "now": now,
        "zone": zone,
        "zone_name": now.astimezone(zone).tzname(),
    }


def navigation(member: Member, current: str) -> tuple[Section, ...]:
    """Only pages that the role may see. Hiding is not permission: the doors ask by themselves."""
    you: list[Link] = []
    if permissions.reach(member, Action.USE_KEYS) is not Reach.NONE:
        you.append(_link(member, "key", "My key", current))
    sections = {"You": you, "Team": [], "Money": []}
    usage = permissions.reach(member, Action.SEE_USAGE)
    if usage is not Reach.NONE:
        title = "You" if usage is Reach.OWN else "Money" if not you else "Team"
        sections[title].append(_link(member, "overview", "Overview", current))
        if permissions.reach(member, Action.SEE_MEMBERS) is not Reach.NONE:
            sections["Team"].append(_link(member, "members", "Members & limits", current))
        pool = permissions.reach(member, Action.GLANCE_AT_POOL)
        if pool is not Reach.NONE:
            sections["You" if usage is Reach.OWN else "Team"].append(_link(member, "pool", "Pool", current))
        requests = permissions.reach(member, Action.SEE_REQUESTS)
        if requests is not Reach.NONE:
            sections["You" if requests is Reach.OWN else "Team"].append(_link(member, "request_log", "Request log", current))
        if permissions.reach(member, Action.SEE_ALERTS) is not Reach.NONE:
            sections[title].append(_link(member, "alerts", "Alerts", current))
        sections["You" if usage is Reach.OWN else "Money"].append(_link(member, "usage_report", "Usage report", current))
    if permissions.can(member, Action.SEE_MONEY):
        sections["Money"].append(_link(member, "invoices", "Plan & invoices", current))
    if usage is not Reach.NONE:
        sections["You" if usage is Reach.OWN else "Money"].append(_link(member, "jobs", "Exports", current))
    if permissions.can(member, Action.MANAGE_ORGANIZATION):
        sections["Team"].append(_link(member, "settings", "Settings", current))
    else:
        sections["You" if you else "Money"].append(_link(member, "settings_tokens", "API tokens", current))
    return tuple(Section(title, tuple(links)) for title, links in sections.items() if links)


def first_page(member: Member) -> str:
    """The page that answers the role's first question."""
    return {Member.Role.DEVELOPER: "key", Member.Role.FINANCE: "usage_report"}.get(Member.Role(member.role), "overview")


def _link(member: Member, route: str, name: str, current: str) -> Link:
    return Link(name, reverse(route, kwargs={"slug": member.organization.slug}), icon=route, is_current=route == current)
