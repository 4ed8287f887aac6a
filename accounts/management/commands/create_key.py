"""create_key ORG MEMBER_EMAIL --name NAME"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import keys, members, organizations
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Issues a gateway key for a member. It is shown this one time."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("email", metavar="MEMBER_EMAIL", help="whose key it is")
        parser.add_argument("--name", required=True, metavar="NAME", help="what the key is for")

    def operate(self, *, organization: str, email: str, name: str, **options: Any) -> Mapping[str, Any]:
        member = members.find(organizations.find(organization), email)
        issued = keys.issue(member, name=name, by=None, now=utc_now())
        return {"id": str(issued.key.uuid), "public_id": issued.key.public_id, "key": issued.secret}
