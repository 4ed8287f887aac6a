"""rotate_key ORG PUBLIC_ID [--grace SECONDS]"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import keys, organizations
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Gives a gateway key a new secret, shown this one time. The old one works for the grace more, then ends; id, limits, use "
        "and history stay."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("public_id", metavar="PUBLIC_ID", help="the 10 characters after wr_ (wr_ may stand in front)")
        parser.add_argument(
            "--grace",
            type=float,
            metavar="SECONDS",
            help="how long the old secret still works; 0 ends it at once; default KEY_ROTATION_GRACE_SECONDS",
        )

    def operate(self, *, organization: str, public_id: str, grace: float | None, **options: Any) -> Mapping[str, Any]:
        key = keys.by_public_id(organizations.find(organization), public_id)
        issued = keys.rotate(key, grace_seconds=grace, by=None, now=utc_now())
        assert issued.key.previous_until is not None
        return {
            "id": str(issued.key.uuid),
            "key": issued.secret,
            "old_secret_until": issued.key.previous_until.isoformat(),
        }
