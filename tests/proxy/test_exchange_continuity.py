"""What a request continues stays where it is: through the front door, with two accounts that could both answer anything else."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from config.redis import sync_client
from proxy import continuity
from routing import accounts, anchors, live, pools, snapshots, sticky
from routing.anchors import Anchor, Kind
from routing.models import PoolAccount
from tests import factories
from tests.flows.tenants import Tenant, body, in_thread
from tests.proxy.conftest import Gateway, check_counters, eventually, is_clean, logged
from tests.proxy.test_exchange_failures import exhausted, problem, sse
from tests.upstream import Received, ScriptedUpstream

MakeTenant = Callable[..., Any]
QUESTION = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]}
TURN = "x-codex-turn-state"


@dataclass
class World:
    """A tenant with two accounts of one kind, `tokens` by the account's id."""

    tenant: Tenant
    tokens: dict[int, str]
    upstream: ScriptedUpstream

    def received(self) -> list[Received]:
        """What reached either account, in order."""
        found = [one for token in self.tokens.values() for one in self.upstream.received(token=token) if one.method == "POST"]
        return sorted(found, key=lambda one: one.at)

    def served(self) -> list[int]:
        """The accounts of those, by id."""
        by_token = {token: number for number, token in self.tokens.items()}
        return [by_token[one.token] for one in self.received()]

    def other(self, account_id: int) -> int:
        [found] = [number for number in self.tokens if number != account_id]
        return found

    def forget(self, *names: Anchor) -> None:
        """Redis loses these owners."""
        for name in names:
            sync_client().delete(self.key(name))

    def key(self, anchor: Anchor) -> str:
        return live.owner_key(self.tenant.organization.pk, f"{anchor.kind.value}:{anchor.id}")

    def owner(self, anchor: Anchor) -> int | None:
        found = sync_client().get(self.key(anchor))
        return int(found) if isinstance(found, bytes) else None

    def is_owned(self, anchor: Anchor, account_id: int) -> bool:
        return self.owner(anchor) == account_id

    def set_status(self, account_id: int, status: str | None) -> None:
        """Changes the account's status, or (None) deletes it; as the product tells of it."""
        with transaction.atomic():
            pools.changed(self.tenant.organization.pk)
            if status is None:
                PoolAccount.objects.filter(pk=account_id).delete()
            else:
                PoolAccount.objects.filter(pk=account_id).update(status=status)


@pytest.fixture
def world(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> Callable[..., Any]:
    async def make(kind: str = "openai") -> World:
        one: Tenant = await tenant(account=kind)
        assert one.account is not None
        if kind == "openai":
            second, token = await in_thread(factories.openai_account, one.organization)
        else:
            auth = upstream.mint()
            second = await in_thread(factories.chatgpt_account, one.organization, auth)
            token = auth["tokens"]["access_token"]
        # Whoever was asked last is asked next by nobody's choice, only because it owns something or has the session.
        own = await in_thread(lambda: pools.default(one.organization))
        await in_thread(pools.set_strategy, own, {"strategy": "round_robin"}, by=None)
        return World(one, {one.account.pk: one.upstream_token, second.pk: token}, upstream)

    return make


def response_id(got: Any) -> str:
    assert got.status_code == 200, got.text
    found: str = sse(got.content)[-1]["response"]["id"]
    return found


def refusal(got: Any) -> tuple[int, str, str]:
    error = got.json()["error"]
    return got.status_code, error["type"], error["code"]


async def test_without_an_anchor_sessions_are_spread(gateway: Gateway, world: Callable[..., Any]) -> None:
    """What the tests below are to be compared with."""
    for kind in ("openai", "chatgpt"):
        one: World = await world(kind)
        for number in range(6):
            assert (await gateway.post(one.tenant, prompt_cache_key=f"thread {number}")).status_code == 200
        first = one.served()[0]
        assert one.served() == [first, one.other(first)] * 3


NOT_FOUND = (400, "invalid_request_error", "previous_response_not_found")


async def quickest(gateway: Gateway, tenant: Tenant, parent: str) -> float:
    """Seconds of a refusal of this continuation, the best of a few: others may need the machine, too."""
    took = []
    for _ in range(20):
        began = time.perf_counter()
        got = await gateway.post(tenant, previous_response_id=parent)
        took.append(time.perf_counter() - began)
        assert refusal(got) == NOT_FOUND
        if took[-1] < 0.1:
            break
    return min(took)


# ---------------------------------------------------------------------------------------------------- previous response


async def test_a_thread_of_52_turns_stays_on_one_account(gateway: Gateway, world: Callable[..., Any]) -> None:
    """K5 N52: 52 turns with previous_response_id, under sessions of their own, all on the owning account."""
    one: World = await world()
    parent = response_id(await gateway.post(one.tenant, prompt_cache_key="first"))
    for turn in range(51):
        parent = response_id(await gateway.post(one.tenant, previous_response_id=parent, prompt_cache_key=f"turn {turn}"))
    served = one.served()
    assert (len(served), len(set(served))) == (52, 1)
    rows = await logged(one.tenant, 52)
    assert {row.trace[0]["reason"] for row in rows[1:]} == {"owner"}
    await check_counters(one.tenant, rows)


async def test_two_keys_continue_one_thread(gateway: Gateway, world: Callable[..., Any]) -> None:
    """N55: owners are known per organization: another key of the member, and another member's."""
    one: World = await world()
    parent = response_id(await gateway.post(one.tenant))
    second = await in_thread(factories.api_key, one.tenant.member)
    colleague = await in_thread(lambda: factories.api_key(factories.member(one.tenant.organization)))
    for number, key in enumerate((second, colleague)):
        headers = {"authorization": f"Bearer {key.secret}", "content-type": "application/json"}
        content = body(previous_response_id=parent, prompt_cache_key=f"elsewhere {number}")
        got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=content)
        parent = response_id(got)
    assert len(set(one.served())) == 1


