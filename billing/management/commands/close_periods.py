"""`manage.py close_periods [ORG]`"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import organizations
from billing import invoicing, rolling
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Closes and invoices the periods that are over, as the worker does every five minutes; opens those that lack a row."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", nargs="?", metavar="ORG", help="the organization's slug; without it, all of them")

    def operate(self, *, organization: str | None, **options: Any) -> Mapping[str, Any]:
        now = utc_now()
        if organization is not None:
            closed = invoicing.close_due(organizations.find(organization).pk, now=now)
            return {"closed": closed.periods, "invoices": [invoice.frozen["number"] for invoice in closed.invoices]}
        return {"opened": rolling.open_due_periods(now), "closed": rolling.close_due_periods(now)}
