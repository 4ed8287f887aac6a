"""How the pools of an organization stand, as one text: an open Pool page fetches itself again when it is another one."""

import hashlib
from typing import Any

from config import redis as weir_redis
from config.snapshot import Snapshot
from routing import live


def read(loaded: Snapshot) -> str:
    """Windows, states and running requests of the organization's own pools. One round trip. Raises RedisUnavailable."""
    pools = [pool for pool in loaded.routing.pools if pool.organization_id is not None]
    if not pools:
        return ""
    batch: Any = weir_redis.sync_client().pipeline(transaction=False)
    for pool in pools:
        batch.hgetall(live.live_key(pool))
        for account in pool.accounts:
            batch.zcard(live.slots_key(pool, account.account_id))
    with weir_redis.translated():
        replies = batch.execute()
    told = [sorted(reply.items()) if isinstance(reply, dict) else reply for reply in replies]
    return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest()
