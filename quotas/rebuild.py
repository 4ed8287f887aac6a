"""Counters from the log and the stream, after they were lost (quotas.md section 8).

One builder per organization, by an advisory lock. The stream is read before the log, and the log in one snapshot of the database:
an event that the drain moves meanwhile is seen in the log or in both, and counts once. PostgreSQL sums (`expected`): rows come one
by one only for requests that ended lately, and for what is in the stream. What is appended after the stream was read makes the
script answer RETRY; then it is added, in the same snapshot. Nobody gets free credits from deleted keys.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

from django.conf import settings
from django.db import connection
from redis import Redis as SyncRedis

from billing import ledger, usage
from config import patience, scope
from config import snapshot as config_snapshot
from config.redis import sync_client, translated
from config.snapshot import Snapshot
from quotas import charging, engine, logbook, parts, publishing, rings, staging, tally, unread, views
from quotas.expected import Cell, Expected
from quotas.parts import Part
from quotas.records import Event

logger = logging.getLogger(__name__)

LOCK = 0x77656972
"""First key of the advisory lock; the second is the organization."""
TRIES = 50
DRAIN_SECONDS = 5.0
"""How long a rebuild waits for the drain to say which funds paid."""
UNDECIDED = "UNDECIDED"


class RebuildFailed(Exception):
    """The stream kept moving, or the database did not answer."""


def rebuild(organization_id: int, *, expected_epoch: str = "", keep_holds: bool = False, now_ms: int | None = None) -> bool:
    """True once the counters are there (built here, or by somebody who was faster); False while another process builds.

    `expected_epoch` '' builds only what is missing; an epoch replaces living counters, with `keep_holds` under traffic. `now_ms`
    in tests. Raises RebuildFailed, RedisUnavailable, and what the database raises.
    """
    redis = sync_client()
    until = time.monotonic() + DRAIN_SECONDS
    with scope.organization(organization_id), patience.unlimited(), _builder(organization_id) as is_ours:
        if not is_ours:
            return False
        for _ in range(TRIES):
            with translated():
                if not expected_epoch and redis.hexists(engine.counters_key(organization_id), "$"):
                    return True
            is_patient = time.monotonic() < until
            answer = _attempt(redis, organization_id, expected_epoch, keep_holds, now_ms, is_patient=is_patient)
            if answer == UNDECIDED:
                _drain_logged(redis, organization_id, until)
            if answer == "OK" and now_ms is None:
                # What was granted between our reading and the rename was published to counters that were not there.
                publishing.publish_grants(organization_id)
            # LOST: somebody else's counters are there now.
            if answer in ("OK", "LOST"):
                return True
    raise RebuildFailed(f"the usage stream of organization {organization_id} kept moving")


@contextmanager
def _builder(organization_id: int) -> Iterator[bool]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [LOCK, _lock_id(organization_id)])
        is_ours = bool(cast(Any, cursor.fetchone())[0])
    try:
        yield is_ours
    finally:
        if is_ours:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [LOCK, _lock_id(organization_id)])


def _lock_id(organization_id: int) -> int:
    # The lock takes 32 bits, signed.
    return organization_id % 2**31


def server_ms(redis: "SyncRedis") -> int:
    """The server's clock, with the offset of the test settings."""
    seconds, micros = redis.time()
    offset = 0
    if key := getattr(settings, "QUOTAS_CLOCK_OFFSET_KEY", None):
        offset = int(cast(Any, redis.get(key)) or 0)
    return seconds * 1000 + micros // 1000 + offset


def _drain_logged(redis: "SyncRedis", organization_id: int, until: float) -> None:
    """Until no settlement in the stream is one that was only logged, by this process or by one that drains."""
    # Not at the top: what drains also sweeps, and that rebuilds.
    from quotas import drain

    while time.monotonic() < until:
        if not any(event.outcome == usage.LOGGED for event in unread.read(redis, organization_id).events):
            return
        if not drain.drain(redis, organization_id):
            time.sleep(0.02)


