"""Slots on accounts come back, whichever way what held them ends."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db import transaction

from routing import pools
from routing.models import PoolAccount
from tests.flows import stack as processes
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, body, in_thread

pytestmark = pytest.mark.stack

SLOTS = 10
LEASE_SECONDS = 3.0
"""HOLD_DEADLINE_SECONDS of the tests' settings."""
HELD = {"hold": {"name": "slots", "after": 4}}


def cap(account: PoolAccount) -> None:
    PoolAccount.objects.filter(pk=account.pk).update(concurrency_cap=SLOTS)
    with transaction.atomic():
        pools.changed(account.pool.organization_id)


async def hold_all(client: httpx.AsyncClient, url: str, tenant: Tenant) -> list["asyncio.Task[None]"]:
    """Readers of as many streams as there are slots, each of which has begun."""
    begun = asyncio.Semaphore(0)

    async def read() -> None:
        async with client.stream("POST", f"{url}/v1/responses", headers=tenant.headers, content=body()) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line == "event: response.created":
                    begun.release()

    readers = [asyncio.create_task(read()) for _ in range(SLOTS)]
    for _ in readers:
        await asyncio.wait_for(begun.acquire(), 20)
    return readers


async def test_ten_killed_connections_and_a_killed_process_leave_no_slot(
    stack: Stack, tenant: Tenant, eventually: Any, tmp_path: Path
) -> None:
    """K11: 10 slots, 10 killed connections; then 10 more, and their process is killed with -9: all free within the lease time."""
    assert tenant.account is not None
    await in_thread(cap, tenant.account)
    stack.upstream.script(HELD, repeat=2 * SLOTS, token=tenant.upstream_token)
    doomed = processes.web("doomed-with-slots", stack.upstream.url, tmp_path, DISCONNECT_GRACE_SECONDS="1")
    await in_thread(doomed.wait_ready)
    async with stack.client() as client:

        async def check_full() -> None:
            assert await in_thread(tenant.slots) == SLOTS
            refused = await client.post(f"{stack.url}/v1/responses", headers=tenant.headers, content=body())
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "concurrency_limit")

        readers = await hold_all(client, doomed.url, tenant)
        await check_full()
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await eventually(lambda: tenant.slots() == 0, LEASE_SECONDS)

        readers = await hold_all(client, doomed.url, tenant)
        await check_full()
        doomed.kill()
        for reader in readers:
            with contextlib.suppress(httpx.TransportError):
                await reader
        await eventually(lambda: tenant.slots() == 0, LEASE_SECONDS + 1)
        # By another process, all of them again.
        stack.upstream.release("slots")
        stack.upstream.script({"event_delay": 0.05}, repeat=SLOTS, token=tenant.upstream_token)
        calls = [client.post(f"{stack.url}/v1/responses", headers=tenant.headers, content=body()) for _ in range(SLOTS)]
        assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200] * SLOTS
    assert len(stack.upstream.received(token=tenant.upstream_token)) == 3 * SLOTS
    log = await eventually(lambda: rows if len(rows := tenant.log()) >= 3 * SLOTS else None, 15)
    assert sorted(row.status for row in log) == ["client_closed"] * SLOTS + ["ok"] * SLOTS + ["orphaned"] * SLOTS
    assert await in_thread(tenant.live_holds) == 0
