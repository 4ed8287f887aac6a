"""What the page frame shows: the organizations one belongs to, and where the navigation leads."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

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
        you.append(_link(member, "key", _("My key"), current))
    sections = {"You": you, "Team": [], "Money": []}
    usage = permissions.reach(member, Action.SEE_USAGE)
    if usage is not Reach.NONE:
        section = "You" if usage is Reach.OWN else "Money" if not you else "Team"
        sections[section].append(_link(member, "overview", _("Overview"), current))
        if permissions.reach(member, Action.SEE_MEMBERS) is not Reach.NONE:
            sections["Team"].append(_link(member, "members", _("Members & limits"), current))
        pool = permissions.reach(member, Action.GLANCE_AT_POOL)
        if pool is not Reach.NONE:
            sections["You" if usage is Reach.OWN else "Team"].append(_link(member, "pool", _("Pool"), current))
        requests = permissions.reach(member, Action.SEE_REQUESTS)
        if requests is not Reach.NONE:
            sections["You" if requests is Reach.OWN else "Team"].append(_link(member, "request_log", _("Request log"), current))
        if permissions.reach(member, Action.SEE_ALERTS) is not Reach.NONE:
            sections[section].append(_link(member, "alerts", _("Alerts"), current))
        sections["You" if usage is Reach.OWN else "Money"].append(_link(member, "usage_report", _("Usage report"), current))
    if permissions.can(member, Action.SEE_MONEY):
        sections["Money"].append(_link(member, "invoices", _("Plan & invoices"), current))
    if usage is not Reach.NONE:
        sections["You" if usage is Reach.OWN else "Money"].append(_link(member, "jobs", _("Exports"), current))
    if permissions.can(member, Action.MANAGE_ORGANIZATION):
        sections["Team"].append(_link(member, "settings", _("Settings"), current))
    else:
        sections["You" if you else "Money"].append(_link(member, "settings_tokens", _("API tokens"), current))
    titles = {"You": _("You"), "Team": _("Team"), "Money": _("Money")}
    return tuple(Section(titles[name], tuple(links)) for name, links in sections.items() if links)


def first_page(member: Member) -> str:
    """The page that answers the role's first question."""
    return {Member.Role.DEVELOPER: "key", Member.Role.FINANCE: "usage_report"}.get(Member.Role(member.role), "overview")


def _link(member: Member, route: str, name: str, current: str) -> Link:
    return Link(name, reverse(route, kwargs={"slug": member.organization.slug}), icon=route, is_current=route == current)
