"""Pools and the accounts in them."""

import uuid
from typing import ClassVar, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from accounts.models import Organization, Team, User


class Pool(models.Model):
    """Accounts that carry traffic together: an organization's, or (organization null) the operator's shared one."""

    class Strategy(models.TextChoices):
        CAPACITY_WEIGHTED = "capacity_weighted", "Capacity weighted"

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, null=True, blank=True, on_delete=models.PROTECT, related_name="pools")
    name = models.CharField(max_length=80)
    strategy = models.CharField(max_length=24, choices=Strategy.choices, default=Strategy.CAPACITY_WEIGHTED)
    teams = models.ManyToManyField(Team, blank=True, related_name="pools")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["organization", "name"], name="pool_name_in_organization")]

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
        CHATGPT = "chatgpt", "ChatGPT sign-in"
        OPENAI = "openai", "OpenAI API key"

    class Status(models.TextChoices):
        ACTIVE = "active", "Serving"
        PAUSED = "paused", "Paused"
        NEEDS_SIGN_IN = "needs_sign_in", "Needs sign-in"

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="accounts")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    label = models.CharField(max_length=80)
    identity = models.CharField(max_length=200)
    email = models.EmailField(blank=True)
    plan_type = models.CharField(max_length=40, blank=True)
    chatgpt_account_id = models.CharField(max_length=100, blank=True)
    base_url = models.URLField(blank=True)
    weight_thousandths = models.PositiveIntegerField(default=1000)
    concurrency_cap = models.PositiveIntegerField(null=True, blank=True)
    floor_percent = models.PositiveSmallIntegerField(default=0)
    priority = models.SmallIntegerField(default=0)
    models_served = ArrayField(models.CharField(max_length=120), null=True, blank=True)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.ACTIVE)
    status_reason = models.CharField(max_length=200, blank=True)
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
    created_at = models.DateTimeField(auto_now_add=True)

    objects = PoolAccountQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pool", "identity"], name="account_identity_in_pool"),
            models.CheckConstraint(condition=Q(floor_percent__lte=100), name="account_floor_is_percent"),
        ]

    def __str__(self) -> str:
        return self.label
