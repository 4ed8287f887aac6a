"""create_organization NAME --owner EMAIL [--plan SLUG] [--timezone ZONE]"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from accounts import invitations, organizations
from billing import subscriptions
from billing.models import Plan
from config.clock import utc_now
from config.management.operator import OperatorCommand

DEFAULT_PLAN = "plus"


class Command(OperatorCommand):
    help = "Makes an organization on a plan, with its owner; prints the one-time link by which the owner sets a password."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="the organization's name; its slug is made of it and never changes")
        parser.add_argument("--owner", required=True, metavar="EMAIL", help="the owner's e-mail address")
        parser.add_argument("--plan", default=DEFAULT_PLAN, metavar="SLUG", help=f"the plan's slug ({DEFAULT_PLAN})")
        parser.add_argument(
            "--timezone", default="UTC", metavar="ZONE", help="zone of days, weeks and periods, e.g. Europe/Berlin (UTC)"
        )

    def operate(self, *, name: str, owner: str, plan: str, timezone: str, **options: Any) -> Mapping[str, Any]:
        now = utc_now()
        # One transaction: whatever is refused leaves nothing behind.
        with transaction.atomic():
            made = organizations.create(name, timezone=timezone, by=None)
            subscriptions.start(made, _plan(plan), now=now)
            link = invitations.create_owner_link(made, owner, now=now)
        return {"id": str(made.uuid), "slug": made.slug, "owner_link": link.url}


def _plan(slug: str) -> Plan:
    plan = Plan.objects.filter(slug=slug).first()
    if plan is None:
        known = ", ".join(Plan.objects.values_list("slug", flat=True))
        raise CommandError(f"There is no plan {slug!r}. Plans: {known}.")
    return plan
