"""Servers and processes are killed under load. What quotas.md section 7 promises comes true, and every total is exact afterwards.

Twelve clients ask one stream after the other, each about a second long, at two web processes. Whatever happens: a stream that has
begun comes to its end, an answered request is in the log once at its cost, and in the end counters = log = periods = ledger =
hourly sums, with no hold.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.flows.chaos import ANSWER, COST, QUIET_SECONDS, Chaos, Load
from tests.upstream import ScriptedUpstream

pytestmark = [pytest.mark.stack, pytest.mark.timeout(240)]

LEDGER_SECONDS = float(os.environ.get("WEIR_CHAOS_LEDGER_SECONDS", "12"))
"""How long the ledger process stands still: a minute, if it is asked for."""
DOWN_SECONDS = 2.5


@pytest.fixture(scope="module")
def chaos(upstream_process: ScriptedUpstream) -> Iterator[Chaos]:
    running = Chaos(upstream_process)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def tenant(chaos: Chaos, upstream: ScriptedUpstream) -> Any:
    made = chaos.agent.ask("make")
    upstream.script(ANSWER, repeat=0, token=made["token"])
    return made


async def ask(chaos: Chaos, call: str, tenant: dict[str, Any]) -> Any:
    return await asyncio.to_thread(chaos.agent.ask, call, organization=tenant["organization"])


async def quiet(chaos: Chaos, tenant: dict[str, Any]) -> None:
    """No hold lives, nothing waits to be drained."""
    deadline = time.monotonic() + QUIET_SECONDS
    while left := await ask(chaos, "unfinished", tenant):
        assert time.monotonic() < deadline, (left, chaos.ledger.tail())
        await asyncio.sleep(0.2)


async def check(chaos: Chaos, tenant: dict[str, Any], load: Load) -> list[dict[str, Any]]:
    """Each answered request is in the log once at its cost; nothing else costs anything; all sums are equal. The log."""
    await quiet(chaos, tenant)
    log: list[dict[str, Any]] = await ask(chaos, "log", tenant)
    per_request: Counter[str] = Counter()
    for row in log:
        per_request[row["request_id"]] += row["credits"]
    by_response = Counter({row["response_id"]: 0 for row in log if row["response_id"]})
    for row in log:
        if row["response_id"]:
            by_response[row["response_id"]] += per_request[row["request_id"]]
    answered = {answer.response_id for answer in load.complete}
    assert "" not in answered
    assert len(answered) == len(load.complete)
    costs = Counter(by_response[response_id] for response_id in answered)
    assert costs == {COST: len(answered)}, (costs, [row for row in log if not row["response_id"]][:5])
    assert sum(row["counted_requests"] for row in log if row["credits"] or row["response_id"]) == len(answered)
    assert sum(per_request.values()) == COST * len(answered)
    assert await ask(chaos, "audit", tenant) == {}
    return log


def all_went_well(load: Load, *, but: tuple[int, ...] = ()) -> None:
    """Every answer is a whole stream, or a refusal with one of these statuses."""
    odd = [answer for answer in load.answers if answer.ended and not answer.is_complete and answer.status not in but]
    assert not odd, (len(odd), odd[:3])


async def test_valkey_killed_and_back_with_its_data(chaos: Chaos, tenant: dict[str, Any]) -> None:
    """503 with Retry-After meanwhile, never an open gate; running streams finish and settle on return."""
    async with Load(chaos, tenant) as load:
        await load.until(20)
        before = await ask(chaos, "epoch", tenant)
        killed = await load.until_running(8)
        chaos.kill_valkey()
        await asyncio.sleep(DOWN_SECONDS)
        # Who had a stream asks again only when it has ended and waited for its settlement.
        deadline = time.monotonic() + 15
        while len(load.asked(killed + 0.1, time.monotonic())) <= 5 and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        back = time.monotonic()
        chaos.start_valkey()
        await load.until(30)
    refused = load.asked(killed + 0.1, back)
    assert len(refused) > 5
    assert {answer.status for answer in refused} == {503}
    assert all(int(answer.retry_after) >= 1 for answer in refused)
    assert all(answer.is_complete for answer in load.running(killed))
    all_went_well(load, but=(503,))
    await check(chaos, tenant, load)
    assert await ask(chaos, "epoch", tenant) == before


async def test_valkey_restarted_empty_while_the_ledger_keeps_up(chaos: Chaos, tenant: dict[str, Any]) -> None:
    """COLD: the counters are rebuilt from the log, live holds come back, settlements are sent again."""
    async with Load(chaos, tenant) as load:
        await load.until(20)
        before = await ask(chaos, "epoch", tenant)
        killed = await load.until_running(8)
        chaos.kill_valkey()
        chaos.forget_valkey()
        chaos.start_valkey()
        await load.until(30)
    assert all(answer.is_complete for answer in load.running(killed))
    all_went_well(load, but=(503,))
    await check(chaos, tenant, load)
    assert await ask(chaos, "epoch", tenant) > before


async def test_valkey_restarted_a_second_old(chaos: Chaos, tenant: dict[str, Any]) -> None:
    """Same epoch, last second lost: renewals restore admissions, settlements are sent again; the log takes each once."""
    sizes = chaos.sizes()
    watching = asyncio.create_task(sizes.watch())
    sent_again = chaos.sent_again()
    async with Load(chaos, tenant) as load:
        await load.until(24)
        before = await ask(chaos, "epoch", tenant)
        killed = await load.until_running(8)
        chaos.kill_valkey()
        watching.cancel()
        lost = sizes.cut(1.0)
        chaos.start_valkey()
        await load.until(30)
    assert lost > 5_000
    assert chaos.sent_again() > sent_again
    assert all(answer.is_complete for answer in load.running(killed))
    all_went_well(load, but=(503,))
    await check(chaos, tenant, load)
    assert await ask(chaos, "epoch", tenant) == before


async def test_what_dies_with_its_process_at_the_same_moment_is_found_by_the_reconciler(
    chaos: Chaos, tenant: dict[str, Any]
) -> None:
    """Valkey comes back a second old, and a web process that had settled in this second is dead: nobody sends it again.

    The log has what was drained; the counters are made to agree with it while traffic goes on.
    """
    sizes = chaos.sizes()
    watching = asyncio.create_task(sizes.watch())
    async with Load(chaos, tenant) as load:
        await load.until(24)
        killed = await load.until_running(8)
        chaos.webs[0].kill()
        chaos.kill_valkey()
        watching.cancel()
        sizes.cut(1.0)
        chaos.start_valkey()
        chaos.webs[0].start()
        await asyncio.to_thread(chaos.webs[0].wait_ready, 60)
        await load.until(20)
        await asyncio.sleep(1)
        # The holds of the dead have ended by now, at what they had been seen to cost.
        found = await ask(chaos, "repair", tenant)
    assert found > 0
    await quiet(chaos, tenant)
    assert await ask(chaos, "audit", tenant) == {}
    log: list[dict[str, Any]] = await ask(chaos, "log", tenant)
    costs: Counter[str] = Counter()
    for row in log:
        costs[row["request_id"]] += row["credits"]
    assert max(costs.values()) <= COST
    # Whoever was answered after it, or before the lost second, has paid in full.
    sure = {one.response_id for one in load.complete if one.ended < killed - 2 or one.began > killed + 1}
    assert len(sure) > 20
    paid = {row["response_id"] for row in log if row["response_id"] and costs[row["request_id"]] == COST}
    assert sure <= paid


async def test_postgresql_killed_and_restarted(chaos: Chaos, tenant: dict[str, Any]) -> None:
    """Proxying goes on from snapshots, events wait; every one is in the log afterwards."""
    async with Load(chaos, tenant) as load:
        await load.until(20)
        killed = await load.until_running(8)
        chaos.kill_postgres()
        await load.until(40)
        still_down = time.monotonic()
        chaos.start_postgres()
        await load.until(20)
    meanwhile = load.asked(killed, still_down)
    assert len(meanwhile) > 10
    assert {answer.status for answer in meanwhile} == {200}
    all_went_well(load)
    await check(chaos, tenant, load)


async def test_all_workers_stopped(chaos: Chaos, tenant: dict[str, Any]) -> None:
    """Celery is never on the money path: admission does not notice."""
    worker = chaos.worker()
    try:
        async with Load(chaos, tenant) as load:
            await load.until(20)
            deadline = time.monotonic() + 60
            while "ready." not in worker.tail():
                assert time.monotonic() < deadline, worker.tail()
                await asyncio.sleep(0.2)
            await load.until(10)
            worker.kill()
            await load.until(30)
    finally:
        worker.running.kill()
    all_went_well(load)
    await check(chaos, tenant, load)


async def test_the_ledger_process_stands_still_and_is_then_killed(chaos: Chaos, tenant: dict[str, Any]) -> None:
    """Admission unaffected, events wait; the next ledger process writes each of them once."""
    async with Load(chaos, tenant) as load:
        await load.until(20)
        chaos.ledger.running.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.5)
        logged = len(await ask(chaos, "log", tenant))
        await asyncio.sleep(LEDGER_SECONDS)
        assert len(await ask(chaos, "log", tenant)) == logged
        waiting = (await ask(chaos, "unfinished", tenant))["waiting"]
        assert waiting >= len(load.complete) - logged > 20
        chaos.ledger.running.send_signal(signal.SIGCONT)
        await load.until(20)
        # And now it dies in the middle of its work.
        chaos.ledger.kill()
        await load.until(20)
        chaos.ledger.start()
        await load.until(10)
    all_went_well(load)
    await check(chaos, tenant, load)
