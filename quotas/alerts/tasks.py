"""Celery doors of alerts. Each may run twice, and beside itself."""

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from celery import shared_task

from accounts.models import Organization
from config import scope, walks
from config.clock import utc_now
from quotas.alerts import delivery, telling
from quotas.models import UsageDrain

logger = logging.getLogger(__name__)

PAGE = 50
"""Organizations a task: what one of them costs is a few queries and a pipeline."""
BUSY = timedelta(minutes=10)
MOST_BATCHES = 20


@shared_task
def watch() -> int:
    """One task for each page of organizations that used anything lately; how many organizations."""
    return _asked(glance, _pages(utc_now(), everybody=False))


@shared_task
def watch_everybody() -> int:
    """The same for all organizations, whatever they used, and thoroughly."""
    return _asked(look, _pages(utc_now(), everybody=True))


def _asked(task: Any, pages: Iterator[list[int]]) -> int:
    asked = 0
    for page in pages:
        task.delay(page)
        asked += len(page)
    return asked


def _pages(now: datetime, *, everybody: bool) -> Iterator[list[int]]:
    last = 0
    while True:
        with scope.everything():
            rows = Organization.objects.active().filter(pk__gt=last)
            if not everybody:
                rows = rows.filter(pk__in=UsageDrain.objects.filter(drained_at__gte=now - BUSY).values("organization_id"))
            page = list(rows.order_by("pk").values_list("pk", flat=True)[:PAGE])
        if not page:
            return
        yield page
        last = page[-1]


@shared_task
def glance(organization_ids: list[int]) -> int:
    """Looks at what moves within minutes of each organization and tells what is new; how many alerts."""
    return _told(organization_ids, is_thorough=False)


@shared_task
def look(organization_ids: list[int]) -> int:
    """The same for everything there is to look at."""
    return _told(organization_ids, is_thorough=True)


def _told(organization_ids: list[int], *, is_thorough: bool) -> int:
    told = 0
    for organization_id in organization_ids:
        with walks.apart(organization_id):
            new = telling.look(organization_id, now=utc_now(), is_thorough=is_thorough)
            if new:
                deliver.delay(organization_id)
            told += len(new)
    return told


@shared_task
def deliver(organization_id: int) -> int:
    """Sends what is due of one organization; how many were tried. What is left is for the next `deliver_due`."""
    tried = 0
    with walks.apart(organization_id):
        organization = Organization.objects.get(pk=organization_id)
        for _ in range(MOST_BATCHES):
            count = delivery.deliver(organization, now=utc_now())
            tried += count
            if count < delivery.BATCH:
                break
    return tried


@shared_task
def deliver_due() -> int:
    """One task for each organization that something is due of: retries, and what a worker left behind; how many."""
    now, asked, last = utc_now(), 0, 0
    while True:
        with scope.everything():
            page = delivery.due(now, after=last)
        if not page:
            return asked
        for organization_id in page:
            deliver.delay(organization_id)
        asked, last = asked + len(page), page[-1]


@shared_task
def forget_old() -> int:
    """Alerts and deliveries are kept for over a year; how many alerts went."""
    with scope.everything():
        return telling.forget_old(now=utc_now())
