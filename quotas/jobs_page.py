"""Exports and imports: long work that was started, how far it is, and its files. Doors: they parse, ask, render.

A job is a line of its own (`quotas/_job.html`) that htmx asks for anew while it runs; without a script the page is reloaded.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST, require_safe

from accounts import context, jobs, permissions, tenancy
from accounts.errors import JobForbidden, JobNotFound
from accounts.models import Job, Member
from accounts.permissions import Action, Reach
from billing import exports, job_kinds, labels, report_page, usage_report
from config.clock import utc_now
from config.errors import DomainError
from quotas import job_kinds as own_kinds
from quotas import request_filters
from quotas.member_files import MembersFile

PAGE = 30
TOTALS = f"{job_kinds.USAGE_TOTALS}:"


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@tenancy.page(Action.SEE_USAGE)
def jobs_page(request: HttpRequest, member: Member) -> HttpResponse:
    """GET lists, POST starts one: `what`, and what it needs (a time as on the usage report, a filter as on the request log)."""
    now = utc_now()
    if request.method != "POST":
        return _page(request, member, now)
    try:
        job = _start(member, request.POST, now)
    except JobForbidden as error:
        raise PermissionDenied from error
    except DomainError as error:
        return _page(request, member, now, trouble=error.message, status=error.status)
    messages.success(request, _("Started: %(title)s. You can leave this page; it goes on without you.") % {"title": job.title})
    return redirect(f"{reverse('jobs', kwargs={'slug': member.organization.slug})}#job-{job.uuid}")


@never_cache
@require_safe
@tenancy.page(Action.SEE_USAGE)
def job(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """The line of one job for htmx; for who follows the address, the page with it."""
    found = _found(member, uuid)
    if "HX-Request" not in request.headers:
        return redirect(f"{reverse('jobs', kwargs={'slug': member.organization.slug})}#job-{uuid}")
    now = utc_now()
    return _line(request, member, found, now)


@require_POST
@tenancy.page(Action.SEE_USAGE)
def stop_job(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    found, now = _found(member, uuid), utc_now()
    if not _may_stop(member, found):
        raise PermissionDenied
    stopped = jobs.stop(found, now=now, by=member.user)
    if "HX-Request" in request.headers:
        return _line(request, member, found, now)
    if stopped:
        messages.success(request, _("Stopped: %(title)s.") % {"title": found.title})
    else:
        messages.warning(request, _("It was over already."))
    return redirect("jobs", slug=member.organization.slug)


@require_GET
@tenancy.page(Action.SEE_MEMBERS)
def members_csv(request: HttpRequest, member: Member) -> HttpResponseBase:
    """Members and limits in the reader's reach, at once: it is as long as the page."""
    now = utc_now()
    file = MembersFile(member, now=now, with_bom=request.GET.get("bom") == "1")
    headers = dict(exports.headers(own_kinds.members_file_name(member, now)))
    content = report_page.content_of(request, file)
    return StreamingHttpResponse(content, content_type="text/csv; charset=utf-8", headers=headers)


# ------------------------------------------------------------------------------------------------------------ starting


def _start(member: Member, asked: QueryDict, now: datetime) -> Job:
    """Raises Http404 for what there is not, and DomainError."""
    what, with_bom = asked.get("what", ""), asked.get("bom") == "1"
    if what == own_kinds.MEMBERS:
        return own_kinds.start_members(member, now=now, with_bom=with_bom)
    if what == own_kinds.AUDIT_TRAIL:
        return own_kinds.start_audit_trail(member, now=now, with_bom=with_bom)
    if what == own_kinds.REQUEST_LOG:
        zone = ZoneInfo(member.organization.timezone)
        chosen = request_filters.chosen(labels.sight(member), asked, zone, now)
        return own_kinds.start_request_log(member, chosen.wanted, now=now, with_bom=with_bom)
    if what == job_kinds.LEDGER and asked.get("range") == "all":
        return job_kinds.start_ledger(member, now=now, with_bom=with_bom)
    sight = labels.sight(member)
    by = what.removeprefix(TOTALS)
    if what != by and by in usage_report.GROUPINGS:
        chosen_range = report_page.choice_of(asked, sight, now, member).range
        return job_kinds.start_usage_totals(member, by, chosen_range, now=now, with_bom=with_bom)
    starts: dict[str, Callable[..., Job]] = {
        job_kinds.USAGE_ROWS: job_kinds.start_usage_rows,
        job_kinds.LEDGER: job_kinds.start_ledger,
        job_kinds.INVOICE_LINES: job_kinds.start_invoice_lines,
    }
    if what not in starts:
        raise Http404
    return starts[what](member, report_page.choice_of(asked, sight, now, member).range, now=now, with_bom=with_bom)


