"""Small parts of the wire: ids, headers, refusals."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from config.errors import DomainError
from proxy import errors, headers, request_ids
from quotas.errors import ConcurrencyReached, Degraded, LimitReached, Stale
from routing.errors import AccountsAtCap, NoAccountAvailable, OwnerGone, PoolBusy, PoolExhausted

NOW = datetime(2026, 3, 2, 12, 0, 0, tzinfo=UTC)
SECOND = int(NOW.timestamp())


def test_request_ids_are_ulids_of_now() -> None:
    made = [request_ids.new() for _ in range(5000)]
    assert len(set(made)) == 5000
    value = 0
    for character in made[0][4:14]:
        value = value * 32 + request_ids.ALPHABET.index(character)
    assert abs(datetime.fromtimestamp(value / 1000, UTC) - datetime.now(UTC)) < timedelta(seconds=10)
    assert all(len(text) == 30 and text.startswith("req_") for text in made)


def test_request_ids_stay_unique_beyond_the_random_block() -> None:
    sequence = request_ids.Sequence()
    sequence._next = request_ids._BLOCK - 3
    assert len({sequence.next() for _ in range(10)}) == 10
    assert request_ids.Sequence()._process != request_ids.Sequence()._process


def _pairs(text: str) -> list[tuple[bytes, bytes]]:
    lines = [line.strip() for line in text.replace("|", "\n").splitlines()]
    return [(name.encode(), value.encode()) for name, _, value in (line.partition(": ") for line in lines)]


def test_the_clients_identity_and_way_here_stay_here() -> None:
    """N71: forwarded headers from outside are worth nothing and go nowhere."""
    stays = """host: weir|authorization: Bearer wr_x|x-api-key: k|cookie: a=b|connection: keep-alive, x-odd|x-odd: 1|te: trailers
        transfer-encoding: chunked|upgrade: h2c|chatgpt-account-id: theirs|x-forwarded-for: 127.0.0.1|x-forwarded-proto: https
        forwarded: for=127.0.0.1|via: x|proxy-foo: 1|sec-websocket-key: k|content-length: 5|accept-encoding: zstd,gzip"""
    passes = """session-id: s|thread-id: t|x-client-request-id: t|x-codex-turn-state: ts|x-codex-window-id: w|originator: codex_exec
        user-agent: codex_exec/0.171.0|idempotency-key: i|content-type: application/json|accept: application/json"""
    got = headers.to_upstream(_pairs(stays) + _pairs(passes), token="secret-token", chatgpt_account_id="acct_1", is_streamed=True)
    assert got == [
        *_pairs(passes),
        (b"authorization", b"Bearer secret-token"),
        (b"chatgpt-account-id", b"acct_1"),
    ]


def test_accept_is_added_for_streams_only_if_it_is_missing_and_nothing_of_another_client() -> None:
    got = headers.to_upstream([(b"x-a", b"1")], token="t", chatgpt_account_id=None, is_streamed=True)
    assert got == [
        (b"x-a", b"1"),
        (b"authorization", b"Bearer t"),
        (b"accept", b"text/event-stream"),
        (b"content-type", b"application/json"),
    ]
    assert (b"accept", b"text/event-stream") not in headers.to_upstream([], token="t", chatgpt_account_id=None, is_streamed=False)


def test_the_pools_limits_and_cookies_never_reach_the_client() -> None:
    """N6: what the client hears of windows is its own key's, not the pool's."""
    upstream = [
        (b"content-type", b"text/event-stream"), (b"x-codex-turn-state", b"ts"), (b"openai-model", b"m"), (b"x-models-etag", b"e"),
        (b"x-reasoning-included", b"true"), (b"x-request-id", b"up"), (b"cf-ray", b"ray"), (b"retry-after", b"2"),
        (b"x-codex-primary-used-percent", b"42"), (b"x-codex-secondary-reset-at", b"1"), (b"x-codex-credits-balance", b"12"),
        (b"x-codex-plan-type", b"plus"), (b"x-codex-limit-name", b"codex"), (b"x-codex-active-limit", b"codex"),
        (b"x-bonus-pool-primary-used-percent", b"3"), (b"x-ratelimit-remaining-tokens", b"1"), (b"openai-organization", b"org"),
        (b"location", b"https://inside/"), (b"www-authenticate", b"Bearer realm=x"), (b"clear-site-data", b"*"),
        (b"set-cookie", b"a=b"), (b"connection", b"close"), (b"transfer-encoding", b"chunked"), (b"date", b"x"), (b"server", b"y"),
    ]  # fmt: skip
    assert headers.to_client(upstream, request_id="req_1") == [*upstream[:8], (b"x-weir-request-id", b"req_1")]
    rewritten = headers.to_client(
        [(b"content-type", b"text/event-stream"), (b"content-length", b"5")], request_id="r", is_rewritten=True
    )
    assert rewritten == [(b"x-request-id", b"r"), (b"x-weir-request-id", b"r")]


def test_who_asked_by_an_alias_reads_that_name_and_the_truth_beside_it() -> None:
    passed = headers.to_client([(b"openai-model", b"m-big"), (b"x-request-id", b"up")], request_id="r", asked_model="latest")
    assert passed == [
        (b"openai-model", b"latest"), (b"x-request-id", b"up"), (b"x-weir-served-model", b"m-big"), (b"x-weir-request-id", b"r"),
    ]  # fmt: skip
    assert (b"x-weir-served-model", b"m-big") not in headers.to_client([(b"openai-model", b"m-big")], request_id="r")


@pytest.mark.parametrize(
    ("told", "model", "served"),
    [
        ([b"m-big"], [b"asked"], b"m-big"),
        ([b"m-big-2026-05-01"], [b"asked"], b"m-big-2026-05-01"),
        ([b"m-safe"], [b"m-safe"], b"m-safe"),
        ([b"m-big-fast"], [b"m-big-fast"], b"m-big-fast"),
        ([], [], b"m-big"),
    ],
    ids=["as asked for", "dated", "rerouted", "another that begins alike", "untold"],
)
def test_an_upstreams_own_reroute_is_not_hidden_behind_the_asked_name(told: list[bytes], model: list[bytes], served: bytes) -> None:
    upstream = [(b"openai-model", value) for value in told]
    passed = headers.to_client(upstream, request_id="r", asked_model="asked", upstream_model="m-big")
    assert [value for name, value in passed if name == b"openai-model"] == model
    assert [value for name, value in passed if name == b"x-weir-served-model"] == [served]


def _limit(resets_at: int | None, retry_after: int) -> LimitReached:
    return LimitReached(
        "Limit reached.",
        scope="team",
        scope_name="core",
        metric="credits",
        window="week",
        limit=10_000_000,
        used=9_000_000,
        held=500_000,
        need=700_000,
        resets_at=resets_at,
        retry_after=retry_after,
        shown={"limit": "10", "used": "9", "held": "0.5", "need": "0.7"},
    )


def _concurrency() -> ConcurrencyReached:
    facts = {"scope": "key", "scope_name": "k", "metric": "concurrent", "window": "", "limit": 1, "used": 1, "held": 0, "need": 1}
    return ConcurrencyReached("x", **facts, resets_at=None, retry_after=1, shown={"limit": 1})


CASES: list[tuple[DomainError, int, str, str, str | None, bool]] = [
    (errors.InvalidApiKey("x"), 401, "invalid_request_error", "invalid_api_key", None, False),
    (errors.ModelNotAllowed("x", param="model"), 400, "invalid_request_error", "model_not_allowed", None, False),
    (errors.EffortNotAllowed("x"), 400, "invalid_request_error", "reasoning_effort_not_allowed", None, False),
    (errors.InvalidJson("x"), 400, "invalid_request_error", "invalid_json", None, False),
    (errors.PayloadTooLarge("x"), 400, "invalid_request_error", "payload_too_large", None, False),
    (errors.InvalidEncoding("x"), 400, "invalid_request_error", "invalid_encoding", None, False),
    (OwnerGone(), 400, "invalid_request_error", "previous_response_not_found", None, False),
    (_limit(SECOND + 90, 90), 429, "usage_limit_reached", "limit_reached", "90", True),
    (_concurrency(), 429, "rate_limit_exceeded", "concurrency_limit", "1", False),
    (AccountsAtCap(), 429, "rate_limit_exceeded", "concurrency_limit", "1", False),
    (PoolExhausted(SECOND + 4800), 429, "usage_limit_reached", "pool_exhausted", "4800", True),
    (PoolBusy(7), 429, "rate_limit_exceeded", "pool_busy", "7", False),
    (NoAccountAvailable("paused"), 400, "invalid_request_error", "no_account_available", None, False),
    (errors.Draining("x"), 503, "server_error", "draining", "5", False),
    (errors.Degraded("x"), 503, "server_error", "degraded", "5", False),
    (Degraded("redis", retry_after=1), 503, "server_error", "degraded", "1", False),
    (Stale(3), 503, "server_error", "stale", "5", False),
    (errors.UpstreamUnavailable("x"), 502, "server_error", "upstream_unavailable", None, False),
]  # fmt: skip


@pytest.mark.parametrize(("error", "status", "kind", "code", "retry_after", "is_final"), CASES, ids=lambda value: str(value)[:30])
def test_refusals_have_the_shapes_of_the_table(
    error: DomainError, status: int, kind: str, code: str, retry_after: str | None, is_final: bool
) -> None:
    answer = errors.answer(error, now=NOW, request_id="req_1")
    sent = dict(answer.headers)
    envelope = json.loads(answer.body)["error"]
    assert (answer.status, envelope["type"], envelope["code"]) == (status, kind, code)
    assert list(envelope)[:4] == ["message", "type", "param", "code"]
    assert sent.get(b"retry-after") == (retry_after.encode() if retry_after else None)
    assert sent.get(b"x-should-retry") == (b"false" if is_final else None)
    assert sent[b"content-length"] == str(len(answer.body)).encode()
    assert sent[b"content-type"] == b"application/json"
    assert sent[b"x-request-id"] == b"req_1"


def test_a_reached_limit_tells_whose_it_is_and_how_it_stands() -> None:
    envelope = json.loads(errors.answer(_limit(SECOND + 90, 90), now=NOW, request_id="r").body)["error"]
    assert {
        name: envelope[name] for name in ("scope", "scope_name", "metric", "window", "limit", "used", "held", "need", "resets_at")
    } == {
        "scope": "team",
        "scope_name": "core",
        "metric": "credits",
        "window": "week",
        "limit": "10",
        "used": "9",
        "held": "0.5",
        "need": "0.7",
        "resets_at": SECOND + 90,
    }
    never = errors.answer(_limit(None, 3600), now=NOW, request_id="r")
    assert "resets_at" not in json.loads(never.body)["error"]
    assert dict(never.headers)[b"retry-after"] == b"3600"
    past = errors.answer(_limit(SECOND - 5, 1), now=NOW, request_id="r")
    assert dict(past.headers)[b"retry-after"] == b"1"
