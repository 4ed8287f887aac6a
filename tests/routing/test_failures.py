"""What upstream refusals mean: the captured bodies of `docs` and reports, one row each."""

import json
from typing import Any

import pytest

from routing import failures
from routing.failures import Failure, Kind

NOW = 1_796_000_000.0
RESET = 1_796_007_200


def body(code: str | None = None, kind: str = "invalid_request_error", message: str = "", **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code, **more}}).encode()


def judged(status: int, content: bytes, **headers: str) -> Failure:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return failures.classify(status, named, content, now=NOW)


def test_a_used_up_account_is_exhausted_until_its_reset() -> None:
    """N30: 429 usage_limit_reached moves the request, and blocks the account until the reset that the body names."""
    content = json.dumps({"error": {"type": "usage_limit_reached", "resets_at": RESET, "resets_in_seconds": 7200}}).encode()
    assert judged(429, content) == Failure(Kind.USAGE_LIMIT, movable=True, resets_at=RESET, code="usage_limit_reached")


def test_a_reset_in_seconds_counts_from_now() -> None:
    content = json.dumps({"error": {"type": "usage_limit_reached", "resets_in_seconds": 60}}).encode()
    assert judged(429, content).resets_at == int(NOW) + 60


def test_without_a_reset_in_the_body_the_full_window_of_the_head_says_it() -> None:
    content = json.dumps({"error": {"type": "usage_limit_reached"}}).encode()
    found = judged(
        429,
        content,
        x_codex_primary_used_percent="100",
        x_codex_primary_reset_at=str(RESET),
        x_codex_secondary_used_percent="17",
        x_codex_secondary_reset_at=str(RESET + 500_000),
    )
    assert found.resets_at == RESET
    assert found.cooldown_seconds is None


@pytest.mark.parametrize("told", [RESET * 1000, 4_070_908_800, int(NOW) - 1, "soon", None, float("inf"), True])
def test_a_reset_that_cannot_be_is_a_minute_of_cooldown_instead(told: object) -> None:
    """N13: milliseconds, the year 2099, the past, or no number at all."""
    content = json.dumps({"error": {"type": "usage_limit_reached", "resets_at": told}}).encode()
    found = judged(429, content)
    assert found.resets_at is None
    assert found.cooldown_seconds == 60.0
    assert found.movable


@pytest.mark.parametrize(
    ("content", "headers", "seconds"),
    [
        (body("rate_limit_exceeded", "requests", "Rate limit reached. Please try again in 2s."), {"retry_after": "3"}, 3.0),
        (body("rate_limit_exceeded", "tokens", "Rate limit reached. Please try again in 1.2s."), {}, 1.2),
        (body("rate_limit_exceeded", "requests", "try again in 1m30s"), {}, 90.0),
        (body("rate_limit_exceeded", "requests", "Please try again in 250ms."), {}, 0.25),
        (body("rate_limit_exceeded", "requests", "Please try again in 1 hour 2 minutes 3 seconds."), {}, 3600.0),
        (b"Too many requests", {}, 2.0),
        (b"Too many requests", {"retry_after_ms": "1500"}, 1.5),
        (b"Too many requests", {"retry_after": ""}, 2.0),
        (b"<html>slow</html>", {"retry_after": "Tue, 01 Dec 2026 00:00:00 GMT"}, 3600.0),
    ],
)
def test_a_burst_is_a_short_cooldown_as_long_as_the_answer_says(content: bytes, headers: dict[str, str], seconds: float) -> None:
    """N32 N36: a 429 with a message only is a burst; "try again in 1m30s" is 90 s; never more than an hour."""
    found = judged(429, content, **headers)
    assert (found.kind, found.movable, found.resets_at) == (Kind.RATE, True, None)
    assert found.cooldown_seconds == pytest.approx(seconds)


def test_a_burst_inside_a_stream_is_read_like_one_in_an_answer() -> None:
    """N33: the failing first event of a 200 stream."""
    event = {
        "type": "response.failed",
        "response": {"error": {"code": "rate_limit_exceeded", "message": "Please try again in 1.2s."}},
    }
    found = judged(200, json.dumps(event).encode())
    assert (found.kind, found.movable, found.cooldown_seconds) == (Kind.RATE, True, 1.2)
    overloaded = {"type": "error", "status": 503, "error": {"code": "server_is_overloaded", "message": ""}}
    assert judged(200, json.dumps(overloaded).encode()) == Failure(
        Kind.OVERLOADED, movable=True, cooldown_seconds=5.0, code="server_is_overloaded"
    )


def test_an_unknown_failure_of_a_stream_goes_to_the_client_and_costs_the_account_nothing() -> None:
    found = judged(200, json.dumps({"type": "response.failed", "response": {"error": {"code": "bio_policy"}}}).encode())
    assert found == Failure(Kind.REQUEST, movable=False, code="bio_policy")


