"""From the usage streams into the log (quotas.md section 10): what `manage.py ledger` runs.

Any number of these processes run at once. One at a time reads an organization's stream, by an advisory lock and through one
consumer of one group, so what a crashed process had read is read again. Rows are written once however often an entry comes. An
entry that cannot be read or written goes to the dead letters and counts as done; nothing is trimmed before its commit.
"""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import redis as redis_py
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.db.utils import DataError, InterfaceError
from redis import Redis as SyncRedis

from accounts.models import Organization
from billing import usage
from billing.events import UsageEvent, decode_body
from config import scope
from config.redis import RedisUnavailable, sync_client, translated
from quotas import engine, live, rebuild, records, refusal_log, sweep
from quotas.models import DeadLetter, UsageDrain

logger = logging.getLogger(__name__)

GROUP = "ledger"
CONSUMER = "ledger"
BATCH = 500
LOCK = 0x77656973
"""First key of the advisory lock; the second is the organization."""
IDLE_SECONDS = 0.1
SWEEP_SECONDS = 1.0
PUBLISH_SECONDS = 5.0
REPAIR_SECONDS = 60.0
BACK_OFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)

Entry = tuple[bytes, dict[bytes, bytes]]


@dataclass(slots=True)
class Ledger:
    """One ledger process. `stopped` ends it between two steps; it never ends by itself."""

    stopped: Callable[[], bool]
    redis: "SyncRedis" = field(default_factory=sync_client)
    versions: sweep.Versions = field(default_factory=sweep.Versions)

    def run(self) -> None:
        """Drains, sweeps and publishes until `stopped`. Outlives Redis and PostgreSQL going away."""
        failures = 0
        sweep_at = publish_at = repair_at = 0.0
        while not self.stopped():
            try:
                moved = drain_all(self.redis)
                now = time.monotonic()
                if now >= sweep_at:
                    sweep_at = now + SWEEP_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311
                    moved += sweep.sweep(self.redis)
                    moved += refusal_log.drain(self.redis)
                if now >= repair_at:
                    repair_at, publish_at = now + REPAIR_SECONDS, now + PUBLISH_SECONDS
                    self.versions.push(self.redis, everything=True)
                elif now >= publish_at:
                    publish_at = now + PUBLISH_SECONDS
                    self.versions.push(self.redis)
                failures = 0
            except (RedisUnavailable, OperationalError, InterfaceError) as error:
                logger.warning("the ledger waits", extra={"reason": type(error).__name__, "failures": failures + 1})
                # Another server may answer next: its data can be older.
                repair_at = 0.0
                _drop_connection()
                self._pause(BACK_OFF_SECONDS[min(failures, len(BACK_OFF_SECONDS) - 1)])
                failures += 1
                continue
            except Exception:
                logger.exception("a step of the ledger failed")
                _drop_connection()
                self._pause(BACK_OFF_SECONDS[min(failures, len(BACK_OFF_SECONDS) - 1)])
                failures += 1
                continue
            if not moved:
                self._pause(IDLE_SECONDS)
        _drop_connection()

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.stopped() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))


def _drop_connection() -> None:
    if not connection.in_atomic_block:
        connection.close()


def drain_all(redis: "SyncRedis") -> int:
    """One batch of every organization that has news; the number of entries done. Raises RedisUnavailable, DatabaseError.

    One organization's trouble does not keep the others waiting; it is raised at the end.
    """
    done, trouble = 0, None
    for organization_id in sweep.dirty(redis):
        try:
            done += drain(redis, organization_id)
        except (RedisUnavailable, OperationalError, InterfaceError):
            raise
        except Exception as error:
            logger.exception("a stream was not drained", extra={"organization_id": organization_id})
            trouble = error
    if trouble is not None and not done:
        raise trouble
    return done


def drain(redis: "SyncRedis", organization_id: int) -> int:
    """Writes one batch of an organization's stream; the number of entries done, 0 if another process reads it.

    Raises RedisUnavailable, DatabaseError; then nothing of the batch is trimmed and all of it comes again.
    """
    with scope.organization(organization_id):
        return _drain(redis, organization_id)


def drained_through(redis: "SyncRedis", organization_id: int) -> str:
    """The newest moment, as a stream id, up to which the log holds every event of the organization. Raises RedisUnavailable.

    With nothing waiting that is the server's time: an organization that rests has no newer entry to go by.
    """
    now_ms = rebuild.server_ms(redis)
    with translated():
        waiting = redis.xlen(engine.stream_key(organization_id))
    if not waiting:
        return f"{now_ms}-0"
    drained = UsageDrain.objects.filter(organization_id=organization_id).values_list("drained_id", flat=True).first()
    return drained or "0-0"


