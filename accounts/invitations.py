"""One-time links: who holds one sets a password and is in. Only a digest of the token is kept.

A person's account is one for all organizations, and any of them may invite any address. So a link opens its own organization
only: a membership that was made by an invitation waits for its own link, whoever holds the account meanwhile.
"""

import hashlib
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from accounts import audit, members, names, organizations
from accounts.errors import InvitationInvalid, PasswordRefused
from accounts.models import Invitation, Member, Organization, Team, User
from config import scope, snapshot
from config.clock import utc_now

VALID_FOR = timedelta(days=7)
PATH = "/join/"


@dataclass(frozen=True, slots=True)
class Link:
    """An invitation and the address that opens it, to be shown this one time."""

    invitation: Invitation
    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a link that still holds offers.

    `organization` is None for the link that creates the first one: then its name and the owner's e-mail are asked for. `email`
    may be empty only then. `has_password` means that the person signs in with the password they have; else they choose one. `name`
    is what the organization calls them already, empty if nothing: then they say it.
    """

    invitation: Invitation
    organization: Organization | None
    email: str
    has_password: bool
    name: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Who came in. `is_first` is True when the organization was created by this: the door still starts its subscription."""

    member: Member
    user: User
    is_first: bool


def create_owner_link(
    organization: Organization, email: str, *, now: datetime, by: User | None = None, base_url: str | None = None
) -> Link:
    """Makes the person an owner, and a link by which they set their password. Raises what `members.add` raises."""
    return invite(organization, email, role=Member.Role.OWNER, now=now, by=by, base_url=base_url)


def invite(
    organization: Organization,
    email: str,
    *,
    role: str,
    now: datetime,
    by: User | None,
    team: Team | None = None,
    name: str = "",
    base_url: str | None = None,
) -> Link:
    """Makes the person a member at once, and a link by which they come in. Raises what `members.add` raises.

    The link is the same for who has a password already, so it does not tell whether they have. Who was invited as the same before
    and has not come gets another link.
    """
    with transaction.atomic():
        member = _awaited(organization, email, role, team)
        member = member or members.add(organization, email, role=role, by=by, team=team, name=name)
        assert member.user is not None
        if not member.is_awaited:
            member.is_awaited = True
            member.save(update_fields=["is_awaited"])
        return _create(organization, member.user.email, role, now=now, base_url=base_url)


def withdraw(invitation: Invitation, *, by: User | None, now: datetime) -> Invitation:
    """Ends the link; the person stays a member who is awaited. A second time, or after it was used, changes nothing."""
    with transaction.atomic():
        invitation = Invitation.objects.select_for_update(of=("self",), no_key=True).get(pk=invitation.pk)
        if invitation.accepted_at is None and invitation.expires_at > now:
            invitation.expires_at = now
            invitation.save(update_fields=["expires_at"])
            audit.record(
                invitation.organization,
                actor=by,
                action="invitation.withdrawn",
                object_type="invitation",
                object_id=str(invitation.uuid),
            )
    return invitation


def _awaited(organization: Organization, email: str, role: str, team: Team | None) -> Member | None:
    rows = (
        Member.objects.for_organization(organization).current().select_for_update(of=("self",), no_key=True).select_related("user")
    )
    waiting = Q(is_awaited=True) | Q(is_vouched=True)
    return rows.filter(waiting, user__email__iexact=email.strip(), role=role, team=team).first()


def first_owner_link(*, base_url: str | None = None, now: datetime | None = None) -> str | None:
    """The address that creates the first organization and its owner; None once there is one.

    A new link takes the place of the ones that were printed before and not used.
    """
    with transaction.atomic():
        if Organization.objects.exists():
            return None
        Invitation.objects.filter(organization=None, accepted_at=None).delete()
        return _create(None, "", Member.Role.OWNER, now=now or utc_now(), base_url=base_url).url


def look_up(token: str, *, now: datetime) -> Offer:
    """What the link offers. Raises InvitationInvalid, the same for unknown, used and expired."""
    with scope.everything():
        invitation = Invitation.objects.select_related("organization").filter(digest=_digest(token)).first()
        return _offer(invitation, now)


