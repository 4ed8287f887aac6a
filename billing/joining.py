"""People come and go: by a one-time link, which starts the first owner's organization on a plan; who leaves gives up the seat."""

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from accounts import invitations, managing, members
from accounts.errors import RoleNotYours
from accounts.invitations import Accepted
from accounts.members import Removed
from accounts.models import Member, User
from billing import subscriptions
from billing.models import Plan
from config import scope

FIRST_PLAN = "plus"
"""What a first organization starts on; its owner or an operator changes it."""


def accept_link(
    token: str, *, password: str, name: str, now: datetime, email: str = "", organization_name: str = "", timezone: str = "UTC"
) -> Accepted:
    """Uses the link up, all or nothing. Raises what `invitations.accept` raises."""
    with scope.everything(), transaction.atomic():
        accepted = invitations.accept(
            token, password=password, name=name, email=email, organization_name=organization_name, timezone=timezone, now=now
        )
        if accepted.is_first:
            subscriptions.start(accepted.member.organization, Plan.objects.get(slug=FIRST_PLAN), now=now)
    return accepted


def leave(member: Member, *, by: User | None, now: datetime) -> Removed:
    """Removes the member and ends their seat. Raises what `members.remove` raises.

    Two transactions: a removal holds the organization's row, and the ledger's writers wait for that. Should the second fail,
    the next walk over due periods ends the seat.
    """
    removed = members.remove(member, by=by, now=now)
    subscriptions.end_seat(removed.member, by=by, now=now)
    return removed


def dismiss(manager: Member, member: Member, *, now: datetime) -> Removed:
    """`leave`, at the wish of one who looks after the member. Raises RoleNotYours where the manager does not."""
    if not managing.may_manage(manager, member):
        raise RoleNotYours(
            _("%(member)s is %(get_role_display)s, and only an owner removes one.")
            % {"member": member, "get_role_display": member.get_role_display().lower()}
        )
    return leave(member, by=manager.user, now=now)
