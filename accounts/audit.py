"""Who did what to which object. Events are added in the transaction of what they tell, and never changed.

Each event is a link of a chain: its organization's, or the install's for events without one. The database numbers it at the
commit (migration 0009) and keeps SHA-256 over `encode` of it, which holds the digest of the event before. So who changes, adds
or takes away an event in the middle has to change all that follow, up to the chain's head; and a head that somebody has noted
down elsewhere then no longer is what the chain holds.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from django.db import connection, models, transaction
from django.db.models.functions import Cast

from accounts.models import AuditEvent, AuditHead, Organization, User
from config.errors import DomainError

OPERATOR_LABEL = "operator"
"""Who acts on the command line, where nobody is signed in."""
FORM = "weir audit event 1"
BEGINNING = "0" * 64
"""What the first event of a chain follows."""
PAGE = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_label: ContextVar[str] = ContextVar("audit_label", default=OPERATOR_LABEL)


@contextmanager
def acting(label: str) -> Iterator[None]:
    """Who acts inside where nobody is signed in and no other label is given."""
    token = _label.set(label)
    try:
        yield
    finally:
        _label.reset(token)


def record(
    organization: Organization | None,
    *,
    actor: User | None,
    action: str,
    object_type: str,
    object_id: str,
    data: Mapping[str, Any] | None = None,
    actor_label: str | None = None,
) -> AuditEvent:
    """Adds one event. `actor_label` names who acted when nobody was signed in; `data` holds ids and values, never a secret.

    Takes no lock before the commit; its number and digest are there after it.
    """
    return AuditEvent.objects.create(
        organization=organization,
        actor=actor,
        actor_label=actor.email if actor is not None else actor_label or _label.get(),
        action=action,
        object_type=object_type,
        object_id=object_id,
        data=dict(data or {}),
    )


# ------------------------------------------------------------------------------------------------------------ encoding


@dataclass(frozen=True, slots=True)
class Link:
    """What of an event is encoded, in this order. `data` is the database's text of the JSON (`data::text`).

    Not encoded: the row's own id, and the pointer to the person's row, which is cleared when that row goes; `actor_number` is what
    it held.
    """

    organization_id: int | None
    number: int
    previous: str
    uuid: str
    actor_number: int | None
    actor_label: str
    action: str
    object_type: str
    object_id: str
    data: str
    created_at: datetime


def encode(link: Link) -> bytes:
    """FORM and then each field: its length in bytes of UTF-8, `:`, the text, `,`; for None `-,`.

    Integers are decimal; the time is whole microseconds since 1970 in UTC. As each length says where its field ends, no two
    events encode alike. The database's `accounts_audit_encoding` gives the same bytes.
    """
    values = [FORM, *(_text(getattr(link, field.name)) for field in fields(link))]
    return b"".join(b"-," if value is None else b"%d:%b," % (len(raw := value.encode()), raw) for value in values)


def digest(link: Link) -> str:
    return hashlib.sha256(encode(link)).hexdigest()


def _text(value: str | int | datetime | None) -> str | None:
    if isinstance(value, datetime):
        return str((value - _EPOCH) // timedelta(microseconds=1))
    return None if value is None else str(value)


# ----------------------------------------------------------------------------------------------------------- verifying


class HeadUnknown(DomainError):
    code: ClassVar[str] = "head_unknown"


@dataclass(frozen=True, slots=True)
class Head:
    """The newest event of a chain: how many there are, and its digest. `text` is what to note down."""

    number: int
    digest: str

    @property
    def text(self) -> str:
        return f"{self.number}:{self.digest}"

    @classmethod
    def parsed(cls, text: str) -> "Head":
        """Raises HeadUnknown."""
        number, _, noted = text.strip().partition(":")
        if not (number.isascii() and number.isdigit()) or len(noted) != 64 or set(noted) - set("0123456789abcdef"):
            raise HeadUnknown(f"{text!r} is not a head: it is NUMBER:DIGEST, as verify_audit printed it.")
        return cls(int(number), noted)


NO_HEAD = Head(0, BEGINNING)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one chain: how many events it has, its head, and what is wrong, a sentence each (the first MOST_FAULTS)."""

    events: int
    head: Head
    faults: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return not self.faults


MOST_FAULTS = 20


def head(organization: Organization | None) -> Head:
    """The head of a chain as the database keeps it; NO_HEAD before the first event. One query."""
    row = AuditHead.objects.filter(**_of(organization)).first()
    return Head(row.number, row.digest) if row is not None else NO_HEAD


