"""Pools: the one that an organization begins with, and telling those who use a pool that it changed."""

from accounts.models import Organization
from config import snapshot
from routing.models import Pool

DEFAULT_NAME = "Main"


def default(organization: Organization) -> Pool:
    """The organization's first pool, made if there is none yet."""
    pool = Pool.objects.filter(organization=organization).order_by("pk").first()
    if pool is None:
        pool, _ = Pool.objects.get_or_create(organization=organization, name=DEFAULT_NAME)
    return pool


def changed(organization_id: int | None) -> None:
    """Bumps the version of everyone who routes through a pool of this owner. Inside a transaction.

    A shared pool (owner None) may be used by any organization.
    """
    if organization_id is not None:
        snapshot.bump(organization_id)
    else:
        snapshot.bump_all(Organization.objects.values_list("pk", flat=True))
