"""`manage.py seat ORG EMAIL PLAN`, `manage.py seat ORG EMAIL --end`"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError

from accounts import members, organizations
from billing import plans, subscriptions
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Gives a member a seat of their own, which their next request draws on alone; or ends it."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("member", metavar="EMAIL", help="the member's e-mail address")
        parser.add_argument("plan", nargs="?", metavar="PLAN", help="the plan's slug")
        parser.add_argument("--end", action="store_true", dest="is_ended", help="end the seat")

    def operate(self, *, organization: str, member: str, plan: str | None, is_ended: bool, **options: Any) -> Mapping[str, Any]:
        if is_ended == (plan is not None):
            raise CommandError("Name a plan, or --end.")
        now = utc_now()
        whose = members.find(organizations.find(organization), member)
        if plan is not None:
            seat = subscriptions.add_seat(whose, plans.find(plan), by=None, now=now)
            return {"id": str(seat.uuid), "plan": plan, "ended": False}
        ended = subscriptions.end_seat(whose, by=None, now=now)
        if ended is None:
            raise CommandError(f"{member} has no seat.")
        return {"id": str(ended.uuid), "plan": ended.plan.slug, "ended": True}