def _offered(member: Member) -> list[tuple[str, str]]:
    """What the form offers: what the role may have."""
    sight = labels.sight(member)
    offered = [(job_kinds.USAGE_ROWS, _("Usage: every request"))] if sight.sees_rows else []
    names = {
        "day": _("Usage: sums by day"),
        "team": _("Usage: sums by team"),
        "member": _("Usage: sums by member"),
        "key": _("Usage: sums by key"),
        "model": _("Usage: sums by model"),
        "account": _("Usage: sums by account"),
    }
    offered += [(f"{TOTALS}{by}", names[by]) for by in usage_report.groupings(sight)]
    if permissions.reach(member, Action.SEE_MEMBERS) is not Reach.NONE:
        offered.append((own_kinds.MEMBERS, _("Members and their limits, as they are now")))
    if permissions.can(member, Action.SEE_MONEY):
        offered += [(job_kinds.INVOICE_LINES, _("Invoice lines")), (job_kinds.LEDGER, _("Ledger"))]
    if permissions.can(member, Action.MANAGE_ORGANIZATION):
        offered.append((own_kinds.AUDIT_TRAIL, _("Audit trail, all of it")))
    return offered


# --------------------------------------------------------------------------------------------------------------- pages


def _frame(member: Member, now: datetime) -> dict[str, Any]:
    return context.frame(member, "jobs", now)


def _line(request: HttpRequest, member: Member, found: Job, now: datetime) -> HttpResponse:
    """One job for htmx; once it is over, with what the page says anew."""
    page = {**_frame(member, now), "job": _row(member, found, now), "is_told": True}
    if found.state not in jobs.UNFINISHED:
        page |= _counts(member, now)
    return render(request, "quotas/_job.html", page)


def _counts(member: Member, now: datetime) -> dict[str, int]:
    """Of what the member may know of: how many are not over, and how many files are there. Two queries."""
    rows = jobs.seen_by(member).order_by()
    ready = list(rows.filter(state=Job.State.DONE, expires_at__gt=now).exclude(file_bytes=None)[:500])
    return {
        "running_count": rows.filter(state__in=jobs.UNFINISHED).count(),
        "ready_count": sum(1 for one in ready if jobs.may_open(member, one)),
    }


def _page(request: HttpRequest, member: Member, now: datetime, *, trouble: str = "", status: int = 200) -> HttpResponse:
    rows = jobs.seen_by(member).order_by("-id")
    before = _uuid(request.GET.get("before", ""))
    if before is not None:
        start = jobs.seen_by(member).filter(uuid=before).values_list("pk", flat=True).first()
        rows = rows.filter(pk__lt=start) if start is not None else rows
    found = list(rows[: PAGE + 1])
    shown = [_row(member, one, now) for one in found[:PAGE]]
    frame = _frame(member, now)
    today = now.astimezone(frame["zone"]).date()
    typed = request.POST if request.method == "POST" else QueryDict()
    page = {
        **frame,
        "jobs": shown,
        **_counts(member, now),
        "older": found[PAGE - 1].uuid if len(found) > PAGE else None,
        "is_first": before is None,
        "offered": _offered(member),
        "what": typed.get("what", ""),
        "first": typed.get("from") or today.replace(day=1).isoformat(),
        "last": typed.get("to") or today.isoformat(),
        "trouble": trouble,
        "sees_requests": permissions.reach(member, Action.SEE_REQUESTS) is not Reach.NONE,
        "kept_days": jobs.KEPT.days,
    }
    return render(request, "quotas/jobs.html", page, status=status)


def _row(member: Member, found: Job, now: datetime) -> dict[str, Any]:
    may_open = jobs.may_open(member, found)
    return {
        "row": found,
        "is_unfinished": found.state in jobs.UNFINISHED,
        "has_file": may_open and jobs.has_file(found, now=now),
        "had_file": found.state == Job.State.DONE and bool(found.file_name) and not jobs.has_file(found, now=now),
        "is_withheld": not may_open and found.state == Job.State.DONE,
        "may_stop": _may_stop(member, found),
        "rows": found.result.get("rows"),
        "outcomes": found.result.get("outcomes", []),
        "who": "" if found.member_id == member.pk else str(found.member) if found.member is not None else _("by schedule"),
        "pace": "3s" if found.state == Job.State.WAITING else "1s",
    }


def _may_stop(member: Member, found: Job) -> bool:
    """Who asked for it, and owners."""
    return found.member_id == member.pk or permissions.can(member, Action.MANAGE_ORGANIZATION)


def _found(member: Member, uuid: UUID) -> Job:
    try:
        return jobs.find(member, uuid)
    except JobNotFound as error:
        raise Http404 from error


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None
