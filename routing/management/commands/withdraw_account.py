"""`manage.py withdraw_account`: takes a sign-in account out for its person, and erases its tokens."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import organizations
from config.management.operator import OperatorCommand
from routing import withdrawal


class Command(OperatorCommand):
    help = "Takes a sign-in account out of service and erases its tokens; only its person's own sign-in brings it back."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="slug of the organization")
        parser.add_argument("account", metavar="ACCOUNT", help="id or label of the account")

    def operate(self, **options: Any) -> Mapping[str, Any]:
        organization = organizations.find(options["organization"])
        account = withdrawal.withdraw(organization, options["account"], by=None)
        return {"id": str(account.uuid), "label": account.label, "status": account.status}
