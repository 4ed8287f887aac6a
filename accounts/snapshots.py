"""What the request path knows of an organization and its keys, frozen; the secret of no key is among it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from uuid import UUID

from accounts.models import ApiKey, Organization
from config import scope


@dataclass(frozen=True, slots=True)
class KeySnapshot:
    """A key that has not been revoked, of a member who was not removed and whose account is not switched off.

    `expires_at` is judged where it is used.
    """

    key_id: int
    uuid: UUID
    public_id: str
    name: str
    digest: bytes = field(repr=False)
    pepper_id: str
    member_id: int
    member_uuid: UUID
    member_name: str
    team_id: int | None
    team_uuid: UUID | None
    team_name: str
    expires_at: datetime | None
    allowed_models: frozenset[str] | None
    allowed_efforts: frozenset[str] | None
    fast_allowed: bool
    previous_digest: bytes = field(default=b"", repr=False)
    previous_pepper_id: str = ""
    previous_until: datetime | None = None
    """Of the secret before the last rotation; it works until then."""
    member_fast_allowed: bool = True
    """May the key's holder use fast mode, whatever the key may?"""

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True, slots=True)
class AccountsSnapshot:
    """One organization. While it is suspended (`is_active` false) none of its keys may be used."""

    organization_id: int
    uuid: UUID
    slug: str
    name: str
    timezone: str
    is_active: bool
    unpriced_models: str
    keys: Mapping[str, KeySnapshot] = field(repr=False)


def load(organization_id: int) -> AccountsSnapshot:
    """Two queries. Raises Organization.DoesNotExist."""
    organization = Organization.objects.get(pk=organization_id)
    rows = (
        ApiKey.objects.for_organization(organization)
        .unrevoked()
        .filter(member__removed_at=None, member__user__is_active=True)
        .select_related("member__user", "member__team")
        .order_by("pk")
    )
    return AccountsSnapshot(
        organization_id=organization.pk,
        uuid=organization.uuid,
        slug=organization.slug,
        name=organization.name,
        timezone=organization.timezone,
        is_active=organization.is_active,
        unpriced_models=organization.unpriced_models,
        keys=MappingProxyType({row.public_id: of_key(row) for row in rows}),
    )


def organization_of_key(public_id: str) -> int | None:
    """One indexed query. Ids of revoked keys are known too: their organization's snapshot then refuses them."""
    with scope.everything():
        return ApiKey.objects.filter(public_id=public_id).values_list("organization_id", flat=True).first()


def of_key(row: ApiKey) -> KeySnapshot:
    """Of a row with its member, team and user. No query."""
    team = row.member.team
    return KeySnapshot(
        key_id=row.pk,
        uuid=row.uuid,
        public_id=row.public_id,
        name=row.name,
        digest=bytes(row.digest),
        pepper_id=row.pepper_id,
        member_id=row.member_id,
        member_uuid=row.member.uuid,
        member_name=str(row.member),
        team_id=team.pk if team else None,
        team_uuid=team.uuid if team else None,
        team_name=team.name if team else "",
        expires_at=row.expires_at,
        allowed_models=None if row.allowed_models is None else frozenset(row.allowed_models),
        allowed_efforts=None if row.allowed_efforts is None else frozenset(row.allowed_efforts),
        fast_allowed=row.fast_allowed,
        member_fast_allowed=row.member.fast_allowed,
        previous_digest=bytes(row.previous_digest or b""),
        previous_pepper_id=row.previous_pepper_id,
        previous_until=row.previous_until,
    )
