"""A change of an organization's zone: what is counted by its calendar is counted anew, and nothing that was used is lost or given.

* Rolling windows, rates and concurrency know no calendar: nothing happens to them.
* Days, ISO weeks and months are those of the new zone from the next request on, the running ones too: counters are built anew from
  the log, each request in the day that it now falls on. They are there before any process hears of the change.
* The plan's running period keeps its start, so what was used of it stays used. It ends with the same local day as before, as the
  new zone has it: some hours earlier or later. Only where that end is past already it ends when it would have.
* What runs meanwhile was counted in its old day, and ends in it; the hourly reconciler puts it where it belongs.
* Hourly sums stay, but where the zones' hours begin at another minute: then a job makes them anew from the log.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast
from zoneinfo import ZoneInfo

from django.db import connection, transaction

from accounts import jobs, organizations
from accounts.jobs import Kind, Work
from accounts.models import Organization, User
from accounts.permissions import Action
from billing import changes, ledger, rollups, subscriptions
from billing.models import Subscription, SubscriptionPeriod
from billing.periods import day_start
from config.redis import sync_client, translated
from quotas import engine, rebuild, records

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 20.0
"""How long a change waits for somebody else who builds the counters."""
HOURS = "zone_hours"
"""The kind of job that makes hourly sums anew."""
STEP = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Moved:
    """A plan period that runs, and when it now ends. `member`: whose seat, "" for the organization's."""

    member: str
    ended_at: datetime
    ends_at: datetime


def preview(organization: Organization, timezone: str, *, now: datetime) -> list[Moved]:
    """How the ends of the running periods would move; nothing is changed. Raises ZoneUnknown."""
    zone = ZoneInfo(organizations.checked_zone(timezone))
    rows = SubscriptionPeriod.objects.filter(organization=organization, subscription__ended_at=None)
    running = rows.filter(starts_at__lte=now, ends_at__gt=now).select_related("subscription__member__user").order_by("pk")
    old = ZoneInfo(organization.timezone)
    return [_moved(row, _end(row, old, zone, now)) for row in running]


def change(organization: Organization, timezone: str, *, by: User | None, now: datetime) -> Organization:
    """Holds on the next request. Locks the organization and its ledger; with the commit the counters are built anew, which takes
    as long as a cold start. Raises ZoneUnknown."""
    name = organizations.checked_zone(timezone)
    with transaction.atomic():
        row = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        if row.timezone == name:
            return row
        old, new = ZoneInfo(row.timezone), ZoneInfo(name)
        # Before the version is published: whoever loads the new calendar finds counters that follow it.
        transaction.on_commit(partial(_build, row.pk), robust=True)
        ledger.lock(row.pk)
        for subscription in (
            Subscription.objects.active().filter(organization=row).select_related("organization", "plan", "next_plan")
        ):
            _keep_period(subscription, old, new, now)
        row = organizations.set_zone(row, name, by=by)
        if _other_hours(row.pk, old, new):
            jobs.start_for(row, kind=HOURS, title=f"Hourly sums by the clock of {name}", asked={"before": old.key}, now=now)
    return row


def register() -> None:
    """Called when the apps are ready."""
    jobs.register(Kind(HOURS, _make_hours, lambda member, asked: False, shared_by=Action.MANAGE_ORGANIZATION))


def _make_hours(work: Work) -> Mapping[str, Any]:
    """Hourly sums from the log, a week at a time; those whose log retention has taken stay as they are."""
    organization_id = work.job.organization_id
    first, last = _log_span(organization_id)
    made = 0
    if first is not None and last is not None:
        start, end = first - rollups.HOUR, last + rollups.HOUR
        total = (end - start) // STEP + 1
        for done in range(total):
            work.report(done, total)
            made += rollups.rebuild(organization_id, start + done * STEP, min(end, start + (done + 1) * STEP))
    return {"hours": made}


def _keep_period(subscription: Subscription, old: ZoneInfo, new: ZoneInfo, now: datetime) -> None:
    """The running period gets its row, by the old calendar, before that is forgotten, and its end by the new one."""
    if subscription.next_plan_at is not None and subscription.next_plan_at <= now:
        changes.take_over(subscription, now)
    own = Subscription.objects.select_related("organization", "plan", "next_plan").get(pk=subscription.pk)
    row = subscriptions.open_period(own, now)
    subscriptions.forget_ahead(own, now)
    ends_at = _end(row, old, new, now)
    if ends_at == row.ends_at or own.periods.filter(starts_at__gte=row.ends_at).exists():
        # One that a change of plan has begun for the next second follows at once; its end is its own.
        return
    if own.next_plan_at == row.ends_at:
        own.next_plan_at = ends_at
        own.save(update_fields=["next_plan_at"])
    row.ends_at = ends_at
    row.save(update_fields=["ends_at"])


def _end(row: SubscriptionPeriod, old: ZoneInfo, new: ZoneInfo, now: datetime) -> datetime:
    terms = subscriptions.terms_of(row)
    # The day that it was opened for: an end that was kept lies in the next day already where clocks are a day apart, and would
    # be moved on from there with every change.
    day = min(row.ends_at.astimezone(old).date(), terms.first_day + timedelta(days=terms.days))
    moved = day_start(day, new)
    return moved if moved > max(now, row.starts_at) else row.ends_at


def _moved(row: SubscriptionPeriod, ends_at: datetime) -> Moved:
    member = row.subscription.member
    return Moved(str(member) if member is not None else "", row.ends_at, ends_at)


# ------------------------------------------------------------------------------------------------------ after the commit


def _build(organization_id: int) -> None:
    """Counters by the new calendar. What fails here, the reconciler puts right within the hour."""
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while (epoch := _epoch(organization_id)) and not rebuild.rebuild(organization_id, expected_epoch=epoch, keep_holds=True):
            # Somebody else builds, who may have read the old calendar: once they are done, anew.
            if time.monotonic() > until:
                raise rebuild.RebuildFailed(f"the counters of organization {organization_id} are built by somebody else")
            time.sleep(0.05)
    except Exception:
        logger.exception("counters were not built anew after a change of zone", extra={"organization_id": organization_id})


def _epoch(organization_id: int) -> str:
    with translated():
        meta = cast(Any, sync_client().hget(engine.counters_key(organization_id), "$"))
    return str(records.unpack(meta)[0]) if meta else ""


def _log_span(organization_id: int) -> tuple[datetime | None, datetime | None]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT min(admitted_at), max(admitted_at) FROM billing_usagerecord WHERE organization_id = %s", [organization_id]
        )
        first, last = cast(Any, cursor.fetchone())
    return first, last


def _other_hours(organization_id: int, old: ZoneInfo, new: ZoneInfo) -> bool:
    """Did the hours of the two zones begin at different minutes while something was used?"""
    first, last = _log_span(organization_id)
    return first is not None and last is not None and _minutes(old, first, last) != _minutes(new, first, last)


def _minutes(zone: ZoneInfo, first: datetime, last: datetime) -> set[timedelta]:
    """At which minutes past UTC's hours the zone's hours began in that time."""
    return {(origin - rollups.EPOCH) % rollups.HOUR for _, _, origin in rollups.clock(zone, first, last + timedelta(seconds=1))}
