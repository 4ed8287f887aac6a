"""Who did what to which object. Events are added in the transaction of what they tell, and never changed."""

from collections.abc import Mapping
from typing import Any

from accounts.models import AuditEvent, Organization, User

OPERATOR_LABEL = "operator"
"""Who acts on the command line, where nobody is signed in."""


def record(
    organization: Organization | None,
    *,
    actor: User | None,
    action: str,
    object_type: str,
    object_id: str,
    data: Mapping[str, Any] | None = None,
    actor_label: str = OPERATOR_LABEL,
) -> AuditEvent:
    """Adds one event. `actor_label` names who acted when nobody was signed in; `data` holds ids and values, never a secret."""
    return AuditEvent.objects.create(
        organization=organization,
        actor=actor,
        actor_label=actor.email if actor is not None else actor_label,
        action=action,
        object_type=object_type,
        object_id=object_id,
        data=dict(data or {}),
    )
