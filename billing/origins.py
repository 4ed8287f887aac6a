"""Which account answered with a response, by the usage log."""

from datetime import datetime, timedelta

from billing.models import UsageRecord
from config import scope

KEPT = timedelta(days=31)
"""How long upstreams keep a response; two partitions of the log are looked into."""
LONGEST_ID = 128


def account_of(organization_id: int, response_id: str, *, now: datetime) -> int | None:
    """The account that made the response, None if the log knows none; one query by an index."""
    if len(response_id) > LONGEST_ID or not response_id.isprintable():
        # No row has such an id, and PostgreSQL takes no NUL.
        return None
    with scope.organization(organization_id):
        rows = UsageRecord.objects.filter(organization_id=organization_id, response_id=response_id, admitted_at__gte=now - KEPT)
        named = rows.exclude(response_id="").exclude(account_id=None)
        found: int | None = named.order_by("-admitted_at").values_list("account_id", flat=True).first()
    return found
