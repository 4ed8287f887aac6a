"""Settings, Audit trail: who did what, by filters, page by page, and as CSV; the chain's head to note down. Owners only."""

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_safe

from accounts import audit, tenancy, trail
from accounts.models import Member
from accounts.permissions import Action
from accounts.trail import Sought
from billing import csvfile, exports, report_page
from billing.periods import day_start
from config.clock import utc_now
from quotas import audit_sentences, settings_parts
from quotas.audit_file import TrailFile

SIZE = 50
FIELDS = ("who", "kind", "from", "to", "object")
MOST_NUMBER = 2**62


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for; `query` asks for the same again, without a place in the list. `trouble`: what it cannot."""

    sought: Sought
    query: dict[str, str]
    trouble: str = ""

    def url(self, **place: Any) -> str:
        return f"?{urlencode({**self.query, **place})}"


def asked(request: HttpRequest, zone: ZoneInfo) -> Asked:
    query = {name: value for name in FIELDS if (value := request.GET.get(name, "").strip()[:200])}
    if any("\0" in value for value in query.values()):
        return Asked(Sought(), {}, _("No event holds a NUL character."))
    try:
        start, end = _day(query.get("from", "")), _day(query.get("to", ""))
    except ValueError:
        return Asked(Sought(), {}, _("A day is written as 2026-11-30."))
    if start is not None and end is not None and end < start:
        return Asked(Sought(), {}, _("The last day is before the first."))
    if query.get("kind", "") not in ("", *trail.KINDS):
        return Asked(Sought(), {}, _("There is no such kind of event."))
    sought = Sought(
        who=query.get("who", ""),
        kind=query.get("kind", ""),
        object_id=query.get("object", "")[:64],
        start=None if start is None else day_start(start, zone),
        end=None if end is None else day_start(end + timedelta(days=1), zone),
    )
    return Asked(sought, query)


@never_cache
@require_safe
@tenancy.page(Action.MANAGE_ORGANIZATION)
def settings_audit(request: HttpRequest, member: Member) -> HttpResponse:
    now = utc_now()
    frame = settings_parts.frame(member, "settings_audit", now)
    organization = member.organization
    wanted = asked(request, frame["zone"])
    found = trail.page(organization, wanted.sought, size=SIZE, before=_number(request, "before"), after=_number(request, "after"))
    page: dict[str, Any] = {
        **frame,
        "asked": wanted,
        "rows": audit_sentences.told(organization, found.events, now=now),
        "kinds": [(name, title) for name, (title, _types) in trail.KINDS.items()],
        "actors": audit_sentences.actors(organization),
        "head": audit.head(organization),
        "newest": trail.events(organization, Sought()).first(),
        "older": wanted.url(before=found.older) if found.older is not None else "",
        "newer": wanted.url(after=found.newer) if found.newer is not None else "",
        "is_first": found.newer is None,
        "path": reverse("settings_audit", kwargs={"slug": organization.slug}),
        "csv_url": reverse("settings_audit_csv", kwargs={"slug": organization.slug}) + wanted.url(),
    }
    return render(request, "quotas/settings_audit.html", page, status=400 if wanted.trouble else 200)


@require_GET
@tenancy.page(Action.MANAGE_ORGANIZATION)
def settings_audit_csv(request: HttpRequest, member: Member) -> HttpResponseBase:
    """What the filter finds, all of it. 400 for a wrong filter."""
    organization = member.organization
    wanted = asked(request, ZoneInfo(organization.timezone))
    if wanted.trouble:
        return HttpResponse(wanted.trouble + "\n", status=400, content_type="text/plain; charset=utf-8")
    file = TrailFile(organization, wanted.sought, with_bom=request.GET.get("bom") == "1")
    name = csvfile.file_name("audit", organization.slug, utc_now().date().isoformat())
    return StreamingHttpResponse(
        report_page.content_of(request, file), content_type="text/csv; charset=utf-8", headers=dict(exports.headers(name))
    )


def _day(text: str) -> date | None:
    """Raises ValueError."""
    if not text:
        return None
    found = date.fromisoformat(text)
    if not 2000 <= found.year <= 2199:
        raise ValueError(text)
    return found


def _number(request: HttpRequest, name: str) -> int | None:
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
