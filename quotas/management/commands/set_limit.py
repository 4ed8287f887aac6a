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
        parser.add_argument("--window", default="", choices=windows, help="not for requests_per_minute and concurrent")
        parser.add_argument("--amount", required=True, metavar="N", help="decimal credits or a count; none removes the limit")

    def operate(self, **options: Any) -> Mapping[str, Any]:
        organization = organizations.find(options["organization"])
        wanted = {name: options[name] for name in ("scope", "of", "metric", "window", "amount")}
        made = limits.set_limit(organization, **wanted)
        return {"id": None if made is None else str(made)}
