"""Which models an organization's people may use, and which stand in for which. The rules themselves are limits and fallbacks.

A model that nobody uses is a limit of the whole organization: no request a day of it. So it is enforced, told and counted as every
limit is, on every process, and for a name that is an alias too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.utils.translation import gettext as _

from accounts.models import Member, Organization, User
from billing.models import RateOverride, Subscription
from config.snapshot import Snapshot
from quotas import limits
from quotas.errors import LimitsError
from quotas.models import Limit

METRIC, WINDOW = Limit.Metric.REQUESTS.value, Limit.Window.DAY.value


@dataclass(frozen=True, slots=True)
class Plan:
    """What a plan says of models: None is all that have a price."""

    name: str
    models: Sequence[str] | None
    fast_allowed: bool
    is_seat: bool


def blocked(organization: Organization) -> list[Limit]:
    """The rules by which nobody uses some models. One query."""
    rows = Limit.objects.for_organization(organization).filter(
        scope=Limit.Scope.ORGANIZATION, amount=0, metric=METRIC, window=WINDOW
    )
    return list(rows.exclude(model_filter=None).select_related("model_filter").order_by("pk"))


def block(organization: Organization, models: Sequence[str], *, by: User | None) -> UUID | None:
    """Nobody uses these models, from when the limit is filled (a minute at most). Raises LimitsError."""
    names = sorted({name.strip() for name in models if name.strip()})
    if not names:
        raise LimitsError(_("Name a model."), field="models")
    return limits.set_limit(
        organization, scope="organization", of="", metric=METRIC, window=WINDOW, amount="0", models=names, by=by
    )


def unblock(rule: Limit, *, by: User | None) -> None:
    """They may be used again, on the next request."""
    limits.change(rule, "none", by=by)


def plans(organization: Organization) -> list[Plan]:
    """Of the organization and, once each, of its seats. One query."""
    rows = Subscription.objects.for_organization(organization).active().select_related("plan").order_by("member_id", "pk")
    found: dict[tuple[str, bool], Plan] = {}
    for row in rows:
        is_seat = row.member_id is not None
        found.setdefault((row.plan.slug, is_seat), Plan(row.plan.name, row.plan.models_allowed, row.plan.fast_allowed, is_seat))
    return sorted(found.values(), key=lambda plan: plan.is_seat)


def own_prices(organization: Organization, now: datetime) -> list[RateOverride]:
    """Those that hold now, by model. One query."""
    rows = RateOverride.objects.filter(organization=organization, valid_from__lte=now).exclude(valid_to__lte=now)
    return list(rows.order_by("model"))


def names(snapshot: Snapshot, now: datetime) -> tuple[str, ...]:
    """The models that have a price."""
    found: tuple[str, ...] = snapshot.billing.rates.models_at(now)
    return found


def without_fast_mode(organization: Organization) -> int:
    return Member.objects.for_organization(organization).current().filter(fast_allowed=False).count()
