"""`manage.py measure_reports`: how long reports and pages take on the usage that is there, and how PostgreSQL reads it."""

import os
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.management.base import CommandError
from django.db import connection
from django.test import Client
from django.urls import reverse

from accounts import members, organizations
from accounts.models import Member, Organization, Team
from billing import exports, labels, reports, usage_report
from billing.models import Invoice, UsageRecord
from billing.usage_report import Range
from config import collector, patience, scope
from config.clock import utc_now
from config.management.operator import OperatorCommand

WARM, REPORT_MS, PAGE_MS, MEMBER_MS, CSV_MB = 3, 1000, 300, 200, 50
"""Runs before the measured ones, and the targets: p95 of reports, of pages, of pages about one member; memory for a CSV file."""
MOST_PLANS_PER_PAGE, SMALL_MS = 12, 1
"""Of quicker statements than that the plan tells nothing."""
MONTH = "month by "
"""How the names of measured reports begin."""

Statement = tuple[str, Any]


class Command(OperatorCommand):
    help = (
        "Measures, on the usage of one organization: a report of its newest month by every grouping, every page of the "
        "organization with its queries and how many of them read usage, and a CSV file of many rows. Prints milliseconds (p50 and "
        "p95 of warm runs) and megabytes, with their targets. Fill a test install first: seed_usage --rows 10000000."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--organization", default="volume", metavar="ORG", help="the organization's slug (volume)")
        parser.add_argument("--runs", type=int, default=20, metavar="N", help="measured runs of each (20)")
        parser.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="rows of the CSV file, 0: none (1,000,000)")
        parser.add_argument("--plans", metavar="FILE", help="write the plans of all statements that read usage to this file")

    def operate(self, *, organization: str, runs: int, rows: int, plans: str | None, **options: Any) -> Mapping[str, Any]:
        if runs < 1:
            raise CommandError("There must be at least one run.")
        found = organizations.find(organization)
        zone, now = ZoneInfo(found.timezone), utc_now()
        today = reports.day_of(now, zone)
        month = usage_report.of_days(today - timedelta(days=30), today, zone)
        measured, statements = [_count(found, month)], {}
        with scope.organization(found.pk), patience.statements_within(patience.PAGE_SECONDS):
            for by in reports.GROUPINGS:
                name = f"{MONTH}{by}"

                def report(by: str = by) -> None:
                    reports.usage_by(found, by, month.start, month.end)

                statements[name], _ = _statements(report)
                measured.append(_timed(name, report, runs, REPORT_MS))
        pages = _pages(found, month)
        # As in the server: what is loaded when it begins is not looked through for garbage any more.
        with collector.spared():
            for name, visit in pages.items():
                statements[name], queries = _statements(visit)
                target_ms = MEMBER_MS if name.startswith(("member: ", "owner: a member")) else PAGE_MS
                measured.append({**_timed(name, visit, runs, target_ms), "queries": queries, "of_usage": len(statements[name])})
        if rows:
            measured.append(_csv(found, today, zone, rows))
        if plans:
            Path(plans).write_text(_document(found, measured, statements), encoding="utf-8")
        return {"organization": found.slug, "measured": measured, "met": all(one.get("met", True) for one in measured)}

    def present(self, result: Mapping[str, Any]) -> None:
        for one in result["measured"]:
            self.stdout.write(_sentence(one))


def _sentence(one: Mapping[str, Any]) -> str:
    if "p50_ms" in one:
        queries = f"   {one['queries']} queries, {one['of_usage']} of usage" if "queries" in one else ""
        return f"{one['name']:32} p50 {one['p50_ms']:8.1f} ms   p95 {one['p95_ms']:8.1f} ms   target {one['target_ms']} ms{queries}"
    if "memory_mb" in one:
        return (
            f"{one['name']:32} {one['rows']:,} rows, {one['file_mb']} MB in {one['seconds']} s   "
            f"{one['memory_mb']} MB more memory   target {CSV_MB} MB"
        )
    return "   ".join(f"{name} {value:,}" if isinstance(value, int) else f"{value}" for name, value in one.items())


def _count(found: Organization, month: Range) -> dict[str, Any]:
    with scope.organization(found.pk), connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM billing_usagerecord WHERE organization_id = %s", [found.pk])
        (logged,) = cursor.fetchone()
        cursor.execute(
            "SELECT count(*), COALESCE(SUM(requests), 0)::bigint FROM billing_usagehour "
            "WHERE organization_id = %s AND hour >= %s AND hour < %s",
            [found.pk, month.start, month.end],
        )
        buckets, requests = cursor.fetchone()
    return {"name": "usage", "rows in the log": logged, "requests in the month": requests, "hourly sums in the month": buckets}


