"""Limits, and the bookkeeping of the drain; alerts have a module of their own (`quotas.alerts.models`)."""

import uuid
from typing import ClassVar, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from accounts.models import ApiKey, Member, Organization, Team, User
from quotas.alerts.models import Alert, AlertDelivery, AlertRule, WebhookEndpoint

__all__ = [
    "Alert",
    "AlertDelivery",
    "AlertRule",
    "DeadLetter",
    "Drift",
    "Limit",
    "LimitBoost",
    "LimitRequest",
    "ModelFilter",
    "Refusal",
    "UsageDrain",
    "WebhookEndpoint",
]


class ModelFilter(models.Model):
    """A named set of models that limits may look at. Its set never changes: another set is another row, with counters of its own.

    With a `source` (`o`, `m<id>`) and no models: the requests that draw on it, for a plan whose quota is also a rolling limit of
    `window`.

    From `active_from_version` on admissions count into its records; `filled_at`: what was used before has been added from the
    log, and its limits are enforced.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="model_filters")
    name = models.CharField(max_length=80)
    model_names = ArrayField(models.CharField(max_length=120))
    source = models.CharField(max_length=24, blank=True, default="", editable=False)
    window = models.CharField(max_length=8, blank=True, default="", editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    active_from_version = models.BigIntegerField(null=True, blank=True, editable=False)
    filled_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.name


class LimitQuerySet(models.QuerySet["Limit"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(organization=organization)


class Limit(models.Model):
    """What a scope may use of a metric in a window. `amount` is micro-credits for credits, else a count; 0 blocks."""

    class Scope(models.TextChoices):
        ORGANIZATION = "organization", _("Organization")
        TEAM = "team", _("Team")
        MEMBER = "member", _("Member")
        KEY = "key", _("Key")

    class Metric(models.TextChoices):
        CREDITS = "credits", _("Credits")
        TOKENS = "tokens", _("Tokens")
        REQUESTS = "requests", _("Requests")
        REQUESTS_PER_SECOND = "requests_per_second", _("Requests per second")
        REQUESTS_PER_MINUTE = "requests_per_minute", _("Requests per minute")
        CONCURRENT = "concurrent", _("Concurrent requests")

    class Window(models.TextChoices):
        FIVE_HOURS = "5h", _("5 hours")
        ONE_DAY = "1d", _("24 hours")
        SEVEN_DAYS = "7d", _("7 days")
        THIRTY_DAYS = "30d", _("30 days")
        DAY = "day", _("Day")
        WEEK = "week", _("Week")
        MONTH = "month", _("Month")
        PERIOD = "period", _("Plan period")
        NONE = "", _("None")

    class Strategy(models.TextChoices):
        RINGS = "", _("Rings of buckets")
        SLIDING_LOG = "sliding_log", _("Sliding log, exact")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="limits")
    scope = models.CharField(max_length=12, choices=Scope.choices)
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.PROTECT, related_name="limits")
    member = models.ForeignKey(Member, null=True, blank=True, on_delete=models.PROTECT, related_name="limits")
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.PROTECT, related_name="limits")
    metric = models.CharField(max_length=20, choices=Metric.choices)
    window = models.CharField(max_length=8, choices=Window.choices, blank=True)
    amount = models.BigIntegerField()
    strategy = models.CharField(max_length=12, choices=Strategy.choices, blank=True, default=Strategy.RINGS)
    model_filter = models.ForeignKey(ModelFilter, null=True, blank=True, on_delete=models.PROTECT, related_name="limits")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = LimitQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["organization", "scope", "team", "member", "key", "metric", "window", "model_filter"],
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
                condition=Q(metric__in=["requests_per_second", "requests_per_minute", "concurrent"], window="")
                | (Q(metric__in=["credits", "tokens", "requests"]) & ~Q(window="")),
                name="limit_window_fits_metric",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.scope} {self.metric} {self.window} {self.amount}".strip()


class LimitRequest(models.Model):
    """A member asks for more: `asked_amount` beyond what `limit` gives, until `until`. Approving it makes a boost."""

    class Status(models.TextChoices):
        PENDING = "pending", _("Pending")
        APPROVED = "approved", _("Approved")
        DENIED = "denied", _("Denied")
        WITHDRAWN = "withdrawn", _("Withdrawn")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="limit_requests")
    member = models.ForeignKey(Member, on_delete=models.PROTECT, related_name="limit_requests")
    limit = models.ForeignKey(Limit, null=True, blank=True, on_delete=models.SET_NULL, related_name="requests")
    metric = models.CharField(max_length=20, choices=Limit.Metric.choices)
    window = models.CharField(max_length=8, choices=Limit.Window.choices, blank=True)
    asked_amount = models.BigIntegerField()
    until = models.DateTimeField()
    note = models.CharField(max_length=400, blank=True)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    decided_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    decided_at = models.DateTimeField(null=True, blank=True)
    decision_note = models.CharField(max_length=400, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["member", "limit"], condition=Q(status="pending"), name="request_one_pending_per_limit"
            ),
            models.CheckConstraint(condition=Q(asked_amount__gt=0), name="request_asks_for_something"),
            models.CheckConstraint(
                condition=Q(status="pending", decided_at=None) | (~Q(status="pending") & Q(decided_at__isnull=False)),
                name="request_decided_has_time",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.member} asks for {self.asked_amount} {self.metric}"


class LimitBoost(models.Model):
    """More than a limit gives, for a time: `extra` is added in [starts_at, ends_at)."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="limit_boosts")
    limit = models.ForeignKey(Limit, on_delete=models.CASCADE, related_name="boosts")
    extra = models.BigIntegerField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.CharField(max_length=200, blank=True)
    granted_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    request = models.OneToOneField(LimitRequest, null=True, blank=True, on_delete=models.SET_NULL, related_name="boost")
    revoked_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(extra__gt=0), name="boost_gives_something"),
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="boost_interval_not_empty"),
        ]

    def __str__(self) -> str:
        return f"{self.extra} more for {self.limit} until {self.ends_at:%Y-%m-%d}"


