"""What an upstream's refusal means: one table, read by the body first and by the status only when the body says nothing."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from config.clock import utc_now

HORIZON_SECONDS = 40 * 86_400
"""No window that vendors are known to have is longer than a month; a reset further off is not a time (N13)."""

UNKNOWN_RESET_COOLDOWN_SECONDS = 60.0
LONGEST_COOLDOWN_SECONDS = 3600.0


class Kind(StrEnum):
    USAGE_LIMIT = "usage_limit"
    QUOTA = "quota"
    RATE = "rate"
    OVERLOADED = "overloaded"
    UPSTREAM_ERROR = "upstream_error"
    UNREACHABLE = "unreachable"
    TOKEN = "token"  # noqa: S105 - the name of a kind
    REFUSED_KEY = "refused_key"
    DEACTIVATED = "deactivated"
    FORBIDDEN = "forbidden"
    REQUEST = "request"
    CONTEXT = "context"
    ANCHOR = "anchor"


@dataclass(frozen=True, slots=True)
class Failure:
    """What to do about a failed attempt.

    `movable`: another account may answer, as long as the client has seen nothing. `cooldown_seconds` and `resets_at` (unix
    seconds) say for how long the account is not to be used; both None is no penalty. `refresh`: a sign-in account's token
    may just be old: refresh it and try the same account once more before this is reported. `sign_in`: when reported, the
    account is taken out until it is signed in again. `code` is the upstream's own word, for the log.
    """

    kind: Kind
    movable: bool
    cooldown_seconds: float | None = None
    resets_at: int | None = None
    refresh: bool = False
    sign_in: bool = False
    code: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; the first that matches decides. Empty conditions match anything."""

    kind: Kind
    codes: frozenset[str] = frozenset()
    statuses: tuple[range, ...] = ()
    movable: bool = False
    cooldown_seconds: float | None = None
    refresh: bool = False
    sign_in: bool = False
    is_waiting_told: bool = False
    """The answer may say how long to wait; then that is the cooldown."""


def _only(*statuses: int) -> tuple[range, ...]:
    return tuple(range(status, status + 1) for status in statuses)


TABLE: tuple[Row, ...] = (
    # By what the body says. Both `error.code` and `error.type` are looked for.
    Row(Kind.CONTEXT, codes=frozenset({"context_length_exceeded"})),
    Row(Kind.ANCHOR, codes=frozenset({"previous_response_not_found", "invalid_encrypted_content"})),
    Row(
        Kind.REQUEST,
        codes=frozenset(
            {"invalid_prompt", "cyber_policy", "content_policy_violation", "invalid_value", "model_not_found", "image_too_large"}
        ),
    ),
    Row(Kind.USAGE_LIMIT, codes=frozenset({"usage_limit_reached"}), movable=True),
    # No reset will help: money or a plan is missing. Looked at again after a while, in case somebody paid.
    Row(Kind.QUOTA, codes=frozenset({"insufficient_quota", "billing_hard_limit_reached"}), movable=True, cooldown_seconds=300.0),
    Row(Kind.QUOTA, codes=frozenset({"usage_not_included"}), movable=True, cooldown_seconds=3600.0),
    Row(
        Kind.DEACTIVATED,
        codes=frozenset({"deactivated_workspace", "account_deactivated", "organization_deactivated", "account_suspended"}),
        movable=True,
        cooldown_seconds=60.0,
        sign_in=True,
    ),
    Row(Kind.TOKEN, codes=frozenset({"token_expired"}), movable=True, cooldown_seconds=60.0, refresh=True),
    Row(
        Kind.REFUSED_KEY,
        codes=frozenset({"invalid_api_key", "token_invalidated", "token_revoked", "invalid_authentication"}),
        movable=True,
        cooldown_seconds=60.0,
        refresh=True,
        sign_in=True,
    ),
    Row(
        Kind.OVERLOADED,
        codes=frozenset({"server_is_overloaded", "slow_down", "overloaded_error", "service_unavailable_error"}),
        movable=True,
        cooldown_seconds=5.0,
        is_waiting_told=True,
    ),
    Row(
        Kind.RATE,
        codes=frozenset({"rate_limit_exceeded", "rate_limit_error", "too_many_requests"}),
        movable=True,
        cooldown_seconds=2.0,
        is_waiting_told=True,
    ),
    Row(
        Kind.UPSTREAM_ERROR,
        codes=frozenset({"server_error", "internal_server_error", "api_error"}),
        movable=True,
        cooldown_seconds=3.0,
    ),
    # By status alone.
    Row(Kind.TOKEN, statuses=_only(401), movable=True, cooldown_seconds=60.0, refresh=True),
    Row(Kind.FORBIDDEN, statuses=_only(402, 403), movable=True, cooldown_seconds=60.0),
    Row(Kind.RATE, statuses=_only(429), movable=True, cooldown_seconds=2.0, is_waiting_told=True),
    Row(Kind.OVERLOADED, statuses=_only(503, 529), movable=True, cooldown_seconds=5.0, is_waiting_told=True),
    Row(Kind.UPSTREAM_ERROR, statuses=(range(500, 600),), movable=True, cooldown_seconds=3.0),
    # Everything else in the 400s is about the request's own shape: every account would say the same.
    Row(Kind.REQUEST, statuses=(range(400, 500),)),
)

