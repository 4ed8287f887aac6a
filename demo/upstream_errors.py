"""Refusals of the upstream by name, as the real ones look: status, headers, body.

From the protocol note's samples (`error_bodies.json`); `401_revoked` and the `400_stream`, `400_store` rows are ours.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """`body` is sent as JSON, a text as it is."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


def _error(status: int, message: str, code: str, kind: str = "invalid_request_error", **headers: str) -> Refusal:
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return Refusal(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def _anthropic(status: int, kind: str, message: str, **headers: str) -> Refusal:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}
    return Refusal(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


ERRORS: dict[str, Refusal] = {
    "401": _error(401, "Incorrect API key provided", "invalid_api_key"),
    "401_token_expired": _error(401, "Provided authentication token is expired. Please try signing in again.", "token_expired"),
    "401_revoked": _error(401, "Your authentication token has been invalidated. Please try signing in again.", "token_invalidated"),
    "402": Refusal(
        402,
        {
            "error": {
                "message": "Payment required",
                "type": "invalid_request_error",
                "param": None,
                "code": "deactivated_workspace",
            },
            "detail": {"code": "deactivated_workspace"},
        },
    ),
    "403": _error(403, "You are not allowed", "forbidden"),
    "400_detail": Refusal(400, {"detail": "Unsupported parameter: max_output_tokens"}),
    "400_stream": Refusal(400, {"detail": "Stream must be set to true"}),
    "400_store": Refusal(400, {"detail": "Store must be set to false"}),
    "400_context": _error(400, "Your input exceeds the context window of this model.", "context_length_exceeded"),
    "400_prev": _error(400, "Previous response with id 'resp_x' not found.", "previous_response_not_found"),
    "429_usage": Refusal(
        429,
        {
            "error": {
                "type": "usage_limit_reached",
                "message": "The usage limit has been reached",
                "plan_type": "plus",
                "resets_at": 1999997200,
                "resets_in_seconds": 7200,
            }
        },
        {
            "x-codex-plan-type": "plus",
            "x-codex-active-limit": "codex",
            "x-codex-primary-used-percent": "100",
            "x-codex-primary-window-minutes": "300",
            "x-codex-primary-reset-at": "1999999999",
            "x-codex-primary-reset-after-seconds": "3600",
            "x-codex-secondary-used-percent": "17",
            "x-codex-secondary-window-minutes": "10080",
            "x-codex-secondary-reset-at": "2000500000",
            "x-codex-secondary-reset-after-seconds": "500000",
            "x-codex-credits-has-credits": "true",
            "x-codex-credits-unlimited": "false",
            "x-codex-credits-balance": "12.34",
            "x-codex-limit-name": "codex",
            "x-codex-rate-limit-reached-type": "rate_limit_reached",
        },
    ),
    "429_usage_noreset": Refusal(429, {"error": {"type": "usage_limit_reached", "message": "The usage limit has been reached"}}),
    "429_not_included": Refusal(429, {"error": {"type": "usage_not_included", "message": "Not included", "plan_type": "free"}}),
    "429_rate": _error(429, "Rate limit reached. Please try again in 2s.", "rate_limit_exceeded", "requests", retry_after="2"),
    "429_quota": _error(429, "You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
    "429_plain": Refusal(429, "Too many requests"),
    "500": _error(500, "boom", "server_error", "server_error"),
    "503_overloaded": _error(
        503, "Our servers are currently overloaded. Please try again later.", "server_is_overloaded", "service_unavailable_error"
    ),
    "503_slow_down": _error(503, "Slow down", "slow_down", "service_unavailable_error", retry_after="1"),
    "anthropic_400": _anthropic(400, "invalid_request_error", "messages: roles must alternate"),
    "anthropic_400_credit": _anthropic(
        400,
        "invalid_request_error",
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits.",
    ),
    "anthropic_401": _anthropic(401, "authentication_error", "invalid x-api-key"),
    "anthropic_403": _anthropic(403, "permission_error", "Your API key does not have permission to use the specified resource."),
    "anthropic_404": _anthropic(404, "not_found_error", "model: claude-none"),
    "anthropic_429": _anthropic(
        429, "rate_limit_error", "This request would exceed your account's rate limit. Please try again later.", retry_after="2"
    ),
    "anthropic_500": _anthropic(500, "api_error", "Internal server error"),
    "anthropic_529": _anthropic(529, "overloaded_error", "Overloaded"),
}
