"""What the Codex flows share: a developer with accounts, a tap before the gateway, and what must be true when a turn is over."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from billing.models import UsageRecord
from routing.models import PoolAccount
from tests import factories
from tests.clients.codex import Codex, CodexRun
from tests.flows import tenants
from tests.flows.tap import Tap
from tests.flows.tenants import Tenant, in_thread
from tests.upstream import Received, ScriptedUpstream

RESPONSES = "/backend-api/codex/responses"
GRACE_SECONDS = 2.0
DAY = 86_400
KNOWN_NOTICE = "Model metadata for"
"""Codex does not know the models of a provider by API key."""
CONTEXT = {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}
ALMOST_ALL = {"usage": {"input_tokens": 0, "output_tokens": 100_000, "total_tokens": 100_000}}
"""37.5 credits of gpt-5.4, so that a turn, held at about two, does not fit into 38 any more."""
GPT_5_4 = (62_500_000, 6_250_000, 375_000_000)
"""Micro-credits per million fresh, cached and output tokens, written out so that pricing is not its own judge."""


@dataclass
class Developer:
    """One of a tenant of their own; `accounts` are the pool's, by the name that the upstream knows each by."""

    tenant: Tenant
    tap: Tap
    upstream: ScriptedUpstream
    folder: Path
    eventually: Any
    accounts: dict[str, PoolAccount] = field(default_factory=dict)
    authority: Path | None = None
    """The certificate that its clients must trust, where the tap speaks TLS."""

    def codex(self, name: str = "codex", *, path: str = "/backend-api/codex", key: str = "", **options: Any) -> Codex:
        """A Codex with a home of its own."""
        return Codex(f"{self.tap.url}{path}", key or self.tenant.key.secret, self.folder / name, **options)

    def served(self) -> list[Received]:
        """The requests for a response that reached this tenant's accounts, oldest first; also the frames of sockets."""
        found = [one for one in self.upstream.received() if one.path.endswith("/responses") and one.method != "GET"]
        return [one for one in found if one.account in self.accounts]

    def upgrades(self) -> list[Received]:
        """The sockets that reached this tenant's accounts."""
        return [one for one in self.upstream.received() if one.method == "GET" and one.account in self.accounts and one.socket]

    def tries(self) -> list[tuple[str | None, int | None]]:
        """(account, status) of what `served` tells."""
        return [(one.account, one.status) for one in self.served()]

    def other(self, account: str | None) -> str:
        [found] = set(self.accounts) - {account}
        return found

    async def rows(self, *statuses: str) -> list[UsageRecord]:
        """The usage log, which has come to just these; nothing is held or in flight, and all counters are its sum."""
        tenant = self.tenant

        def left() -> str:
            found = [row.status for row in tenant.log()]
            if len(found) < len(statuses):
                return f"rows are {found}"
            if tenant.usage().live or tenant.slots():
                return "something is in flight"
            running = [one.method for one in (*self.served(), *self.upgrades()) if one.state == "running"]
            return f"running at the upstream: {running}" if running else ""

        deadline = time.monotonic() + 10
        while missing := await in_thread(left):
            assert time.monotonic() < deadline, missing
            await asyncio.sleep(0.1)
        rows: list[UsageRecord] = await in_thread(tenant.log)
        assert [row.status for row in rows] == list(statuses)
        for row in rows:
            assert (row.part, row.model_asked, row.is_implausible) == (0, "gpt-5.4", False)
            assert row.credits == price(row)
        usage = await in_thread(tenant.usage)
        total = sum(row.credits for row in rows)
        assert (usage.credits, usage.member_credits, usage.plan.used, usage.plan.held, usage.live) == (total, total, total, 0, 0)
        assert await in_thread(tenant.live_holds) == 0
        assert await in_thread(tenant.slots) == 0
        return rows

    def account_of(self, row: UsageRecord) -> str:
        """The upstream's name of the account that a row was served by."""
        return next(name for name, account in self.accounts.items() if account.pk == row.account_id)


def clock(at: int) -> str:
    """A moment on another day as Codex writes it: Dec 1st, 2026 12:00 AM."""
    when = datetime.fromtimestamp(at, UTC)
    suffix = "th" if 11 <= when.day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(when.day % 10, "th")
    return f"{when:%b} {when.day}{suffix}, {when:%Y} {when.hour % 12 or 12}:{when:%M %p}"


def usage_limit(at: int) -> str:
    return f"You’ve hit your usage limit. Try again at {clock(at)}."


def told(run: Any) -> list[str]:
    """What the developer reads beside the answer and the failure."""
    return [text for text in run.notices if not text.startswith(KNOWN_NOTICE) and text != run.failure]


async def interrupted(developer: Developer, client: Codex, after: int = 7) -> float:
    """Runs a turn, and Ctrl-C once the upstream has sent so many events of it; when that was."""
    command = await in_thread(client.command, "Hello")
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **client.options()}
    running = subprocess.Popen(command, start_new_session=True, **options)
    try:
        await developer.upstream.wait_for(1, state="running", until=lambda seen: seen.sent_events >= after, seconds=30)
        os.killpg(running.pid, signal.SIGINT)
        left_at = time.time()
        await in_thread(running.communicate, timeout=20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait(10)
    return left_at


def price(row: UsageRecord) -> int:
    fresh, cached, output = GPT_5_4
    total = (row.input_tokens + row.cache_write_tokens) * fresh + row.cached_input_tokens * cached + row.output_tokens * output
    return (total + 500_000) // 1_000_000


def spent(run: CodexRun) -> tuple[int, int, int, int]:
    """(input with cached, cached, output, reasoning): the session's, as `exec` tells them at the end of its turn."""
    usage = run.usage
    return usage["input_tokens"], usage["cached_input_tokens"], usage["output_tokens"], usage["reasoning_output_tokens"]


def booked(rows: list[UsageRecord]) -> tuple[int, int, int, int]:
    """The same of the usage log."""
    cached = sum(row.cached_input_tokens for row in rows)
    fresh = sum(row.input_tokens + row.cache_write_tokens for row in rows)
    return fresh + cached, cached, sum(row.output_tokens for row in rows), sum(row.reasoning_tokens for row in rows)


def tenant_of(upstream: ScriptedUpstream, count: int = 2, **windows: Any) -> tuple[Tenant, dict[str, PoolAccount]]:
    """A tenant with so many sign-in accounts in its pool."""
    tenant = tenants.make(account="none")
    accounts = {}
    for _ in range(count):
        auth = upstream.mint(**windows)
        accounts[auth["tokens"]["account_id"]] = factories.chatgpt_account(tenant.organization, auth)
    tenant.account = next(iter(accounts.values()), None)
    return tenant, accounts
