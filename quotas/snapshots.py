"""QuotasSnapshot: the limits of an organization as the request path knows them."""

from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Prefetch

from config.clock import utc_now
from quotas.models import Limit, LimitBoost, ModelFilter

PAST = timedelta(hours=1)
"""So long after their end boosts are still told, for a clock of the engine that is behind ours."""


@dataclass(frozen=True, slots=True)
class BoostSnapshot:
    """`extra` on top of a limit in the unix seconds [starts, ends)."""

    extra: int
    starts: int
    ends: int


@dataclass(frozen=True, slots=True)
class FilterSnapshot:
    """Requests that are counted apart: of some models, or (`source` and the `window` of its plan) those that draw on a source.

    Until `is_filled` its records lack what was used before it existed, and nothing is refused by them.
    """

    filter_id: int
    name: str
    models: frozenset[str]
    source: str
    window: str
    is_filled: bool


@dataclass(frozen=True, slots=True)
class LimitSnapshot:
    """`target_id`: the team, member or key; None for the organization. `amount`: micro-credits for credits, else a count; without
    boosts. `is_exact`: its window is counted by the second."""

    limit_id: int
    uuid: str
    scope: str
    target_id: int | None
    target_name: str
    metric: str
    window: str
    amount: int
    is_exact: bool = False
    filter_id: int | None = None
    models: str = ""
    """The filter's name."""
    boosts: tuple[BoostSnapshot, ...] = ()

    def amount_at(self, second: int) -> int:
        """What it gives at a unix second, boosts included."""
        return self.amount + sum(boost.extra for boost in self.boosts if boost.starts <= second < boost.ends)

    def edges(self) -> tuple[int, ...]:
        """The seconds at which that changes."""
        return tuple(edge for boost in self.boosts for edge in (boost.starts, boost.ends))


@dataclass(frozen=True, slots=True)
class QuotasSnapshot:
    """In the order they were made."""

    limits: tuple[LimitSnapshot, ...]
    filters: tuple[FilterSnapshot, ...] = ()


def _snapshot(row: Limit) -> LimitSnapshot:
    target_id, name = None, ""
    if row.team is not None:
        target_id, name = row.team.pk, row.team.name
    elif row.member is not None:
        target_id, name = row.member.pk, str(row.member)
    elif row.key is not None:
        target_id, name = row.key.pk, row.key.name
    return LimitSnapshot(
        limit_id=row.pk,
        uuid=str(row.uuid),
        scope=row.scope,
        target_id=target_id,
        target_name=name,
        metric=row.metric,
        window=row.window,
        amount=row.amount,
        is_exact=row.strategy == Limit.Strategy.SLIDING_LOG,
        filter_id=row.model_filter_id,
        models="" if row.model_filter is None else row.model_filter.name,
        boosts=tuple(_boost(boost) for boost in row.boosts.all()),
    )


def _boost(row: LimitBoost) -> BoostSnapshot:
    # A boost begins with the second in which it was given: it holds on the very next request.
    return BoostSnapshot(row.extra, int(row.starts_at.timestamp()), int(row.ends_at.timestamp()))


def _filter(row: ModelFilter) -> FilterSnapshot:
    return FilterSnapshot(
        filter_id=row.pk,
        name=row.name,
        models=frozenset(row.model_names),
        source=row.source,
        window=row.window,
        is_filled=row.filled_at is not None,
    )


def load(organization_id: int) -> QuotasSnapshot:
    """Three queries. Boosts that ended over an hour ago or were revoked are left out."""
    current = LimitBoost.objects.filter(revoked_at=None, ends_at__gt=utc_now() - PAST).order_by("id")
    rows = (
        Limit.objects.filter(organization_id=organization_id)
        .select_related("team", "member__user", "key", "model_filter")
        .prefetch_related(Prefetch("boosts", queryset=current))
        .order_by("id")
    )
    filters = ModelFilter.objects.filter(organization_id=organization_id).order_by("id")
    return QuotasSnapshot(limits=tuple(_snapshot(row) for row in rows), filters=tuple(_filter(row) for row in filters))
