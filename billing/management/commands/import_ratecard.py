"""`manage.py import_ratecard FILE [--dry-run] [--yes]`"""

import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from billing import ratecards, rates_import
from config.clock import utc_now
from config.management.operator import OperatorCommand, text


class Command(OperatorCommand):
    help = (
        "Shows what a card file (ratecard-facts/1) would change, asks, and adds its rates. Prints how many rows were added and how "
        "many were there already, the models without a rate, how many open rows got an end, and what was left out. A file that is "
        "wrong imports nothing; the past is never repriced."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", type=Path, help="a rate card, such as billing/data/codex-2026.json")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, change no rate")
        parser.add_argument("--yes", action="store_true", help="do not ask")

    def operate(self, *, file: Path, dry_run: bool, yes: bool, **options: Any) -> Mapping[str, Any]:
        return bring_in(self, ratecards.read_bytes(file), file.name, dry_run=dry_run, yes=yes)

    def present(self, result: Mapping[str, Any]) -> None:
        for name, value in result.items():
            if name == "difference":
                self.stdout.writelines(f"{line}\n" for line in rates_import.lines(value))
            else:
                self.stdout.write(f"{name}: {text(value)}")


def bring_in(command: OperatorCommand, content: bytes, name: str, *, dry_run: bool, yes: bool) -> Mapping[str, Any]:
    """Shows what a card would change, asks unless there is nothing to ask, and applies it; what is printed."""
    now = utc_now()
    imported, difference = rates_import.preview(content, name=name, now=now)
    before = None
    if not dry_run:
        if not yes and not rates_import.is_empty(difference) and not _is_agreed(command, difference):
            raise CommandError("Nothing was imported.")
        row = rates_import.propose(content, name=name, now=now)
        before = row.applied_at
        imported = rates_import.apply(row, seen=rates_import.fingerprint(difference), now=now).imported
    return {
        "added": imported.added,
        "unchanged": imported.unchanged,
        "unpriced": list(imported.unpriced),
        "closed": imported.closed,
        "aliases": imported.aliases,
        "notices": list(imported.notices),
        "applied": not dry_run,
        "imported_before_at": before,
        "difference": difference,
    }


def _is_agreed(command: OperatorCommand, difference: rates_import.Difference) -> bool:
    if not sys.stdin.isatty():
        raise CommandError("This changes rates. Look at it with --dry-run, then confirm it with --yes.")
    for line in rates_import.lines(difference):
        command.stderr.write(line)
    command.stderr.write("Import this? [y/N] ", ending="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
