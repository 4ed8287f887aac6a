"""PoolSnapshot: what the request path knows of pools and accounts. No secret is in it (`routing.credentials` has those)."""

from dataclasses import dataclass

from django.conf import settings
from django.db.models import Prefetch

from routing.models import Pool, PoolAccount

CHATGPT = PoolAccount.Kind.CHATGPT.value
OPENAI = PoolAccount.Kind.OPENAI.value
ACTIVE = PoolAccount.Status.ACTIVE.value
NEEDS_SIGN_IN = PoolAccount.Status.NEEDS_SIGN_IN.value


@dataclass(frozen=True, slots=True)
class AccountSnapshot:
    """One account. `weight` in thousandths of Plus; `base_url` is always set: the account's own or the install's.

    `models` None means every model; `priority` lower is used first.
    """

    account_id: int
    uuid: str
    kind: str
    label: str
    base_url: str
    weight: int
    concurrency_cap: int | None
    floor_percent: int
    priority: int
    models: frozenset[str] | None
    status: str
    chatgpt_account_id: str | None


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool as one organization sees it.

    `organization_id` is the owner (None: the operator's shared pool), `tenant_id` the organization that this was loaded for;
    `team_ids` empty means every team.
    """

    pool_id: int
    uuid: str
    name: str
    organization_id: int | None
    tenant_id: int
    strategy: str
    team_ids: frozenset[int]
    accounts: tuple[AccountSnapshot, ...]


@dataclass(frozen=True, slots=True)
class RoutingSnapshot:
    pools: tuple[PoolSnapshot, ...]


def _account(row: PoolAccount) -> AccountSnapshot:
    default = settings.UPSTREAM_CHATGPT_URL if row.kind == CHATGPT else settings.UPSTREAM_OPENAI_URL
    return AccountSnapshot(
        account_id=row.pk,
        uuid=str(row.uuid),
        kind=row.kind,
        label=row.label,
        base_url=(row.base_url or default).rstrip("/"),
        weight=row.weight_thousandths,
        concurrency_cap=row.concurrency_cap,
        floor_percent=row.floor_percent,
        priority=row.priority,
        models=None if row.models_served is None else frozenset(row.models_served),
        status=row.status,
        chatgpt_account_id=row.chatgpt_account_id or None,
    )


def load(organization_id: int) -> RoutingSnapshot:
    """The organization's pools in the order they were made; three queries."""
    accounts = Prefetch("accounts", queryset=PoolAccount.objects.without_secrets().order_by("pk"))
    pools = Pool.objects.filter(organization_id=organization_id).order_by("pk").prefetch_related(accounts, "teams")
    return RoutingSnapshot(
        pools=tuple(
            PoolSnapshot(
                pool_id=pool.pk,
                uuid=str(pool.uuid),
                name=pool.name,
                organization_id=pool.organization_id,
                tenant_id=organization_id,
                strategy=pool.strategy,
                team_ids=frozenset(team.pk for team in pool.teams.all()),
                accounts=tuple(_account(row) for row in pool.accounts.all()),
            )
            for pool in pools
        )
    )
