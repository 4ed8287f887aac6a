"""resume ORG"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import organizations
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Lets a suspended organization go on."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")

    def operate(self, *, organization: str, **options: Any) -> Mapping[str, Any]:
        changed = organizations.resume(organizations.find(organization), by=None)
        return {"slug": changed.slug, "is_active": changed.is_active}
