"""Telling the processes that an account's credential moved: the number travels through the live state, the secret never does."""

import logging

from config.redis import RedisUnavailable
from routing import live

logger = logging.getLogger(__name__)


def publish(pool_id: int, organization_id: int | None, account_id: int, version: int) -> None:
    """A failure costs one 401 and a second look at the database, so it is logged."""
    try:
        live.publish_version(pool_id, organization_id, account_id, version)
    except RedisUnavailable:
        logger.warning("credential version not published", extra={"account_id": account_id, "version": version})
