"""What upstreams do wrong, and what the client, the hold and the bill see of it."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from routing import accounts
from tests import factories
from tests.flows.tenants import Tenant, body, cost, in_thread
from tests.proxy.conftest import Gateway, check_counters, is_clean, logged, set_limit
from tests.proxy.raw_server import serve
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]
USAGE = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}


def exhausted(resets_at: int) -> dict[str, Any]:
    return {
        "status": 429,
        "body": {"error": {"type": "usage_limit_reached", "message": "The usage limit has been reached", "resets_at": resets_at}},
    }


def problem(status: int, code: str, message: str = "no", kind: str = "server_error") -> dict[str, Any]:
    return {"status": status, "body": {"error": {"message": message, "type": kind, "param": None, "code": code}}}


async def second_account(tenant: Tenant, upstream: ScriptedUpstream) -> tuple[Any, str]:
    auth = upstream.mint()
    row = await in_thread(factories.chatgpt_account, tenant.organization, auth)
    return row, auth["tokens"]["access_token"]


def sse(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(part.split(b"data: ", 1)[1]) for part in content.split(b"\n\n") if part.strip()]


async def test_an_old_token_is_renewed_and_costs_nothing(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """N1: attempt 1 answers 401, attempt 2 succeeds with usage 120: 120 are spent, nothing is held."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    upstream.expire(one.account.chatgpt_account_id)
    upstream.script({"usage": USAGE}, account=one.account.chatgpt_account_id)
    got = await gateway.post(one)
    assert got.status_code == 200
    assert upstream.refreshes(one.account.chatgpt_account_id) == 1
    [row] = await logged(one)
    assert (row.credits, row.counted_tokens) == (cost(input=100, output=20), 120)
    assert [step.get("status") for step in row.trace] == [401, 200]
    await check_counters(one, [row])