# ------------------------------------------------------------------------------------------------------------- measuring


def _timed(name: str, call: Callable[[], None], runs: int, target_ms: int) -> dict[str, Any]:
    taken = []
    for number in range(WARM + runs):
        began = time.perf_counter()
        call()
        if number >= WARM:
            taken.append((time.perf_counter() - began) * 1000)
    taken.sort()
    # The smallest that 95 of 100 runs do not pass.
    p95 = taken[max(0, -(-len(taken) * 95 // 100) - 1)]
    return {
        "name": name,
        "p50_ms": round(median(taken), 1),
        "p95_ms": round(p95, 1),
        "target_ms": target_ms,
        "met": p95 < target_ms,
    }


def _pages(found: Organization, month: Range) -> dict[str, Callable[[], None]]:
    """Every page of the organization: as the member who used the most sees their own, a lead their team's, an owner everybody's."""
    with scope.organization(found.pk):
        most = reports.usage_by(found, "member", month.start, month.end)
        if not most:
            raise CommandError(f"{found} used nothing in the last month.")
        member = Member.objects.select_related("organization", "user", "team").get(pk=int(str(most[0].group)))
        owner = _somebody(found, Member.Role.OWNER, None)
        lead = _somebody(found, Member.Role.LEAD, member.team)
        key = member.api_keys.order_by("pk").first()
        newest = (
            UsageRecord.objects.filter(organization=found).order_by("-admitted_at", "-id").values("request_id", "model_asked")[:1]
        )
        invoice = Invoice.objects.filter(organization=found).first()
    own, team, whole = _visitor(member), _visitor(lead), _visitor(owner)

    def at(route: str, query: str = "", **named: Any) -> str:
        return reverse(route, kwargs={"slug": found.slug, **named}) + query

    pages = {
        "member: my key": own(at("key")),
        "member: overview": own(at("overview")),
        "member: request log": own(at("request_log")),
        "member: request log, 30 days": own(at("request_log", "?range=30d")),
        "member: usage report": own(at("usage_report")),
        "member: alerts": own(at("alerts")),
        "member: exports": own(at("jobs")),
        "member: tokens": own(at("settings_tokens")),
        "member: security": own(reverse("security")),
        "lead: overview": team(at("overview")),
        "lead: members": team(at("members")),
        "lead: request log, 30 days": team(at("request_log", "?range=30d")),
        "lead: usage report": team(at("usage_report")),
        "lead: alerts": team(at("alerts")),
        "owner: overview": whole(at("overview")),
        "owner: overview, this period": whole(at("overview", "?range=period")),
        "owner: members": whole(at("members")),
        "owner: a member": whole(at("member", uuid=member.uuid)),
        "owner: pool": whole(at("pool")),
        "owner: request log": whole(at("request_log")),
        "owner: request log, 30 days": whole(at("request_log", "?range=30d")),
        "owner: request log, all": whole(at("request_log", "?range=all")),
        "owner: request log, a member": whole(at("request_log", f"?range=all&member={member.uuid}")),
        "owner: request log, a status": whole(at("request_log", f"?range=all&status={UsageRecord.Status.CLIENT_CLOSED.value}")),
        "owner: alerts": whole(at("alerts")),
        "owner: exports": whole(at("jobs")),
        "owner: plan and invoices": whole(at("invoices")),
        "owner: settings": whole(at("settings")),
        "owner: settings, sign-in": whole(at("settings_sign_in")),
        "owner: settings, identity": whole(at("identity_settings")),
        "owner: settings, models": whole(at("settings_models")),
        "owner: settings, tokens": whole(at("settings_tokens")),
        "owner: settings, audit trail": whole(at("settings_audit")),
        "owner: admin": whole(reverse("admin:index")),
        "owner: admin, usage log": whole(reverse("admin:billing_usagerecord_changelist")),
    }
    for by in usage_report.COLUMNS:
        pages[f"owner: usage by {by}"] = whole(
            at("usage_report", f"?range=custom&from={month.first_day}&to={month.last_day}&by={by}")
        )
    if key is not None:
        pages["owner: request log, a key"] = whole(at("request_log", f"?range=all&key={key.uuid}"))
    if member.team is not None:
        pages["owner: request log, a team"] = whole(at("request_log", f"?range=30d&team={member.team.uuid}"))
    for row in newest:
        pages["owner: request log, a model"] = whole(at("request_log", f"?range=30d&model={quote(row['model_asked'])}"))
        pages["owner: one request"] = whole(at("request", name=row["request_id"]))
    if invoice is not None:
        pages["owner: an invoice"] = whole(at("invoice", uuid=invoice.uuid))
    return pages


def _somebody(found: Organization, role: Member.Role, team: Team | None) -> Member:
    """Who has this role, of this team: made if there is nobody."""
    there = Member.objects.filter(organization=found, role=role, team=team).select_related("organization", "user").current()
    return there.first() or members.add(found, f"{role.value}@{found.slug}.example", role=role, team=team, by=None)


def _visitor(member: Member) -> Callable[[str], Callable[[], None]]:
    client = Client(SERVER_NAME=(settings.ALLOWED_HOSTS or ["localhost"])[0].strip(".") or "localhost")
    assert member.user is not None
    client.force_login(member.user)

    def to(path: str) -> Callable[[], None]:
        def visit() -> None:
            # A page begins with nobody's rows in sight, whoever runs this.
            with scope.nothing():
                answer = client.get(path)
            if answer.status_code != 200:
                raise CommandError(f"{path} answered {answer.status_code}.")

        return visit

    return to


def _csv(found: Organization, today: Any, zone: ZoneInfo, rows: int) -> dict[str, Any]:
    """The file of all requests, in the memory that it takes: read as a client would, and thrown away."""
    chosen = usage_report.of_days(today - timedelta(days=365), today, zone)
    with scope.organization(found.pk):
        file = exports.RowsFile(labels.operators_sight(found), chosen)
        before = most = _memory_mb()
        size, began = 0, time.monotonic()
        for piece in exports.pieces(file):
            size += len(piece)
            most = max(most, _memory_mb())
            if file.count >= rows:
                break
    return {
        "name": "CSV of requests",
        "rows": file.count,
        "file_mb": round(size / 1e6, 1),
        "seconds": round(time.monotonic() - began, 1),
        "memory_mb": round(most - before, 1),
        "met": most - before < CSV_MB,
    }


def _memory_mb() -> float:
    """What this process holds in memory."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError as error:
        raise CommandError("Memory can be measured on Linux only; --rows 0 leaves the CSV file out.") from error
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


# ----------------------------------------------------------------------------------------------------------------- plans


def _statements(call: Callable[[], None]) -> tuple[list[Statement], int]:
    """What the call asks of the usage tables, and how many queries it takes once caches are warm."""
    seen: list[Statement] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        call()
    first = len(seen)
    with connection.execute_wrapper(note):
        call()
    asked = [one for one in seen[:first] if "billing_usage" in one[0] and one[0].lstrip()[:6].upper() in ("SELECT", "WITH")]
    return asked, len(seen) - first


def _document(found: Organization, measured: list[dict[str, Any]], statements: Mapping[str, list[Statement]]) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        (version,) = cursor.fetchone()
        cursor.execute("SHOW shared_buffers")
        (buffers,) = cursor.fetchone()
    parts = [
        "# Query plans\n",
        "How PostgreSQL reads usage for reports and pages. Written by a command, so that anybody can make it anew:\n",
        "    manage.py seed_usage --rows 10000000 --organization volume\n"
        "    manage.py measure_reports --organization volume --plans docs/operations/query-plans.md\n",
        f"PostgreSQL {version}, shared_buffers {buffers}, {os.cpu_count()} cores. Statements run as the pages run them: in the "
        f"scope of their organization, under row level security, within {patience.PAGE_SECONDS:g} seconds, by one process. Plans "
        "and buffers are of one more, warm run. A page's statement is shown where it comes first, with its parameters there, "
        f"and without its plan if it takes less than {SMALL_MS} ms.\n",
        "```text",
        *(_sentence(one) for one in measured),
        "```\n",
    ]
    shown: dict[str, str] = {}
    for name, asked in statements.items():
        parts.append(f"## {name}\n")
        for sql, params in asked[:MOST_PLANS_PER_PAGE]:
            is_report = name.startswith(MONTH)
            if shown.setdefault(sql, name) != name and not is_report:
                parts.append(f"`{_one_line(sql)[:80]} …`: see {shown[sql]}.\n")
                continue
            plan, took_ms = _plan(found, sql, params)
            if took_ms < SMALL_MS and not is_report:
                parts.append(f"`{_one_line(sql)[:80]} …`: {took_ms} ms.\n")
            else:
                parts += ["```text", _one_line(sql), *plan, "```\n"]
    return "\n".join(parts)


def _one_line(sql: str) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= 300 else f"{text[:300]} …"


def _plan(found: Organization, sql: str, params: Any) -> tuple[list[str], float]:
    """The lines, and how many milliseconds the server took."""
    within = patience.statements_within(patience.PAGE_SECONDS)
    with scope.organization(found.pk), within, connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS) {sql}", params)
        lines = [str(line) for (line,) in cursor.fetchall()]
    took = next(line for line in lines if line.startswith("Execution Time: "))
    return [line if len(line) <= 200 else f"{line[:200]} …" for line in lines], float(took.split()[2])
