"""Which upstream accounts need a person, for alerts: here, because quotas does not know routing. No secret, no ciphertext."""

from django.db.models import Max

from accounts.models import AuditEvent
from quotas.alerts.rules import Trouble
from routing.models import PoolAccount


def find(organization_id: int) -> list[Trouble]:
    """The organization's own accounts that must be signed in again, with since when. Two queries at most."""
    rows = PoolAccount.objects.without_secrets().filter(
        pool__organization_id=organization_id, status=PoolAccount.Status.NEEDS_SIGN_IN
    )
    found = {str(row.uuid): row for row in rows}
    if not found:
        return []
    events = AuditEvent.objects.filter(organization_id=organization_id, action="account.needs_sign_in", object_id__in=found)
    since = dict(events.order_by().values_list("object_id").annotate(Max("created_at")))
    return [
        Trouble(uuid=uuid, label=row.label, reason=row.status_reason, is_sign_in=row.kind == PoolAccount.Kind.CHATGPT, since=at)
        for uuid, row in found.items()
        for at in [since.get(uuid, row.created_at)]
    ]
