"""Sticky sessions: which account a conversation was on, so that it finds its prompt cache there again.

A session's entry is `home` or `home:standin:since`: when the home account cannot serve, a stand-in does, and the session
comes back when it can; a stand-in that has served for longer than a prompt cache lives becomes the home.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

HEADERS = ("session-id", "session_id", "conversation-id", "conversation_id", "thread-id", "thread_id", "x-session-id")
"""Spellings of one thing, first found wins. Not x-client-request-id: other clients make it anew for each request."""

ENTRY_SECONDS = 86_400
"""Longer than any prompt cache: encrypted reasoning in a conversation's history prefers the account that made it."""

HOME_MOVES_AFTER_MS = 1_800_000
"""A prompt cache unused for this long is taken for cold, so nothing is won by going back."""


@dataclass(frozen=True, slots=True)
class Sticky:
    home: int
    stand_in: int | None = None
    since_ms: int = 0


def session_key(
    organization_id: int,
    headers: Mapping[str, str],
    prompt_cache_key: str | None,
    opening: bytes,
) -> str | None:
    """A hash that names the conversation within its organization: 32 hex digits; None if nothing tells conversations apart.

    `headers` have lower-case names. The same value gives the same session under every spelling, and as prompt_cache_key.
    `opening` is what identifies a conversation by itself, e.g. its first message with instructions; the last resort.
    """
    for name in HEADERS:
        value = headers.get(name)
        if value:
            return _digest(organization_id, b"id", value.encode())
    if prompt_cache_key:
        return _digest(organization_id, b"id", prompt_cache_key.encode())
    if opening:
        return _digest(organization_id, b"opening", opening)
    return None


def _digest(organization_id: int, kind: bytes, value: bytes) -> str:
    hashed = hashlib.blake2b(value, digest_size=16, person=kind, salt=organization_id.to_bytes(8, "little"))
    return hashed.hexdigest()


def read(value: bytes | None) -> Sticky | None:
    """The entry as stored; None for none, or one that cannot be read."""
    if not value:
        return None
    parts = value.split(b":")
    try:
        if len(parts) == 3:
            return Sticky(int(parts[0]), int(parts[1]), int(parts[2]))
        return Sticky(int(parts[0]))
    except ValueError:
        return None


def written(entry: Sticky | None, account_id: int, now_ms: int) -> str:
    """What is stored once `account_id` serves a session whose entry was `entry`."""
    if entry is None or entry.home == account_id:
        return str(account_id)
    since = entry.since_ms if entry.stand_in is not None else now_ms
    if now_ms - since >= HOME_MOVES_AFTER_MS:
        return str(account_id)
    return f"{entry.home}:{account_id}:{since}"
