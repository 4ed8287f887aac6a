"""The usage stream as it stands: what waits there to be drained."""

import logging
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis as SyncRedis

from config.redis import translated
from quotas import engine, records
from quotas.records import Event

logger = logging.getLogger(__name__)

AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Unread:
    """`events`: entries up to `last`, the last id that the stream gave out (`0-0` if there is no stream). `added`: how many entries
    it ever got by then; `number`: how many were read."""

    last: str
    added: int
    number: int
    events: list[Event]


def read(redis: "SyncRedis", organization_id: int) -> Unread:
    """All entries of the stream. Those that cannot be read are left to the drain. Raises RedisUnavailable."""
    return _read(redis, organization_id, "-")


def read_after(redis: "SyncRedis", organization_id: int, seen: Unread) -> Unread | None:
    """The entries that came after an earlier reading; None if some of them are gone by now. Raises RedisUnavailable."""
    found = _read(redis, organization_id, f"({seen.last}")
    return found if found.number == found.added - seen.added else None


def _read(redis: "SyncRedis", organization_id: int, start: str) -> Unread:
    key = engine.stream_key(organization_id)
    with translated():
        if not redis.exists(key):
            return Unread("0-0", 0, 0, [])
        information = cast(Any, redis.xinfo_stream(key))
        last = information["last-generated-id"].decode()
        events: list[Event] = []
        number = 0
        while entries := cast(Any, redis.xrange(key, start, last, count=AT_ONCE)):
            number += len(entries)
            for stream_id, fields in entries:
                try:
                    events.append(records.read_event(stream_id, fields))
                except ValueError:
                    details = {"organization_id": organization_id, "id": stream_id.decode()}
                    logger.warning("an event cannot be read", extra=details)
            start = f"({entries[-1][0].decode()}"
    return Unread(last, information["entries-added"], number, events)
