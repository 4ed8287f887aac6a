"""`manage.py set_fallback_rate --input N --cached-input N --output N [--cache-write N] [--from MOMENT] [--yes]`"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from billing import rates_import
from billing.management.commands import import_ratecard
from billing.management.moments import moment
from billing.timelines import whole_second
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Sets what models without a rate cost, in credits per million tokens, for the organizations that chose a price over a "
        "refusal (in the admin: unpriced models). It comes in like a card with one row: shown, confirmed, dated."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--input", required=True, metavar="N", help="credits per million fresh input tokens")
        parser.add_argument("--cached-input", required=True, metavar="N", help="credits per million cached input tokens")
        parser.add_argument("--cache-write", metavar="N", help="credits per million tokens written to the cache (as input)")
        parser.add_argument("--output", required=True, metavar="N", help="credits per million output tokens")
        parser.add_argument("--from", dest="start", metavar="MOMENT", help="when it begins: a day (UTC) or an instant (now)")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
        parser.add_argument("--yes", action="store_true", help="do not ask")

    def operate(self, *, start: str | None, dry_run: bool, yes: bool, **prices: Any) -> Mapping[str, Any]:
        content = rates_import.fallback_card(
            {name: prices[name] for name in ("input", "cached_input", "cache_write", "output")},
            start=moment(start) or whole_second(utc_now()),
        )
        return import_ratecard.bring_in(self, content, "fallback rate", dry_run=dry_run, yes=yes)

    present = import_ratecard.Command.present
