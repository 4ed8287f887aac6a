"""`manage.py bench --streams`: what an open answer costs a web process in memory, and that nothing of it stays.

Event streams first, then WebSockets, each in a web process of its own. Every client gets the beginning of an answer, and all are
held in the middle of it at the same time; the sockets once more, idle, after their answers' end.
"""

import asyncio
import json
import os
import resource
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from websockets.exceptions import WebSocketException

from bench import crowd, gateway, holding, served
from bench.crowd import Client, Socket, Stream
from bench.gateway import Bench
from bench.load import WrongAnswer
from config.launch import embedded

COUNT = 500
SECONDS = 12.0
"""Long enough for a renewal of all holds and slots."""
KILOBYTES = {"stream": 120.0, "socket": 250.0, "idle socket": 250.0}
"""At most so much for each; a socket together with its upstream one."""
WARM_UP, WARM_UP_AT_ONCE = 50, 5
"""What is loaded and kept once, such as modules and prices, is in the measure before anything is counted."""
RETURN_SECONDS = 10.0
ROWS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Counts:
    """A web process. `descriptors` without connections that are kept for the next request; `kilobytes` of resident memory.

    `slots` and `holds` as Redis has them; `database`: connections checked out, or in a transaction, whichever are more.
    """

    kilobytes: int
    tasks: int
    descriptors: int
    slots: int
    holds: int
    database: int
    kinds: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def owned(self) -> tuple[int, int, int, int]:
        return self.tasks, self.descriptors, self.slots, self.holds


@dataclass(frozen=True, slots=True)
class Held:
    """`count` of a sort at once. `kilobytes`: by how much the process grew for each, at its largest."""

    name: str
    count: int
    kilobytes: float
    most: float
    start: Counts
    held: Counts
    after: Counts
    seconds_to_return: float | None
    """None: it did not, in RETURN_SECONDS."""

    @property
    def faults(self) -> list[str]:
        found = []
        if self.kilobytes > self.most:
            found.append(f"{self.kilobytes:.1f} KB for each, {self.most:g} are allowed")
        if self.seconds_to_return is None:
            found.append(f"left behind: {asdict(self.after)}, began with {asdict(self.start)}")
        if self.held.database:
            found.append(f"{self.held.database} database connections in use")
        wanted = 0 if self.name.startswith("idle") else self.count
        if (self.held.slots, self.held.holds) != (wanted, wanted):
            found.append(f"{self.held.slots} slots and {self.held.holds} holds, not {wanted}")
        return found


@dataclass(frozen=True, slots=True)
class Result:
    held: tuple[Held, ...]
    sent: int
    logged: int
    odd: int
    credits: int
    """Micro-credits of the log, `expected_credits` those of `sent` answers; `differences` of the counters from the log."""
    expected_credits: int
    differences: int

    @property
    def faults(self) -> list[str]:
        found = [f"{one.name}: {fault}" for one in self.held for fault in one.faults]
        if (self.sent, self.expected_credits) != (self.logged, self.credits) or self.odd or self.differences:
            found.append("usage was lost, invented or estimated")
        return found


