"""revoke_key ORG PUBLIC_ID"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import keys, organizations
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Ends a gateway key; it is refused on the very next request. A second time changes nothing."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("public_id", metavar="PUBLIC_ID", help="the 10 characters after wr_ (wr_ may stand in front)")

    def operate(self, *, organization: str, public_id: str, **options: Any) -> Mapping[str, Any]:
        key = keys.by_public_id(organizations.find(organization), public_id)
        key = keys.revoke(key, by=None, now=utc_now())
        assert key.revoked_at is not None
        return {"id": str(key.uuid), "revoked_at": key.revoked_at.isoformat()}
