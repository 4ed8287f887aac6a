"""Invoices and credit notes: gapless numbers, frozen once issued."""

import uuid
from typing import ClassVar, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from accounts.models import Organization
from billing.credits import MicroCreditsField
from billing.models.subscriptions import Subscription, SubscriptionPeriod


class InvoiceSeries(models.Model):
    """Numbers without gaps: the row is locked until the invoice that takes one is committed."""

    name = models.CharField(max_length=20, unique=True)
    next_number = models.BigIntegerField(default=1)

    class Meta:
        verbose_name_plural = "invoice series"

    def __str__(self) -> str:
        return self.name


class InvoiceQuerySet(models.QuerySet["Invoice"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(organization=organization)


class Invoice(models.Model):
    """What an organization owes for a period, or a credit note that takes some of it back. Added, never changed.

    `frozen` holds all that is printed and could change elsewhere later: names, zone, plan.
    """

    class Kind(models.TextChoices):
        INVOICE = "invoice", _("Invoice")
        CREDIT_NOTE = "credit_note", _("Credit note")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="invoices")
    series = models.ForeignKey(InvoiceSeries, on_delete=models.PROTECT, related_name="invoices")
    number = models.BigIntegerField()
    kind = models.CharField(max_length=12, choices=Kind.choices, default=Kind.INVOICE)
    corrects = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="credit_notes")
    subscription = models.ForeignKey(Subscription, null=True, blank=True, on_delete=models.PROTECT, related_name="invoices")
    period = models.ForeignKey(SubscriptionPeriod, null=True, blank=True, on_delete=models.PROTECT, related_name="invoices")
    currency = models.CharField(max_length=3)
    total = models.DecimalField(max_digits=14, decimal_places=2)
    credits = MicroCreditsField()
    issued_at = models.DateTimeField()
    customer_name = models.CharField(max_length=120)
    reason = models.CharField(max_length=200, blank=True)
    frozen = models.JSONField(default=dict)

    objects = InvoiceQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["series", "number"], name="invoice_once_per_number"),
            models.CheckConstraint(
                condition=Q(kind="invoice", corrects=None) | Q(kind="credit_note", corrects__isnull=False),
                name="invoice_note_names_invoice",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.series}-{self.number:06d}"


class InvoiceLine(models.Model):
    """One line. `through_entry_id`: the newest ledger entry of `period` that the invoice's lines of this kind count."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="lines")
    position = models.PositiveIntegerField()
    kind = models.CharField(max_length=20)
    description = models.CharField(max_length=200)
    period = models.ForeignKey(SubscriptionPeriod, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    credits = MicroCreditsField(default=0)
    quantity = models.DecimalField(max_digits=20, decimal_places=6, default=1)
    unit_price = models.DecimalField(max_digits=14, decimal_places=6, default=0)
    amount = models.DecimalField(max_digits=14, decimal_places=2, default=0)
    through_entry_id = models.BigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["invoice", "position"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["invoice", "position"], name="invoice_line_once_per_position"),
        ]

    def __str__(self) -> str:
        return f"{self.invoice} {self.position}"
