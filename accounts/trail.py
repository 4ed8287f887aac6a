"""The audit trail of an organization, read: the newest first, by who, what and when. `accounts.audit` writes and verifies it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet
from django.utils.translation import gettext_lazy

from accounts.models import AuditEvent, Organization

KINDS: Mapping[str, tuple[object, tuple[str, ...]]] = {
    "people": (gettext_lazy("People and teams"), ("member", "team", "invitation", "user")),
    "keys": (gettext_lazy("Keys and tokens"), ("api_key", "api_token")),
    "limits": (gettext_lazy("Limits and requests for more"), ("limit", "limit_request", "filter")),
    "pool": (gettext_lazy("Pool and its accounts"), ("pool", "pool_account", "model_fallback")),
    "money": (
        gettext_lazy("Plan and money"),
        ("subscription", "plan", "creditlot", "invoice", "purchase", "rateoverride", "ratealias", "monthly_export"),
    ),
    "sign_in": (gettext_lazy("Sign-in"), ("session", "identity_provider")),
    "settings": (gettext_lazy("Settings"), ("organization",)),
    "alerts": (gettext_lazy("Alerts and webhooks"), ("alert", "alert_rule", "alert_delivery", "webhook_endpoint")),
    "jobs": (gettext_lazy("Exports and imports"), ("job",)),
    "missing": (gettext_lazy("Asked for and not there"), ("route",)),
}
"""What can be asked for: its name, and the types of objects that it is about."""


@dataclass(frozen=True, slots=True)
class Sought:
    """`who`: a part of the actor's name. `kind`: of KINDS, or "". `object_id`: of one object. Times: [start, end)."""

    who: str = ""
    kind: str = ""
    object_id: str = ""
    start: datetime | None = None
    end: datetime | None = None

    @property
    def is_filtered(self) -> bool:
        return self != Sought()


def events(organization: Organization, sought: Sought) -> QuerySet[AuditEvent]:
    """What was committed, the newest first. An unknown kind finds nothing."""
    rows = AuditEvent.objects.filter(organization=organization, number__isnull=False).order_by("-number")
    if sought.who:
        rows = rows.filter(actor_label__icontains=sought.who)
    if sought.kind:
        rows = rows.filter(object_type__in=KINDS[sought.kind][1] if sought.kind in KINDS else ())
    if sought.object_id:
        rows = rows.filter(object_id=sought.object_id)
    if sought.start is not None:
        rows = rows.filter(created_at__gte=sought.start)
    if sought.end is not None:
        rows = rows.filter(created_at__lt=sought.end)
    return rows


@dataclass(frozen=True, slots=True)
class Page:
    """`newer` and `older`: the numbers to give as `after` and `before` for the next pages; None where there is none."""

    events: Sequence[AuditEvent]
    newer: int | None
    older: int | None


def page(organization: Organization, sought: Sought, *, size: int, before: int | None = None, after: int | None = None) -> Page:
    """One page: the newest, those before a number, or those right after one. One query, or two."""
    rows = events(organization, sought)
    if after is not None:
        near = list(rows.filter(number__gt=after).order_by("number")[: size + 1])
        found, has_newer = near[:size][::-1], len(near) > size
        if not found:
            return page(organization, sought, size=size)
        return Page(found, found[0].number if has_newer else None, found[-1].number)
    if before is not None:
        rows = rows.filter(number__lt=before)
    near = list(rows[: size + 1])
    found = near[:size]
    return Page(
        found,
        found[0].number if found and before is not None else None,
        found[-1].number if len(near) > size else None,
    )
