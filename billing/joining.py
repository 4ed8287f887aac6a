"""A one-time link is used: the person comes in, and the first owner's organization starts on a plan."""

from datetime import datetime

from django.db import transaction

from accounts import invitations
from accounts.invitations import Accepted
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