async def test_an_unknown_response_is_refused_at_once(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """N54: one account in the pool supports the model: 400 previous_response_not_found, no upstream call, under 100 ms."""
    one: Tenant = await tenant()
    for name in ("resp_unknown", "r" * 4000, "resp\u0000\ud7ff", "'; --", "é"):
        got = await gateway.post(one, previous_response_id=name)
        assert refusal(got) == NOT_FOUND
        assert got.json()["error"]["param"] == "previous_response_id"
        assert "retry-after" not in got.headers
    assert await quickest(gateway, one, "resp_unknown") < 0.1
    assert upstream.received(token=one.upstream_token) == []
    assert await is_clean(one)
    usage = await in_thread(one.usage)
    assert (usage.live, usage.credits, usage.tokens) == (0, 0, 0)


async def test_a_response_of_another_organization_is_unknown(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N54: exactly as one that never was."""
    one, other = await tenant(), await tenant()
    foreign = response_id(await gateway.post(one))
    await logged(one)
    got, missing = [await gateway.post(other, previous_response_id=name) for name in (foreign, "resp_missing")]
    assert refusal(got) == NOT_FOUND
    assert got.json() == missing.json()
    assert upstream.received(token=other.upstream_token) == []


@pytest.mark.parametrize("gone", [None, "needs_sign_in", "paused", "withdrawn"], ids=lambda status: status or "deleted")
async def test_a_response_whose_account_is_gone_is_refused_at_once(
    gateway: Gateway, world: Callable[..., Any], gone: str | None
) -> None:
    """N53 K6: 400 previous_response_not_found in under 100 ms, no upstream call, no other account tried."""
    one: World = await world()
    parent = response_id(await gateway.post(one.tenant))
    [owner] = one.served()
    await logged(one.tenant)
    await in_thread(one.set_status, owner, gone)
    got = await gateway.post(one.tenant, previous_response_id=parent)
    assert refusal(got) == NOT_FOUND
    assert "is gone. Send the whole conversation again." in got.json()["error"]["message"]
    assert await quickest(gateway, one.tenant, parent) < 0.1
    assert one.served() == [owner]
    assert await is_clean(one.tenant)
    # Sent whole, it goes where it can.
    assert (await gateway.post(one.tenant)).status_code == 200
    assert one.served() == [owner, one.other(owner)]


async def test_an_exhausted_owner_is_waited_for(gateway: Gateway, world: Callable[..., Any]) -> None:
    """N52: 429 usage_limit_reached with that account's own reset; its continuation is never sent to the other."""
    one: World = await world("chatgpt")
    parent = response_id(await gateway.post(one.tenant))
    [owner] = one.served()
    await in_thread(sync_client().set, one.key(Anchor(Kind.RESPONSE, parent)), str(owner))
    resets_at = int(time.time()) + 3600
    one.upstream.script(exhausted(resets_at), token=one.tokens[owner])
    for _ in range(3):
        got = await gateway.post(one.tenant, previous_response_id=parent)
        assert refusal(got) == (429, "usage_limit_reached", "pool_exhausted")
        assert got.json()["error"]["resets_at"] == resets_at
        assert got.headers["x-should-retry"] == "false"
    # Asked once more; then it is known to be exhausted.
    assert one.served() == [owner, owner]
    assert (await gateway.post(one.tenant)).status_code == 200
    assert one.served()[-1] == one.other(owner)
    assert await is_clean(one.tenant)


async def test_a_burst_at_the_owner_moves_nothing(gateway: Gateway, world: Callable[..., Any]) -> None:
    """K6: what the owner refuses for a moment is not tried elsewhere, before output as little as by a status."""
    one: World = await world()
    parent = response_id(await gateway.post(one.tenant))
    [owner] = one.served()
    created = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_doomed", "model": "gpt-5.5"}}
    overloaded = {"type": "response.failed", "response": {"id": "resp_doomed", "error": {"code": "server_is_overloaded"}}}
    for answer in ({"status": 429, "body": "Too many requests"}, {"events": [created, overloaded]}):
        one.upstream.script(answer, token=one.tokens[owner])
        got = await gateway.post(one.tenant, previous_response_id=parent)
        assert refusal(got) == (429, "rate_limit_exceeded", "pool_busy")
        assert 1 <= int(got.headers["retry-after"]) <= 6
        await in_thread(accounts.reset_cooldowns, one.tenant.organization)
    assert set(one.served()) == {owner}
    assert response_id(await gateway.post(one.tenant, previous_response_id=parent))
    assert set(one.served()) == {owner}


# -------------------------------------------------------------------------------------------------------- the usage log


async def test_after_redis_lost_its_memory_the_usage_log_knows_the_owner(gateway: Gateway, world: Callable[..., Any]) -> None:
    """N52: a miss is one query; what it finds is put back."""
    one: World = await world()
    parents = [response_id(await gateway.post(one.tenant, prompt_cache_key=f"thread {number}")) for number in range(6)]
    owners = one.served()
    assert set(owners) == set(one.tokens)
    await logged(one.tenant, 6)
    for parent, owner in zip(parents, owners, strict=True):
        anchor = Anchor(Kind.RESPONSE, parent)
        assert one.owner(anchor) == owner
        await in_thread(one.forget, anchor)
        assert response_id(await gateway.post(one.tenant, previous_response_id=parent, prompt_cache_key=parent))
        assert one.served()[-1] == owner
        await eventually(partial(one.is_owned, anchor, owner))


async def test_what_the_log_finds_must_agree_with_what_redis_knows(gateway: Gateway, world: Callable[..., Any]) -> None:
    one: World = await world()
    parent = response_id(await gateway.post(one.tenant))
    [owner] = one.served()
    await logged(one.tenant)
    await in_thread(one.forget, Anchor(Kind.RESPONSE, parent))
    await in_thread(sync_client().set, one.key(Anchor(Kind.CONVERSATION, "conv_1")), str(one.other(owner)))
    got = await gateway.post(one.tenant, previous_response_id=parent, conversation="conv_1")
    assert refusal(got) == NOT_FOUND
    assert "held by different accounts" in got.json()["error"]["message"]
    assert one.served() == [owner]


async def test_a_log_that_does_not_answer_is_waited_for_so_long_and_no_longer(
    gateway: Gateway, world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can say whether the response exists: 503, never "not found", never a guess; what Redis knows is served meanwhile."""
    one: World = await world()
    parents = [response_id(await gateway.post(one.tenant)) for _ in range(2)]
    await logged(one.tenant, 2)
    await in_thread(one.forget, Anchor(Kind.RESPONSE, parents[0]))
    monkeypatch.setattr(continuity, "LOOKUP_SECONDS", 0.3)
    locked, done = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE billing_usagerecord IN ACCESS EXCLUSIVE MODE")
            loop.call_soon_threadsafe(locked.set)
            asyncio.run_coroutine_threadsafe(done.wait(), loop).result(20)

    holding = asyncio.ensure_future(in_thread(hold))
    await asyncio.wait_for(locked.wait(), 10)
    try:
        got = await gateway.post(one.tenant, previous_response_id=parents[0])
        assert (got.status_code, got.json()["error"]["code"]) == (503, "degraded")
        assert got.headers["retry-after"] == "5"
        assert response_id(await gateway.post(one.tenant, previous_response_id=parents[1]))
    finally:
        done.set()
        await holding
    assert response_id(await gateway.post(one.tenant, previous_response_id=parents[0]))
    assert await is_clean(one.tenant)


async def test_the_log_is_asked_by_an_index(gateway: Gateway, tenant: MakeTenant) -> None:
    """Of ten million rows as of ten: no scan."""
    one: Tenant = await tenant()
    await gateway.post(one)
    await logged(one)

    def plan() -> str:
        with connection.cursor() as cursor, transaction.atomic():
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute(
                "EXPLAIN SELECT account_id FROM billing_usagerecord WHERE organization_id = 1 AND response_id = 'resp_x' "
                "AND admitted_at >= now() - interval '31 days' AND NOT (response_id = '') AND account_id IS NOT NULL "
                "ORDER BY admitted_at DESC LIMIT 1"
            )
            return "\n".join(row[0] for row in cursor.fetchall())

    found = await in_thread(plan)
    assert "response_id" in found
    assert "Seq Scan" not in found


# ---------------------------------------------------------------------------------------------------- before it is told


async def test_an_owner_is_known_before_the_client_hears_of_the_response(gateway: Gateway, world: Callable[..., Any]) -> None:
    """Continued while its first stream still runs."""
    one: World = await world()
    one.upstream.script({"deltas": 60, "event_delay": 0.03})
    async with gateway.stream(one.tenant, prompt_cache_key="first") as stream:
        read = b""
        async for chunk in stream.aiter_bytes():
            read += chunk
            if b'"response.created"' in read and b"\n\n" in read:
                break
        parent = sse(read.split(b"\n\n")[0])[0]["response"]["id"]
        [owner] = one.served()
        assert one.owner(Anchor(Kind.RESPONSE, parent)) == owner
    got = await gateway.post(one.tenant, previous_response_id=parent, prompt_cache_key="second")
    assert response_id(got)
    assert set(one.served()) == {owner}


async def test_an_id_that_comes_late_is_recorded_as_well(gateway: Gateway, world: Callable[..., Any]) -> None:
    """The client's answer has begun when the upstream names the response."""
    one: World = await world()
    response = {"id": f"resp_{factories.unique('late')}", "model": "gpt-5.5", "output": []}
    events = [
        {"type": "keepalive"},
        {"type": "response.created", "response": response},
        {"type": "response.completed", "response": {**response, "status": "completed"}},
    ]
    one.upstream.script({"events": events, "event_delay": 0.4})
    assert response_id(await gateway.post(one.tenant)) == response["id"]
    assert one.owner(Anchor(Kind.RESPONSE, str(response["id"]))) == one.served()[0]


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_stored_nowhere_has_no_owner_but_the_log_still_tells_where_to_ask(
    gateway: Gateway, world: Callable[..., Any], stream: bool
) -> None:
    one: World = await world()
    got = await gateway.post(one.tenant, store=False, stream=stream)
    parent = response_id(got) if stream else got.json()["id"]
    assert one.owner(Anchor(Kind.RESPONSE, parent)) is None
    await logged(one.tenant)
    [owner] = one.served()
    missing = problem(400, "previous_response_not_found", kind="invalid_request_error")
    one.upstream.script(missing, token=one.tokens[owner])
    # The upstream's own word, from the only account that could know.
    assert refusal(await gateway.post(one.tenant, previous_response_id=parent)) == NOT_FOUND
    assert one.served() == [owner, owner]


async def test_a_request_with_every_anchor_goes_on_byte_for_byte(gateway: Gateway, world: Callable[..., Any]) -> None:
    """N56: never injected, trimmed or rewritten."""
    one: World = await world()
    parent = response_id(await gateway.post(one.tenant))
    [owner] = one.served()
    items = [
        {"type": "compaction", "encrypted_content": "gAAAA" * 50},
        {"type": "reasoning", "encrypted_content": "gBBBB" * 50, "summary": []},
        {"type": "item_reference", "id": "msg_of_old"},
        {"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]},
    ]
    sent = json.dumps(
        {"conversation": {"id": "conv_1"}, "previous_response_id": parent, "input": items, "model": "gpt-5.5", "stream": True},
        indent=3,
    ).encode()
    headers = {**one.tenant.headers, TURN: "ts-of-the-client"}
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=sent)
    assert got.status_code == 200
    assert one.received()[-1].body == sent
    assert one.received()[-1].headers[TURN] == "ts-of-the-client"
    # Nobody knew of these; who has answered to them holds them.
    held = [Anchor(Kind.CONVERSATION, "conv_1"), Anchor(Kind.FILE, "file-1"), Anchor(Kind.ITEM, "msg_of_old")]
    held.append(Anchor(Kind.TURN, "ts-of-the-client"))
    await eventually(lambda: [one.owner(anchor) for anchor in held] == [owner] * 4)


# ------------------------------------------------------------------------------------------------------------- by turns


async def test_a_turn_stays_on_its_account_and_says_when_that_is_exhausted(gateway: Gateway, world: Callable[..., Any]) -> None:
    """N50 N52: in the middle of a turn 429 with its account's reset; the same sent anew, without the turn, goes to the other."""
    one: World = await world("chatgpt")
    first = await gateway.post(one.tenant, prompt_cache_key="thread")
    [owner] = one.served()
    token = first.headers[TURN]
    await eventually(lambda: one.owner(Anchor(Kind.TURN, token)) == owner)
    headers = {**one.tenant.headers, TURN: token}

    async def go_on(session: str) -> Any:
        content = body(prompt_cache_key=session)
        return await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=content)

    for number in range(4):
        assert (await go_on(f"another thread {number}")).status_code == 200
    assert set(one.served()) == {owner}
    resets_at = int(time.time()) + 3600
    one.upstream.script(exhausted(resets_at), token=one.tokens[owner])
    for _ in range(2):
        got = await go_on("thread")
        assert refusal(got) == (429, "usage_limit_reached", "pool_exhausted")
        assert got.json()["error"]["resets_at"] == resets_at
        assert "holds the turn" in got.json()["error"]["message"]
    assert set(one.served()) == {owner}
    assert (await gateway.post(one.tenant, prompt_cache_key="thread")).status_code == 200
    assert one.served()[-1] == one.other(owner)


async def test_a_token_that_nobody_knows_is_no_reason_to_refuse(gateway: Gateway, world: Callable[..., Any]) -> None:
    """Redis has lost its memory in the middle of a turn: the session is still warm where it was."""
    one: World = await world("chatgpt")
    token = (await gateway.post(one.tenant, prompt_cache_key="thread")).headers[TURN]
    [owner] = one.served()
    await eventually(lambda: one.owner(Anchor(Kind.TURN, token)))
    await in_thread(one.forget, Anchor(Kind.TURN, token))
    headers = {**one.tenant.headers, TURN: token}
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=body(prompt_cache_key="thread"))
    assert got.status_code == 200
    assert one.served() == [owner, owner]


async def test_a_refusals_token_binds_nothing(gateway: Gateway, world: Callable[..., Any]) -> None:
    """An account that did not answer holds no turn."""
    one: World = await world("chatgpt")
    refused = problem(400, "invalid_prompt", kind="invalid_request_error")
    one.upstream.script({**refused, "headers": {TURN: "ts-refused"}})
    got = await gateway.post(one.tenant)
    assert (got.status_code, got.headers[TURN]) == (400, "ts-refused")
    await asyncio.sleep(0.05)
    assert one.owner(Anchor(Kind.TURN, "ts-refused")) is None


# ------------------------------------------------------------------------------------------------- files, conversations


@pytest.mark.parametrize(
    "names",
    [
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]},
        {"input": [{"type": "item_reference", "id": "msg_1"}, QUESTION]},
    ],
    ids=["conversation", "conversation as an object", "file", "item"],
)
async def test_what_the_client_made_elsewhere_stays_where_it_was_answered_first(
    gateway: Gateway, world: Callable[..., Any], names: dict[str, Any]
) -> None:
    """N52: made by another way than this gateway, so that not knowing it is no refusal."""
    one: World = await world()
    for number in range(6):
        assert (await gateway.post(one.tenant, prompt_cache_key=f"thread {number}", **names)).status_code == 200
    served = one.served()
    assert len(set(served)) == 1
    await in_thread(one.set_status, served[0], "paused")
    assert refusal(await gateway.post(one.tenant, **names)) == NOT_FOUND
    assert len(one.served()) == 6


