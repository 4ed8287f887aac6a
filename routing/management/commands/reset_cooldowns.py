"""`manage.py reset_cooldowns`: makes every account of an organization selectable again."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import organizations
from config.management.operator import OperatorCommand
from routing import accounts


class Command(OperatorCommand):
    help = "Forgets cooldowns, exhaustion and observed windows of an organization's accounts, so that they are tried again."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="slug of the organization")

    def operate(self, *, organization: str, **options: Any) -> Mapping[str, Any]:
        total, cleared = accounts.reset_cooldowns(organizations.find(organization))
        return {"accounts": total, "cleared": cleared}
