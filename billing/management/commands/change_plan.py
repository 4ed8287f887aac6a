"""`manage.py change_plan ORG PLAN [--member EMAIL] [--when now|next|renewal] [--preview]`"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError

from accounts import members, organizations
from billing import changes, credits, plans
from billing.models import Subscription
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Puts an organization, or a member's seat, on another plan: now (quota and price by calendar days), with the next period, "
        "or as a renewal on other terms (the whole period; what was used stays). --preview prints what would happen, no more."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("plan", metavar="PLAN", help="the plan's slug")
        parser.add_argument("--member", metavar="EMAIL", help="whose seat; without it the organization's own subscription")
        parser.add_argument("--when", choices=("now", "next", "renewal"), default="now", help="(now)")
        parser.add_argument("--preview", action="store_true", help="only print what the change would do")

    def operate(
        self, *, organization: str, plan: str, member: str | None, when: str, preview: bool, **options: Any
    ) -> Mapping[str, Any]:
        now = utc_now()
        whose = organizations.find(organization)
        rows = Subscription.objects.for_organization(whose).active().select_related("organization", "plan", "next_plan", "member")
        seat = None if member is None else members.find(whose, member)
        subscription = rows.filter(member=seat).first()
        if subscription is None:
            raise CommandError(f"{whose.slug} has no such active subscription.")
        to = plans.find(plan)
        if preview:
            read = {"now": changes.preview_change, "next": changes.preview_next, "renewal": changes.preview_renewal}[when]
            change = read(subscription, to, now=now)
        else:
            make = {"now": changes.change_plan, "next": changes.change_next, "renewal": changes.renew_on}[when]
            change = make(subscription, to, by=None, now=now)
        return {
            "subscription": str(change.subscription),
            "changed": not preview,
            "plan_now": change.plan_now,
            "plan_after": change.plan_after,
            "effective_at": change.effective_at.isoformat(),
            "new_period": change.restarts,
            "period_end": change.period_after.end.isoformat(),
            "days_left": f"{change.days_left} of {change.days}",
            "quota_now": credits.text(change.quota_now),
            "used": credits.text(change.used),
            "remaining_now": credits.text(change.remaining_now),
            "quota_after": credits.text(change.quota_after),
            "remaining_after": credits.text(change.remaining_after),
            "price_difference": f"{change.price_difference} {change.currency}",
        }
