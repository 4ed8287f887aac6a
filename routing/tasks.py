"""Celery doors of routing."""

import logging

from celery import shared_task

from config import scope
from config.clock import utc_now
from routing import credentials
from routing.errors import CredentialError

logger = logging.getLogger(__name__)


@shared_task
def refresh_due_tokens() -> int:
    """Renews sign-ins ahead of their expiry; may run twice at once. Returns how many are fresh now."""
    renewed = 0
    with scope.everything():
        due = credentials.due(utc_now())
    for account_id in due:
        try:
            credentials.refresh(account_id, "proactive_expiry")
        except CredentialError as error:
            # Said where it happened; one account must not keep the others from theirs.
            logger.info("sign-in not renewed", extra={"account_id": account_id, "code": error.code})
        else:
            renewed += 1
    return renewed
