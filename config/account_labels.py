"""What upstream accounts are called in reports: here, because billing does not know routing. Never more than label and id."""

from collections.abc import Iterable, Mapping

from django.db.models import Q

from billing.labels import AccountLabel
from routing.models import PoolAccount


def find(organization_id: int, ids: Iterable[int] | None) -> Mapping[int, AccountLabel]:
    """By account id; None: all of the organization's own. An account of a pool that the operator shares has its public id, and no
    label. One query, no ciphertext."""
    if ids is None:
        rows = PoolAccount.objects.filter(pool__organization_id=organization_id)
    else:
        rows = PoolAccount.objects.filter(Q(pool__organization_id=organization_id) | Q(pool__organization=None), pk__in=set(ids))
    return {
        pk: AccountLabel(uuid, label if owner == organization_id else "")
        for pk, uuid, label, owner in rows.values_list("pk", "uuid", "label", "pool__organization_id")
    }
