"""The numbers of the admin's first page, by organization: a handful of queries and one round trip to Redis, however many there are.

Sums come from the hourly ones and the open periods; of the log itself only what a partial index holds is counted. It reads what the
scope shows: all organizations for an operator, one for who looks after one.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

from django.db.models import Case, Count, DateTimeField, Max, Q, QuerySet, Sum, Value, When

from accounts.models import Job, Organization
from billing.models import SubscriptionPeriod, UsageHour, UsageRecord
from config import redis as weir_redis
from config import scope
from config.redis import RedisUnavailable
from quotas import engine
from quotas.models import AlertDelivery, DeadLetter, Drift
from routing import live
from routing.models import PoolAccount

logger = logging.getLogger(__name__)

MOST = 500
"""So many organizations are counted; the page says so if there are more."""
RECENT = timedelta(days=7)
"""Of failed deliveries and jobs."""
IMPLAUSIBLE = timedelta(days=30)
DAYS = 7


@dataclass(slots=True)
class Accounts:
    serving: int = 0
    needs_sign_in: int = 0
    cooling: int = 0
    paused: int = 0


@dataclass(slots=True)
class Row:
    """One organization. Amounts in micro-credits; `waiting` entries of its usage stream, the oldest `behind` seconds old."""

    organization_id: int
    name: str
    is_active: bool
    today: int = 0
    week: int = 0
    quota: int = 0
    used: int = 0
    drift: int = 0
    accounts: Accounts = field(default_factory=Accounts)
    waiting: int = 0
    behind: int = 0
    deliveries: int = 0
    jobs: int = 0
    implausible: int = 0


@dataclass(frozen=True, slots=True)
class Numbers:
    """`rows`: the largest burn of seven days first. `is_live` False: Redis did not answer; what it knows is missing.

    `drift_since`: when the oldest round found what stands. `left_out`: organizations that are not counted.
    """

    rows: Sequence[Row]
    shared: Accounts
    dead_letters: int
    drift_found_at: datetime | None
    is_live: bool
    left_out: int

    def total(self, name: str) -> int:
        return sum(int(getattr(row, name)) for row in self.rows)

    def accounts(self, name: str) -> int:
        return sum(int(getattr(row.accounts, name)) for row in self.rows) + int(getattr(self.shared, name))

    @property
    def behind(self) -> int:
        return max((row.behind for row in self.rows), default=0)


def read(*, now: datetime) -> Numbers:
    found = list(Organization.objects.order_by("pk").values_list("pk", "name", "is_active", "timezone")[: MOST + 1])
    counted = found[:MOST]
    rows = {pk: Row(pk, name, is_active) for pk, name, is_active, _ in counted}
    ids = list(rows)
    _burn(rows, {zone for *_, zone in counted}, now)
    _periods(rows, now)
    drift_found_at = None
    for pk, count, at in Drift.objects.filter(repaired_at=None).values_list("organization").annotate(Count("pk"), Max("found_at")):
        if pk in rows:
            rows[pk].drift = count
        drift_found_at = max(at, drift_found_at or at)
    _count(rows, "deliveries", AlertDelivery.objects.filter(status="failed", created_at__gte=now - RECENT))
    _count(rows, "jobs", Job.objects.filter(state="failed", created_at__gte=now - RECENT))
    # The index of implausible rows holds no others.
    suspect = UsageRecord.objects.filter(is_implausible=True, organization_id__in=ids, admitted_at__gte=now - IMPLAUSIBLE)
    _count(rows, "implausible", suspect)
    shared, is_live = _live(rows, now)
    return Numbers(
        rows=sorted(rows.values(), key=lambda row: (-row.week, row.name)),
        shared=shared,
        dead_letters=DeadLetter.objects.count(),
        drift_found_at=drift_found_at,
        is_live=is_live,
        left_out=max(0, Organization.objects.count() - MOST) if len(found) > MOST else 0,
    )


def _burn(rows: Mapping[int, Row], zones: Iterable[str], now: datetime) -> None:
    """Today and seven days with today, by each organization's own clock."""
    starts = {zone: _midnight(now, ZoneInfo(zone)) for zone in zones}
    if not starts:
        return

    def since(days: int) -> Case:
        whens = [When(organization__timezone=zone, then=Value(at - timedelta(days=days))) for zone, at in starts.items()]
        return Case(*whens, default=Value(now), output_field=DateTimeField())

    first = min(starts.values()) - timedelta(days=DAYS)
    hours = UsageHour.objects.filter(organization_id__in=list(rows), hour__gte=first).order_by().values_list("organization")
    sums = hours.annotate(
        today=Sum("credits", filter=Q(hour__gte=since(0)), default=0),
        week=Sum("credits", filter=Q(hour__gte=since(DAYS - 1)), default=0),
    )
    for pk, today, week in sums:
        rows[pk].today, rows[pk].week = int(today), int(week)


