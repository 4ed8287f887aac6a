"""What an upstream says of an account's windows: in the head of an answer, in an event of a stream, in the answer to a usage poll.

Windows are told apart by their length, never by their slot: upstreams put the only one they have into the first. Further families
of limits (`additional_rate_limits`, `code_review_rate_limit`, `x-<name>-primary-*`) bound single models or other features, not the
account, and are left out. Pure.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from config.json_bounds import has_too_many
from routing.waits import valid_reset

SLOTS = ("primary", "secondary")
LONGEST_WINDOW_MINUTES = 60 * 24 * 40
MOST_PERCENT = 1000.0
EVENT = "codex.rate_limits"
FAMILY = "codex"
"""The name of the limits that bound inference; an event of any other family says nothing about that."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One window. `resets_at` unix seconds, 0 when the upstream did not say."""

    minutes: int
    used_percent: float
    resets_at: int


@dataclass(frozen=True, slots=True)
class Told:
    """Everything one answer said. `is_refusing`: it says that it serves nothing now. `plan` as it came, "" if not named."""

    windows: tuple[Observation, ...]
    is_refusing: bool = False
    plan: str = ""

    @property
    def has_room(self) -> bool:
        """It reports windows, and there is room in every one of them."""
        return bool(self.windows) and not self.is_refusing and all(window.used_percent < 100 for window in self.windows)


def of_headers(headers: Mapping[str, str], now: float) -> list[Observation]:
    """The windows in a head. Names in lower case; `now` in unix seconds.

    A window without a length, or with a reset that cannot be, is left out.
    """
    found = []
    for slot in SLOTS:
        name = f"x-codex-{slot}"
        window = _window(
            headers.get(f"{name}-used-percent"),
            headers.get(f"{name}-window-minutes"),
            headers.get(f"{name}-reset-at"),
            headers.get(f"{name}-reset-after-seconds"),
            now,
        )
        if window is not None:
            found.append(window)
    return _by_length(found)


def of_event(data: bytes, now: float) -> Told | None:
    """What a `codex.rate_limits` event says (its JSON text); None for any other event, and for what cannot be read."""
    value = _object(data)
    if value.get("type") != EVENT:
        return None
    family = value.get("metered_limit_name")
    if isinstance(family, str) and family != FAMILY:
        return None
    return _told(value, value.get("rate_limits"), ("primary", "secondary"), "window_minutes", 1, now)


def of_usage(body: bytes, now: float) -> Told | None:
    """What the answer to a usage poll says; None if it is no such answer."""
    value = _object(body)
    return _told(value, value.get("rate_limit"), ("primary_window", "secondary_window"), "limit_window_seconds", 60, now)


def _told(value: Mapping[str, Any], limits: Any, slots: tuple[str, str], length: str, unit: int, now: float) -> Told | None:
    if not isinstance(limits, dict):
        return None
    found = []
    is_refusing = limits.get("allowed") is False or ("allowed" not in limits and limits.get("limit_reached") is True)
    for slot in slots:
        told = limits.get(slot)
        if not isinstance(told, dict):
            continue
        size = _number(told.get(length))
        minutes = None if size is None else round(size / unit)
        window = _window(told.get("used_percent"), minutes, told.get("reset_at"), told.get("reset_after_seconds"), now)
        if window is not None:
            found.append(window)
        elif (_number(told.get("used_percent")) or 0.0) >= 100:
            # It is full, and until when cannot be believed (N13).
            is_refusing = True
    plan = value.get("plan_type")
    return Told(tuple(_by_length(found)), is_refusing, plan if isinstance(plan, str) else "")


def _window(used: object, minutes: object, resets_at: object, after_seconds: object, now: float) -> Observation | None:
    percent, length = _number(used), _number(minutes)
    if percent is None or length is None or not 0 <= percent <= MOST_PERCENT:
        return None
    if not 0 < length <= LONGEST_WINDOW_MINUTES or length != int(length):
        return None
    reset: int | None = 0
    if resets_at:
        reset = valid_reset(resets_at, now)
    elif after_seconds:
        after = _number(after_seconds)
        reset = None if after is None else valid_reset(now + after, now)
    return None if reset is None else Observation(int(length), percent, reset)


def _by_length(found: list[Observation]) -> list[Observation]:
    """One of each length; of two of the same the fuller."""
    kept: dict[int, Observation] = {}
    for window in found:
        known = kept.get(window.minutes)
        if known is None or window.used_percent > known.used_percent:
            kept[window.minutes] = window
    return list(kept.values())


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _object(data: bytes) -> Mapping[str, Any]:
    if has_too_many(data):
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
