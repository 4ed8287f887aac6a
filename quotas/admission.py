"""May this request spend? The only writer of quota counters on the request path (`quotas.md` is the exact text).

`admit` counts and holds an estimate in every record of the request, all or nothing, on the server's clock; `settle` replaces the
hold by the real cost and appends the usage event in the same step; `release` takes it back where nothing was sent.
"""

import asyncio
import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from config import snapshot as config_snapshot
from config.redis import Argument, Command, Redis, RedisUnavailable, ReplyError, sync_client
from config.snapshot import Snapshot, in_thread
from quotas import engine, errors, rebuild, records, refusals, standing, views
from quotas.gauges import Told
from quotas.holds import Amount, Hold, Keeper, Renewer, Settled, keeper_of
from quotas.standing import Usage
from quotas.views import View

__all__ = [
    "Admission",
    "Amount",
    "Hold",
    "Renewer",
    "Settled",
    "Usage",
    "admit",
    "check_newest",
    "finish",
    "newest_version",
    "release",
    "releasing",
    "renewer",
    "settle",
    "settling",
    "usage",
    "usage_sync",
]

logger = logging.getLogger(__name__)

TRIES = 4
BUILD_SECONDS = 5.0
BUILD_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Admission:
    """A hold, and the replies to the commands that went along (ReplyError stands in place of a failed one).

    `told`: how full the key's windows are; None where the answer to the first try was lost, as the second one does not tell it.
    """

    hold: Hold
    replies: list[Any]
    told: Told | None = None


def lease_ms() -> int:
    return int(settings.HOLD_DEADLINE_SECONDS * 1000)


