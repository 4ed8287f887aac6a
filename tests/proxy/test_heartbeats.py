"""Streams that are silent for long: the client hears that they live, and nothing is lost by that."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.dialects import responses
from tests import factories
from tests.flows.tenants import Tenant, body, in_thread
from tests.proxy.conftest import Gateway, check_counters, eventually, is_clean, logged
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]
BEAT = responses.HEARTBEAT


@pytest.fixture
def gateway_settings() -> dict[str, Any]:
    return {"HEARTBEAT_SECONDS": 0.1}


def events_of(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: ")]


def names(stream: bytes) -> list[str]:
    return [line[7:].decode() for line in stream.split(b"\n") if line.startswith(b"event: ")]


async def test_silence_before_the_first_event_is_filled(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """N21, L2: at least three in four spans of silence, each an event of its own; then the stream as it came."""
    one: Tenant = await tenant()
    upstream.script({"first_event_delay": 0.45}, token=one.upstream_token)
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=one.headers, content=body())
    assert got.status_code == 200
    assert got.content.count(BEAT) >= 3
    heard = names(got.content)
    first = heard.index("response.created")
    assert set(heard[:first]) == {"keepalive"}
    assert heard[-1] == "response.completed"
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("ok", False)
    await check_counters(one, [row])


async def test_silence_between_events_is_filled_and_they_stay_whole(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """Never inside an event, also where the upstream stops in the middle of one."""
    one: Tenant = await tenant()
    upstream.script({"deltas": 3, "chunk": 1000, "chunk_delay": 0.25}, token=one.upstream_token)
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=one.headers, content=body())
    assert got.content.count(BEAT) >= 2
    plain = got.content.replace(BEAT, b"")
    for part in got.content.split(b"\n\n"):
        assert part == b"" or (part.startswith(b"event: ") and part.count(b"event: ") == 1), part[:80]
    assert names(plain)[0] == "response.created"
    assert names(plain)[-1] == "response.completed"


async def test_an_upstream_that_fails_after_a_heartbeat_is_replaced(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """A heartbeat is no output: another account answers in the same stream."""
    one: Tenant = await tenant()
    await in_thread(factories.openai_account, one.organization)
    upstream.script({"first_event_delay": 0.25, "fail": {"code": "server_is_overloaded", "message": "busy"}})
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=one.headers, content=body())
    assert got.status_code == 200
    heard = [name for name in names(got.content) if name != "keepalive"]
    assert (heard[0], heard[-1]) == ("response.created", "response.completed")
    assert heard.count("response.created") == 1
    [row] = await logged(one)
    assert [step.get("failure") for step in row.trace] == ["overloaded", None]
    assert row.status == "ok"
    await check_counters(one, [row])


async def test_a_failure_after_a_heartbeat_ends_the_stream_in_its_own_words(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N25: no other account is free: created (sequence 0), then failed (sequence 1)."""
    one: Tenant = await tenant()
    upstream.script(
        {"first_event_delay": 0.25, "fail": {"code": "server_is_overloaded", "message": "busy"}}, token=one.upstream_token
    )
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=one.headers, content=body())
    assert got.status_code == 200
    events = [event for event in events_of(got.content) if event["type"] != "keepalive"]
    assert [(event["type"], event["sequence_number"]) for event in events] == [("response.created", 0), ("response.failed", 1)]
    assert events[1]["response"]["error"]["code"] == "pool_busy"
    assert events[0]["response"]["id"] == events[1]["response"]["id"]
    [row] = await logged(one)
    assert (row.status, row.credits) == ("failed", 0)
    await check_counters(one, [row])


async def test_a_stream_cut_after_heartbeats_alone_is_ended_by_us(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    upstream.script({"first_event_delay": 0.25, "cut_after_events": 0}, token=one.upstream_token)
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=one.headers, content=body())
    events = [event for event in events_of(got.content) if event["type"] != "keepalive"]
    assert [(event["type"], event["sequence_number"]) for event in events] == [("response.created", 0), ("response.failed", 1)]
    assert events[1]["response"]["error"]["code"] in ("upstream_unavailable", "stream_incomplete")
    await eventually(lambda: is_clean(one))


async def test_a_quick_stream_has_no_heartbeat(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant()
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=one.headers, content=body())
    assert BEAT not in got.content


async def test_an_answer_that_is_no_stream_cannot_follow_a_heartbeat(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """The client has a stream by then: bare JSON in it would be no event. It ends as failed, and is paid for."""
    one: Tenant = await tenant()
    await in_thread(factories.openai_account, one.organization)
    whole = {"id": "resp_1", "status": "completed", "output": [], "usage": {"input_tokens": 10, "output_tokens": 5}}
    upstream.script({"first_event_delay": 0.25, "fail": {"code": "server_is_overloaded", "message": "busy"}})
    upstream.script({"status": 200, "body": whole, "headers": {"content-type": "application/json"}})
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=one.headers, content=body())
    assert BEAT in got.content
    assert names(got.content)[-1] == "response.failed"
    assert got.content.replace(BEAT, b"").startswith(b"event: ")
    [row] = await logged(one)
    assert (row.input_tokens, row.output_tokens, row.is_estimated) == (10, 5, False)
    await check_counters(one, [row])
