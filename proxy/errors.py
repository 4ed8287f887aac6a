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
├─ InternalError          500 internal_error
└─ UpstreamUnavailable    502 upstream_unavailable

UpstreamError (not shown to clients; `proxy.attempt` judges it)
├─ ConnectFailed          nothing was written
├─ HeadersLate            no response head in time
├─ IdleTooLong            silence inside the body
├─ Cut                    the connection ended before the response did
├─ Restarting             this process ends before the response does
└─ BadAnswer              the peer does not speak HTTP/1.1 as we understand it

`answer` is one of the two places that turn domain errors into HTTP (the other one is `config.rest`).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, TypeAlias

from config.errors import DomainError


class ProxyError(DomainError):
    """A refusal of the wire itself."""


class InvalidApiKey(ProxyError):
    """Missing, wrong, revoked or expired, or its organization is suspended: one answer for all, so nothing can be guessed.

    `caller` (`auth.Caller`): whose key it is, where the whole text proved one that may not be used any more; `told` says why, to
    the holder's own page and never on the wire.
    """

    code = "invalid_api_key"
    status = 401

    def __init__(self, message: str, *, caller: Any = None, told: str = "") -> None:
        super().__init__(message)
        self.caller = caller
        self.told = told


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

    def __init__(self, message: str = "The gateway is being restarted. Try again in a few seconds.") -> None:
        super().__init__(message)


class Degraded(ProxyError):
    code = "degraded"
    status = 503


class InternalError(ProxyError):
    """A fault of ours, named as such and no further."""

    code = "internal_error"
    status = 500


class UpstreamUnavailable(ProxyError):
    code = "upstream_unavailable"
    status = 502


class UpstreamError(Exception):
    """What went wrong between us and an upstream. `written`: were bytes of the request handed to the socket?"""

    reason: ClassVar[str] = "upstream"
    told: ClassVar[str] = "The upstream ended the stream before it was complete."
    """To the client of a stream that it broke off."""

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


class Restarting(UpstreamError):
    reason = "draining"
    told = "The gateway was restarted before the stream was complete."


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
_EXTRAS = ("scope", "scope_name", "metric", "window", "limit", "used", "held", "need", "resets_at", "reason")
STREAM_INCOMPLETE = "stream_incomplete"
"""What ends a stream of ours whose upstream broke off."""
JSON_TYPE = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = field(repr=False)


def json_answer(status: int, value: object, *, request_id: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> Answer:
    """A JSON body with its headers."""
    body = json.dumps(value, ensure_ascii=False).encode()
    length = (b"content-length", str(len(body)).encode())
    return Answer(status, [JSON_TYPE, length, (b"x-request-id", request_id.encode()), *headers], body)


Shape: TypeAlias = Callable[[Mapping[str, Any], int], dict[str, Any]]
"""OpenAI's error object and the status, to the body of a dialect's refusal."""


def openai_shape(envelope: Mapping[str, Any], status: int) -> dict[str, Any]:
    return {"error": dict(envelope)}


def answer(error: DomainError, *, now: datetime, request_id: str, shape: Shape = openai_shape) -> Answer:
    """The refusal table of design section 8. Facts hold credits as decimal text already, counts as numbers."""
    envelope: dict[str, Any] = {
        "message": error.message,
        "type": _type(error),
        "param": error.facts.get("param"),
        "code": error.code,
    }
    envelope.update((name, error.facts[name]) for name in _EXTRAS if error.facts.get(name) is not None)
    headers: list[tuple[bytes, bytes]] = []
    retry_after = retry_after_seconds(error, now=now)
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    if error.code in _FINAL:
        headers.append((b"x-should-retry", b"false"))
    return json_answer(error.status, shape(envelope, error.status), request_id=request_id, headers=headers)


def _type(error: DomainError) -> str:
    known = _TYPES.get(error.code)
    if known is not None:
        return known
    return "server_error" if error.status >= 500 else "invalid_request_error"


def retry_after_seconds(error: DomainError, *, now: datetime) -> int | None:
    """Whole seconds, at least 1: `resets_at` - now wherever there is a `resets_at` (L8); None where waiting does not help."""
    resets_at = error.facts.get("resets_at")
    if resets_at is not None:
        return max(1, math.ceil(float(resets_at) - now.timestamp()))
    retry_after = error.facts.get("retry_after")
    if retry_after is not None:
        return max(1, math.ceil(float(retry_after)))
    if error.status == 503:
        return _RETRY_AFTER_DEGRADED_SECONDS
    if error.status == 429 and error.code not in _FINAL:
        return 1
    return None
