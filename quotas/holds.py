"""Holds: what a running request keeps, and the settlements that must arrive (quotas.md sections 5 and 7).

A `Keeper` stands beside each Redis client. It repeats settlements until they are answered, sends those of the last seconds again
after every reconnect (a server restored a second old has lost them), and remembers what the server's clock says.
"""

import asyncio
import logging
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from config.redis import Redis, RedisUnavailable, ReplyError
from quotas import engine

logger = logging.getLogger(__name__)

RESEND_SECONDS = 10.0
BACK_OFF_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Amount:
    """Micro-credits and tokens."""

    credits: int
    tokens: int


@dataclass(slots=True, eq=False)
class Hold:
    """A running request's place in the counters. `admitted_at`: unix seconds, the engine's; what it costs is charged there."""

    request_id: str
    organization_id: int
    admitted_at: int
    ack: int
    """Server ms of the newest answer that saw this hold alive."""
    ticket: bytes = field(repr=False)
    epoch: int
    source: str
    period_start: int
    observed: Amount = Amount(0, 0)
    is_ended: bool = False

    def observe(self, amount: Amount) -> None:
        """What the next renewal tells: the request has cost at least this so far. Never falls."""
        self.observed = Amount(max(self.observed.credits, amount.credits), max(self.observed.tokens, amount.tokens))

    def renewal(self, lease_ms: int) -> tuple[str | bytes | int, ...]:
        """The renew command for a batch."""
        observed = self.observed
        args = ("", self.request_id, observed.credits, observed.tokens, lease_ms, self.ack, self.ticket)
        return engine.RENEW.command(engine.keys(self.organization_id), args)


@dataclass(frozen=True, slots=True)
class Settled:
    """How a hold ended. `outcome`: OK, LATE, AMENDED, DUP, LOGGED or GONE; the split is None where no counters decided it."""

    outcome: str
    plan: int | None = None
    purchased: int | None = None
    overage: int | None = None
    overdraft: int | None = None


