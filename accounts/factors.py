"""A person's second factors: which there are, what is told about a change of them, and how an operator takes them away.

The rows are allauth's (`Authenticator`). What they hold in secret is sealed (`accounts.mfa_adapter`).
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.core.mail import send_mail
from django.db import transaction
from django.db.models import QuerySet
from django.template.loader import render_to_string
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from accounts import audit
from accounts.errors import NotFound
from accounts.models import Member, User
from config import scope

logger = logging.getLogger(__name__)

SECOND = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)
"""What counts as a second factor; recovery codes stand in for one and are nothing without it."""


def of(user_id: int) -> "QuerySet[Authenticator]":
    rows: QuerySet[Authenticator] = Authenticator.objects.filter(user_id=user_id, type__in=SECOND)
    return rows


def has_one(user_id: int) -> bool:
    return bool(of(user_id).exists())


def people_with_one(user_ids: Iterable[int]) -> set[int]:
    return set(Authenticator.objects.filter(user_id__in=list(user_ids), type__in=SECOND).values_list("user_id", flat=True))


def is_last(authenticator: Authenticator) -> bool:
    return not of(authenticator.user_id).exclude(pk=authenticator.pk).exists()


def name_of(authenticator: Authenticator) -> str:
    """How an address names a factor: not by its row's id, which would count everybody's."""
    return salted_hmac("accounts.factor", str(authenticator.pk), algorithm="sha256").hexdigest()[:24]


def passkey(user: User, name: str) -> Authenticator | None:
    """The person's passkey of this name (`name_of`)."""
    rows = Authenticator.objects.filter(user=user, type=Authenticator.Type.WEBAUTHN)
    return next((row for row in rows if name_of(row) == name), None)


def person(email: str) -> User:
    """Raises NotFound."""
    user = User.objects.filter(email__iexact=email.strip()).first()
    if user is None:
        raise NotFound(f"Nobody signs in as {email.strip()!r}.")
    return user


def record(user: User, action: str, *, by: User | None, data: Mapping[str, Any] | None = None) -> None:
    """An event in the audit trail of each organization that the person belongs to; of none, where there is none."""
    with scope.everything(), transaction.atomic():
        rows = list(Member.objects.arrived().filter(user=user).select_related("organization").order_by("organization_id"))
        for row in rows:
            audit.record(row.organization, actor=by, action=action, object_type="member", object_id=str(row.uuid), data=data)
        if not rows:
            audit.record(None, actor=by, action=action, object_type="user", object_id=str(user.pk), data=data)


@dataclass(frozen=True, slots=True)
class Reset:
    """What an operator took away."""

    factors: int
    sessions: int


def reset(user: User, *, by: User | None) -> Reset:
    """Takes all factors and recovery codes of a person who has lost them, and ends their sessions; they are told by e-mail.

    Where a policy requires one, they are led to set up a new one when they have signed in by password.
    """
    from accounts import sessions

    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        rows = Authenticator.objects.filter(user=user)
        kinds = sorted(rows.values_list("type", flat=True))
        rows.delete()
        ended = sessions.end_all(user)
        record(user, "second_factor.reset", by=by, data={"kinds": kinds, "sessions_ended": ended})
        transaction.on_commit(lambda: _tell_of_reset(user))
    return Reset(factors=sum(kind in SECOND for kind in kinds), sessions=ended)


def _tell_of_reset(user: User) -> None:
    """What cannot be sent is logged: the factors are gone all the same."""
    about = {"email": user.email, "url": f"{settings.PUBLIC_URL}/accounts/security/"}
    try:
        send_mail(
            subject=_("Weir: Your second factors were taken away"),
            message=render_to_string("emails/second_factor_reset.txt", about),
            from_email=None,
            recipient_list=[user.email],
        )
    except OSError as error:
        logger.warning("person not told of a reset", extra={"user": user.pk, "error": type(error).__name__})
