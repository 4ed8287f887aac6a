"""Streams hold no database connection, however many there are."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db import connection

from tests.flows import stack as processes
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, body, in_thread
from tests.flows.test_races import check_counters

pytestmark = pytest.mark.stack

STREAMS = 100
NAME = "web-of-many-streams"


def connections() -> list[tuple[str, str]]:
    """State and statement of the web process's connections."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT state, query FROM pg_stat_activity WHERE application_name = %s", [NAME])
        found: list[tuple[str, str]] = cursor.fetchall()
        return found


async def test_a_hundred_streams_hold_no_connection_and_lose_no_row(
    stack: Stack, tenant: Tenant, eventually: Any, tmp_path: Path
) -> None:
    """H4: 100 open streams beside a pool of 10: no connection is held while they run, no row is lost."""
    web = processes.web("many", stack.upstream.url, tmp_path, PGAPPNAME=NAME)
    await in_thread(web.wait_ready)
    # Longer than it takes to open all of them.
    stack.upstream.script({"event_delay": 0.25, "deltas": 40}, repeat=STREAMS, token=tenant.upstream_token)
    running = 0
    all_run = asyncio.Event()

    async def read(client: httpx.AsyncClient) -> bool:
        nonlocal running
        is_complete = False
        async with client.stream("POST", f"{web.url}/v1/responses", headers=tenant.headers, content=body()) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line == "event: response.created":
                    running += 1
                    if running == STREAMS:
                        all_run.set()
                is_complete = is_complete or line == "event: response.completed"
        return is_complete

    async with stack.client() as client:
        readers = [asyncio.create_task(read(client)) for _ in range(STREAMS)]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(all_run.wait(), 40)
        assert running == STREAMS
        for _ in range(10):
            held = await in_thread(connections)
            # What the pool keeps for the next snapshot is idle, and far from the pool's 10.
            assert len(held) <= 5
            assert [one for one in held if one[0] != "idle"] == []
            await asyncio.sleep(0.1)
        assert all(await asyncio.gather(*readers))
    log = await eventually(lambda: rows if len(rows := tenant.log()) >= STREAMS else None, 15)
    assert len(log) == len({row.request_id for row in log}) == STREAMS
    assert {row.status for row in log} == {"ok"}
    await check_counters(tenant, log)
    await in_thread(web.terminate)
