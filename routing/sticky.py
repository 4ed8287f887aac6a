"""Sticky sessions: which account a conversation was on, so that it finds its prompt cache there again.

When the home account cannot serve, a stand-in does, and the session comes back when it can; a stand-in that has served for longer
than a prompt cache lives becomes the home. The entry also tells what the session's turns cost and what is held for them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

HEADERS = (
    "session-id", "session_id", "conversation-id", "conversation_id", "thread-id", "thread_id", "x-session-id",
    "x-claude-code-session-id",
)  # fmt: skip
"""Spellings of one thing, first found wins. Not x-client-request-id: other clients make it anew for each request."""

ENTRY_SECONDS = 86_400
"""Longer than any prompt cache: encrypted reasoning in a conversation's history prefers the account that made it."""

HOME_MOVES_AFTER_MS = 1_800_000
"""A prompt cache unused for this long is taken for cold, so nothing is won by going back."""


@dataclass(frozen=True, slots=True)
class Sticky:
    """A session's entry, in Redis these numbers between colons, in this order (`lua/holds.lua` writes it).

    `since_ms`: when the stand-in began; `served_ms`: when either served last. In micro-credits: `mean` of the session's turns, 0
    before the first has ended; `spent` in the turn that runs; `turn` what was predicted for it; `held` on the account `holder`,
    until the minute `lapses` of the epoch.
    """

    home: int
    stand_in: int | None = None
    since_ms: int = 0
    served_ms: int = 0
    mean: int = 0
    spent: int = 0
    turn: int = 0
    held: int = 0
    lapses: int = 0
    holder: int = 0

    @property
    def last(self) -> int:
        """The account that served the session last."""
        return self.stand_in or self.home

    def is_warm(self, account_id: int, now_ms: int) -> bool:
        """Did this account serve the session within a prompt cache's life?"""
        if account_id == self.last:
            return now_ms - self.served_ms < HOME_MOVES_AFTER_MS
        return account_id == self.home and now_ms - self.since_ms < HOME_MOVES_AFTER_MS

    def held_on(self, account_id: int | None, now_ms: int) -> int:
        """What is held for the session on an account, micro-credits."""
        return self.held if account_id == self.holder and self.lapses * 60_000 > now_ms else 0


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
    try:
        home, stand_in, *rest = map(int, value.split(b":"))
        return Sticky(home, stand_in or None, *rest)
    except (ValueError, TypeError):
        return None


def written(entry: Sticky | None, account_id: int, now_ms: int, *, is_stand_in: bool = True) -> str:
    """`home:stand_in:since` of the entry once `account_id` serves a session whose entry was `entry`.

    `is_stand_in`: the home could not serve; else the session has left it for good.
    """
    if entry is None or entry.home == account_id or not is_stand_in:
        return f"{account_id}:0:0"
    since = entry.since_ms if entry.stand_in is not None else now_ms
    if now_ms - since >= HOME_MOVES_AFTER_MS:
        return f"{account_id}:0:0"
    return f"{entry.home}:{account_id}:{since}"
