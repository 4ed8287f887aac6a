"""suspend ORG"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import organizations
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Stops an organization: all of its keys are refused on the very next request."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")

    def operate(self, *, organization: str, **options: Any) -> Mapping[str, Any]:
        changed = organizations.suspend(organizations.find(organization), by=None)
        return {"slug": changed.slug, "is_active": changed.is_active}
