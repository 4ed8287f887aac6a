"""OperatorCommand: what every operator command shares: `--json`, the organization by slug, domain errors as messages."""

import json
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from config import scope
from config.errors import DomainError


class OperatorCommand(BaseCommand):
    """A command that does one thing and prints what it made: a table of `name: value`, or one JSON object with `--json`."""

    # Django's own options work, but `--help` shows what an operator needs.
    suppressed_base_arguments = {
        "--version",
        "--verbosity",
        "--settings",
        "--pythonpath",
        "--traceback",
        "--no-color",
        "--force-color",
    }

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
        # Only for the help: manage.py takes it away, because settings are read before a command sees its arguments.
        parser.add_argument("--var", metavar="DIR", default=SUPPRESS, help="data folder of the running `up` or `demo`")
        self.arguments(parser)

    def arguments(self, parser: ArgumentParser) -> None:
        """The command's own arguments."""

    def operate(self, *args: Any, **options: Any) -> Mapping[str, Any]:
        """Does it; returns what is printed. A DomainError becomes a CommandError with its sentence."""
        raise NotImplementedError

    def handle(self, *args: Any, as_json: bool = False, **options: Any) -> None:
        try:
            with scope.everything():
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
            self.stdout.write(f"{name}: {text(value)}")


def text(value: Any) -> str:
    """One value for people: nothing as `-`, lists by their items, which may be sentences, what is nested as JSON."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return "; ".join(text(item) for item in value) or "none"
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else str(value)
