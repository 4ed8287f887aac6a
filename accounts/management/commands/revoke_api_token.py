"""revoke_api_token ORG PUBLIC_ID"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import api_tokens, organizations
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Ends a token of the API; its next call is refused. A second time changes nothing."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("public_id", metavar="PUBLIC_ID", help="the 10 characters after wt_ (wt_ may stand in front)")

    def operate(self, *, organization: str, public_id: str, **options: Any) -> Mapping[str, Any]:
        token = api_tokens.by_public_id(organizations.find(organization), public_id)
        token = api_tokens.revoke(token, by=None, now=utc_now())
        assert token.revoked_at is not None
        return {"id": str(token.uuid), "revoked_at": token.revoked_at.isoformat()}
