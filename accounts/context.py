"""What the page frame shows: the organizations one belongs to, and where the navigation leads."""

from typing import Any

from django.http import HttpRequest

from accounts import permissions, tenancy
from accounts.models import Member, User
from accounts.permissions import Action, Reach


def shell(request: HttpRequest) -> dict[str, Any]:
    """Template context of every page. The queries run only if a template asks."""

    def organizations() -> list[Member]:
        return list(tenancy.memberships(request.user)) if isinstance(request.user, User) else []

    return {"organizations": organizations}


def navigation(member: Member, current: str) -> dict[str, Any]:
    """The frame of a page of `member`'s organization; `current` is the page's name in the navigation."""
    return {
        "member": member,
        "organization": member.organization,
        "current_page": current,
        "may_use_keys": permissions.reach(member, Action.USE_KEYS) is not Reach.NONE,
        "may_see_usage": permissions.reach(member, Action.SEE_USAGE) is not Reach.NONE,
    }


def first_page(member: Member) -> str:
    """The page that answers the role's first question."""
    return "key" if member.role == Member.Role.DEVELOPER else "overview"
