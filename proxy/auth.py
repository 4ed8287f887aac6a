"""Bearer key to the snapshot it may use. In memory on the warm path: no query, no round trip."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import Error as DatabaseTrouble

from accounts import keys
from accounts.snapshots import KeySnapshot
from config import snapshot as config_snapshot
from config.redis import Redis
from config.snapshot import Snapshot
from proxy.errors import Degraded, InvalidApiKey
from quotas import admission

REFUSAL = "Incorrect API key provided."
"""The same for every reason: missing, wrong, revoked, expired, suspended."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request this is."""

    snapshot: Snapshot
    key: KeySnapshot


async def identify(
    headers: Mapping[str, str], *, now: datetime, redis: Redis, at_least: int = 0, takes_x_api_key: bool = False
) -> Caller:
    """The caller named by the `authorization` header, judged by a snapshot of version `at_least` or newer.

    `takes_x_api_key`: the key may come in `x-api-key` as well, as Anthropic's clients send it; two that differ are none.

    A key that is good by the snapshot in hand is proved by the admission, which knows the newest version. One that is not is
    judged again by the newest, for a round trip: it may have been made or rotated, or its organization resumed, a moment ago.
    Raises InvalidApiKey; Degraded if Redis or the database is needed and does not answer.
    """
    text = _presented(headers, takes_x_api_key=takes_x_api_key)
    parsed = keys.parse(text)
    if parsed is None:
        raise InvalidApiKey(REFUSAL)
    cache = config_snapshot.cache()
    try:
        organization_id = await cache.organization_of(parsed.public_id)
        if organization_id is None:
            raise InvalidApiKey(REFUSAL)
        snapshot = await cache.get(organization_id, at_least=at_least)
        key = _usable(snapshot, parsed.public_id, text, now)
        if key is None:
            newest = await admission.newest_version(redis, organization_id)
            if newest is None or newest > snapshot.version:
                snapshot = await cache.get(organization_id, at_least=newest or snapshot.version + 1)
                key = _usable(snapshot, parsed.public_id, text, now)
    except LookupError as error:
        raise InvalidApiKey(REFUSAL) from error
    except DatabaseTrouble as error:
        raise Degraded("The gateway cannot read its configuration at the moment. Try again in a few seconds.") from error
    if key is None:
        raise _refused(snapshot, parsed.public_id, text, now)
    return Caller(snapshot, key)


def _presented(headers: Mapping[str, str], *, takes_x_api_key: bool) -> str:
    """The text that is shown as a key; "" where there is none, or where two are and nobody can say which is meant."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    bearer = text.strip() if scheme.lower() == "bearer" else ""
    if not takes_x_api_key:
        return bearer
    plain = headers.get("x-api-key", "").strip()
    if scheme and plain and plain != bearer:
        return ""
    return plain or bearer


def _usable(snapshot: Snapshot, public_id: str, text: str, now: datetime) -> KeySnapshot | None:
    key: KeySnapshot | None = snapshot.accounts.keys.get(public_id)
    if key is None or key.is_expired(now) or not snapshot.accounts.is_active or not keys.verify(text, key, now=now):
        return None
    return key


def _refused(snapshot: Snapshot, public_id: str, text: str, now: datetime) -> InvalidApiKey:
    """One answer for every reason; who has proved to hold the key finds the reason on My key."""
    key: KeySnapshot | None = snapshot.accounts.keys.get(public_id)
    told = ""
    if key is not None and keys.is_given_up(text, key, now=now):
        told = f"The secret of the key {key.name} was rotated, and the old one has ended."
    elif key is not None and keys.verify(text, key, now=now):
        told = "The organization is suspended." if not snapshot.accounts.is_active else f"The key {key.name} has expired."
    return InvalidApiKey(REFUSAL, caller=Caller(snapshot, key) if key is not None and told else None, told=told)
