"""Pools and the accounts in them."""

import uuid
from datetime import date
from typing import ClassVar, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from accounts.models import Organization, Team, User
from routing import capacity


class Pool(models.Model):
    """Accounts that carry traffic together: an organization's, or (organization null) the operator's shared one.

    `teams`: who may use it; none means everybody. `plans`: slugs of the plans that offer a shared pool.
    """

    class Strategy(models.TextChoices):
        PACE = "pace", _("Pace: whole turns, warm caches, even weeks")
        CAPACITY_WEIGHTED = "capacity_weighted", _("Capacity weighted: by what is left of the week")
        RELATIVE_AVAILABILITY = "relative_availability", _("Relative availability: by what is left per time to the reset")
        RESET_DRAIN = "reset_drain", _("Reset drain: what resets soonest")
        USAGE_WEIGHTED = "usage_weighted", _("Usage weighted: the least used")
        ROUND_ROBIN = "round_robin", _("Round robin: the longest unselected")
        FILL_FIRST = "fill_first", _("Fill first: the most used")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, null=True, blank=True, on_delete=models.PROTECT, related_name="pools")
    name = models.CharField(max_length=80)
    strategy = models.CharField(max_length=24, choices=Strategy.choices, default=Strategy.PACE)
    # A fresh placement needs room for this many percent of the predicted turn; also what is held. A warm session leaves when less
    # than that share of a turn is left.
    safety_percent = models.PositiveSmallIntegerField(default=400)
    loyalty_percent = models.PositiveSmallIntegerField(default=75)
    # What one Plus carries. Only ratios matter much, so errors of a third cost little.
    base_short_credits = models.PositiveIntegerField(default=capacity.BASE_SHORT_CREDITS)
    base_weekly_credits = models.PositiveIntegerField(default=capacity.BASE_WEEKLY_CREDITS)
    plans = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    teams = models.ManyToManyField(Team, blank=True, related_name="pools")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "name"], name="pool_name_in_organization", nulls_distinct=False),
            models.CheckConstraint(condition=Q(safety_percent__range=(100, 2000)), name="pool_safety_is_a_share"),
            models.CheckConstraint(condition=Q(loyalty_percent__lte=1000), name="pool_loyalty_is_a_share"),
            models.CheckConstraint(condition=Q(base_short_credits__gt=0, base_weekly_credits__gt=0), name="pool_base_above_zero"),
            models.CheckConstraint(condition=Q(organization=None) | Q(plans=[]), name="pool_of_plans_is_shared"),
        ]

    def __str__(self) -> str:
        return self.name


