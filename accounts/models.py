"""Users, organizations, teams, members, invitations, keys, sign-in policy, long work, idempotent calls and the audit trail."""

import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.contrib.auth.models import AbstractUser, BaseUserManager
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from accounts.vouching import Vouch


class UserManager(BaseUserManager["User"]):
    """Users are named by their e-mail address, compared without case."""

    use_in_migrations = True

    def get_by_natural_key(self, username: str | None) -> "User":
        return self.get(email__iexact=username)

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> "User":
        return self.create_user(email, password, **{**fields, "is_staff": True, "is_superuser": True})


class User(AbstractUser):
    """A person who signs in. What they may do is said by their memberships; `is_superuser` makes an operator."""

    username = None  # type: ignore[assignment]
    email = models.EmailField(max_length=254, unique=True)
    last_organization = models.ForeignKey(
        "Organization", null=True, blank=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    language = models.CharField(max_length=8, blank=True)
    """One of settings.LANGUAGES; empty: what the browser asks for."""

    vouch: "Vouch | None" = None
    """Not stored: set on the user of a session that an organization's identity provider vouches for (`accounts.vouching`)."""

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []
    objects: ClassVar[UserManager] = UserManager()  # type: ignore[assignment]

    class Meta:
        constraints = [models.UniqueConstraint(Lower("email"), name="user_email_without_case")]

    def __str__(self) -> str:
        return self.email


class OrganizationQuerySet(models.QuerySet["Organization"]):
    def active(self) -> Self:
        return self.filter(is_active=True)


class Organization(models.Model):
    """A tenant.

    `config_version` grows by 1 with every change that the request path relies on (`config.snapshot.bump`), `grant_version` with
    every change of what was granted in all.
    """

    class UnpricedModels(models.TextChoices):
        REFUSE = "refuse", _("Refuse")
        FALLBACK = "fallback", _("Price at the fallback rate")

    class SecondFactor(models.TextChoices):
        OPTIONAL = "optional", _("Optional")
        LEADS = "leads", _("Required of owners, leads and finance")
        EVERYONE = "everyone", _("Required of everyone")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    slug = models.SlugField(max_length=63, unique=True)
    name = models.CharField(max_length=120)
    timezone = models.CharField(max_length=64, default="UTC")
    is_active = models.BooleanField(default=True)
    config_version = models.BigIntegerField(default=1, editable=False)
    grant_version = models.BigIntegerField(default=0, editable=False)
    unpriced_models = models.CharField(max_length=10, choices=UnpricedModels.choices, default=UnpricedModels.REFUSE)
    second_factor = models.CharField(max_length=10, choices=SecondFactor.choices, default=SecondFactor.OPTIONAL)
    developers_see_pool = models.BooleanField(default=False)
    """May developers look at the pool: its windows and states, never the accounts' identities?"""
    sign_in_terms_accepted_at = models.DateTimeField(null=True, blank=True)
    sign_in_terms_accepted_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = OrganizationQuerySet.as_manager()

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.name


class Team(models.Model):
    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="teams")
    name = models.CharField(max_length=80)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint("organization", Lower("name"), name="team_name_in_organization")]

    def __str__(self) -> str:
        return self.name


class MemberQuerySet(models.QuerySet["Member"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(organization=organization)

    def current(self) -> Self:
        return self.filter(removed_at=None)

    def arrived(self) -> Self:
        """Current members who may come in: the link that they were invited by has been opened, if there was one."""
        return self.current().filter(is_awaited=False)


class Member(models.Model):
    """A person in an organization. `team` null means the whole organization, also for leads."""

    class Role(models.TextChoices):
        DEVELOPER = "developer", _("Developer")
        LEAD = "lead", _("Lead")
        FINANCE = "finance", _("Finance")
        OWNER = "owner", _("Owner")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="members")
    user = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="memberships")
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.PROTECT, related_name="members")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.DEVELOPER)
    display_name = models.CharField(max_length=120, blank=True)
    fast_allowed = models.BooleanField(default=True)
    is_awaited = models.BooleanField(default=False)
    """Invited, and the link not opened yet. Who holds the person's account may have got it by another organization's link."""
    is_vouched = models.BooleanField(default=False)
    """Has come in by the organization's identity provider only: a session by password does not reach the organization until a link
    of it is opened, for who holds the password may have got it by another organization's link."""
    joined_at = models.DateTimeField(auto_now_add=True)
    removed_at = models.DateTimeField(null=True, blank=True)

    objects = MemberQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "user"], condition=Q(removed_at=None), name="member_once_in_organization"
            ),
            models.CheckConstraint(condition=Q(removed_at__isnull=False) | Q(user__isnull=False), name="member_current_has_user"),
        ]

    def __str__(self) -> str:
        return self.display_name or (self.user.email if self.user else f"former member {self.pk}")


