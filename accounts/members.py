"""Members: join, change role or team, leave.

Whoever changes the members of an organization holds its row lock, so what is checked (the last owner) still holds when it is
written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from accounts import audit, keys, names
from accounts.errors import (
    AlreadyMember,
    EmailInvalid,
    LastOwner,
    MemberError,
    MemberRemoved,
    NotFound,
    PasswordRefused,
    TeamNotForRole,
)
from accounts.models import Member, Organization, Team, User
from config import snapshot


@dataclass(frozen=True, slots=True)
class Removed:
    """What a removal did."""

    member: Member
    keys_revoked: int


def add(
    organization: Organization,
    email: str,
    *,
    role: str,
    by: User | None,
    team: Team | None = None,
    password: str | None = None,
    name: str = "",
) -> Member:
    """Makes the person with this e-mail a member. One person may belong to several organizations.

    A new person without `password` gets one that cannot be used, until a link sets it. The password of a person who has one
    is never changed here: another one raises PasswordRefused. Raises EmailInvalid, AlreadyMember, TeamNotForRole, NameInvalid.
    """
    email = checked_email(email)
    role = checked_role(role)
    _check_team(organization, role, team)
    name = names.checked(name, what=_("A person's name"), longest=120) if name else ""
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        user = person(email)
        if password is not None:
            _give_password(user, password)
        if Member.objects.for_organization(organization).current().filter(user=user).exists():
            raise AlreadyMember(_("%(email)s is a member already.") % {"email": email})
        member = Member.objects.create(organization=organization, user=user, role=role, team=team, display_name=name)
        audit.record(
            organization,
            actor=by,
            action="member.added",
            object_type="member",
            object_id=str(member.uuid),
            data={"role": role, "team": str(team.uuid) if team else None},
        )
    return member


def change(member: Member, *, role: str, team: Team | None, by: User | None, now: datetime) -> Member:
    """Gives the member this role in this team (None: the whole organization). Who becomes finance loses all keys.

    Raises LastOwner, TeamNotForRole, MemberRemoved.
    """
    role = checked_role(role)
    with transaction.atomic():
        organization, member = _locked(member)
        _check_team(organization, role, team)
        if role != Member.Role.OWNER:
            _keep_an_owner(member)
        before = {"role": member.role, "team": str(member.team.uuid) if member.team else None}
        member.role, member.team = role, team
        member.save(update_fields=["role", "team"])
        if role == Member.Role.FINANCE:
            keys.revoke_all(member, by=by, now=now)
        audit.record(
            organization,
            actor=by,
            action="member.changed",
            object_type="member",
            object_id=str(member.uuid),
            data={"before": before, "after": {"role": role, "team": str(team.uuid) if team else None}},
        )
        snapshot.bump(organization.pk)
    return member


def allow_fast_mode(member: Member, is_allowed: bool, *, by: User | None) -> Member:
    """Whether any key of the member may ask for fast mode, from the next request on; the same again changes nothing.

    Raises MemberRemoved.
    """
    with transaction.atomic():
        organization, member = _locked(member)
        if member.fast_allowed != is_allowed:
            member.fast_allowed = is_allowed
            member.save(update_fields=["fast_allowed"])
            audit.record(
                organization,
                actor=by,
                action="member.fast_mode_allowed" if is_allowed else "member.fast_mode_forbidden",
                object_type="member",
                object_id=str(member.uuid),
            )
            snapshot.bump(organization.pk)
    return member


def remove(member: Member, *, by: User | None, now: datetime) -> Removed:
    """Ends the membership: the keys are refused on the next request, and the person becomes "former member n".

    Log and ledger keep pointing at the member's id. Raises LastOwner, MemberRemoved.
    """
    with transaction.atomic():
        organization, member = _locked(member)
        _keep_an_owner(member)
        revoked = keys.revoke_all(member, by=by, now=now)
        number = Member.objects.for_organization(organization).exclude(removed_at=None).count() + 1
        member.removed_at = now
        member.display_name = f"former member {number}"
        member.user = None
        member.save(update_fields=["removed_at", "display_name", "user"])
        audit.record(
            organization,
            actor=by,
            action="member.removed",
            object_type="member",
            object_id=str(member.uuid),
            data={"keys_revoked": revoked},
        )
        snapshot.bump(organization.pk)
    return Removed(member, revoked)


def find(organization: Organization, email: str) -> Member:
    """The current member with this e-mail. Raises NotFound."""
    member = (
        Member.objects.for_organization(organization)
        .current()
        .select_related("user", "team", "organization")
        .filter(user__email__iexact=email.strip())
        .first()
    )
    if member is None:
        raise NotFound(_("%(email)r is no member of %(slug)s.") % {"email": email.strip(), "slug": organization.slug})
    return member


def person(email: str) -> User:
    """The user with this (checked) e-mail, made without a usable password if there is none."""
    user = User.objects.filter(email__iexact=email).first()
    if user is None:
        try:
            with transaction.atomic():
                user = User.objects.create_user(email)
        except IntegrityError:
            # Another organization made the same person at this moment.
            user = User.objects.get(email__iexact=email)
    return user


def checked_email(email: str) -> str:
    """In lower case. Raises EmailInvalid."""
    email = email.strip().lower()
    try:
        validate_email(email)
    except ValidationError:
        raise EmailInvalid(_("%(email)r is not an e-mail address.") % {"email": email}) from None
    if len(email) > 254:
        raise EmailInvalid(_("The e-mail address has more than 254 characters."))
    return email


def checked_role(role: str) -> str:
    if role not in Member.Role.values:
        raise MemberError(
            _("%(role)r is not a role. Roles: %(values)s.") % {"role": role, "values": ", ".join(Member.Role.values)}, role=role
        )
    return role


def checked_password(user: User, password: str) -> str:
    """Raises PasswordRefused with the reasons, as sentences."""
    try:
        validate_password(password, user)
    except ValidationError as error:
        reasons: Sequence[str] = error.messages
        raise PasswordRefused(" ".join(reasons), reasons=list(reasons)) from None
    return password


def _give_password(user: User, password: str) -> None:
    if not user.has_usable_password():
        user.set_password(checked_password(user, password))
        user.save(update_fields=["password"])
    elif not user.check_password(password):
        raise PasswordRefused(
            _("%(email)s has a password already, and this is another one. Add the person without a password.")
            % {"email": user.email},
            reasons=[],
        )


def _check_team(organization: Organization, role: str, team: Team | None) -> None:
    if team is None:
        return
    if team.organization_id != organization.pk:
        raise NotFound(_("There is no such team in this organization."))
    if role == Member.Role.OWNER:
        raise TeamNotForRole(_("An owner belongs to the whole organization, not to a team."))


def _locked(member: Member) -> tuple[Organization, Member]:
    organization = Organization.objects.select_for_update(no_key=True).get(pk=member.organization_id)
    member = Member.objects.select_for_update(of=("self",), no_key=True).select_related("team", "organization").get(pk=member.pk)
    if member.removed_at is not None:
        raise MemberRemoved(_("The member has been removed."))
    return organization, member


def _keep_an_owner(member: Member) -> None:
    if member.role != Member.Role.OWNER:
        return
    others = Member.objects.for_organization(member.organization).current().filter(role=Member.Role.OWNER).exclude(pk=member.pk)
    if not others.exists():
        raise LastOwner(_("The last owner cannot be removed or given another role. Make somebody else an owner first."))
