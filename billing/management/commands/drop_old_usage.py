"""`manage.py drop_old_usage [--months N] [--dry-run]`."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from billing import partitions, retention
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Drops months of the usage log that are older than USAGE_RETENTION_MONTHS (or --months). A month that an open period or "
        "the counters still need stays, and so does one whose hourly sums differ from it. Ledger, invoices and hourly sums are "
        "kept. The workers do this daily."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--months", type=int, metavar="N", help="whole months to keep besides the current one")
        parser.add_argument("--dry-run", action="store_true", help="only say what would go")

    def operate(self, *, months: int | None, dry_run: bool, **options: Any) -> Mapping[str, Any]:
        keep = months if months is not None else settings.USAGE_RETENTION_MONTHS
        if keep is None:
            raise CommandError("The usage log is kept for ever: neither USAGE_RETENTION_MONTHS nor --months is set.")
        if keep < 1:
            raise CommandError("At least one month is kept.")
        now = utc_now()
        due = [one.table for one in retention.due(now, keep)]
        dropped = [] if dry_run else retention.drop_old(now, keep)
        return {
            "due": due,
            "dropped": dropped,
            "needed_since": retention.needed_since(now).isoformat(),
            "complete_since": partitions.complete_since().isoformat(),
        }