class Refusal(models.Model):
    """Why requests of a key were refused: one row per key, code, limit and minute, with how many there were.

    Ids are no foreign keys: a refusal may outlive what it names. Amounts are micro-credits for credits, else counts.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    team_id = models.BigIntegerField(null=True)
    member_id = models.BigIntegerField()
    key_id = models.BigIntegerField()
    minute = models.DateTimeField()
    code = models.CharField(max_length=40)
    scope = models.CharField(max_length=12, blank=True)
    scope_name = models.CharField(max_length=120, blank=True)
    metric = models.CharField(max_length=20, blank=True)
    window = models.CharField(max_length=8, blank=True)
    limit_uuid = models.UUIDField(null=True)
    limit = models.BigIntegerField(null=True)
    used = models.BigIntegerField(null=True)
    held = models.BigIntegerField(null=True)
    need = models.BigIntegerField(null=True)
    resets_at = models.DateTimeField(null=True)
    model = models.CharField(max_length=120, blank=True)
    message = models.CharField(max_length=500, blank=True)
    count = models.IntegerField(default=1)
    last_at = models.DateTimeField()

    class Meta:
        ordering = ["-last_at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["organization", "key_id", "code", "scope", "metric", "window", "limit_uuid", "minute"],
                nulls_distinct=False,
                name="refusal_once_per_minute",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["organization", "-last_at"], name="refusal_by_organization"),
            models.Index(fields=["member_id", "-last_at"], name="refusal_by_member"),
        ]

    def __str__(self) -> str:
        return f"{self.code} {self.count} times"


class Drift(models.Model):
    """A difference that the reconciler found between counters and the log, with both values; repaired or not."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    found_at = models.DateTimeField()
    cut = models.CharField(max_length=40, blank=True)
    kind = models.CharField(max_length=20)
    record = models.CharField(max_length=60)
    field = models.CharField(max_length=60)
    expected = models.BigIntegerField()
    counted = models.BigIntegerField()
    repair_id = models.CharField(max_length=40, blank=True)
    repaired_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.record} {self.field}: {self.counted} in place of {self.expected}"


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
