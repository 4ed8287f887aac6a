"""`manage.py credit_note NUMBER --reason TEXT [--amount MONEY]`"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from billing import invoicing
from billing.management.commands.set_plan import money
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Takes back an invoice, or a part of it. The note names the invoice; all its notes take back at most its total."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("number", metavar="NUMBER", help="the invoice's, as it is printed")
        parser.add_argument("--reason", required=True, metavar="TEXT", help="why; printed on the note")
        parser.add_argument("--amount", metavar="MONEY", help="how much (all that is left of it)")

    def operate(self, *, number: str, reason: str, amount: str | None, **options: Any) -> Mapping[str, Any]:
        invoice = invoicing.find(number)
        note = invoicing.credit_note(
            invoice, reason=reason, by=None, now=utc_now(), amount=None if amount is None else money(amount)
        )
        return {
            "id": str(note.uuid),
            "number": note.frozen["number"],
            "corrects": note.frozen["corrects"],
            "total": f"{note.total} {note.currency}",
        }
