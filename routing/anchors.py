"""Anchors: what of a request names state that one upstream account holds, and which account that is known to be.

Owners are kept in Redis, per organization, whichever key or member goes on; for a day after they were last heard of. The owner of
a response is in the usage log too, which is asked when Redis does not know (`proxy.continuity`). Why each kind is treated as it is:
docs/decisions/0011-continuity.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from routing import live
from routing.errors import PREVIOUS_RESPONSE, OwnersDiffer
from routing.snapshots import PoolSnapshot

OWNER_SECONDS = 86_400


class Kind(StrEnum):
    RESPONSE = "response"
    """`previous_response_id`. The only kind that must have a known owner: every response comes through here."""
    CONVERSATION = "conversation"
    FILE = "file"
    ITEM = "item"
    """What an `item_reference` names."""
    TURN = "turn"
    """An `x-codex-turn-state` token."""
    COMPACTION = "compaction"
    """A compacted history, by a hash of its sealed content."""


NAMES = {
    Kind.RESPONSE: PREVIOUS_RESPONSE,
    Kind.CONVERSATION: "conversation",
    Kind.FILE: "file",
    Kind.ITEM: "item that is referred to",
    Kind.TURN: "turn",
    Kind.COMPACTION: "compacted history",
}


@dataclass(frozen=True, slots=True)
class Anchor:
    kind: Kind
    id: str = field(repr=False)

    @property
    def name(self) -> str:
        """For a sentence that says what is meant."""
        return NAMES[self.kind]


@dataclass(frozen=True, slots=True)
class Owned:
    """Who owns a request's anchors: `owner` (None: nobody is known to), found by the anchor `by`; of which nobody is known."""

    owner: int | None = None
    by: Anchor | None = None
    unknown: tuple[Anchor, ...] = ()

    @property
    def name(self) -> str:
        """For a sentence: what the owner is known by."""
        return PREVIOUS_RESPONSE if self.by is None else self.by.name

    @property
    def lost(self) -> Anchor | None:
        """The response that nobody is known to hold, if the request continues one."""
        return next((anchor for anchor in self.unknown if anchor.kind is Kind.RESPONSE), None)


NONE = Owned()


def ask_command(pool: PoolSnapshot, anchors: Sequence[Anchor]) -> tuple[str | bytes | int, ...]:
    """Asks for all owners at once; `read` takes the reply. At least one anchor."""
    return ("MGET", *(_key(pool, anchor) for anchor in anchors))


def read(anchors: Sequence[Anchor], reply: Sequence[bytes | None]) -> Owned:
    """All known owners are one, or OwnersDiffer."""
    found = Owned(unknown=tuple(anchor for anchor, value in zip(anchors, reply, strict=True) if not value))
    for anchor, value in zip(anchors, reply, strict=True):
        if value:
            found = joined(found, anchor, int(value))
    return found


def joined(owned: Owned, anchor: Anchor, owner: int) -> Owned:
    """The same with the owner of one more anchor. Raises OwnersDiffer."""
    if owned.owner is not None and owned.owner != owner:
        raise OwnersDiffer(owned.name, anchor.name)
    unknown = tuple(other for other in owned.unknown if other != anchor)
    return Owned(owner, anchor if owned.by is None else owned.by, unknown)


def record_commands(pool: PoolSnapshot, anchors: Iterable[Anchor], account_id: int) -> list[tuple[str | bytes | int, ...]]:
    """Keeps which account holds these, to be sent in one batch before the client hears of them."""
    return [("SET", _key(pool, anchor), account_id, "EX", OWNER_SECONDS) for anchor in anchors]


def _key(pool: PoolSnapshot, anchor: Anchor) -> str:
    return live.owner_key(pool.tenant_id, f"{anchor.kind.value}:{anchor.id}")
