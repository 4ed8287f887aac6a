"""Frozen configuration for the request path: loaded in one transaction, shared in memory, replaced when its version moves.

Each app registers a loader for its part; a `Snapshot` is all parts of one organization at one `config_version`. A domain
function that changes what the path relies on calls `bump` inside its transaction; on commit the number is published, and the
next admission on any process that still holds an older snapshot is told so and reloads.
"""

import asyncio
import contextvars
import logging
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from django.db import connection, transaction

from config import redis as weir_redis
from config import scope

logger = logging.getLogger(__name__)

T = TypeVar("T")

CHANGED_CHANNEL = "config:changed"
NEGATIVE_SECONDS = 5.0
NEGATIVE_SIZE = 10_000
POSITIVE_SIZE = 200_000
HELD_SIZE = 100
"""Organizations whose snapshot a process keeps for its pages."""

_loaders: dict[str, Callable[[int], object]] = {}
_publishers: list[Callable[[int, int], None]] = []
_grant_publishers: list[Callable[[int], None]] = []
_key_lookups: list[Callable[[str], int | None]] = []
_held: "dict[int, Snapshot]" = {}
_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="snapshot")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All parts of one organization's configuration as of `version`.

    `memo` holds what is derived from it (packed views, rate look-ups) and dies with it.
    """

    organization_id: int
    version: int
    parts: Mapping[str, Any] = field(repr=False)
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def accounts(self) -> Any:
        return self.parts["accounts"]

    @property
    def billing(self) -> Any:
        return self.parts["billing"]

    @property
    def quotas(self) -> Any:
        return self.parts["quotas"]

    @property
    def routing(self) -> Any:
        return self.parts["routing"]


def register_loader(name: str, load: Callable[[int], object]) -> None:
    """`load(organization_id)` runs in a REPEATABLE READ transaction, in a thread; it returns a frozen dataclass."""
    _loaders[name] = load


def register_publisher(publish_version: Callable[[int, int], None]) -> None:
    """`publish_version(organization_id, version)` tells the admission engine; called after the commit."""
    if publish_version not in _publishers:
        _publishers.append(publish_version)


def register_grant_publisher(publish_grants: Callable[[int], None]) -> None:
    """`publish_grants(organization_id)` tells the admission engine what was granted in all; called after the commit."""
    if publish_grants not in _grant_publishers:
        _grant_publishers.append(publish_grants)


def register_key_lookup(find: Callable[[str], int | None]) -> None:
    """`find(public_id)` gives the organization of a gateway key; one indexed query."""
    _key_lookups[:] = [find]


def bump(organization_id: int) -> int:
    """Adds 1 to the organization's config_version in the caller's transaction and publishes it on commit.

    Takes the organization's row lock until the commit, so numbers are published in the order of the changes.
    """
    with scope.organization(organization_id), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE accounts_organization SET config_version = config_version + 1 WHERE id = %s RETURNING config_version",
            [organization_id],
        )
        row = cursor.fetchone()
    if row is None:
        raise LookupError(f"organization {organization_id} does not exist")
    version = int(row[0])
    transaction.on_commit(partial(publish, organization_id, version), robust=True)
    return version


def bump_all(organization_ids: Iterable[int]) -> None:
    """`bump` for a shared row's users, in id order so that two of these cannot deadlock."""
    for organization_id in sorted(set(organization_ids)):
        bump(organization_id)


def bump_grants(organization_id: int) -> int:
    """Adds 1 to the organization's grant_version in the caller's transaction; what was granted is published on commit."""
    with scope.organization(organization_id), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE accounts_organization SET grant_version = grant_version + 1 WHERE id = %s RETURNING grant_version",
            [organization_id],
        )
        row = cursor.fetchone()
    if row is None:
        raise LookupError(f"organization {organization_id} does not exist")
    transaction.on_commit(partial(publish_grants, organization_id), robust=True)
    return int(row[0])


def publish_grants(organization_id: int) -> None:
    """Tells the engine. A failure is logged; the ledger process pushes what was left behind every 5 seconds."""
    try:
        for publish_all in _grant_publishers:
            publish_all(organization_id)
    except Exception:
        logger.warning("grants not published", extra={"organization_id": organization_id}, exc_info=True)


def publish(organization_id: int, version: int) -> None:
    """Tells every process. A failure is logged; the ledger process pushes what was left behind every 5 seconds."""
    try:
        for publish_version in _publishers:
            publish_version(organization_id, version)
        weir_redis.sync_client().publish(CHANGED_CHANNEL, f"{organization_id}:{version}")
    except Exception:
        logger.warning("version not published", extra={"organization_id": organization_id, "version": version}, exc_info=True)


def load(organization_id: int) -> Snapshot:
    """Reads every part in one REPEATABLE READ transaction. Raises LookupError for an unknown organization."""
    in_test_transaction = connection.in_atomic_block
    with scope.organization(organization_id), transaction.atomic():
        with connection.cursor() as cursor:
            if not in_test_transaction:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute("SELECT config_version FROM accounts_organization WHERE id = %s", [organization_id])
            row = cursor.fetchone()
        if row is None:
            raise LookupError(f"organization {organization_id} does not exist")
        parts = {name: read(organization_id) for name, read in _loaders.items()}
    return Snapshot(organization_id=organization_id, version=int(row[0]), parts=MappingProxyType(parts))


