"""Compactions: the old endpoint through the gateway, and the item inside an ordinary request."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from proxy.dialects import compact
from proxy.dialects.inspection import Coded, ModelMissing, NotServed
from proxy.errors import InvalidJson
from routing.snapshots import ANTHROPIC, CHATGPT, COMPATIBLE, OPENAI
from tests import factories
from tests.flows.tenants import Tenant, cost, in_thread
from tests.proxy.conftest import Gateway, check_counters, is_clean, logged
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]

PATHS = ("/v1/responses/compact", "/backend-api/codex/responses/compact")
QUESTION = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "long ago"}]}
CONTENT = (
    b'{ "model":"gpt-5.5", "input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"long ago"}]}],'
    b'"instructions":"be \\u00e9","x":[1e3] }'
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ["openai", "chatgpt"])
async def test_a_compaction_passes_byte_for_byte_and_is_priced_once(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str, path: str
) -> None:
    """N56: sign-in accounts get it unedited as well: there is no stream to ask for."""
    one: Tenant = await tenant(account=kind)
    upstream.script({"usage": {"input_tokens": 400, "output_tokens": 30}}, token=one.upstream_token)
    got = await gateway.client.post(f"{gateway.url}{path}", headers=one.headers, content=CONTENT)
    value = got.json()
    assert (got.status_code, got.headers["content-type"]) == (200, "application/json")
    assert value["output"][0] == QUESTION
    assert (value["output"][1]["type"], bool(value["output"][1]["encrypted_content"])) == ("compaction", True)
    assert got.headers["x-codex-primary-used-percent"] == "0"
    [received] = upstream.received(token=one.upstream_token)
    assert received.body == CONTENT
    assert received.path == ("/v1/responses/compact" if kind == "openai" else "/backend-api/codex/responses/compact")
    [row] = await logged(one)
    assert (row.status, row.credits, row.is_estimated) == ("ok", cost(input=400, output=30), False)
    await check_counters(one, [row])


async def test_without_usage_it_is_billed_by_the_estimate(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant(account="chatgpt")
    got = await gateway.client.post(f"{gateway.url}{PATHS[1]}", headers=one.headers, content=CONTENT)
    assert "usage" not in got.json()
    [row] = await logged(one)
    expected = cost(input=-(-len(CONTENT) // 4), output=-(-len(got.content) // 4))
    assert (row.status, row.credits, row.is_estimated) == ("ok", expected, True)
    await check_counters(one, [row])


async def test_a_refused_compaction_costs_nothing(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant()
    upstream.script({"error": "400_context"}, token=one.upstream_token)
    got = await gateway.client.post(f"{gateway.url}{PATHS[0]}", headers=one.headers, content=CONTENT)
    assert (got.status_code, got.json()["error"]["code"]) == (400, "context_length_exceeded")
    [row] = await logged(one)
    assert (row.status, row.credits) == ("failed", 0)
    assert await is_clean(one)


async def test_it_moves_to_another_account_as_any_request(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """N30"""
    one: Tenant = await tenant()
    _, token = await in_thread(factories.openai_account, one.organization)
    upstream.script({"error": "429_usage"}, path=PATHS[0])
    got = await gateway.client.post(f"{gateway.url}{PATHS[0]}", headers=one.headers, content=CONTENT)
    assert got.status_code == 200
    found = [received for other in (one.upstream_token, token) for received in upstream.received(token=other)]
    assert sorted(received.status or 0 for received in found) == [200, 429]
    [row] = await logged(one)
    assert (row.status, len(row.trace)) == ("ok", 2)
    await check_counters(one, [row])


async def test_what_is_no_compaction_is_refused_before_it_is_sent(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    one: Tenant = await tenant()
    for content, status, code in (
        (CONTENT.replace(b'"x"', b'"stream":true,"x"'), 400, "unsupported_parameter"),
        (b"[]", 400, "invalid_json"),
        (CONTENT.replace(b"gpt-5.5", b"no-such-model"), 400, "model_not_found"),
    ):
        got = await gateway.client.post(f"{gateway.url}{PATHS[0]}", headers=one.headers, content=content)
        assert (got.status_code, got.json()["error"]["code"]) == (status, code)
    assert (await gateway.get(one, PATHS[0])).status_code == 405
    assert upstream.received(token=one.upstream_token) == []
    assert await is_clean(one)
    await logged(one, 0)


@pytest.mark.parametrize("kind", ["openai", "chatgpt"])
@pytest.mark.parametrize("stream", [True, False])
async def test_the_item_that_asks_for_a_compaction_brings_one(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, kind: str, stream: bool
) -> None:
    """Newer Codex: an ordinary request whose last item is `compaction_trigger`; its answer holds the item `compaction`."""
    one: Tenant = await tenant(account=kind)
    given = [QUESTION, {"type": "compaction_trigger"}]
    got = await gateway.post(one, input=given, stream=stream)
    assert got.status_code == 200
    if stream:
        events = [json.loads(line[6:]) for line in got.text.splitlines() if line.startswith("data: ")]
        [item] = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    else:
        [item] = got.json()["output"]
    assert (item["type"], bool(item["encrypted_content"])) == ("compaction", True)
    [received] = upstream.received(token=one.upstream_token)
    assert received.json["input"] == given
    [row] = await logged(one)
    assert (row.status, row.is_estimated) == ("ok", False)
    # What stands for the conversation goes on like any other item.
    assert (await gateway.post(one, input=[item, QUESTION], stream=stream)).status_code == 200
    assert upstream.received(token=one.upstream_token)[1].json["input"] == [item, QUESTION]
    await check_counters(one, await logged(one, 2))


# -------------------------------------------------------------------------------------------------------------- units


def test_who_serves_it() -> None:
    assert frozenset({CHATGPT, OPENAI}) == compact.KINDS
    assert not compact.KINDS & {COMPATIBLE, ANTHROPIC}


def test_it_is_read_like_a_request_for_a_response() -> None:
    found = compact.inspect(CONTENT)
    assert (found.model, found.stream, found.body) == ("gpt-5.5", False, CONTENT)
    for bad, error in ((b"{}", ModelMissing), (b"1", InvalidJson), (b'{"model":"m","stream":true}', NotServed)):
        with pytest.raises(error):
            compact.inspect(bad)


@pytest.mark.parametrize(("kind", "path"), [(OPENAI, "/responses/compact"), (CHATGPT, "/codex/responses/compact")])
def test_its_wire_changes_the_model_only(kind: str, path: str) -> None:
    packed = zstandard.ZstdCompressor().compress(CONTENT)
    found = compact.inspect(CONTENT, coded=Coded("zstd", packed))
    wire = compact.wire(found, model="gpt-5.5", kind=kind)
    assert (wire.path, wire.is_streamed) == (path, False)
    assert (wire.body, wire.encoding) == ((packed, "zstd") if kind == CHATGPT else (CONTENT, None))
    wire = compact.wire(found, model="gpt-5.4", kind=kind)
    assert (wire.body, wire.encoding) == (CONTENT.replace(b"gpt-5.5", b"gpt-5.4"), None)
    assert wire.whole(b"{}") == b"{}"


def test_an_answer_is_whole_with_and_without_usage() -> None:
    for answer, status, usage in (
        (b'{"output":[{"type":"compaction"}]}', "ok", None),
        (b'{"id":"resp_1","output":[],"usage":{"input_tokens":1}}', "ok", {"input_tokens": 1}),
        (b"{}", "", None),
        (b"<html>", "", None),
    ):
        meter = compact.wire(compact.inspect(CONTENT), model="gpt-5.5", kind=OPENAI).meter
        meter.see_response(answer)
        assert (meter.status, meter.usage) == (status, usage)
