"""The usage report and its files. Doors: they parse, ask for the report, render. Without JavaScript it is the same page."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_safe

from accounts import context, display, locales, tenancy
from accounts.models import Member
from accounts.permissions import Action
from billing import exports, labels, reports, usage_report
from billing.errors import GroupingForbidden, RangeInvalid
from billing.labels import Sight
from billing.overview import Whose
from billing.usage_report import Line, Range
from config.clock import utc_now

MOST_LINES = 200
"""The page shows the largest of them; the file has all, and the total counts all."""
TITLES = {
    "day": gettext_noop("Day"),
    "team": gettext_noop("Team"),
    "member": gettext_noop("Member"),
    "key": gettext_noop("Key"),
    "model": gettext_noop("Model"),
    "account": gettext_noop("Account"),
}
NOBODY = {"team": gettext_noop("No team"), "account": gettext_noop("No account"), "model": gettext_noop("No model")}


@dataclass(frozen=True, slots=True)
class Choice:
    """What the address asks for. `query` holds the parameters that ask for the same range again."""

    range: Range
    kind: str
    query: dict[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """A line for people: `label` as the row's head, `detail` small below it, credits beside their share of the total."""

    label: str
    detail: str
    line: Line
    share: str


@never_cache
@require_safe
@tenancy.page(Action.SEE_USAGE)
def usage_report_page(request: HttpRequest, member: Member) -> HttpResponse:
    now = utc_now()
    frame = context.frame(member, "usage_report", now)
    zone: ZoneInfo = frame["zone"]
    sight = labels.sight(member)
    trouble = ""
    try:
        choice = choice_of(request.GET, sight, now, member)
    except RangeInvalid as error:
        trouble, choice = error.message, Choice(usage_report.this_period(sight, member, now), "period", {"range": "period"})
    groupings = usage_report.groupings(sight)
    by = request.GET.get("by", "") or ("day" if sight.whose.member_id is not None else "member")
    if by not in groupings:
        trouble, by = trouble or _("Usage is not summed by %(by)s.") % {"by": by[:40]}, "day"
    report = usage_report.report(sight, by, choice.range, now=now)
    rows = _rows(by, report.lines, report.total.credits, zone, now)
    page = {
        **frame,
        "choice": choice,
        "trouble": trouble,
        "presets": _presets(member, choice, by, now, zone),
        "tabs": [{"name": _(TITLES[one]), "url": _url(member, choice.query, one), "is_current": one == by} for one in groupings],
        "by": by,
        "title": _(TITLES[by]),
        "report": report,
        "rows": rows[:MOST_LINES],
        "left_out": max(0, len(rows) - MOST_LINES),
        "is_used": bool(report.total.requests or report.total.credits),
        "is_own": sight.whose.member_id is not None,
        "scope": _scope(sight.whose, member),
        "is_over": choice.range.end <= now,
        "last_day": min(choice.range.last_day, max(choice.range.first_day, reports.day_of(now, zone))),
        "sees_rows": sight.sees_rows,
        "totals_url": _file_url(member, "usage_totals_csv", {**choice.query, "by": by}),
        "rows_url": _file_url(member, "usage_rows_csv", choice.query),
    }
    return render(request, "billing/usage_report.html", page, status=400 if trouble else 200)


@require_GET
@tenancy.page(Action.SEE_USAGE)
def usage_totals_csv(request: HttpRequest, member: Member) -> HttpResponseBase:
    """Sums by one grouping. 404 for a grouping that there is not, 403 for one that the role does not see, 400 for a wrong range."""
    now, sight = utc_now(), labels.sight(member)
    by = request.GET.get("by", "day")
    if by not in usage_report.GROUPINGS:
        raise Http404
    try:
        usage_report.check_grouping(sight, by)
        choice = choice_of(request.GET, sight, now, member)
    except RangeInvalid as error:
        return _refused(error)
    except GroupingForbidden as error:
        raise PermissionDenied from error
    file = exports.TotalsFile(sight, by, choice.range, now=now, with_bom=_with_bom(request))
    return _answer(request, file, exports.file_name(member.organization, f"usage-by-{by}", choice.range))


@require_GET
@tenancy.page(Action.SEE_USAGE)
def usage_rows_csv(request: HttpRequest, member: Member) -> HttpResponseBase:
    """Every request in the member's reach. 403 for who sees sums only, 400 for a wrong range."""
    now, sight = utc_now(), labels.sight(member)
    if not sight.sees_rows:
        raise PermissionDenied
    try:
        choice = choice_of(request.GET, sight, now, member)
    except RangeInvalid as error:
        return _refused(error)
    file = exports.RowsFile(sight, choice.range, with_bom=_with_bom(request))
    return _answer(request, file, exports.file_name(member.organization, "usage", choice.range))


