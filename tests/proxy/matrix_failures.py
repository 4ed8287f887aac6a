"""The table of the matrix: what upstreams say when they fail, and what that means. Pure.

The words are those of the protocol note (section 5) and of the vendors' lists of errors, as `routing.failures` names them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HTML = "<html><head><title>Just a moment...</title></head><body></body></html>"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What follows from a failure of a kind, whenever it comes.

    `moves`: another account may answer, as long as nothing of an answer was produced. `is_clients`: it is about the request, or
    about the upstream as a whole, so that the client reads the upstream's own words where nobody else answers; anything else is
    about our accounts and none of the client's business. `signs_out`: the account needs a person. `renews`: a sign-in's token may
    just be old, so that it is renewed and the same account asked once more.
    """

    text: str
    moves: bool
    is_clients: bool = False
    signs_out: bool = False
    renews: bool = False


MEANINGS: Mapping[str, Meaning] = {
    "request": Meaning("the request itself: every account would say the same", moves=False, is_clients=True),
    "model": Meaning("this account does not have the model; another may", moves=True, is_clients=True),
    "broken": Meaning("the upstream failed", moves=True, is_clients=True),
    "late": Meaning("a gateway gave up waiting: the request may still run", moves=False, is_clients=True),
    "usage limit": Meaning("the account's window is used up", moves=True),
    "quota": Meaning("money or a plan is missing", moves=True),
    "rate": Meaning("too many requests for a moment", moves=True),
    "overloaded": Meaning("the upstream has no capacity for a moment", moves=True),
    "token": Meaning("the token may be old", moves=True, renews=True),
    "refused key": Meaning("the credential is refused", moves=True, signs_out=True, renews=True),
    "deactivated": Meaning("the account is closed", moves=True, signs_out=True),
    "forbidden": Meaning("the account may not do this", moves=True),
    "no socket": Meaning("the upstream speaks no WebSocket", moves=True),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """One row: what the upstream says, and what that means.

    `code`, `kind` (the error object's type) and `message` make the body; `body` is one as it is. `rests`: seconds for which the
    account is left alone, None for none. `resets`: it is exhausted until a reset that is told in the body, or in the head.
    `is_event`: streams can say it, too. `only`: moments at which alone it can come.
    """

    status: int
    means: str
    rests: float | None = None
    code: str | None = None
    kind: str = "invalid_request_error"
    message: str = "scripted"
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    resets: str = ""
    is_event: bool = False
    is_anthropic: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        said = self.note or self.code or (self.kind if self.is_anthropic else "")
        return f"{self.status} {said}".strip()

    @property
    def meaning(self) -> Meaning:
        return MEANINGS[self.means]

    @property
    def word(self) -> str | None:
        """What clients tell it by."""
        return self.kind if self.is_anthropic else self.code

    def error(self, resets_at: int) -> dict[str, Any]:
        """The error object."""
        if self.is_anthropic:
            return {"type": self.kind, "message": self.message}
        error: dict[str, Any] = {"message": self.message, "type": self.kind, "param": None, "code": self.code}
        return error | ({"resets_at": resets_at} if self.resets == "body" else {})

    def said(self, resets_at: int) -> Any:
        """The body of an answer by status."""
        if self.body is not None:
            return self.body
        error = self.error(resets_at)
        return {"type": "error", "error": error} if self.is_anthropic else {"error": error}


def _about_request(status: int, code: str, *, is_event: bool = False) -> Failure:
    return Failure(status, "request", code=code, is_event=is_event)


def _usage_limit(rests: float | None = None, **fields: Any) -> Failure:
    return Failure(429, "usage limit", rests, code="usage_limit_reached", kind="usage_limit_reached", **fields)


def _overloaded(rests: float, code: str, **fields: Any) -> Failure:
    return Failure(503, "overloaded", rests, code=code, kind="service_unavailable_error", **fields)


def _plain(status: int, means: str, rests: float | None = None, body: Any = HTML) -> Failure:
    return Failure(status, means, rests, body=body, note="HTML" if body is HTML else "text")


def _anthropic(status: int, kind: str, means: str, rests: float | None = None, **fields: Any) -> Failure:
    return Failure(status, means, rests, kind=kind, is_anthropic=True, **fields)


OPENAI_FAILURES: tuple[Failure, ...] = (
    _about_request(400, "invalid_value"),
    _about_request(400, "context_length_exceeded", is_event=True),
    _about_request(400, "invalid_prompt", is_event=True),
    _about_request(400, "previous_response_not_found", is_event=True),
    _about_request(400, "invalid_encrypted_content"),
    Failure(400, "request", body={"detail": "Unsupported parameter: top_k"}, note="detail"),
    Failure(401, "token", 60, code="token_expired"),
    _plain(401, "token", 60),
    Failure(401, "refused key", 60, code="token_invalidated"),
    Failure(401, "refused key", 60, code="invalid_api_key"),
    Failure(402, "deactivated", 60, code="deactivated_workspace"),
    _plain(402, "quota", 300, body=""),
    Failure(403, "forbidden", 60, code="forbidden"),
    _plain(403, "forbidden", 60),
    Failure(404, "model", code="model_not_found", is_event=True),
    _plain(404, "model"),
    _plain(408, "broken", 3, body="Request Timeout"),
    _about_request(409, "conflict"),
    _plain(413, "request"),
    _about_request(422, "unprocessable"),
    Failure(426, "no socket", body="Upgrade Required", note="text"),
    _usage_limit(resets="body", note="usage_limit_reached, resets_at"),
    _usage_limit(resets="head", note="usage_limit_reached, reset in the head"),
    _usage_limit(60, is_event=True),
    Failure(429, "quota", 3600, code="usage_not_included", kind="usage_not_included", is_event=True),
    Failure(429, "quota", 300, code="insufficient_quota", kind="insufficient_quota", is_event=True),
    Failure(429, "rate", 7, code="rate_limit_exceeded", headers={"retry-after": "7"}, note="rate_limit_exceeded, Retry-After 7"),
    Failure(429, "rate", 1.5, code="rate_limit_exceeded", message="Please try again in 1.5s.", is_event=True),
    _plain(429, "rate", 2, body="Too many requests"),
    Failure(500, "broken", 3, code="server_error", kind="server_error", is_event=True),
    _plain(500, "broken", 3),
    _plain(502, "broken", 3),
    _overloaded(5, "server_is_overloaded", is_event=True),
    _overloaded(1, "slow_down", headers={"retry-after": "1"}, note="slow_down, Retry-After 1"),
    _plain(503, "overloaded", 5),
    _plain(504, "late", 3),
    _plain(520, "broken", 3),
    _plain(524, "late", 3),
)  # fmt: skip
ANTHROPIC_FAILURES: tuple[Failure, ...] = (
    _anthropic(400, "invalid_request_error", "request", is_event=True),
    _anthropic(
        400, "invalid_request_error", "quota", 300,
        message="Your credit balance is too low to access the Anthropic API.", note="credit balance is too low",
    ),
    _anthropic(401, "authentication_error", "refused key", 60),
    _anthropic(402, "billing_error", "quota", 300),
    _anthropic(403, "permission_error", "forbidden", 60),
    _anthropic(404, "not_found_error", "model"),
    _anthropic(413, "request_too_large", "request"),
    _anthropic(429, "rate_limit_error", "rate", 7, headers={"retry-after": "7"}, note="rate_limit_error, Retry-After 7"),
    _anthropic(429, "rate_limit_error", "rate", 2, is_event=True),
    _anthropic(500, "api_error", "broken", 3, is_event=True),
    _anthropic(502, "", "broken", 3, body=HTML, note="HTML"),
    _anthropic(504, "timeout_error", "late", 3, is_event=True),
    _anthropic(529, "overloaded_error", "overloaded", 5, is_event=True),
)  # fmt: skip
