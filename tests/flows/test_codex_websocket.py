"""The real Codex CLI over WebSocket: what the developer reads, which frames went, what the accounts were asked, what is booked.

Codex opens each session with a warm-up, whose response every next frame goes on from; which is counted, logged and paid as nothing.
"""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.codex import Codex
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

DONE = ("response.completed",)
LOST = ("error", 400, "previous_response_not_found")
EXHAUSTED = ("error", 429, "pool_exhausted")


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


def asked(developer: Developer) -> list[list[str]]:
    """What Codex sent on each of its sockets: warm-up, whole (the conversation) or next (what is new of it)."""
    return [[kind_of(frame) for frame in one.sent] for one in developer.tap.sockets]


def kind_of(frame: dict[str, Any]) -> str:
    assert frame["type"] == "response.create"
    if frame.get("generate") is False:
        return "warm-up"
    return "next" if frame.get("previous_response_id") else "whole"


def ends(developer: Developer) -> list[list[tuple[Any, ...]]]:
    """How each frame ended, on each socket: the terminal event, or an error's status and code."""
    terminal = ("response.completed", "response.failed", "response.incomplete", "error")
    return [[end_of(frame) for frame in one.told if frame["type"] in terminal] for one in developer.tap.sockets]


def end_of(frame: dict[str, Any]) -> tuple[Any, ...]:
    if frame["type"] == "error":
        return "error", frame["status"], frame["error"]["code"]
    return (frame["type"],)


@one_account
async def test_plain_resumed_and_tool_turns_are_one_session(developer: Developer) -> None:
    client = developer.codex(websockets=True)
    first = await in_thread(client.run, "Hello to the weir")
    assert (first.exit_code, first.text, first.failure, told(first)) == (0, "You said: Hello to the weir", "", [])
    second = await in_thread(client.run, "And again", resume=first.session)
    assert (second.exit_code, second.text, second.session, told(second)) == (0, "You said: And again", first.session, [])
    third = await in_thread(client.run, "RUN_TOOL now", resume=first.session)
    [command] = third.items("command_execution")
    assert (command["exit_code"], command["aggregated_output"]) == (0, "hi\n")
    assert (third.exit_code, third.text, told(third)) == (0, "Tool finished: 1 Output: hi", [])

    assert developer.tap.requests == []
    assert [one.status for one in developer.tap.sockets] == [101] * 3
    assert asked(developer) == [["warm-up", "next"], ["warm-up", "next"], ["warm-up", "next", "next"]]
    assert ends(developer) == [[DONE] * 2, [DONE] * 2, [DONE] * 3]
    # One upstream socket for each of the client's, and each frame as it came.
    assert len(developer.upgrades()) == 3
    sent = [frame for one in developer.tap.sockets for frame in one.sent]
    served = developer.served()
    assert [one.json for one in served] == sent
    assert {(one.status, one.state, one.json["prompt_cache_key"]) for one in served} == {(200, "done", first.session)}
    for upgrade in developer.upgrades():
        assert upgrade.headers["originator"] == "codex_exec"
        assert upgrade.headers["openai-beta"] == "responses_websockets=2026-02-06"
        assert upgrade.headers["user-agent"].startswith("codex_exec/0.171.0")
        assert developer.tenant.key.secret not in str(upgrade.raw_headers)
    rows = await developer.rows("ok", "ok", "ok", "ok")
    assert all(row.credits > 0 for row in rows)
    assert (spent(first), spent(second), spent(third)) == (booked(rows[:1]), booked(rows[:2]), booked(rows))
    assert (await in_thread(developer.tenant.usage)).requests == 4


async def test_an_account_exhausted_between_turns_is_not_noticed(developer: Developer) -> None:
    """N50: The chain of the warm-up is in the full account: one silent resend, and the next account answers."""
    client = developer.codex(websockets=True)
    first = await in_thread(client.run, "Hello one")
    full = developer.served()[-1].account
    developer.upstream.windows(str(full), short_percent=100)
    second = await in_thread(client.run, "Hello two", resume=first.session)
    assert (second.exit_code, second.text, second.failure, told(second)) == (0, "You said: Hello two", "", [])
    assert developer.tap.requests == []
    assert asked(developer) == [["warm-up", "next"], ["warm-up", "next"], ["whole"]]
    assert ends(developer) == [[DONE] * 2, [DONE, LOST], [DONE]]
    other = developer.other(full)
    assert developer.served()[-1].account == other
    assert {one.account for one in developer.served()[:-1]} == {full}
    rows = await developer.rows("ok", "ok")
    assert [developer.account_of(row) for row in rows] == [full, other]
    assert booked(rows) == spent(second)
    # Now it is known: the whole session is the other account's.
    third = await in_thread(client.run, "Hello three", resume=first.session)
    assert (third.text, told(third)) == ("You said: Hello three", [])
    assert asked(developer)[3:] == [["warm-up", "next"]]
    assert [one.account for one in developer.served()[-2:]] == [other, other]
    rows = await developer.rows("ok", "ok", "ok")
    assert booked(rows) == spent(third)


