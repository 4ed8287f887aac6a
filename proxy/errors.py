"""What the wire refuses and how a refusal looks on it.

ProxyError
├─ InvalidApiKey          401 invalid_api_key
├─ InvalidJson            400 invalid_json
├─ PayloadTooLarge        400 payload_too_large
├─ InvalidEncoding        400 invalid_encoding
├─ ModelNotAllowed        400 model_not_allowed
├─ EffortNotAllowed       400 reasoning_effort_not_allowed
├─ FastModeNotAllowed     400 fast_mode_not_allowed
├─ NotFound               404 not_found
├─ MethodNotAllowed       405 method_not_allowed
├─ Draining               503 draining
├─ Degraded               503 degraded
├─ UpstreamUnavailable    502 upstream_unavailable
├─ PoolBusy               429 pool_busy
└─ PoolExhausted          429 pool_exhausted

UpstreamError (not shown to clients; `proxy.attempt` judges it)
├─ ConnectFailed          nothing was written
├─ HeadersLate            no response head in time
├─ IdleTooLong            silence inside the body
├─ Cut                    the connection ended before the response did
└─ BadAnswer              the peer does not speak HTTP/1.1 as we understand it

`answer` is one of the two places that turn domain errors into HTTP (the other one is `config.rest`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from billing import credits
from config.errors import DomainError


class ProxyError(DomainError):
    """A refusal of the wire itself."""


class InvalidApiKey(ProxyError):
    """Missing, wrong, revoked or expired, or its organization is suspended: one answer for all, so nothing can be guessed."""

    code = "invalid_api_key"
    status = 401


class InvalidJson(ProxyError):
    code = "invalid_json"


class PayloadTooLarge(ProxyError):
    code = "payload_too_large"


class InvalidEncoding(ProxyError):
    code = "invalid_encoding"


class ModelNotAllowed(ProxyError):
    code = "model_not_allowed"


class EffortNotAllowed(ProxyError):
    code = "reasoning_effort_not_allowed"


class FastModeNotAllowed(ProxyError):
    code = "fast_mode_not_allowed"


class NotFound(ProxyError):
    code = "not_found"
    status = 404


class MethodNotAllowed(ProxyError):
    code = "method_not_allowed"
    status = 405


class Draining(ProxyError):
    code = "draining"
    status = 503


class Degraded(ProxyError):
    code = "degraded"
    status = 503


class UpstreamUnavailable(ProxyError):
    code = "upstream_unavailable"
    status = 502


class PoolBusy(ProxyError):
    """Every attempt met an account that cools down for a moment. Facts: `retry_after` seconds."""

    code = "pool_busy"
    status = 429


class PoolExhausted(ProxyError):
    """Every attempt met an exhausted account. Facts: `resets_at` unix seconds or None."""

    code = "pool_exhausted"
    status = 429


class UpstreamError(Exception):
    """What went wrong between us and an upstream. `written`: were bytes of the request handed to the socket?"""

    reason: ClassVar[str] = "upstream"

    def __init__(self, message: str = "", *, written: bool = True) -> None:
        super().__init__(message or type(self).__name__)
        self.written = written


class ConnectFailed(UpstreamError):
    reason = "connect_failed"

    def __init__(self, message: str = "") -> None:
        super().__init__(message, written=False)


class HeadersLate(UpstreamError):
    reason = "headers_late"


class IdleTooLong(UpstreamError):
    reason = "idle"


class Cut(UpstreamError):
    """`is_silent`: not one byte of an answer had come, so a keep-alive connection may simply have been stale."""

    reason = "cut"

    def __init__(self, message: str = "", *, written: bool = True, is_silent: bool = False) -> None:
        super().__init__(message, written=written)
        self.is_silent = is_silent


class BadAnswer(UpstreamError):
    reason = "bad_answer"


# ------------------------------------------------------------------------------------------------------------ wire form

_TYPES: Mapping[str, str] = {
    "limit_reached": "usage_limit_reached",
    "pool_exhausted": "usage_limit_reached",
    "rate_limit_exceeded": "rate_limit_exceeded",
    "concurrency_limit": "rate_limit_exceeded",
    "pool_busy": "rate_limit_exceeded",
}
# Retrying on the client's side cannot help before `resets_at`; the SDKs would try twice more.
_FINAL = frozenset({"limit_reached", "pool_exhausted"})
_RETRY_AFTER_DEGRADED_SECONDS = 5
_EXTRAS = ("scope", "scope_name", "metric", "window", "limit", "used", "held", "need", "remaining", "resets_at", "reason")
_AMOUNTS = frozenset({"limit", "used", "held", "need", "remaining"})
JSON_TYPE = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = field(repr=False)


def answer(error: DomainError, *, now: datetime, request_id: str, timezone: str = "UTC") -> Answer:
    """The refusal table of design section 8. `timezone` is the organization's, for the moment named in the message."""
    facts = dict(error.facts)
    if error.code in ("limit_reached", "rate_limit_exceeded", "concurrency_limit") and "limit" in facts:
        facts["remaining"] = remaining(facts)
    envelope: dict[str, Any] = {
        "message": refusal_words(error, timezone=timezone),
        "type": _type(error),
        "param": facts.get("param"),
        "code": error.code,
    }
    is_money = facts.get("metric") in (None, "credits")
    for name in _EXTRAS:
        value = facts.get(name)
        if value is None:
            continue
        envelope[name] = credits.text(value) if name in _AMOUNTS and is_money and isinstance(value, int) else value
    headers = [JSON_TYPE, (b"x-request-id", request_id.encode())]
    retry_after = retry_after_seconds(error, now=now)
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    if error.code in _FINAL:
        headers.append((b"x-should-retry", b"false"))
    body = json.dumps({"error": envelope}, ensure_ascii=False).encode()
    headers.append((b"content-length", str(len(body)).encode()))
    return Answer(status=error.status, headers=headers, body=body)


