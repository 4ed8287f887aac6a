"""`manage.py export_usage ORG [--rows | --by …] [--from …] [--to …] [--bom] [--output FILE]`: the files of the usage page."""

import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import CommandError

from accounts import organizations
from billing import exports, labels, usage_report
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Writes what an organization used as CSV: every request, or sums. --from and --to are days (2026-11-24) of the "
        "organization's zone, both included, or instants with a zone (2026-11-24T12:00:00Z), the last one excluded. Without them: "
        "the current period. The columns are listed in docs/exports.md."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--rows", action="store_true", help="every request instead of sums")
        what.add_argument("--by", choices=usage_report.GROUPINGS, default="day", help="what to sum by (day)")
        parser.add_argument("--from", dest="start", metavar="DAY", help="the first day, or an instant")
        parser.add_argument("--to", dest="end", metavar="DAY", help="the last day, or an instant")
        parser.add_argument("--bom", action="store_true", help="begin with a byte-order mark, for Excel")
        parser.add_argument("--output", default="-", metavar="FILE", help="where to write; it must not exist (standard output)")

    def handle(self, *args: Any, as_json: bool = False, **options: Any) -> None:
        if as_json and options["output"] == "-":
            raise CommandError("--json tells of a file: name it with --output.")
        super().handle(*args, as_json=as_json, **options)

    def operate(
        self,
        *,
        organization: str,
        rows: bool,
        by: str,
        start: str | None,
        end: str | None,
        bom: bool,
        output: str,
        **options: Any,
    ) -> Mapping[str, Any]:
        found = organizations.find(organization)
        now, sight = utc_now(), labels.operators_sight(found)
        if (start is None) != (end is None):
            raise CommandError("--from and --to go together.")
        if start is None or end is None:
            chosen = usage_report.this_period(sight, None, now)
        else:
            chosen = usage_report.parsed(start, end, ZoneInfo(found.timezone), names=("--from", "--to"))
        file: exports.File = (
            exports.RowsFile(sight, chosen, with_bom=bom) if rows else exports.TotalsFile(sight, by, chosen, now=now, with_bom=bom)
        )
        written = 0
        if output == "-":
            for piece in exports.pieces(file):
                written += len(piece)
                self._out(piece)
        else:
            try:
                with Path(output).open("xb") as opened:
                    for piece in exports.pieces(file):
                        written += opened.write(piece)
            except OSError as error:
                raise CommandError(f"{output} cannot be written: {error.strerror}.") from error
        zone = ZoneInfo(found.timezone)
        return {
            "output": output,
            "from": chosen.start.astimezone(zone).isoformat(),
            "to": chosen.end.astimezone(zone).isoformat(),
            "bytes": written,
        }

    def _out(self, piece: bytes) -> None:
        """As bytes: a terminal's encoding and its line ends are no part of the file."""
        target = getattr(self.stdout, "_out", sys.stdout)
        raw = getattr(target, "buffer", None)
        if raw is not None:
            raw.write(piece)
        else:
            target.write(piece.decode())

    def present(self, result: Mapping[str, Any]) -> None:
        """To the side of the file, which may be on standard output."""
        for name, value in result.items():
            self.stderr.write(f"{name}: {value}")
