"""`manage.py add_alias ALIAS MODEL [--from MOMENT] [--to MOMENT] [--reason TEXT]`, `manage.py add_alias ALIAS --end`"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError

from billing import aliases
from billing.management.moments import moment
from billing.models import RateAlias
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Lets a name stand for a model that has a rate: requests by it are sent to, and priced as, that model. What it stood for "
        "until then ends there; the past keeps its names and prices."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("alias", metavar="ALIAS", help="the name that clients use")
        parser.add_argument("model", metavar="MODEL", nargs="?", help="the model that it stands for, by its name on the rate card")
        parser.add_argument("--from", dest="start", metavar="MOMENT", help="when it begins: a day (UTC) or an instant (now)")
        parser.add_argument("--to", dest="end", metavar="MOMENT", help="when it ends (never)")
        parser.add_argument("--end", dest="is_ended", action="store_true", help="let the name stand for nothing from now on")
        parser.add_argument("--reason", default="", metavar="TEXT", help="why; kept with it")

    def operate(self, *, alias: str, model: str | None, is_ended: bool, **options: Any) -> Mapping[str, Any]:
        now = utc_now()
        if is_ended:
            row = RateAlias.objects.filter(alias=alias).order_by("valid_from").last()
            if row is None:
                raise CommandError(f"There is no alias {alias!r}.")
            aliases.end(row, now=now)
            return {"alias": alias, "model": row.model, "ended": True}
        if model is None:
            raise CommandError("Name the model that it stands for, or --end.")
        made = aliases.add(
            alias,
            model,
            now=now,
            valid_from=moment(options["start"]),
            valid_to=moment(options["end"]),
            reason=options["reason"],
        )
        return {"alias": made.alias, "model": made.model, "valid_from": made.valid_from, "valid_to": made.valid_to}
