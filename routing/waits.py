"""Times that upstreams tell: when a limit resets, and how long to wait. What cannot be one is none (N13). Pure."""

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

HORIZON_SECONDS = 40 * 86_400
"""No window that vendors are known to have is longer than a month; a reset further off is not a time."""


def valid_reset(value: object, now: float) -> int | None:
    """A reset time as unix seconds, or None for what cannot be one: milliseconds, the year 2099, the past, no number."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if not math.isfinite(seconds) or not now < seconds <= now + HORIZON_SECONDS:
        return None
    return math.ceil(seconds)


_WAIT = re.compile(
    r"(?:try again in|retry after|retry in) ((?:\d+(?:\.\d+)?\s*(?:ms|milliseconds?|s|seconds?|m|minutes?|h|hours?)\s*)+)",
    re.IGNORECASE,
)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?)(?![a-z])", re.IGNORECASE)


def _unit(name: str) -> float:
    name = name.lower()
    if name.startswith(("ms", "milli")):
        return 0.001
    return {"s": 1.0, "m": 60.0, "h": 3600.0}[name[0]]


def to_wait(message: str, headers: Mapping[str, str], now: float) -> float | None:
    """How long the answer says to wait: `retry-after-ms`, `retry-after` (seconds or a date), or "try again in 1m30s"."""
    from_ms = _number(headers.get("retry-after-ms"))
    if from_ms is not None:
        return from_ms / 1000
    seconds = _number(headers.get("retry-after"))
    if seconds is not None:
        return seconds
    if told := headers.get("retry-after"):
        return _until(told, now)
    found = _WAIT.search(message)
    if found is None:
        return None
    return sum(float(number) * _unit(unit) for number, unit in _PART.findall(found.group(1)))


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _until(text: str, now: float) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
