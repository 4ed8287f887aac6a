"""Celery doors of quotas. Each may run twice."""

import logging

from celery import shared_task

from accounts.models import Organization
from config import scope
from quotas import reconcile

logger = logging.getLogger(__name__)

PAGE = 500


@shared_task
def reconcile_all() -> int:
    """One task for each organization, in pages; how many."""
    asked, last = 0, 0
    while True:
        with scope.everything():
            page = list(Organization.objects.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:PAGE])
        if not page:
            return asked
        for organization_id in page:
            reconcile_organization.delay(organization_id)
        asked, last = asked + len(page), page[-1]


@shared_task
def reconcile_organization(organization_id: int) -> int:
    """Compares one organization's counters with the log, and puts right what adding can; how many differences there were."""
    try:
        return len(reconcile.reconcile(organization_id, repair=True).differences)
    except (reconcile.LogBehind, reconcile.RepairRunning) as error:
        logger.warning("not compared", extra={"organization_id": organization_id, "reason": error.code})
        return 0


@shared_task
def watch_server() -> bool:
    """Was Redis started anew, or is it another server, since this was last asked? Then everything is compared."""
    if not reconcile.is_another_server():
        return False
    reconcile_all.delay()
    return True