def verify(organization: Organization | None, *, noted: Head | None = None) -> Verdict:
    """Walks one chain as of one moment, in constant memory, and computes every digest anew. `noted`: a head that was once read.

    Call it with the chain's rows in scope, outside of a transaction.
    """
    is_nested = connection.in_atomic_block
    with transaction.atomic():
        if not is_nested:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        walk = _Walk(noted)
        for row in _rows(organization):
            walk.add(row)
        return walk.verdict(head(organization), _strays(organization))


def _of(organization: Organization | None) -> dict[str, Any]:
    return {"organization__isnull": True} if organization is None else {"organization": organization}


_COLUMNS = ("number", "previous", "digest", "uuid", "actor_id", "actor_number", "actor_label", "action", "object_type", "object_id")


def _rows(organization: Organization | None) -> Iterator[dict[str, Any]]:
    """The chain's numbered rows by number, in pages. Rows of one number, where the constraint is gone, come in one page."""
    events = AuditEvent.objects.filter(**_of(organization), number__isnull=False).order_by("number", "pk")
    wanted = events.annotate(data_text=Cast("data", models.TextField())).values(
        "pk", "organization_id", "data_text", "created_at", *_COLUMNS
    )
    last: tuple[int, int] | None = None
    while True:
        rest = wanted if last is None else wanted.filter(number__gte=last[0]).exclude(number=last[0], pk__lte=last[1])
        page = list(rest[:PAGE])
        yield from page
        if len(page) < PAGE:
            return
        last = (page[-1]["number"], page[-1]["pk"])


def _strays(organization: Organization | None) -> list[str]:
    """Events that came in beside the triggers: they have no number."""
    rows = AuditEvent.objects.filter(**_of(organization), number=None).order_by("pk")
    found = rows.values_list("uuid", flat=True)[:MOST_FAULTS]
    return [f"Event {uuid} was put in past the chain: it has no number." for uuid in found]


class _Walk:
    """What has been seen of a chain."""

    def __init__(self, noted: Head | None) -> None:
        self._noted, self._is_noted_seen = noted, noted is None or noted == NO_HEAD
        self._events, self._last = 0, NO_HEAD
        self._faults: list[str] = []

    def add(self, row: Mapping[str, Any]) -> None:
        number = row["number"]
        self._events += 1
        if number == self._last.number:
            self._fault(f"Event {number} is there twice: {row['uuid']} was put in.")
            return
        if number > self._last.number + 1:
            first, last = self._last.number + 1, number - 1
            self._fault(f"Event {first} is missing." if first == last else f"Events {first} to {last} are missing.")
        elif row["previous"] != self._last.digest:
            self._fault(f"Event {number} does not follow event {number - 1}: one of the two was replaced.")
        link = Link(
            organization_id=row["organization_id"],
            number=number,
            previous=row["previous"] or "",
            uuid=str(row["uuid"]),
            actor_number=row["actor_number"],
            actor_label=row["actor_label"],
            action=row["action"],
            object_type=row["object_type"],
            object_id=row["object_id"],
            data=row["data_text"],
            created_at=row["created_at"],
        )
        if digest(link) != row["digest"] or row["actor_id"] not in (None, row["actor_number"]):
            self._fault(f"Event {number} ({row['uuid']}) was changed.")
        self._last = Head(number, row["digest"] or "")
        if self._noted is not None and self._noted.number == number:
            self._is_noted_seen = True
            if self._noted != self._last:
                self._fault(f"Event {number} is not the one that was noted: the chain was written anew.")

    def verdict(self, kept: Head, strays: list[str]) -> Verdict:
        if self._last.number < kept.number:
            first, last = self._last.number + 1, kept.number
            newest = f"event, {last}, is" if first == last else f"events, {first} to {last}, are"
            self._fault(f"The newest {newest} missing.")
        elif self._last.number > kept.number:
            self._fault(f"Event {kept.number + 1} was put in past the chain: its head is number {kept.number}.")
        elif self._last != kept:
            self._fault(f"The head is {kept.text}, the newest event {self._last.text}: one of the two was replaced.")
        if self._noted is not None and not self._is_noted_seen:
            self._fault(f"Event {self._noted.number}, which was noted, is not there.")
        for stray in strays:
            self._fault(stray)
        return Verdict(self._events, self._last, tuple(self._faults))

    def _fault(self, sentence: str) -> None:
        if len(self._faults) < MOST_FAULTS:
            self._faults.append(sentence)
