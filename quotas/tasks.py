"""Celery doors of quotas. Each may run twice."""

import logging

from celery import shared_task

from accounts.models import Organization
from billing import ledger
from config import scope, walks
from config.clock import utc_now
from config.redis import sync_client
from quotas import drain, filters, reconcile, refusal_log
from quotas.alerts import tasks as alert_tasks

__all__ = ["alert_tasks"]  # Celery looks for tasks in this module alone.

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


@shared_task
def forget_old_refusals() -> int:
    """Refusals are told for 30 days; how many rows went."""
    return refusal_log.forget_old(now=utc_now())


@shared_task
def expire_credits() -> int:
    """Takes what is left of credits that expired, once the drain has passed their expiry; micro-credits in all."""
    now, expired = utc_now(), 0
    with scope.everything():
        due = ledger.organizations_due(now)
    for organization_id in due:
        with walks.apart(organization_id):
            expired += ledger.expire_due(organization_id, now, drain.drained_through(sync_client(), organization_id))
    return expired


@shared_task
def fill_filters() -> int:
    """Makes and drops the filters of rolling plans, and activates filters whose earlier use can be added now; how many."""
    with scope.everything():
        due = filters.due()
    activated = 0
    for organization_id in due:
        with walks.apart(organization_id):
            filters.keep(organization_id, now=utc_now())
            activated += len(filters.fill(organization_id))
    return activated