def _answer(request: HttpRequest, file: exports.File, name: str) -> HttpResponseBase:
    return StreamingHttpResponse(
        content_of(request, file), content_type="text/csv; charset=utf-8", headers=dict(exports.headers(name))
    )


def content_of(request: HttpRequest, file: exports.File) -> Iterator[bytes] | AsyncIterator[bytes]:
    """The file's pieces, made as the client takes them."""
    # Under ASGI a sync iterator would be collected whole before its first byte goes out.
    return exports.stream(file) if isinstance(request, ASGIRequest) else exports.pieces_in_scope(file)


def _refused(error: RangeInvalid) -> HttpResponse:
    return HttpResponse(error.message + "\n", status=error.status, content_type="text/plain; charset=utf-8")


def _with_bom(request: HttpRequest) -> bool:
    return request.GET.get("bom") == "1"


# -------------------------------------------------------------------------------------------------------------- choices


def choice_of(asked: QueryDict, sight: Sight, now: datetime, member: Member) -> Choice:
    """`range`: period (without one), previous, month (with `month`), custom (with `from` and `to`). Raises RangeInvalid."""
    zone = ZoneInfo(member.organization.timezone)
    kind = asked.get("range", "period")
    if kind == "period":
        return Choice(usage_report.this_period(sight, member, now), kind, {"range": kind})
    if kind == "previous":
        chosen = usage_report.last_period(sight, member, now)
        return Choice(chosen, kind, {"range": kind})
    if kind == "month":
        text = asked.get("month", "")
        return Choice(usage_report.month(text, zone), kind, {"range": kind, "month": text})
    if kind == "custom":
        first, last = asked.get("from", ""), asked.get("to", "")
        if not first or not last:
            raise RangeInvalid(_("A range of your own needs its first and its last day."))
        chosen = usage_report.parsed(first, last, zone, names=("from", "to"))
        return Choice(chosen, kind, {"range": kind, "from": first, "to": last})
    raise RangeInvalid(_("%(kind)r is no range: period, previous, month or custom.") % {"kind": kind[:40]})


def _presets(member: Member, choice: Choice, by: str, now: datetime, zone: ZoneInfo) -> list[dict[str, Any]]:
    today = reports.day_of(now, zone)
    last_month = today.replace(day=1) - timedelta(days=1)
    offered = [
        (_("This period"), {"range": "period"}),
        (_("Last period"), {"range": "previous"}),
        (_month_name(today, today), {"range": "month", "month": f"{today:%Y-%m}"}),
        (_month_name(last_month, today), {"range": "month", "month": f"{last_month:%Y-%m}"}),
    ]
    return [{"name": name, "url": _url(member, query, by), "is_current": query == choice.query} for name, query in offered]


def _month_name(day: date, today: date) -> str:
    return display.month(day, today)


def _url(member: Member, query: dict[str, str], by: str) -> str:
    return f"{reverse('usage_report', kwargs={'slug': member.organization.slug})}?{urlencode({**query, 'by': by})}"


def _file_url(member: Member, route: str, query: dict[str, str]) -> str:
    return f"{reverse(route, kwargs={'slug': member.organization.slug})}?{urlencode(query)}"


# --------------------------------------------------------------------------------------------------------------- people


def _scope(whose: Whose, member: Member) -> str:
    if whose.member_id is not None:
        return _("you")
    return _("the %(team)s team") % {"team": member.team} if whose.team_id is not None else _("everybody")


def _rows(by: str, lines: tuple[Line, ...], total: int, zone: ZoneInfo, now: datetime) -> list[Row]:
    today = reports.day_of(now, zone)
    return [Row(*_said(by, line, today), line, _percent(line.sums.credits, total)) for line in lines]


def _said(by: str, line: Line, today: date) -> tuple[str, str]:
    first, *rest = line.names
    if by == "day":
        day = date.fromisoformat(first)
        return display.day(day, today), ""
    if line.sums.group is None:
        return _(NOBODY[by]) if by in NOBODY else "–", ""
    if by == "member":
        return first, rest[0] if rest[0] != first else ""
    if by == "key":
        public_id = f"wr_{rest[0]}_… · " if rest[0] else ""
        return first, f"{public_id}{rest[2]}"
    if by == "account":
        return (first or _("Account of the pool"), "" if first else rest[0])
    return first, ""


def _percent(part: int, whole: int) -> str:
    """Of the total, one decimal, half up; `–` where nothing was used."""
    if whole <= 0:
        return "–"
    tenths = (abs(part) * 2000 + whole) // (2 * whole)
    return f"{'−' if part < 0 and tenths else ''}{tenths // 10}{locales.current().decimal}{tenths % 10} %"
