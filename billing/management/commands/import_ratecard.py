"""`manage.py import_ratecard FILE [--dry-run]`"""

from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from billing import ratecards
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Adds the rates of a card file (ratecard-facts/1). Prints how many rows were added and how many were there already, the "
        "models without a rate, how many open rows got an end, and what was left out. A file that is wrong imports nothing."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", type=Path, help="a rate card, such as billing/data/codex-2026.json")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")

    def operate(self, *, file: Path, dry_run: bool, **options: Any) -> Mapping[str, Any]:
        imported = ratecards.import_file(file, dry_run=dry_run)
        return {
            "added": imported.added,
            "unchanged": imported.unchanged,
            "unpriced": list(imported.unpriced),
            "closed": imported.closed,
            "notices": list(imported.notices),
        }
