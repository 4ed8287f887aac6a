"""Routing for the settings' pages: here, because quotas does not know routing. No secret, no ciphertext."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import Q

from accounts.models import Organization, User
from quotas.pool_door import PoolDoor
from routing import fallbacks, terms
from routing.models import Pool, PoolAccount


def made() -> PoolDoor:
    return PoolDoor(
        terms=terms.SIGN_IN_TERMS,
        accept_terms=_accept_terms,
        withdraw_terms=_withdraw_terms,
        sign_ins=_sign_ins,
        has_account=_has_account,
        names=_names,
        fallbacks=fallbacks.of,
        set_fallbacks=_set_fallbacks,
    )


def _accept_terms(organization: Organization, accepted: bool, by: User | None, now: datetime) -> None:
    terms.demand(organization, accepted=accepted, by=by, now=now)


def _withdraw_terms(organization: Organization, by: User | None) -> None:
    terms.withdraw(organization, by=by)


def _set_fallbacks(organization: Organization, model: str, chain: Sequence[str], by: User | None) -> Sequence[str]:
    return fallbacks.set_fallbacks(organization, model, chain, by=by)


def _sign_ins(organization: Organization) -> int:
    rows = PoolAccount.objects.for_organization(organization).filter(kind=PoolAccount.Kind.CHATGPT)
    return rows.exclude(status=PoolAccount.Status.WITHDRAWN).count()


def _has_account(organization: Organization, plan: str) -> bool:
    own = Q(pool__organization=organization)
    rows = PoolAccount.objects.filter(own | Q(pool__organization=None, pool__plans__contains=[plan]) if plan else own)
    return rows.exclude(status=PoolAccount.Status.WITHDRAWN).exists()


def _names(organization: Organization, kind: str, uuids: Iterable[UUID]) -> Mapping[str, str]:
    """One query."""
    own = Pool.objects.filter(organization=organization).values_list("uuid", "name")
    accounts = PoolAccount.objects.for_organization(organization).values_list("uuid", "label")
    pairs = own.filter(uuid__in=uuids) if kind == "pool" else accounts.filter(uuid__in=uuids)
    return {str(uuid): name for uuid, name in pairs}
