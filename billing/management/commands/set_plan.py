"""`manage.py set_plan SLUG [--name TEXT] [--quota CREDITS|none] [--price MONEY|none] [...]`"""

from argparse import ArgumentParser
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import CommandError

from billing import credits, plans
from billing.models import Plan
from config.management.operator import OperatorCommand

NONE = "none"


class Command(OperatorCommand):
    help = (
        "Makes a plan, or changes one; what is not named stays. Rules hold on the next request of everyone who is on it; quota and "
        "price with each subscription's next period. A plan without a quota cannot be used."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("slug", metavar="SLUG", help="the plan's slug")
        parser.add_argument("--name", metavar="TEXT", help="what people read")
        parser.add_argument("--reset", choices=Plan.ResetPeriod.values, help="how long a period is (monthly)")
        parser.add_argument("--quota", metavar="CREDITS", help="credits of a period, in place of the multiplier; none: not set")
        parser.add_argument("--multiplier", metavar="TIMES", help="of the baseline of 1,000,000 credits; none: not set")
        parser.add_argument("--strategy", choices=Plan.QuotaStrategy.values, help="how the quota is counted (fixed_window)")
        parser.add_argument("--charging", choices=Plan.ChargingMode.values, help="hold an estimate, or check and deduct (reserve)")
        parser.add_argument("--overage", choices=Plan.OveragePolicy.values, help="what happens above the quota (block)")
        parser.add_argument("--overage-cap", metavar="CREDITS", help="most credits of a period on the invoice; none: none")
        parser.add_argument("--overage-price", metavar="MONEY", help="price of one credit on the invoice")
        parser.add_argument("--price", metavar="MONEY", help="of a period; none: not set, nothing is charged by itself")
        parser.add_argument("--currency", metavar="CODE", help="three letters (USD)")
        parser.add_argument("--fast", choices=("yes", "no"), help="may fast mode be used? (yes)")
        parser.add_argument("--models", metavar="A,B", help="the models it includes; all: every one")

    def operate(self, *, slug: str, **options: Any) -> Mapping[str, Any]:
        done = plans.set_plan(slug, _fields(options), by=None)
        plan = done.plan
        return {
            "slug": plan.slug,
            "made": done.is_new,
            "name": plan.name,
            "reset": plan.reset_period,
            "quota": None if plan.quota is None else credits.text(plan.quota),
            "price": None if plan.price is None else f"{plan.price} {plan.currency}",
            "overage": plan.overage_policy,
            "overage_cap": None if plan.overage_cap is None else credits.text(plan.overage_cap),
            "overage_price": None if plan.overage_price is None else str(plan.overage_price),
        }


def _fields(options: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for option, name in (
        ("name", "name"), ("reset", "reset_period"), ("strategy", "quota_strategy"), ("charging", "charging_mode"),
        ("overage", "overage_policy"), ("currency", "currency"),
    ):  # fmt: skip
        if options[option] is not None:
            fields[name] = options[option]
    for option, name in (("quota", "base_quota"), ("overage_cap", "overage_cap")):
        if options[option] is not None:
            fields[name] = None if options[option] == NONE else _credits(options[option])
    if options["multiplier"] is not None:
        times = None if options["multiplier"] == NONE else money(options["multiplier"]) * 1000
        if times is not None and times != int(times):
            raise CommandError("A multiplier has at most three decimal places.")
        fields["multiplier_thousandths"] = None if times is None else int(times)
    for option, name in (("overage_price", "overage_price"), ("price", "price")):
        if options[option] is not None:
            fields[name] = None if options[option] == NONE else money(options[option])
    if options["fast"] is not None:
        fields["fast_allowed"] = options["fast"] == "yes"
    if options["models"] is not None:
        fields["models_allowed"] = None if options["models"] == "all" else [one for one in options["models"].split(",") if one]
    return fields


def _credits(text: str) -> int:
    try:
        return credits.parse(text)
    except ValueError as error:
        raise CommandError(str(error)) from error


def money(text: str) -> Decimal:
    """0 or more. Raises CommandError."""
    try:
        amount = Decimal(text)
    except InvalidOperation as error:
        raise CommandError(f"{text!r} is not an amount, such as 20 or 19.90.") from error
    if not amount.is_finite() or amount < 0:
        raise CommandError(f"{text!r} is not an amount of 0 or more.")
    return amount
