"""`manage.py usage ORG [--by …] [--from …] [--to …] [--rows]`: here because it names accounts, which billing does not know."""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import CommandError
from django.db.models import Q

from accounts import organizations
from accounts.models import Organization
from billing import credits, periods, reports, subscriptions
from billing.models import Subscription
from config.clock import utc_now
from config.management.operator import OperatorCommand, text
from routing.models import PoolAccount


class Command(OperatorCommand):
    help = (
        "What an organization used. --from and --to are days (2026-11-24) of the organization's zone, both included, or instants "
        "with a zone (2026-11-24T12:00:00Z), the last one excluded. Without them: from the current period's start until now. "
        "The answer's from and to are instants, [from, to)."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("--by", choices=reports.GROUPINGS, default="day", help="what to sum by (day)")
        parser.add_argument("--from", dest="start", metavar="DAY", help="the first day, or an instant")
        parser.add_argument("--to", dest="end", metavar="DAY", help="the last day, or an instant (now)")
        parser.add_argument("--rows", action="store_true", help="the usage log's rows instead of sums, credits as decimal strings")

    def operate(
        self, *, organization: str, by: str, start: str | None, end: str | None, rows: bool, **options: Any
    ) -> Mapping[str, Any]:
        found = organizations.find(organization)
        now = utc_now()
        zone = ZoneInfo(found.timezone)
        first = _moment(start, "--from", zone, is_end=False) if start else _period_start(found, now)
        last = _moment(end, "--to", zone, is_end=True) if end else now
        if first >= last:
            raise CommandError(f"--from ({first.isoformat()}) is not before --to ({last.isoformat()}).")
        sums = reports.usage_by(found, by, first, last)
        return {
            "from": first.astimezone(zone).isoformat(),
            "to": last.astimezone(zone).isoformat(),
            "by": by,
            "rows": _log(found, first, last) if rows else _table(found, by, sums),
            "total_credits": credits.text(sum(one.credits for one in sums)),
        }

    def present(self, result: Mapping[str, Any]) -> None:
        table = result["rows"]
        order = "row by row" if table and "request_id" in table[0] else f"by {result['by']}"
        self.stdout.write(f"{result['from']} until {result['to']}, {order}")
        if table:
            names = list(table[0])
            cells = [names, *(["" if row[name] is None else text(row[name]) for name in names] for row in table)]
            widths = [max(len(row[index]) for row in cells) for index in range(len(names))]
            for row in cells:
                self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        self.stdout.write(f"total: {result['total_credits']} credits")


def _moment(given: str, option: str, zone: ZoneInfo, *, is_end: bool) -> datetime:
    """A day's start (its end, for the last one), or the instant."""
    try:
        if len(given) == len("2026-11-24"):
            day = date.fromisoformat(given)
            return periods.day_start(day + timedelta(days=1) if is_end else day, zone)
        moment = datetime.fromisoformat(given)
    except (ValueError, OverflowError) as error:
        raise CommandError(f"{option} {given!r} is neither a day such as 2026-11-24 nor an instant.") from error
    if moment.tzinfo is None:
        raise CommandError(f"{option} {given!r} needs a zone, such as 2026-11-24T12:00:00Z.")
    return moment.astimezone(UTC)


def _period_start(organization: Organization, now: datetime) -> datetime:
    """Of the organization's subscription; without one the month's."""
    subscription = (
        Subscription.objects.for_organization(organization)
        .active()
        .filter(member=None)
        .select_related("organization", "plan")
        .first()
    )
    if subscription is not None:
        return subscriptions.period_of(subscription, now).start
    zone = ZoneInfo(organization.timezone)
    return periods.day_start(now.astimezone(zone).date().replace(day=1), zone)


def _table(organization: Organization, by: str, sums: list[reports.UsageSum]) -> list[dict[str, Any]]:
    naming: dict[str, Callable[[], Mapping[Any, str]]] = {
        "team": lambda: reports.team_names(organization),
        "member": lambda: reports.member_names(organization),
        "key": lambda: reports.key_public_ids(organization),
        "account": lambda: _labels(organization),
    }
    names = naming[by]() if by in naming else None
    table = []
    for one in sums:
        figures = asdict(one)
        group = figures.pop("group")
        figures.update((name, credits.text(figures[name])) for name in reports.CREDIT_COLUMNS)
        if names is None:
            table.append({by: group, **figures})
        else:
            table.append({by: names.get(group), f"{by}_id": group, **figures})
    return table


def _log(organization: Organization, start: datetime, end: datetime) -> list[dict[str, Any]]:
    labels = _labels(organization)
    return [{**row, "account": labels.get(row["account_id"])} for row in reports.rows(organization, start, end)]


def _labels(organization: Organization) -> Mapping[int, str]:
    """Account labels by id: the organization's own, and those of shared pools."""
    accounts = PoolAccount.objects.filter(Q(pool__organization=organization) | Q(pool__organization=None))
    return dict(accounts.values_list("pk", "label"))
