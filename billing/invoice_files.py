"""All invoices and credit notes of a time in one file, line by line, as they were issued."""

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.db.models import QuerySet

from accounts.models import Organization
from billing import credits, csvfile
from billing.models import Invoice, InvoiceLine
from billing.usage_report import Range

PAGE = 200
"""Invoices read at once."""
COLUMNS = (
    "record", "rows", "invoice", "kind", "corrects", "issued_on", "issued_at", "issued_at_utc", "position", "line", "description",
    "first_day", "last_day", "credits", "quantity", "unit_price", "amount", "currency", "invoice_id",
)  # fmt: skip
_UTC = ZoneInfo("UTC")


class InvoiceLinesFile:
    """By the time of issue, so that every document is in the file of exactly one month.

    What a credit note takes back is negative: the column adds up to what is owed. A closing record for each currency.
    """

    def __init__(self, organization: Organization, chosen: Range, *, with_bom: bool = False) -> None:
        self.organization, self.count = organization, 0
        self._chosen, self._with_bom = chosen, with_bom
        self._zone = ZoneInfo(organization.timezone)
        self._last = 0
        self._sums: dict[str, tuple[int, int, Decimal]] = defaultdict(lambda: (0, 0, Decimal(0)))
        self._state = "head"

    def next_piece(self) -> str | None:
        if self._state == "head":
            self._state = "rows"
            return (csvfile.BOM if self._with_bom else "") + csvfile.line(COLUMNS)
        if self._state == "rows":
            found = list(self._invoices()[:PAGE])
            if found:
                self._last = found[-1].pk
                return "".join(self._lines(found))
            self._state = "end"
            return "".join(self._closing())
        return None

    def _invoices(self) -> QuerySet[Invoice]:
        rows = Invoice.objects.for_organization(self.organization).filter(pk__gt=self._last)
        rows = rows.filter(issued_at__gte=self._chosen.start, issued_at__lt=self._chosen.end)
        return rows.select_related("corrects").order_by("pk")

    def _lines(self, found: list[Invoice]) -> Iterator[str]:
        of: dict[int, list[InvoiceLine]] = defaultdict(list)
        for line in InvoiceLine.objects.filter(organization=self.organization, invoice__in=found).order_by(
            "invoice_id", "position"
        ):
            of[line.invoice_id].append(line)
        for invoice in found:
            sign = -1 if invoice.kind == Invoice.Kind.CREDIT_NOTE else 1
            for line, (first, last) in zip(of[invoice.pk], invoice.frozen["lines"], strict=True):
                rows, used, amount = self._sums[invoice.currency]
                self._sums[invoice.currency] = (rows + 1, used + sign * line.credits, amount + sign * line.amount)
                self.count += 1
                yield csvfile.line((
                    "line", "1", csvfile.text(invoice.frozen["number"]), invoice.kind,
                    csvfile.text(invoice.frozen["corrects"] or None), invoice.frozen["issued_on"],
                    csvfile.moment(invoice.issued_at, self._zone), csvfile.moment(invoice.issued_at, _UTC),
                    str(line.position), line.kind, csvfile.text(line.description), first, last,
                    credits.text(sign * line.credits), f"{line.quantity.normalize():f}", f"{line.unit_price.normalize():f}",
                    str(sign * line.amount), csvfile.text(invoice.currency), str(invoice.uuid),
                ))  # fmt: skip

    def _closing(self) -> Iterator[str]:
        for currency, (rows, used, amount) in sorted(self._sums.items()) or [("", (0, 0, Decimal("0.00")))]:
            money = csvfile.text(currency or None)
            yield csvfile.line(("total", str(rows), *[""] * 11, credits.text(used), "", "", str(amount), money, ""))
