"""`manage.py seed_usage --rows N`: here because it fills the log (billing) and counts it anew (quotas)."""

import time
from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import CommandError
from django.db import connection

from billing import periods, reports, rollups
from config import snapshot
from config.clock import utc_now
from config.management.operator import OperatorCommand
from config.redis import sync_client, translated
from demo import volume
from quotas import engine, rebuild, records


class Command(OperatorCommand):
    help = (
        "Fills the usage log for measurements: rows of the last months in one organization, the same for the same seed, with "
        "periods and hourly sums that match; then counts its counters anew. For test installs: rows of the log are never "
        "deleted. A second run with the same numbers adds nothing."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="how many rows (1,000,000)")
        parser.add_argument("--organization", default="volume", metavar="ORG", help="its slug (volume); made if there is none")
        parser.add_argument("--months", type=int, default=3, metavar="N", help="over how many months of 30 days (3)")
        parser.add_argument("--members", type=int, default=500, metavar="N", help="members with a key, at least (500)")
        parser.add_argument("--seed", type=int, default=1, metavar="N", help="another number makes other rows (1)")
        parser.add_argument("--ledger", action="store_true", help="also the ledger's entries, one for each row")

    def operate(
        self, *, rows: int, organization: str, months: int, members: int, seed: int, ledger: bool, **options: Any
    ) -> Mapping[str, Any]:
        if min(rows, months, members) < 1:
            raise CommandError("There must be at least one row, month and member.")
        began = time.monotonic()
        now = utc_now()
        since = now - timedelta(days=30 * months)
        found = volume.organization(organization, people=members, since=since)
        zone = ZoneInfo(found.timezone)
        first, today = reports.day_of(since, zone), reports.day_of(now, zone)
        subscription = found.subscriptions.active().filter(member=None).select_related("organization", "plan").first()
        if subscription is None:
            raise CommandError(f"{found} has no subscription: its usage would have no period.")
        people = volume.people_of(found)
        every = list(volume.days(rows, zone=zone, since=first, until=today))
        added = volume.fill(found, subscription, every, people, seed=seed)
        booked = sum(volume.book(found, subscription, one) for one in every) if ledger else 0
        filled = time.monotonic()
        _analyze()
        volume.sum_periods(found, subscription)
        day = first
        while day < today:
            following = min(day + timedelta(days=7), today)
            rollups.rebuild(found.pk, periods.day_start(day, zone), periods.day_start(following, zone))
            day = following
        _analyze()
        summed = time.monotonic()
        snapshot.bump(found.pk)
        _count_anew(found.pk)
        return {
            "organization": found.slug,
            "rows": added,
            "ledger_entries": booked,
            "seconds_rows": round(filled - began, 1),
            "seconds_sums": round(summed - filled, 1),
            "seconds_counters": round(time.monotonic() - summed, 1),
        }


def _analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE billing_usagerecord, billing_usagehour")


def _count_anew(organization_id: int) -> None:
    """Counters from the log, in place of those that are there."""
    with translated():
        meta: Any = sync_client().hget(engine.counters_key(organization_id), "$")
    expected = str(records.unpack(meta)[0]) if meta else ""
    rebuild.rebuild(organization_id, expected_epoch=expected, keep_holds=True)