@pytest.mark.parametrize(
    ("status", "content", "kind"),
    [
        (400, body("context_length_exceeded"), Kind.CONTEXT),
        (400, body("previous_response_not_found"), Kind.ANCHOR),
        (400, body("invalid_encrypted_content"), Kind.ANCHOR),
        (400, body("invalid_value"), Kind.REQUEST),
        (400, json.dumps({"detail": "Unsupported parameter: max_output_tokens"}).encode(), Kind.REQUEST),
        (404, body("model_not_found"), Kind.REQUEST),
        (409, b"", Kind.REQUEST),
        (413, b"<html>too large</html>", Kind.REQUEST),
        (422, b"[]", Kind.REQUEST),
    ],
)
def test_a_fault_of_the_request_moves_nothing_and_costs_the_account_nothing(status: int, content: bytes, kind: Kind) -> None:
    """N8 N35: every account would say the same."""
    found = judged(status, content)
    assert (found.kind, found.movable) == (kind, False)
    assert (found.cooldown_seconds, found.resets_at, found.sign_in, found.refresh) == (None, None, False, False)


@pytest.mark.parametrize(
    ("status", "content", "expected"),
    [
        (401, body("token_expired"), (Kind.TOKEN, True, False, 60.0)),
        (401, body("invalid_token"), (Kind.TOKEN, True, False, 60.0)),
        (401, b"", (Kind.TOKEN, True, False, 60.0)),
        (401, body("invalid_api_key"), (Kind.REFUSED_KEY, True, True, 60.0)),
        (402, body("deactivated_workspace"), (Kind.DEACTIVATED, False, True, 60.0)),
        (402, json.dumps({"detail": {"code": "deactivated_workspace"}}).encode(), (Kind.DEACTIVATED, False, True, 60.0)),
        (403, body("forbidden"), (Kind.FORBIDDEN, False, False, 60.0)),
        (403, b"<html><title>Just a moment...</title></html>", (Kind.FORBIDDEN, False, False, 60.0)),
        (429, body("insufficient_quota", "insufficient_quota"), (Kind.QUOTA, False, False, 300.0)),
        (429, body(None, "usage_not_included"), (Kind.QUOTA, False, False, 3600.0)),
        (500, body("server_error", "server_error"), (Kind.UPSTREAM_ERROR, False, False, 3.0)),
        (502, b"<html>bad gateway</html>", (Kind.UPSTREAM_ERROR, False, False, 3.0)),
        (503, body("server_is_overloaded", "service_unavailable_error"), (Kind.OVERLOADED, False, False, 5.0)),
        (503, b"", (Kind.OVERLOADED, False, False, 5.0)),
    ],
)
def test_a_fault_of_the_account_or_upstream_moves_the_request(
    status: int, content: bytes, expected: tuple[Kind, bool, bool, float]
) -> None:
    found = judged(status, content)
    assert (found.kind, found.refresh, found.sign_in, found.cooldown_seconds) == expected
    assert found.movable


def test_slow_down_waits_as_long_as_told() -> None:
    content = body("slow_down", "service_unavailable_error")
    assert judged(503, content, retry_after="1").cooldown_seconds == 1.0


def test_what_was_written_and_not_answered_is_never_sent_again() -> None:
    assert not failures.unreachable(written=True).movable
    assert failures.unreachable(written=False).movable


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "cooldown"),
    [
        (400, {}, b'{"error":' * 50_000, Kind.REQUEST, None),
        (429, {}, b'{"error":{"type":"usage_limit_reached","resets_at":' + b"9" * 400 + b"}}", Kind.USAGE_LIMIT, 60.0),
        (429, {}, b'{"error":{"type":"usage_limit_reached","resets_in_seconds":' + b"9" * 400 + b"}}", Kind.USAGE_LIMIT, 60.0),
        (429, {"retry-after": "Mon, 01 Jan 0001 00:00:00 -0000"}, b"", Kind.RATE, 0.0),
        (429, {"retry-after": "Mon, 01 Jan 9999 00:00:00 GMT"}, b"", Kind.RATE, 2.0),
        (429, {"retry-after": "9" * 400}, b"", Kind.RATE, 2.0),
        (429, {}, b'{"error":{"message":"try again in ' + b"9" * 400 + b'h"}}', Kind.RATE, 2.0),
    ],
)
def test_numbers_and_depths_that_cannot_be_are_no_fault_of_ours(
    status: int, headers: dict[str, str], body: bytes, kind: Kind, cooldown: float | None
) -> None:
    """N13: a time that cannot be is no time, however it is spelt."""
    failure = failures.classify(status, headers, body, now=1_800_000_000.0)
    assert (failure.kind, failure.cooldown_seconds, failure.resets_at) == (kind, cooldown, None)
