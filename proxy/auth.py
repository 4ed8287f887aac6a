"""Bearer key to the snapshot it may use. In memory on the warm path: no query, no round trip."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import Error as DatabaseTrouble

from accounts import keys
from accounts.snapshots import KeySnapshot
from config import snapshot as config_snapshot
from config.snapshot import Snapshot
from proxy.errors import Degraded, InvalidApiKey

REFUSAL = "Incorrect API key provided."
"""The same for every reason: missing, wrong, revoked, expired, suspended."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request this is."""

    snapshot: Snapshot
    key: KeySnapshot


async def identify(headers: Mapping[str, str], *, now: datetime, at_least: int = 0) -> Caller:
    """The caller named by the `authorization` header, judged by a snapshot of version `at_least` or newer.

    Raises InvalidApiKey; Degraded if the database is needed and does not answer.
    """
    scheme, _, text = headers.get("authorization", "").partition(" ")
    text = text.strip()
    parsed = keys.parse(text) if scheme.lower() == "bearer" else None
    if parsed is None:
        raise InvalidApiKey(REFUSAL)
    cache = config_snapshot.cache()
    try:
        organization_id = await cache.organization_of(parsed.public_id)
        if organization_id is None:
            raise InvalidApiKey(REFUSAL)
        snapshot = await cache.get(organization_id, at_least=at_least)
    except LookupError as error:
        raise InvalidApiKey(REFUSAL) from error
    except DatabaseTrouble as error:
        raise Degraded("The gateway cannot read its configuration at the moment. Try again in a few seconds.") from error
    key = snapshot.accounts.keys.get(parsed.public_id)
    if key is None or not keys.verify(text, key) or key.is_expired(now) or not snapshot.accounts.is_active:
        raise InvalidApiKey(REFUSAL)
    return Caller(snapshot, key)
