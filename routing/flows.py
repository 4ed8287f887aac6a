"""Sign-ins under way: begun by one process, finished by any, once, within 15 minutes.

What is unknown, used, expired, another organization's or another person's is one answer: FlowOver.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from accounts.models import Organization, User
from routing import sealing
from routing.errors import FlowOver, SealBroken
from routing.models import SignInFlow

VALID_FOR = timedelta(minutes=15)
FIELD = "sealed"


@dataclass(frozen=True, slots=True)
class Flow:
    """A sign-in under way, with what is kept secret of it."""

    row: SignInFlow
    secret: Mapping[str, str] = field(repr=False)


def begin(
    organization: Organization,
    kind: SignInFlow.Kind,
    secret: Mapping[str, str],
    *,
    label: str,
    plan: str | None,
    by: User | None,
    now: datetime,
    interval_seconds: int = 0,
) -> SignInFlow:
    """Keeps a new flow; the organization's abandoned ones go."""
    SignInFlow.objects.filter(organization=organization, expires_at__lte=now).delete()
    row = SignInFlow(
        organization=organization,
        kind=kind,
        label=label,
        plan_type=plan or "",
        started_by=by,
        started_at=now,
        expires_at=now + VALID_FOR,
        interval_seconds=interval_seconds,
        next_poll_at=now + timedelta(seconds=interval_seconds) if interval_seconds else None,
    )
    row.sealed = sealing.seal(json.dumps(dict(secret)), account=row.uuid, field=FIELD)
    row.save()
    return row


def read(organization: Organization, flow_id: UUID | str, kind: SignInFlow.Kind, *, by: User | None, now: datetime) -> Flow:
    """The flow, which stays open. Who began it finishes it; operators (`by` None) finish any. Raises FlowOver."""
    try:
        flow_uuid = flow_id if isinstance(flow_id, UUID) else UUID(flow_id)
    except ValueError:
        raise FlowOver from None
    rows = SignInFlow.objects.filter(organization=organization, uuid=flow_uuid, kind=kind, expires_at__gt=now)
    row = (rows if by is None else rows.filter(started_by=by)).first()
    if row is None:
        raise FlowOver
    try:
        secret = json.loads(sealing.unseal(row.sealed, account=row.uuid, field=FIELD))
    except SealBroken:
        # Its key was dropped meanwhile: it cannot be finished, only begun again.
        raise FlowOver from None
    return Flow(row, secret)


def take(flow: Flow) -> None:
    """Uses the flow up. Of several who try, one is let through. Raises FlowOver for the others."""
    taken, _ = SignInFlow.objects.filter(pk=flow.row.pk).delete()
    if not taken:
        raise FlowOver


def forget_abandoned(now: datetime) -> int:
    """Deletes flows that nobody finished in time, of all organizations; how many."""
    return SignInFlow.objects.filter(expires_at__lte=now).delete()[0]
