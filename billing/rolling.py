"""Walks over what is due: periods are opened ahead and their allowances posted, next plans take over, periods that are over close.

Nobody waits for any of it: the path derives periods on read, and the drain opens what it finds missing. One process walks at a
time; the others leave at once. A second walk changes nothing, whoever makes it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef

from billing import changes, invoicing, ledger, subscriptions
from billing.models import Subscription, SubscriptionPeriod
from billing.periods import Period, among, period_at
from config import walks

LOCK = 0x77656976
"""First key of the advisory locks; the second is the walk."""
OPENING, CLOSING = 1, 2
PAGE = 500
NEAR = timedelta(days=40)
"""Longer than any period: rows that could overlap the one that is opened."""


def open_due_periods(now: datetime, *, ahead: timedelta = timedelta(0)) -> int:
    """Opens the current period of every active subscription that lacks it, and the next one of those that end within `ahead`.

    Before that, next plans take over and seats of removed members end; after it, allowances that are due are posted. How many rows
    were made; 0 while another process walks. Call it with everything in scope.
    """
    with _alone(OPENING) as is_ours:
        if not is_ours:
            return 0
        for subscription in Subscription.objects.active().filter(next_plan_at__lte=now).order_by("pk"):
            with walks.apart(subscription.organization_id):
                changes.take_over(subscription, now)
        for seat in Subscription.objects.active().exclude(member__removed_at=None).exclude(member=None).order_by("pk"):
            with walks.apart(seat.organization_id):
                subscriptions.end(seat, now=now)
        made = _open_missed(now)
        for at in dict.fromkeys((now, now + ahead)):
            begun = Subscription.objects.active().filter(started_at__lte=at)
            made += _open_lacking(begun.exclude(periods__starts_at__lte=at, periods__ends_at__gt=at), at, now)
        due = SubscriptionPeriod.objects.filter(closed_at=None, starts_at__lte=now).exclude(granted=F("quota"))
        for organization_id, ids in _by_organization(due):
            with walks.apart(organization_id):
                _grant(organization_id, ids)
    return made


def _open_missed(now: datetime) -> int:
    """Opens what nobody opened in its time, because no worker ran and nothing was used: it is billed like any other."""
    made, before = 0, -1
    following = SubscriptionPeriod.objects.filter(subscription=OuterRef("subscription"), ends_at__gt=OuterRef("ends_at"))
    current = Subscription.objects.active()
    while made > before:
        before = made
        gaps = SubscriptionPeriod.objects.filter(subscription__in=current, ends_at__lte=now).exclude(
            Exists(following.filter(starts_at__lte=OuterRef("ends_at")))
        )
        for at in list(gaps.order_by("ends_at").values_list("ends_at", flat=True).distinct()):
            made += _open_lacking(current.filter(periods__in=gaps.filter(ends_at=at)), at, now)
    return made


def _open_lacking(lacking: Any, at: datetime, now: datetime) -> int:
    made = 0
    for organization_id, ids in _by_organization(lacking):
        with walks.apart(organization_id):
            made += _open(organization_id, ids, at, now)
    return made


def close_due_periods(now: datetime, *, grace: timedelta = timedelta(0)) -> int:
    """Closes and invoices every period that has been over for `grace`, an organization at a time; how many.

    0 while another process walks. Call it with everything in scope.
    """
    with _alone(CLOSING) as is_ours:
        if not is_ours:
            return 0
        due = SubscriptionPeriod.objects.filter(closed_at=None, ends_at__lte=now - grace).order_by("organization_id")
        closed = 0
        for organization_id in list(due.values_list("organization_id", flat=True).distinct()):
            with walks.apart(organization_id):
                closed += invoicing.close_due(organization_id, now=now, grace=grace).periods
        return closed


@contextmanager
def _alone(walk: int) -> Iterator[bool]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [LOCK, walk])
        is_ours = bool(cast(Any, cursor.fetchone())[0])
    try:
        yield is_ours
    finally:
        if is_ours:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [LOCK, walk])


def _by_organization(rows: Any) -> Iterable[tuple[int, list[int]]]:
    """Ids of rows by organization, in pages."""
    found: dict[int, list[int]] = defaultdict(list)
    for organization_id, pk in rows.order_by("organization_id", "pk").values_list("organization_id", "pk").distinct():
        found[organization_id].append(pk)
    for organization_id, ids in found.items():
        for start in range(0, len(ids), PAGE):
            yield organization_id, ids[start : start + PAGE]


def _open(organization_id: int, ids: Sequence[int], at: datetime, now: datetime) -> int:
    """The rows of one page, those that still lack theirs: whoever opens one holds the ledger's lock."""
    with transaction.atomic():
        ledger.lock(organization_id)
        own = Subscription.objects.active().filter(pk__in=ids).select_related("organization", "plan", "next_plan").order_by("pk")
        near: dict[int, list[Period]] = defaultdict(list)
        rows = SubscriptionPeriod.objects.filter(subscription_id__in=ids, ends_at__gt=at - NEAR).order_by("starts_at")
        for subscription_id, start, end in rows.values_list("subscription_id", "starts_at", "ends_at"):
            near[subscription_id].append(Period(start, end))
        fresh = []
        for subscription in own:
            plan, anchor = subscriptions.plan_at(subscription, at)
            zone = ZoneInfo(subscription.organization.timezone)
            period = among(near[subscription.pk], period_at(anchor, plan.reset_period, zone, at), at)
            if period not in near[subscription.pk]:
                columns = subscriptions.new_row(subscription, plan, period)
                fresh.append(SubscriptionPeriod(subscription=subscription, starts_at=period.start, **columns))
        SubscriptionPeriod.objects.bulk_create(fresh)
        # What was opened ahead is granted when it has begun: until then a change of plan may undo it.
        subscriptions.grant(organization_id, [row for row in fresh if row.starts_at <= now])
    return len(fresh)


def _grant(organization_id: int, ids: Sequence[int]) -> None:
    with transaction.atomic():
        ledger.lock(organization_id)
        rows = SubscriptionPeriod.objects.filter(pk__in=ids).select_related("subscription")
        subscriptions.grant(
            organization_id, list(rows.select_for_update(of=("self",), no_key=True, skip_locked=True).order_by("pk"))
        )
