"""What the request path knows of billing: rates and subscriptions, frozen, and their loader."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import TypeVar
from zoneinfo import ZoneInfo

from django.db.models import Q
from django.db.models.functions import Now

from accounts.models import Organization
from billing.errors import BillingError, ModelUnknown, ModelUnpriced
from billing.models import Plan, Rate, RateAlias, RateOverride, Subscription, SubscriptionPeriod
from billing.periods import Period, among, period_at

logger = logging.getLogger(__name__)

FALLBACK_MODEL = "fallback"
"""The name of the row that prices models without a rate, for organizations that chose that; without such a row they are refused."""

RECENT = timedelta(days=2)
"""How long after its end a period stays known, closed or not."""
_DATED = re.compile(r"(.+)-(\d{4}-\d{2}-\d{2})", re.ASCII | re.DOTALL)
_MOST_TOLD = 1000
_told: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class RateSnapshot:
    """One priced row, valid in [valid_from, valid_to): micro-credits per million tokens, multipliers in thousandths.

    `rate_id` names the row in usage records: a `Rate`'s id, or minus a `RateOverride`'s (`billing.overrides`).
    """

    rate_id: int
    model: str
    valid_from: datetime
    valid_to: datetime | None
    input: int
    cached_input: int
    cache_write: int | None
    output: int
    fast_thousandths: int = 1000
    long_context_threshold: int | None = None
    long_context_input_thousandths: int = 1000
    long_context_output_thousandths: int = 1000


@dataclass(frozen=True, slots=True)
class UnpricedSnapshot:
    """A row without rates: the model is known and refused."""

    rate_id: int
    model: str
    valid_from: datetime
    valid_to: datetime | None


RateRow = RateSnapshot | UnpricedSnapshot


@dataclass(frozen=True, slots=True)
class AliasSnapshot:
    """What a name stands for in [valid_from, valid_to)."""

    model: str
    valid_from: datetime
    valid_to: datetime | None


T = TypeVar("T")
D = TypeVar("D", RateRow, AliasSnapshot)


@dataclass(frozen=True, slots=True)
class RateCardSnapshot:
    """What prices an organization's requests; all by name, the newest first.

    `rows`: the card's. `overrides`: the organization's own, each of which goes before the card's while it holds. `aliases`: other
    names. `uses_fallback`: models without a rate are priced by the row named FALLBACK_MODEL, which is nobody's name.
    """

    rows: Mapping[str, tuple[RateRow, ...]] = field(repr=False)
    uses_fallback: bool = False
    overrides: Mapping[str, tuple[RateRow, ...]] = field(default_factory=dict, repr=False)
    aliases: Mapping[str, tuple[AliasSnapshot, ...]] = field(default_factory=dict, repr=False)

    def rate_for(self, model: str, at: datetime) -> RateSnapshot:
        """The row that prices a request for `model` that was admitted at `at`; `rate.model` is the name it was found under.

        A name matches exactly, by an alias that holds at `at`, or with a date suffix `-YYYY-MM-DD` after a name that does; never by
        likeness. Raises ModelUnknown or ModelUnpriced, of which the operator is told by one log line per model and process.
        """
        name = self.base_name(model, at)
        row = None if name is None else self._row_at(name, at)
        if isinstance(row, RateSnapshot):
            return row
        fallback = self._row_at(FALLBACK_MODEL, at) if self.uses_fallback else None
        error: BillingError
        if row is None:
            error = ModelUnknown(f"The model {model[:120]!r} does not exist or has no rate.", model=model[:120], param="model")
        else:
            error = ModelUnpriced(f"The model {model[:120]!r} has no rate yet.", model=model[:120], param="model")
        _tell_operator(error, is_refused=not isinstance(fallback, RateSnapshot))
        if isinstance(fallback, RateSnapshot):
            # The price is the fallback's, the name stays the model's: limits, estimates and reports are by model.
            return replace(fallback, model=(name or model)[:120])
        raise error

    def base_name(self, model: str, at: datetime) -> str | None:
        """The name that `model` is priced under at `at`: its own; else that of the model its alias stands for; else the one before
        a date suffix; None if there is none of these."""
        if self._row_at(model, at) is None and (alias := self._alias_at(model, at)) is not None:
            return self._known(alias.model)
        return self._known(model)

    def upstream_name(self, model: str, at: datetime) -> str:
        """What the upstream is to be asked for: the model that an alias stands for at `at`, any other name as it is."""
        if self._row_at(model, at) is None and (alias := self._alias_at(model, at)) is not None:
            return alias.model
        return model

    def _known(self, model: str) -> str | None:
        if model == FALLBACK_MODEL:
            return None
        if model in self.rows or model in self.overrides:
            return model
        dated = _DATED.fullmatch(model)
        if dated is None or dated[1] == FALLBACK_MODEL or not _is_date(dated[2]):
            return None
        return dated[1] if dated[1] in self.rows or dated[1] in self.overrides else None

    def models_at(self, at: datetime) -> tuple[str, ...]:
        """The names that have a price at `at`, aliases among them, sorted; what a model list may offer."""
        return tuple(name for name in sorted({*self.rows, *self.overrides, *self.aliases}) if self._is_offered(name, at))

    def _is_offered(self, name: str, at: datetime) -> bool:
        base = self.base_name(name, at)
        return base is not None and isinstance(self._row_at(base, at), RateSnapshot)

    def _row_at(self, name: str, at: datetime) -> RateRow | None:
        return _at(self.overrides.get(name, ()), at) or _at(self.rows.get(name, ()), at)

    def _alias_at(self, name: str, at: datetime) -> AliasSnapshot | None:
        return _at(self.aliases.get(name, ()), at)


@dataclass(frozen=True, slots=True)
class PeriodSnapshot:
    """A period that has a row, and was not closed long ago: [start, end) and what it grants, in micro-credits."""

    start: datetime
    end: datetime
    quota: int


@dataclass(frozen=True, slots=True)
class SubscriptionSnapshot:
    """An active subscription: of the organization, or (member_id) a seat. `quota` in micro-credits of one whole period.

    `overage_cap`: most micro-credits of a period on invoice; 0 unless the policy is invoice. `following`: the terms that take over
    at `follows_at` by themselves; who asks at a given time asks `at(now)` first.
    """

    subscription_id: int
    member_id: int | None
    plan_slug: str
    timezone: str
    reset_period: str
    anchor: date
    quota: int
    fast_allowed: bool
    models: frozenset[str] | None
    charging_mode: str
    overage_policy: str
    quota_strategy: str
    overage_cap: int = 0
    is_suspended: bool = False
    periods: tuple[PeriodSnapshot, ...] = ()
    follows_at: datetime | None = None
    following: "SubscriptionSnapshot | None" = None

    def at(self, now: datetime) -> "SubscriptionSnapshot":
        """The terms in force at `now`: these, or those of the next plan once its period has begun."""
        if self.following is not None and self.follows_at is not None and now >= self.follows_at:
            return self.following
        return self

    def period_at(self, now: datetime) -> Period:
        """The period that `now` lies in: its row's, else by the calendar of the organization's zone. Periods never overlap."""
        return among(
            [Period(one.start, one.end) for one in self.periods],
            period_at(self.anchor, self.reset_period, ZoneInfo(self.timezone), now),
            now,
        )

    def quota_at(self, start: datetime) -> int:
        """What the period that begins at `start` grants: its row's quota if it has one, else the plan's."""
        for period in self.periods:
            if period.start == start:
                return period.quota
        return self.quota


@dataclass(frozen=True, slots=True)
class BillingSnapshot:
    """Billing's part of an organization's snapshot."""

    rates: RateCardSnapshot
    subscriptions: tuple[SubscriptionSnapshot, ...]


def load(organization_id: int) -> BillingSnapshot:
    """Reads rates, aliases, overrides, the active subscriptions and their open periods; six queries.

    Raises Organization.DoesNotExist.
    """
    organization = Organization.objects.only("timezone", "unpriced_models").get(pk=organization_id)
    return BillingSnapshot(
        rates=load_rates(organization),
        subscriptions=_load_subscriptions(organization),
    )


def load_rates(organization: Organization | None = None) -> RateCardSnapshot:
    """The whole rate card, with what is the organization's own; two queries and one more for an organization."""
    rows: dict[str, list[RateRow]] = {}
    for rate in Rate.objects.order_by("model", "-valid_from"):
        rows.setdefault(rate.model, []).append(_row_of(rate, rate.pk))
    overrides: dict[str, list[RateRow]] = {}
    if organization is not None:
        for own in RateOverride.objects.filter(organization=organization).order_by("model", "-valid_from"):
            overrides.setdefault(own.model, []).append(_row_of(own, -own.pk))
    aliases: dict[str, list[AliasSnapshot]] = {}
    for alias in RateAlias.objects.order_by("alias", "-valid_from"):
        aliases.setdefault(alias.alias, []).append(AliasSnapshot(alias.model, alias.valid_from, alias.valid_to))
    return RateCardSnapshot(
        rows=_frozen(rows),
        uses_fallback=organization is not None and organization.unpriced_models == Organization.UnpricedModels.FALLBACK,
        overrides=_frozen(overrides),
        aliases=_frozen(aliases),
    )


