"""`manage.py estimates ORG`: how good the estimates were by which requests were held."""

from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from accounts import organizations
from billing import credits, estimates
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Held against cost, by model: ratios at three percentiles (1.000 is exact), and how often and how much too little."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("--days", type=int, default=7, help="how many days back from now (7)")

    def operate(self, *, organization: str, days: int, **options: Any) -> Mapping[str, Any]:
        now = utc_now()
        found = estimates.errors(organizations.find(organization), now - timedelta(days=days), now)
        return {
            "models": [
                {
                    "model": one.model,
                    "requests": one.requests,
                    "short": one.short,
                    **{
                        f"ratio_{name}": f"{at / 1000:.3f}"
                        for name, at in zip(("p50", "p90", "p99"), one.ratio_thousandths, strict=True)
                    },
                    "short_credits": credits.text(one.short_credits),
                    "credits": credits.text(one.credits),
                    "held": credits.text(one.held),
                }
                for one in found
            ]
        }