class Keeper:
    """What outlives single requests, per Redis client."""

    def __init__(self, redis: Redis) -> None:
        self._redis = weakref.ref(redis)
        self._tasks: set[asyncio.Task[Settled]] = set()
        self._answered: deque[tuple[float, int, tuple[str | bytes | int, ...]]] = deque()
        self._ahead_ms = 0
        self._epochs: dict[int, int] = {}
        self.on_new_epoch: list[Callable[[int], None]] = []
        redis.on_connect(self._resend)

    # -- the server's clock

    def heard(self, server_ms: int) -> None:
        """Every answer tells the server's time."""
        self._ahead_ms = server_ms - time.time_ns() // 1_000_000

    def now_s(self) -> int:
        """The server's unix second, as far as known; a wrong guess costs one ROLL."""
        return (time.time_ns() // 1_000_000 + self._ahead_ms) // 1000

    def saw_epoch(self, organization_id: int, epoch: int) -> None:
        """A new epoch means rebuilt counters, which lack the holds that live here: they are renewed at once."""
        known = self._epochs.get(organization_id)
        if known != epoch:
            self._epochs[organization_id] = epoch
            if known is not None:
                for tell in self.on_new_epoch:
                    tell(organization_id)

    # -- settlements

    def settle(self, organization_id: int, args: tuple[str | bytes | int, ...]) -> "asyncio.Task[Settled]":
        """Sends a settlement until it is answered, as long as the process lives. Cancelling who waits does not stop it."""
        task = asyncio.get_running_loop().create_task(self._until_answered(organization_id, args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _until_answered(self, organization_id: int, args: tuple[str | bytes | int, ...]) -> Settled:
        attempt = 0
        while True:
            redis = self._redis()
            if redis is None:
                raise RedisUnavailable("closed")
            try:
                answer = await engine.SETTLE(redis, engine.keys(organization_id), args)
            except RedisUnavailable:
                if redis.is_closed:
                    raise
                await asyncio.sleep(BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS) - 1)])
                attempt += 1
                continue
            self.heard(answer[1])
            self._answered.append((time.monotonic(), organization_id, args))
            self._forget_old()
            return read_settled(answer)

    def _forget_old(self) -> None:
        oldest = time.monotonic() - RESEND_SECONDS
        while self._answered and self._answered[0][0] < oldest:
            self._answered.popleft()

    async def _resend(self, redis: Redis) -> None:
        """The answer is DUP where the server still knows, else it is booked now; the log takes (id, part) once."""
        self._forget_old()
        again = list(self._answered)
        if not again:
            return
        commands = [engine.SETTLE.command(engine.keys(organization_id), args) for _, organization_id, args in again]
        replies = await redis.batch(commands)
        lost = [reply for reply in replies if not isinstance(reply, ReplyError) and reply[0] != b"DUP"]
        if lost:
            logger.warning("settlements had been lost and were sent again", extra={"count": len(lost)})

    async def finish(self, timeout_seconds: float) -> int:
        """Waits for the settlements that are still unanswered; the number that remain."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
        return len(self._tasks)


def read_settled(answer: list[Any]) -> Settled:
    outcome = answer[0].decode()
    if outcome == "DUP":
        return Settled(outcome, *answer[4:8])
    return Settled(outcome, *answer[2:6])


_keepers: "weakref.WeakKeyDictionary[Redis, Keeper]" = weakref.WeakKeyDictionary()


def keeper_of(redis: Redis) -> Keeper:
    """The keeper of a client; made at first use."""
    held = _keepers.get(redis)
    if held is None:
        held = _keepers[redis] = Keeper(redis)
    return held


class Renewer:
    """Renews the live holds of one process, many in one write, and tells the engine what they have cost so far."""

    def __init__(
        self,
        redis: Redis,
        *,
        every_seconds: float,
        lease_seconds: float,
        on_cold: Callable[[int], Awaitable[object]],
    ) -> None:
        self._redis = redis
        self._every_seconds = every_seconds
        self._lease_ms = int(lease_seconds * 1000)
        self._on_cold = on_cold
        self._holds: set[Hold] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        keeper = keeper_of(redis)
        keeper.on_new_epoch.append(lambda _organization_id: self._wake.set())
        redis.on_connect(self._connected)

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def add(self, hold: Hold) -> None:
        self._holds.add(hold)

    def discard(self, hold: Hold) -> None:
        self._holds.discard(hold)

    @property
    def count(self) -> int:
        return len(self._holds)

    def renew_soon(self, hold: Hold) -> None:
        """Tells the engine what `hold` has observed without waiting for the answer (as soon as the request was written)."""
        if not hold.is_ended:
            task = self._redis.call(*hold.renewal(self._lease_ms))
            task.add_done_callback(lambda done: self._heard_soon(hold, done))

    async def renew_all(self) -> None:
        """One round for every live hold. Raises RedisUnavailable."""
        holds = [hold for hold in self._holds if not hold.is_ended]
        for start in range(0, len(holds), 500):
            some = holds[start : start + 500]
            replies = await self._redis.batch([hold.renewal(self._lease_ms) for hold in some])
            cold = {hold.organization_id for hold, reply in zip(some, replies, strict=True) if self._heard(hold, reply)}
            for organization_id in cold:
                # Counters are gone: build them, and the next round brings these holds back.
                await self._on_cold(organization_id)
                self._wake.set()

    def _heard_soon(self, hold: Hold, done: "asyncio.Future[Any]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._heard(hold, done.result())

    def _heard(self, hold: Hold, reply: Any) -> bool:
        """Takes one answer; True if the counters are gone. `ORPHANED` does not move the ack, or a settlement after a rebuild
        would look fresh and be booked on top of the orphan."""
        if isinstance(reply, ReplyError):
            logger.error("a renewal failed", extra={"request_id": hold.request_id, "error": str(reply)})
            return False
        keeper_of(self._redis).heard(reply[1])
        kind = reply[0]
        if kind in (b"OK", b"RESTORED"):
            hold.ack = max(hold.ack, reply[1])
        elif kind == b"COLD":
            return not hold.is_ended
        elif kind != b"ORPHANED" and not hold.is_ended:
            logger.warning("a running hold has ended", extra={"request_id": hold.request_id, "answer": kind.decode()})
        return False

    async def _connected(self, _: Redis) -> None:
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._every_seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self.renew_all()
            except RedisUnavailable:
                logger.warning("holds were not renewed: Redis does not answer", extra={"count": len(self._holds)})
            except Exception:
                logger.exception("holds were not renewed")
            # A storm of wake-ups must not become a storm of renewals.
            await asyncio.sleep(min(0.05, self._every_seconds))
