"""Killed processes and lost counters: no usage is lost, no hold is left."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from config import redis as weir_redis
from tests.flows import stack as processes
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, body, in_thread
from tests.flows.test_races import check_counters

pytestmark = pytest.mark.stack

DEADLINE_SECONDS = 3.0


async def read_until_cut(client: httpx.AsyncClient, url: str, tenant: Tenant, started: asyncio.Semaphore) -> int:
    """Reads a stream until it ends or breaks; the bytes that came."""
    size = 0
    with contextlib.suppress(httpx.TransportError):
        async with client.stream("POST", f"{url}/v1/responses", headers=tenant.headers, content=body()) as answer:
            async for chunk in answer.aiter_raw():
                if size == 0:
                    started.release()
                size += len(chunk)
    return size


async def test_killing_a_web_process_under_twenty_streams_loses_no_usage(
    stack: Stack, tenant: Tenant, eventually: Any, tmp_path: Path
) -> None:
    """N7: every request sent upstream ends as exactly one part 0 within the deadline + 2 s; no hold is left; counters = log."""
    doomed = processes.web("doomed", stack.upstream.url, tmp_path)
    await in_thread(doomed.wait_ready)
    stack.upstream.script({"event_delay": 0.2, "deltas": 200}, repeat=20, token=tenant.upstream_token)
    started = asyncio.Semaphore(0)
    async with stack.client() as client:
        readers = [asyncio.create_task(read_until_cut(client, doomed.url, tenant, started)) for _ in range(20)]
        for _ in range(20):
            await asyncio.wait_for(started.acquire(), 20)
        await asyncio.sleep(1.5)
        doomed.kill()
        killed = time.monotonic()
        sizes = await asyncio.gather(*readers)
    assert all(size > 0 for size in sizes)
    assert len(stack.upstream.received(token=tenant.upstream_token)) == 20
    log = await eventually(lambda: rows if len(rows := tenant.log()) >= 20 else None, DEADLINE_SECONDS + 2)
    assert time.monotonic() - killed <= DEADLINE_SECONDS + 2
    assert len(log) == len({row.request_id for row in log}) == 20
    assert {row.part for row in log} == {0}
    assert {row.status for row in log} == {"orphaned"}
    assert all(row.credits > 0 and row.is_estimated for row in log)
    await eventually(lambda: tenant.slots() == 0, 2)
    await check_counters(tenant, log)


async def test_a_request_that_ends_while_its_process_is_killed_is_booked_once(
    stack: Stack, tenant: Tenant, eventually: Any, tmp_path: Path
) -> None:
    """N7: killed at any moment around the end of a stream, the record is present or the hold still is; never neither."""
    doomed = processes.web("doomed-at-the-end", stack.upstream.url, tmp_path)
    await in_thread(doomed.wait_ready)
    stack.upstream.script({"event_delay": 0.05}, repeat=12, token=tenant.upstream_token)
    async with stack.client() as client:
        started = asyncio.Semaphore(0)
        readers = []
        for _ in range(12):
            readers.append(asyncio.create_task(read_until_cut(client, doomed.url, tenant, started)))
            await asyncio.sleep(0.07)
        # The first have ended, the last are running: some are settling right now.
        doomed.kill()
        await asyncio.gather(*readers)
    sent = len(stack.upstream.received(token=tenant.upstream_token))
    assert sent > 0
    log = await eventually(lambda: rows if len(rows := tenant.log()) >= sent else None, DEADLINE_SECONDS + 2)
    assert len({row.request_id for row in log}) == len(log)
    await eventually(lambda: tenant.slots() == 0, 2)
    await check_counters(tenant, log)


async def test_deleting_every_key_gives_nobody_free_credits(stack: Stack, tenant: Tenant, eventually: Any) -> None:
    """Every key of Redis gone at 90 of 100 used: the very next request sees 90, on either process."""
    usage = {"input_tokens": 720_000, "output_tokens": 0, "total_tokens": 720_000}
    await in_thread(tenant.set_limit, scope="member", metric="credits", window="day", amount="100")
    stack.upstream.script({"usage": usage}, token=tenant.upstream_token)
    content = body(input="weir " * 600_000, max_output_tokens=1)
    async with stack.client() as client:
        first = await client.post(f"{stack.url}/v1/responses", headers=tenant.headers, content=content)
        assert first.status_code == 200, first.text[:300]
        [row] = await eventually(tenant.log, 10)
        assert row.credits == 90_000_000
        for web in stack.webs:
            await in_thread(weir_redis.sync_client().flushall)
            refused = await client.post(f"{web.url}/v1/responses", headers=tenant.headers, content=content)
            assert refused.status_code == 429, refused.text[:300]
            error = refused.json()["error"]
            assert (error["scope"], error["used"], error["held"], error["limit"]) == ("member", "90", "0", "100")
        asked = await client.get(f"{stack.url}/v1/usage", headers=tenant.headers)
        [limit] = [one for one in asked.json()["limits"] if one["scope"] == "member"]
        assert (limit["used"], limit["limit"], limit["remaining"]) == ("90", "100", "10")
    assert len(stack.upstream.received(token=tenant.upstream_token)) == 1
    await check_counters(tenant, await in_thread(tenant.log))
