"""The real Codex CLI over SSE: what the developer reads, what gateway and accounts were asked, what is booked."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flows import codex, tap
from tests.flows.codex import (
    ALMOST_ALL,
    CONTEXT,
    DAY,
    GRACE_SECONDS,
    RESPONSES,
    Developer,
    booked,
    interrupted,
    spent,
    told,
    usage_limit,
)
from tests.flows.conftest import Stack
from tests.flows.tenants import in_thread

# The first run installs the client.
pytestmark = [pytest.mark.clients, pytest.mark.stack, pytest.mark.timeout(600)]


@pytest.fixture
async def developer(
    stack: Stack, upstream: Any, transactional_db: None, tmp_path: Path, eventually: Any, request: pytest.FixtureRequest
) -> AsyncIterator[Developer]:
    """With two sign-in accounts, or as many as the parameter says."""
    tenant, accounts = await in_thread(codex.tenant_of, upstream, getattr(request, "param", 2))
    async with tap.before(stack.url) as gate:
        yield Developer(tenant, gate, upstream, tmp_path, eventually, accounts)


def one_account(test: Any) -> Any:
    return pytest.mark.parametrize("developer", [1], indirect=True, ids=["one-account"])(test)


@one_account
async def test_plain_resumed_and_tool_turns_are_one_session(developer: Developer) -> None:
    client = developer.codex()
    first = await in_thread(client.run, "Hello to the weir")
    assert (first.exit_code, first.text, first.failure, told(first)) == (0, "You said: Hello to the weir", "", [])
    second = await in_thread(client.run, "And again", resume=first.session)
    assert (second.exit_code, second.text, second.session) == (0, "You said: And again", first.session)
    third = await in_thread(client.run, "RUN_TOOL now", resume=first.session)
    [command] = third.items("command_execution")
    assert (command["exit_code"], command["aggregated_output"]) == (0, "hi\n")
    assert (third.exit_code, third.text, told(third)) == (0, "Tool finished: 1 Output: hi", [])

    assert developer.tap.requests == [(RESPONSES, 200)] * 4
    served = developer.served()
    assert [(one.status, one.state) for one in served] == [(200, "done")] * 4
    # The whole history comes along each time, of one conversation, so the prompt cache stays warm.
    assert {one.json["prompt_cache_key"] for one in served} == {first.session}
    assert [len(one.json["input"]) for one in served] == sorted({len(one.json["input"]) for one in served})
    # The token of the turn comes back within the turn only.
    states = [one.headers.get("x-codex-turn-state") for one in served]
    assert states[:3] == [None] * 3
    assert states[3] == developer.tap.seen[2].answer["x-codex-turn-state"]
    rows = await developer.rows("ok", "ok", "ok", "ok")
    # `exec` tells the session's sum at the end of each turn.
    assert (spent(first), spent(second), spent(third)) == (booked(rows[:1]), booked(rows[:2]), booked(rows))
    assert all(row.cached_input_tokens > 10_000 for row in rows[1:])
    assert not any(row.is_estimated for row in rows)


async def test_an_account_exhausted_between_turns_is_not_noticed(developer: Developer) -> None:
    """N50: the whole conversation comes along, so another account goes on with it."""
    client = developer.codex()
    first = await in_thread(client.run, "Hello one")
    [(full, _)] = developer.tries()
    developer.upstream.windows(str(full), short_percent=100)
    second = await in_thread(client.run, "Hello two", resume=first.session)
    assert (second.exit_code, second.text, second.failure, told(second)) == (0, "You said: Hello two", "", [])
    other = developer.other(full)
    assert developer.tries() == [(full, 200), (full, 429), (other, 200)]
    # Now it is known, and not asked again.
    third = await in_thread(client.run, "Hello three", resume=first.session)
    assert (third.text, told(third)) == ("You said: Hello three", [])
    assert developer.tries() == [(full, 200), (full, 429), (other, 200), (other, 200)]
    assert developer.tap.requests == [(RESPONSES, 200)] * 3
    rows = await developer.rows("ok", "ok", "ok")
    assert [developer.account_of(row) for row in rows] == [full, other, other]
    assert booked(rows) == spent(third)


async def test_an_account_exhausted_inside_a_turn_names_its_own_reset(developer: Developer) -> None:
    """The turn's state is in that account: Codex says when it is there again; the next turn is another account's."""
    resets_at = int(time.time()) + 2 * DAY
    error = {"type": "usage_limit_reached", "message": "Reached", "plan_type": "plus", "resets_at": resets_at}
    headers = {"x-codex-primary-reset-at": str(resets_at)}
    developer.upstream.script(
        {"tool": "exec_command", "arguments": {"cmd": "echo hi"}},
        {"error": "429_usage", "body": {"error": error}, "headers": headers},
    )
    client = developer.codex()
    first = await in_thread(client.run, "Look")
    assert (first.exit_code, first.failure, told(first)) == (1, usage_limit(resets_at), [])
    assert developer.tap.requests == [(RESPONSES, 200), (RESPONSES, 429)]
    full = developer.served()[0].account
    assert developer.tries() == [(full, 200), (full, 429)]
    second = await in_thread(client.run, "Go on", resume=first.session)
    assert (second.exit_code, second.text, told(second)) == (0, "You said: Go on", [])
    assert developer.tries()[2:] == [(developer.other(full), 200)]
    assert developer.tap.requests[2:] == [(RESPONSES, 200)]
    rows = await developer.rows("ok", "failed", "ok")
    assert [row.credits > 0 for row in rows] == [True, False, True]


async def test_an_exhausted_pool_is_one_message_with_the_earliest_reset(developer: Developer) -> None:
    """N31: what Codex says of it, from one request; once that is known no account is asked."""
    resets_at = int(time.time()) + 2 * DAY
    for number, account in enumerate(developer.accounts):
        developer.upstream.windows(account, short_percent=100, short_reset_at=resets_at + number * 3600)
    client = developer.codex()
    first = await in_thread(client.run, "Hello")
    assert (first.exit_code, first.text, first.failure, told(first)) == (1, "", usage_limit(resets_at), [])
    assert developer.tap.requests == [(RESPONSES, 429)]
    assert sorted(developer.tries()) == sorted((account, 429) for account in developer.accounts)
    # Now it is known, so nobody is asked.
    second = await in_thread(client.run, "Hello again", resume=first.session)
    assert (second.exit_code, second.failure, told(second)) == (1, usage_limit(resets_at), [])
    assert developer.tap.requests == [(RESPONSES, 429)] * 2
    assert len(developer.served()) == 2
    for seen in developer.tap.seen:
        assert seen.answer["x-should-retry"] == "false"
        assert 0 <= resets_at - time.time() - int(seen.answer["retry-after"]) + 5 <= 10
    [row] = await developer.rows("failed")
    assert row.credits == 0


@one_account
async def test_the_developers_own_limit_is_one_message_with_its_reset(developer: Developer) -> None:
    """Of seven days, so that its reset is not today; and the pool is not asked."""
    await in_thread(developer.tenant.set_limit, scope="key", metric="credits", window="7d", amount="38")
    developer.upstream.script(ALMOST_ALL)
    client = developer.codex()
    first = await in_thread(client.run, "Hello")
    second = await in_thread(client.run, "Hello again", resume=first.session)
    async with httpx.AsyncClient() as asking:
        body = developer.served()[0].body
        answer = await asking.post(f"{developer.tap.url}{RESPONSES}", headers=developer.tenant.headers, content=body)
    resets_at = answer.json()["error"]["resets_at"]
    # The window moves on in steps.
    assert 0 <= resets_at - time.time() - 7 * DAY < 4 * 3600
    assert (second.exit_code, second.text, told(second)) == (1, "", [])
    assert second.failure == usage_limit(resets_at)
    assert developer.tap.requests == [(RESPONSES, 200), (RESPONSES, 429), (RESPONSES, 429)]
    assert len(developer.tries()) == 1
    [row] = await developer.rows("ok")
    assert row.credits == 37_500_000


@pytest.mark.parametrize(
    ("answer", "status"), [({"error": "400_context"}, 400), ({"fail": CONTEXT}, 200)], ids=["status", "stream"]
)
async def test_a_context_overflow_is_the_developers_to_mend(developer: Developer, answer: dict[str, Any], status: int) -> None:
    """Another account has the same context window: nobody is asked twice."""
    developer.upstream.script(answer)
    client = developer.codex()
    run = await in_thread(client.run, "Hello")
    assert (run.exit_code, run.text, told(run)) == (1, "", [])
    assert run.failure.startswith("Codex ran out of room in the model's context window.")
    assert developer.tap.requests == [(RESPONSES, status)]
    assert [code for _, code in developer.tries()] == [status]
    [row] = await developer.rows("failed")
    assert row.credits == 0


@one_account
async def test_a_bad_key_is_named_and_reaches_nobody(developer: Developer) -> None:
    """Codex tries a 401 six times, whatever it says; none of them is more than a look into memory."""
    run = await in_thread(developer.codex(key="wr_0123456789_" + "x" * 43).run, "Hello")
    assert run.exit_code == 1
    assert run.failure.startswith("unexpected status 401 Unauthorized: Incorrect API key provided., url: ")
    assert developer.tap.requests == [(RESPONSES, 401)] * 6
    assert developer.tries() == []
    await developer.rows()


@one_account
async def test_a_model_that_is_not_there_is_said_at_once(developer: Developer) -> None:
    run = await in_thread(developer.codex(model="gpt-9-new").run, "Hello")
    assert (run.exit_code, run.failure, told(run)) == (1, "The model 'gpt-9-new' does not exist or has no rate.", [])
    assert developer.tap.requests == [(RESPONSES, 400)]
    assert developer.tries() == []
    await developer.rows()


ELSEWHERE: list[dict[str, Any]] = [
    {"error": "429_rate"},
    {"error": "503_overloaded"},
    {"fail": {"code": "usage_limit_reached", "message": "The usage limit has been reached"}},
    {"error": "402"},
]
"""One of each kind; the matrix has them all."""


async def test_an_account_that_cannot_serve_now_is_not_noticed(developer: Developer) -> None:
    """Burst limit, overload, exhaustion inside a 200 stream, a dead workspace: each in a session of its own."""
    for number, answer in enumerate(ELSEWHERE):
        tenant, accounts = await in_thread(codex.tenant_of, developer.upstream)
        another = Developer(tenant, developer.tap, developer.upstream, developer.folder, developer.eventually, accounts)
        developer.upstream.script(answer)
        run = await in_thread(another.codex(str(number)).run, "Hello")
        assert (run.exit_code, run.text, run.failure, told(run)) == (0, "You said: Hello", "", []), answer
        (failed, status), (served, last) = another.tries()
        assert status == {"429_rate": 429, "503_overloaded": 503, "402": 402}.get(str(answer.get("error")), 200)
        assert (failed, last) == (another.other(served), 200)
        [row] = await another.rows("ok")
        assert another.account_of(row) == served
    assert developer.tap.requests == [(RESPONSES, 200)] * len(ELSEWHERE)


@one_account
async def test_a_pause_of_the_only_account_is_waited_out_by_codex(developer: Developer) -> None:
    developer.upstream.script({"error": "429_rate"})
    run = await in_thread(developer.codex().run, "Hello")
    assert (run.exit_code, run.text, run.failure) == (0, "You said: Hello", "")
    assert developer.tap.requests == [(RESPONSES, 429), (RESPONSES, 200)]
    assert 1 <= int(developer.tap.seen[0].answer["retry-after"]) <= 3
    assert [status for _, status in developer.tries()] == [429, 200]
    failed, _ = await developer.rows("failed", "ok")
    assert failed.credits == 0


@one_account
async def test_a_stream_cut_after_output_is_ended_and_codex_asks_again(developer: Developer) -> None:
    """What came is paid by the estimate; what came then by its usage."""
    developer.upstream.script({"cut_after_events": 6})
    run = await in_thread(developer.codex().run, "Hello")
    assert (run.exit_code, run.text, run.failure) == (0, "You said: Hello", "")
    assert developer.tap.requests == [(RESPONSES, 200)] * 2
    assert [(one.status, one.state) for one in developer.served()] == [(200, "cut"), (200, "done")]
    cut, whole = await developer.rows("upstream_cut", "ok")
    assert (cut.is_estimated, whole.is_estimated) == (True, False)
    assert cut.credits > 0
    assert booked([whole]) == spent(run)


@one_account
async def test_an_interrupted_codex_stops_the_upstream(developer: Developer) -> None:
    """Ctrl-C in the middle of an answer: the upstream is cancelled within the grace and a second, and what came is paid."""
    developer.upstream.script({"hold": {"name": "never", "after": 7}, "deltas": 5})
    left_at = await interrupted(developer, developer.codex())
    [gone] = await developer.upstream.wait_for(1, state="client_gone", seconds=10)
    assert gone.ended_at is not None
    assert gone.ended_at - left_at <= GRACE_SECONDS + 1
    [row] = await developer.rows("client_closed")
    assert row.is_estimated
    assert row.credits > 0
    assert gone.account == developer.account_of(row)


@pytest.mark.parametrize("provider", ["OpenAI", "Weir"])
@one_account
async def test_compaction_by_the_server_and_by_codex_itself(developer: Developer, provider: str) -> None:
    client = developer.codex(provider=provider, compact_at=5_000)
    first = await in_thread(client.run, "Hello one")
    second = await in_thread(client.run, "Hello two", resume=first.session)
    assert (second.exit_code, second.text, second.failure, told(second)) == (0, "You said: Hello two", "", [])
    assert developer.tap.requests == [(RESPONSES, 200)] * 3
    before, compaction, after = served = developer.served()
    assert [one.headers["x-codex-window-id"] for one in served] == [f"{first.session}:{number}" for number in (0, 0, 1)]
    kinds = [[item["type"] for item in one.json["input"]] for one in served]
    if provider == "OpenAI":
        assert kinds[1][-1] == "compaction_trigger"
        assert "compaction" in kinds[2]
    else:
        assert {kind for line in kinds for kind in line} == {"message"}
        assert [one.json["parallel_tool_calls"] for one in served] == [True, False, True]
    assert {one.json["prompt_cache_key"] for one in served} == {first.session}
    assert {one.account for one in (before, compaction, after)} == set(developer.accounts)
    rows = await developer.rows("ok", "ok", "ok")
    # Codex does not count what the server's compaction took; it is paid like any other.
    assert spent(second) == booked([rows[0], rows[2]] if provider == "OpenAI" else rows)
    assert rows[1].input_tokens + rows[1].cached_input_tokens == len(compaction.body) // 4


@one_account
async def test_status_shows_the_keys_own_windows(developer: Developer) -> None:
    """N6: `/status` reads the limit of five hours and the plan's week, never the pool's 55 %. So does the usage answer."""
    tenant = developer.tenant
    await in_thread(tenant.set_limit, scope="key", metric="credits", window="5h", amount="10")
    [account] = developer.accounts
    developer.upstream.windows(account, short_percent=55, week_percent=66)
    client = developer.codex()
    first = await in_thread(client.run, "Hello one")
    second = await in_thread(client.run, "Hello two", resume=first.session)
    rows = await developer.rows("ok", "ok")
    usage = await in_thread(tenant.usage)
    before, after = client.rate_limits(first.session)
    assert (before["primary"]["used_percent"], before["secondary"]["used_percent"]) == (0.0, 0.0)
    # Each answer tells of what was used before it; of 10 credits, in hundredths of a percent.
    assert after["primary"]["used_percent"] == rows[0].credits * 10_000 // 10_000_000 / 100 > 6
    assert (after["primary"]["window_minutes"], after["secondary"]["window_minutes"]) == (300, 10_080)
    assert after["secondary"]["resets_at"] == usage.plan.ends_at
    assert 0 <= after["primary"]["resets_at"] - time.time() - 5 * 3600 + 600 <= 1200
    assert after["credits"] == {"has_credits": False, "unlimited": False, "balance": "0"}
    assert second.failure == ""
    for path in ("/backend-api/wham/usage", "/api/codex/usage"):
        async with httpx.AsyncClient(headers=tenant.headers) as client_of_numbers:
            answer = await client_of_numbers.get(f"{developer.tap.url}{path}")
        told_now = answer.json()["rate_limit"]
        used = sum(row.credits for row in rows)
        assert (told_now["allowed"], told_now["primary_window"]["limit_window_seconds"]) == (True, 18_000)
        assert told_now["primary_window"]["used_percent"] == used * 100 // 10_000_000 == 7
        assert told_now["secondary_window"] == {
            "used_percent": 0,
            "limit_window_seconds": 604_800,
            "reset_after_seconds": told_now["secondary_window"]["reset_after_seconds"],
            "reset_at": usage.plan.ends_at,
        }