class Invitation(models.Model):
    """A one-time link. Without an organization it creates the first owner and their organization."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, null=True, blank=True, on_delete=models.CASCADE, related_name="invitations")
    email = models.EmailField(blank=True)
    role = models.CharField(max_length=10, choices=Member.Role.choices, default=Member.Role.OWNER)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"invitation {self.uuid}"


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(organization=organization)

    def unrevoked(self) -> Self:
        return self.filter(revoked_at=None)


class ApiKey(models.Model):
    """A gateway key: `wr_` + public_id + `_` + secret. Only an HMAC of it is kept; the secret is shown once.

    Rotation replaces the secret and keeps the row: limits, counters and history stay. Until `previous_until` the old one works too.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="api_keys")
    member = models.ForeignKey(Member, on_delete=models.PROTECT, related_name="api_keys")
    name = models.CharField(max_length=80)
    public_id = models.CharField(max_length=10, unique=True, editable=False)
    digest = models.BinaryField(max_length=32, editable=False)
    pepper_id = models.CharField(max_length=32, editable=False)
    previous_digest = models.BinaryField(max_length=32, null=True, editable=False)
    previous_pepper_id = models.CharField(max_length=32, blank=True, editable=False)
    previous_until = models.DateTimeField(null=True, blank=True)
    allowed_models = ArrayField(models.CharField(max_length=120), null=True, blank=True)
    allowed_efforts = ArrayField(models.CharField(max_length=20), null=True, blank=True)
    fast_allowed = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(public_id__regex=r"^[0-9A-Za-z]{10}$"), name="api_key_public_id_form"),
            models.CheckConstraint(
                condition=Q(previous_digest=None, previous_until=None)
                | Q(previous_digest__isnull=False, previous_until__isnull=False),
                name="api_key_previous_has_end",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} (wr_{self.public_id}_…)"


class ApiTokenQuerySet(models.QuerySet["ApiToken"]):
    def for_organization(self, organization: Organization) -> Self:
        return self.filter(organization=organization)

    def unrevoked(self) -> Self:
        return self.filter(revoked_at=None)


class ApiToken(models.Model):
    """A token of the API, `wt_` + public_id + `_` + secret: it acts as one member of one organization, within its scopes."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="api_tokens")
    member = models.ForeignKey(Member, on_delete=models.PROTECT, related_name="api_tokens")
    name = models.CharField(max_length=80)
    public_id = models.CharField(max_length=10, unique=True, editable=False)
    digest = models.BinaryField(max_length=32, editable=False)
    pepper_id = models.CharField(max_length=32, editable=False)
    scopes = ArrayField(models.CharField(max_length=40), default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    """To the minute (`api_tokens.note_use`)."""

    objects = ApiTokenQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(public_id__regex=r"^[0-9A-Za-z]{10}$"), name="api_token_public_id_form"),
        ]

    def __str__(self) -> str:
        return f"{self.name} (wt_{self.public_id}_…)"


class IdentityProvider(models.Model):
    """The OpenID Connect provider of an organization. Its people sign in there; a claim says their roles."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, related_name="identity_provider")
    name = models.CharField(max_length=80)
    issuer = models.URLField(max_length=300)
    client_id = models.CharField(max_length=200)
    client_secret = models.TextField(blank=True, editable=False)
    """Sealed (`config.sealing`, row = uuid, field "client_secret")."""
    email_domains = ArrayField(models.CharField(max_length=253), default=list)
    """Whose addresses the provider may speak for; an address of another domain is refused."""
    role_claim = models.CharField(max_length=80, blank=True)
    role_map = models.JSONField(default=dict, blank=True)
    """Value of the claim -> role. The highest role that a person's values name is theirs."""
    default_role = models.CharField(max_length=10, choices=Member.Role.choices, blank=True)
    """For who has none of the values; empty: they are not let in."""
    is_active = models.BooleanField(default=True)
    is_required = models.BooleanField(default=False)
    """Members whose address is of its domains sign in there only; owners keep their password as the way back."""
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.name} of {self.organization_id}"


