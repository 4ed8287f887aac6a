"""What the API has to do in the background. Doors."""

from celery import shared_task

from api import idempotency
from config import scope
from config.clock import utc_now


@shared_task
def forget_idempotent_calls() -> None:
    """Once an hour."""
    with scope.everything():
        idempotency.forget(now=utc_now())
