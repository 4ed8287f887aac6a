"""Subscriptions of an organization or of one member (a seat), and their periods."""

import uuid
from typing import ClassVar, Self

from django.db import models
from django.db.models import F, Q

from accounts.models import Member, Organization
from billing.credits import MicroCreditsField
from billing.models.catalog import Plan


class SubscriptionQuerySet(models.QuerySet["Subscription"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(organization=organization)

    def active(self) -> Self:
        return self.filter(ended_at=None)


class Subscription(models.Model):
    """What an organization, or one member's seat, draws on: at most one active one of each."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="subscriptions")
    member = models.ForeignKey(Member, null=True, blank=True, on_delete=models.PROTECT, related_name="seats")
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="subscriptions")
    anchor = models.DateField(help_text="Periods begin on this day of the week or month, in the organization's zone.")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    suspended_at = models.DateTimeField(null=True, blank=True)
    overage_cap = MicroCreditsField(null=True, blank=True, help_text="Most credits of a period on invoice; empty: the plan's.")
    next_plan = models.ForeignKey(
        Plan, null=True, blank=True, on_delete=models.PROTECT, related_name="+", help_text="Takes over with the next period."
    )
    next_plan_at = models.DateTimeField(null=True, blank=True, help_text="When the next plan takes over: the end of a period.")

    objects = SubscriptionQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["organization", "member"],
                condition=Q(ended_at=None),
                nulls_distinct=False,
                name="subscription_one_active_per_subject",
            ),
            models.CheckConstraint(
                condition=Q(next_plan=None, next_plan_at=None) | Q(next_plan__isnull=False, next_plan_at__isnull=False),
                name="subscription_next_plan_has_its_time",
            ),
            models.CheckConstraint(
                condition=Q(overage_cap__isnull=True) | Q(overage_cap__gte=0), name="subscription_overage_cap_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.plan} of {self.member or self.organization}"


class SubscriptionPeriod(models.Model):
    """One period [starts_at, ends_at): what it grants and what was drawn, kept by the drain as a read model.

    `quota` is what this period grants: the plan's, or by calendar days where the plan changed within it; `plan` names its newest
    terms, `terms` all of them with their local days and prices (`billing.proration.Terms`). `granted` is what stands in the ledger
    as its allowance; it follows `quota`.

    `quota - used_from_quota` is never negative: what exceeds the funds stands in `overdraft`. A sum is below 0 only while the log
    holds the amendment of an orphan (part 1) that is still to come.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="periods")
    subscription = models.ForeignKey(Subscription, on_delete=models.PROTECT, related_name="periods")
    plan = models.ForeignKey(Plan, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    quota = MicroCreditsField()
    used_from_quota = MicroCreditsField(default=0)
    used_from_purchased = MicroCreditsField(default=0)
    overage = MicroCreditsField(default=0)
    overdraft = MicroCreditsField(default=0)
    tokens = models.BigIntegerField(default=0)
    requests = models.BigIntegerField(default=0)
    granted = MicroCreditsField(default=0)
    terms = models.JSONField(default=dict, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-starts_at"]
        indexes: ClassVar = [
            models.Index(fields=["ends_at", "id"], condition=Q(closed_at=None), name="period_not_closed"),
            models.Index(fields=["organization", "ends_at"], name="period_by_end"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["subscription", "starts_at"], name="period_once_per_start"),
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="period_not_empty"),
            models.CheckConstraint(condition=Q(quota__gte=0), name="period_quota_not_negative"),
            models.CheckConstraint(condition=Q(used_from_quota__lte=F("quota")), name="period_quota_not_overdrawn"),
        ]

    def __str__(self) -> str:
        return f"{self.subscription} from {self.starts_at:%Y-%m-%d}"