def _frozen(rows: Mapping[str, list[T]]) -> Mapping[str, tuple[T, ...]]:
    return MappingProxyType({name: tuple(found) for name, found in rows.items()})


def _at(rows: tuple[D, ...], at: datetime) -> D | None:
    """The row of one name, the newest first, that holds at `at`."""
    for row in rows:
        if row.valid_from <= at:
            return row if row.valid_to is None or at < row.valid_to else None
    return None


def _row_of(rate: Rate | RateOverride, rate_id: int) -> RateRow:
    if rate.input is None or rate.cached_input is None or rate.output is None:
        return UnpricedSnapshot(rate_id=rate_id, model=rate.model, valid_from=rate.valid_from, valid_to=rate.valid_to)
    return RateSnapshot(
        rate_id=rate_id,
        model=rate.model,
        valid_from=rate.valid_from,
        valid_to=rate.valid_to,
        input=rate.input,
        cached_input=rate.cached_input,
        cache_write=rate.cache_write,
        output=rate.output,
        fast_thousandths=rate.fast_thousandths,
        long_context_threshold=rate.long_context_threshold,
        long_context_input_thousandths=rate.long_context_input_thousandths,
        long_context_output_thousandths=rate.long_context_output_thousandths,
    )


def _load_subscriptions(organization: Organization) -> tuple[SubscriptionSnapshot, ...]:
    """Two queries: the active subscriptions with their plans, and their periods that are not closed, or ended lately."""
    rows: dict[int, list[PeriodSnapshot]] = {}
    # Also those that were closed lately: what is still running of them settles by their terms.
    known = Q(closed_at=None) | Q(ends_at__gt=Now() - RECENT)
    open_rows = SubscriptionPeriod.objects.filter(known, organization=organization, subscription__ended_at=None).order_by(
        "starts_at"
    )
    for subscription_id, start, end, quota in open_rows.values_list("subscription_id", "starts_at", "ends_at", "quota"):
        rows.setdefault(subscription_id, []).append(PeriodSnapshot(start, end, quota))
    snapshots = []
    for subscription in Subscription.objects.for_organization(organization).active().select_related("plan", "next_plan"):
        own = _of_plan(organization, subscription, subscription.plan, tuple(rows.get(subscription.pk, ())))
        if subscription.next_plan is not None and subscription.next_plan_at is not None:
            following = _of_plan(organization, subscription, subscription.next_plan, own.periods)
            if following.reset_period != own.reset_period:
                # Another rhythm begins where the old one ends.
                following = replace(following, anchor=subscription.next_plan_at.astimezone(ZoneInfo(organization.timezone)).date())
            own = replace(own, follows_at=subscription.next_plan_at, following=following)
        snapshots.append(own)
    return tuple(snapshots)


