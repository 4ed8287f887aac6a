"""The files of one month for finance, in one archive: a job."""

import zipfile
from collections.abc import Callable, Mapping
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from accounts import jobs
from accounts.job_files import Out
from accounts.jobs import Kind, Work
from accounts.models import Organization
from accounts.permissions import Action
from billing import exports, job_kinds, usage_report
from billing.exports import File, TotalsFile
from billing.invoice_files import InvoiceLinesFile
from billing.labels import Accounts, Sight
from billing.overview import Whose
from billing.statement import LedgerFile
from billing.usage_report import Range
from config.clock import utc_now

KIND = "monthly_files"
INVOICE_LINES, LEDGER, USAGE_BY_MEMBER = "invoice_lines", "ledger", "usage_by_member"
FILES: dict[str, "str | Promise"] = {
    INVOICE_LINES: gettext_lazy("Lines of the invoices that were issued"),
    LEDGER: gettext_lazy("Ledger entries"),
    USAGE_BY_MEMBER: gettext_lazy("Usage by member"),
}


def register() -> None:
    jobs.register(Kind(KIND, _do, job_kinds.may_have_money, shared_by=Action.SEE_MONEY))


def _made(organization: Organization, name: str, chosen: Range) -> File:
    """Finance's sight: sums of everybody, no label of an upstream account."""
    make: dict[str, Callable[[], File]] = {
        INVOICE_LINES: lambda: InvoiceLinesFile(organization, chosen),
        LEDGER: lambda: LedgerFile(organization, chosen=chosen),
        USAGE_BY_MEMBER: lambda: TotalsFile(Sight(Whose(organization), True, False, Accounts.IDS), "member", chosen, now=utc_now()),
    }
    return make[name]()


class _Pipe:
    """What an archive is written to that is never read back: it knows no place, so the archive counts by itself."""

    def __init__(self, out: Out) -> None:
        self._out = out

    def write(self, piece: bytes) -> int:
        self._out.write(bytes(piece))
        return len(piece)

    def flush(self) -> None:
        """Nothing is held back."""


def _do(work: Work) -> Mapping[str, Any]:
    organization, asked = work.job.organization, work.job.asked
    chosen = usage_report.month(asked["month"], ZoneInfo(organization.timezone))
    made_at = work.job.created_at.timetuple()[:6]
    rows: dict[str, int] = {}
    with zipfile.ZipFile(_Pipe(work.out), "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[call-overload]  # it needs no more
        for name in asked["files"]:
            file, before = _made(organization, name, chosen), sum(rows.values())
            info = zipfile.ZipInfo(exports.file_name(organization, name.replace("_", "-"), chosen), made_at)
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as entry:
                for piece in exports.pieces(file):
                    entry.write(piece)
                    work.report(before + file.count, None)
            rows[name] = file.count
    return {"rows": sum(rows.values()), "files": rows}
