"""How an organization's pool stands, for the overview: here, because quotas does not know routing. No secret, no ciphertext."""

from datetime import datetime

from config import snapshot
from config.redis import RedisUnavailable
from quotas.overview_parts import PoolLook, PoolReset
from routing import standing
from routing.models import PoolAccount
from routing.outlook import HORIZON

MICRO = 1_000_000


def find(organization_id: int, now: datetime) -> PoolLook | None:
    """Of all own pools together; None for an organization without accounts. Two queries and a round trip for each pool."""
    pools = [pool for pool in snapshot.current(organization_id).routing.pools if pool.organization_id is not None and pool.accounts]
    if not pools:
        return None
    accounts = PoolAccount.objects.without_secrets().filter(pool_id__in=[pool.pool_id for pool in pools])
    rows = {row.pk: row for row in accounts}
    try:
        found = [one for pool in pools for one in standing.of_pool(pool, rows, standing.read(pool))]
    except RedisUnavailable:
        return PoolLook(0, 0, (), is_known=False)
    if not found:
        return None
    left, size = standing.total(found)
    ahead = [
        PoolReset(one.row.label, one.week.resets_at, one.week.percent, int((one.week_size - one.week_left) * MICRO))
        for one in found
        if one.week is not None
        and one.week.resets_at is not None
        and now < one.week.resets_at <= now + HORIZON
        and one.week_left < one.week_size
        and one.state not in (standing.PAUSED, standing.NEEDS_SIGN_IN)
    ]
    ahead.sort(key=lambda reset: (reset.at, reset.label))
    return PoolLook(int(left * MICRO), int(size * MICRO), tuple(ahead), is_known=True)