# A stream that failed for a reason nobody has listed: to be seen by the client rather than run on every account in turn.
OTHERWISE = Row(Kind.REQUEST)


def classify(status: int, headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> Failure:
    """What a refusal means.

    `body` is an error answer's body, or the data of a stream's failing event (`response.failed`, `error`), then with status
    200. Header names in lower case. `now` in unix seconds, by default the clock's.
    """
    now = utc_now().timestamp() if now is None else now
    error = _error(body)
    words = {word for word in (error.get("code"), error.get("type")) if isinstance(word, str)}
    row = next((row for row in TABLE if (row.codes and row.codes & words) or _covers(row, status)), OTHERWISE)
    code = str(error.get("code") or error.get("type") or status)[:80]
    cooldown = row.cooldown_seconds
    resets_at = None
    if row.kind is Kind.USAGE_LIMIT:
        resets_at = _resets_at(error, headers, now)
        cooldown = UNKNOWN_RESET_COOLDOWN_SECONDS if resets_at is None else None
    elif row.is_waiting_told:
        told = _wait(error, headers, now)
        if told is not None and told <= HORIZON_SECONDS:
            cooldown = min(told, LONGEST_COOLDOWN_SECONDS)
    return Failure(
        kind=row.kind,
        movable=row.movable,
        cooldown_seconds=cooldown,
        resets_at=resets_at,
        refresh=row.refresh,
        sign_in=row.sign_in,
        code=code,
    )


def unreachable(*, written: bool) -> Failure:
    """The upstream gave no answer. What was written to it may have run, and is never sent again."""
    return Failure(kind=Kind.UNREACHABLE, movable=not written, cooldown_seconds=5.0, code="unreachable")


def _covers(row: Row, status: int) -> bool:
    return any(status in statuses for statuses in row.statuses)


def _error(body: bytes) -> dict[str, Any]:
    """The error object in any of the shapes that upstreams use; {} if the body is none of them."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    for holder in (value.get("response"), value):
        if isinstance(holder, dict):
            for name in ("error", "detail"):
                found = holder.get(name)
                if isinstance(found, dict):
                    return found
    if isinstance(value.get("code"), str):
        return value
    return {}


def valid_reset(value: object, now: float) -> int | None:
    """A reset time as unix seconds, or None for what cannot be one: milliseconds, the year 2099, the past, no number."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if not math.isfinite(seconds) or not now < seconds <= now + HORIZON_SECONDS:
        return None
    return math.ceil(seconds)


def _resets_at(error: Mapping[str, Any], headers: Mapping[str, str], now: float) -> int | None:
    """From the body; if the body has none, from the full windows in the headers (the last one to reset)."""
    if "resets_at" in error:
        return valid_reset(error["resets_at"], now)
    if "resets_in_seconds" in error:
        try:
            return valid_reset(now + float(error["resets_in_seconds"]), now)
        except (TypeError, ValueError, OverflowError):
            return None
    full = []
    for slot in ("primary", "secondary"):
        try:
            used = float(headers.get(f"x-codex-{slot}-used-percent", "0"))
        except ValueError:
            continue
        reset = valid_reset(headers.get(f"x-codex-{slot}-reset-at"), now)
        if used >= 100 and reset is not None:
            full.append(reset)
    return max(full, default=None)


_WAIT = re.compile(r"try again in ((?:\d+(?:\.\d+)?\s*(?:ms|milliseconds?|s|seconds?|m|minutes?|h|hours?)\s*)+)", re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?)(?![a-z])", re.IGNORECASE)


def _unit(name: str) -> float:
    name = name.lower()
    if name.startswith(("ms", "milli")):
        return 0.001
    return {"s": 1.0, "m": 60.0, "h": 3600.0}[name[0]]


def _wait(error: Mapping[str, Any], headers: Mapping[str, str], now: float) -> float | None:
    """How long the answer says to wait: `retry-after-ms`, `retry-after` (seconds or a date), or "try again in 1m30s"."""
    from_ms = _number(headers.get("retry-after-ms"))
    if from_ms is not None:
        return from_ms / 1000
    seconds = _number(headers.get("retry-after"))
    if seconds is not None:
        return seconds
    if told := headers.get("retry-after"):
        return _until(told, now)
    message = error.get("message")
    found = _WAIT.search(message) if isinstance(message, str) else None
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
