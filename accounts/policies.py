"""The sign-in policy of an organization: of whom it requires a second factor, and who has none.

What counts is an authenticator app or a passkey; recovery codes only stand in for one. Nobody signs in with a key of the gateway or
a token of the API, so the policy says nothing about them; nor about sessions that the organization's own provider vouches for.
"""

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _

from accounts import audit, factors, vouching
from accounts.errors import PolicyUnknown, SecondFactorMissing
from accounts.models import Member, Organization, User
from config import scope


def requires(policy: str, role: str) -> bool:
    """Does a policy (`Organization.SecondFactor`) ask a second factor of a role?"""
    if policy == Organization.SecondFactor.EVERYONE:
        return True
    return policy == Organization.SecondFactor.LEADS and role != Member.Role.DEVELOPER


def is_missing(member: Member) -> bool:
    """Does the member's organization require a factor that the person does not have? One query, and none where it does not."""
    if member.user_id is None or not requires(member.organization.second_factor, member.role):
        return False
    return not factors.has_one(member.user_id)


def demanding(user: User) -> list[str]:
    """Who requires a second factor of the person, by name.

    Of the organizations that their session reaches; the operators' pages are among them, where the install says so.
    """
    rows = vouching.reachable(user).exclude(organization__second_factor=Organization.SecondFactor.OPTIONAL)
    with scope.everything():
        found = list(rows.select_related("organization").order_by("organization__name", "pk"))
    names = [row.organization.name for row in found if requires(row.organization.second_factor, row.role)]
    if settings.ADMIN_SECOND_FACTOR and user.is_superuser:
        names.append(_("the operators' pages"))
    return names


def lacking(organization: Organization, policy: str) -> list[Member]:
    """The members of whom the policy would require a factor, and who have none: they are led to set one up at their next page."""
    rows = Member.objects.for_organization(organization).current().select_related("user").order_by("pk")
    having = factors.people_with_one([row.user_id for row in rows if row.user_id is not None])
    return [row for row in rows if requires(policy, row.role) and row.user_id not in having]


def set_second_factor(organization: Organization, policy: str, *, by: User | None) -> Organization:
    """Requires a second factor of nobody, of owners, leads and finance, or of everyone. The same policy again changes nothing.

    Whoever sets it has a factor, if it is required of them too: else they would shut themselves out. Raises PolicyUnknown,
    SecondFactorMissing.
    """
    if policy not in Organization.SecondFactor.values:
        raise PolicyUnknown(
            _("%(policy)r is not a sign-in policy. Use %(values)s.")
            % {"policy": policy, "values": ", ".join(Organization.SecondFactor.values)}
        )
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        before = organization.second_factor
        if before == policy:
            return organization
        own = Member.objects.for_organization(organization).current().filter(user=by).first() if by is not None else None
        if by is not None and own is not None and requires(policy, own.role) and not factors.has_one(by.pk):
            raise SecondFactorMissing(
                _("You have no second factor yourself. Set one up under Security first: it would be required of you at once.")
            )
        organization.second_factor = policy
        organization.save(update_fields=["second_factor"])
        audit.record(
            organization,
            actor=by,
            action="organization.second_factor_changed",
            object_type="organization",
            object_id=str(organization.uuid),
            data={"before": before, "after": policy},
        )
    return organization
