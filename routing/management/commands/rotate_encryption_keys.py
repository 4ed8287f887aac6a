"""`manage.py rotate_encryption_keys`: every stored secret under the newest key, so that an old one can be dropped."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError

from config.management.operator import OperatorCommand
from routing import rotation


class Command(OperatorCommand):
    help = (
        "Re-encrypts tokens under the first key of ENCRYPTION_KEYS. Put the new key in front of the list, restart all processes, "
        "run this, and drop the keys that it names; safe to repeat and to interrupt."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--page", type=int, default=rotation.PAGE, metavar="ROWS", help="rows a query")

    def operate(self, **options: Any) -> Mapping[str, Any]:
        if not 1 <= options["page"] <= 100_000:
            raise CommandError("--page takes 1 to 100,000 rows.")
        found = rotation.rotate(page=options["page"])
        self.broken = found.broken
        return {
            "newest": found.newest,
            "resealed": found.resealed,
            "already_current": found.current,
            "changed_meanwhile": found.moved,
            "broken": found.broken,
            "secrets_by_key": dict(found.keys),
            "droppable_keys": found.droppable,
        }

    def handle(self, *args: Any, **options: Any) -> None:
        super().handle(*args, **options)
        if self.broken:
            raise CommandError(f"{len(self.broken)} rows cannot be opened with the configured keys; nothing of them was changed.")
