"""What Plan & invoices shows of the monthly export."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from accounts.models import Organization
from billing import monthly_export
from billing.models import MonthlyExport, MonthlySend
from billing.monthly_files import FILES


def shown(organization: Organization, *, chosen: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the section shows. `chosen`: what was sent and refused."""
    row = monthly_export.of(organization)
    now_chosen = chosen or {"is_on": row.is_on, "files": row.files, "recipients": set(map(str, row.recipients))}
    sends = monthly_export.history(organization)
    return {
        "row": row,
        "is_on": now_chosen["is_on"],
        "files": [(name, text, name in now_chosen["files"]) for name, text in FILES.items()],
        "people": [(one, str(one.uuid) in now_chosen["recipients"]) for one in monthly_export.candidates(organization)],
        "sends": [
            {"row": send, "told": ", ".join(one["name"] for one in send.told), "month": send.month.strftime("%Y-%m")}
            for send in sends
        ],
        "next": _next(row, sends),
        "trouble": "",
    }


def _next(row: MonthlyExport, sends: Sequence[MonthlySend]) -> str:
    """The month that is sent next: behind the last that was, and not before the first."""
    if not row.is_on or row.since is None:
        return ""
    return f"{max([row.since, *((send.month + timedelta(days=31)).replace(day=1) for send in sends)]):%Y-%m}"
