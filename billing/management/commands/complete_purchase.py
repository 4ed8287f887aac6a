"""complete_purchase ORG --provider NAME --payment ID --credits N --amount MONEY --currency CODE"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import organizations
from billing import credits, ledger, purchases
from billing.management import amounts
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Completes a payment by hand, as its provider's event would: once, however often it is told."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("--provider", required=True, metavar="NAME", help="who was paid, e.g. bank")
        parser.add_argument("--payment", required=True, metavar="ID", help="the payment's id there")
        parser.add_argument("--credits", required=True, metavar="CREDITS", help="what was bought, e.g. 500")
        parser.add_argument("--amount", required=True, metavar="MONEY", help="what was paid, e.g. 12.50")
        parser.add_argument("--currency", required=True, metavar="CODE", help="e.g. EUR")

    def operate(
        self, *, organization: str, provider: str, payment: str, amount: str, currency: str, **options: Any
    ) -> Mapping[str, Any]:
        to = organizations.find(organization)
        purchase = purchases.complete(
            provider,
            payment,
            organization=to,
            amount=amounts.credits(options["credits"]),
            price=amounts.money(amount),
            currency=currency,
            now=utc_now(),
        )
        left = ledger.balance(to.pk).left
        return {"slug": to.slug, "purchase": str(purchase.uuid), "status": purchase.status, "credits_left": credits.text(left)}
