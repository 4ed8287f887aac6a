"""Hard continuation: who holds what a request names, and who will hold what its answer brings.

Owners are kept in Redis and asked along with the admission. The usage log is asked, in a thread, only for a response that Redis
does not know: after a day, or after Redis lost its memory. Why: docs/decisions/0011-continuity.md.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence

from django.db import Error as DatabaseTrouble

from billing import origins
from config import patience
from config.redis import RedisUnavailable, ReplyError
from config.snapshot import in_thread
from proxy import anchors, metering
from proxy.errors import Degraded
from proxy.lifespan import Resources
from proxy.sse import Event
from routing import anchors as owners
from routing import selection
from routing.anchors import Anchor, Kind
from routing.choice import Live
from routing.errors import OwnerUnknown
from routing.selection import Lease
from routing.snapshots import PoolSnapshot

logger = logging.getLogger(__name__)

LOOKUP_SECONDS = 2.0
"""How long the usage log is asked for an owner; then nobody can say whether the response exists."""
CONTINUED = frozenset({Kind.RESPONSE, Kind.COMPACTION})
"""What a client names in its very next request, so that recording it is waited for. A turn's token comes back after its answer;
items that a stored response holds are mostly sent in full, and are not worth a wait before each answer's end."""


MOST_MADE = 32
"""What one answer may bring: its id, its last items, compactions. An endpoint of a tenant's own could name a million, which all
tenants' Redis would keep for a day."""
UNREADABLE = "invalid_encrypted_content"


async def stay(resources: Resources, lease: Lease) -> None:
    """The account could not read what the session's own had sealed; the client is told, and the session stays with its owner."""
    try:
        await selection.stay(resources.redis, lease)
    except (RedisUnavailable, ReplyError):
        logger.warning("a session was not sent back", extra={"account": lease.account.uuid})


async def resolved(resources: Resources, pool: PoolSnapshot, live: Live) -> Live:
    """`live` with the owner of the response that the request continues, which the usage log may know where Redis does not.

    Raises OwnerUnknown, OwnersDiffer; Degraded if nobody can say.
    """
    lost = live.owned.lost
    if lost is None:
        return live
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            with patience.statements_within(LOOKUP_SECONDS):
                owner = await in_thread(_logged_owner, pool.tenant_id, lost.id, resources)
    except (TimeoutError, DatabaseTrouble) as error:
        raise Degraded("The gateway cannot look up the previous response at the moment. Try again in a few seconds.") from error
    if owner is None:
        raise OwnerUnknown
    resources.spawn(_record(resources, pool, [lost], owner))
    return dataclasses.replace(live, owned=owners.joined(live.owned, lost, owner))


def _logged_owner(organization_id: int, response_id: str, resources: Resources) -> int | None:
    return origins.account_of(organization_id, response_id, now=resources.now())


async def _heard(told: "asyncio.Future[object]", pool: PoolSnapshot) -> None:
    try:
        await told
    except (RedisUnavailable, ReplyError):
        logger.warning("owners were not recorded", extra={"pool": pool.uuid})


async def _record(resources: Resources, pool: PoolSnapshot, made: Iterable[Anchor], account_id: int) -> None:
    try:
        await resources.redis.batch(owners.record_commands(pool, made, account_id))
    except (RedisUnavailable, ReplyError):
        logger.warning("owners were not recorded", extra={"pool": pool.uuid})


class Keeping:
    """What one attempt's answer brings, and with which account it stays: told to Redis before the client hears of it.

    `asked`: the request's own anchors; an account that answers a request with them holds them. `is_stored`: the upstream keeps the
    response, so that it can be continued, and its items be referred to. `is_chained`: it can be continued while its socket lives.
    """

    def __init__(self, resources: Resources, lease: Lease, asked: Sequence[Anchor], *, is_stored: bool, is_chained: bool) -> None:
        self._resources = resources
        self._lease = lease
        self._is_stored = is_stored
        self._is_continued = is_stored or is_chained
        self._pending = dict.fromkeys(asked)
        self._response_id = ""
        self._left = MOST_MADE

    def see_head(self, headers: Mapping[str, str]) -> None:
        """The upstream's head, which may issue a turn's token."""
        self._pending.update(dict.fromkeys(anchors.turn_of(headers)))

    def see(self, events: Iterable[Event], response_id: str) -> bool:
        """Events before they are passed on, and the response's id as far as it is known. True: `record` is to be called first."""
        is_new = False
        for event in events:
            if event.data is None:
                continue
            if event.name == metering.ITEM_DONE:
                is_new |= self._add(anchors.made_by_item(event.data))
            elif event.name in metering.TERMINAL:
                is_new |= self._add(anchors.made_by_end(event.data, is_stored=self._is_stored))
        if response_id and response_id != self._response_id:
            self._response_id = response_id
            if self._is_continued:
                is_new |= self._add([Anchor(Kind.RESPONSE, response_id)])
        return is_new

    def see_whole(self, body: bytes, response_id: str) -> None:
        """An answer that is no stream."""
        self._add(anchors.made_by_answer(body, is_stored=self._is_stored))
        self.see((), response_id)

    async def record(self) -> None:
        """Tells what is not told yet; waits for it only if the client may go on from it at once."""
        if not self._pending:
            return
        made, self._pending = self._pending, {}
        commands = owners.record_commands(self._lease.pool, made, self._lease.account.account_id)
        # Issued at once and in one write, whether waited for or not.
        telling = [self._resources.redis.call(*command) for command in commands]
        for anchor, told in zip(made, telling, strict=True):
            if anchor.kind not in CONTINUED:
                self._resources.keep(told)
        for anchor, told in zip(made, telling, strict=True):
            if anchor.kind in CONTINUED:
                await _heard(told, self._lease.pool)

    def _add(self, made: Iterable[Anchor]) -> bool:
        is_new = False
        for anchor in made:
            if anchor not in self._pending and self._left > 0:
                self._left -= 1
                self._pending[anchor] = None
                is_new = True
        return is_new
