"""The monthly export to finance: what is sent to whom, and what was sent."""

import uuid
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _

from accounts.models import Job, Organization


class MonthlyExport(models.Model):
    """What an organization has sent to its finance people after each month."""

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, related_name="monthly_export")
    is_on = models.BooleanField(default=False)
    files = ArrayField(models.CharField(max_length=20), default=list)
    recipients = ArrayField(models.UUIDField(), default=list)
    """Of members. Who may not see the money when a month is sent is passed over."""
    since = models.DateField(null=True, blank=True)
    """First day of the first month that is sent: the one in which it was switched on."""
    changed_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"monthly export of {self.organization_id}"


class MonthlySend(models.Model):
    """One month of one organization: its file is made once, and each recipient is told of it once."""

    class State(models.TextChoices):
        MAKING = "making", _("Being made")
        TELLING = "telling", _("Being sent")
        SENT = "sent", _("Sent")
        NOBODY = "nobody", _("Nobody to send to")
        FAILED = "failed", _("Failed")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="monthly_sends")
    month = models.DateField()
    """Its first day."""
    files = ArrayField(models.CharField(max_length=20), default=list)
    job = models.ForeignKey(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    state = models.CharField(max_length=10, choices=State.choices, default=State.MAKING)
    told = models.JSONField(default=list, blank=True)
    """Of each recipient that the mail went to: member (uuid), name, at."""
    tries = models.PositiveSmallIntegerField(default=0)
    """Of making or sending that failed."""
    next_at = models.DateTimeField(null=True, blank=True)
    """Not before this it is tried again."""
    error = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-month"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["organization", "month"], name="monthly_send_once")]
        indexes: ClassVar = [
            models.Index(fields=["organization"], condition=models.Q(state__in=["making", "telling"]), name="monthly_send_open"),
        ]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} of {self.organization_id}"
