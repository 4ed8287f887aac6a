"""Plans by an operator's hand: made and changed. What a period grants and costs stays; the next one follows the plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import User
from billing.errors import PlanRefused, PlanUnknown
from billing.models import Plan, Subscription
from config import snapshot

FIELDS = (
    "name", "note", "reset_period", "multiplier_thousandths", "base_quota", "quota_strategy", "charging_mode", "overage_policy",
    "overage_cap", "overage_price", "fast_allowed", "models_allowed", "price", "currency",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SetPlan:
    """A plan as it is now, and whether it was made."""

    plan: Plan
    is_new: bool


def find(slug: str) -> Plan:
    """Raises PlanUnknown, which names the plans there are."""
    plan = Plan.objects.filter(slug=slug).first()
    if plan is None:
        known = ", ".join(Plan.objects.values_list("slug", flat=True))
        raise PlanUnknown(_("There is no plan %(slug)r. Plans: %(known)s.") % {"slug": slug, "known": known})
    return plan


def choices(subscription: Subscription | None) -> list[Plan]:
    """Plans whose names this organization may know: its own, and what is offered to all."""
    own = None if subscription is None else subscription.plan_id
    return list(Plan.objects.filter(Q(is_offered=True) | Q(pk=own)))


def offered(subscription: Subscription) -> list[Plan]:
    """What an owner can change to: plans that are offered to all and can be activated."""
    return [plan for plan in choices(subscription) if plan.quota is not None and plan.pk != subscription.plan_id]


def set_plan(slug: str, fields: Mapping[str, Any], *, by: User | None) -> SetPlan:
    """Makes the plan `slug`, or gives it these fields (names of FIELDS); what is not named stays.

    Rules (models, fast mode, charging, overage) hold on the next request of everyone who is on it; quota and price with each
    subscription's next period. Raises PlanRefused for values that cannot be, and for another reset period of a plan in use.
    """
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise PlanRefused(_("A plan has no %(unknown)s.") % {"unknown": ", ".join(unknown)})
    with transaction.atomic():
        plan = Plan.objects.select_for_update(no_key=True).filter(slug=slug).first()
        is_new = plan is None
        if plan is None:
            plan = Plan(slug=slug, name=slug.replace("-", " ").capitalize(), reset_period=Plan.ResetPeriod.MONTHLY)
        users = [] if is_new else sorted(set(plan.subscriptions.active().values_list("organization_id", flat=True)))
        if users and fields.get("reset_period", plan.reset_period) != plan.reset_period:
            raise PlanRefused(
                _("%(name)s is in use: its periods stay %(reset_period)s. Make another plan, then change to that.")
                % {"name": plan.name, "reset_period": plan.reset_period}
            )
        before = {name: getattr(plan, name) for name in fields}
        for name, value in fields.items():
            setattr(plan, name, value)
        try:
            plan.full_clean()
        except ValidationError as error:
            raise PlanRefused(" ".join(error.messages)) from error
        plan.save()
        audit.record(
            None,
            actor=by,
            action="plan.made" if is_new else "plan.changed",
            object_type="plan",
            object_id=plan.slug,
            data={"before": {name: str(value) for name, value in before.items()}, "after": {n: str(v) for n, v in fields.items()}},
        )
        snapshot.bump_all(users)
    return SetPlan(plan, is_new)