def _midnight(now: datetime, zone: ZoneInfo) -> datetime:
    return datetime.combine(now.astimezone(zone).date(), time(), zone).astimezone(UTC)


def _periods(rows: Mapping[int, Row], now: datetime) -> None:
    """What the open periods of an organization and its seats grant, and what was drawn from that."""
    current = SubscriptionPeriod.objects.filter(organization_id__in=list(rows), ends_at__gt=now, starts_at__lte=now)
    for pk, quota, used in current.order_by().values_list("organization").annotate(Sum("quota"), Sum("used_from_quota")):
        rows[pk].quota, rows[pk].used = int(quota), int(used)


def _count(rows: Mapping[int, Row], name: str, found: QuerySet[Any]) -> None:
    for pk, count in found.order_by().values_list("organization").annotate(Count("pk")):
        if pk in rows:
            setattr(rows[pk], name, count)


def _live(rows: Mapping[int, Row], now: datetime) -> tuple[Accounts, bool]:
    """What the accounts are up to, and what waits in the usage streams. The shared pools' accounts come back by themselves,
    to operators alone."""
    found = PoolAccount.objects.exclude(status="withdrawn")
    if scope.current() != scope.EVERYTHING:
        found = found.filter(pool__organization_id__in=list(rows))
    accounts = list(found.values_list("pk", "pool_id", "pool__organization_id", "status"))
    pools = sorted({(pool, owner) for _, pool, owner, _ in accounts}, key=lambda pair: pair[0])
    states: dict[int, live.States] = {}
    is_live = True
    try:
        batch: Any = weir_redis.sync_client().pipeline(transaction=False)
        for pool, owner in pools:
            batch.hgetall(live.pool_live_key(pool, owner))
        for pk in rows:
            batch.xlen(engine.stream_key(pk))
            batch.xrange(engine.stream_key(pk), count=1)
        with weir_redis.translated():
            answers = cast("list[Any]", batch.execute())
    except RedisUnavailable:
        logger.warning("the dashboard goes without Redis")
        answers, is_live = [], False
    now_ms = int(now.timestamp() * 1000)
    if is_live:
        for (pool, _), fields in zip(pools, answers, strict=False):
            states[pool] = live.States([part for pair in fields.items() for part in pair])
        streams = answers[len(pools) :]
        for row, length, oldest in zip(rows.values(), streams[::2], streams[1::2], strict=True):
            row.waiting = int(length)
            if oldest:
                row.behind = max(0, now_ms - int(oldest[0][0].partition(b"-")[0])) // 1000
    shared = Accounts()
    for pk, pool, owner, status in accounts:
        of = rows[owner].accounts if owner in rows else shared
        state = states[pool].get(pk) if pool in states else live.UNKNOWN
        _add(of, status, is_cooling=state.blocked_until_ms(now_ms) > 0)
    return shared, is_live


def _add(to: Accounts, status: str, *, is_cooling: bool) -> None:
    if status == PoolAccount.Status.NEEDS_SIGN_IN:
        to.needs_sign_in += 1
    elif status == PoolAccount.Status.PAUSED:
        to.paused += 1
    elif is_cooling:
        to.cooling += 1
    else:
        to.serving += 1
