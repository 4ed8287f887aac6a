"""OperatorCommand: what every operator command shares: `--json`, the organization by slug, domain errors as messages."""

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from config.errors import DomainError


class OperatorCommand(BaseCommand):
    """A command that does one thing and prints what it made: a table of `name: value`, or one JSON object with `--json`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
        self.arguments(parser)

    def arguments(self, parser: ArgumentParser) -> None:
        """The command's own arguments."""

    def operate(self, *args: Any, **options: Any) -> Mapping[str, Any]:
        """Does it; returns what is printed. A DomainError becomes a CommandError with its sentence."""
        raise NotImplementedError

    def handle(self, *args: Any, as_json: bool = False, **options: Any) -> None:
        try:
            result = self.operate(**options)
        except DomainError as error:
            raise CommandError(error.message) from error
        if as_json:
            self.stdout.write(json.dumps(result, default=str, ensure_ascii=False))
        else:
            self.present(result)

    def present(self, result: Mapping[str, Any]) -> None:
        """For people; a command with a table overrides it."""
        for name, value in result.items():
            self.stdout.write(f"{name}: {value}")
