"""grant_credits ORG CREDITS --reason TEXT [--expires DATE|never] [--reference TEXT]"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import organizations
from billing import credits, ledger
from billing.management import amounts
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Gives an organization credits beside its plan; the very next request may use them."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("credits", metavar="CREDITS", help="e.g. 500 or 0.25")
        parser.add_argument("--reason", required=True, metavar="TEXT", help="stands in the ledger")
        parser.add_argument("--expires", metavar="DATE", help="a day or an instant, or `never` (12 months)")
        parser.add_argument("--reference", metavar="TEXT", help="a repeat with the same reference grants nothing")

    def operate(
        self, *, organization: str, reason: str, expires: str | None, reference: str | None, **options: Any
    ) -> Mapping[str, Any]:
        to = organizations.find(organization)
        lot = ledger.grant(
            to,
            amounts.credits(options["credits"]),
            reason=reason,
            actor=None,
            now=utc_now(),
            expires_at=amounts.expiry(expires),
            reference=None if reference is None else f"grant:{reference}",
        )
        left = ledger.balance(to.pk).left
        return {"slug": to.slug, "lot": str(lot.uuid), "expires_at": lot.expires_at, "credits_left": credits.text(left)}
