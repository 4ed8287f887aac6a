"""A web process is told to stop: what runs comes to its end, what is new is told when to come again, and nothing is left behind."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from tests import ports
from tests.flows import stack as processes
from tests.flows import tenants
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, body, cost, in_thread
from tests.flows.test_races import check_counters
from tests.launch.processes import descendants

pytestmark = pytest.mark.stack

DRAIN_SECONDS = 20.0
STREAMS = 20
USAGE = {"input_tokens": 1000, "output_tokens": 200, "total_tokens": 1200}
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}


class Served:
    """`manage.py serve` with its own time to drain."""

    def __init__(self, upstream_url: str, folder: Path, *arguments: str, drain_seconds: float) -> None:
        port = ports.free()
        url = f"http://127.0.0.1:{port}"
        self.web = processes.Web(
            name="draining",
            command=[sys.executable, "manage.py", "serve", "--port", str(port), *arguments],
            environ=processes.environment(upstream_url, PUBLIC_URL=url, DRAIN_SECONDS=str(drain_seconds)),
            log=folder / "draining.log",
            url=url,
        )
        self.url = url
        self.web.start()
        self.web.wait_ready(60)

    def tell(self, number: int = signal.SIGTERM) -> float:
        """That moment."""
        self.web.running.send_signal(number)
        return time.monotonic()

    async def gone(self, seconds: float) -> float:
        """When it has ended."""
        await asyncio.to_thread(self.web.running.wait, seconds)
        return time.monotonic()


@pytest.fixture
def serve(stack: Stack, tmp_path: Path) -> Iterator[Any]:
    started: list[Served] = []

    async def start(*arguments: str, drain_seconds: float = DRAIN_SECONDS) -> Served:
        made = await in_thread(Served, stack.upstream.url, tmp_path, *arguments, drain_seconds=drain_seconds)
        started.append(made)
        return made  # type: ignore[no-any-return]

    yield start
    for one in started:
        one.web.kill()


class Stream:
    """One stream and what came of it. `begun` once its first bytes are there."""

    def __init__(self, client: httpx.AsyncClient, url: str, tenant: Tenant, content: bytes | None = None) -> None:
        self.begun = asyncio.Event()
        self.data = b""
        self.status = 0
        self._task = asyncio.create_task(self._read(client, url, tenant, content or body()))

    async def _read(self, client: httpx.AsyncClient, url: str, tenant: Tenant, content: bytes) -> None:
        try:
            async with client.stream("POST", url, headers=tenant.headers, content=content) as answer:
                self.status = answer.status_code
                if answer.is_stream_consumed:
                    self.data = answer.content
                    return
                async for chunk in answer.aiter_raw():
                    self.data += chunk
                    self.begun.set()
        finally:
            self.begun.set()

    def is_running(self) -> bool:
        return not self._task.done()

    async def ended(self, seconds: float = 30) -> "Stream":
        await asyncio.wait_for(self._task, seconds)
        return self

    def events(self) -> list[dict[str, Any]]:
        lines = [line[6:] for line in self.data.splitlines() if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]


async def begun(streams: list[Stream]) -> None:
    for stream in streams:
        await asyncio.wait_for(stream.begun.wait(), 30)
    assert all(stream.is_running() for stream in streams), [stream.data for stream in streams if not stream.is_running()]


def is_listening(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) == 0


async def nothing_left(tenant: Tenant, eventually: Any) -> None:
    await eventually(lambda: tenant.live_holds() == 0, 10)
    await eventually(lambda: tenant.slots() == 0, 5)


async def test_twenty_streams_finish_and_what_is_new_is_told_to_come_again(
    stack: Stack, tenant: Tenant, serve: Any, eventually: Any
) -> None:
    """N26: they finish within the limit; new calls get 503 with Retry-After, in every dialect, on a connection kept alive, too."""
    served = await serve()
    stack.upstream.script({"event_delay": 0.1, "deltas": 60, "usage": USAGE}, repeat=STREAMS, token=tenant.upstream_token)
    async with stack.client() as client, stack.client() as idle:
        kept = (await idle.get(f"{served.url}/health/ready")).extensions["network_stream"].get_extra_info("client_addr")
        streams = [Stream(client, f"{served.url}/v1/responses", tenant) for _ in range(STREAMS)]
        await begun(streams)
        told = served.tell()
        await until_refused(idle, served.url)
        refused = await idle.post(f"{served.url}/v1/responses", headers=tenant.headers, content=body())
        assert refused.extensions["network_stream"].get_extra_info("client_addr") == kept
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert (refused.json()["error"]["type"], refused.json()["error"]["code"]) == ("server_error", "draining")
        for dialect, path in PATHS.items():
            async with stack.client() as new:
                answer = await new.post(f"{served.url}{path}", headers=tenant.headers, content=body())
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), dialect
                envelope = answer.json()
                assert envelope["error"]["message"] == "The gateway is being restarted. Try again in a few seconds."
                if dialect == "messages":
                    assert (envelope["type"], envelope["error"]["type"]) == ("error", "overloaded_error")
        ready = await idle.get(f"{served.url}/health/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "draining", "checks": {}})
        assert (await idle.get(f"{served.url}/health/live")).status_code == 200
        assert all(stream.is_running() for stream in streams), [stream.data for stream in streams if not stream.is_running()]
        for stream in streams:
            events = (await stream.ended()).events()
            assert (stream.status, events[-1]["type"]) == (200, "response.completed")
        assert await served.gone(DRAIN_SECONDS) - told < DRAIN_SECONDS
    assert not is_listening(served.url)
    log = await eventually(lambda: rows if len(rows := tenant.log()) >= STREAMS else None, 10)
    assert [(row.status, row.credits, row.is_estimated) for row in log] == [("ok", cost(input=1000, output=200), False)] * STREAMS
    assert len(stack.upstream.received(token=tenant.upstream_token)) == STREAMS
    await nothing_left(tenant, eventually)
    await check_counters(tenant, log)


async def until_refused(client: httpx.AsyncClient, url: str) -> None:
    """The signal has been heard."""
    deadline = time.monotonic() + 10
    while True:
        # A process that has nothing to end is gone at once, and with it the connections that were kept open to it.
        with contextlib.suppress(httpx.RemoteProtocolError):
            if (await client.get(f"{url}/health/ready")).status_code != 200:
                return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_stream_that_outlasts_the_time_is_ended_and_billed(
    stack: Stack, tenant: Tenant, serve: Any, eventually: Any
) -> None:
    """N26: in each dialect by its own failed event; an answer that is no stream, and one that has not begun, by 503."""
    served = await serve(drain_seconds=2)
    anthropic = await in_thread(tenants.make, account="anthropic")
    slow = {"event_delay": 0.1, "deltas": 400}
    for one in (tenant, anthropic):
        stack.upstream.script(slow, repeat=2, token=one.upstream_token)
    message = {"model": tenants.MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": "Weirs?"}]}
    chat = {"model": tenants.MODEL, "stream": True, "messages": [{"role": "user", "content": "Weirs?"}]}
    async with stack.client() as client:
        response = Stream(client, f"{served.url}{PATHS['responses']}", tenant)
        completion = Stream(client, f"{served.url}{PATHS['chat']}", tenant, json.dumps(chat).encode())
        said = Stream(client, f"{served.url}{PATHS['messages']}", anthropic, json.dumps({**message, "stream": True}).encode())
        await begun([response, completion, said])
        stack.upstream.script({"delay": 30}, repeat=2, token=tenant.upstream_token)
        waiting = [Stream(client, f"{served.url}/v1/responses", tenant, body(stream=is_stream)) for is_stream in (True, False)]
        await eventually(lambda: len(stack.upstream.received(token=tenant.upstream_token)) == 4)
        told = served.tell()
        last = (await response.ended()).events()[-1]
        assert time.monotonic() - told >= 2
        assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "stream_incomplete")
        assert last["response"]["error"]["message"] == "The gateway was restarted before the stream was complete."
        assert (await completion.ended()).events()[-1]["error"]["code"] == "stream_incomplete"
        assert (await said.ended()).events()[-1]["type"] == "error"
        for one in waiting:
            assert (await one.ended()).status == 503
            assert json.loads(one.data)["error"]["code"] == "draining"
        # Three for the ends of what was cut, two for connections that stay open.
        assert await served.gone(10) - told < 2 + 3 + 2
    for one, count in ((tenant, 4), (anthropic, 1)):
        log = await eventually(lambda one=one, count=count: rows if len(rows := one.log()) >= count else None, 10)
        assert len(log) == count
        assert {(row.status, row.is_estimated, row.credits > 0) for row in log} == {("failed", True, True)}
        assert [(step["failure"]) for row in log for step in row.trace] == ["draining"] * count
        await nothing_left(one, eventually)
        await check_counters(one, log)


async def test_a_second_signal_ends_streams_at_once(stack: Stack, tenant: Tenant, serve: Any, eventually: Any) -> None:
    """What is written is billed. A turn over WebSocket ends as a stream does; a socket that rests is closed at the first one."""
    served = await serve()
    stack.upstream.script({"event_delay": 0.1, "deltas": 400}, repeat=3, token=tenant.upstream_token)
    address = f"{served.url.replace('http', 'ws', 1)}/v1/responses"
    async with (
        stack.client() as client,
        websockets.connect(address, additional_headers=tenant.headers) as resting,
        websockets.connect(address, additional_headers=tenant.headers) as busy,
    ):
        streams = [Stream(client, f"{served.url}/v1/responses", tenant) for _ in range(2)]
        await begun(streams)
        await busy.send(json.dumps({"type": "response.create", **json.loads(body())}))
        frames = [json.loads(await busy.recv())]
        served.tell()
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await asyncio.wait_for(resting.recv(), 10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(address, additional_headers=tenant.headers)
        assert refused.value.response.status_code == 503
        assert all(stream.is_running() for stream in streams), [stream.data for stream in streams if not stream.is_running()]
        told = served.tell()
        for stream in streams:
            assert (await stream.ended()).events()[-1]["type"] == "response.failed"
        with contextlib.suppress(websockets.ConnectionClosed):
            while True:
                frames.append(json.loads(await asyncio.wait_for(busy.recv(), 10)))
        assert frames[-1]["type"] == "response.failed"
        assert busy.close_code == 1012
        assert await served.gone(10) - told < 5
    log = await eventually(lambda: rows if len(rows := tenant.log()) >= 3 else None, 10)
    assert [(row.status, row.is_estimated, row.credits > 0) for row in log] == [("failed", True, True)] * 3
    await nothing_left(tenant, eventually)
    await check_counters(tenant, log)


async def test_several_processes_on_one_port_drain_together(stack: Stack, tenant: Tenant, serve: Any, eventually: Any) -> None:
    """N26: whoever connects meanwhile is answered by one of them; two signals for one wish do not cut."""
    served = await serve("--workers", "2")
    stack.upstream.script({"event_delay": 0.1, "deltas": 60, "usage": USAGE}, repeat=8, token=tenant.upstream_token)
    async with stack.client() as client:
        streams = [Stream(client, f"{served.url}/v1/responses", tenant) for _ in range(8)]
        await begun(streams)
        told = served.tell(signal.SIGINT)
        for pid in descendants(served.web.running.pid):
            # As a terminal tells all of them; their parent does so again, by SIGTERM.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        await until_refused(client, served.url)
        await asyncio.sleep(1)
        for _ in range(6):
            async with stack.client() as new:
                answer = await new.post(f"{served.url}/v1/responses", headers=tenant.headers, content=body())
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        for stream in streams:
            assert (await stream.ended()).events()[-1]["type"] == "response.completed"
        assert await served.gone(DRAIN_SECONDS) - told < DRAIN_SECONDS
    assert not is_listening(served.url)
    await eventually(lambda: len(tenant.log()) == 8, 10)
    await nothing_left(tenant, eventually)
