"""The real Codex as it runs on a screen: one process, many turns; and signed in to ChatGPT, with a gateway's key for its token.

`/status` reads what `account/rateLimits/read` reads here: the windows of the usage answer, and those that came with the turns.
"""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import codex_server
from tests.clients.codex import ACCOUNT_ID, Codex
from tests.clients.codex_server import CodexServer
from tests.flows import certificates, codex, tap
from tests.flows.codex import RESPONSES, Developer, usage_limit
from tests.flows.conftest import Stack
from tests.flows.tenants import in_thread

# The first run installs the client.
pytestmark = [pytest.mark.clients, pytest.mark.stack, pytest.mark.timeout(600)]

WINDOWS = ("primary", "secondary")


@pytest.fixture
async def developer(
    stack: Stack, upstream: Any, transactional_db: None, tmp_path: Path, eventually: Any
) -> AsyncIterator[Developer]:
    tenant, accounts = await in_thread(codex.tenant_of, upstream, 2)
    context, authority = certificates.make(tmp_path)
    async with tap.before(stack.url, tls=context) as gate:
        yield Developer(tenant, gate, upstream, tmp_path, eventually, accounts, authority)


@pytest.mark.parametrize("websockets", [False, True], ids=["sse", "websocket"])
async def test_a_signed_in_codex_works_and_its_status_is_the_keys(developer: Developer, websockets: bool) -> None:
    """N6: over TLS by a private authority, bodies in zstd, the checks of ChatGPT answered; no account's window is told."""
    await in_thread(developer.tenant.set_limit, scope="key", metric="credits", window="5h", amount="10")
    for account in developer.accounts:
        developer.upstream.windows(account, short_percent=55, week_percent=66)
    client = developer.codex(websockets=websockets, authority=developer.authority)

    def drive() -> dict[str, Any]:
        with codex_server.running(client) as server:
            found = {"before": limits(server), "first": server.turn("Hello one"), "second": server.turn("RUN_TOOL now")}
            return {**found, "after": limits(server), "told": windows_told(server)}

    found = await in_thread(drive)
    first, second = found["first"], found["second"]
    assert (first.status, first.text, first.notices) == ("completed", "You said: Hello one", [])
    assert (second.status, second.text, second.notices) == ("completed", "Tool finished: 1 Output: hi", [])
    rows = await developer.rows("ok", "ok", "ok")
    usage = await in_thread(developer.tenant.usage)
    before, after = found["before"], found["after"]
    assert [before[slot]["usedPercent"] for slot in WINDOWS] == [0, 0]
    assert [after[slot]["windowDurationMins"] for slot in WINDOWS] == [300, 10_080]
    used = [sum(row.credits for row in rows[:count]) for count in range(4)]
    # Of 10 credits; the usage answer rounds down to whole percents.
    assert after["primary"]["usedPercent"] == used[3] * 100 // 10_000_000 > 4
    assert after["secondary"] == {"usedPercent": 0, "windowDurationMins": 10_080, "resetsAt": usage.plan.ends_at}
    assert 0 <= after["primary"]["resetsAt"] - time.time() - 5 * 3600 + 600 <= 1200
    assert (after["planType"], after["credits"]) == ("team", {"hasCredits": False, "unlimited": False, "balance": "0"})
    # Each answer told of what was used before it; Codex shows whole percents, rounded.
    assert found["told"][0]["primary"]["usedPercent"] == 0
    shown = {one["primary"]["usedPercent"] for one in found["told"]}
    assert shown <= {round(part / 100_000) for part in used} | {part * 100 // 10_000_000 for part in used}
    # A request that Codex leaves as it ends (its analytics) has no answer.
    paths = [one.path.partition("?")[0] for one in developer.tap.seen if 0 < (one.status or 0) < 400]
    assert {"/backend-api/wham/accounts/check", "/backend-api/wham/usage", "/backend-api/codex/models", RESPONSES} == set(paths)
    turns = [one for one in developer.tap.seen if one.path == RESPONSES]
    assert [one.status for one in turns] == ([101] if websockets else [200] * 3)
    for one in turns:
        assert one.headers["chatgpt-account-id"] == ACCOUNT_ID
    for received in developer.served():
        # The account's own name goes on, never the one that the client thinks it has.
        assert received.account in developer.accounts
        assert received.headers.get("content-encoding") == (None if websockets else "zstd")


def limits(server: CodexServer) -> dict[str, Any]:
    found: dict[str, Any] = server.call("account/rateLimits/read")["rateLimits"]
    return found


def windows_told(server: CodexServer) -> list[dict[str, Any]]:
    """The windows that came with the turns."""
    return [params["rateLimits"] for method, params in server.told if method == "account/rateLimits/updated"]


async def test_one_process_goes_on_where_its_account_is_full(stack: Stack, developer: Developer) -> None:
    """One socket for all turns until its account is full between two of them; then, without a word, one on the other account.

    When both are full the turn says when the first of them is there again.
    """
    # By its key, over plain http: what most use.
    async with tap.before(stack.url) as gate:
        plain = Developer(developer.tenant, gate, developer.upstream, developer.folder, developer.eventually, developer.accounts)
        client: Codex = plain.codex(websockets=True)
        resets_at = int(time.time()) + 172_800
        upstream = plain.upstream

        def drive() -> list[Any]:
            with codex_server.running(client) as server:
                turns = [server.turn("Hello one"), server.turn("RUN_TOOL now")]
                full = str(plain.served()[-1].account)
                upstream.windows(full, short_percent=100, short_reset_at=resets_at)
                turns.append(server.turn("Hello three"))
                upstream.windows(plain.other(full), short_percent=100, short_reset_at=resets_at + 3600)
                turns.append(server.turn("Hello four"))
                return turns

        one, two, three, four = await in_thread(drive)
        said = [(turn.status, turn.text, turn.error) for turn in (one, two, three)]
        assert said == [
            ("completed", "You said: Hello one", ""),
            ("completed", "Tool finished: 1 Output: hi", ""),
            ("completed", "You said: Hello three", ""),
        ]
        assert (four.status, four.text, four.error) == ("failed", "", usage_limit(resets_at))
        assert [turn.notices for turn in (one, two, three)] == [[], [], []]
        assert gate.requests == []
        used = [one.account for one in plain.served() if one.status == 200]
        full, other = used[0], plain.other(used[0])
        # The warm-up, three requests of two turns; then one whole conversation.
        assert used == [full] * 4 + [other]
        rows = await plain.rows("ok", "ok", "ok", "failed", "ok", "failed")
        assert [plain.account_of(row) for row in rows] == [full] * 4 + [other] * 2
        assert [row.credits > 0 for row in rows] == [row.status == "ok" for row in rows]
