"""MicroCredits: integers of a millionth of a credit, their field, their text."""

from typing import TYPE_CHECKING, NewType, TypeVar

from django.db import models
from django.utils.translation import gettext as _

MicroCredits = NewType("MicroCredits", int)

MICRO = 1_000_000
UNLIMITED = 10**15
"""Larger than any amount the engine takes; what stands for "no bound" inside scripts."""


if TYPE_CHECKING:
    _Set = TypeVar("_Set")
    _Get = TypeVar("_Get")

    # The plugin fills in what is set and got, null or not; at run time fields take no parameters.
    class MicroCreditsField(models.BigIntegerField[_Set, _Get]): ...

else:

    class MicroCreditsField(models.BigIntegerField):
        """A BigIntegerField of micro-credits (or of micro-credits per million tokens, for a rate)."""


def text(amount: int) -> str:
    """Exact decimal text, up to 6 places, no trailing zeros: 300000 -> "0.3", 0 -> "0", -1 -> "-0.000001"."""
    sign = "-" if amount < 0 else ""
    whole, micro = divmod(abs(amount), MICRO)
    if not micro:
        return f"{sign}{whole}"
    return f"{sign}{whole}.{micro:06d}".rstrip("0")


def parse(value: str) -> MicroCredits:
    """Micro-credits of a decimal text with up to 6 places. Raises ValueError for anything else, exponents and floats included."""
    stripped = value.strip()
    negative = stripped.startswith("-")
    whole, point, micro = stripped.removeprefix("-").partition(".")
    if not whole.isascii() or not whole.isdigit() or (point and not (micro.isascii() and micro.isdigit())):
        raise ValueError(_("%(value)r is not a decimal number of credits, such as 12 or 0.25") % {"value": value})
    if len(micro) > 6:
        raise ValueError(_("%(value)r has more than 6 decimal places") % {"value": value})
    amount = int(whole) * MICRO + int(micro.ljust(6, "0") or "0")
    if amount > UNLIMITED:
        raise ValueError(_("%(value)r is above the largest amount, %(most)s credits") % {"value": value, "most": text(UNLIMITED)})
    return MicroCredits(-amount if negative else amount)
