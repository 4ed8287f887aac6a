"""Gateway keys: their form, their digest, how they begin and end.

A key is `wr_` + 10 base62 public id + `_` + 43 base62 secret (256 bits). It is looked up by its public id and kept as
HMAC-SHA-256 over the whole text under a pepper that the database does not hold; the text itself exists once, in the answer
that made it. Rotation changes the secret and nothing else: id, public id, limits, counters and history stay.
"""

import hmac
import re
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from accounts import audit, names
from accounts.errors import (
    ExpiryPassed,
    GraceInvalid,
    KeyRevoked,
    KeyRotated,
    MemberRemoved,
    NameInvalid,
    NotFound,
    RoleHoldsNoKeys,
)
from accounts.models import ApiKey, Member, Organization, User
from accounts.snapshots import KeySnapshot
from config import scope, snapshot

PREFIX = "wr_"
PUBLIC_ID_LENGTH = 10
SECRET_LENGTH = 43
ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
MOST_GRACE_SECONDS = 90 * 86400
"""A secret that was given up does not live on for longer than this."""

_FORM = re.compile(rf"{PREFIX}([0-9A-Za-z]{{{PUBLIC_ID_LENGTH}}})_([0-9A-Za-z]{{{SECRET_LENGTH}}})")
_PUBLIC_ID = re.compile(rf"(?:{PREFIX})?([0-9A-Za-z]{{{PUBLIC_ID_LENGTH}}})")


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """The two parts of a text that has the form of a key; whether there is such a key is another question."""

    public_id: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key. `secret` is its whole text, to be shown this one time."""

    key: ApiKey
    secret: str = field(repr=False)


def parse(text: str) -> ParsedKey | None:
    """The parts of a key; None for a text of any other form."""
    match = _FORM.fullmatch(text)
    return ParsedKey(match[1], match[2]) if match else None


def parse_public_id(text: str) -> str | None:
    """The 10 characters of a public id, also when spelled `wr_XXXXXXXXXX`; None for anything else."""
    match = _PUBLIC_ID.fullmatch(text)
    return match[1] if match else None


def verify(secret_key: str, snapshot: KeySnapshot, *, now: datetime) -> bool:
    """Is this whole text the key of the snapshot at `now`, by its secret or by the one before, within its grace?

    In constant time; a pepper that is not configured any more proves nothing.
    """
    is_current = _proves(secret_key, snapshot.digest, snapshot.pepper_id)
    # The one before is compared whether or not the current one fits: the time taken does not tell which was meant.
    is_previous = _proves(secret_key, snapshot.previous_digest, snapshot.previous_pepper_id)
    is_within = snapshot.previous_until is not None and now < snapshot.previous_until
    return is_current | (is_previous & is_within)


def is_given_up(secret_key: str, snapshot: KeySnapshot, *, now: datetime) -> bool:
    """Is this the key's secret before its last rotation, used after its grace? Whoever has it has been the key's holder."""
    is_previous = _proves(secret_key, snapshot.previous_digest, snapshot.previous_pepper_id)
    return is_previous & (snapshot.previous_until is not None and now >= snapshot.previous_until)


def issue(
    member: Member,
    *,
    name: str,
    by: User | None,
    now: datetime,
    expires_at: datetime | None = None,
    allowed_models: Iterable[str] | None = None,
    allowed_efforts: Iterable[str] | None = None,
    fast_allowed: bool = True,
) -> IssuedKey:
    """Makes a key of the member's; it works on the next request, on every process.

    `allowed_models` None allows what the plan allows, `allowed_efforts` None every reasoning effort. Locks the organization. Raises
    NameInvalid, ExpiryPassed, MemberRemoved, RoleHoldsNoKeys.
    """
    name = names.checked(name, what=_("A key's name"), longest=80)
    models, efforts = _models(allowed_models), _efforts(allowed_efforts)
    if expires_at is not None and expires_at <= now:
        raise ExpiryPassed(_("The key would have expired already."), field="expires_at", expires_at=expires_at.isoformat())
    with transaction.atomic():
        # The organization first, as everywhere: two who lock in one order cannot block each other.
        organization = Organization.objects.select_for_update(no_key=True).get(pk=member.organization_id)
        member = Member.objects.select_for_update(of=("self",), no_key=True).get(pk=member.pk)
        if member.removed_at is not None:
            raise MemberRemoved(_("The member has been removed."))
        if member.role == Member.Role.FINANCE:
            raise RoleHoldsNoKeys(_("Members with the role finance hold no keys."))
        pepper_id, pepper = next(iter(settings.KEY_PEPPERS.items()))
        issued = _insert(
            member,
            pepper_id,
            pepper,
            name=name,
            expires_at=expires_at,
            allowed_models=models,
            allowed_efforts=efforts,
            fast_allowed=fast_allowed,
        )
        audit.record(
            organization,
            actor=by,
            action="key.issued",
            object_type="api_key",
            object_id=str(issued.key.uuid),
            data={
                "public_id": issued.key.public_id,
                "member": str(member.uuid),
                "name": name,
                "expires_at": expires_at.isoformat() if expires_at else None,
                "allowed_models": models,
                "allowed_efforts": efforts,
                "fast_allowed": fast_allowed,
            },
        )
        snapshot.bump(organization.pk)
    return issued


def rotation_of(key: ApiKey) -> str:
    """Names the rotation that gave the key its secret; "" before the first."""
    return key.previous_until.isoformat() if key.previous_until is not None else ""


def rotate(
    key: ApiKey, *, grace_seconds: float | None = None, by: User | None, now: datetime, seen: str | None = None
) -> IssuedKey:
    """Gives the key a new secret, shown this one time; it works on the next request, on every process.

    The old secret works for `grace_seconds` more (None: KEY_ROTATION_GRACE_SECONDS; 0: not at all), the one before that ends now.
    `seen` is `rotation_of` as the one who asks saw it: a form that is sent twice must not end the grace that the first one gave.
    Locks the organization. Raises KeyRevoked, KeyRotated, ExpiryPassed, GraceInvalid; then nothing has changed.
    """
    grace = settings.KEY_ROTATION_GRACE_SECONDS if grace_seconds is None else grace_seconds
    if not 0 <= grace <= MOST_GRACE_SECONDS:
        raise GraceInvalid(
            _("A rotated secret may work for 0 to %(most_grace_seconds)s seconds more, not %(grace)g.")
            % {"most_grace_seconds": MOST_GRACE_SECONDS, "grace": grace}
        )
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=key.organization_id)
        key = ApiKey.objects.select_for_update(of=("self",), no_key=True).select_related("member").get(pk=key.pk)
        if key.revoked_at is not None:
            raise KeyRevoked(_("The key is revoked: issue a new one."))
        if seen is not None and seen != rotation_of(key):
            raise KeyRotated(_("It was rotated meanwhile. The secret that was shown then holds."))
        if key.expires_at is not None and key.expires_at <= now:
            raise ExpiryPassed(_("The key has expired: issue a new one."), expires_at=key.expires_at.isoformat())
        pepper_id, pepper = next(iter(settings.KEY_PEPPERS.items()))
        secret = f"{PREFIX}{key.public_id}_{_random(SECRET_LENGTH)}"
        until = now + timedelta(seconds=grace)
        # An end that is there already also when there is no grace: who still uses the old secret is told what happened to it.
        key.previous_digest, key.previous_pepper_id, key.previous_until = key.digest, key.pepper_id, until
        key.digest, key.pepper_id = _digest(secret, pepper), pepper_id
        key.save(update_fields=["digest", "pepper_id", "previous_digest", "previous_pepper_id", "previous_until"])
        audit.record(
            organization,
            actor=by,
            action="key.rotated",
            object_type="api_key",
            object_id=str(key.uuid),
            data={"public_id": key.public_id, "old_secret_until": until.isoformat()},
        )
        snapshot.bump(organization.pk)
    return IssuedKey(key, secret)


def revoke(key: ApiKey, *, by: User | None, now: datetime) -> ApiKey:
    """Ends a key; it is refused on the next request, on every process. A second time changes nothing.

    Returns the row with the first `revoked_at`. Locks the organization.
    """
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=key.organization_id)
        key = ApiKey.objects.select_for_update(no_key=True).get(pk=key.pk)
        if key.revoked_at is None:
            _end(key, organization, by=by, now=now)
            snapshot.bump(organization.pk)
    return key


def revoke_all(member: Member, *, by: User | None, now: datetime) -> int:
    """Ends every key of the member; returns how many. Inside the caller's transaction, who holds the organization and bumps."""
    rows = list(ApiKey.objects.select_for_update(no_key=True).filter(member=member, revoked_at=None).order_by("pk"))
    for key in rows:
        _end(key, member.organization, by=by, now=now)
    return len(rows)


