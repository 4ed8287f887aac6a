"""What upstream refusals mean: the captured bodies of `docs` and reports, one row each."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing import failures
from routing.failures import Failure, Kind

NOW = 1_796_000_000.0
RESET = 1_796_007_200


LOW_BALANCE = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to purchase credits."


def anthropic(kind: str, message: str = "") -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}).encode()


def vllm(code: int, kind: str, message: str = "") -> bytes:
    return json.dumps({"object": "error", "message": message, "type": kind, "param": None, "code": code}).encode()


def body(code: str | None = None, kind: str | None = "invalid_request_error", message: str = "", **more: Any) -> bytes:
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
        (body("429", None, "Requests have exceeded the token rate limit. Please retry after 6 seconds."), {}, 6.0),
        (vllm(429, "RateLimitError", "Too many. Retry in 4s"), {}, 4.0),
        (json.dumps({"detail": "Rate limited. Try again in 1.5 seconds."}).encode(), {}, 1.5),
        (anthropic("rate_limit_error", "This request would exceed the rate limit"), {"retry_after": "41"}, 41.0),
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
        (409, b"", Kind.REQUEST),
        (413, b"<html>too large</html>", Kind.REQUEST),
        (413, anthropic("request_too_large"), Kind.REQUEST),
        (400, anthropic("invalid_request_error", "max_tokens: 0"), Kind.REQUEST),
        (400, body("content_filter"), Kind.REQUEST),
        (400, vllm(400, "BadRequestError"), Kind.REQUEST),
        (422, json.dumps({"detail": [{"loc": ["body", "model"], "msg": "field required"}]}).encode(), Kind.REQUEST),
        (400, body("websocket_connection_limit_reached"), Kind.ANCHOR),
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
        (401, anthropic("authentication_error", "invalid x-api-key"), (Kind.REFUSED_KEY, True, True, 60.0)),
        (401, body("401", None, "Access denied due to invalid subscription key"), (Kind.TOKEN, True, False, 60.0)),
        (401, json.dumps({"error": "Unauthorized"}).encode(), (Kind.TOKEN, True, False, 60.0)),
        (402, anthropic("billing_error"), (Kind.QUOTA, False, False, 300.0)),
        (402, b"", (Kind.QUOTA, False, False, 300.0)),
        (400, anthropic("invalid_request_error", LOW_BALANCE), (Kind.QUOTA, False, False, 300.0)),
        (403, body("forbidden"), (Kind.FORBIDDEN, False, False, 60.0)),
        (403, anthropic("permission_error"), (Kind.FORBIDDEN, False, False, 60.0)),
        (403, b"<html><title>Just a moment...</title></html>", (Kind.FORBIDDEN, False, False, 60.0)),
        (404, body("model_not_found"), (Kind.MODEL, False, False, None)),
        (404, body("DeploymentNotFound", None), (Kind.MODEL, False, False, None)),
        (404, anthropic("not_found_error", "model: claude-x"), (Kind.MODEL, False, False, None)),
        (404, vllm(404, "NotFoundError"), (Kind.MODEL, False, False, None)),
        (404, b"<html>nothing here</html>", (Kind.MODEL, False, False, None)),
        (408, b"", (Kind.UPSTREAM_ERROR, False, False, 3.0)),
        (429, body("insufficient_quota", "insufficient_quota"), (Kind.QUOTA, False, False, 300.0)),
        (429, body("credit_balance_exhausted", "insufficient_quota"), (Kind.QUOTA, False, False, 300.0)),
        (429, anthropic("rate_limit_error"), (Kind.RATE, False, False, 2.0)),
        (429, vllm(429, "RateLimitError"), (Kind.RATE, False, False, 2.0)),
        (529, anthropic("overloaded_error"), (Kind.OVERLOADED, False, False, 5.0)),
        (500, anthropic("api_error"), (Kind.UPSTREAM_ERROR, False, False, 3.0)),
        (500, vllm(500, "InternalServerError"), (Kind.UPSTREAM_ERROR, False, False, 3.0)),
        (429, body(None, "usage_not_included"), (Kind.QUOTA, False, False, 3600.0)),
        (500, body("server_error", "server_error"), (Kind.UPSTREAM_ERROR, False, False, 3.0)),
        (502, b"<html>bad gateway</html>", (Kind.UPSTREAM_ERROR, False, False, 3.0)),
        (503, body("server_is_overloaded", "service_unavailable_error"), (Kind.OVERLOADED, False, False, 5.0)),
        (503, b"", (Kind.OVERLOADED, False, False, 5.0)),
    ],
)
def test_a_fault_of_the_account_or_upstream_moves_the_request(
    status: int, content: bytes, expected: tuple[Kind, bool, bool, float | None]
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


@pytest.mark.parametrize(
    ("event", "kind", "movable"),
    [
        # A WebSocket's error frame, as captured (protocol note, samples/ws_error_frames.jsonl): its own status and headers count.
        ({"type": "error", "status": 429, "error": {"message": "slow"}, "headers": {"Retry-After": "7"}}, Kind.RATE, True),
        ({"type": "error", "status_code": 401, "error": {"message": "who?"}}, Kind.TOKEN, True),
        ({"type": "error", "status": 400, "error": {"code": "websocket_connection_limit_reached"}}, Kind.ANCHOR, False),
        # Events of streams that say their status as a code.
        ({"error": {"message": "boom", "type": "InternalServerError", "code": 500}}, Kind.UPSTREAM_ERROR, True),
        ({"error": {"message": "slow down", "code": "429"}}, Kind.RATE, True),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, Kind.OVERLOADED, True),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, Kind.REQUEST, False),
        ({"type": "error", "code": "server_is_overloaded", "message": "x"}, Kind.OVERLOADED, True),
        (
            {"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error"}}},
            Kind.UPSTREAM_ERROR,
            True,
        ),
        ({"type": "error", "status": 200, "error": {"code": 9_999_999}}, Kind.REQUEST, False),
    ],
)
def test_an_event_that_names_its_status_is_judged_by_it(event: dict[str, Any], kind: Kind, movable: bool) -> None:
    found = judged(200, json.dumps(event).encode())
    assert (found.kind, found.movable) == (kind, movable)


def test_a_frames_own_headers_say_how_long_and_until_when() -> None:
    frame = {"type": "error", "status": 429, "error": {"message": "slow"}, "headers": {"Retry-After": "7"}}
    assert judged(200, json.dumps(frame).encode()).cooldown_seconds == 7.0
    full = {"x-codex-primary-used-percent": "100", "x-codex-primary-reset-at": str(RESET)}
    frame = {"type": "error", "status": 429, "error": {"type": "usage_limit_reached"}, "headers": full}
    assert judged(200, json.dumps(frame).encode()).resets_at == RESET


@pytest.mark.parametrize("status", [504, 524])
def test_a_gateway_that_gave_up_waiting_is_not_asked_again_by_us(status: int) -> None:
    """What may still be running is never sent a second time; the client decides."""
    found = judged(status, b"<html>timeout</html>")
    assert (found.kind, found.movable, found.cooldown_seconds) == (Kind.UPSTREAM_ERROR, False, 3.0)
    assert judged(status, anthropic("timeout_error")) == Failure(
        Kind.UPSTREAM_ERROR, movable=False, cooldown_seconds=3.0, code="timeout_error"
    )


def test_every_row_of_the_table_names_its_source_and_can_be_reached() -> None:
    """A row that an earlier one hides would never decide."""
    sources = ("note", "sample", "OpenAI", "Anthropic", "Azure", "vLLM", "RFC 9110", "Weir")
    for number, row in enumerate(failures.TABLE):
        assert row.source.startswith(sources), row
        words = row.codes or frozenset({"never heard of"})
        statuses = [status for statuses in row.statuses for status in statuses] or [200]
        message = LOW_BALANCE if row.says is not None else ""
        reached = any(
            next(index for index, other in enumerate(failures.TABLE) if other.fits(frozenset({word}), status, message)) == number
            for word in words
            for status in statuses
        )
        assert reached, row


def test_a_code_that_a_log_cannot_take_loses_what_it_cannot() -> None:
    content = json.dumps({"error": {"code": "bad\ud800\x00\n" + "x" * 500}}).encode()
    assert judged(400, content).code == "bad" + "x" * 74


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
NAMES = st.sampled_from(
    ["error", "detail", "response", "code", "type", "message", "status", "status_code", "headers", "resets_at", "resets_in_seconds"]
)
WORDS = st.sampled_from(sorted({word for row in failures.TABLE for word in row.codes}))
JSON = st.recursive(
    SCALARS | WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=15
)
HEADERS = st.dictionaries(
    st.sampled_from(["retry-after", "retry-after-ms", "x-codex-primary-used-percent", "x-codex-primary-reset-at"]),
    st.text(max_size=30) | st.sampled_from(["Mon, 01 Jan 2026", "1e999", "-1", "nan", "Tue, 01 Dec 2026 00:00:00 GMT"]),
)


def judged_soundly(status: int, headers: dict[str, str], content: bytes) -> None:
    found = failures.classify(status, headers, content, now=NOW)
    assert found.cooldown_seconds is None or 0 <= found.cooldown_seconds <= 3600
    assert found.resets_at is None or NOW < found.resets_at <= NOW + 40 * 86_400 + 1
    assert found.code.isascii()
    assert found.code.isprintable()
    assert len(found.code) <= 80


@given(st.integers(100, 700), HEADERS, JSON)
def test_no_json_makes_it_fail(status: int, headers: dict[str, str], value: Any) -> None:
    judged_soundly(status, headers, json.dumps(value).encode())


@given(st.integers(100, 700), HEADERS, st.binary(max_size=200))
def test_no_bytes_make_it_fail(status: int, headers: dict[str, str], content: bytes) -> None:
    judged_soundly(status, headers, content)


def test_no_depth_makes_it_fail() -> None:
    for depth in (900, 990, 100_000):
        content = b'{"error":{"code":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}}"
        assert judged(429, content).kind is Kind.RATE
