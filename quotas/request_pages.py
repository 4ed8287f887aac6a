"""The request log: every request in the reader's reach, and one of them opened. Doors: they parse, ask, render.

Filters and place stand in the address, so every view of it can be sent to somebody. An opened row is a page of its own; htmx puts
the same into the list, in place of the row.
"""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounts import context, tenancy
from accounts.models import Member
from accounts.permissions import Action
from billing import labels, usage_log
from billing.labels import Accounts, Labels, Sight
from billing.overview import Whose
from billing.usage_log import Wanted
from config.clock import utc_now
from quotas import live, request_filters, request_log, request_told, running
from quotas.errors import FilterRefused
from quotas.models import Refusal
from quotas.refused import Told
from quotas.request_filters import Chosen
from quotas.request_log import Entry

ROW = "row-"
"""htmx replaces an element of such an id: then only the row is wanted."""


@never_cache
@require_safe
@tenancy.page(Action.SEE_REQUESTS)
def request_log_page(request: HttpRequest, member: Member) -> HttpResponse:
    now, sight = utc_now(), labels.sight(member)
    frame = context.frame(member, "request_log", now)
    zone: ZoneInfo = frame["zone"]
    seen = live.seen_all(member, "requests", now=now)
    trouble, sought = "", request.GET.get("q", "").strip()
    try:
        chosen = request_filters.chosen(sight, request.GET, zone, now)
    except FilterRefused as error:
        trouble, chosen = error.message, request_filters.default(sight, zone, now)
    if sought and not trouble and (found := _sought(sight.whose, sought)):
        return redirect("request", slug=member.organization.slug, name=found)
    whose, wanted = sight.whose, chosen.wanted
    places = {name: request_log.place(whose, request.GET[name]) for name in ("before", "after") if name in request.GET}
    page = request_log.page(whose, wanted, before=places.get("before"), after=places.get("after"), now=now)
    names = Labels(member.organization)
    is_first = not any(places.values())
    return render(
        request,
        "quotas/request_log.html",
        {
            **frame,
            **_shown(sight),
            "trouble": trouble,
            "sought": sought,
            "chosen": chosen,
            "presets": [(text, chosen.in_range(name), name == chosen.range) for name, text in request_filters.PRESETS],
            "filters": _fields(sight, chosen, names, page.entries),
            "sums": request_log.sums(whose, wanted, now=now) if is_first else None,
            "refused": request_log.refused_count(whose, wanted) if is_first else 0,
            "rows": _rows(sight, page.entries, names),
            "running": _running(sight, wanted, names, now) if is_first else [],
            "live_seen": seen,
            "older": chosen.url(before=page.older) if page.older else "",
            "newer": chosen.url(after=page.newer) if page.newer else "",
            "looked_to": datetime.fromtimestamp(int(page.older), zone) if page.older.isdigit() else None,
            "newest": chosen.url(),
            "is_first": is_first,
            "nearest": request_log.nearest(whose, wanted, now=now) if not page.entries and not page.older else None,
            "everything": chosen.in_range(request_filters.ALL),
            "path": reverse("request_log", kwargs={"slug": member.organization.slug}),
        },
        status=400 if trouble else 200,
    )


@never_cache
@require_safe
@tenancy.page(Action.SEE_REQUESTS)
def request_page(request: HttpRequest, member: Member, name: str) -> HttpResponse:
    """One request by its id, or a refusal by its public id. 404 where the organization has none of it, 403 where the reader does
    not see it. For htmx the row of the list, opened, or closed again (`?closed`)."""
    now, sight = utc_now(), labels.sight(member)
    entry = request_log.entry(sight.whose, name)
    if entry is None:
        if request_log.entry(Whose(member.organization), name) is not None:
            raise PermissionDenied
        raise Http404
    names = Labels(member.organization)
    [row] = _rows(sight, [entry], names)
    page = {**context.frame(member, "request_log", now), **_shown(sight), "row": row}
    is_part = request.headers.get("HX-Target", "").startswith(ROW)
    if not (is_part and "closed" in request.GET):
        page |= {"is_open": True, **_opened(sight, entry, names)}
    return render(request, "quotas/_request_row.html" if is_part else "quotas/request.html", page)


def _sought(whose: Whose, text: str) -> str:
    """The id of the request or refusal that is meant: by its own id, or by that of the response it made; "" for none."""
    entry = request_log.entry(whose, text)
    if entry is not None:
        return entry.name
    return "" if "\0" in text or len(text) > 128 else usage_log.by_response(whose, text)


def _opened(sight: Sight, entry: Entry, names: Labels) -> dict[str, Any]:
    if entry.logged is not None:
        return {"opened": request_told.opened(sight, entry.logged, names)}
    assert entry.refusal is not None
    return {"one": _told(sight, entry.refusal, names)}


def _told(sight: Sight, row: Refusal, names: Labels) -> Told:
    members, keys = names.members([row.member_id]), names.keys([row.key_id])
    who = "" if sight.whose.member_id is not None else members[row.member_id].name if row.member_id in members else _("somebody")
    return Told(row, who, keys[row.key_id].name if row.key_id in keys else "")


# ---------------------------------------------------------------------------------------------------------------- lists


def _shown(sight: Sight) -> dict[str, Any]:
    """Which columns there are."""
    is_own, sees_accounts = sight.whose.member_id is not None, sight.accounts is Accounts.LABELS
    return {"is_own": is_own, "sees_accounts": sees_accounts, "columns": 8 + (not is_own) + sees_accounts}


def _fields(sight: Sight, chosen: Chosen, names: Labels, entries: Any) -> dict[str, Any]:
    seen = {entry.logged.row.model_served or entry.logged.row.model_asked for entry in entries if entry.logged is not None}
    return request_filters.options(sight, chosen, names, models_seen=seen)


def _running(sight: Sight, wanted: Wanted, names: Labels, now: datetime) -> list[dict[str, Any]]:
    """Requests that run now and would be looked for; what they will have cost, and by which account, nobody knows yet."""
    if wanted.status or wanted.account_id is not None or (wanted.end is not None and wanted.end <= now):
        return []
    rows = [
        row
        for row in running.shown(sight.whose)
        if wanted.member_id in (None, row.member_id)
        and wanted.team_id in (None, row.team_id)
        and wanted.key_id in (None, row.key_id)
        and wanted.model in ("", row.model)
    ]
    members = names.members(row.member_id for row in rows)
    return [{"row": row, "member": members[row.member_id].name if row.member_id in members else _("somebody")} for row in rows]


def _rows(sight: Sight, entries: Any, names: Labels) -> list[dict[str, Any]]:
    """What a line shows, with names looked up for all at once."""
    sees_accounts = sight.accounts is Accounts.LABELS
    members = names.members(entry.member_id for entry in entries)
    accounts = names.accounts(entry.logged.settled.account_id for entry in entries if entry.logged) if sees_accounts else {}
    rows = []
    for entry in entries:
        row: dict[str, Any] = {"name": entry.name, "at": entry.at, "logged": entry.logged, "refusal": entry.refusal}
        row["member"] = members[entry.member_id].name if entry.member_id in members else _("somebody")
        if entry.logged is not None:
            label = accounts.get(entry.logged.settled.account_id or 0)
            row["account"] = "–" if label is None else label.name or _("shared account")
            row["flags"] = request_told.flags(entry.logged)
        else:
            row["why"] = request_told.refused_briefly(entry.refusal)
        rows.append(row)
    return rows