def _type(error: DomainError) -> str:
    known = _TYPES.get(error.code)
    if known is not None:
        return known
    return "server_error" if error.status >= 500 else "invalid_request_error"


def retry_after_seconds(error: DomainError, *, now: datetime) -> int | None:
    """Whole seconds, at least 1; None where waiting does not help or the moment is unknown.

    Equal to `resets_at` - now wherever there is a `resets_at`.
    """
    resets_at = error.facts.get("resets_at")
    if resets_at is not None:
        return max(1, int(resets_at) - int(now.timestamp()))
    retry_after = error.facts.get("retry_after")
    if retry_after is not None:
        return max(1, -int(-float(retry_after) // 1))
    if error.status == 503:
        return _RETRY_AFTER_DEGRADED_SECONDS
    if error.status == 429 and error.code not in _FINAL:
        return 1
    return None


def remaining(facts: Mapping[str, Any]) -> int:
    """What is left of a limit as the API tells it: never below 0 (pages show the overdraft)."""
    return max(0, int(facts["limit"]) - int(facts.get("used", 0)) - int(facts.get("held", 0)))


# ---------------------------------------------------------------------------------------------------------------- words

_WINDOWS: Mapping[str, str] = {
    "5h": "5-hour",
    "1d": "24-hour",
    "7d": "7-day",
    "30d": "30-day",
    "day": "daily",
    "week": "weekly",
    "month": "monthly",
    "period": "period",
}


def refusal_words(error: DomainError, *, timezone: str) -> str:
    """One or more sentences: which limit, left against needed, used, held, reset. Other errors speak for themselves."""
    facts = error.facts
    if error.code != "limit_reached" or not {"limit", "used"} <= facts.keys():
        return error.message
    metric = str(facts.get("metric") or "credits")
    window = _WINDOWS.get(str(facts.get("window")), str(facts.get("window") or ""))
    scope = str(facts.get("scope") or "plan")
    owner = "The plan's" if scope == "plan" else f"The {scope}'s"
    name = facts.get("scope_name")
    named = f" ({name})" if name and name != scope else ""
    thing = "quota" if scope == "plan" else f"{window} limit".strip()

    def amount(value: object) -> str:
        number = int(str(value))
        return credits.text(number) if metric == "credits" else str(number)

    used = amount(facts["used"])
    held = amount(facts.get("held", 0))
    text = (
        f"{owner} {thing}{named} would be passed: {amount(remaining(facts))} {metric} left but {amount(facts.get('need', 0))} "
        f"needed; {used} used and {held} held of {amount(facts['limit'])}."
    )
    resets_at = facts.get("resets_at")
    if resets_at is None:
        return f"{text} It will not fit this limit: ask for a higher one, or use a smaller request or a cheaper model."
    return f"{text} Resets {moment(int(resets_at), timezone)}. A smaller request or a cheaper model may fit before."


def moment(second: int, timezone: str) -> str:
    """`Fri 2026-03-06 18:34 CET`: a unix second on the organization's clock."""
    local = datetime.fromtimestamp(second, UTC).astimezone(ZoneInfo(timezone))
    return local.strftime("%a %Y-%m-%d %H:%M %Z")