def _of_plan(
    organization: Organization, subscription: Subscription, plan: Plan, rows: tuple[PeriodSnapshot, ...]
) -> SubscriptionSnapshot:
    cap = subscription.overage_cap if subscription.overage_cap is not None else plan.overage_cap
    return SubscriptionSnapshot(
        subscription_id=subscription.pk,
        member_id=subscription.member_id,
        plan_slug=plan.slug,
        timezone=organization.timezone,
        reset_period=plan.reset_period,
        anchor=subscription.anchor,
        # A plan whose quota was unset after the start grants nothing: unset is never unlimited.
        quota=plan.quota or 0,
        fast_allowed=plan.fast_allowed,
        models=None if plan.models_allowed is None else frozenset(plan.models_allowed),
        charging_mode=plan.charging_mode,
        overage_policy=plan.overage_policy,
        quota_strategy=plan.quota_strategy,
        overage_cap=(cap or 0) if plan.overage_policy == Plan.OveragePolicy.INVOICE else 0,
        is_suspended=subscription.suspended_at is not None,
        periods=rows,
    )


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _tell_operator(error: BillingError, *, is_refused: bool) -> None:
    model = str(error.facts["model"])
    if (error.code, model) in _told:
        return
    # Clients choose unknown names, so what is told of them is bounded; a name on the card is always told.
    if isinstance(error, ModelUnknown) and len(_told) >= _MOST_TOLD:
        return
    _told.add((error.code, model))
    logger.warning("model without a rate", extra={"model": model, "code": error.code, "is_refused": is_refused})
