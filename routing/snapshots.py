"""PoolSnapshot: what the request path knows of pools and accounts. No secret is in it (`routing.credentials` has those)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from django.conf import settings
from django.db.models import F, Prefetch, Q

from config.clock import utc_now
from routing import capacity, fallbacks, pace
from routing.models import Pool, PoolAccount

CHATGPT = PoolAccount.Kind.CHATGPT.value
OPENAI = PoolAccount.Kind.OPENAI.value
COMPATIBLE = PoolAccount.Kind.COMPATIBLE.value
ANTHROPIC = PoolAccount.Kind.ANTHROPIC.value
ALL_KINDS = frozenset(PoolAccount.Kind.values)
ANTHROPIC_VERSION = "2023-06-01"
"""Of Anthropic's API, demanded with every request; there is no later one."""
ACTIVE = PoolAccount.Status.ACTIVE.value
NEEDS_SIGN_IN = PoolAccount.Status.NEEDS_SIGN_IN.value


@dataclass(frozen=True, slots=True)
class AccountSnapshot:
    """One account. `weight` in thousandths of Plus; `base_url` is always set: the account's own or the install's.

    `models`, `efforts`, `tiers` None means every one; `priority` lower is used first. `later_weights`: what the plan's dated list
    says from a given unix millisecond on.
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
    efforts: frozenset[str] | None = None
    tiers: frozenset[str] | None = None
    later_weights: tuple[tuple[int, int], ...] = ()

    def weight_at(self, now_ms: int) -> int:
        weight = self.weight
        for from_ms, later in self.later_weights:
            if now_ms >= from_ms:
                weight = later
        return weight


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool as one organization sees it.

    `organization_id` is the owner (None: the operator's shared pool), `tenant_id` the organization that this was loaded for;
    `team_ids` empty means every team. `plans`: slugs of the plans that offer a shared pool. `base_short`, `base_weekly`: credits
    that one Plus carries; `safety`, `loyalty`: Z and STAY of `routing.pace`.
    """

    pool_id: int
    uuid: str
    name: str
    organization_id: int | None
    tenant_id: int
    strategy: str
    team_ids: frozenset[int]
    accounts: tuple[AccountSnapshot, ...]
    plans: frozenset[str] = frozenset()
    base_short: int = capacity.BASE_SHORT_CREDITS
    base_weekly: int = capacity.BASE_WEEKLY_CREDITS
    safety: float = pace.SAFETY
    loyalty: float = pace.LOYALTY


@dataclass(frozen=True, slots=True)
class RoutingSnapshot:
    """`fallbacks`: models that may serve in place of the one asked for, in order."""

    pools: tuple[PoolSnapshot, ...]
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def default_url(kind: str) -> str:
    """Where accounts of a kind are that have no address of their own; "" for a kind whose accounts all have one."""
    urls = {
        CHATGPT: settings.UPSTREAM_CHATGPT_URL,
        OPENAI: settings.UPSTREAM_OPENAI_URL,
        ANTHROPIC: settings.UPSTREAM_ANTHROPIC_URL,
    }
    return urls.get(kind, "")


def _account(row: PoolAccount, today: date) -> AccountSnapshot:
    return AccountSnapshot(
        account_id=row.pk,
        uuid=str(row.uuid),
        kind=row.kind,
        label=row.label,
        base_url=(row.base_url or default_url(row.kind)).rstrip("/"),
        weight=row.weight_on(today),
        concurrency_cap=row.concurrency_cap,
        floor_percent=row.floor_percent,
        priority=row.priority,
        models=_only(row.models_served),
        status=row.status,
        chatgpt_account_id=row.chatgpt_account_id or None,
        efforts=_only(row.efforts_served),
        tiers=_only(row.tiers_served),
        later_weights=() if row.weight_thousandths is not None else capacity.changes(row.plan_type, today),
    )


def _only(names: list[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def load(organization_id: int) -> RoutingSnapshot:
    """The organization's pools, then the shared ones that plans offer, each in the order they were made, and its fallbacks; four
    queries."""
    today = utc_now().date()
    accounts = Prefetch("accounts", queryset=PoolAccount.objects.without_secrets().order_by("pk"))
    rows = (
        Pool.objects.filter(Q(organization_id=organization_id) | Q(organization=None) & ~Q(plans=[]))
        .order_by(F("organization").asc(nulls_last=True), "pk")
        .prefetch_related(accounts)
    )
    # Not by way of the teams' own rows: another tenant's are not seen here, and a pool without teams is everybody's.
    teams: dict[int, set[int]] = {}
    for link in Pool.teams.through.objects.filter(pool__in=rows):
        teams.setdefault(link.pool_id, set()).add(link.team_id)
    return RoutingSnapshot(
        pools=tuple(
            PoolSnapshot(
                pool_id=pool.pk,
                uuid=str(pool.uuid),
                name=pool.name,
                organization_id=pool.organization_id,
                tenant_id=organization_id,
                strategy=pool.strategy,
                team_ids=frozenset(teams.get(pool.pk, ())),
                accounts=tuple(_account(row, today) for row in pool.accounts.all()),
                plans=frozenset(pool.plans),
                base_short=pool.base_short_credits,
                base_weekly=pool.base_weekly_credits,
                safety=pool.safety_percent / 100,
                loyalty=pool.loyalty_percent / 100,
            )
            for pool in rows
        ),
        fallbacks=fallbacks.load(organization_id),
    )
