"""What the API itself refuses, beside what the domain does.

ApiError
├─ BodyInvalid             no JSON, or JSON that is not taken: twice the same field, NaN, half a surrogate pair, too deep
│  └─ BodyTooLarge         413
├─ CursorInvalid           a cursor that was not given out here, to this organization, for this list
├─ Throttled               429; facts: retry_after
└─ IdempotencyError
   ├─ KeyInvalid           the Idempotency-Key's form
   ├─ KeyMissing           a call about money needs one
   ├─ InFlight             409: the first call with this key runs
   └─ Mismatch             422: the key belongs to another call
"""

from typing import ClassVar

from config.errors import DomainError


class ApiError(DomainError):
    code: ClassVar[str] = "api_error"


class BodyInvalid(ApiError):
    code: ClassVar[str] = "invalid_json"


class BodyTooLarge(BodyInvalid):
    code: ClassVar[str] = "body_too_large"
    status: ClassVar[int] = 413


class ContentTypeRefused(BodyInvalid):
    code: ClassVar[str] = "unsupported_media_type"
    status: ClassVar[int] = 415


class CursorInvalid(ApiError):
    """Facts: param."""

    code: ClassVar[str] = "cursor_invalid"


class Throttled(ApiError):
    """Facts: retry_after, in seconds."""

    code: ClassVar[str] = "throttled"
    status: ClassVar[int] = 429


class IdempotencyError(ApiError):
    code: ClassVar[str] = "idempotency_invalid"


class KeyInvalid(IdempotencyError):
    code: ClassVar[str] = "idempotency_key_invalid"


class KeyMissing(IdempotencyError):
    code: ClassVar[str] = "idempotency_key_required"


class InFlight(IdempotencyError):
    code: ClassVar[str] = "idempotency_in_flight"
    status: ClassVar[int] = 409


class Mismatch(IdempotencyError):
    code: ClassVar[str] = "idempotency_mismatch"
    status: ClassVar[int] = 422