def main(*, count: int, seconds: float, as_json: bool) -> int:
    try:
        _allow_descriptors(2 * count + 300)
        with ExitStack() as stack:
            result = measure(stack, count=count, seconds=seconds)
    except (embedded.CannotStart, TimeoutError, OSError, WrongAnswer, WebSocketException) as error:
        print(f"manage.py bench: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps({**asdict(result), "faults": result.faults}))
    else:
        print("\n".join(_table(result)))
    return 1 if result.faults else 0


def _allow_descriptors(wanted: int) -> None:
    """For this process and those that it starts. Raises OSError if the system does not allow as many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise OSError(f"{wanted} file descriptors are needed, the system allows {hard} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def measure(stack: ExitStack, *, count: int, seconds: float) -> Result:
    """Raises WrongAnswer, TimeoutError, OSError, embedded.CannotStart."""
    bench = gateway.services(stack)
    bench.environ["PGAPPNAME"] = "weir-bench-gateway"
    bench.spawn("upstream", "-m", "bench.holding", str(bench.ports["upstream"]))
    bench.spawn("ledger", "manage.py", "ledger")
    held = [*asyncio.run(_phase(bench, Stream, count, seconds)), *asyncio.run(_phase(bench, Socket, count, seconds))]
    sent = 2 * (count + WARM_UP)
    found = _logged(bench, sent)
    return Result(
        held=tuple(held),
        sent=sent,
        logged=found["rows"],
        odd=found["odd"],
        credits=found["credits"],
        expected_credits=sent * holding.MICRO_CREDITS,
        differences=_differences(bench),
    )


async def _phase(bench: Bench, kind: type[Client], count: int, seconds: float) -> list[Held]:
    """One sort of clients in a web process of its own."""
    name = kind.__name__.lower()
    window = bench.folder / f"{name}.window"
    process = bench.spawn("gateway", "-m", "bench.served", str(window), "--port", str(bench.ports["gateway"]))
    try:
        await asyncio.to_thread(gateway.wait, bench)

        def client(number: int) -> Client:
            return kind(bench.ports["gateway"], bench.key, f"{name}-{number}")

        async def whole(one: Client) -> None:
            await one.begin("bench:short")
            await one.finish()
            await one.close()

        await crowd.each(whole, [client(-number) for number in range(WARM_UP)], at_once=WARM_UP_AT_ONCE)
        start = await _calm(bench, window)
        clients = [client(number) for number in range(count)]
        try:
            await crowd.each(lambda one: one.begin("bench:held"), clients)
            phases = {name: await _most(bench, window, seconds)}
            await _release(bench)
            await crowd.each(lambda one: one.finish(), clients)
            if kind is Socket:
                phases[f"idle {name}"] = await _most(bench, window, min(2.0, seconds))
        finally:
            await crowd.each(lambda one: one.close(), clients)
        after, took = await _returned(bench, window, start)
    finally:
        gateway.end(process)
    return [
        Held(
            name=name,
            count=count,
            kilobytes=round((held.kilobytes - start.kilobytes) / count, 1),
            most=KILOBYTES[name],
            start=start,
            held=held,
            after=after,
            seconds_to_return=took,
        )
        for name, held in phases.items()
    ]


async def _release(bench: Bench) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        await client.post(f"http://127.0.0.1:{bench.ports['upstream']}/control/release")


async def _calm(bench: Bench, window: Path) -> Counts:
    """How the process is when it does nothing: the same counts three times over."""
    before: list[Counts] = []
    deadline = time.monotonic() + 30
    while len(before) < 3 or len({one.owned for one in before[-3:]}) > 1 or before[-1].holds or before[-1].slots:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the gateway does not come to rest: {before[-1]}")
        await asyncio.sleep(0.3)
        before.append(await asyncio.to_thread(_counts, bench, window))
    return before[-1]


async def _most(bench: Bench, window: Path, seconds: float) -> Counts:
    """The largest counts of that time."""
    until = time.monotonic() + seconds
    # Settlements of what has just ended are under way.
    await asyncio.sleep(min(1.0, seconds / 2))
    most = await asyncio.to_thread(_counts, bench, window)
    while time.monotonic() < until:
        await asyncio.sleep(0.5)
        now = await asyncio.to_thread(_counts, bench, window)
        names = ("kilobytes", "tasks", "descriptors", "slots", "holds", "database")
        most = Counts(**{name: max(getattr(most, name), getattr(now, name)) for name in names}, kinds=now.kinds)
    return most


async def _returned(bench: Bench, window: Path, start: Counts) -> tuple[Counts, float | None]:
    """The counts once they are what they were, and after how many seconds that was."""
    began = time.monotonic()
    while True:
        now = await asyncio.to_thread(_counts, bench, window)
        took = time.monotonic() - began
        if all(one <= other for one, other in zip(now.owned, start.owned, strict=True)):
            return now, round(took, 1)
        if took > RETURN_SECONDS:
            return now, None
        await asyncio.sleep(0.2)


def _counts(bench: Bench, window: Path) -> Counts:
    inside = served.ask(window)
    pid = bench.pids["gateway"]
    slots, holds = _taken(bench)
    return Counts(
        kilobytes=_resident(pid),
        tasks=inside.tasks,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")) - inside.kept,
        slots=slots,
        holds=holds,
        database=max(inside.database, _in_transactions()),
        kinds=inside.kinds,
    )


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1])
    raise OSError(f"process {pid} tells no resident memory")


def _taken(bench: Bench) -> tuple[int, int]:
    """Slots on accounts that have not lapsed, and holds that live."""
    import msgpack
    import redis

    from config.redis import shard

    tag, organization_id = shard(bench.organization_id), bench.organization_id
    with redis.Redis.from_url(bench.environ["REDIS_URL"]) as client:
        now_ms = client.time()[0] * 1000
        slots = sum(client.zcount(name, now_ms, "+inf") for name in client.scan_iter(f"routing:{tag}:*:slots:*", count=1000))
        stored = client.hgetall(f"quotas:{tag}:{organization_id}:q")
    holds = 0
    for name, value in stored.items():
        if name.startswith(b"h:"):
            unpacker = msgpack.Unpacker(raw=False)
            unpacker.feed(value)
            holds += next(iter(unpacker)) == "L"
    return slots, holds


def _in_transactions() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'weir-bench-gateway' AND state <> 'idle'")
        [count] = cursor.fetchone()
    connection.close()
    return int(count)


def _logged(bench: Bench, sent: int) -> dict[str, Any]:
    """What the log holds once that is `sent` rows, or when the time is up."""
    deadline = time.monotonic() + ROWS_SECONDS
    while True:
        found = gateway.logged(bench)
        if found["rows"] >= sent or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def _differences(bench: Bench) -> int:
    from django.db import connection

    from quotas import reconcile

    found = len(reconcile.reconcile(bench.organization_id).differences)
    connection.close()
    return found


def _table(result: Result) -> list[str]:
    lines = [f"{'':12}{'at once':>8}{'KB each':>9}{'allowed':>9}{'tasks':>16}{'descriptors':>16}{'slots':>9}{'holds':>9}"]
    for one in result.held:
        pairs = (
            (one.start.tasks, one.held.tasks, one.after.tasks),
            (one.start.descriptors, one.held.descriptors, one.after.descriptors),
        )
        tasks, descriptors = ("-".join(str(number) for number in three) for three in pairs)
        slots, holds = f"{one.held.slots}-{one.after.slots}", f"{one.held.holds}-{one.after.holds}"
        lines.append(
            f"{one.name:12}{one.count:>8}{one.kilobytes:>9.1f}{one.most:>9g}{tasks:>16}{descriptors:>16}{slots:>9}{holds:>9}"
        )
    lines += [
        "tasks and descriptors: before, held, after; slots and holds: held, after",
        *(
            f"{one.name}: resident {one.start.kilobytes} KB, then {one.held.kilobytes} KB; back after {one.seconds_to_return} s; "
            f"database connections in use: {one.held.database}"
            for one in result.held
        ),
        f"usage rows: {result.logged} of {result.sent}, {result.odd} odd; {result.credits} micro-credits of "
        f"{result.expected_credits}; counters that differ from the log: {result.differences}",
        *(f"NOT MET: {fault}" for fault in result.faults),
    ]
    return lines