async def admit(
    redis: Redis,
    snapshot: Snapshot,
    key: Any,
    *,
    request_id: str,
    need: Amount,
    about: bytes,
    model: str = "",
    alongside: Sequence[Command] = (),
) -> Admission:
    """Counts the request and holds `need`. `alongside` commands share the round trip; they are sent again if it is repeated.

    `model`: what was asked for, by which limits of some models apply; the same name that the log will hold.
    `about` is the event body of an orphan, at most 512 bytes. A repeat with the same `request_id` finds the same hold.
    Raises Stale, LimitReached, RateExceeded, ConcurrencyReached, NoActivePlan, Degraded; after any of them nothing is held.
    """
    if len(about) > engine.ABOUT_BYTES:
        raise ValueError(f"about has {len(about)} bytes, at most {engine.ABOUT_BYTES} are kept")
    keeper = keeper_of(redis)
    try:
        view = views.view_for(snapshot, key, keeper.now_s(), model)
    except errors.NoActivePlan:
        await check_newest(redis, snapshot)
        raise
    is_rebuilt = was_sent = False
    for attempt in range(TRIES):
        command = _admit_command(snapshot.organization_id, view, request_id, need, about)
        try:
            answer, *replies = await redis.batch([command, *alongside])
        except RedisUnavailable as error:
            was_sent = was_sent or error.was_sent
            if attempt == 0 and was_sent:
                continue
            if was_sent:
                _withdraw(keeper, snapshot.organization_id, request_id)
            raise errors.Degraded("redis", retry_after=5) from error
        except asyncio.CancelledError:
            _withdraw(keeper, snapshot.organization_id, request_id)
            raise
        if isinstance(answer, ReplyError):
            raise answer
        kind = answer[0]
        keeper.heard(answer[1])
        if kind == b"OK":
            keeper.saw_epoch(snapshot.organization_id, answer[3])
            told = Told(view, answer[1] // 1000, tuple(answer[4]))
            return Admission(_hold(snapshot, request_id, answer[2], answer[3]), replies, told)
        if kind == b"DUP":
            if answer[3] != b"L":
                raise errors.Degraded("request id has ended", retry_after=1)
            return Admission(_hold(snapshot, request_id, answer[2], 0), replies)
        if kind == b"NO":
            raise _refused(snapshot, view, answer, need)
        if kind == b"STALE":
            raise errors.Stale(answer[2])
        if kind == b"ROLL":
            view = views.view_for(snapshot, key, answer[2], model)
        elif kind == b"COLD":
            if is_rebuilt:
                break
            await warm_up(snapshot.organization_id)
            is_rebuilt = True
    raise errors.Degraded("counters are not ready", retry_after=1)


async def check_newest(redis: Redis, snapshot: Snapshot) -> None:
    """For refusals by a snapshot alone: what it forbids, a newer one may allow. Raises Stale if there is one, Degraded."""
    try:
        newest = await newest_version(redis, snapshot.organization_id)
    except RedisUnavailable as error:
        raise errors.Degraded("redis", retry_after=5) from error
    if newest is None:
        # Before the first admission the engine has heard of no version, so the database is asked; a refusal builds no counters.
        newest = (await config_snapshot.cache().get(snapshot.organization_id, at_least=snapshot.version + 1)).version
    if newest > snapshot.version:
        raise errors.Stale(newest)


async def newest_version(redis: Redis, organization_id: int) -> int | None:
    """The newest config version that the engine has seen; None while it has no counters. Raises RedisUnavailable."""
    meta = await redis.call("HGET", engine.counters_key(organization_id), "$")
    return None if meta is None else int(records.unpack(meta)[1])


def settling(redis: Redis, hold: Hold, *, amount: Amount, body: bytes) -> "asyncio.Task[Settled]":
    """Ends the hold at its real cost and appends the usage event; exactly once, however often it is sent.

    Under way when this returns; ends when the engine has answered, which it asks for as long as the process lives. Who waits for it
    must not cancel it.
    """
    hold.is_ended = True
    args = ("", hold.request_id, "S", amount.credits, amount.tokens, hold.ack, hold.ticket, body, "", "", "")
    return keeper_of(redis).settle(hold.organization_id, args)


def releasing(redis: Redis, hold: Hold) -> "asyncio.Task[Settled]":
    """Takes the hold back, request and all, without an event: only for what was never written to an upstream. As `settling`."""
    hold.is_ended = True
    args = ("", hold.request_id, "R", 0, 0, hold.ack, hold.ticket, b"", "", "", "")
    return keeper_of(redis).settle(hold.organization_id, args)


async def settle(redis: Redis, hold: Hold, *, amount: Amount, body: bytes) -> Settled:
    """`settling`, waited for; it goes on if the caller is cancelled."""
    return await asyncio.shield(settling(redis, hold, amount=amount, body=body))


async def release(redis: Redis, hold: Hold) -> Settled:
    """`releasing`, waited for; it goes on if the caller is cancelled."""
    return await asyncio.shield(releasing(redis, hold))


def renewer(redis: Redis) -> Renewer:
    """A Renewer with the install's deadlines; the lifespan starts and stops it."""
    return Renewer(
        redis,
        every_seconds=settings.HOLD_RENEW_SECONDS,
        lease_seconds=settings.HOLD_DEADLINE_SECONDS,
        on_cold=_warm_up_quietly,
    )


async def finish(redis: Redis, *, timeout_seconds: float) -> int:
    """Waits for unanswered settlements before a process ends; how many remain."""
    return await keeper_of(redis).finish(timeout_seconds)


def _withdraw(keeper: Keeper, organization_id: int, request_id: str) -> None:
    """It may have been admitted without our hearing of it: a release ends it, or stops it if it is still on its way."""
    keeper.settle(organization_id, ("", request_id, "R", 0, 0, "", b"", b"", "", "", ""))


def _admit_command(organization_id: int, view: View, request_id: str, need: Amount, about: bytes) -> tuple[Argument, ...]:
    need_c, need_t = min(need.credits, engine.MOST), min(need.tokens, engine.MOST)
    if need_c < 0 or need_t < 0:
        raise ValueError("an estimate cannot be negative")
    hold_c, hold_t = need_c, need_t
    if view.is_postpaid:
        # Passes while anything is left, and deducts what it cost afterwards.
        need_c, need_t, hold_c, hold_t = min(need_c, 1), min(need_t, 1), 0, 0
    args = ("", request_id, need_c, hold_c, need_t, hold_t, 0, 0, lease_ms(), about, view.packed)
    return engine.ADMIT.command(engine.keys(organization_id), args)


def _hold(snapshot: Snapshot, request_id: str, ticket: bytes, epoch: int) -> Hold:
    read = records.read_ticket(ticket)
    return Hold(
        request_id=request_id,
        organization_id=snapshot.organization_id,
        admitted_at=read.second,
        ack=read.seen_ms,
        ticket=ticket,
        epoch=epoch,
        source=read.source,
        period_start=read.fund_start,
    )


def _refused(snapshot: Snapshot, view: View, answer: list[Any], need: Amount) -> errors.Refused:
    record, rest = answer[2].decode(), answer[3:]
    wanted = {
        records.CREDITS: min(need.credits, 1) if view.is_postpaid else need.credits,
        records.TOKENS: min(need.tokens, 1) if view.is_postpaid else need.tokens,
        records.REQUESTS: 1,
        records.PER_SECOND: 1,
        records.PER_MINUTE: 1,
        records.CONCURRENT: 1,
    }
    return refusals.refusal(snapshot, view, [record, *rest], need=wanted, now_s=answer[1] // 1000)


# ------------------------------------------------------------------------------------------------------- cold starts

_builds: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, asyncio.Task[bool]]]" = weakref.WeakKeyDictionary()