def _attempt(
    redis: "SyncRedis", organization_id: int, expected_epoch: str, keep_holds: bool, now_ms: int | None, *, is_patient: bool
) -> str:
    """What the script answered; UNDECIDED, if `is_patient`, where the drain has to be waited for."""
    seen = unread.read(redis, organization_id)
    with translated():
        clock = now_ms if now_ms is not None else server_ms(redis)
    with tally.one_snapshot():
        book = _Book.of_log(organization_id, clock, seen.events)
        if is_patient and book.is_undecided(seen.events):
            return UNDECIDED
        staging.clear(redis, organization_id)
        cells: Iterable[Cell] = book.expected.cells
        for _ in range(TRIES):
            stones = [value for request_id, end in book.stage(redis, cells) for value in (request_id, end)]
            arguments = (
                "" if now_ms is None else now_ms,
                expected_epoch,
                seen.last,
                int(keep_holds),
                *stones,
            )
            answer = engine.REBUILD.run(redis, engine.keys(organization_id), arguments)[0].decode()
            details = {"answer": answer, "cells": len(book.expected.cells), "records": len(book.expected.totals)}
            logger.info("counters rebuilt", extra={"organization_id": organization_id, **details})
            if answer != "RETRY":
                break
            more = unread.read_after(redis, organization_id, seen)
            if more is None or not book.reaches(more.events):
                # What was drained and trimmed since is in the log, but not as of this snapshot; or a bucket has ended.
                break
            cells, seen = book.add(more.events), more
            if is_patient and book.is_undecided(more.events):
                return UNDECIDED
    return cast(str, answer)


@dataclass(slots=True)
class _Book:
    """What the log held at one moment, and what was added to it."""

    snapshot: Snapshot
    expected: Expected
    now_ms: int
    epoch: int
    spent: int
    granted: ledger.Granted
    known: dict[parts.Key, Part] = field(default_factory=dict)
    """Every part of the requests that ended lately, or are in the stream."""

    @classmethod
    def of_log(cls, organization_id: int, now_ms: int, events: list[Event]) -> "_Book":
        """In the caller's snapshot of the database: the log and these events."""
        snapshot = config_snapshot.load(organization_id)
        newest = max([now_ms // 1000, tally.newest(organization_id), *(event.admitted_s for event in events)])
        filters = [one.filter_id for one in snapshot.quotas.filters]
        expected = Expected(snapshot, rings.at(snapshot, newest), filters=filters, logs=charging.logged(snapshot))
        funded = [views.two_periods(subscription, newest)[1] for subscription in snapshot.billing.subscriptions]
        since = min([expected.rings.since, *funded])
        expected.add_log(since, lately=now_ms - engine.KEEP_MS)
        logbook.add_seconds(expected)
        with connection.cursor() as cursor:
            cursor.execute("SELECT nextval('quotas_epoch')")
            epoch = int(cast(Any, cursor.fetchone())[0])
        granted = ledger.granted(organization_id)
        book = cls(snapshot, expected, now_ms, epoch, ledger.spent(organization_id), granted)
        book.known = parts.logged(organization_id, expected.lately, since=since)
        book.add(events)
        return book

    def reaches(self, events: list[Event]) -> bool:
        """Do these events fit into the same rings? Then time is moved on to them."""
        newest = max([self.expected.rings.newest, *(event.admitted_s for event in events)])
        moved = rings.at(self.snapshot, newest)
        fits = (moved.low, moved.code) == (self.expected.rings.low, self.expected.rings.code)
        if fits:
            self.expected.rings = moved
        return fits

    def is_undecided(self, events: list[Event]) -> bool:
        """Did one of these, which was only logged, cost more than its plan pays? Then the drain decides which other funds do;
        counters that took all for paid by the plan would let a cap be passed by as much."""
        quotas: dict[tuple[str, int], int] = {}
        for subscription in self.snapshot.billing.subscriptions:
            for start in views.two_periods(subscription, self.expected.rings.newest):
                quotas[(views.source_of(subscription), start)] = views.terms_of(subscription, start).quota
        sources = {(event.source, event.fund_start) for event in events if event.outcome == usage.LOGGED}
        return any(self.expected.funding.get(source, (0,))[0] > quotas.get(source, 0) for source in sources)

    def add(self, events: list[Event]) -> set[Cell]:
        """Events that may be in the log already; the cells that they moved."""
        if not events:
            return set()
        organization_id = self.snapshot.organization_id
        ids, since = {event.request_id for event in events}, min(event.admitted_s for event in events)
        self.known = parts.logged(organization_id, ids, since=since) | self.known
        more = self.expected.like()
        for part in parts.undrained(events, self.known):
            more.add_part(part)
            self.spent += part.funding[1]
        return self.expected.add(more)

    def stage(self, redis: "SyncRedis", cells: Iterable[Cell]) -> list[staging.Stone]:
        """Stages these cells and all that is beside cells; the tombstones."""
        organization_id = self.snapshot.organization_id
        fields, stones = staging.tombstones(self.expected, self.known.values(), since_ms=self.now_ms - engine.KEEP_MS)
        fields |= chain(staging.records_of(self.expected), staging.funding_of(self.expected))
        fields["$"] = staging.meta(self.epoch, self.snapshot.version, self.now_ms, self.spent, self.granted)
        staging.put_cells(redis, self.expected, cells)
        staging.put(redis, organization_id, fields)
        return stones
