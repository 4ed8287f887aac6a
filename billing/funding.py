"""Which period pays for an event, and from which funds where the engine could not say (its outcome LOGGED)."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.db.models import Q

from billing import lots, subscriptions
from billing.events import UsageEvent
from billing.models import Plan, Subscription, SubscriptionPeriod, UsageRecord

logger = logging.getLogger(__name__)

Source = tuple[str, int, int]
"""Who pays (`o`, `m<member id>`), the start of the period, and the second of the admission."""
Part = tuple[str, int, int]
"""Request, part, and the second of the admission."""


def source_of(event: UsageEvent) -> Source:
    return (event.source, event.period_start, event.admitted_at)


def part_of(event: UsageEvent) -> Part:
    return (event.request_id, event.part, event.admitted_at)


# --------------------------------------------------------------------------------------------- what the engine did not know


@dataclass(slots=True)
class _Funds:
    """What a period has left, while a batch is split."""

    quota: int
    overage: int
    is_purchased_allowed: bool


def split(organization_id: int, events: Mapping[Part, UsageEvent]) -> list[UsageEvent]:
    """The events with the split that the engine could not make, in its order: quota, purchased credits if the period's terms allow
    them, overage up to their cap; the rest is overdraft. What its own orphan drew is given back first.

    Reads a handful of times, however many events. The caller holds the ledger's lock. Events that the log has already come back
    as they were.
    """
    known = _parts_in_the_log(organization_id, events.values())
    paying = periods(organization_id, events.values())
    funds = {period.pk: _funds_of(period) for period in paying.values()}
    purchased = 0
    if any(fund.is_purchased_allowed for fund in funds.values()):
        purchased = max(0, lots.shelf(organization_id).left)
    done = []
    for (request_id, part, second), event in events.items():
        orphan = known.get((request_id, 0, second))
        is_known = (request_id, part, second) in known
        settles = event.part == 0 and event.state == "S" and orphan is not None and _is_orphan(orphan)
        if is_known and (not settles or (request_id, 1, second) in known):
            done.append(event)
            continue
        period = paying.get(source_of(event))
        if period is None or event.credits < 0:
            done.append(event)
            continue
        fund = funds[period.pk]
        drawn = (orphan.from_quota, orphan.from_purchased, orphan.from_overage) if settles and orphan is not None else (0, 0, 0)
        from_quota = min(event.credits, max(0, fund.quota + drawn[0]))
        rest = event.credits - from_quota
        from_purchased = min(rest, purchased + drawn[1]) if fund.is_purchased_allowed else 0
        rest -= from_purchased
        from_overage = min(rest, max(0, fund.overage + drawn[2]))
        fund.quota -= from_quota - drawn[0]
        purchased -= from_purchased - drawn[1]
        fund.overage -= from_overage - drawn[2]
        done.append(
            replace(
                event,
                from_quota=from_quota,
                from_purchased=from_purchased,
                from_overage=from_overage,
                overdraft=rest - from_overage,
            )
        )
    return done


def _parts_in_the_log(organization_id: int, events: Iterable[UsageEvent]) -> dict[Part, UsageRecord]:
    events = list(events)
    rows = UsageRecord.objects.filter(
        organization_id=organization_id,
        request_id__in={event.request_id for event in events},
        admitted_at__in={datetime.fromtimestamp(event.admitted_at, UTC) for event in events},
    ).only("request_id", "part", "admitted_at", "status", "from_quota", "from_purchased", "from_overage")
    return {(row.request_id, row.part, int(row.admitted_at.timestamp())): row for row in rows}


def _is_orphan(row: UsageRecord) -> bool:
    return row.status == UsageRecord.Status.ORPHANED.value


def _funds_of(period: SubscriptionPeriod) -> _Funds:
    plan = period.plan or period.subscription.plan
    cap = 0
    if plan.overage_policy == Plan.OveragePolicy.INVOICE:
        own = period.subscription.overage_cap
        cap = (plan.overage_cap if own is None else own) or 0
    return _Funds(
        quota=period.quota - period.used_from_quota,
        overage=cap - period.overage,
        is_purchased_allowed=plan.overage_policy == Plan.OveragePolicy.PURCHASED,
    )


# ------------------------------------------------------------------------------------------------------------- periods


def periods(organization_id: int, events: Iterable[UsageEvent]) -> dict[Source, SubscriptionPeriod]:
    """The period row, locked, that each event draws on; made where it is missing. Absent for a source without a subscription."""
    wanted = {source_of(event) for event in events}
    by_source = _subscriptions(organization_id, {source for source, _, _ in wanted})
    for source in {source for source, _, _ in wanted} - by_source.keys():
        logger.warning("usage without a subscription", extra={"organization_id": organization_id, "source": source})
    rows = _locked(
        {
            (subscription, datetime.fromtimestamp(start, UTC))
            for source, start, _ in wanted
            for subscription in by_source.get(source, ())
        }
    )
    chosen: dict[Source, tuple[Subscription, datetime]] = {}
    for source, start, admitted_at in wanted:
        if (candidates := by_source.get(source)) is None:
            continue
        start_at = datetime.fromtimestamp(start, UTC)
        # Of two subscriptions in one second, the one whose period it is.
        known = [one for one in candidates if (one.pk, start_at) in rows] or candidates
        begun = [one for one in known if int(one.started_at.timestamp()) <= admitted_at]
        chosen[(source, start, admitted_at)] = ((begun or known[:1])[-1], start_at)
    pairs = set(chosen.values())
    missing = [pair for pair in pairs if (pair[0].pk, pair[1]) not in rows]
    for subscription, start_at in sorted(missing, key=lambda pair: (pair[0].pk, pair[1])):
        subscriptions.open_period(subscription, start_at, starts_at=start_at)
    if missing:
        rows = _locked(pairs)
    return {key: rows[(subscription.pk, start_at)] for key, (subscription, start_at) in chosen.items()}


def _subscriptions(organization_id: int, sources: set[str]) -> dict[str, list[Subscription]]:
    """All subscriptions of the sources (`o`, `m<member id>`), the oldest first."""
    members = [int(source[1:]) for source in sources if source.startswith("m")]
    subjects = Q(member_id__in=members)
    if "o" in sources:
        subjects |= Q(member_id=None)
    found = Subscription.objects.filter(subjects, organization_id=organization_id).select_related("organization", "plan")
    by_source: dict[str, list[Subscription]] = {}
    for subscription in found.order_by("started_at", "pk"):
        by_source.setdefault("o" if subscription.member_id is None else f"m{subscription.member_id}", []).append(subscription)
    return by_source


def _locked(pairs: "set[tuple[Subscription, datetime]]") -> dict[tuple[int, datetime], SubscriptionPeriod]:
    found = (
        SubscriptionPeriod.objects.filter(
            subscription_id__in={subscription.pk for subscription, _ in pairs}, starts_at__in={start for _, start in pairs}
        )
        .select_related("plan", "subscription__plan")
        .select_for_update(of=("self",), no_key=True)
        # In the order of their ids, so that two writers cannot wait for each other.
        .order_by("pk")
    )
    return {(row.subscription_id, row.starts_at): row for row in found}
