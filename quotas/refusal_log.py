"""Why a key was refused: noted by the gateway after its answer, kept per key, code, limit and minute, shown for 30 days.

The gateway adds an entry to the organization's stream of refusals and waits for nothing; the ledger process moves the entries
into `Refusal` rows. Nothing here is money: a note that Redis does not take is lost, and the stream keeps the newest ones.
"""

import asyncio
import logging
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import msgspec
from django.db import InterfaceError, OperationalError, connection, transaction

from accounts.models import Organization
from accounts.snapshots import KeySnapshot
from config import scope
from config.errors import DomainError
from config.redis import Redis, RedisUnavailable, shard, translated
from config.snapshot import Snapshot
from quotas import engine
from quotas.errors import Refused
from quotas.models import Refusal

if TYPE_CHECKING:
    from redis import Redis as SyncRedis

logger = logging.getLogger(__name__)

CODES = frozenset(
    {
        "invalid_api_key",
        "model_not_found",
        "model_unpriced",
        "model_not_allowed",
        "reasoning_effort_not_allowed",
        "fast_mode_not_allowed",
        "invalid_json",
        "payload_too_large",
        "invalid_encoding",
        "previous_response_not_found",
        "limit_reached",
        "rate_limit_exceeded",
        "concurrency_limit",
        "pool_exhausted",
        "pool_busy",
        "no_account_available",
        "draining",
        "degraded",
        "upstream_unavailable",
    }
)
"""What is noted: the refusals of design section 8, as far as they belong to a key that is known."""

MOST_ENTRIES = 1000
"""About so many entries of an organization wait for the ledger process; older ones make room."""
MOST_UNANSWERED = 256
"""Notes that Redis has not answered yet, of one client: more are dropped rather than kept in memory."""
BATCH = 500
KEPT = timedelta(days=30)
PIECE = 5000
LOCK = 0x77656972
"""First key of the advisory lock; the second is the organization."""


def stream_key(organization_id: int) -> str:
    """The stream of refusals."""
    return f"quotas:{shard(organization_id)}:{organization_id}:r"


def refused_key(number: int) -> str:
    """Set: organizations of a shard whose stream of refusals has entries."""
    return f"quotas:{shard(number)}:refused"


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """One refusal as the stream carries it. Amounts are micro-credits for credits, else counts; `resets_at` unix seconds."""

    key_id: int
    member_id: int
    code: str
    team_id: int | None = None
    scope: str = ""
    scope_name: str = ""
    metric: str = ""
    window: str = ""
    limit_uuid: str = ""
    limit: int | None = None
    used: int | None = None
    held: int | None = None
    need: int | None = None
    resets_at: int | None = None
    model: str = ""
    message: str = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Note)


# ------------------------------------------------------------------------------------------------------------- noting

_unanswered: "weakref.WeakKeyDictionary[Redis, int]" = weakref.WeakKeyDictionary()


def note(redis: Redis, snapshot: Snapshot, key: KeySnapshot, refusal: DomainError, *, model: str = "", told: str = "") -> None:
    """Notes that a request of the key was refused. Returns at once and never raises; leaves no task behind.

    Call it once the answer has gone out. `told` takes the place of the refusal's message, which the client was given.
    """
    if refusal.code not in CODES:
        return
    waiting = _unanswered.get(redis, 0)
    if waiting >= MOST_UNANSWERED:
        return
    try:
        entry = _encoder.encode(_note(key, refusal, model, told))
        organization_id = snapshot.organization_id
        # Both leave in one write: the second tells the ledger process where to look.
        stream = stream_key(organization_id)
        added = redis.call("XADD", stream, "MAXLEN", "~", MOST_ENTRIES, "*", "e", entry)
        hinted = redis.call("SADD", refused_key(organization_id), organization_id)
    except Exception:
        logger.exception("a refusal was not noted")
        return
    _unanswered[redis] = waiting + 2
    for future in (added, hinted):
        future.add_done_callback(lambda done: _answered(redis, done))


def _answered(redis: Redis, done: "asyncio.Future[Any]") -> None:
    _unanswered[redis] = _unanswered.get(redis, 1) - 1
    if not done.cancelled() and (error := done.exception()) is not None:
        logger.info("a refusal was not noted", extra={"reason": type(error).__name__})


def _note(key: KeySnapshot, refusal: DomainError, model: str, told: str) -> Note:
    about: dict[str, Any] = {"resets_at": refusal.facts.get("resets_at")}
    if isinstance(refusal, Refused):
        about = {
            "scope": refusal.scope,
            "scope_name": _text(refusal.scope_name, 120),
            "metric": refusal.metric,
            "window": refusal.window,
            "limit_uuid": refusal.limit_uuid,
            "limit": refusal.limit,
            "used": refusal.used,
            "held": refusal.held,
            "need": refusal.need,
            "resets_at": refusal.resets_at,
        }
    if about["resets_at"] is not None:
        about["resets_at"] = int(about["resets_at"])
    return Note(
        key_id=key.key_id,
        member_id=key.member_id,
        team_id=key.team_id,
        code=refusal.code,
        model=_text(model, 120),
        message=_text(told or refusal.message, 500),
        **about,
    )


def _text(text: str, longest: int) -> str:
    """As a database takes it and a page shows it: what the client sent may hold anything."""
    cut = text[:longest].encode("utf-8", "replace").decode()
    return "".join(character if character.isprintable() else " " for character in cut)


