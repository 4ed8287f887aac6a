"""Nothing of a request is left to the garbage collector: what it held, its body first of all, is gone as soon as it has ended.

A circle of references would keep it until the next full collection, which is seldom on purpose (`proxy.lifespan`).
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.flows.tenants import Tenant, body
from tests.proxy.conftest import Gateway, eventually, is_clean
from tests.proxy.socket_client import opened
from tests.proxy.test_exchange_clients import read_deltas
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]
Scenario = Callable[[Gateway, Tenant, ScriptedUpstream], Awaitable[None]]


@pytest.fixture
def uncollected() -> Iterator[Callable[[], Counter[str]]]:
    """From now on nothing is collected; gives what of the proxy's only a collection would take away, by type."""

    def found() -> Counter[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            kinds = (type(one) for one in gc.garbage)
            return Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds if kind.__module__.startswith("proxy."))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()

    gc.collect()
    gc.disable()
    yield found
    gc.enable()
    gc.collect()


async def stream(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    assert (await gateway.post(one)).status_code == 200


async def folded(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    assert (await gateway.post(one, stream=False)).status_code == 200


async def chat(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    said = [{"role": "user", "content": "Hello."}]
    content = {"model": "gpt-5.5", "stream": True, "messages": said}
    answer = await gateway.client.post(f"{gateway.url}/v1/chat/completions", headers=one.headers, json=content)
    assert answer.status_code == 200


async def refused(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    upstream.script({"error": "429_rate"}, token=one.upstream_token)
    assert (await gateway.post(one)).status_code == 429


async def failed_in_the_stream(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    upstream.script({"fail": {"code": "server_error", "message": "x"}}, token=one.upstream_token)
    assert (await gateway.post(one)).status_code == 200


async def cut(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    upstream.script({"deltas": 10, "cut_after_events": 6}, token=one.upstream_token)
    assert "stream_incomplete" in (await gateway.post(one)).text


async def unanswered(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    upstream.script({"cut_before_head": True}, token=one.upstream_token)
    assert (await gateway.post(one)).status_code == 502


async def left(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    upstream.script({"deltas": 200, "event_delay": 0.02}, token=one.upstream_token)
    await read_deltas(gateway, one, 5)


async def no_json(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    answer = await gateway.client.post(f"{gateway.url}/v1/responses", headers=one.headers, content=body()[:-1])
    assert answer.status_code == 400


async def turns(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    async with opened(gateway, one) as client:
        for _ in range(2):
            assert (await client.turn())["type"] == "response.completed"


async def turn_cut(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    upstream.script({"deltas": 10, "cut_after_events": 6}, token=one.upstream_token)
    async with opened(gateway, one) as client:
        assert (await client.turn())["type"] == "response.failed"


async def turn_left(gateway: Gateway, one: Tenant, upstream: ScriptedUpstream) -> None:
    upstream.script({"deltas": 200, "event_delay": 0.02}, token=one.upstream_token)
    async with opened(gateway, one) as client:
        await client.send()
        await client.frame()


@pytest.mark.parametrize(
    "scenario",
    [stream, folded, chat, refused, failed_in_the_stream, cut, unanswered, left, no_json, turns, turn_cut, turn_left],
)
async def test_a_request_is_gone_with_its_end(
    gateway: Gateway,
    tenant: MakeTenant,
    upstream: ScriptedUpstream,
    uncollected: Callable[[], Counter[str]],
    scenario: Scenario,
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    await scenario(gateway, one, upstream)
    await eventually(lambda: gateway.resources.running == 0 and not len(gateway.resources.sockets))
    await eventually(lambda: is_clean(one))
    # Timers of what has ended, of milliseconds each.
    await asyncio.sleep(0.1)
    assert uncollected() == Counter()


async def test_an_idle_socket_keeps_no_frame_of_its_client(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, uncollected: Callable[[], Counter[str]]
) -> None:
    """As text and as bytes it would be twice what a client may send, for as long as the socket is open."""
    one: Tenant = await tenant(account="chatgpt")
    async with opened(gateway, one) as client:
        await client.turn("weir" * 100_000)
        await eventually(lambda: gateway.resources.running == 0)
        await asyncio.sleep(0.1)
        kept = [kept for kept in gc.get_objects() if type(kept).__qualname__ in ("Inspection", "Fields", "Tab")]
        assert kept == []
        assert uncollected() == Counter()
