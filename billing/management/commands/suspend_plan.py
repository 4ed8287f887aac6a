"""`manage.py suspend_plan ORG [--member EMAIL] [--resume]`"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError

from accounts import members, organizations
from billing import subscriptions
from billing.models import Subscription
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Stops what draws on an organization's plan, or on a member's seat, from the next request on; its periods go on."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("--member", metavar="EMAIL", help="whose seat; without it the organization's own subscription")
        parser.add_argument("--resume", action="store_true", dest="is_resumed", help="let it go on")

    def operate(self, *, organization: str, member: str | None, is_resumed: bool, **options: Any) -> Mapping[str, Any]:
        whose = organizations.find(organization)
        seat = None if member is None else members.find(whose, member)
        subscription = Subscription.objects.for_organization(whose).active().filter(member=seat).first()
        if subscription is None:
            raise CommandError(f"{whose.slug} has no such active subscription.")
        if is_resumed:
            changed = subscriptions.resume(subscription, by=None)
        else:
            changed = subscriptions.suspend(subscription, by=None, now=utc_now())
        return {"id": str(changed.uuid), "plan": changed.plan.slug, "suspended": changed.suspended_at is not None}