def _drain(redis: "SyncRedis", organization_id: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [LOCK, organization_id % 2**31])
        if not cast(Any, cursor.fetchone())[0]:
            return 0
    try:
        entries = _read(redis, organization_id)
        if entries:
            _write(organization_id, entries)
            _trim(redis, organization_id, entries)
            live.announce(organization_id)
        engine.TIDY.run(redis, engine.keys(organization_id), ("",))
        return len(entries)
    finally:
        if connection.is_usable():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [LOCK, organization_id % 2**31])


def _read(redis: "SyncRedis", organization_id: int) -> list[Entry]:
    """What an earlier reader was given and did not finish, else what is new."""
    key = engine.stream_key(organization_id)
    for start in ("0", ">"):
        with translated():
            try:
                answer = cast(Any, redis.xreadgroup(GROUP, CONSUMER, {key: start}, count=BATCH))
            except redis_py.exceptions.ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
                if not redis.exists(key):
                    return []
                redis.xgroup_create(key, GROUP, id="0")
                answer = cast(Any, redis.xreadgroup(GROUP, CONSUMER, {key: start}, count=BATCH))
        entries: list[Entry] = answer[0][1] if answer else []
        if entries:
            return entries
    return []


def _trim(redis: "SyncRedis", organization_id: int, entries: list[Entry]) -> None:
    key = engine.stream_key(organization_id)
    # One consumer, in order: everything up to the last of the batch is done.
    last_ms, _, last_number = entries[-1][0].decode().partition("-")
    with translated():
        pipeline = redis.pipeline(transaction=False)
        pipeline.xack(key, GROUP, *(stream_id for stream_id, _ in entries))
        pipeline.xtrim(key, minid=f"{last_ms}-{int(last_number) + 1}", approximate=False)
        pipeline.execute()


def _write(organization_id: int, entries: list[Entry]) -> None:
    events: list[UsageEvent] = []
    raw: dict[str, dict[bytes, bytes]] = {}
    dead: list[DeadLetter] = []
    for stream_id, fields in entries:
        try:
            event = _decode(stream_id, fields)
        except Exception as error:
            dead.append(_dead_letter(organization_id, stream_id, fields, error))
            continue
        events.append(event)
        raw[event.stream_id] = fields
    last = entries[-1][0].decode()
    try:
        _commit(organization_id, events, dead, last)
    except (IntegrityError, DataError, ValueError, TypeError, LookupError) as error:
        logger.warning("a batch was refused; its entries are tried singly", extra={"organization_id": organization_id})
        good: list[UsageEvent] = []
        for event in events:
            try:
                with transaction.atomic():
                    usage.record(organization_id, [event])
            except (OperationalError, InterfaceError):
                raise
            except (DatabaseError, ValueError, TypeError, LookupError) as refused:
                letter = _dead_letter(organization_id, event.stream_id.encode(), raw[event.stream_id], refused)
                dead.append(letter)
                continue
            good.append(event)
        if not dead:
            raise error
        _commit(organization_id, [], dead, last)


def _commit(organization_id: int, events: list[UsageEvent], dead: list[DeadLetter], last: str) -> None:
    """Log rows, read models, dead letters and the drained id, together."""
    with transaction.atomic():
        if events:
            usage.record(organization_id, events)
        if dead:
            DeadLetter.objects.bulk_create(dead, ignore_conflicts=True)
        if not Organization.objects.filter(pk=organization_id).exists():
            return
        drained, _ = UsageDrain.objects.select_for_update(no_key=True).get_or_create(organization_id=organization_id)
        if _order(last) > _order(drained.drained_id):
            drained.drained_id = last
            drained.save(update_fields=["drained_id", "drained_at"])


def _order(stream_id: str) -> tuple[int, int]:
    ms, _, number = stream_id.partition("-")
    return int(ms), int(number)


def _decode(stream_id: bytes, fields: dict[bytes, bytes]) -> UsageEvent:
    """Raises ValueError or msgspec's errors for what is not an event of ours."""
    event = records.read_event(stream_id, fields)
    return UsageEvent(
        request_id=event.request_id,
        part=event.part,
        state=event.state,
        admitted_at=event.admitted_s,
        ended_ms=event.ended_ms,
        credits=event.credits,
        tokens=event.tokens,
        requests=event.requests,
        from_quota=event.plan,
        from_purchased=event.purchased,
        from_overage=event.overage,
        overdraft=event.overdraft,
        source=event.source,
        period_start=event.fund_start,
        stream_id=event.stream_id,
        body=decode_body(event.body),
        outcome=event.outcome,
    )


def _dead_letter(organization_id: int, stream_id: bytes, fields: dict[bytes, bytes], error: Exception) -> DeadLetter:
    logger.error("an event went to the dead letters", extra={"organization_id": organization_id, "stream_id": stream_id.decode()})
    return DeadLetter(
        organization_id=organization_id,
        stream_id=stream_id.decode(),
        raw=records.pack([part for pair in fields.items() for part in pair]),
        error=f"{type(error).__name__}: {error}"[:2000],
    )
