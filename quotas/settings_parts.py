"""What the pages of the settings share: their frame, with the way from one to the next."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _

from accounts import context, permissions
from accounts.models import Member
from accounts.permissions import Action


@dataclass(frozen=True, slots=True)
class Tab:
    name: str
    url: str
    is_current: bool


def frame(member: Member, current: str, now: datetime) -> dict[str, Any]:
    """`current`: the route's name. Who does not manage the organization has their own tokens only, and no tabs."""
    manages = permissions.can(member, Action.MANAGE_ORGANIZATION)
    return {
        **context.frame(member, "settings" if manages else "settings_tokens", now),
        "manages": manages,
        "tabs": tabs(member, current) if manages else (),
    }


def tabs(member: Member, current: str) -> tuple[Tab, ...]:
    routes = (
        ("settings", _("Organization")),
        ("settings_sign_in", _("Sign-in")),
        ("settings_models", _("Models")),
        ("settings_tokens", _("API tokens")),
        ("settings_audit", _("Audit trail")),
    )
    slug = member.organization.slug
    return tuple(Tab(name, reverse(route, kwargs={"slug": slug}), route == current) for route, name in routes)