async def test_an_account_exhausted_inside_a_turn_is_not_noticed(developer: Developer) -> None:
    """Between a tool call and its output: the turn completes on another account, from the whole conversation."""
    resets_at = int(time.time()) + 2 * DAY
    error = {"type": "usage_limit_reached", "message": "Reached", "plan_type": "plus", "resets_at": resets_at}
    headers = {"x-codex-primary-reset-at": str(resets_at)}
    developer.upstream.script(
        {"tool": "exec_command", "arguments": {"cmd": "echo hi"}},
        {"error": "429_usage", "body": {"error": error}, "headers": headers},
        transport="socket",
    )
    run = await in_thread(developer.codex(websockets=True).run, "Look")
    [command] = run.items("command_execution")
    assert (command["exit_code"], command["aggregated_output"]) == (0, "hi\n")
    assert (run.exit_code, run.text, run.failure, told(run)) == (0, "Tool finished: 1 Output: hi", "", [])
    assert developer.tap.requests == []
    assert asked(developer) == [["warm-up", "next", "next"], ["whole"]]
    assert ends(developer) == [[DONE, DONE, LOST], [DONE]]
    full = developer.served()[0].account
    other = developer.other(full)
    assert developer.tries() == [(full, 200), (full, 200), (full, 429), (other, 200)]
    # It goes on from the tool's output; nothing was run twice.
    whole = developer.served()[-1].json
    assert [item["type"] for item in whole["input"][-2:]] == ["function_call", "function_call_output"]
    rows = await developer.rows("ok", "failed", "ok")
    assert [row.credits > 0 for row in rows] == [True, False, True]
    assert booked(rows) == spent(run)
    assert [developer.account_of(row) for row in rows] == [full, full, other]


async def test_an_exhausted_pool_is_one_message_with_the_earliest_reset(developer: Developer) -> None:
    """N31: Codex asks once more after a refused warm-up, whatever refused it; once that is known nobody else is asked."""
    resets_at = int(time.time()) + 2 * DAY
    for number, account in enumerate(developer.accounts):
        developer.upstream.windows(account, short_percent=100, short_reset_at=resets_at + number * 3600)
    client = developer.codex(websockets=True)
    first = await in_thread(client.run, "Hello")
    assert (first.exit_code, first.text, first.failure, told(first)) == (1, "", usage_limit(resets_at), [])
    assert asked(developer) == [["warm-up", "next"], ["whole"]]
    assert ends(developer) == [[DONE, LOST], [EXHAUSTED]]
    reached = len(developer.served())
    second = await in_thread(client.run, "Hello again", resume=first.session)
    assert (second.exit_code, second.failure, told(second)) == (1, usage_limit(resets_at), [])
    assert asked(developer)[2:] == [["warm-up"], ["whole"]]
    assert ends(developer)[2:] == [[EXHAUSTED], [EXHAUSTED]]
    assert len(developer.served()) == reached
    assert developer.tap.requests == []
    [frame] = developer.tap.sockets[-1].told
    assert frame["error"]["resets_at"] == resets_at
    [row] = await developer.rows("failed")
    assert row.credits == 0


@one_account
async def test_the_developers_own_limit_is_one_message_with_its_reset(developer: Developer) -> None:
    """Of seven days, so that its reset is not today; and the pool is not asked."""
    await in_thread(developer.tenant.set_limit, scope="key", metric="credits", window="7d", amount="38")
    developer.upstream.script(ALMOST_ALL, transport="socket")
    client = developer.codex(websockets=True)
    first = await in_thread(client.run, "Hello")
    second = await in_thread(client.run, "Hello again", resume=first.session)
    frame = developer.tap.sockets[-1].told[-1]
    assert (frame["type"], frame["status"], frame["error"]["code"]) == ("error", 429, "limit_reached")
    assert (frame["error"]["scope"], frame["headers"]["x-should-retry"]) == ("key", "false")
    resets_at = frame["error"]["resets_at"]
    # The window moves on in steps.
    assert 0 <= resets_at - time.time() - 7 * DAY < 4 * 3600
    assert (second.exit_code, second.text, told(second)) == (1, "", [])
    assert second.failure == usage_limit(resets_at)
    assert developer.tap.requests == []
    assert asked(developer)[0] == ["warm-up", "next"]
    assert asked(developer)[1:] == [["warm-up"], ["whole"]]
    [row] = await developer.rows("ok")
    assert row.credits == 37_500_000


