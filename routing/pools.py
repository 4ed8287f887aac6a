"""Pools: made, shared, given to teams, told by which strategy to choose; and telling those who use a pool that it changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import Organization, Team, User
from config import snapshot
from routing import due, versions
from routing.errors import PoolRefused, PoolUnknown
from routing.models import Pool, PoolAccount

DEFAULT_NAME = "Main"
SETTINGS = ("strategy", "safety_percent", "loyalty_percent", "base_short_credits", "base_weekly_credits")
"""What `set_strategy` sets: the strategy, Z and STAY in percent of a turn, what one Plus is taken to carry."""


def default(organization: Organization) -> Pool:
    """The organization's first pool, made if there is none yet."""
    pool = Pool.objects.filter(organization=organization).order_by("pk").first()
    if pool is None:
        pool, _ = Pool.objects.get_or_create(organization=organization, name=DEFAULT_NAME)
    return pool


def find(organization: Organization | None, name: str | None = None) -> Pool:
    """The pool of this name (compared without case) of an organization, or the shared one (None); without a name the first.

    Raises PoolUnknown, which names the pools there are.
    """
    if name is None:
        if organization is None:
            raise PoolUnknown(_("A shared pool is asked for by its name."))
        return default(organization)
    pool = Pool.objects.filter(organization=organization, name__iexact=name.strip()).first()
    if pool is None:
        known = ", ".join(Pool.objects.filter(organization=organization).values_list("name", flat=True)) or _("none yet")
        raise PoolUnknown(_("There is no pool %(name)r. Pools: %(known)s.") % {"name": name.strip(), "known": known})
    return pool


def changed(organization_id: int | None) -> None:
    """Bumps the version of everyone who routes through a pool of this owner. Inside a transaction.

    A shared pool (owner None) may be used by any organization.
    """
    if organization_id is not None:
        snapshot.bump(organization_id)
    else:
        snapshot.bump_all(Organization.objects.values_list("pk", flat=True))


@dataclass(frozen=True, slots=True)
class SetPool:
    """A pool as it is now, and whether it was made."""

    pool: Pool
    is_new: bool


def set_pool(
    organization: Organization | None,
    name: str,
    *,
    teams: Sequence[Team] | None = None,
    plans: Sequence[str] | None = None,
    by: User | None,
) -> SetPool:
    """Makes the pool, or says who may use it: these teams (none: everybody), on plans of these slugs (shared pools only).

    None leaves it as it is. Raises PoolRefused.
    """
    name = name.strip()
    if not 1 <= len(name) <= 80 or not name.isprintable():
        raise PoolRefused(_("A pool's name has 1 to 80 printable characters."))
    if organization is not None and plans:
        raise PoolRefused(_("Plans offer shared pools; this one belongs to an organization."))
    if organization is not None and any(team.organization_id != organization.pk for team in teams or ()):
        raise PoolRefused(_("A team of another organization cannot use this pool."))
    with transaction.atomic():
        changed(None if organization is None else organization.pk)
        pool = Pool.objects.select_for_update(no_key=True).filter(organization=organization, name__iexact=name).first()
        is_new = pool is None
        if pool is None:
            pool = Pool.objects.create(organization=organization, name=name, plans=list(plans or ()))
        elif plans is not None:
            pool.plans = list(plans)
            pool.save(update_fields=["plans"])
        if teams is not None:
            pool.teams.set(teams)
        told = {"name": pool.name, "plans": pool.plans} | ({} if teams is None else {"teams": [str(team.uuid) for team in teams]})
        _record(pool, by, "pool.created" if is_new else "pool.changed", told)
    return SetPool(pool, is_new)


def set_strategy(pool: Pool, fields: Mapping[str, Any], *, by: User | None) -> Pool:
    """Gives the pool these SETTINGS; what is not named stays. Holds on the next request. Raises PoolRefused."""
    unknown = sorted(set(fields) - set(SETTINGS))
    if unknown:
        raise PoolRefused(_("A pool has no %(unknown)s.") % {"unknown": ", ".join(unknown)})
    if fields.get("strategy", pool.strategy) not in Pool.Strategy.values:
        raise PoolRefused(
            _("There is no strategy %(strategy)r. Strategies: %(values)s.")
            % {"strategy": fields["strategy"], "values": ", ".join(Pool.Strategy.values)}
        )
    if not 100 <= fields.get("safety_percent", pool.safety_percent) <= 2000:
        raise PoolRefused(_("A fresh placement needs room for 1 to 20 turns."))
    if not 0 <= fields.get("loyalty_percent", pool.loyalty_percent) <= 1000:
        raise PoolRefused(_("A warm session leaves below 0 to 10 turns of room."))
    if min(fields.get("base_short_credits", 1), fields.get("base_weekly_credits", 1)) < 1:
        raise PoolRefused(_("A Plus carries at least one credit."))
    with transaction.atomic():
        changed(pool.organization_id)
        pool = Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)
        before = {name: getattr(pool, name) for name in fields}
        for name, value in fields.items():
            setattr(pool, name, value)
        pool.save(update_fields=list(fields))
        _record(pool, by, "pool.strategy_set", {"before": before, "after": dict(fields)})
    return pool


def move_account(account: PoolAccount, pool: Pool, *, by: User | None) -> PoolAccount:
    """Puts the account into another pool of its organization, or into or out of a shared one. What is known of its windows stays
    behind: the new pool learns it from the next poll or answer. Raises PoolRefused."""
    with transaction.atomic():
        rows = PoolAccount.objects.without_secrets().select_related("pool")
        account = rows.select_for_update(of=("self",), no_key=True).get(pk=account.pk)
        before = account.pool
        if None not in (before.organization_id, pool.organization_id) and before.organization_id != pool.organization_id:
            raise PoolRefused(_("The account belongs to another organization."))
        owners = {before.organization_id, pool.organization_id}
        changed(None if None in owners else pool.organization_id)
        account.pool = pool
        try:
            with transaction.atomic():
                account.save(update_fields=["pool"])
        except IntegrityError as error:
            raise PoolRefused(_("The pool %(name)s has this account already.") % {"name": pool.name}) from error
        _record(pool, by, "account.moved", {"label": account.label, "from": before.name, "to": pool.name})
        publish = partial(versions.publish, pool.pk, pool.organization_id, account.pk, account.credential_version)
        transaction.on_commit(publish, robust=True)
        if account.kind == PoolAccount.Kind.CHATGPT:
            transaction.on_commit(partial(due.soon, account.pk), robust=True)
    return account


def _record(pool: Pool, by: User | None, action: str, data: Mapping[str, Any]) -> None:
    audit.record(pool.organization, actor=by, action=action, object_type="pool", object_id=str(pool.uuid), data=data)
