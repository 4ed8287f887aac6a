"""`manage.py rebuild_rollups [--organization ORG] [--from DAY] [--to DAY]`."""

from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import CommandError
from django.db import connection

from accounts import organizations
from accounts.models import Organization
from billing import periods, rollups
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Makes the hourly sums of usage anew from the log, a week at a time, of one organization or of all; days are the "
        "organization's, both included, by default all that the log holds. Needed once usage was written without them, or a time "
        "zone was changed."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--organization", metavar="ORG", help="the organization's slug (all organizations)")
        parser.add_argument("--from", dest="start", metavar="DAY", help="the first day, such as 2026-11-24")
        parser.add_argument("--to", dest="end", metavar="DAY", help="the last day (today)")

    def operate(self, *, organization: str | None, start: str | None, end: str | None, **options: Any) -> Mapping[str, Any]:
        found = [organizations.find(organization)] if organization else Organization.objects.order_by("pk").iterator(chunk_size=500)
        hours = done = 0
        for one in found:
            zone = ZoneInfo(one.timezone)
            day = _day(start, "--from") if start else _first_day(one, zone)
            last = _day(end, "--to") if end else utc_now().astimezone(zone).date()
            done += 1
            while day is not None and day <= last:
                following = min(day + timedelta(days=7), last + timedelta(days=1))
                hours += rollups.rebuild(one.pk, periods.day_start(day, zone), periods.day_start(following, zone))
                day = following
        return {"organizations": done, "buckets": hours}


def _day(given: str, option: str) -> date:
    try:
        return date.fromisoformat(given)
    except ValueError as error:
        raise CommandError(f"{option} {given!r} is not a day such as 2026-11-24.") from error


def _first_day(organization: Organization, zone: ZoneInfo) -> date | None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT min(admitted_at) FROM billing_usagerecord WHERE organization_id = %s", [organization.pk])
        (first,) = cursor.fetchone()
    return first.astimezone(zone).date() if first is not None else None
