"""How long the usage log is kept: whole months are dropped, once nothing needs them any more. Ledger and hourly sums stay.

A month is needed while a period that is not closed, or the one before it, reaches into it (counters are rebuilt from the log), for
41 days in any case, and until its hourly sums say what it says.
"""

import logging
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db import connection, transaction
from django.db.models import Min

from accounts.models import Organization
from billing import partitions, rollups
from billing.models import SubscriptionPeriod
from config import scope

logger = logging.getLogger(__name__)

COUNTERS_NEED = timedelta(days=41)
LONGEST_PERIOD = timedelta(days=31)
LOCK_TIMEOUT = "5s"
"""Dropping waits for running statements and makes new ones wait for it: rather not today than for long."""

COMPARE = """
    WITH logged AS (
        SELECT COALESCE(SUM(counted_requests), 0) AS requests, COALESCE(SUM(credits), 0) AS credits,
            COALESCE(SUM(counted_tokens), 0) AS tokens
        FROM billing_usagerecord WHERE organization_id = %s AND admitted_at >= %s AND admitted_at < %s
    ), summed AS (
        SELECT COALESCE(SUM(requests), 0) AS requests, COALESCE(SUM(credits), 0) AS credits,
            COALESCE(SUM(counted_tokens), 0) AS tokens
        FROM billing_usagehour WHERE organization_id = %s AND hour >= %s AND hour < %s
    )
    SELECT logged.requests = summed.requests AND logged.credits = summed.credits AND logged.tokens = summed.tokens
    FROM logged, summed
"""


def needed_since(now: datetime) -> datetime:
    """From when on the log is needed, whatever the setting says."""
    with scope.everything():
        first = SubscriptionPeriod.objects.filter(closed_at=None).aggregate(Min("starts_at"))["starts_at__min"]
    needed = now - COUNTERS_NEED
    return min(needed, first - LONGEST_PERIOD) if first is not None else needed


def due(now: datetime, keep_months: int) -> list[partitions.Month]:
    """The months that go: older than `keep_months` whole months before the current one, and not needed."""
    if keep_months < 1:
        raise ValueError("at least one month is kept")
    until = min(partitions.month(now, -keep_months), needed_since(now))
    return [one for one in partitions.months() if one.end <= until]


def drop_old(now: datetime, keep_months: int) -> list[str]:
    """Drops what is due, the oldest month first; the names of the tables. Stops at a month whose hourly sums differ from it.

    Safe to repeat. Raises OperationalError where the log was too busy.
    """
    until = min(partitions.month(now, -keep_months), needed_since(now))
    with scope.everything():
        partitions.sort_out_default(until)
        dropped = []
        for month in due(now, keep_months):
            if differing := _differing(month):
                logger.error(
                    "usage is kept: its hourly sums differ from it", extra={"table": month.table, "organizations": differing[:20]}
                )
                break
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT set_config('lock_timeout', %s, true)", [LOCK_TIMEOUT])
                partitions.drop(month)
            logger.info("usage dropped", extra={"table": month.table})
            dropped.append(month.table)
    return dropped


def _differing(month: partitions.Month) -> list[int]:
    """Organizations whose hourly sums of the month are not what its rows say. Hours that reach into another month are left out."""
    found = []
    for organization in Organization.objects.order_by("pk").only("pk", "timezone").iterator(chunk_size=500):
        zone = ZoneInfo(organization.timezone)
        span: list[Any] = [organization.pk, rollups.next_hour(month.start, zone), rollups.hour_of(month.end, zone)]
        with connection.cursor() as cursor:
            cursor.execute(COMPARE, [*span, *span])
            if not cursor.fetchone()[0]:
                found.append(organization.pk)
    return found