async def test_what_one_account_does_not_know_another_may(gateway: Gateway, world: Callable[..., Any]) -> None:
    """A conversation that was made elsewhere is found, and stays where it was found."""
    one: World = await world()
    unknown = {"error": {"message": "Conversation with id 'conv_5' not found.", "type": "invalid_request_error", "code": None}}
    first = min(one.tokens)
    one.upstream.script({"status": 404, "body": unknown}, token=one.tokens[first], repeat=0)
    for number in range(4):
        got = await gateway.post(one.tenant, conversation="conv_5", prompt_cache_key=f"thread {number}")
        assert got.status_code == 200
    served = one.served()
    assert served[-4:] == [one.other(first)] * 4
    assert served.count(first) <= 1


async def test_a_failed_request_binds_nothing(gateway: Gateway, world: Callable[..., Any]) -> None:
    one: World = await world()
    one.upstream.script(problem(400, "invalid_value", kind="invalid_request_error"))
    assert (await gateway.post(one.tenant, conversation="conv_9")).status_code == 400
    await asyncio.sleep(0.05)
    assert one.owner(Anchor(Kind.CONVERSATION, "conv_9")) is None


async def test_what_different_accounts_hold_is_not_mixed(gateway: Gateway, world: Callable[..., Any]) -> None:
    one: World = await world()
    names = [Anchor(Kind.CONVERSATION, "conv_1"), Anchor(Kind.FILE, "file-1")]
    for anchor, account_id in zip(names, one.tokens, strict=True):
        await in_thread(sync_client().set, one.key(anchor), str(account_id))
    content = [{"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]
    got = await gateway.post(one.tenant, conversation="conv_1", input=content)
    assert refusal(got) == NOT_FOUND
    assert got.json()["error"]["message"].startswith("The conversation and the file are held by different accounts.")
    assert one.served() == []
    assert await is_clean(one.tenant)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stored_responses_items_can_be_referred_to(gateway: Gateway, world: Callable[..., Any], stream: bool) -> None:
    one: World = await world()
    item = {"type": "message", "id": f"msg_{factories.unique('x')}", "role": "assistant", "content": []}
    response = {"id": f"resp_{factories.unique('x')}", "model": "gpt-5.5", "status": "completed", "output": [item]}
    completed = [{"type": "response.created", "response": response}, {"type": "response.completed", "response": response}]
    one.upstream.script({"events": completed} if stream else {"body": {"object": "response", **response}})
    assert (await gateway.post(one.tenant, stream=stream)).status_code == 200
    [owner] = one.served()
    for number in range(4):
        content = [{"type": "item_reference", "id": item["id"]}, QUESTION]
        assert (await gateway.post(one.tenant, input=content, prompt_cache_key=f"thread {number}")).status_code == 200
    assert set(one.served()) == {owner}


# ----------------------------------------------------------------------------------------------- what is sealed by one


@pytest.mark.parametrize("stream", [True, False])
async def test_a_compacted_history_stays_with_the_account_that_made_it(
    gateway: Gateway, world: Callable[..., Any], stream: bool
) -> None:
    """N52: told in an item of the stream, which the terminal event need not repeat."""
    one: World = await world("chatgpt")
    sealed = {"type": "compaction", "id": "cmp_1", "encrypted_content": factories.unique("gAAAA")}
    response = {"id": f"resp_{factories.unique('x')}", "model": "gpt-5.5", "status": "completed", "output": []}
    events = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.done", "output_index": 0, "item": sealed},
        {"type": "response.completed", "response": response},
    ]
    one.upstream.script({"events": events})
    got = await gateway.post(one.tenant, stream=stream, input=[QUESTION, {"type": "compaction_trigger"}])
    assert got.status_code == 200
    assert sealed["encrypted_content"] in got.text
    [owner] = one.served()
    for number in range(4):
        content = [sealed, {**QUESTION, "content": f"thread {number}"}]
        assert (await gateway.post(one.tenant, input=content, prompt_cache_key=f"thread {number}")).status_code == 200
    assert set(one.served()) == {owner}
    resets_at = int(time.time()) + 3600
    one.upstream.script(exhausted(resets_at), token=one.tokens[owner])
    got = await gateway.post(one.tenant, input=[sealed, QUESTION], prompt_cache_key="thread 9")
    assert refusal(got) == (429, "usage_limit_reached", "pool_exhausted")
    assert got.json()["error"]["resets_at"] == resets_at
    assert set(one.served()) == {owner}


async def entry(one: World, session: str) -> sticky.Sticky:
    pool = await in_thread(lambda: snapshots.load(one.tenant.organization.pk).pools[0])
    name = sticky.session_key(one.tenant.organization.pk, {}, session, b"")
    assert name is not None
    found = sticky.read(await in_thread(sync_client().get, live.session_key(pool, name)))
    assert found is not None
    return found


@pytest.mark.parametrize("how", ["status", "stream"])
async def test_reasoning_that_another_account_cannot_read_is_sent_once_and_stays_with_its_own(
    gateway: Gateway, world: Callable[..., Any], how: str
) -> None:
    """On a forced move the request goes on as it is; the 400 is the client's, and the session does not move."""
    one: World = await world("chatgpt")
    assert (await gateway.post(one.tenant, prompt_cache_key="thread")).status_code == 200
    [owner] = one.served()
    other = one.other(owner)
    one.upstream.script(exhausted(int(time.time()) + 3600), token=one.tokens[owner])
    error = {"code": "invalid_encrypted_content", "message": "The encrypted content could not be verified.", "type": "x"}
    failed = {"type": "response.failed", "response": {"id": "resp_1", "error": error}}
    answer = {"status": 400, "body": {"error": error}} if how == "status" else {"events": [failed]}
    one.upstream.script(answer, token=one.tokens[other], repeat=2)
    content = [{"type": "reasoning", "encrypted_content": "gAAAA", "summary": []}, QUESTION]
    for attempt in range(2):
        got = await gateway.post(one.tenant, prompt_cache_key="thread", input=content)
        assert "invalid_encrypted_content" in got.text
        assert got.status_code == (400 if how == "status" else 200)
        assert one.served() == [owner, owner, *[other] * (attempt + 1)]
        assert json.loads(one.received()[-1].body)["input"] == content
        found = await entry(one, "thread")
        assert (found.home, found.stand_in) == (owner, None)
    await in_thread(accounts.reset_cooldowns, one.tenant.organization)
    assert (await gateway.post(one.tenant, prompt_cache_key="thread", input=content)).status_code == 200
    assert one.served()[-1] == owner


async def test_an_answer_that_names_itself_without_end_fills_no_memory(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """Each id would be kept for a day, in the Redis of all tenants."""
    one: Tenant = await tenant(account="openai")
    events = [{"type": "response.created", "response": {"id": f"resp_{number}", "status": "in_progress"}} for number in range(500)]
    events.append({"type": "response.completed", "response": {"id": "resp_z", "status": "completed", "output": [], "usage": {}}})
    upstream.script({"raw": "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)})
    assert (await gateway.post(one)).status_code == 200

    def kept() -> int:
        return sum(1 for _ in sync_client().scan_iter(match=f"routing:*:{one.organization.pk}:owner:*", count=1000))

    assert 0 < await in_thread(kept) <= continuity.MOST_MADE


def test_the_anchors_of_a_request_bound_what_is_recorded_for_it() -> None:
    """A client cannot fill Redis by naming things: so many keys for a request, for a day."""
    from proxy import anchors as named
    from proxy.dialects import responses

    files = [{"type": "message", "content": [{"file_id": f"file-{number}"} for number in range(5000)]}]
    references = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(5000)]
    sealed = [{"type": "compaction", "encrypted_content": f"x{number}"} for number in range(5000)]
    asked = responses.inspect(body(input=[*files, *references, *sealed], conversation="c", previous_response_id="r"))
    assert len(named.anchors_of(asked, {TURN: "t"})) == 39
    assert anchors.OWNER_SECONDS == 86_400
