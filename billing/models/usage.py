"""The usage log: append-only, partitioned by month on `admitted_at` (made by a migration, which also forbids changes)."""

from typing import ClassVar, Self

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from accounts.models import ApiKey, Member, Organization, Team
from billing.credits import MicroCreditsField


class UsageRecordQuerySet(models.QuerySet["UsageRecord"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(organization=organization)


class UsageRecord(models.Model):
    """One end of a hold (part 0), or the amendment of an orphan (part 1, differences).

    `input_tokens` excludes cached and cache-write tokens; `output_tokens` includes reasoning. The four funding columns sum to
    `credits`. `account_id` is no foreign key: billing does not know routing. The table's primary key is (id, admitted_at), as
    partitions need.
    """

    class Status(models.TextChoices):
        OK = "ok", _("OK")
        INCOMPLETE = "incomplete", _("Incomplete")
        FAILED = "failed", _("Failed")
        CLIENT_CLOSED = "client_closed", _("Client left")
        UPSTREAM_CUT = "upstream_cut", _("Upstream cut")
        ORPHANED = "orphaned", _("Orphaned")

    id = models.BigAutoField(primary_key=True)
    request_id = models.CharField(max_length=40)
    part = models.SmallIntegerField()
    admitted_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    member = models.ForeignKey(Member, on_delete=models.PROTECT, related_name="+", db_index=False)
    key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    session = models.CharField(max_length=64, blank=True)
    account_id = models.BigIntegerField(null=True)
    response_id = models.CharField(max_length=128, blank=True)
    model_asked = models.CharField(max_length=120)
    model_served = models.CharField(max_length=120)
    tier_asked = models.CharField(max_length=20, blank=True)
    tier_billed = models.CharField(max_length=20, blank=True)
    input_tokens = models.BigIntegerField(default=0)
    cached_input_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    counted_tokens = models.BigIntegerField(default=0)
    counted_requests = models.SmallIntegerField(default=1)
    credits = MicroCreditsField()
    from_quota = MicroCreditsField(default=0)
    from_purchased = MicroCreditsField(default=0)
    from_overage = MicroCreditsField(default=0)
    overdraft = MicroCreditsField(default=0)
    source = models.CharField(max_length=24)
    period_starts_at = models.DateTimeField()
    rate_id = models.BigIntegerField(null=True)
    status = models.CharField(max_length=16, choices=Status.choices)
    is_estimated = models.BooleanField(default=False)
    is_implausible = models.BooleanField(default=False)
    is_clamped = models.BooleanField(default=False)
    latency_ms = models.IntegerField(null=True)
    first_token_ms = models.IntegerField(null=True)
    trace = models.JSONField(default=list)
    lines = models.JSONField(default=list)
    raw_usage = models.JSONField(null=True)
    held = MicroCreditsField(null=True)
    stream_id = models.CharField(max_length=40)

    objects = UsageRecordQuerySet.as_manager()

    class Meta:
        ordering = ["-admitted_at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["request_id", "part", "admitted_at"], name="usage_once_per_part"),
            models.CheckConstraint(condition=Q(part__in=[0, 1]), name="usage_part_is_end_or_amendment"),
            models.CheckConstraint(
                condition=Q(credits=F("from_quota") + F("from_purchased") + F("from_overage") + F("overdraft")),
                name="usage_funding_sums_to_credits",
            ),
            models.CheckConstraint(
                condition=Q(part=1)
                | Q(credits__gte=0, from_quota__gte=0, from_purchased__gte=0, from_overage__gte=0, overdraft__gte=0),
                name="usage_end_not_negative",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["organization", "-admitted_at"], name="usage_by_organization"),
            models.Index(fields=["member", "-admitted_at"], name="usage_by_member"),
            models.Index(fields=["organization", "response_id"], condition=~Q(response_id=""), name="usage_by_response"),
            models.Index(fields=["organization", "status", "-admitted_at"], condition=~Q(status="ok"), name="usage_by_status"),
            models.Index(fields=["organization", "-admitted_at"], condition=Q(is_implausible=True), name="usage_by_implausible"),
            BrinIndex(fields=["admitted_at"], name="usage_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.request_id}/{self.part}"


class UsageHour(models.Model):
    """Sums of one local hour, by whom, model and account: what every report reads. Kept by the drain with the log.

    `hour` is the start of the hour as the organization's clock shows it; `account_id` 0 stands for none. Ids are no foreign keys:
    rows are only ever made from log rows.
    """

    id = models.BigAutoField(primary_key=True)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    hour = models.DateTimeField()
    team_id = models.BigIntegerField(default=0)
    member_id = models.BigIntegerField()
    key_id = models.BigIntegerField()
    model = models.CharField(max_length=120)
    account_id = models.BigIntegerField(default=0)
    requests = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    cached_input_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    counted_tokens = models.BigIntegerField(default=0)
    credits = MicroCreditsField(default=0)
    from_quota = MicroCreditsField(default=0)
    from_purchased = MicroCreditsField(default=0)
    from_overage = MicroCreditsField(default=0)
    overdraft = MicroCreditsField(default=0)

    class Meta:
        ordering = ["organization", "hour"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["organization", "hour", "team_id", "member_id", "key_id", "model", "account_id"],
                name="usage_hour_once_per_group",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["member_id", "hour"], name="usage_hour_by_member")]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}"
