"""Plans and dated rates. Changing a shared row bumps every organization that uses it (`billing.catalog`)."""

import uuid
from typing import ClassVar

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, DateTimeRangeField, RangeBoundary, RangeOperators
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Greatest
from django.utils.translation import gettext_lazy as _

from accounts.models import Organization, User
from billing.credits import MicroCreditsField
from billing.pricing import MOST_RATE, MOST_THOUSANDTHS

BASELINE_CREDITS = 1_000_000
"""The install's baseline: a plan's quota is its multiplier times this, unless `base_quota` overrides it."""


class Plan(models.Model):
    """What a subscription grants in each period. `multiplier_thousandths` is never applied to usage or price."""

    class ResetPeriod(models.TextChoices):
        WEEKLY = "weekly", _("Weekly")
        MONTHLY = "monthly", _("Monthly")

    class QuotaStrategy(models.TextChoices):
        FIXED_WINDOW = "fixed_window", _("Fixed window")
        SLIDING_WINDOW = "sliding_window", _("Sliding window")
        SLIDING_LOG = "sliding_log", _("Sliding log")

    class ChargingMode(models.TextChoices):
        RESERVE = "reserve", _("Reserve, then settle")
        POSTPAID = "postpaid", _("Check, then deduct")

    class OveragePolicy(models.TextChoices):
        BLOCK = "block", _("Block")
        PURCHASED = "purchased", _("Purchased credits")
        INVOICE = "invoice", _("Invoice up to a cap")

    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=80)
    note = models.CharField(max_length=200, blank=True)
    reset_period = models.CharField(max_length=10, choices=ResetPeriod.choices)
    multiplier_thousandths = models.PositiveIntegerField(null=True, blank=True)
    base_quota = MicroCreditsField(null=True, blank=True)
    quota_strategy = models.CharField(max_length=16, choices=QuotaStrategy.choices, default=QuotaStrategy.FIXED_WINDOW)
    charging_mode = models.CharField(max_length=10, choices=ChargingMode.choices, default=ChargingMode.RESERVE)
    overage_policy = models.CharField(max_length=10, choices=OveragePolicy.choices, default=OveragePolicy.BLOCK)
    overage_cap = MicroCreditsField(null=True, blank=True, help_text="Most credits of a period on invoice; empty: none.")
    overage_price = models.DecimalField(
        max_digits=12, decimal_places=6, null=True, blank=True, help_text="Price of one credit on invoice."
    )
    fast_allowed = models.BooleanField(default=True)
    models_allowed = ArrayField(models.CharField(max_length=120), null=True, blank=True)
    is_offered = models.BooleanField(
        default=True, help_text="Owners may choose it. Unset for a plan that was made for one customer: its name is nobody else's."
    )
    price = models.DecimalField(max_digits=12, decimal_places=2, null=True, blank=True)
    currency = models.CharField(max_length=3, default="USD")

    class Meta:
        ordering = ["slug"]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(base_quota__isnull=True) | Q(base_quota__gte=0), name="plan_base_quota_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(overage_cap__isnull=True) | Q(overage_cap__gte=0), name="plan_overage_cap_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """What a form or a command may not leave behind: unset is not free."""
        if self.overage_policy == self.OveragePolicy.INVOICE and self.overage_price is None:
            raise ValidationError({"overage_price": "Overage on the invoice needs the price of a credit."})

    @property
    def quota(self) -> int | None:
        """Micro-credits of one period; None means unset, so not activatable (never unlimited)."""
        if self.base_quota is not None:
            return self.base_quota
        if self.multiplier_thousandths is None:
            return None
        return self.multiplier_thousandths * BASELINE_CREDITS * 1_000_000 // 1000


class RateCard(models.Model):
    """One imported file of rates, with where its figures came from."""

    name = models.CharField(max_length=80)
    sha256 = models.CharField(max_length=64, unique=True)
    sources = models.JSONField(default=dict)
    imported_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.name


def never_over_each_other(name: str, *columns: str) -> ExclusionConstraint:
    """No two rows of the same `columns` hold at one moment: what prices a request is never a matter of order."""
    interval = Func("valid_from", "valid_to", RangeBoundary(), function="TSTZRANGE", output_field=DateTimeRangeField())
    return ExclusionConstraint(
        name=name, expressions=[*((column, RangeOperators.EQUAL) for column in columns), (interval, RangeOperators.OVERLAPS)]
    )