@pytest.mark.parametrize("answer", [{"error": "400_context"}, {"fail": CONTEXT}], ids=["status", "stream"])
async def test_a_context_overflow_is_the_developers_to_mend(developer: Developer, answer: dict[str, Any]) -> None:
    """Another account has the same context window: nobody is asked twice."""
    developer.upstream.script(answer, transport="socket")
    run = await in_thread(developer.codex(websockets=True).run, "Hello")
    assert (run.exit_code, run.text, told(run)) == (1, "", [])
    assert run.failure.startswith("Codex ran out of room in the model's context window.")
    assert developer.tap.requests == []
    assert asked(developer) == [["warm-up", "next"]]
    ended = ("error", 400, "context_length_exceeded") if "error" in answer else ("response.failed",)
    assert ends(developer) == [[DONE, ended]]
    assert len(developer.served()) == 2
    [row] = await developer.rows("failed")
    assert row.credits == 0


@one_account
async def test_a_bad_key_is_named_and_reaches_nobody(developer: Developer) -> None:
    """Codex tries a refused upgrade seven times and then HTTP six times, whatever is said; each is a look into memory."""
    run = await in_thread(developer.codex(websockets=True, key="wr_0123456789_" + "x" * 43).run, "Hello")
    assert run.exit_code == 1
    assert run.failure.startswith("unexpected status 401 Unauthorized: Incorrect API key provided., url: ")
    assert [one.status for one in developer.tap.sockets] == [401] * 7
    assert [status for _, status in developer.tap.requests] == [401] * 6
    assert developer.served() == developer.upgrades() == []
    await developer.rows()


SILENT: list[tuple[dict[str, Any], tuple[Any, ...], str]] = [
    ({"error": "429_rate"}, LOST, "failed"),
    ({"fail": {"code": "usage_limit_reached", "message": "The usage limit has been reached"}}, LOST, "failed"),
    ({"error": "400_prev"}, LOST, "failed"),
    ({"cut_after_events": 6}, ("response.failed",), "upstream_cut"),
]
"""What the upstream does to a turn on a socket, how its frame ends, and as what it is booked; the matrix has them all."""


async def test_what_an_account_cannot_finish_is_done_by_the_next_connection(developer: Developer) -> None:
    """Burst limit, exhaustion in the stream, a lost chain, a broken socket: Codex connects again without a word."""
    for number, (answer, ended, status) in enumerate(SILENT):
        tenant, accounts = await in_thread(codex.tenant_of, developer.upstream)
        before = len(developer.tap.sockets)
        another = Developer(tenant, developer.tap, developer.upstream, developer.folder, developer.eventually, accounts)
        developer.upstream.script(answer, transport="socket")
        run = await in_thread(another.codex(str(number), websockets=True).run, "Hello")
        assert (run.exit_code, run.text, run.failure, told(run)) == (0, "You said: Hello", "", []), answer
        assert asked(developer)[before:] == [["warm-up", "next"], ["whole"]], answer
        assert ends(developer)[before:] == [[DONE, ended], [DONE]], answer
        rows = await another.rows(status, "ok")
        # What was cut after output is paid by its estimate; Codex counts what it was told of.
        assert [row.is_estimated for row in rows] == [status == "upstream_cut", False]
        assert [row.credits > 0 for row in rows] == [status == "upstream_cut", True]
        assert booked(rows[1:]) == spent(run)
    assert developer.tap.requests == []


@one_account
async def test_an_interrupted_codex_stops_the_upstream(developer: Developer) -> None:
    """Ctrl-C in the middle of an answer: the upstream's socket is closed within the grace and a second; what came is paid."""
    developer.upstream.script({"hold": {"name": "never", "after": 7}, "deltas": 5}, transport="socket")
    left_at = await interrupted(developer, developer.codex(websockets=True))
    gone = await developer.upstream.wait_for(2, state="client_gone", seconds=10)
    for one in gone:
        assert one.ended_at is not None
        assert one.ended_at - left_at <= GRACE_SECONDS + 1
    [row] = await developer.rows("client_closed")
    assert (row.is_estimated, row.credits > 0) == (True, True)


