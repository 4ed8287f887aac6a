"""`manage.py show_invoice NUMBER [--csv]`"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from billing import credits, invoicing, statement
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Prints an invoice or a credit note as it was issued."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("number", metavar="NUMBER", help="as it is printed, e.g. ACME-000001")
        parser.add_argument("--csv", action="store_true", dest="as_csv", help="print its file")

    def operate(self, *, number: str, as_csv: bool, **options: Any) -> Mapping[str, Any]:
        invoice = invoicing.find(number)
        if as_csv:
            return {"csv": statement.invoice_csv(invoice)}
        return {
            "number": invoice.frozen["number"],
            "kind": invoice.kind,
            "corrects": invoice.frozen["corrects"] or None,
            "customer": invoice.customer_name,
            "issued_on": invoice.frozen["issued_on"],
            "days": f"{invoice.frozen['first']} to {invoice.frozen['last']}",
            "credits": credits.text(invoice.credits),
            "total": f"{invoice.total} {invoice.currency}",
            "lines": [
                f"{line.description}: {credits.text(line.credits)} credits, {line.amount} {invoice.currency}"
                for line in invoice.lines.order_by("position")
            ],
        }

    def present(self, result: Mapping[str, Any]) -> None:
        if "csv" in result:
            self.stdout.write(result["csv"], ending="")
        else:
            super().present(result)