def current(organization_id: int) -> Snapshot:
    """As `load`, for pages and other synchronous readers: one query while the configuration stays, however many keys there are.

    A snapshot that this process has loaded before is used as long as its version is the database's. Within a transaction, whose
    changes may be taken back, it is loaded.
    """
    if connection.in_atomic_block:
        return load(organization_id)
    with scope.organization(organization_id), connection.cursor() as cursor:
        cursor.execute("SELECT config_version FROM accounts_organization WHERE id = %s", [organization_id])
        row = cursor.fetchone()
    held = _held.get(organization_id)
    if held is not None and row is not None and held.version == int(row[0]):
        return held
    loaded = load(organization_id)
    while len(_held) >= HELD_SIZE:
        # The one that came first; another thread may have been here before.
        _held.pop(next(iter(_held), organization_id), None)
    _held[organization_id] = loaded
    return loaded


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Runs SQL in the snapshot threads, in the caller's scope, and gives the connection back to the pool afterwards."""

    def run() -> T:
        try:
            return call(*args)
        finally:
            connection.close()

    return await asyncio.get_running_loop().run_in_executor(_threads, contextvars.copy_context().run, run)


class SnapshotCache:
    """The snapshots of one process (one event loop). Single flight per organization."""

    def __init__(self) -> None:
        self._snapshots: dict[int, Snapshot] = {}
        self._flights: dict[int, asyncio.Task[Snapshot]] = {}
        self._organizations: dict[str, int] = {}
        self._unknown: dict[str, float] = {}
        self._lookups: dict[str, asyncio.Task[int | None]] = {}

    def peek(self, organization_id: int) -> Snapshot | None:
        """What is held now, never a query."""
        return self._snapshots.get(organization_id)

    async def get(self, organization_id: int, *, at_least: int = 0) -> Snapshot:
        """The organization's snapshot, loaded once for all who ask; never older than `at_least` if the database is not.

        Raises LookupError for an unknown organization, and what the database raises.
        """
        held = self._snapshots.get(organization_id)
        if held is not None and held.version >= at_least:
            return held
        loaded = held
        # A flight that began before the wanted change was committed may return an older version: then one more, our own.
        for _ in range(2):
            flight = self._flights.get(organization_id)
            if flight is None:
                flight = asyncio.ensure_future(self._load(organization_id))
                self._flights[organization_id] = flight
                flight.add_done_callback(lambda _done: self._flights.pop(organization_id, None))
            loaded = await asyncio.shield(flight)
            if loaded.version >= at_least:
                break
        assert loaded is not None
        return loaded

    async def _load(self, organization_id: int) -> Snapshot:
        loaded = await in_thread(load, organization_id)
        held = self._snapshots.get(organization_id)
        if held is None or loaded.version >= held.version:
            self._snapshots[organization_id] = loaded
            return loaded
        return held

    async def organization_of(self, public_id: str) -> int | None:
        """The organization of a gateway key's public id; None if there is no such key. SQL only on a miss."""
        known = self._organizations.get(public_id)
        if known is not None:
            return known
        until = self._unknown.get(public_id)
        if until is not None and time.monotonic() < until:
            return None
        lookup = self._lookups.get(public_id)
        if lookup is None:
            lookup = asyncio.ensure_future(in_thread(_key_lookups[0], public_id))
            self._lookups[public_id] = lookup
            lookup.add_done_callback(lambda _done: self._lookups.pop(public_id, None))
        found = await asyncio.shield(lookup)
        if found is None:
            while len(self._unknown) >= NEGATIVE_SIZE:
                del self._unknown[next(iter(self._unknown))]
            self._unknown[public_id] = time.monotonic() + NEGATIVE_SECONDS
        else:
            if len(self._organizations) >= POSITIVE_SIZE:
                self._organizations.clear()
            self._organizations[public_id] = found
        return found

    def forget_unknown_keys(self) -> None:
        """A key may have been made: ids that were unknown are looked up again."""
        self._unknown.clear()

    def forget(self) -> None:
        """Drops everything, for tests."""
        self.__init__()  # type: ignore[misc]

    async def listen(self) -> None:
        """Hears changes for ever: clears the negative cache and reloads held organizations ahead of their next request."""
        async for message in weir_redis.subscribe(CHANGED_CHANNEL, on_gap=self.forget_unknown_keys):
            self.forget_unknown_keys()
            organization, _, version = message.decode().partition(":")
            held = self._snapshots.get(int(organization))
            if held is not None and held.version < int(version):
                try:
                    await self.get(int(organization), at_least=int(version))
                except Exception:
                    # The next request loads it, or says what is wrong.
                    logger.warning("snapshot not reloaded", extra={"organization_id": int(organization)}, exc_info=True)


_caches: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SnapshotCache]" = weakref.WeakKeyDictionary()


def cache() -> SnapshotCache:
    """The running event loop's cache."""
    loop = asyncio.get_running_loop()
    held = _caches.get(loop)
    if held is None:
        held = _caches[loop] = SnapshotCache()
    return held
