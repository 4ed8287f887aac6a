"""Moments on the command line."""

from datetime import datetime

from django.core.management.base import CommandError

from billing import cardfile
from billing.errors import RateCardRefused


def moment(text: str | None) -> datetime | None:
    """A day (its midnight in UTC) or an instant with its zone, as in a rate card; None for nothing. Raises CommandError."""
    if text is None:
        return None
    try:
        return cardfile.moment(text, "the command line")
    except RateCardRefused as error:
        raise CommandError(error.message) from error
