"""Credits: what was granted and bought (lots), and the ledger in which every movement stands."""

import uuid
from typing import ClassVar, Self

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from accounts.models import Organization, User
from billing.credits import MicroCreditsField
from billing.models.subscriptions import SubscriptionPeriod


class CreditLot(models.Model):
    """Credits that were granted or bought at once. `drawn` and `expired` (also: taken back) follow the ledger."""

    class Kind(models.TextChoices):
        GRANT = "grant", _("Grant")
        PURCHASE = "purchase", _("Purchase")
        ADJUSTMENT = "adjustment", _("Adjustment")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="credit_lots")
    kind = models.CharField(max_length=12, choices=Kind.choices)
    amount = MicroCreditsField()
    drawn = MicroCreditsField(default=0)
    expired = MicroCreditsField(default=0)
    expires_at = models.DateTimeField(null=True, blank=True)
    reference = models.CharField(max_length=120)
    note = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "reference"], name="lot_once_per_reference"),
            models.CheckConstraint(condition=Q(amount__gt=0), name="lot_not_empty"),
            models.CheckConstraint(condition=Q(drawn__gte=0, expired__gte=0), name="lot_sums_not_negative"),
            models.CheckConstraint(condition=Q(amount__gte=F("drawn") + F("expired")), name="lot_not_overdrawn"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.reference}"


SIDES = {
    "allowance": ("allowance", "issued"),
    "grant": ("credits", "issued"),
    "purchase": ("credits", "issued"),
    "usage_quota": ("usage", "allowance"),
    "usage_purchased": ("usage", "credits"),
    "overage": ("usage", "receivable"),
    "overdraft": ("usage", "overdraft"),
    "adjustment": ("credits", "issued"),
    "expiry": ("expired", "credits"),
}
"""What a positive amount of each kind debits and credits; a negative one (an amendment that gives back) swaps them."""


ALSO_EXPIRES = ("expired", "allowance")
"""What is left of an allowance expires with its period."""


def _fits_kind() -> Q:
    """Either way round. An adjustment may put right any two accounts."""
    fits = Q(kind="adjustment")
    for kind, (debit, credit) in [*SIDES.items(), ("expiry", ALSO_EXPIRES)]:
        if kind != "adjustment":
            fits |= Q(kind=kind, debit=debit, credit=credit) | Q(kind=kind, debit=credit, credit=debit)
    return fits


class LedgerEntryQuerySet(models.QuerySet["LedgerEntry"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(organization=organization)


class LedgerEntry(models.Model):
    """One movement of credits from the account `credit` to the account `debit`. Added, never changed.

    A correction is a new entry that names the old one in `corrects`.
    """

    class Kind(models.TextChoices):
        ALLOWANCE = "allowance", _("Allowance")
        GRANT = "grant", _("Grant")
        PURCHASE = "purchase", _("Purchase")
        USAGE_QUOTA = "usage_quota", _("Usage from quota")
        USAGE_PURCHASED = "usage_purchased", _("Usage from purchased credits")
        OVERAGE = "overage", _("Overage")
        OVERDRAFT = "overdraft", _("Overdraft")
        ADJUSTMENT = "adjustment", _("Adjustment")
        EXPIRY = "expiry", _("Expiry")

    class Account(models.TextChoices):
        ISSUED = "issued", _("Issued")
        ALLOWANCE = "allowance", _("Allowance")
        CREDITS = "credits", _("Credits")
        USAGE = "usage", _("Usage")
        RECEIVABLE = "receivable", _("Receivable")
        OVERDRAFT = "overdraft", _("Overdraft")
        EXPIRED = "expired", _("Expired")

    id = models.BigAutoField(primary_key=True)
    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    kind = models.CharField(max_length=16, choices=Kind.choices)
    debit = models.CharField(max_length=12, choices=Account.choices)
    credit = models.CharField(max_length=12, choices=Account.choices)
    amount = MicroCreditsField()
    reference = models.CharField(max_length=160)
    occurred_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)
    period = models.ForeignKey(SubscriptionPeriod, null=True, on_delete=models.PROTECT, related_name="entries")
    lot = models.ForeignKey(CreditLot, null=True, on_delete=models.PROTECT, related_name="entries", db_index=False)
    member_id = models.BigIntegerField(null=True)
    request_id = models.CharField(max_length=40, blank=True)
    corrects = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="corrections", db_index=False)
    actor = models.ForeignKey(User, null=True, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False)
    reason = models.CharField(max_length=200, blank=True)

    objects = LedgerEntryQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "reference"], name="ledger_once_per_reference"),
            models.CheckConstraint(condition=Q(amount__gt=0), name="ledger_amount_positive"),
            models.CheckConstraint(condition=~Q(debit=F("credit")), name="ledger_two_accounts"),
            models.CheckConstraint(condition=_fits_kind(), name="ledger_accounts_fit_kind"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["organization", "-id"], name="ledger_by_organization"),
            models.Index(fields=["organization", "occurred_at"], name="ledger_by_time"),
            # What a request drew, to give it back to the same lots.
            models.Index(fields=["organization", "request_id"], condition=Q(kind="usage_purchased"), name="ledger_by_draw"),
            models.Index(fields=["organization"], condition=Q(kind="usage_purchased", lot=None), name="ledger_without_lot"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.reference}"


class Purchase(models.Model):
    """A payment for credits, as a payment provider tells of it: marked paid and granted in one transaction, once."""

    class Status(models.TextChoices):
        PENDING = "pending", _("Pending")
        PAID = "paid", _("Paid")
        REFUNDED = "refunded", _("Refunded")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="purchases")
    provider = models.CharField(max_length=40)
    payment_id = models.CharField(max_length=120)
    credits = MicroCreditsField()
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    currency = models.CharField(max_length=3)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    created_at = models.DateTimeField(auto_now_add=True)
    paid_at = models.DateTimeField(null=True, blank=True)
    lot = models.OneToOneField(CreditLot, null=True, blank=True, on_delete=models.PROTECT, related_name="purchase")
    payload = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["provider", "payment_id"], name="purchase_once_per_payment"),
            models.CheckConstraint(condition=Q(credits__gt=0), name="purchase_not_empty"),
            models.CheckConstraint(condition=Q(status="pending") | Q(lot__isnull=False), name="purchase_paid_has_lot"),
        ]

    def __str__(self) -> str:
        return f"{self.provider} {self.payment_id}"