def within_bounds(name: str) -> models.CheckConstraint:
    """Prices and multipliers that no cost can leave the engine's numbers by, and cached input no dearer than fresh."""
    return models.CheckConstraint(
        name=name,
        condition=(Q(input=None) | Q(input__lte=MOST_RATE))
        & (Q(output=None) | Q(output__lte=MOST_RATE))
        & (Q(cache_write=None) | Q(cache_write__gte=0, cache_write__lte=MOST_RATE))
        # GREATEST passes over NULL; a comparison with a missing cache-write price would pass everything.
        & (Q(cached_input=None) | Q(cached_input__lte=Greatest("input", "cache_write")))
        & Q(fast_thousandths__lte=MOST_THOUSANDTHS)
        & Q(long_context_input_thousandths__lte=MOST_THOUSANDTHS)
        & Q(long_context_output_thousandths__lte=MOST_THOUSANDTHS),
    )


class Pricing(models.Model):
    """What a model costs in [valid_from, valid_to): micro-credits per million tokens. All null: unpriced, never free."""

    model = models.CharField(max_length=120)
    valid_from = models.DateTimeField()
    valid_to = models.DateTimeField(null=True, blank=True)
    input = MicroCreditsField(null=True, blank=True)
    cached_input = MicroCreditsField(null=True, blank=True)
    cache_write = MicroCreditsField(null=True, blank=True)
    output = MicroCreditsField(null=True, blank=True)
    fast_thousandths = models.PositiveIntegerField(default=1000)
    long_context_threshold = models.PositiveIntegerField(null=True, blank=True)
    long_context_input_thousandths = models.PositiveIntegerField(default=1000)
    long_context_output_thousandths = models.PositiveIntegerField(default=1000)

    class Meta:
        abstract = True


class Rate(Pricing):
    """The card's price of a model. A change adds a row; a usage record names the row it was priced with."""

    card = models.ForeignKey(RateCard, on_delete=models.PROTECT, related_name="rates")
    source = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["model", "valid_from"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "valid_from"], name="rate_once_per_model_and_start"),
            models.CheckConstraint(
                condition=Q(valid_to__isnull=True) | Q(valid_to__gt=F("valid_from")), name="rate_interval_not_empty"
            ),
            models.CheckConstraint(
                condition=Q(input__isnull=True, cached_input__isnull=True, output__isnull=True)
                | Q(input__gte=0, cached_input__gte=0, output__gte=0),
                name="rate_priced_in_full_or_not_at_all",
            ),
            within_bounds("rate_within_bounds"),
            never_over_each_other("rate_never_over_another", "model"),
        ]

    def __str__(self) -> str:
        return f"{self.model} from {self.valid_from:%Y-%m-%d}"


class RateOverride(Pricing):
    """An organization's own price of a model, in place of the card's, in [valid_from, valid_to)."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="rate_overrides")
    reason = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["organization", "model", "valid_from"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "model", "valid_from"], name="override_once_per_model_and_start"),
            models.CheckConstraint(
                condition=Q(valid_to__isnull=True) | Q(valid_to__gt=F("valid_from")), name="override_interval_not_empty"
            ),
            models.CheckConstraint(
                condition=Q(input__isnull=True, cached_input__isnull=True, output__isnull=True)
                | Q(input__gte=0, cached_input__gte=0, output__gte=0),
                name="override_priced_in_full_or_not_at_all",
            ),
            within_bounds("override_within_bounds"),
            never_over_each_other("override_never_over_another", "organization", "model"),
        ]

    def __str__(self) -> str:
        return f"{self.model} of {self.organization} from {self.valid_from:%Y-%m-%d}"


class RateAlias(models.Model):
    """Another name of a model in [valid_from, valid_to): what is asked by `alias` is priced as `model`."""

    alias = models.CharField(max_length=120)
    model = models.CharField(max_length=120)
    valid_from = models.DateTimeField()
    valid_to = models.DateTimeField(null=True, blank=True)
    card = models.ForeignKey(RateCard, null=True, blank=True, on_delete=models.PROTECT, related_name="aliases")
    source = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["alias", "valid_from"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["alias", "valid_from"], name="alias_once_per_name_and_start"),
            models.CheckConstraint(
                condition=Q(valid_to__isnull=True) | Q(valid_to__gt=F("valid_from")), name="alias_interval_not_empty"
            ),
            models.CheckConstraint(condition=~Q(alias=F("model")), name="alias_names_another"),
            never_over_each_other("alias_never_over_another", "alias"),
        ]

    def __str__(self) -> str:
        return f"{self.alias} is {self.model} from {self.valid_from:%Y-%m-%d}"


class RateImport(models.Model):
    """A rate card that was uploaded: what it would change, until somebody confirms it; then applied, once."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=80)
    sha256 = models.CharField(max_length=64, unique=True)
    text = models.TextField()
    difference = models.JSONField(default=dict)
    uploaded_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    applied_at = models.DateTimeField(null=True, blank=True)
    card = models.OneToOneField(RateCard, null=True, blank=True, on_delete=models.PROTECT, related_name="import_of")

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.name
