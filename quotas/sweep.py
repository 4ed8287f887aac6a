"""Ends holds that nobody renews, drops old tombstones, and pushes config versions that a crash left unpublished.

Run by every ledger process; the scripts make it safe to do at once.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from redis import Redis as SyncRedis

from accounts.models import Organization
from billing import ledger
from config import scope
from config.redis import translated
from quotas import engine, publishing, rebuild

logger = logging.getLogger(__name__)

AT_ONCE = 50
ROUNDS = 40
"""An organization's turn ends after ROUNDS x AT_ONCE holds, so that one cannot keep the others waiting."""
PIECE = 500


def sweep(redis: "SyncRedis") -> int:
    """Sweeps every organization that has leases. The number of holds it ended as orphans. Raises RedisUnavailable."""
    return sum(sweep_organization(redis, organization_id) for organization_id in _members(redis, "leased"))


def sweep_organization(redis: "SyncRedis", organization_id: int, *, now_ms: int | None = None) -> int:
    """The number of orphans. `now_ms` in tests. Counters that are gone are rebuilt, so that their leases make sense again."""
    orphaned = 0
    for _ in range(ROUNDS):
        args = ("" if now_ms is None else now_ms, AT_ONCE)
        answer = engine.SWEEP.run(redis, engine.keys(organization_id), args)
        if answer[0] == b"COLD":
            rebuild.rebuild(organization_id, now_ms=now_ms)
            break
        orphaned += answer[2]
        if not answer[4]:
            break
    if orphaned:
        logger.warning("holds ended as orphans", extra={"organization_id": organization_id, "count": orphaned})
    return orphaned


def dirty(redis: "SyncRedis") -> list[int]:
    """Organizations whose usage stream has entries."""
    return _members(redis, "dirty")


def _members(redis: "SyncRedis", kind: str) -> list[int]:
    name = engine.dirty_key if kind == "dirty" else engine.leased_key
    with translated():
        pipeline = redis.pipeline(transaction=False)
        for number in engine.shards():
            pipeline.smembers(name(number))
        members = cast("list[set[bytes]]", pipeline.execute())
    return sorted(int(member) for of_shard in members for member in of_shard)


class Versions:
    """The versions of configuration and grants that this process has pushed. A full push heals a server with older data."""

    def __init__(self) -> None:
        self._pushed: dict[int, tuple[int, int]] = {}

    def push(self, redis: "SyncRedis", *, everything: bool = False) -> int:
        """Publishes what moved since the last push, or everything; the number pushed. Raises RedisUnavailable.

        One query, and one for each PIECE that moved.
        """
        with scope.everything():
            rows = list(Organization.objects.values_list("pk", "config_version", "grant_version"))
        moved = [(pk, version) for pk, version, grants in rows if everything or self._pushed.get(pk) != (version, grants)]
        for start in range(0, len(moved), PIECE):
            some = moved[start : start + PIECE]
            with scope.everything():
                granted = ledger.granted_of([pk for pk, _ in some])
            with translated():
                pipeline = redis.pipeline(transaction=False)
                queue: Callable[..., Any] = pipeline.execute_command
                for pk, version in some:
                    queue(*engine.PUBLISH.command(engine.keys(pk), publishing.publication(version, granted.get(pk))))
                    if everything:
                        pipeline.zcard(engine.leases_key(pk))
                        pipeline.exists(engine.stream_key(pk))
                replies = pipeline.execute(raise_on_error=False)
            self._look(redis, some, granted, replies, everything=everything)
        return len(moved)

    def _look(
        self,
        redis: "SyncRedis",
        some: list[tuple[int, int]],
        granted: Mapping[int, ledger.Granted],
        replies: list[Any],
        *,
        everything: bool,
    ) -> None:
        width = 3 if everything else 1
        for at, (pk, version) in enumerate(some):
            own = replies[at * width : (at + 1) * width]
            if isinstance(own[0], Exception):
                # Not loaded, most likely: the plain call loads it.
                engine.PUBLISH.run(redis, engine.keys(pk), publishing.publication(version, granted.get(pk)))
            self._pushed[pk] = (version, granted[pk].version if pk in granted else 0)
            if everything:
                # The lists of who has leases and news are hints; a lost one is made again here.
                with translated():
                    if own[1] and not isinstance(own[1], Exception):
                        redis.sadd(engine.leased_key(pk), pk)
                    if own[2] and not isinstance(own[2], Exception):
                        redis.sadd(engine.dirty_key(pk), pk)
