"""Tells the engine which config version is the newest, so that admissions with an older snapshot are refused as stale."""

from config.redis import sync_client
from quotas import engine


def publish_version(organization_id: int, version: int) -> None:
    """Called after the commit that made `version`. Monotone: an older number changes nothing. Raises RedisUnavailable.

    Counters that are not there need no telling: their rebuild reads the version from the database.
    """
    engine.PUBLISH.run(sync_client(), engine.keys(organization_id), ("", version, "", 0))
