"""`manage.py set_strategy`: how a pool chooses the account of a request."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError

from accounts import organizations
from config.management.operator import OperatorCommand
from routing import pools
from routing.models import Pool


class Command(OperatorCommand):
    help = "Sets the strategy of a pool and its terms; holds on the next request. Without any of them, prints what is set."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", nargs="?", help="slug of the organization (its first pool, or --pool)")
        parser.add_argument("strategy", metavar="STRATEGY", nargs="?", help=", ".join(Pool.Strategy.values))
        parser.add_argument("--pool", metavar="NAME", help="another pool of the organization than its first")
        parser.add_argument("--shared", metavar="NAME", help="a shared pool, in place of ORG")
        parser.add_argument("--safety", type=float, metavar="TURNS", help="turns of room that a fresh placement needs (4)")
        parser.add_argument(
            "--loyalty", type=float, metavar="TURNS", help="share of a turn below which a warm session leaves (0.75)"
        )
        parser.add_argument("--base-5h", type=int, metavar="CREDITS", help="what one Plus carries in 5 hours, an assumption (225)")
        parser.add_argument(
            "--base-week", type=int, metavar="CREDITS", help="what one Plus carries in a week, an assumption (1500)"
        )

    def operate(self, **options: Any) -> Mapping[str, Any]:
        slug, strategy = options["organization"], options["strategy"]
        if options["shared"] is not None:
            if strategy is not None or options["pool"] is not None:
                raise CommandError("--shared names the pool; give the strategy alone beside it.")
            # The one positional argument that is left is the strategy.
            slug, strategy = None, slug
            pool = pools.find(None, options["shared"])
        elif slug is None:
            raise CommandError("Give the slug of an organization, or --shared NAME.")
        else:
            pool = pools.find(organizations.find(slug), options["pool"])
        given = {
            "strategy": strategy,
            "safety_percent": None if options["safety"] is None else round(options["safety"] * 100),
            "loyalty_percent": None if options["loyalty"] is None else round(options["loyalty"] * 100),
            "base_short_credits": options["base_5h"],
            "base_weekly_credits": options["base_week"],
        }
        fields = {name: value for name, value in given.items() if value is not None}
        if fields:
            pool = pools.set_strategy(pool, fields, by=None)
        return {
            "pool": pool.name,
            "strategy": pool.strategy,
            "safety": pool.safety_percent / 100,
            "loyalty": pool.loyalty_percent / 100,
            "base_5h": pool.base_short_credits,
            "base_week": pool.base_weekly_credits,
        }
