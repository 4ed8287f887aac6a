"""boost_limit LIMIT --extra N --days N | --until TIME"""

from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from config.clock import utc_now
from config.management.operator import OperatorCommand
from quotas import limits, requests
from quotas.errors import LimitsError
from quotas.models import Limit


class Command(OperatorCommand):
    help = "Gives more of a limit for a time. It counts on the next request and ends by itself; boosts of one limit add up."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("limit", metavar="LIMIT", help="the limit's id, as set_limit prints it")
        parser.add_argument("--extra", required=True, metavar="N", help="how much more: decimal credits, or a count")
        when = parser.add_mutually_exclusive_group(required=True)
        when.add_argument("--days", type=float, metavar="N", help="for so many days from now")
        when.add_argument("--until", metavar="TIME", help="until then, as in 2026-12-04T18:00 (UTC unless it names an offset)")
        parser.add_argument("--reason", default="", metavar="TEXT", help="why; people read it")

    def operate(
        self, *, limit: str, extra: str, days: float | None, until: str | None, reason: str, **options: Any
    ) -> Mapping[str, Any]:
        found, now = _find(limit), utc_now()
        ends_at = now + timedelta(days=days) if days is not None else _moment(until or "")
        ends_at = requests.checked_until(ends_at, now=now, zone=ZoneInfo(found.organization.timezone))
        amount = requests.extra_of(found, extra)
        made = limits.boost(found, extra=amount, until=ends_at, reason=requests.checked_note(reason), by=None, now=now)
        return {"id": str(made.uuid), "limit": str(found.uuid), "until": made.ends_at.isoformat()}


def _find(text: str) -> Limit:
    try:
        found = Limit.objects.select_related("organization").filter(uuid=UUID(text)).first()
    except ValueError:
        found = None
    if found is None:
        raise LimitsError(f"There is no limit {text!r}. set_limit prints the id of the limit that it sets.")
    return found


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise LimitsError(f"{text!r} is not a time, such as 2026-12-04T18:00.") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