def by_public_id(organization: Organization, text: str) -> ApiKey:
    """The organization's key with this public id (`wr_` in front or not). Raises NotFound, the same for a foreign key."""
    public_id = parse_public_id(text)
    key = ApiKey.objects.for_organization(organization).filter(public_id=public_id).first() if public_id else None
    if key is None:
        raise NotFound(_("There is no such key in this organization."))
    return key


def _end(key: ApiKey, organization: Organization, *, by: User | None, now: datetime) -> None:
    key.revoked_at = now
    key.save(update_fields=["revoked_at"])
    audit.record(
        organization,
        actor=by,
        action="key.revoked",
        object_type="api_key",
        object_id=str(key.uuid),
        data={"public_id": key.public_id},
    )


def _insert(member: Member, pepper_id: str, pepper: str, **fields: Any) -> IssuedKey:
    """One row; a public id that is taken (once in 8e17 pairs) is drawn again."""
    while True:
        public_id = _random(PUBLIC_ID_LENGTH)
        secret = f"{PREFIX}{public_id}_{_random(SECRET_LENGTH)}"
        key = ApiKey(
            organization_id=member.organization_id,
            member=member,
            public_id=public_id,
            digest=_digest(secret, pepper),
            pepper_id=pepper_id,
            **fields,
        )
        try:
            with transaction.atomic():
                key.save(force_insert=True)
        except IntegrityError:
            # The one that holds it may be another organization's, which the caller's scope does not show.
            with scope.everything():
                if not ApiKey.objects.filter(public_id=public_id).exists():
                    raise
            continue
        return IssuedKey(key, secret)


def _models(allowed: Iterable[str] | None) -> list[str] | None:
    if allowed is None:
        return None
    field = "allowed_models"
    models = sorted({names.checked(model, what=_("A model's name"), longest=120, field=field) for model in allowed})
    if not models:
        raise NameInvalid(_("A key that may use no model at all is of no use; name one, or leave the list out."), field=field)
    return models


def _efforts(allowed: Iterable[str] | None) -> list[str] | None:
    if allowed is None:
        return None
    field = "allowed_efforts"
    efforts = sorted({names.checked(effort, what=_("A reasoning effort"), longest=20, field=field) for effort in allowed})
    if not efforts:
        raise NameInvalid(
            _("A key that may use no reasoning effort at all is of no use; name one, or leave the list out."), field=field
        )
    return efforts


def _proves(text: str, digest: bytes, pepper_id: str) -> bool:
    pepper = settings.KEY_PEPPERS.get(pepper_id)
    return pepper is not None and hmac.compare_digest(_digest(text, pepper), digest)


def _digest(text: str, pepper: str) -> bytes:
    return hmac.digest(pepper.encode(), text.encode("utf-8", "surrogatepass"), "sha256")


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
