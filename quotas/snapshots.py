"""QuotasSnapshot: the limits of an organization as the request path knows them."""

from dataclasses import dataclass

from quotas.models import Limit


@dataclass(frozen=True, slots=True)
class LimitSnapshot:
    """`target_id`: the team, member or key; None for the organization. `amount`: micro-credits for credits, else a count."""

    limit_id: int
    uuid: str
    scope: str
    target_id: int | None
    target_name: str
    metric: str
    window: str
    amount: int


@dataclass(frozen=True, slots=True)
class QuotasSnapshot:
    """In the order they were made."""

    limits: tuple[LimitSnapshot, ...]


def _snapshot(row: Limit) -> LimitSnapshot:
    target_id, name = None, ""
    if row.team is not None:
        target_id, name = row.team.pk, row.team.name
    elif row.member is not None:
        target_id, name = row.member.pk, str(row.member)
    elif row.key is not None:
        target_id, name = row.key.pk, row.key.name
    return LimitSnapshot(row.pk, str(row.uuid), row.scope, target_id, name, row.metric, row.window, row.amount)


def load(organization_id: int) -> QuotasSnapshot:
    """One query."""
    rows = Limit.objects.filter(organization_id=organization_id).select_related("team", "member__user", "key").order_by("id")
    return QuotasSnapshot(limits=tuple(_snapshot(row) for row in rows))
