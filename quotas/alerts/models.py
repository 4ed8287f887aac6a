"""Alerts, who was told of them, and the webhooks that they are sent to."""

import uuid
from typing import ClassVar, Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower
from django.utils.translation import gettext_lazy as _

from accounts.models import ApiKey, Member, Organization, Team


class AlertQuerySet(models.QuerySet["Alert"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(organization=organization)

    def open(self) -> Self:
        """Neither over nor acknowledged."""
        return self.filter(ended_at=None, acknowledged_at=None)


class Alert(models.Model):
    """Something that somebody is told once: by kind, line, scope and period.

    `line`: percent used, 80, 95 or 100; 0 where there are no lines. `scope` names what it is about (`limit:<uuid>`, `plan:o`,
    `member:<id>`, …), `period` the time in which it is told once. `facts` are amounts and texts of the moment it was told, never
    a person's name: that is looked up, for people leave. `ended_at`: what it tells does not hold any more.
    """

    class Kind(models.TextChoices):
        LIMIT = "limit", _("A limit is nearly used up")
        QUOTA = "quota", _("The plan’s quota is nearly used up")
        OVERAGE = "overage", _("The quota will probably not last")
        ANOMALY = "anomaly", _("A member burns much faster than usual")
        ACCOUNT = "account", _("An account needs sign-in")
        NO_ACCOUNT = "no_account", _("No account can serve a request")
        IMPLAUSIBLE = "implausible", _("Implausible usage")
        DRIFT = "drift", _("Books that drift")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="alerts", db_index=False)
    kind = models.CharField(max_length=12, choices=Kind.choices)
    line = models.PositiveSmallIntegerField(default=0)
    scope = models.CharField(max_length=160)
    period = models.CharField(max_length=40)
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    member = models.ForeignKey(Member, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    limit_uuid = models.UUIDField(null=True, blank=True)
    facts = models.JSONField(default=dict)
    told_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.ForeignKey(Member, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    objects = AlertQuerySet.as_manager()

    class Meta:
        ordering = ["-told_at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "kind", "line", "scope", "period"], name="alert_told_once"),
            models.CheckConstraint(
                condition=Q(kind__in=["limit", "quota"], line__in=[80, 95, 100]) | (~Q(kind__in=["limit", "quota"]) & Q(line=0)),
                name="alert_line_fits_kind",
            ),
            models.CheckConstraint(
                condition=Q(acknowledged_by=None) | Q(acknowledged_at__isnull=False), name="alert_acknowledged_has_time"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["organization", "-told_at"], name="alert_by_organization"),
            models.Index(fields=["organization"], condition=Q(ended_at=None), name="alert_not_ended"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.line or ''} {self.scope} {self.period}"


class AlertRule(models.Model):
    """Whether an organization wants alerts of a kind; without a row it does."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="alert_rules")
    kind = models.CharField(max_length=12, choices=Alert.Kind.choices)
    is_on = models.BooleanField(default=True)

    class Meta:
        ordering = ["id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["organization", "kind"], name="alert_rule_once_per_kind")]

    def __str__(self) -> str:
        return f"{self.kind} {'on' if self.is_on else 'off'}"


class EndpointQuerySet(models.QuerySet["WebhookEndpoint"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(organization=organization)

    def present(self) -> Self:
        return self.filter(removed_at=None)


class WebhookEndpoint(models.Model):
    """Where an organization wants its alerts posted to.

    The URL is a secret too: who knows a chat's webhook may write into the chat. `origin` is what is shown of it. `url`, `secret`
    and `previous_secret` are sealed (`config.sealing`) under their column's name.
    """

    class Format(models.TextChoices):
        STANDARD = "standard", _("Signed (Standard Webhooks)")
        SLACK = "slack", _("Slack-compatible")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="webhook_endpoints")
    name = models.CharField(max_length=80)
    format = models.CharField(max_length=10, choices=Format.choices)
    origin = models.CharField(max_length=300)
    url = models.TextField(editable=False)
    secret = models.TextField(blank=True, editable=False)
    previous_secret = models.TextField(blank=True, editable=False)
    previous_until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    disabled_at = models.DateTimeField(null=True, blank=True)
    disabled_reason = models.CharField(max_length=200, blank=True)
    removed_at = models.DateTimeField(null=True, blank=True)

    objects = EndpointQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                "organization", Lower("name"), condition=Q(removed_at=None), name="endpoint_name_in_organization"
            ),
            models.CheckConstraint(
                condition=Q(removed_at=None) | Q(url="", secret="", previous_secret=""), name="endpoint_removed_keeps_no_secret"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_working(self) -> bool:
        return self.removed_at is None and self.disabled_at is None

    @property
    def channel(self) -> str:
        """Of deliveries to it."""
        is_chat = self.format == self.Format.SLACK
        return AlertDelivery.Channel.SLACK if is_chat else AlertDelivery.Channel.WEBHOOK


class AlertDelivery(models.Model):
    """One message to one member or endpoint, however often it is tried; its uuid is the message's id in every try.

    `alert` null: a test. `next_try_at`: when it is due; while a worker tries, when another may.
    """

    class Channel(models.TextChoices):
        EMAIL = "email", _("E-mail")
        WEBHOOK = "webhook", _("Webhook")
        SLACK = "slack", _("Slack-compatible")

    class Status(models.TextChoices):
        PENDING = "pending", _("Pending")
        SENT = "sent", _("Sent")
        FAILED = "failed", _("Gave up")
        DROPPED = "dropped", _("Not sent")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="alert_deliveries", db_index=False)
    alert = models.ForeignKey(Alert, null=True, blank=True, on_delete=models.CASCADE, related_name="deliveries")
    channel = models.CharField(max_length=8, choices=Channel.choices)
    member = models.ForeignKey(Member, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    endpoint = models.ForeignKey(WebhookEndpoint, null=True, blank=True, on_delete=models.CASCADE, related_name="deliveries")
    status = models.CharField(max_length=8, choices=Status.choices, default=Status.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    response_code = models.PositiveSmallIntegerField(null=True, blank=True)
    duration_ms = models.PositiveIntegerField(null=True, blank=True)
    error = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField()
    tried_at = models.DateTimeField(null=True, blank=True)
    next_try_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["alert", "member"], name="delivery_once_per_member"),
            models.UniqueConstraint(fields=["alert", "endpoint"], name="delivery_once_per_endpoint"),
            models.CheckConstraint(
                condition=Q(channel="email", member__isnull=False, endpoint=None)
                | Q(channel__in=["webhook", "slack"], member=None, endpoint__isnull=False),
                name="delivery_goes_to_one",
            ),
            models.CheckConstraint(
                condition=Q(status="pending", next_try_at__isnull=False) | (~Q(status="pending") & Q(next_try_at=None)),
                name="delivery_pending_has_a_next_try",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["organization", "-id"], name="delivery_by_organization"),
            models.Index(fields=["next_try_at"], condition=Q(status="pending"), name="delivery_due"),
        ]

    def __str__(self) -> str:
        return f"{self.channel} {self.status} {self.uuid}"
