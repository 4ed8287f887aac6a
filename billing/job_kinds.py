"""Billing's long work: usage, ledger and invoices as files, made by a worker. Pages and API start them here."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from accounts import jobs, permissions
from accounts.jobs import Kind, Work
from accounts.models import Job, Member
from accounts.permissions import Action, Reach
from billing import csvfile, exports, labels, reports, usage_report
from billing.exports import File
from billing.invoice_files import InvoiceLinesFile
from billing.labels import Sight
from billing.statement import LedgerFile
from billing.usage_report import Range
from config.clock import utc_now

USAGE_ROWS, USAGE_TOTALS, LEDGER, INVOICE_LINES = "usage_rows", "usage_totals", "ledger", "invoice_lines"


def register() -> None:
    jobs.register(Kind(USAGE_ROWS, _usage_rows, may_have))
    jobs.register(Kind(USAGE_TOTALS, _usage_totals, may_have))
    jobs.register(Kind(LEDGER, _ledger, may_have_money, shared_by=Action.SEE_MONEY))
    jobs.register(Kind(INVOICE_LINES, _invoice_lines, may_have_money, shared_by=Action.SEE_MONEY))


# ------------------------------------------------------------------------------------------------------------ starting


def start_usage_rows(member: Member, chosen: Range, *, now: datetime, with_bom: bool = False) -> Job:
    """Every request in the member's reach. Raises JobForbidden for who sees sums only, TooManyJobs."""
    return jobs.start(
        member,
        kind=USAGE_ROWS,
        title=_("Every request, %(days)s") % {"days": days(chosen)},
        asked={**asked(member, chosen), "bom": with_bom},
        file_name=exports.file_name(member.organization, "usage", chosen),
        now=now,
    )


def start_usage_totals(member: Member, by: str, chosen: Range, *, now: datetime, with_bom: bool = False) -> Job:
    """Sums by one grouping. Raises GroupingUnknown, GroupingForbidden, JobForbidden, TooManyJobs."""
    usage_report.check_grouping(labels.sight(member), by)
    return jobs.start(
        member,
        kind=USAGE_TOTALS,
        title=_("Usage by %(by)s, %(days)s") % {"by": by, "days": days(chosen)},
        asked={**asked(member, chosen), "by": by, "bom": with_bom},
        file_name=exports.file_name(member.organization, f"usage-by-{by}", chosen),
        now=now,
    )


def start_ledger(member: Member, chosen: Range | None = None, *, now: datetime, with_bom: bool = False) -> Job:
    """The ledger, whole or of a time. Raises JobForbidden, TooManyJobs."""
    title = _("The whole ledger") if chosen is None else _("Ledger, %(days)s") % {"days": days(chosen)}
    organization = member.organization
    return jobs.start(
        member,
        kind=LEDGER,
        title=title,
        asked={**(span(chosen) if chosen is not None else {}), "bom": with_bom},
        file_name=(
            csvfile.file_name("ledger", organization.slug) if chosen is None else exports.file_name(organization, "ledger", chosen)
        ),
        now=now,
    )


def start_invoice_lines(member: Member, chosen: Range, *, now: datetime, with_bom: bool = False) -> Job:
    """The lines of all invoices that were issued in a time. Raises JobForbidden, TooManyJobs."""
    return jobs.start(
        member,
        kind=INVOICE_LINES,
        title=_("Invoice lines, %(days)s") % {"days": days(chosen)},
        asked={**span(chosen), "bom": with_bom},
        file_name=exports.file_name(member.organization, "invoice-lines", chosen),
        now=now,
    )


def days(chosen: Range) -> str:
    first, last = chosen.first_day.isoformat(), chosen.last_day.isoformat()
    return first if first == last else _("%(first)s to %(last)s") % {"first": first, "last": last}


def span(chosen: Range) -> dict[str, str]:
    """As `asked` of a job holds a range."""
    return {"start": chosen.start.isoformat(), "end": chosen.end.isoformat()}


def asked(member: Member, chosen: Range) -> dict[str, Any]:
    return {**span(chosen), "reach": reach(labels.sight(member))}


def reach(sight: Sight) -> dict[str, Any]:
    """What a file of usage shows: who has another reach later may not have the file that was made by this one."""
    return {
        "member": sight.whose.member_id,
        "team": sight.whose.team_id,
        "rows": sight.sees_rows,
        "keys": sight.sees_key_ids,
        "accounts": sight.accounts.value,
    }


def may_have(member: Member, asked: Mapping[str, Any]) -> bool:
    """Does the member see exactly what the file shows? Files of single requests are for who sees these."""
    if permissions.reach(member, Action.SEE_USAGE) is Reach.NONE or member.removed_at is not None:
        return False
    sight = labels.sight(member)
    return reach(sight) == asked.get("reach") and (sight.sees_rows or "by" in asked)


def may_have_money(member: Member, asked: Mapping[str, Any]) -> bool:
    return permissions.can(member, Action.SEE_MONEY)


# --------------------------------------------------------------------------------------------------------------- doing


def written(work: Work, file: File, total: int | None = None) -> dict[str, Any]:
    """Writes the file, piece by piece, and tells how far it is: in records."""
    work.report(0, total)
    for piece in exports.pieces(file):
        work.out.write(piece)
        work.report(file.count, None if total is None else max(total, file.count))
    return {"rows": file.count}


def chosen_of(work: Work) -> Range:
    zone = ZoneInfo(work.job.organization.timezone)
    return usage_report.parsed(work.job.asked["start"], work.job.asked["end"], zone)


def asker(work: Work) -> Member:
    """Who asked. Of these kinds somebody always did."""
    assert work.job.member is not None
    return work.job.member


def _with_bom(work: Work) -> bool:
    return bool(work.job.asked.get("bom"))


def _usage_rows(work: Work) -> Mapping[str, Any]:
    sight, chosen = labels.sight(asker(work)), chosen_of(work)
    whose = sight.whose
    days = reports.usage_by(whose.organization, "day", chosen.start, chosen.end, **whose.of_reports())
    return written(work, exports.RowsFile(sight, chosen, with_bom=_with_bom(work)), sum(day.requests for day in days))


def _usage_totals(work: Work) -> Mapping[str, Any]:
    sight = labels.sight(asker(work))
    file = exports.TotalsFile(sight, work.job.asked["by"], chosen_of(work), now=utc_now(), with_bom=_with_bom(work))
    return written(work, file)


def _ledger(work: Work) -> Mapping[str, Any]:
    chosen = chosen_of(work) if "start" in work.job.asked else None
    return written(work, LedgerFile(work.job.organization, with_bom=_with_bom(work), chosen=chosen))


def _invoice_lines(work: Work) -> Mapping[str, Any]:
    return written(work, InvoiceLinesFile(work.job.organization, chosen_of(work), with_bom=_with_bom(work)))
