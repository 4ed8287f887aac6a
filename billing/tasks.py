"""Celery doors of billing. Each may run twice."""

from datetime import timedelta

from celery import shared_task
from django.conf import settings

from accounts.models import Organization
from billing import monthly_export, partitions, retention, rolling
from billing.models import MonthlyExport, MonthlySend
from config import scope, walks
from config.clock import utc_now

AHEAD = timedelta(hours=6)
"""How long before it begins a period's row is made."""
GRACE = timedelta(minutes=15)
"""How long after its end a period stays open, so that what ran over its end and the drain's queue are on its own invoice."""


@shared_task
def open_next_periods() -> int:
    """Makes the rows of periods that have begun or soon will; how many."""
    with scope.everything():
        return rolling.open_due_periods(utc_now(), ahead=AHEAD)


@shared_task
def close_ended_periods() -> int:
    """Closes and invoices periods that are over; how many."""
    with scope.everything():
        return rolling.close_due_periods(utc_now(), grace=GRACE)


@shared_task
def send_monthly_exports() -> int:
    """Begins the exports of months that are over, and mails those that are made; how many mails."""
    now, sent = utc_now(), 0
    with scope.everything():
        due = set(MonthlyExport.objects.filter(is_on=True).values_list("organization_id", flat=True))
        due |= set(MonthlySend.objects.filter(state__in=monthly_export.OPEN).values_list("organization_id", flat=True))
    for organization_id in sorted(due):
        with walks.apart(organization_id):
            sent += monthly_export.advance(Organization.objects.get(pk=organization_id), now=now)
    return sent


@shared_task
def make_usage_partitions() -> list[str]:
    """Makes the usage log's tables of the coming months; their names."""
    return partitions.make_partitions(utc_now())


@shared_task
def drop_old_usage() -> list[str]:
    """Drops the usage log's months that the setting does not keep and nothing needs; their names."""
    months: int | None = settings.USAGE_RETENTION_MONTHS
    return retention.drop_old(utc_now(), months) if months else []