class IdempotentCall(models.Model):
    """A call of the API with an `Idempotency-Key`: who made it, what was asked, what was answered (A19, C21).

    Without `status` it is running. The same key of the same member with another body or route is refused.
    """

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    member = models.ForeignKey(Member, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    route = models.CharField(max_length=200)
    """Method and path."""
    body_digest = models.BinaryField(max_length=32)
    status = models.PositiveSmallIntegerField(null=True)
    answer = models.TextField(blank=True)
    """JSON; a secret that was shown once is not in it."""
    started_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["member", "key"], name="idempotent_call_once")]
        indexes = [models.Index(fields=["started_at"], name="idempotent_call_started")]

    def __str__(self) -> str:
        return f"{self.route} of {self.member_id}"


class Job(models.Model):
    """Long work that somebody asked for, such as an export: how far it is, and what came of it. It can be left and found again."""

    class State(models.TextChoices):
        WAITING = "waiting", _("Waiting")
        RUNNING = "running", _("Running")
        DONE = "done", _("Done")
        FAILED = "failed", _("Failed")
        STOPPED = "stopped", _("Stopped")

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="jobs")
    member = models.ForeignKey(Member, null=True, blank=True, on_delete=models.CASCADE, related_name="jobs")
    """Who asked; null: nobody, such as the monthly export."""
    kind = models.CharField(max_length=40)
    title = models.CharField(max_length=200)
    asked = models.JSONField(default=dict, blank=True)
    """What the kind needs to do it. No secret."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    done = models.BigIntegerField(default=0)
    total = models.BigIntegerField(null=True, blank=True)
    """In units of the kind (rows, files); null while it is not known."""
    result = models.JSONField(default=dict, blank=True)
    """What the kind tells about what came of it. No secret."""
    file_name = models.CharField(max_length=200, blank=True)
    """What a person saves it as; the file itself lies in the data folder under the job's uuid."""
    file_bytes = models.BigIntegerField(null=True, blank=True)
    error = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    moved_at = models.DateTimeField(auto_now_add=True)
    """The last sign of life. A running job without one is taken up again."""
    finished_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    """When the file is removed."""

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["organization", "-id"], name="job_newest")]

    def __str__(self) -> str:
        return f"{self.kind} {self.uuid}"


class AuditEvent(models.Model):
    """Who did what to which object. Added, never changed; holds no secret. The database chains it (`accounts.audit`)."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organization = models.ForeignKey(Organization, null=True, blank=True, on_delete=models.PROTECT, related_name="audit_events")
    number = models.BigIntegerField(null=True, editable=False)
    """1, 2, 3, … in its chain: the organization's, or the install's for events without one. Null until the commit."""
    previous = models.CharField(max_length=64, null=True, editable=False)
    """The digest of the event before; of the first, zeros."""
    digest = models.CharField(max_length=64, null=True, editable=False)
    """SHA-256, in hex, over `accounts.audit.encode`."""
    actor = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    actor_number = models.BigIntegerField(null=True, editable=False)
    """The actor's id, which stays when the person's row goes."""
    actor_label = models.CharField(max_length=254)
    action = models.CharField(max_length=60)
    object_type = models.CharField(max_length=40)
    object_id = models.CharField(max_length=64)
    data = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "number"],
                condition=Q(number__isnull=False),
                nulls_distinct=False,
                name="audit_number_once_in_chain",
            ),
        ]
        indexes = [models.Index(fields=["id"], condition=Q(number=None), name="audit_not_chained")]

    def __str__(self) -> str:
        return f"{self.action} {self.object_type} {self.object_id}"


class AuditHead(models.Model):
    """The newest event of a chain: how many there are, and the digest of the last. Only the database's trigger moves it."""

    organization = models.ForeignKey(Organization, null=True, on_delete=models.PROTECT, related_name="+")
    number = models.BigIntegerField()
    digest = models.CharField(max_length=64)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["organization"], nulls_distinct=False, name="audit_head_once_for_chain")]

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"
