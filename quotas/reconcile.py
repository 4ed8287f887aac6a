"""Counters against the log, and the books against each other (quotas.md section 10).

A copy of the counters is taken together with the stream's last id; once the log holds everything up to that id, the two must say
the same. A difference is stored, told, counted in /health/status, and, if asked, added to the counters while traffic goes on.
"""

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, cast
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import Count, Min
from redis import Redis as SyncRedis

from accounts.models import ApiKey, Member, Organization, Team
from billing import books, periods, rollups
from config import scope
from config import snapshot as config_snapshot
from config.clock import utc_now
from config.errors import DomainError
from config.redis import sync_client, translated
from quotas import adjusting, copies, drain, drift, engine, rebuild, records, tally
from quotas.copies import Copy, StreamId
from quotas.drift import Difference
from quotas.models import Drift, UsageDrain

logger = logging.getLogger(__name__)

WAIT_SECONDS = 30.0
TRIES = 3
IDLE_DAYS = 41
AT_ONCE = 20
"""A record has up to 570 cells; so many records go in one call."""
SHOWN = 20
"""So many differences are written to the process's log each."""
MOST_STORED = 2000
"""So many are stored: where everything is lost, each cell of each record differs."""


class LogBehind(DomainError):
    """The log did not catch up with the stream: nothing was compared."""

    code: ClassVar[str] = "log_behind"
    status: ClassVar[int] = 503


class RepairRunning(DomainError):
    """Somebody else compares and repairs this organization now."""

    code: ClassVar[str] = "repair_running"
    status: ClassVar[int] = 409


@dataclass(frozen=True, slots=True)
class Report:
    """`differences`: what was found. `repair_id`: under which it was put right, "" if it was not. `is_cold`: no counters."""

    organization_id: int
    cut: str
    differences: tuple[Difference, ...]
    repair_id: str = ""
    is_cold: bool = False
    forgotten: int = 0


def reconcile(organization_id: int, *, repair: bool = False, now_ms: int | None = None) -> Report:
    """Compares, stores what differs, and with `repair` puts counters and hourly sums right. Traffic goes on meanwhile.

    Where counters, log and ledger cannot be put right by adding (the ledger, a period's sums), the difference is for a person.
    `now_ms` in tests. Raises LogBehind, RepairRunning, RedisUnavailable.
    """
    redis = sync_client()
    with scope.organization(organization_id), adjusting.sole_repairer(organization_id) as is_ours:
        if not is_ours:
            raise RepairRunning("Somebody else compares this organization's counters now.")
        for _ in range(TRIES):
            report = _once(redis, organization_id, repair, now_ms)
            if report is not None:
                return report
    raise LogBehind("The counters were replaced again and again while they were compared.")


def _once(redis: "SyncRedis", organization_id: int, repair: bool, now_ms: int | None) -> Report | None:
    """None if the counters became others meanwhile."""
    organization = Organization.objects.get(pk=organization_id)
    logged = _drained(organization_id)
    try:
        copy = copies.take(redis, organization_id, now_ms=now_ms)
    except ValueError:
        # Something else than counters stands there; nothing can be added to it.
        logger.exception("counters cannot be read", extra={"organization_id": organization_id})
        if not repair:
            raise
        rebuild.rebuild(organization_id, expected_epoch=_epoch(redis, organization_id), keep_holds=True, now_ms=now_ms)
        return None
    if copy is not None:
        _wait(redis, organization_id, copy.cut)
    # What the log held before the copy was made, the counters must hold: a stream that lost its end must not hide it.
    cut = max(copy.cut, logged) if copy is not None else logged
    if copy is not None:
        copy.cut = cut
    now = utc_now()
    with tally.one_snapshot():
        found = drift.Found()
        if copy is not None:
            found = drift.compare(organization_id, config_snapshot.load(organization_id), copy, cut)
        of_books = books.mismatches(organization, now - timedelta(days=IDLE_DAYS), now)
    repair_id = ""
    if repair and copy is not None and found.differences:
        repair_id = f"rp-{uuid.uuid4().hex[:20]}"
        if not _repair(redis, organization_id, copy, found, repair_id, now_ms):
            return None
    if repair and any(one.kind == "rollup" for one in of_books):
        repair_id = repair_id or f"rp-{uuid.uuid4().hex[:20]}"
        _repair_sums(organization, of_books)
    differences = (
        *found.differences,
        *(Difference(one.kind, one.where, one.field, one.expected, one.found) for one in of_books),
    )
    text = "{}-{}".format(*cut)
    _store(organization, differences, text, repair_id, now)
    forgotten = _forget(redis, organization_id, copy, now_ms) if copy is not None else 0
    return Report(organization_id, text, differences, repair_id, copy is None, forgotten)


# -------------------------------------------------------------------------------------------------------------- the cut


def _drained(organization_id: int) -> StreamId:
    drained = UsageDrain.objects.filter(organization_id=organization_id).values_list("drained_id", flat=True).first()
    return copies.order(drained or "0-0")


def _wait(redis: "SyncRedis", organization_id: int, cut: StreamId) -> None:
    """Until the log holds everything up to the cut; drains what nobody else does. Raises LogBehind."""
    until = time.monotonic() + WAIT_SECONDS
    last = "{}-{}".format(*cut)
    while _drained(organization_id) < cut:
        with translated():
            left = redis.xrange(engine.stream_key(organization_id), "-", last, count=1)
        if not left:
            # What is trimmed was written.
            return
        if not drain.drain(redis, organization_id):
            if time.monotonic() > until:
                raise LogBehind("The usage log does not catch up with the stream. Is a ledger process stuck?")
            time.sleep(0.02)


