"""A key with limits of its own from its first request on: both are made, or neither."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import PermissionDenied
from django.db import transaction

from accounts import keys
from accounts.keys import IssuedKey
from accounts.models import Member
from quotas import limits, rights
from quotas.models import Limit


@dataclass(frozen=True, slots=True)
class WantedLimit:
    """As people write it: decimal credits or a count; `window` "" for rates and requests at once."""

    metric: str
    window: str
    amount: str
    models: tuple[str, ...] = ()
    is_exact: bool = False


def issue(
    member: Member,
    *,
    name: str,
    limited: Sequence[WantedLimit] = (),
    expires_at: datetime | None = None,
    allowed_models: Sequence[str] | None = None,
    allowed_efforts: Sequence[str] | None = None,
    fast_allowed: bool = True,
    now: datetime,
) -> IssuedKey:
    """Makes a key of the member's own, with its limits. Raises PermissionDenied where the member sets no limits, and what
    `keys.issue` and `limits.set_limit` raise; then there is no key."""
    with transaction.atomic():
        issued = keys.issue(
            member,
            name=name,
            by=member.user,
            now=now,
            expires_at=expires_at,
            allowed_models=allowed_models,
            allowed_efforts=allowed_efforts,
            fast_allowed=fast_allowed,
        )
        if limited and not rights.may_set(member, issued.key):
            raise PermissionDenied
        for wanted in limited:
            limits.set_limit(
                member.organization,
                scope=Limit.Scope.KEY,
                of=issued.key.public_id,
                metric=wanted.metric,
                window=wanted.window,
                amount=wanted.amount,
                models=wanted.models,
                strategy=Limit.Strategy.SLIDING_LOG if wanted.is_exact else None,
                by=member.user,
                setter=member,
            )
    return issued
