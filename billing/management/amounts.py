"""Amounts and expiries on the command line."""

from datetime import datetime
from decimal import Decimal, InvalidOperation

from django.core.management.base import CommandError

from billing import credits as micro
from billing.ledger import Expiry
from billing.management.moments import moment


def credits(text: str) -> int:
    """Micro-credits of a decimal text. Raises CommandError."""
    try:
        return micro.parse(text)
    except ValueError as error:
        raise CommandError(f"{error}.") from error


def money(text: str) -> Decimal:
    """A decimal number. Raises CommandError."""
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise CommandError(f"{text!r} is not an amount of money, such as 12.50.") from error


def expiry(text: str | None) -> datetime | Expiry | None:
    """A day, an instant, `never`, or nothing for the usual 12 months. Raises CommandError."""
    if text is None:
        return Expiry.DEFAULT
    return None if text == "never" else moment(text)
