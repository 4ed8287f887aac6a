"""`manage.py bench`: the gateway with everything on against a bare relay, interleaved.

Both stand before the same upstream and carry the same requests in turns. CPU is that of the process tree, per request; ratios say
more than times on a shared machine. The medians of the rounds are shown.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from bench import endurance, gateway, load
from bench.gateway import Bench
from bench.load import SCENARIOS, Load
from config.launch import embedded

BUDGET_MS = {"sse5": 0.25, "sse200": 0.7}
"""CPU of the gateway process per request."""
RATIOS = {"sse200": 2.5, "paced": 3.0, "sse5": 20.0}
"""At most so much of the relay's."""
ROUND_TRIPS = 50
DRAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario. CPU in ms per request; `services_ms`: PostgreSQL, Valkey and the ledger process together."""

    scenario: str
    requests: int
    relay_ms: float
    gateway_ms: float
    services_ms: float
    ratio: float
    budget_ms: float | None
    ratio_target: float | None


@dataclass(frozen=True, slots=True)
class Result:
    rows: tuple[Row, ...]
    added_p50_ms: float
    """What the gateway adds to a 5-event stream, one request at a time."""
    redis_reads: float
    """Reads of the Redis server per request, everything after the answer included."""
    sql_statements: int
    """Backends of the gateway that ran a statement during the warm requests."""
    rss_megabytes: float
    sent: int
    logged: int
    odd: int


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="manage.py bench", description=(__doc__ or "").split("\n\n")[0])
    made.add_argument(
        "--streams",
        type=int,
        nargs="?",
        const=endurance.COUNT,
        metavar="N",
        help=f"instead: the memory of N streams and N sockets held open at once ({endurance.COUNT})",
    )
    made.add_argument("--smoke", action="store_true", help="short rounds: under a minute in all")
    made.add_argument("--rounds", type=int, metavar="N", help="turns of each target (7; 3 with --smoke)")
    made.add_argument("--seconds", type=float, metavar="S", help="length of one turn (4; 0.8 with --smoke; 12 with --streams)")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    rounds = options.rounds or (3 if options.smoke else 7)
    seconds = options.seconds or (0.8 if options.smoke else 4.0)
    if rounds < 1 or seconds <= 0:
        parser().error("--rounds must be at least 1 and --seconds above 0")
    if options.streams is not None:
        if options.streams < 1:
            parser().error("--streams must be at least 1")
        return endurance.main(count=options.streams, seconds=options.seconds or endurance.SECONDS, as_json=options.json)
    try:
        with ExitStack() as stack:
            bench = gateway.start(stack)
            result = measure(bench, rounds=rounds, seconds=seconds)
    except (embedded.CannotStart, TimeoutError, load.WrongAnswer) as error:
        print(f"manage.py bench: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(asdict(result)))
    else:
        print("\n".join(_table(result)))
    # A run that lost or invented usage measured something else.
    return 0 if result.sent == result.logged and not result.odd else 1


def measure(bench: Bench, *, rounds: int, seconds: float) -> Result:
    """Raises load.WrongAnswer for an answer that is none."""
    sent = 0

    def run(target: str, scenario: str, *, seconds: float, streams: int | None = None) -> Load:
        nonlocal sent
        try:
            done = asyncio.run(load.run(bench.ports[target], scenario, bench.key, seconds=seconds, streams=streams))
        except* (load.WrongAnswer, ConnectionError, asyncio.IncompleteReadError) as errors:
            raise load.WrongAnswer(f"{target}, {scenario}: {errors.exceptions[0]}\n{bench.log(target)}") from None
        if target == "gateway":
            sent += done.requests
        return done

    for target in ("relay", "gateway"):
        run(target, "sse5", seconds=0.3)
    turns: dict[tuple[str, str], list[tuple[Load, float, float]]] = {}
    for _ in range(rounds):
        for scenario in SCENARIOS:
            for target in ("relay", "gateway"):
                before, services = gateway.cpu_seconds(bench.pids[target]), _services(bench)
                # A paced stream lasts 2 seconds by itself.
                done = run(target, scenario, seconds=max(seconds, 2.0) if scenario == "paced" else seconds)
                own, around = gateway.cpu_seconds(bench.pids[target]) - before, _services(bench) - services
                turns.setdefault((target, scenario), []).append((done, own, around))
    single = {
        target: [run(target, "sse5", seconds=seconds / 2, streams=1).p50_ms for _ in range(3)] for target in ("relay", "gateway")
    }
    _drain(bench, sent)
    reads, statements = _round_trips(bench)
    sent += 2 * ROUND_TRIPS
    found = _drain(bench, sent)
    return Result(
        rows=tuple(_row(scenario, turns) for scenario in SCENARIOS),
        added_p50_ms=round(statistics.median(single["gateway"]) - statistics.median(single["relay"]), 3),
        redis_reads=round(reads, 2),
        sql_statements=statements,
        rss_megabytes=round(gateway.rss_megabytes(bench.pids["gateway"]), 1),
        sent=sent,
        logged=found["rows"],
        odd=found["odd"],
    )


def _services(bench: Bench) -> float:
    return sum(gateway.cpu_seconds(bench.pids[name]) for name in ("postgres", "valkey", "ledger"))


def _row(scenario: str, turns: dict[tuple[str, str], list[tuple[Load, float, float]]]) -> Row:
    relay = _median(cpu / done.requests for done, cpu, _ in turns[("relay", scenario)])
    own = _median(cpu / done.requests for done, cpu, _ in turns[("gateway", scenario)])
    around = _median(services / done.requests for done, _, services in turns[("gateway", scenario)])
    return Row(
        scenario=scenario,
        requests=sum(done.requests for done, _, _ in turns[("gateway", scenario)]),
        relay_ms=round(relay * 1000, 4),
        gateway_ms=round(own * 1000, 4),
        services_ms=round(around * 1000, 4),
        ratio=round(own / relay, 1) if relay else 0.0,
        budget_ms=BUDGET_MS.get(scenario),
        ratio_target=RATIOS.get(scenario),
    )


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _drain(bench: Bench, sent: int) -> dict[str, Any]:
    """Waits until the log holds what was sent; what it holds then, or when the time is up."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while True:
        found = gateway.logged(bench)
        if found["rows"] >= sent or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def _round_trips(bench: Bench) -> tuple[float, int]:
    """Reads of the Redis server, and statements in PostgreSQL, while warm requests run one by one and the ledger stands still."""
    import redis
    from django.db import connection

    def statements() -> set[tuple[int, Any]]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid, query_start FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            return set(cursor.fetchall())

    asyncio.run(load.some(bench.ports["gateway"], "sse5", bench.key, count=ROUND_TRIPS))
    os.kill(bench.pids["ledger"], signal.SIGSTOP)
    try:
        time.sleep(0.3)
        with redis.Redis.from_url(bench.environ["REDIS_URL"]) as client:
            before, ran = int(client.info("stats")["total_reads_processed"]), statements()
            asyncio.run(load.some(bench.ports["gateway"], "sse5", bench.key, count=ROUND_TRIPS))
            after = int(client.info("stats")["total_reads_processed"])
        moved = statements() - ran
    finally:
        os.kill(bench.pids["ledger"], signal.SIGCONT)
        connection.close()
    return (after - before - 1) / ROUND_TRIPS, len(moved)


def _table(result: Result) -> list[str]:
    lines = [
        "CPU ms per request",
        f"{'':8}{'requests':>10}{'relay':>9}{'gateway':>9}{'budget':>8}{'ratio':>7}{'target':>8}{'services':>10}",
    ]
    for row in result.rows:
        budget = "" if row.budget_ms is None else f"{row.budget_ms:g}"
        target = "" if row.ratio_target is None else f"{row.ratio_target:g}x"
        lines.append(
            f"{row.scenario:8}{row.requests:>10}{row.relay_ms:>9.3f}{row.gateway_ms:>9.3f}{budget:>8}{row.ratio:>6.1f}x{target:>8}"
            f"{row.services_ms:>10.3f}"
        )
    lines += [
        f"added to a 5-event stream, p50, one at a time: {result.added_p50_ms:.2f} ms (target 1)",
        f"Redis reads per request: {result.redis_reads:g}; SQL statements on the warm path: {result.sql_statements}",
        f"memory of the gateway process: {result.rss_megabytes:.0f} MB",
        f"usage rows: {result.logged} of {result.sent} requests, {result.odd} odd",
    ]
    return lines
