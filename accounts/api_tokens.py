"""Tokens of the API: `wt_` + 10 base62 public id + `_` + 43 base62 secret. A token acts as one member, within its scopes.

Like a gateway key it is looked up by its public id and kept as HMAC-SHA-256 over the whole text under a pepper; the text exists
once, in the answer that made it. What its member may see decides what it sees, at every request anew.
"""

import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from accounts import audit, names, permissions
from accounts.errors import ApiTokenError, ExpiryPassed, MemberRemoved, NotFound, TokenScopeMissing, TokenScopeUnknown
from accounts.models import ApiToken, Member, Organization, User
from accounts.permissions import Action, Reach
from config import scope

PREFIX = "wt_"
USE_EVERY = timedelta(minutes=1)
"""How exactly it is known when a token was last used."""
PUBLIC_ID_LENGTH = 10
SECRET_LENGTH = 43
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

STATUS, USAGE = "status:read", "usage:read"
MEMBERS_READ, MEMBERS_WRITE = "members:read", "members:write"
KEYS_READ, KEYS_WRITE = "keys:read", "keys:write"
LIMITS_READ, LIMITS_WRITE = "limits:read", "limits:write"
POOL_READ, POOL_WRITE = "pool:read", "pool:write"
REQUESTS_READ = "requests:read"
ALERTS_READ, ALERTS_WRITE = "alerts:read", "alerts:write"
MONEY_READ, MONEY_WRITE = "money:read", "money:write"
SETTINGS_READ, SETTINGS_WRITE = "settings:read", "settings:write"
EXPORTS_WRITE = "exports:write"

_ACTIONS = {
    STATUS: (Action.SEE_USAGE,),
    USAGE: (Action.SEE_USAGE,),
    MEMBERS_READ: (Action.SEE_MEMBERS,),
    MEMBERS_WRITE: (Action.MANAGE_MEMBERS,),
    KEYS_READ: (Action.USE_KEYS,),
    KEYS_WRITE: (Action.USE_KEYS,),
    # Who holds keys sees the limits that hold them, and may ask for more.
    LIMITS_READ: (Action.USE_KEYS,),
    LIMITS_WRITE: (Action.USE_KEYS,),
    POOL_READ: (Action.GLANCE_AT_POOL,),
    POOL_WRITE: (Action.MANAGE_POOL,),
    REQUESTS_READ: (Action.SEE_REQUESTS,),
    ALERTS_READ: (Action.SEE_ALERTS,),
    ALERTS_WRITE: (Action.SEE_ALERTS,),
    MONEY_READ: (Action.SEE_MONEY,),
    MONEY_WRITE: (Action.MANAGE_ORGANIZATION,),
    SETTINGS_READ: (Action.MANAGE_ORGANIZATION,),
    SETTINGS_WRITE: (Action.MANAGE_ORGANIZATION,),
    EXPORTS_WRITE: (Action.SEE_USAGE, Action.SEE_MONEY),
}
"""What each is about: without a choice a token is made for those that its member's role reaches at all."""
SCOPES = tuple(_ACTIONS)
"""What a token can be made for. It never does more than its member may when it is used: both are asked at every call."""

_FORM = re.compile(rf"{PREFIX}([0-9A-Za-z]{{{PUBLIC_ID_LENGTH}}})_[0-9A-Za-z]{{{SECRET_LENGTH}}}")
_PUBLIC_ID = re.compile(rf"(?:{PREFIX})?([0-9A-Za-z]{{{PUBLIC_ID_LENGTH}}})")
_NOBODY = bytes(32)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token. `secret` is its whole text, to be shown this one time."""

    token: ApiToken
    secret: str = field(repr=False)


def issue(
    member: Member,
    *,
    name: str,
    by: User | None,
    now: datetime,
    scopes: Iterable[str] | None = None,
    expires_at: datetime | None = None,
) -> IssuedToken:
    """Makes a token of the member's; without `scopes` for all that its role may use. Locks the organization.

    Raises NameInvalid, TokenScopeUnknown, ExpiryPassed, MemberRemoved.
    """
    name = names.checked(name, what="A token's name", longest=80)
    chosen = _scopes(scopes_of(member) if scopes is None else scopes)
    if expires_at is not None and expires_at <= now:
        raise ExpiryPassed(_("The token would have expired already."), expires_at=expires_at.isoformat())
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=member.organization_id)
        member = Member.objects.select_for_update(of=("self",), no_key=True).get(pk=member.pk)
        if member.removed_at is not None:
            raise MemberRemoved(_("The member has been removed."))
        issued = _insert(member, name=name, scopes=chosen, expires_at=expires_at)
        audit.record(
            organization,
            actor=by,
            action="api_token.issued",
            object_type="api_token",
            object_id=str(issued.token.uuid),
            data={
                "public_id": issued.token.public_id,
                "member": str(member.uuid),
                "name": name,
                "scopes": chosen,
                "expires_at": expires_at.isoformat() if expires_at else None,
            },
        )
    return issued


def revoke(token: ApiToken, *, by: User | None, now: datetime) -> ApiToken:
    """Ends a token from the next request on; a second time changes nothing. Returns the row with the first `revoked_at`."""
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=token.organization_id)
        token = ApiToken.objects.select_for_update(no_key=True).get(pk=token.pk)
        if token.revoked_at is None:
            token.revoked_at = now
            token.save(update_fields=["revoked_at"])
            audit.record(
                organization,
                actor=by,
                action="api_token.revoked",
                object_type="api_token",
                object_id=str(token.uuid),
                data={"public_id": token.public_id},
            )
    return token


def seen_by(member: Member) -> QuerySet[ApiToken]:
    """The tokens that work and that the member may know of and revoke: their own; who manages the organization, all of them."""
    rows = ApiToken.objects.for_organization(member.organization).filter(revoked_at=None, member__removed_at=None)
    if not permissions.can(member, Action.MANAGE_ORGANIZATION):
        rows = rows.filter(member=member)
    return rows.select_related("member__user", "member__team", "organization")


def by_public_id(organization: Organization, text: str) -> ApiToken:
    """The organization's token with this public id (`wt_` in front or not). Raises NotFound, the same for a foreign token."""
    match = _PUBLIC_ID.fullmatch(text)
    token = ApiToken.objects.for_organization(organization).filter(public_id=match[1]).first() if match else None
    if token is None:
        raise NotFound(_("There is no such token in this organization."))
    return token


