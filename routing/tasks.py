"""Celery doors of routing."""

import logging
from concurrent.futures import ThreadPoolExecutor

from celery import shared_task
from django.db import connection

from config import scope
from config.clock import utc_now
from routing import credentials, flows, polls
from routing.errors import CredentialError

logger = logging.getLogger(__name__)

SIDE_BY_SIDE = 8


@shared_task
def refresh_due_tokens() -> int:
    """Renews sign-ins ahead of their expiry; may run twice at once. Returns how many are fresh now."""
    with scope.everything():
        due = credentials.due(utc_now())
    if not due:
        return 0
    # Side by side: an issuer that hangs for one account must not keep the others from theirs until they have expired.
    with ThreadPoolExecutor(max_workers=min(SIDE_BY_SIDE, len(due)), thread_name_prefix="sweep") as threads:
        return sum(threads.map(_renew, due))


def _renew(account_id: int) -> bool:
    """Whether the account's sign-in is fresh now. One that another process is renewing is left to it."""
    try:
        credentials.refresh(account_id, "proactive_expiry", patience=0.0)
    except CredentialError as error:
        # Said where it happened.
        logger.info("sign-in not renewed", extra={"account_id": account_id, "code": error.code})
        return False
    finally:
        connection.close()
    return True


@shared_task
def poll_due_accounts() -> int:
    """Asks accounts for their use where it is time; may run twice at once. Returns how many were asked."""
    return polls.poll_due()


@shared_task
def forget_abandoned_sign_ins() -> int:
    """Deletes sign-ins that were begun and not finished in time. Returns how many."""
    with scope.everything():
        return flows.forget_abandoned(utc_now())
