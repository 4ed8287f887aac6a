"""Celery doors of billing. Each may run twice."""

from celery import shared_task

from billing import partitions, subscriptions
from config import scope
from config.clock import utc_now


@shared_task
def open_next_periods() -> int:
    """Makes the rows of periods that have begun; how many."""
    with scope.everything():
        return subscriptions.open_due_periods(utc_now())


@shared_task
def make_usage_partitions() -> list[str]:
    """Makes the usage log's tables of the coming months; their names."""
    return partitions.make_partitions(utc_now())