def verified(text: str, *, now: datetime) -> ApiToken | None:
    """The token that this whole text is, with its member, organization, team and user; None if it does not hold at `now`.

    It does not hold when it is unknown, wrong, revoked or expired, when its member has been removed, or while its organization is
    suspended or the person's account switched off; nothing tells which, nor the time it takes: a digest is compared in every case.
    One query, whatever the scope.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    with scope.everything():
        rows = ApiToken.objects.select_related("organization", "member__organization", "member__team", "member__user")
        token = rows.filter(public_id=match[1]).first()
    pepper_id = token.pepper_id if token is not None else next(iter(settings.KEY_PEPPERS))
    pepper = settings.KEY_PEPPERS.get(pepper_id, "")
    is_it = hmac.compare_digest(_digest(text, pepper), bytes(token.digest) if token is not None else _NOBODY)
    if token is None or not is_it or not pepper:
        return None
    ended = token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= now)
    if ended or token.member.removed_at is not None or not token.organization.is_active:
        return None
    if token.member.user is None or not token.member.user.is_active:
        return None
    return token


def note_use(token: ApiToken, *, now: datetime) -> None:
    """Says on the row that the token was used at `now`, if the row as it was read is not of the last USE_EVERY. Whatever the scope.

    Of several calls at once one writes: the row must still say what was read. One UPDATE at most, and no other query.
    """
    if token.last_used_at is not None and now - token.last_used_at < USE_EVERY:
        return
    with scope.organization(token.organization_id):
        ApiToken.objects.filter(pk=token.pk, last_used_at=token.last_used_at).update(last_used_at=now)
    token.last_used_at = now


def scopes_of(member: Member) -> list[str]:
    """The scopes that the member's role can use."""
    return [
        name for name, actions in _ACTIONS.items() if any(permissions.reach(member, action) is not Reach.NONE for action in actions)
    ]


def check_within(token: ApiToken, *, scopes: Iterable[str], expires_at: datetime | None) -> None:
    """What a token may hand on: its own scopes and no longer life. Raises TokenScopeMissing, ApiTokenError."""
    missing = sorted(set(scopes) - set(token.scopes))
    if missing:
        raise TokenScopeMissing(
            _("This token was not made for %(missing)s, so it makes none for it.") % {"missing": missing[0]}, scope=missing[0]
        )
    if token.expires_at is not None and (expires_at is None or expires_at > token.expires_at):
        raise ApiTokenError(_("This token makes none that lasts longer than itself."), expires_at=token.expires_at.isoformat())


def _scopes(chosen: Iterable[str]) -> list[str]:
    found = sorted(set(chosen))
    if not found or not set(found) <= set(SCOPES):
        unknown = [one for one in found if one not in SCOPES]
        said = f"{unknown[0]!r} is not a scope of a token" if unknown else "A token needs a scope"
        raise TokenScopeUnknown(
            _("%(said)s. Scopes: %(scopes)s.") % {"said": said, "scopes": ", ".join(SCOPES)}, scopes=list(SCOPES)
        )
    return found


def _insert(member: Member, *, name: str, scopes: list[str], expires_at: datetime | None) -> IssuedToken:
    """One row; a public id that is taken (once in 8e17 pairs) is drawn again."""
    pepper_id, pepper = next(iter(settings.KEY_PEPPERS.items()))
    while True:
        public_id = _random(PUBLIC_ID_LENGTH)
        secret = f"{PREFIX}{public_id}_{_random(SECRET_LENGTH)}"
        token = ApiToken(
            organization_id=member.organization_id,
            member=member,
            name=name,
            public_id=public_id,
            digest=_digest(secret, pepper),
            pepper_id=pepper_id,
            scopes=scopes,
            expires_at=expires_at,
        )
        try:
            with transaction.atomic():
                token.save(force_insert=True)
        except IntegrityError:
            with scope.everything():
                if not ApiToken.objects.filter(public_id=public_id).exists():
                    raise
            continue
        return IssuedToken(token, secret)


def _digest(text: str, pepper: str) -> bytes:
    return hmac.digest(pepper.encode(), text.encode(), "sha256")


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