def _epoch(redis: "SyncRedis", organization_id: int) -> str:
    with translated():
        meta = cast(Any, redis.hget(engine.counters_key(organization_id), "$"))
    return str(records.unpack(meta)[0]) if meta else ""


# --------------------------------------------------------------------------------------------------------------- repair


def _repair(redis: "SyncRedis", organization_id: int, copy: Copy, found: drift.Found, repair_id: str, now_ms: int | None) -> bool:
    """False if the counters were others by then."""
    if found.deltas and adjusting.adjust(organization_id, copy.epoch, repair_id, found.deltas, now_ms=now_ms) == "LOST":
        return False
    if any(one.kind == "held" for one in found.differences):
        # Live holds are counted anew, one by one; settlements that come meanwhile wait for the script.
        return rebuild.rebuild(organization_id, expected_epoch=str(copy.epoch), keep_holds=True, now_ms=now_ms)
    return True


def _repair_sums(organization: Organization, mismatches: Sequence[books.Mismatch]) -> None:
    zone = ZoneInfo(organization.timezone)
    for day in {one.where for one in mismatches if one.kind == "rollup"}:
        start = datetime.fromisoformat(day).date()
        rollups.rebuild(organization.pk, periods.day_start(start, zone), periods.day_start(start + timedelta(days=1), zone))


def _forget(redis: "SyncRedis", organization_id: int, copy: Copy, now_ms: int | None) -> int:
    """Drops records of scopes that are gone and idle."""
    before = copy.newest - IDLE_DAYS * 86400
    idle = [name for name, record in copy.records.items() if name != "o" and record.newest < before and not record.live]
    if not idle:
        return 0
    alive = _alive(organization_id)
    gone = [name for name in idle if name.partition("~")[0] not in alive]
    if not gone:
        return 0
    dropped = 0
    for start in range(0, len(gone), AT_ONCE):
        args = ("" if now_ms is None else now_ms, before, *gone[start : start + AT_ONCE])
        answer = engine.FORGET.run(redis, engine.keys(organization_id), args)
        dropped += int(answer[2]) if answer[0] == b"OK" else 0
    return dropped


def _alive(organization_id: int) -> set[str]:
    keys = ApiKey.objects.filter(organization_id=organization_id).unrevoked().values_list("pk", flat=True)
    members = Member.objects.filter(organization_id=organization_id).current().values_list("pk", flat=True)
    teams = Team.objects.filter(organization_id=organization_id).values_list("pk", flat=True)
    return {f"k{pk}" for pk in keys} | {f"m{pk}" for pk in members} | {f"t{pk}" for pk in teams}


# -------------------------------------------------------------------------------------------------------------- records


def _store(organization: Organization, differences: Sequence[Difference], cut: str, repair_id: str, now: datetime) -> None:
    """One row for each difference that stands, MOST_STORED at most; those that are gone are closed."""
    repaired_at = now if repair_id else None
    for one in differences[:SHOWN]:
        logger.error(
            "drift",
            extra={
                "organization_id": organization.pk,
                "kind": one.kind,
                "record": one.record,
                "field": one.field,
                "expected": one.expected,
                "counted": one.counted,
                "repair_id": repair_id,
            },
        )
    keys = {(one.kind, one.record, one.field) for one in differences}
    with transaction.atomic():
        rows = Drift.objects.select_for_update(no_key=True).filter(organization=organization, repaired_at=None)
        open_rows = {(row.kind, row.record, row.field): row for row in rows.order_by("pk")}
        Drift.objects.filter(pk__in=[row.pk for key, row in open_rows.items() if key not in keys]).update(repaired_at=now)
        made, changed = [], []
        for one in differences[:MOST_STORED]:
            row = open_rows.get((one.kind, one.record, one.field))
            if row is None:
                row = Drift(organization=organization, kind=one.kind, record=one.record, field=one.field)
                made.append(row)
            else:
                changed.append(row)
            row.found_at, row.cut, row.expected, row.counted = now, cut, one.expected, one.counted
            if repair_id and one.kind not in ("period", "ledger"):
                row.repair_id, row.repaired_at = repair_id, repaired_at
        Drift.objects.bulk_create(made, batch_size=1000)
        changing = ["found_at", "cut", "expected", "counted", "repair_id", "repaired_at"]
        Drift.objects.bulk_update(changed, changing, batch_size=500)
    logger.info(
        "counters compared", extra={"organization_id": organization.pk, "differences": len(differences), "repair_id": repair_id}
    )


SERVER_KEY = "quotas:server"
"""The run id of the server that was seen last, on the server itself: a copy or an older state of it brings another's id along."""


def is_another_server() -> bool:
    """Is this another server than the one seen last, or was it started anew? From then on it is the one seen."""
    redis = sync_client()
    with translated():
        now = str(cast(Any, redis.info("server"))["run_id"])
        before = cast(Any, redis.set(SERVER_KEY, now, get=True))
    return before is None or before.decode() != now


def open_drift() -> dict[str, Any]:
    """For /health/status: how many differences stand, in how many organizations, and since when; None for when: none does."""
    with scope.everything():
        return Drift.objects.filter(repaired_at=None).aggregate(
            differences=Count("pk"), organizations=Count("organization_id", distinct=True), since=Min("found_at")
        )