# ------------------------------------------------------------------------------------------------------------ draining


@dataclass(frozen=True, slots=True)
class _Entry:
    """A note and when it was made: the server's millisecond, and the entry's number within it as microseconds.

    So no two entries of a stream have one time, and what a row has counted already is told by its `last_at`.
    """

    at: datetime
    note: Note

    @property
    def row(self) -> tuple[Any, ...]:
        note = self.note
        limit_uuid = UUID(note.limit_uuid) if note.limit_uuid else None
        minute = self.at.replace(second=0, microsecond=0)
        return note.key_id, note.code, note.scope, note.metric, note.window, limit_uuid, minute


def drain(redis: "SyncRedis") -> int:
    """Moves what waits into rows, a batch of every organization; how many entries. Any number of processes may run it at once.

    Raises RedisUnavailable and what says that the database is away; another trouble of one organization is logged.
    """
    done = 0
    with translated():
        pipeline = redis.pipeline(transaction=False)
        for number in engine.shards():
            pipeline.smembers(refused_key(number))
        waiting = cast("list[set[bytes]]", pipeline.execute())
    for organization_id in sorted(int(member) for of_shard in waiting for member in of_shard):
        try:
            done += drain_organization(redis, organization_id)
        except (RedisUnavailable, OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("refusals were not kept", extra={"organization_id": organization_id})
    return done


def drain_organization(redis: "SyncRedis", organization_id: int) -> int:
    """One batch; 0 if another process has it. Entries leave the stream after the commit; one that comes again is counted once."""
    stream = stream_key(organization_id)
    with scope.organization(organization_id), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [LOCK, organization_id % 2**31])
            if not cast(Any, cursor.fetchone())[0]:
                return 0
        with translated():
            raw = cast(Any, redis.xrange(stream, count=BATCH))
        if raw and Organization.objects.filter(pk=organization_id).exists():
            _keep(organization_id, _decoded(organization_id, raw))
    with translated():
        if raw:
            milliseconds, _, number = raw[-1][0].decode().partition("-")
            redis.xtrim(stream, minid=f"{milliseconds}-{int(number) + 1}", approximate=False)
        if len(raw) < BATCH:
            # In this order: whoever adds an entry after the look adds the hint again.
            redis.srem(refused_key(organization_id), organization_id)
            if redis.xlen(stream):
                redis.sadd(refused_key(organization_id), organization_id)
    return len(raw)


def _decoded(organization_id: int, raw: Iterable[tuple[bytes, dict[bytes, bytes]]]) -> list[_Entry]:
    entries = []
    for stream_id, fields in raw:
        milliseconds, _, number = stream_id.decode().partition("-")
        at = datetime.fromtimestamp(int(milliseconds) // 1000, UTC)
        at = at.replace(microsecond=int(milliseconds) % 1000 * 1000 + min(int(number), 999))
        try:
            entries.append(_Entry(at, _decoder.decode(fields[b"e"])))
        except (KeyError, msgspec.MsgspecError):
            logger.warning("an entry is no refusal", extra={"organization_id": organization_id, "stream_id": stream_id.decode()})
    return entries


def _keep(organization_id: int, entries: list[_Entry]) -> None:
    """One row per key, code, limit and minute, with the newest facts. The caller holds the organization's lock. Three queries."""
    if not entries:
        return
    rows = Refusal.objects.filter(organization_id=organization_id)
    held = {_row(row): row for row in rows.filter(minute__in={entry.row[-1] for entry in entries})}
    new: dict[tuple[Any, ...], Refusal] = {}
    changed: dict[tuple[Any, ...], Refusal] = {}
    for entry in entries:
        row = held.get(entry.row)
        if row is None:
            row = held[entry.row] = new[entry.row] = Refusal(organization_id=organization_id, minute=entry.row[-1], count=0)
        elif entry.at <= row.last_at:
            continue
        elif entry.row not in new:
            changed[entry.row] = row
        _update(row, entry)
    Refusal.objects.bulk_create(new.values())
    Refusal.objects.bulk_update(changed.values(), [*_FACTS, "resets_at", "limit_uuid", "count", "last_at"])


_TEXTS = ("code", "scope", "scope_name", "metric", "window", "model", "message")
_NUMBERS = ("key_id", "member_id", "team_id", "limit", "used", "held", "need")
_FACTS = (*_TEXTS, *_NUMBERS)


def _update(row: Refusal, entry: _Entry) -> None:
    note = entry.note
    for name in _FACTS:
        setattr(row, name, getattr(note, name))
    row.limit_uuid = UUID(note.limit_uuid) if note.limit_uuid else None
    row.resets_at = None if note.resets_at is None else datetime.fromtimestamp(note.resets_at, UTC)
    row.count += 1
    row.last_at = entry.at


def _row(row: Refusal) -> tuple[Any, ...]:
    return row.key_id, row.code, row.scope, row.metric, row.window, row.limit_uuid, row.minute


# ------------------------------------------------------------------------------------------------------------- keeping


def forget_old(*, now: datetime) -> int:
    """Deletes rows of more than KEPT ago, of every organization, in pieces; how many."""
    gone = 0
    with scope.everything():
        while True:
            old = list(Refusal.objects.filter(last_at__lt=now - KEPT).order_by().values_list("pk", flat=True)[:PIECE])
            if not old:
                return gone
            gone += Refusal.objects.filter(pk__in=old).delete()[0]