async def warm_up(organization_id: int) -> None:
    """Rebuilds lost counters, once for all who ask in this process. Raises Degraded if that takes too long, or fails.

    While another process builds it waits for it: its build takes milliseconds, a client's retry a second.
    """
    builds = _builds.setdefault(asyncio.get_running_loop(), {})
    try:
        async with asyncio.timeout(BUILD_SECONDS):
            while not await asyncio.shield(_build(builds, organization_id)):  # noqa: ASYNC110 (the other builder is another process)
                await asyncio.sleep(BUILD_POLL_SECONDS)
    except TimeoutError as error:
        raise errors.Degraded("counters are being rebuilt", retry_after=1) from error
    except Exception as error:
        logger.exception("counters could not be rebuilt", extra={"organization_id": organization_id})
        raise errors.Degraded("counters cannot be rebuilt", retry_after=1) from error


def _build(builds: "dict[int, asyncio.Task[bool]]", organization_id: int) -> "asyncio.Task[bool]":
    build = builds.get(organization_id)
    if build is None:
        build = builds[organization_id] = asyncio.ensure_future(in_thread(rebuild.rebuild, organization_id))
        build.add_done_callback(lambda _: builds.pop(organization_id, None))
    return build


async def _warm_up_quietly(organization_id: int) -> None:
    try:
        await warm_up(organization_id)
    except errors.Degraded:
        logger.info("counters are not rebuilt yet", extra={"organization_id": organization_id})


# ------------------------------------------------------------------------------------------------------------- usage


async def usage(redis: Redis, snapshot: Snapshot, key: Any) -> Usage:
    """What the key's limits and plan have used, without counting anything. Raises Stale, NoActivePlan, Degraded."""
    keeper = keeper_of(redis)
    now_s = keeper.now_s()
    for _ in range(TRIES):
        try:
            view = views.view_for(snapshot, key, now_s)
        except errors.NoActivePlan:
            await check_newest(redis, snapshot)
            raise
        try:
            answer = await engine.PEEK(redis, engine.keys(snapshot.organization_id), ("", view.packed))
        except RedisUnavailable as error:
            raise errors.Degraded("redis") from error
        keeper.heard(answer[1])
        if answer[0] == b"OK":
            return standing.read(snapshot, view, answer)
        if answer[0] == b"STALE":
            raise errors.Stale(answer[2])
        if answer[0] == b"COLD":
            await warm_up(snapshot.organization_id)
        else:
            now_s = answer[2]
    raise errors.Degraded("counters are not ready", retry_after=1)


def usage_sync(snapshot: Snapshot, key: Any, *, now_s: int) -> Usage:
    """The sync twin of `usage`, for pages. `now_s` need not be exact: the engine tells its own."""
    for _ in range(TRIES):
        view = views.view_for(snapshot, key, now_s)
        try:
            answer = engine.PEEK.run(sync_client(), engine.keys(snapshot.organization_id), ("", view.packed))
        except RedisUnavailable as error:
            raise errors.Degraded("redis") from error
        if answer[0] == b"OK":
            return standing.read(snapshot, view, answer)
        if answer[0] == b"STALE":
            raise errors.Stale(answer[2])
        if answer[0] == b"ROLL":
            now_s = answer[2]
        elif not rebuild.rebuild(snapshot.organization_id):
            raise errors.Degraded("counters are being rebuilt", retry_after=1)
    raise errors.Degraded("counters are not ready", retry_after=1)
