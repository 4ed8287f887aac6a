"""`manage.py set_limit`: what a scope may use of a metric in a window."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import organizations
from config.management.operator import OperatorCommand
from quotas import limits
from quotas.models import Limit


class Command(OperatorCommand):
    help = "Set a limit. The same scope, metric and window again replaces it; --amount none removes it; 0 blocks."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("--scope", required=True, choices=Limit.Scope.values, help="whose use is limited")
        parser.add_argument(
            "--of", default="", metavar="WHICH", help="a team's name, a member's e-mail or a key's public id; not for organization"
        )
        parser.add_argument("--metric", required=True, choices=Limit.Metric.values, help="what is counted")
        windows = [name for name in Limit.Window.values if name]
        parser.add_argument("--window", default="", choices=windows, help="not for requests per second or minute and concurrent")
        parser.add_argument("--amount", required=True, metavar="N", help="decimal credits or a count; none removes the limit")
        parser.add_argument(
            "--models", default="", metavar="MODELS", help="only these models, by commas; holds once their earlier use is added"
        )
        parser.add_argument("--exact", action="store_true", help="count a rolling window by the second, not by buckets")

    def operate(self, **options: Any) -> Mapping[str, Any]:
        organization = organizations.find(options["organization"])
        wanted = {name: options[name] for name in ("scope", "of", "metric", "window", "amount")}
        models = [name for name in options["models"].split(",") if name.strip()]
        strategy = Limit.Strategy.SLIDING_LOG if options["exact"] else Limit.Strategy.RINGS
        made = limits.set_limit(organization, **wanted, models=models, strategy=strategy)
        return {"id": None if made is None else str(made)}