def accept(
    token: str,
    *,
    password: str,
    now: datetime,
    email: str = "",
    organization_name: str = "",
    timezone: str = "UTC",
    name: str = "",
) -> Accepted:
    """Uses the link up and lets the person in.

    A person without a usable password gets `password`; one who has a password must give that one: a link never changes it.
    `email`, `organization_name` and `timezone` count for the first owner's link only; `name` while the member has none. Raises
    InvitationInvalid, PasswordRefused, EmailInvalid, NameInvalid, ZoneUnknown; then the link stays as it was. Of two who race for
    one link, one is let in.
    """
    # The link tells which organization it is, or makes the first one.
    with scope.everything(), transaction.atomic():
        # The row lock makes the link single use.
        rows = Invitation.objects.select_for_update(of=("self",), no_key=True).select_related("organization")
        invitation = rows.filter(digest=_digest(token)).first()
        offer = _offer(invitation, now)
        offer.invitation.accepted_at = now
        offer.invitation.save(update_fields=["accepted_at"])
        if offer.organization is None:
            return _found(offer, password, email=email, organization_name=organization_name, timezone=timezone, name=name)
        user = members.person(offer.email)
        _authenticate(user, password)
        member = Member.objects.for_organization(offer.organization).current().filter(user=user).first()
        if member is None:
            # Removed since the link was made: it gives nothing back.
            raise InvitationInvalid(_("This link does not hold any more. Ask for a new one."))
        if member.is_awaited or member.is_vouched:
            member.is_awaited = member.is_vouched = False
            member.save(update_fields=["is_awaited", "is_vouched"])
        if name and not member.display_name:
            member.display_name = names.checked(name, what=_("A person's name"), longest=120)
            member.save(update_fields=["display_name"])
            # Refusals name the member.
            snapshot.bump(member.organization_id)
        _accepted(offer, member, user)
        return Accepted(member, user, is_first=False)


def _found(offer: Offer, password: str, *, email: str, organization_name: str, timezone: str, name: str) -> Accepted:
    if Organization.objects.exists():
        raise InvitationInvalid(_("This link does not hold any more. Ask for a new one."))
    user = members.person(members.checked_email(email))
    _authenticate(user, password)
    organization = organizations.create(organization_name, timezone=timezone, by=user)
    member = members.add(organization, user.email, role=Member.Role.OWNER, name=name, by=user)
    offer.invitation.organization = organization
    offer.invitation.email = user.email
    offer.invitation.save(update_fields=["organization", "email"])
    _accepted(offer, member, user)
    return Accepted(member, user, is_first=True)


def _authenticate(user: User, password: str) -> None:
    # An operator sees all organizations: what one of them sends out makes nobody that.
    if not user.has_usable_password() and not user.is_superuser:
        user.set_password(members.checked_password(user, password))
        user.save(update_fields=["password"])
        # Nobody has come in by this account so far, and this link says nothing about who may elsewhere.
        Member.objects.current().filter(user=user).update(is_awaited=True)
    elif not user.check_password(password):
        reason = _("That is not the password of %(email)s. Sign in with it, or reset it there.") % {"email": user.email}
        raise PasswordRefused(reason, reasons=[reason])


def _accepted(offer: Offer, member: Member, user: User) -> None:
    audit.record(
        member.organization,
        actor=user,
        action="invitation.accepted",
        object_type="invitation",
        object_id=str(offer.invitation.uuid),
        data={"member": str(member.uuid), "role": member.role},
    )


def _create(organization: Organization | None, email: str, role: str, *, now: datetime, base_url: str | None) -> Link:
    token = secrets.token_urlsafe(32)
    invitation = Invitation.objects.create(
        organization=organization, email=email, role=role, digest=_digest(token), expires_at=now + VALID_FOR
    )
    return Link(invitation, f"{(base_url or settings.PUBLIC_URL).rstrip('/')}{PATH}{token}")


def _offer(invitation: Invitation | None, now: datetime) -> Offer:
    if invitation is None or invitation.accepted_at is not None or invitation.expires_at <= now:
        raise InvitationInvalid(_("This link does not hold any more. Ask for a new one."))
    user = User.objects.filter(email__iexact=invitation.email).first() if invitation.email else None
    has_password = bool(user and user.has_usable_password())
    member = None
    if user and invitation.organization:
        member = Member.objects.for_organization(invitation.organization).current().filter(user=user).first()
    return Offer(invitation, invitation.organization, invitation.email, has_password, name=member.display_name if member else "")


def _digest(token: str) -> str:
    """The token is 256 random bits, so a plain digest gives nothing away."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
