"""The scripted upstream over a real socket: what clients get from it, and what its control routes make it do."""

import asyncio
import base64
import errno
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import zstandard

import demo.upstream
from demo.upstream_errors import ERRORS
from demo.upstream_script import Answer
from tests import secrets
from tests.upstream import ScriptedUpstream

OPENAI = {"authorization": "Bearer sk-test-upstream"}
TEXT_ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


@pytest.fixture
def http(upstream: ScriptedUpstream) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=upstream.url, timeout=10, trust_env=False) as client:
        yield client


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream; checks that each `event:` line names the type in its data."""
    found = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def types(text: str) -> list[str]:
    return [event["type"] for event in events(text)]


def ask(http: httpx.Client, text: Any = "hello", **fields: Any) -> httpx.Response:
    return http.post("/v1/responses", json={"model": "gpt-5.4", "input": text, "stream": True, **fields}, headers=OPENAI)


def signed_in(auth: dict[str, Any]) -> dict[str, str]:
    tokens = auth["tokens"]
    return {"authorization": f"Bearer {tokens['access_token']}", "chatgpt-account-id": tokens["account_id"]}


def ask_chatgpt(http: httpx.Client, auth: dict[str, Any], text: str = "hello", **fields: Any) -> httpx.Response:
    body = {"model": "gpt-5.4", "input": text, "stream": True, "store": False, **fields}
    return http.post("/backend-api/codex/responses", json=body, headers=signed_in(auth))


def refresh(http: httpx.Client, token: str) -> httpx.Response:
    body = {"client_id": "app_x", "grant_type": "refresh_token", "refresh_token": token, "refresh_reason": "proactive_expiry"}
    answer = http.post("/oauth/token", json=body)
    if answer.status_code == 200:
        for name in ("access_token", "refresh_token", "id_token"):
            secrets.register(answer.json()[name], name)
    return answer


def claims(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))


# ---------------------------------------------------------------------------------------------------------- responses


def test_a_text_streams_in_the_grammar_of_the_samples(http: httpx.Client) -> None:
    answer = ask(http, "hello")
    assert answer.headers["content-type"] == "text/event-stream"
    found = events(answer.text)
    assert [event["type"] for event in found] == TEXT_ORDER
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    deltas = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    response = found[-1]["response"]
    assert "".join(deltas) == response["output"][0]["content"][0]["text"] == "You said: hello"
    assert (response["status"], response["model"], response["service_tier"]) == ("completed", "gpt-5.4", "default")
    size = len(answer.request.content)
    assert response["usage"] == {
        "input_tokens": size // 4,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": size // 4 + 9,
    }


def test_without_stream_the_answer_is_the_folded_response(http: httpx.Client) -> None:
    answer = ask(http, stream=False, service_tier="priority")
    assert answer.headers["content-type"] == "application/json"
    assert (answer.json()["object"], answer.json()["status"], answer.json()["service_tier"]) == (
        "response",
        "completed",
        "priority",
    )
    assert answer.json()["output"][0]["content"][0]["text"] == "You said: hello"


def test_a_repeated_cache_key_is_cached_in_blocks_for_the_same_account_only(http: httpx.Client) -> None:
    text = "x" * 4000
    first = ask(http, text, prompt_cache_key="k", stream=False)
    second = ask(http, text, prompt_cache_key="k", stream=False)
    other = http.post("/v1/responses", content=second.request.content, headers={"authorization": "Bearer sk-other"})
    assert len(first.request.content) // 4 == 1017
    cached = [one.json()["usage"]["input_tokens_details"]["cached_tokens"] for one in (first, second, other)]
    assert cached == [0, 896, 0]


def test_a_tool_turn_calls_the_function_and_then_reports_its_output(http: httpx.Client) -> None:
    tools = [
        {"type": "web_search"},
        {"type": "function", "name": "weather", "parameters": {
            "type": "object", "required": ["city", "days"], "properties": {
                "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"type": "string"}}}},
    ]  # fmt: skip
    said = [{"role": "user", "content": [{"type": "input_text", "text": "RUN_TOOL please"}]}]
    found = events(ask(http, said, tools=tools).text)
    assert [event["type"] for event in found][2:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    [call] = found[-1]["response"]["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "weather", {"city": "hi", "days": 1})
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    final = events(ask(http, [*said, call, output], tools=tools).text)[-1]["response"]
    assert final["output"][0]["content"][0]["text"] == "Tool finished: sunny"


def test_codex_is_asked_to_run_its_shell(http: httpx.Client) -> None:
    tools = [{"type": "function", "name": "view_image"}, {"type": "function", "name": "exec_command"}]
    [call] = ask(http, "RUN_TOOL say hi", tools=tools, stream=False).json()["output"]
    assert (call["name"], call["arguments"]) == ("exec_command", '{"cmd": "echo hi"}')


def test_a_compaction_is_answered_with_a_compaction_item(http: httpx.Client) -> None:
    given = [{"role": "user", "content": "RUN_TOOL"}, {"type": "compaction_trigger"}]
    found = events(ask(http, given).text)
    assert [event["type"] for event in found][2:] == ["response.output_item.done", "response.completed"]
    assert found[-2]["item"]["type"] == "compaction"


def test_a_short_output_limit_makes_the_response_incomplete(http: httpx.Client) -> None:
    response = events(ask(http, "a b c d", max_output_tokens=9).text)[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["usage"]["output_tokens"] == 9


def test_a_continuation_carries_its_parent_and_is_known_to_its_own_key_only(http: httpx.Client) -> None:
    parent = ask(http, stream=False).json()
    answer = ask(http, stream=False, previous_response_id=parent["id"])
    own = len(answer.request.content) // 4
    assert answer.json()["usage"]["input_tokens"] == own + parent["usage"]["total_tokens"]
    foreign = http.post("/v1/responses", content=answer.request.content, headers={"authorization": "Bearer sk-other"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (400, "previous_response_not_found")


# ------------------------------------------------------------------------------------------------------------ chatgpt


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"stream": False}, "Stream must be set to true"),
        ({"store": True}, "Store must be set to false"),
        ({"max_output_tokens": 5}, "Unsupported parameter: max_output_tokens"),
    ],
)
def test_chatgpt_refuses_what_it_does_not_take(
    upstream: ScriptedUpstream, http: httpx.Client, fields: dict[str, Any], detail: str
) -> None:
    auth = upstream.mint()
    answer = ask_chatgpt(http, auth, **fields)
    assert (answer.status_code, answer.json()) == (400, {"detail": detail})
    assert upstream.account(auth["tokens"]["account_id"])["week_percent"] == 0


def test_chatgpt_takes_zstd_and_always_echoes_the_default_tier(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    plain = json.dumps({"model": "m", "input": "hello", "stream": True, "store": False, "service_tier": "priority"}).encode()
    packed = zstandard.compress(plain)
    headers = {**signed_in(upstream.mint()), "content-encoding": "zstd", "content-type": "application/json"}
    answer = http.post("/backend-api/codex/responses", content=packed, headers=headers)
    response = events(answer.text)[-1]["response"]
    assert (response["usage"]["input_tokens"], response["service_tier"]) == (len(plain) // 4, "default")
    assert [one.body for one in upstream.received()] == [packed]
    broken = http.post("/backend-api/codex/responses", content=b"no zstd", headers=headers)
    assert (broken.status_code, broken.json()) == (400, {"detail": "Invalid JSON"})


def test_only_a_valid_token_with_its_own_account_is_let_in(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    ours, other = upstream.mint(), upstream.mint()
    wrong_account = {**signed_in(ours), "chatgpt-account-id": other["tokens"]["account_id"]}
    body = {"model": "m", "input": "x", "stream": True, "store": False}
    refused = http.post("/backend-api/codex/responses", json=body, headers=wrong_account)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    unknown = http.post("/backend-api/codex/responses", json=body, headers={"authorization": "Bearer nobody"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (401, "invalid_token")
    upstream.expire(ours["tokens"]["account_id"])
    upstream.revoke(account_id=other["tokens"]["account_id"])
    codes = [ask_chatgpt(http, auth).json()["error"]["code"] for auth in (ours, other)]
    assert codes == ["token_expired", "token_invalidated"]
    stale = upstream.mint(expires_in=-5)
    assert ask_chatgpt(http, stale).json()["error"]["code"] == "token_expired"
    assert claims(stale["tokens"]["access_token"])["exp"] < time.time()


def test_any_sk_key_is_taken_until_it_is_revoked(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    body = {"model": "m", "input": "x"}
    key = {"authorization": "Bearer sk-one"}
    assert http.post("/v1/responses", json=body, headers=key).status_code == 200
    upstream.revoke(token="sk-one")
    for headers in (key, {"authorization": "Bearer wr_x"}, {}):
        refused = http.post("/v1/responses", json=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


def test_windows_rise_with_what_was_served(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    auth = upstream.mint(short_percent=10, week_percent=20)
    upstream.script({"usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 400_000}})
    before = ask_chatgpt(http, auth)
    after = ask_chatgpt(http, auth)
    names = [f"x-codex-{slot}-{name}" for slot in ("primary", "secondary") for name in ("used-percent", "window-minutes")]
    assert [before.headers[name] for name in names] == ["10", "300", "20", "10080"]
    # 400,000 of 20,000,000 tokens: 2 % of the week, six times that of the five hours.
    assert [after.headers[name] for name in names] == ["22", "300", "22", "10080"]
    assert int(after.headers["x-codex-primary-reset-at"]) - time.time() == pytest.approx(18000, abs=5)
    usage = http.get("/backend-api/wham/usage", headers=signed_in(auth)).json()
    assert usage["rate_limit"]["primary_window"]["used_percent"] == 22
    assert usage["rate_limit"]["secondary_window"]["limit_window_seconds"] == 604800
    assert usage["rate_limit"]["allowed"] is True


def test_a_full_window_is_a_usage_limit_until_its_reset(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    auth = upstream.mint(plan="pro")
    resets_at = int(time.time()) + 900
    upstream.windows(auth["tokens"]["account_id"], week_percent=100, week_reset_at=resets_at, slots=["week"])
    answer = ask_chatgpt(http, auth)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["plan_type"], error["resets_at"]) == (
        429,
        "usage_limit_reached",
        "pro",
        resets_at,
    )
    assert (answer.headers["x-codex-primary-window-minutes"], answer.headers["x-codex-primary-used-percent"]) == ("10080", "100")
    assert "x-codex-secondary-used-percent" not in answer.headers
    upstream.windows(auth["tokens"]["account_id"], week_percent=100, week_reset_at=1)
    assert ask_chatgpt(http, auth).status_code == 200


def test_model_lists_and_accounts_check(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    auth = upstream.mint(plan="plus")
    codex = http.get("/backend-api/codex/models?client_version=0.171.0", headers=signed_in(auth))
    openai = http.get("/v1/models", headers=OPENAI)
    slugs = [model["slug"] for model in codex.json()["models"]]
    assert codex.headers["etag"] == '"scripted-1"'
    assert slugs == [model["id"] for model in openai.json()["data"]]
    assert "gpt-5.4" in slugs
    check = http.get("/backend-api/wham/accounts/check", headers=signed_in(auth)).json()
    [entry] = check["accounts"]
    assert (entry["id"], entry["plan_type"], entry["workspace_backend_origin"]) == (
        auth["tokens"]["account_id"], "plus", "NO_CONSTRAINT",
    )  # fmt: skip
    for path in ("/backend-api/codex/models", "/backend-api/wham/usage", "/backend-api/wham/accounts/check", "/v1/models"):
        assert http.get(path).status_code == 401
    assert http.get("/v1/elsewhere", headers=OPENAI).status_code == 404


# ------------------------------------------------------------------------------------------------------------- issuer


def test_a_refresh_token_works_once(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    auth = upstream.mint()
    first = refresh(http, auth["tokens"]["refresh_token"])
    renewed = first.json()
    assert set(renewed) == {"id_token", "access_token", "refresh_token", "token_type", "expires_in", "scope"}
    assert renewed["access_token"] != auth["tokens"]["access_token"]
    again = refresh(http, auth["tokens"]["refresh_token"])
    assert (again.status_code, again.json()["error"]["code"]) == (401, "refresh_token_reused")
    assert upstream.refreshes(auth["tokens"]["account_id"]) == 1
    assert ask_chatgpt(http, {"tokens": {**auth["tokens"], **renewed}}).status_code == 200
    assert ask_chatgpt(http, auth).status_code == 200, "an access token stays valid until it expires"
    assert refresh(http, renewed["refresh_token"]).status_code == 200


def test_revoked_expired_and_unknown_refresh_tokens_are_told_apart(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    revoked, expired = upstream.mint(), upstream.mint()
    upstream.revoke(account_id=revoked["tokens"]["account_id"])
    upstream.expire(expired["tokens"]["account_id"], refresh=True)
    tokens = [revoked["tokens"]["refresh_token"], expired["tokens"]["refresh_token"], "rt_nothing"]
    codes = [refresh(http, token).json()["error"]["code"] for token in tokens]
    assert codes == ["refresh_token_invalidated", "refresh_token_expired", "refresh_token_invalidated"]
    for grant, code in (("authorization_code", "invalid_grant"), ("password", "unsupported_grant_type")):
        form = http.post("/oauth/token", data={"grant_type": grant, "code": "x"})
        assert (form.status_code, form.json()["error"]["code"]) == (400, code)


def test_the_claims_are_those_of_the_samples(upstream: ScriptedUpstream) -> None:
    tokens = upstream.mint(plan="pro", email="a@b.example", account_id="acct_claims", user_id="user_claims")["tokens"]
    found = claims(tokens["id_token"])
    auth = found["https://api.openai.com/auth"]
    assert (found["email"], auth["chatgpt_account_id"], auth["chatgpt_user_id"], auth["chatgpt_plan_type"]) == (
        "a@b.example", "acct_claims", "user_claims", "pro",
    )  # fmt: skip
    assert found["exp"] - time.time() == pytest.approx(864_000, abs=5)
    assert tokens["account_id"] == "acct_claims"


def test_tokens_outlive_a_restart(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    auth = upstream.mint(plan="pro", account_id="acct_restarted")
    upstream.reset(keep_accounts=False)
    answer = ask_chatgpt(http, auth)
    assert (answer.status_code, answer.headers["x-codex-plan-type"]) == (200, "pro")
    assert refresh(http, auth["tokens"]["refresh_token"]).status_code == 200
    assert refresh(http, auth["tokens"]["refresh_token"]).json()["error"]["code"] == "refresh_token_reused"


# ------------------------------------------------------------------------------------------------------------- script


def test_answers_are_taken_in_order_and_then_the_computed_one_comes_back(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    upstream.script({"error": "429_rate"}, {"status": 500, "body": "boom"}, repeat=2)
    found = [ask(http) for _ in range(5)]
    assert [one.status_code for one in found] == [429, 500, 429, 500, 200]
    assert (found[0].headers["retry-after"], found[0].json()["error"]["code"]) == ("2", "rate_limit_exceeded")
    assert (found[1].text, found[1].headers["content-type"]) == ("boom", "text/plain")
    assert [one.scripted for one in upstream.received()] == [True, True, True, True, False]
    assert [one.status for one in upstream.received()] == [429, 500, 429, 500, 200]


def test_a_script_answers_only_what_it_matches(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    auth = upstream.mint()
    upstream.script({"status": 418}, account=auth["tokens"]["account_id"], repeat=0)
    upstream.script({"status": 419}, model="other")
    upstream.script({"status": 420}, token="sk-else")
    upstream.script({"status": 503, "body": {"error": "down"}}, path="/oauth/token")
    assert ask(http).status_code == 200
    assert ask(http, model="other").status_code == 419
    assert http.post("/v1/responses", json={"model": "m"}, headers={"authorization": "Bearer sk-else"}).status_code == 420
    assert [ask_chatgpt(http, auth).status_code for _ in range(3)] == [418, 418, 418]
    assert refresh(http, auth["tokens"]["refresh_token"]).status_code == 503
    assert refresh(http, auth["tokens"]["refresh_token"]).status_code == 200, "the scripted failure spent nothing"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("script", {"answers": [{"stauts": 500}]}, "stauts"),
        ("script", {"answers": [{"status": "500"}]}, "$.answers[0].status"),
        ("script", {"answers": [{"error": "429_what"}]}, "429_what"),
        ("script", {"answers": [{"terminal": "response.done"}]}, "response.done"),
        ("script", {"answers": [{"chunk": 0}]}, "chunk"),
        ("script", {"answers": [{}], "match": {"user": "x"}}, "user"),
        ("script", {"answers": []}, "answers"),
        ("mint", {"plna": "pro"}, "plna"),
        ("windows", {"account_id": "nobody"}, "nobody"),
        ("reset", {"all": True}, "all"),
        ("release", {}, "name"),
        ("nothing", {}, "no such control"),
    ],
)
def test_a_wrong_control_request_is_named(
    upstream: ScriptedUpstream, http: httpx.Client, path: str, body: dict[str, Any], words: str
) -> None:
    answer = http.post(f"/control/{path}", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert ask(http).status_code == 200, "nothing was queued"


def test_everything_about_an_answer_can_be_set(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    usage = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    upstream.script(
        {"text": "one two", "usage": usage, "model": "served", "tier": "flex", "headers": {"X-Extra": "1", "x-request-id": None}},
        {"no_usage": True, "deltas": 5},
        {"terminal": "response.incomplete"},
        {"terminal": "none"},
        {"fail": {"code": "usage_limit_reached", "message": "over"}},
        {"fail": {"code": "server_error"}, "deltas": 2},
        {"tool": "f", "arguments": {"a": 1}},
        {"events": [{"type": "keepalive"}, {"type": "response.completed", "response": {"id": "r"}}]},
        {"raw": ": ping\n\ndata: x\n\n"},
        {"body": {"error": {"message": "no"}}, "status": 403},
    )
    first = ask(http)
    response = events(first.text)[-1]["response"]
    assert (response["usage"], response["model"], response["service_tier"]) == (usage, "served", "flex")
    assert response["output"][0]["content"][0]["text"] == "one two"
    assert first.headers["x-extra"] == "1"
    assert "x-request-id" not in first.headers
    second = events(ask(http).text)
    assert [event["type"] for event in second].count("response.output_text.delta") == 5
    assert second[-1]["response"]["usage"] is None
    assert events(ask(http).text)[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert types(ask(http).text)[-1] == "response.output_item.done"
    failed = events(ask(http).text)
    assert [event["type"] for event in failed] == ["response.created", "response.in_progress", "response.failed"]
    assert failed[-1]["response"]["error"] == {"code": "usage_limit_reached", "message": "over"}
    late = events(ask(http).text)
    assert [event["type"] for event in late].count("response.output_text.delta") == 2
    assert late[-1]["type"] == "response.failed"
    assert events(ask(http).text)[-1]["response"]["output"][0]["arguments"] == '{"a": 1}'
    assert types(ask(http).text) == ["keepalive", "response.completed"]
    assert ask(http).text == ": ping\n\ndata: x\n\n"
    refused = ask(http)
    assert (refused.status_code, refused.json()) == (403, {"error": {"message": "no"}})


def test_every_named_error_can_be_sent(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    upstream.script(*({"error": name} for name in ERRORS))
    for name, refusal in ERRORS.items():
        answer = ask(http)
        assert answer.status_code == refusal.status, name
        assert (answer.text if isinstance(refusal.body, str) else answer.json()) == refusal.body, name
        assert refusal.headers.items() <= dict(answer.headers).items(), name


# ------------------------------------------------------------------------------------------------- delays, cuts, silence


def raw_answer(upstream: ScriptedUpstream, body: dict[str, Any] | None = None) -> tuple[list[tuple[float, bytes]], int | None]:
    """One request over a bare socket: each read with its time, and the errno that ended it (None for a FIN)."""
    data = json.dumps(body or {"model": "m", "input": "hello", "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-raw\r\ncontent-length: {len(data)}\r\n\r\n"
    reads: list[tuple[float, bytes]] = []
    with socket.create_connection(("127.0.0.1", upstream.port), timeout=5) as connection:
        started = time.monotonic()
        connection.sendall(head.encode() + data)
        while True:
            try:
                part = connection.recv(65536)
            except OSError as error:
                return reads, error.errno
            if not part:
                return reads, None
            reads.append((time.monotonic() - started, part))
            if b"".join(one for _, one in reads).endswith(b"\r\n0\r\n\r\n"):
                return reads, None


def content(reads: list[tuple[float, bytes]]) -> bytes:
    """The body as it came so far, taken out of its chunks."""
    rest = b"".join(part for _, part in reads).partition(b"\r\n\r\n")[2]
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


def test_a_cut_resets_the_connection_after_so_many_events(upstream: ScriptedUpstream) -> None:
    upstream.script({"cut_after_events": 4})
    reads, ended = raw_answer(upstream)
    assert ended == errno.ECONNRESET
    assert types(content(reads).decode()) == TEXT_ORDER[:4]
    [received] = upstream.received()
    assert (received.state, received.sent_events) == ("cut", 4)


def test_a_cut_after_bytes_splits_an_event(upstream: ScriptedUpstream) -> None:
    upstream.script({"cut_after_bytes": 30, "cut_how": "close"})
    reads, ended = raw_answer(upstream)
    assert (ended, content(reads)) == (None, b"event: response.created\ndata: ")
    assert upstream.received()[0].state == "cut"


@pytest.mark.parametrize(("how", "expected"), [("reset", errno.ECONNRESET), ("close", None)])
def test_a_cut_before_the_head_sends_nothing(upstream: ScriptedUpstream, how: str, expected: int | None) -> None:
    upstream.script({"cut_before_head": True, "cut_how": how})
    assert raw_answer(upstream) == ([], expected)
    assert [(one.state, one.status) for one in upstream.received()] == [("cut", None)]


def test_a_whole_json_answer_can_be_cut_too(upstream: ScriptedUpstream) -> None:
    upstream.script({"cut_after_bytes": 10})
    reads, ended = raw_answer(upstream, {"model": "m", "input": "hello"})
    assert ended == errno.ECONNRESET
    assert b"".join(part for _, part in reads).partition(b"\r\n\r\n")[2] == b'{"id": "re'


def test_chunks_split_events_anywhere(upstream: ScriptedUpstream) -> None:
    upstream.script({"chunk": [1, 7, 50], "text": "one"})
    whole, _ = raw_answer(upstream)
    sizes = []
    rest = b"".join(part for _, part in whole).partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        sizes.append(int(size, 16))
        rest = rest[int(size, 16) + 2 :]
    assert sizes[:6] == [1, 7, 50, 1, 7, 50]
    assert types(content(whole).decode())[-1] == "response.completed"


def test_delays_are_kept(upstream: ScriptedUpstream) -> None:
    upstream.script({"delay": 0.15, "first_event_delay": 0.15, "event_delay": 0.02, "deltas": 1})
    reads, _ = raw_answer(upstream)
    # An event loop's timer may fire a tick of its clock early, once per wait.
    tick = 0.002
    assert reads[0][0] >= 0.15 - tick, "the head waits"
    assert b"event:" not in reads[0][1]
    assert reads[1][0] >= 0.3 - 2 * tick, "the first event waits"
    assert reads[-1][0] >= 0.3 + 8 * 0.02 - 10 * tick


async def test_silence_lasts_until_the_client_leaves(upstream: ScriptedUpstream) -> None:
    upstream.script({"silence": "head"}, {"silence": "body"}, {"silence_after_events": 2})
    body = {"model": "m", "input": "x", "stream": True}
    async with httpx.AsyncClient(base_url=upstream.url, timeout=httpx.Timeout(5, read=0.3), trust_env=False) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/v1/responses", json=body, headers=OPENAI)
        for count in (0, 2):
            async with http.stream("POST", "/v1/responses", json=body, headers=OPENAI) as answer:
                assert answer.status_code == 200
                parts = answer.aiter_raw()
                seen = b""
                while seen.count(b"event: ") < count:
                    seen += await anext(parts)
                with pytest.raises(httpx.ReadTimeout):
                    await anext(parts)
                assert seen.count(b"event: ") == count
    rows = await upstream.wait_for(3, state="client_gone")
    assert [row.sent_events for row in rows] == [0, 0, 2]
    assert all(row.ended_at and row.ended_at - row.at >= 0.3 for row in rows)


async def test_a_leaving_client_is_seen_at_once(upstream: ScriptedUpstream) -> None:
    upstream.script({"event_delay": 30})
    async with httpx.AsyncClient(base_url=upstream.url, timeout=5, trust_env=False) as http:
        body = {"model": "m", "input": "x", "stream": True}
        async with http.stream("POST", "/v1/responses", json=body, headers=OPENAI) as answer:
            await anext(answer.aiter_raw())
            assert [row.state for row in upstream.received()] == ["running"]
            left_at = time.time()
    [row] = await upstream.wait_for(1, state="client_gone")
    assert row.ended_at is not None
    assert row.ended_at - left_at < 1


async def test_held_answers_wait_for_their_gate(upstream: ScriptedUpstream) -> None:
    upstream.script(
        {"hold": {"name": "g"}}, {"hold": {"name": "g", "after": "head"}}, {"hold": {"name": "g", "after": 3}}, token="sk-held"
    )
    async with httpx.AsyncClient(base_url=upstream.url, timeout=10, trust_env=False) as http:
        body = {"model": "m", "input": "x", "stream": True}
        asked = [
            asyncio.create_task(http.post("/v1/responses", json=body, headers={"authorization": "Bearer sk-held"}))
            for _ in range(3)
        ]
        rows = await upstream.wait_for(1, until=lambda row: row.sent_events == 3)
        assert [row.state for row in rows] == ["running"]
        assert sorted(row.sent_events for row in upstream.received()) == [0, 0, 3]
        assert sum(row.status is None for row in upstream.received()) == 1
        upstream.release("g")
        answers = await asyncio.gather(*asked)
    assert [types(answer.text)[-1] for answer in answers] == ["response.completed"] * 3
    assert [row.state for row in upstream.received()] == ["done"] * 3


async def test_a_reset_ends_silence_and_forgets(upstream: ScriptedUpstream) -> None:
    upstream.script({"silence": "head"}, {"status": 500})
    async with httpx.AsyncClient(base_url=upstream.url, timeout=10, trust_env=False) as http:
        body = {"model": "m", "input": "x"}
        asked = asyncio.create_task(http.post("/v1/responses", json=body, headers=OPENAI))
        await upstream.wait_for(1)
        upstream.reset()
        with pytest.raises(httpx.RemoteProtocolError):
            await asked
        assert upstream.received() == []
        assert (await http.post("/v1/responses", json=body, headers=OPENAI)).status_code == 200


# ----------------------------------------------------------------------------------------------------------- received


def test_what_was_received_is_told_exactly(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    auth = upstream.mint()
    body = b'{"model":"m" , "input":"\xc3\xa9", "stream":true,"store":false}\n'
    headers = {**signed_in(auth), "Session-Id": "s-1"}
    http.post("/backend-api/codex/responses?x=1", content=body, headers=headers)
    ask(http)
    [row] = upstream.received(account=auth["tokens"]["account_id"])
    assert (row.method, row.path, row.query, row.body) == ("POST", "/backend-api/codex/responses", "x=1", body)
    assert (row.headers["session-id"], row.token) == ("s-1", auth["tokens"]["access_token"])
    assert (row.state, row.status, row.is_whole, row.sent_events) == ("done", 200, True, 11)
    assert row.answered_at is not None
    assert row.ended_at is not None
    assert row.at <= row.answered_at <= row.ended_at
    assert [one.token for one in upstream.received(path="/v1/responses")] == ["sk-test-upstream"]


def test_a_body_that_never_came_whole_is_told_as_such(upstream: ScriptedUpstream) -> None:
    with socket.create_connection(("127.0.0.1", upstream.port), timeout=5) as connection:
        connection.sendall(
            b"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-half\r\ncontent-length: 100\r\n\r\n{"
        )
        time.sleep(0.1)
    [row] = asyncio.run(upstream.wait_for(1, state="client_gone"))
    assert (row.is_whole, row.body, row.status) == (False, b"{", None)


def test_the_docstring_names_every_field_of_an_answer() -> None:
    assert demo.upstream.__doc__ is not None
    assert [name for name in Answer.__struct_fields__ if f"`{name}`" not in demo.upstream.__doc__] == []


# ------------------------------------------------------------------------------------------------------------ issuer


def authorize_url(**changes: str) -> str:
    asked = {
        "response_type": "code",
        "client_id": "app_x",
        "redirect_uri": "http://127.0.0.1:1455/auth/callback",
        "scope": "openid",
        # base64url(SHA-256("verifier")) as RFC 7636 makes it.
        "code_challenge": "iMnq5o6zALKXGivsnlom_0F5_WYda32GHkxlV7mq7hQ",
        "code_challenge_method": "S256",
        "state": "s",
    }
    return f"/oauth/authorize?{httpx.QueryParams({**asked, **changes})}"


@pytest.mark.parametrize(
    "changes",
    [{"response_type": "token"}, {"code_challenge_method": "plain"}, {"redirect_uri": "http://127.0.0.1/x"}, {"state": ""}],
)
def test_an_authorize_page_that_is_asked_wrongly_gives_no_code(http: httpx.Client, changes: dict[str, str]) -> None:
    assert http.get(authorize_url(**changes)).status_code == 400


@pytest.mark.parametrize(
    "wrong", [{}, {"code_verifier": "other"}, {"client_id": "app_y"}, {"redirect_uri": "http://localhost:1455/auth/callback"}]
)
def test_a_code_works_once_for_its_verifier_client_and_address(
    upstream: ScriptedUpstream, http: httpx.Client, wrong: dict[str, str]
) -> None:
    upstream.person(email="ada@example.test")
    back = httpx.URL(http.get(authorize_url()).headers["location"])
    assert back.params["state"] == "s"
    form = {
        "grant_type": "authorization_code",
        "client_id": "app_x",
        "code": back.params["code"],
        "redirect_uri": "http://127.0.0.1:1455/auth/callback",
        "code_verifier": "verifier",
        **wrong,
    }
    answer = http.post("/oauth/token", data=form)
    assert answer.status_code == (400 if wrong else 200)
    assert http.post("/oauth/token", data={**form, "code_verifier": "verifier"}).status_code == 400


def test_a_lost_answer_is_work_done(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    auth = upstream.mint()
    upstream.script({"lost": True}, path="/oauth/token")
    with pytest.raises(httpx.TransportError):
        refresh(http, auth["tokens"]["refresh_token"])
    assert upstream.refreshes(auth["tokens"]["account_id"]) == 1
    assert refresh(http, auth["tokens"]["refresh_token"]).json()["error"]["code"] == "refresh_token_reused"
    assert [one.state for one in upstream.received(path="/oauth/token")] == ["cut", "done"]