@pytest.mark.parametrize("provider", ["OpenAI", "Weir"])
@one_account
async def test_compaction_by_the_server_and_by_codex_itself(developer: Developer, provider: str) -> None:
    client = developer.codex(provider=provider, compact_at=5_000, websockets=True)
    first = await in_thread(client.run, "Hello one")
    second = await in_thread(client.run, "Hello two", resume=first.session)
    assert (second.exit_code, second.text, second.failure, told(second)) == (0, "You said: Hello two", "", [])
    assert developer.tap.requests == []
    kinds = [[item["type"] for item in one.json["input"]] for one in developer.served()]
    if provider == "OpenAI":
        # The whole session after its compaction is one frame on the same socket.
        assert asked(developer) == [["warm-up", "next"], ["warm-up", "next", "whole"]]
        assert kinds[3][-1] == "compaction_trigger"
        assert "compaction" in kinds[4]
    else:
        assert sorted(asked(developer)) == sorted([["warm-up", "next"], ["warm-up", "next"], ["whole"]])
        assert {kind for line in kinds for kind in line} == {"message"}
    assert {end for socket in ends(developer) for end in socket} == {DONE}
    rows = await developer.rows("ok", "ok", "ok")
    # Codex does not count what the server's compaction took; it is paid like any other.
    assert booked([rows[0], rows[2]] if provider == "OpenAI" else rows) == spent(second)
    assert all(row.credits > 0 for row in rows)


@one_account
async def test_status_shows_the_keys_own_windows(developer: Developer) -> None:
    """N6: in frames, as Codex reads no headers here: the limit of five hours and the plan's week, never the pool's 55 %."""
    tenant = developer.tenant
    await in_thread(tenant.set_limit, scope="key", metric="credits", window="5h", amount="10")
    [account] = developer.accounts
    developer.upstream.windows(account, short_percent=55, week_percent=66)
    client = developer.codex(websockets=True)
    first = await in_thread(client.run, "Hello one")
    await in_thread(client.run, "Hello two", resume=first.session)
    rows = await developer.rows("ok", "ok")
    usage = await in_thread(tenant.usage)
    before, after = client.rate_limits(first.session)
    assert (before["primary"]["used_percent"], before["secondary"]["used_percent"]) == (0.0, 0.0)
    # Each answer tells of what was used before it; of 10 credits, in hundredths of a percent.
    assert after["primary"]["used_percent"] == rows[0].credits * 10_000 // 10_000_000 / 100 > 3
    assert (after["primary"]["window_minutes"], after["secondary"]["window_minutes"]) == (300, 10_080)
    assert after["secondary"]["resets_at"] == usage.plan.ends_at
    assert (after["plan_type"], after["credits"]) == ("team", {"has_credits": False, "unlimited": False, "balance": "0"})
    # Of the pool's own frames none passes.
    told_frames = developer.tap.frames("codex.rate_limits")
    assert len(told_frames) == 2
    assert not {55.0, 66.0} & {one["rate_limits"][slot]["used_percent"] for one in told_frames for slot in ("primary", "secondary")}


async def test_without_a_tap_the_frames_are_compressed(stack: Stack, upstream: Any, transactional_db: None, tmp_path: Path) -> None:
    """Codex offers permessage-deflate; the tap keeps the offer back, so once without it."""
    tenant, _ = await in_thread(codex.tenant_of, upstream, 1)
    client = Codex(f"{stack.url}/v1", tenant.key.secret, tmp_path / "plain", websockets=True)
    run = await in_thread(client.run, "Hello")
    assert (run.exit_code, run.text, run.failure, told(run)) == (0, "You said: Hello", "", [])
    assert [one.method for one in upstream.received() if one.path.endswith("/responses")] == ["GET", "WEBSOCKET", "WEBSOCKET"]


@one_account
async def test_where_no_account_takes_sockets_codex_goes_on_over_http(developer: Developer) -> None:
    """The first frame finds that out: Codex connects again, is declined, and posts, without a word; from then on it is at once."""
    developer.upstream.script({"status": 426, "body": {"error": {"message": "Use POST"}}}, repeat=0, transport="upgrade")
    client = developer.codex(websockets=True)
    first = await in_thread(client.run, "Hello one")
    assert (first.exit_code, first.text, first.failure, told(first)) == (0, "You said: Hello one", "", [])
    assert [one.status for one in developer.tap.sockets] == [101, 426]
    assert ends(developer) == [[("error", 400, "websocket_connection_limit_reached")], []]
    assert developer.tap.requests == [(RESPONSES, 200)]
    second = await in_thread(client.run, "RUN_TOOL now", resume=first.session)
    assert (second.exit_code, second.text, told(second)) == (0, "Tool finished: 1 Output: hi", [])
    assert [one.status for one in developer.tap.sockets[2:]] == [426]
    assert developer.tap.requests == [(RESPONSES, 200)] * 3
    assert [status for _, status in developer.tries()] == [200] * 3
    rows = await developer.rows("ok", "ok", "ok")
    assert booked(rows) == spent(second)
