"""What an admission can be refused for.

QuotaError
├─ Stale               the caller's snapshot is older than the newest one: load it and ask again
├─ Degraded            counters are gone or being rebuilt, or Redis does not answer: 503
├─ LimitReached        a limit of credits, tokens or requests, or the plan's quota
│  └─ NoActivePlan     nothing to draw on
├─ RateExceeded        too many per second or minute
│  └─ ConcurrencyReached   too many at once
├─ EndpointRefused     a webhook endpoint that cannot be; facts: field
├─ FilterRefused       the request log is asked for what it cannot be looked for by
└─ LimitsError         somebody asked for a limit that cannot be
   ├─ AboveScope       a lead asked for more than their own scope has
   └─ RequestError     a request for more that cannot be made, or decided
      ├─ AlreadyAsked     one request for a limit waits already
      └─ RequestDecided   somebody was faster
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from django.utils.translation import gettext as _

from config.errors import DomainError


class QuotaError(DomainError):
    code: ClassVar[str] = "quota_error"


class Stale(QuotaError):
    """`version`: the newest config version the engine has seen."""

    code: ClassVar[str] = "stale"
    status: ClassVar[int] = 503

    def __init__(self, version: int) -> None:
        super().__init__(_("The configuration has changed. Try again."), version=version)
        self.version = version


class Degraded(QuotaError):
    """Nothing was counted, so nothing may be sent. `retry_after` in seconds."""

    code: ClassVar[str] = "degraded"
    status: ClassVar[int] = 503

    def __init__(self, reason: str, *, retry_after: int = 5) -> None:
        message = _("The gateway cannot count usage at the moment. Try again in a few seconds.")
        super().__init__(message, reason=reason, retry_after=retry_after)
        self.retry_after = retry_after


class Refused(QuotaError):
    """Shared by refusals: the facts of design section 8.

    `limit`, `used`, `held`, `need` are micro-credits for the metric credits, else counts; the same in `facts`, where credits are
    decimal text. `used` excludes what running requests hold. `resets_at`: the earliest unix second at which this estimate fits as
    far as this limit is concerned; None if it never would, or if only the end of a running request can make room. `limit_uuid`
    names the limit to My key, not on the wire; "" for the plan. `seconds`: how long the window is; 0 where there is none.
    """

    status: ClassVar[int] = 429

    def __init__(
        self,
        message: str,
        *,
        scope: str,
        scope_name: str,
        metric: str,
        window: str,
        limit: int,
        used: int,
        held: int,
        need: int,
        resets_at: int | None,
        retry_after: int,
        shown: dict[str, Any],
        limit_uuid: str = "",
        seconds: int = 0,
    ) -> None:
        facts = {"scope": scope, "scope_name": scope_name, "metric": metric, "window": window, **shown}
        super().__init__(message, **facts, resets_at=resets_at, retry_after=retry_after)
        self.limit_uuid = limit_uuid
        self.seconds = seconds
        self.scope = scope
        self.scope_name = scope_name
        self.metric = metric
        self.window = window
        self.limit = limit
        self.used = used
        self.held = held
        self.need = need
        self.resets_at = resets_at
        self.retry_after = retry_after


class LimitReached(Refused):
    code: ClassVar[str] = "limit_reached"


class NoActivePlan(LimitReached):
    """The key's member has no seat and its organization no subscription: there is no free use."""


class RateExceeded(Refused):
    code: ClassVar[str] = "rate_limit_exceeded"


class ConcurrencyReached(RateExceeded):
    code: ClassVar[str] = "concurrency_limit"


class EndpointRefused(QuotaError):
    """The message says what is wrong with the endpoint, `field` where; nothing has changed."""

    code: ClassVar[str] = "endpoint_refused"
    status: ClassVar[int] = 400


class FilterRefused(QuotaError):
    """The message says what there is not, or is not looked for by here."""

    code: ClassVar[str] = "filter_refused"
    status: ClassVar[int] = 400


class FilterMissing(FilterRefused):
    """What is looked for by is not there, or another organization's."""

    code: ClassVar[str] = "not_found"
    status: ClassVar[int] = 404


class FilterForbidden(FilterRefused):
    """Others may look for requests by it."""

    code: ClassVar[str] = "permission_denied"
    status: ClassVar[int] = 403


class BulkRefused(QuotaError):
    """One change for many that cannot be made for all of them: nothing has changed. `lines`: `bulk.Line` of every member."""

    code: ClassVar[str] = "bulk_refused"
    status: ClassVar[int] = 409

    def __init__(self, message: str, *, lines: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.lines = lines


class LimitsError(QuotaError):
    """A limit that cannot be set; the message says what is wrong with it."""

    code: ClassVar[str] = "invalid_limit"
    status: ClassVar[int] = 400


class AboveScope(LimitsError):
    code: ClassVar[str] = "above_own_scope"
    status: ClassVar[int] = 403


class RequestError(LimitsError):
    """The message says what is wrong with the request for more; nothing has changed."""

    code: ClassVar[str] = "invalid_request_for_more"


class AlreadyAsked(RequestError):
    code: ClassVar[str] = "already_asked"
    status: ClassVar[int] = 409


class RequestDecided(RequestError):
    code: ClassVar[str] = "request_decided"
    status: ClassVar[int] = 409
