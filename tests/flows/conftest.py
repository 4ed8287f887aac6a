"""The whole product for the flows: two web processes, a ledger, the scripted upstream, on the test database.

What the processes must see is committed, so flows make tenants of their own with names of their own and clean nothing up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from config import tls
from tests import secrets
from tests.flows import stack as processes
from tests.flows import tenants
from tests.upstream import ScriptedUpstream


class Stack:
    """The running processes. `logs` is the folder that all of their output goes to."""

    def __init__(self, upstream: ScriptedUpstream, logs: Path) -> None:
        self.upstream = upstream
        self.logs = logs
        self.webs: list[processes.Web] = []
        self.ledgers: list[processes.Process] = []

    @property
    def url(self) -> str:
        return self.webs[0].url

    def start(self) -> None:
        self.webs = [processes.web(f"web-{number}", self.upstream.url, self.logs) for number in range(2)]
        self.ledgers = [processes.ledger("ledger-0", self.upstream.url, self.logs)]
        for web in self.webs:
            web.wait_ready()

    def stop(self) -> None:
        for process in (*self.webs, *self.ledgers):
            process.terminate()

    def client(self, **options: Any) -> httpx.AsyncClient:
        """A client whose answers are remembered for the search for secrets."""

        async def remember(response: httpx.Response) -> None:
            secrets.record_answer(f"{response.request.method} {response.request.url.path}", repr(response.headers).encode())
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                secrets.record_answer(f"{response.request.method} {response.request.url.path}", await response.aread())

        limits = httpx.Limits(max_connections=200)
        trusted = tls.authorities(trusts_env=True)
        return httpx.AsyncClient(timeout=60, limits=limits, verify=trusted, event_hooks={"response": [remember]}, **options)


@pytest.fixture(scope="session")
def stack(
    django_db_setup: None, django_db_blocker: Any, upstream_process: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    with django_db_blocker.unblock():
        running = Stack(upstream_process, tmp_path_factory.mktemp("stack"))
        secrets.record_logs(running.logs)
        running.start()
    yield running
    running.stop()


@pytest.fixture
def tenant(upstream: ScriptedUpstream, stack: Stack, transactional_db: None) -> tenants.Tenant:
    """A tenant of this test's own, with an account by API key."""
    return tenants.make()


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    """`await eventually(check, seconds)`: the first true value of `check()`, asked every 50 ms; fails when time is up."""

    async def wait(check: Any, seconds: float = 60.0) -> Any:
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            value = await tenants.in_thread(check)
            if value:
                return value
            assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s: {check}"
            await asyncio.sleep(0.05)

    return wait
