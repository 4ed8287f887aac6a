"""Limits, and the bookkeeping of the drain."""

import uuid
from typing import ClassVar, Self

from django.db import models
from django.db.models import Q

from accounts.models import ApiKey, Member, Organization, Team


class LimitQuerySet(models.QuerySet["Limit"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(organization=organization)


class Limit(models.Model):
    """What a scope may use of a metric in a window. `amount` is micro-credits for credits, else a count; 0 blocks."""

    class Scope(models.TextChoices):
        ORGANIZATION = "organization", "Organization"
        TEAM = "team", "Team"
        MEMBER = "member", "Member"
        KEY = "key", "Key"

    class Metric(models.TextChoices):
        CREDITS = "credits", "Credits"
        TOKENS = "tokens", "Tokens"
        REQUESTS = "requests", "Requests"
        REQUESTS_PER_MINUTE = "requests_per_minute", "Requests per minute"
        CONCURRENT = "concurrent", "Concurrent requests"

    class Window(models.TextChoices):
        FIVE_HOURS = "5h", "5 hours"
        ONE_DAY = "1d", "24 hours"
        SEVEN_DAYS = "7d", "7 days"
        THIRTY_DAYS = "30d", "30 days"
        DAY = "day", "Day"
        WEEK = "week", "Week"
        MONTH = "month", "Month"
        PERIOD = "period", "Plan period"
        NONE = "", "None"

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="limits")
    scope = models.CharField(max_length=12, choices=Scope.choices)
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.PROTECT, related_name="limits")
    member = models.ForeignKey(Member, null=True, blank=True, on_delete=models.PROTECT, related_name="limits")
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.PROTECT, related_name="limits")
    metric = models.CharField(max_length=20, choices=Metric.choices)
    window = models.CharField(max_length=8, choices=Window.choices, blank=True)
    amount = models.BigIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    objects = LimitQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["organization", "scope", "team", "member", "key", "metric", "window"],
                nulls_distinct=False,
                name="limit_once_per_question",
            ),
            models.CheckConstraint(condition=Q(amount__gte=0), name="limit_amount_not_negative"),
            models.CheckConstraint(
                condition=(
                    Q(scope="organization", team=None, member=None, key=None)
                    | Q(scope="team", team__isnull=False, member=None, key=None)
                    | Q(scope="member", team=None, member__isnull=False, key=None)
                    | Q(scope="key", team=None, member=None, key__isnull=False)
                ),
                name="limit_target_fits_scope",
            ),
            models.CheckConstraint(
                condition=Q(metric__in=["requests_per_minute", "concurrent"], window="")
                | (Q(metric__in=["credits", "tokens", "requests"]) & ~Q(window="")),
                name="limit_window_fits_metric",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.scope} {self.metric} {self.window} {self.amount}".strip()


class UsageDrain(models.Model):
    """The newest stream entry of an organization that the log holds. `epoch` is the counters' at that time."""

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, related_name="+", primary_key=True)
    drained_id = models.CharField(max_length=40, default="0-0")
    drained_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.organization} up to {self.drained_id}"


class DeadLetter(models.Model):
    """A stream entry that could not be decoded or written: kept raw, with its error, for an operator."""

    organization_id = models.BigIntegerField()
    stream_id = models.CharField(max_length=40)
    raw = models.BinaryField()
    error = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["organization_id", "stream_id"], name="dead_letter_once")]

    def __str__(self) -> str:
        return f"{self.organization_id} {self.stream_id}"