async def test_an_exhausted_account_is_left_for_one_that_is_fine(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N30: the client gets 200 from B; A is not asked again before its reset."""
    one: Tenant = await tenant(account="chatgpt")
    second, _ = await second_account(one, upstream)
    assert one.account is not None
    by_id = {one.account.pk: one.account, second.pk: second}
    upstream.script(exhausted(int(time.time()) + 3600))
    got = await gateway.post(one)
    assert got.status_code == 200
    [row] = await logged(one)
    assert [step.get("failure") for step in row.trace] == ["usage_limit", None]
    failed, served = (by_id[step["account_id"]] for step in row.trace)
    assert failed.pk != served.pk
    for _ in range(5):
        assert (await gateway.post(one)).status_code == 200
    assert len(upstream.received(account=failed.chatgpt_account_id)) == 1
    assert len(upstream.received(account=served.chatgpt_account_id)) == 6


async def test_when_all_are_exhausted_the_earliest_reset_is_told(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N31: A resets at 14:00, B at 13:20: 429 usage_limit_reached, resets_at 13:20; nothing is owed or held."""
    one: Tenant = await tenant(account="chatgpt")
    second, second_token = await second_account(one, upstream)
    now = int(time.time())
    upstream.script(exhausted(now + 7200), token=one.upstream_token)
    upstream.script(exhausted(now + 4800), token=second_token)
    got = await gateway.post(one)
    error = got.json()["error"]
    assert (got.status_code, error["type"], error["code"]) == (429, "usage_limit_reached", "pool_exhausted")
    assert error["resets_at"] == now + 4800
    assert 4790 <= int(got.headers["retry-after"]) <= 4800
    assert got.headers["x-should-retry"] == "false"
    [row] = await logged(one)
    assert (row.status, row.credits, len(row.trace)) == ("failed", 0, 2)
    await check_counters(one, [row])
    again = await gateway.post(one)
    assert again.json()["error"]["code"] == "pool_exhausted"
    assert len(upstream.received(path="/backend-api/codex/responses")) == 2
    assert len(await logged(one)) == 1
    assert second.pk


async def test_a_burst_refusal_never_reaches_the_client_while_another_account_is_free(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N32"""
    one: Tenant = await tenant(account="chatgpt")
    await second_account(one, upstream)
    upstream.script({"status": 429, "body": "Too many requests"})
    assert (await gateway.post(one)).status_code == 200
    [row] = await logged(one)
    assert [step.get("failure") for step in row.trace] == ["rate", None]


@pytest.mark.parametrize("kind", ["response.failed", "error"])
async def test_an_overload_inside_a_stream_is_moved_before_output(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str
) -> None:
    """N33: the first events of a 200 stream are created and an overload error; the client sees nothing of it."""
    one: Tenant = await tenant(account="chatgpt")
    await second_account(one, upstream)
    created = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_doomed", "model": "gpt-5.5"}}
    error = {"code": "server_is_overloaded", "message": "Overloaded"}
    failed = {
        "type": kind,
        **({"response": {"id": "resp_doomed", "error": error}} if kind == "response.failed" else {"error": error}),
    }
    upstream.script({"events": [created, failed]})
    got = await gateway.post(one)
    assert got.status_code == 200
    assert b"resp_doomed" not in got.content
    assert sse(got.content)[-1]["type"] == "response.completed"
    [row] = await logged(one)
    assert [step.get("failure") for step in row.trace] == ["overloaded", None]


async def test_no_failure_mix_makes_a_fourth_attempt(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """N37"""
    one: Tenant = await tenant(account="chatgpt")
    for _ in range(5):
        await second_account(one, upstream)
    upstream.script(
        problem(401, "token_expired"),
        {"status": 429, "body": "Too many requests"},
        problem(503, "server_is_overloaded"),
        problem(500, "server_error"),
        exhausted(int(time.time()) + 900),
    )
    got = await gateway.post(one)
    assert got.status_code in (429, 502)
    assert len(upstream.received(path="/backend-api/codex/responses")) == 3
    [row] = await logged(one)
    assert (row.status, row.credits, len(row.trace)) == ("failed", 0, 3)
    await check_counters(one, [row])


async def test_refusals_of_our_accounts_do_not_look_like_the_clients(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """A 401 or 403 of an account is not the client's: its key is fine."""
    one: Tenant = await tenant()
    upstream.script(problem(403, "forbidden"), token=one.upstream_token)
    got = await gateway.post(one)
    assert got.status_code == 429
    assert got.json()["error"]["code"] in ("pool_busy", "pool_exhausted")


async def test_a_context_error_goes_to_the_client_and_costs_nothing(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N8: no charge, and no penalty: the account serves the next request."""
    one: Tenant = await tenant()
    said = problem(400, "context_length_exceeded", "Your input exceeds the context window.", "invalid_request_error")
    upstream.script(said, repeat=5, token=one.upstream_token)
    for _ in range(5):
        got = await gateway.post(one)
        assert (got.status_code, got.json()) == (400, said["body"])
    assert (await gateway.post(one)).status_code == 200
    rows = await logged(one, 6)
    assert [row.credits for row in rows[:5]] == [0] * 5
    assert {row.status for row in rows[:5]} == {"failed"}
    assert rows[5].credits > 0
    await check_counters(one, rows)


async def test_a_detail_body_becomes_an_error_that_sdks_read(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    upstream.script({"status": 400, "body": {"detail": "Unsupported parameter: top_k"}}, token=one.upstream_token)
    error = (await gateway.post(one)).json()["error"]
    assert error == {"message": "Unsupported parameter: top_k", "type": "invalid_request_error", "param": None, "code": None}


async def test_a_hundred_upstream_errors_leave_nothing_held(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """A10: the upstream answers 500 to each of 100; reserved is back to 0 and request 101 is admitted."""
    one: Tenant = await tenant()
    await set_limit(one, scope="member", metric="credits", window="day", amount="40")
    upstream.script(problem(500, "server_error", "boom"), repeat=100, token=one.upstream_token)
    answers = await asyncio.gather(*[gateway.post(one) for _ in range(100)])
    assert {got.status_code for got in answers} <= {500, 429}
    assert answers[0].status_code == 500 or any(got.json()["error"]["message"] == "boom" for got in answers)
    assert not any(got.json()["error"]["code"] == "limit_reached" for got in answers[:10])
    assert await is_clean(one)
    usage = await in_thread(one.usage)
    assert (usage.credits, usage.plan.held, usage.live) == (0, 0, 0)
    upstream.reset()
    await in_thread(accounts.reset_cooldowns, one.organization)
    assert (await gateway.post(one)).status_code == 200


async def test_a_stream_cut_after_twenty_deltas_ends_as_failed_and_is_estimated(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N20, A15, B4: response.failed with code stream_incomplete, numbers in order, no second attempt, an estimate at once."""
    one: Tenant = await tenant()
    await in_thread(factories.openai_account, one.organization)
    upstream.script({"deltas": 200, "cut_after_events": 24, "event_delay": 0.001})
    got = await gateway.post(one)
    assert got.status_code == 200
    events = sse(got.content)
    assert [event["sequence_number"] for event in events] == list(range(25))
    assert sum(event["type"].endswith(".delta") for event in events) == 20
    failed = events[-1]
    assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "stream_incomplete")
    assert failed["response"]["id"] == events[0]["response"]["id"]
    assert len(upstream.received(path="/v1/responses")) == 1
    live = await in_thread(one.usage)
    [row] = await logged(one)
    assert (row.status, row.is_estimated, row.output_tokens) == ("upstream_cut", True, 20)
    assert row.credits == cost(input=row.input_tokens, output=20)
    assert live.credits == row.credits > 0
    await check_counters(one, [row])


async def test_a_cut_inside_an_event_leaves_no_half_event(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant()
    upstream.script({"deltas": 50, "cut_after_bytes": 5000, "event_delay": 0.001})
    events = sse((await gateway.post(one)).content)
    assert events[-1]["response"]["error"]["code"] == "stream_incomplete"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_a_cut_before_output_is_not_sent_again_and_costs_nothing(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """What was written may have run: no blind second try, on no account."""
    one: Tenant = await tenant()
    await in_thread(factories.openai_account, one.organization)
    upstream.script({"cut_after_events": 1})
    got = await gateway.post(one)
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_unavailable")
    assert len(upstream.received(path="/v1/responses")) == 1
    [row] = await logged(one)
    assert (row.status, row.credits) == ("upstream_cut", 0)
    await check_counters(one, [row])


@pytest.mark.parametrize("gateway_settings", [{"UPSTREAM_HEADER_TIMEOUT_SECONDS": 0.4}])
@pytest.mark.alone
async def test_an_upstream_that_never_answers_is_given_up_in_time(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N22: a 502 within the timeout, the hold ended at the input's price (we cut it), nothing sent twice."""
    one: Tenant = await tenant()
    upstream.script({"silence": "head"}, token=one.upstream_token)
    began = time.monotonic()
    got = await gateway.post(one)
    assert 0.35 < time.monotonic() - began < 1.5
    assert (got.status_code, got.json()["error"]["code"], got.json()["error"]["type"]) == (
        502,
        "upstream_unavailable",
        "server_error",
    )
    assert len(upstream.received(token=one.upstream_token)) == 1
    [row] = await logged(one)
    assert (row.status, row.is_estimated, row.output_tokens) == ("failed", True, 0)
    assert row.credits == cost(input=row.input_tokens) > 0
    await check_counters(one, [row])


@pytest.mark.parametrize("gateway_settings", [{"UPSTREAM_IDLE_TIMEOUT_SECONDS": 0.4}])
async def test_silence_inside_a_stream_ends_it_as_failed(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant()
    upstream.script({"event_delay": 3, "events": [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_text.delta", "delta": "x"},
    ]})  # fmt: skip
    got = await gateway.post(one)
    events = sse(got.content)
    assert [event["type"] for event in events] == ["response.created", "response.failed"]
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("upstream_cut", True)


async def test_three_failed_connects_are_one_answer_and_leave_no_trace(gateway: Gateway, tenant: MakeTenant) -> None:
    from django.test import override_settings

    async with serve(lambda peer: asyncio.sleep(0)) as server:
        pass
    with override_settings(UPSTREAM_OPENAI_URL=server.url):
        one: Tenant = await tenant()
        got = await gateway.post(one)
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_unavailable")
    assert await is_clean(one)
    assert (await in_thread(one.usage)).requests == 0
    assert await logged(one, 0) == []


async def test_a_continuation_nobody_owns_is_served_where_it_can_be_and_an_owned_one_at_its_owner(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N52: the account that made a stored response gets its continuation."""
    one: Tenant = await tenant()
    for _ in range(3):
        await in_thread(factories.openai_account, one.organization)
    first = await gateway.post(one, stream=False)
    for _ in range(4):
        again = await gateway.post(one, stream=False, previous_response_id=first.json()["id"])
        assert again.status_code == 200
    rows = await logged(one, 5)
    assert len({row.account_id for row in rows}) == 1
    assert rows[-1].trace[0]["reason"] == "owner"


@pytest.mark.parametrize(
    "hook",
    [
        "proxy.http_attempt.HttpAttempt._request",
        "proxy.http_attempt.HttpAttempt._answered",
        "proxy.relay.StreamRelay.feed",
        "proxy.relay.StreamRelay.open",
        "proxy.settlement.Tab.owed",
        "proxy.engine.selection.select",
        "proxy.engine.selection.read_live",
        "proxy.attempt.Attempting._record_owner",
        "proxy.attempt.credentials.bearer",
    ],
)
async def test_a_fault_anywhere_between_hold_and_last_byte_leaves_no_hold(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    """N3: holds are 0 within 5 s at every one of the points; what was sent is in the log, once."""
    one: Tenant = await tenant()
    assert (await gateway.post(one)).status_code == 200

    def fault(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(hook, fault)
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=one.headers, content=body())
    assert got.status_code in (200, 500)
    if got.status_code == 500:
        assert got.json()["error"]["code"] == "internal_error"
    monkeypatch.undo()
    assert await is_clean(one)
    sent = len(upstream.received(token=one.upstream_token))
    rows = await logged(one, sent)
    if sent == 2 and hook != "proxy.settlement.Tab.owed":
        assert rows[1].status == "failed"
    assert rows[-1].credits > 0
    await check_counters(one, rows)
