"""What the Codex flows share: a developer with accounts, a tap before the gateway, and what must be true when a turn is over."""

from dataclasses import dataclass, field
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

    def codex(self, name: str = "codex", *, path: str = "/backend-api/codex", key: str = "", **options: Any) -> Codex:
        """A Codex with a home of its own."""
        return Codex(f"{self.tap.url}{path}", key or self.tenant.key.secret, self.folder / name, **options)

    def served(self) -> list[Received]:
        """The requests for a response that reached this tenant's accounts, oldest first."""
        tokens = {self.tenant.upstream_token, *self.accounts}
        return [one for one in self.upstream.received() if one.path.endswith("/responses") and {one.token, one.account} & tokens]

    def tries(self) -> list[tuple[str | None, int | None]]:
        """(account, status) of what `served` tells."""
        return [(one.account, one.status) for one in self.served()]

    def other(self, account: str | None) -> str:
        [found] = set(self.accounts) - {account}
        return found

    async def rows(self, *statuses: str) -> list[UsageRecord]:
        """The usage log, which has come to just these; nothing is held or in flight, and all counters are its sum."""
        tenant = self.tenant

        def complete() -> list[UsageRecord] | None:
            found = tenant.log()
            return found if len(found) >= len(statuses) and tenant.usage().live == tenant.slots() == 0 else None

        rows: list[UsageRecord] = await self.eventually(complete, 10) if statuses else await in_thread(tenant.log)
        assert [row.status for row in rows] == list(statuses)
        for row in rows:
            assert (row.part, row.model_asked, row.is_implausible) == (0, "gpt-5.4", False)
            assert row.credits == price(row)
        usage = await in_thread(tenant.usage)
        total = sum(row.credits for row in rows)
        assert (usage.credits, usage.member_credits, usage.plan.used, usage.plan.held, usage.live) == (total, total, total, 0, 0)
        assert await in_thread(tenant.live_holds) == 0
        assert await in_thread(tenant.slots) == 0
        assert [one for one in self.served() if one.state == "running"] == []
        return rows

    def account_of(self, row: UsageRecord) -> str:
        """The upstream's name of the account that a row was served by."""
        return next(name for name, account in self.accounts.items() if account.pk == row.account_id)


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
