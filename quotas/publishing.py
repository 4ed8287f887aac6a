"""Tells the engine which config version is the newest, so that admissions with an older snapshot are refused as stale; and what
was granted in all, so that a purchase holds on the very next request."""

from billing import ledger
from config import scope
from config.redis import sync_client
from quotas import engine


def publish_version(organization_id: int, version: int) -> None:
    """Called after the commit that made `version`. Monotone: an older number changes nothing. Raises RedisUnavailable.

    Counters that are not there need no telling: their rebuild reads the version from the database.
    """
    engine.PUBLISH.run(sync_client(), engine.keys(organization_id), ("", version, "", 0))


def publish_grants(organization_id: int) -> None:
    """Called after the commit that raised the grant version. Absolute and monotone: repeats and reorderings do no harm.

    Reads what is true by now, which may be newer than what was committed. Raises RedisUnavailable.
    """
    with scope.organization(organization_id):
        granted = ledger.granted(organization_id)
    engine.PUBLISH.run(sync_client(), engine.keys(organization_id), publication("", granted))


def publication(version: int | str, granted: ledger.Granted | None) -> tuple[int | str, ...]:
    """The arguments of the publish script; '' and None leave what the engine knows."""
    if granted is None:
        return ("", version, "", 0)
    return ("", version, granted.version, granted.total)