class PoolAccountQuerySet(models.QuerySet["PoolAccount"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(pool__organization=organization)

    def without_secrets(self) -> Self:
        """Leaves the ciphertexts in the database."""
        return self.defer("access_token", "refresh_token")


class PoolAccount(models.Model):
    """One upstream account.

    Secrets are encrypted and bound to this row (`routing.credentials`); they leave only towards the upstream.
    """

    class Kind(models.TextChoices):
        CHATGPT = "chatgpt", _("ChatGPT sign-in")
        OPENAI = "openai", _("OpenAI API key")
        COMPATIBLE = "openai_compatible", _("OpenAI-compatible endpoint")
        ANTHROPIC = "anthropic", _("Anthropic API key")

    class Status(models.TextChoices):
        ACTIVE = "active", _("Serving")
        PAUSED = "paused", _("Paused")
        NEEDS_SIGN_IN = "needs_sign_in", _("Needs sign-in")
        WITHDRAWN = "withdrawn", _("Withdrawn by its person")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="accounts")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    label = models.CharField(max_length=80)
    identity = models.CharField(max_length=200)
    email = models.EmailField(blank=True)
    plan_type = models.CharField(max_length=40, blank=True)
    chatgpt_account_id = models.CharField(max_length=100, blank=True)
    base_url = models.URLField(blank=True)
    # A lead's own figure; null follows the dated weight of the plan (`routing.capacity`).
    weight_thousandths = models.PositiveIntegerField(null=True, blank=True)
    concurrency_cap = models.PositiveIntegerField(null=True, blank=True)
    floor_percent = models.PositiveSmallIntegerField(default=0)
    priority = models.SmallIntegerField(default=0)
    models_served = ArrayField(models.CharField(max_length=120), null=True, blank=True)
    efforts_served = ArrayField(models.CharField(max_length=20), null=True, blank=True)
    tiers_served = ArrayField(models.CharField(max_length=20), null=True, blank=True)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.ACTIVE)
    status_reason = models.CharField(max_length=200, blank=True)
    # It was paused when it went out: what brings it back leaves it paused.
    was_paused = models.BooleanField(default=False, editable=False)
    # Of the last usage poll: when, what came of it, and the plan that it named if that is not the one the account counts as.
    polled_at = models.DateTimeField(null=True, blank=True, editable=False)
    poll_outcome = models.CharField(max_length=100, blank=True, editable=False)
    reported_plan = models.CharField(max_length=40, blank=True, editable=False)
    # Ciphertexts with the key's id in front: `id:token` (`routing.sealing`).
    access_token = models.TextField(blank=True, editable=False)
    refresh_token = models.TextField(blank=True, editable=False)
    credential_version = models.BigIntegerField(default=1, editable=False)
    access_expires_at = models.DateTimeField(null=True, blank=True)
    refreshed_at = models.DateTimeField(null=True, blank=True)
    # One process at a time spends the refresh token: who holds the claim, and until when it counts (or, with no holder,
    # until when nobody should try again).
    refresh_claim = models.UUIDField(null=True, blank=True, editable=False)
    refresh_claimed_until = models.DateTimeField(null=True, blank=True, editable=False)
    accepted_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    accepted_at = models.DateTimeField(null=True, blank=True)
    # Of the link by which its person takes it out again; empty when there is none.
    withdrawal_digest = models.CharField(max_length=64, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = PoolAccountQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pool", "identity"], name="account_identity_in_pool"),
            models.UniqueConstraint(
                fields=["withdrawal_digest"], condition=~Q(withdrawal_digest=""), name="account_withdrawal_once"
            ),
            models.CheckConstraint(condition=Q(floor_percent__lte=100), name="account_floor_is_percent"),
            models.CheckConstraint(condition=~Q(weight_thousandths=0), name="account_weight_above_zero"),
        ]

    def __str__(self) -> str:
        return self.label

    def weight_on(self, day: date) -> int:
        """Its capacity on a day, in thousandths of one Plus."""
        if self.weight_thousandths is not None:
            return self.weight_thousandths
        return capacity.weight_thousandths(self.plan_type, day)


class SignInFlow(models.Model):
    """A sign-in that was begun and has not come back yet: any process finishes it, once, and the row goes with that.

    `sealed` is what only the issuer and we may know (`routing.flows`), encrypted and bound to this row.
    """

    class Kind(models.TextChoices):
        BROWSER = "browser", _("In a browser")
        DEVICE = "device", _("By a code on another device")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    label = models.CharField(max_length=80, blank=True)
    plan_type = models.CharField(max_length=40, blank=True)
    sealed = models.TextField(editable=False)
    started_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    started_at = models.DateTimeField()
    expires_at = models.DateTimeField(db_index=True)
    # Of a device's: seconds between two polls, and when the next one may be.
    interval_seconds = models.PositiveSmallIntegerField(default=0)
    next_poll_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return self.label or str(self.uuid)


class ModelFallback(models.Model):
    """What serves an organization's requests for `model` when the pool cannot carry them: its fallbacks in order of `position`,
    each checked and priced as the model that serves (`routing.fallbacks`)."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    model = models.CharField(max_length=120)
    fallback = models.CharField(max_length=120)
    position = models.PositiveSmallIntegerField()

    class Meta:
        ordering: ClassVar = ["organization", "model", "position"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "model", "fallback"], name="model_fallback_once"),
            models.UniqueConstraint(fields=["organization", "model", "position"], name="model_fallback_position_once"),
            models.CheckConstraint(condition=~Q(model=models.F("fallback")), name="model_fallback_is_another"),
        ]

    def __str__(self) -> str:
        return f"{self.model} → {self.fallback}"
