"""Calls with an `Idempotency-Key` are done once: the answer of the first is given again to whoever of its member repeats it.

A call and the row that says it is done are one transaction, under a lock of the database that ends with it. So a call that crashed
has left nothing, neither row nor lock, and the next one does it; there is no moment at which it is done and not known to be.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from rest_framework.utils.encoders import JSONEncoder

from accounts.models import IdempotentCall, Member
from api.errors import InFlight, KeyInvalid, KeyMissing, Mismatch

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
KEPT = timedelta(hours=24)
MOST_CHARACTERS = 255
ONLY_ONCE = "It was in the first answer to this key, and is kept nowhere."
"""In place of the word beside a secret, when the answer is given again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call made: JSON and its status. Fields of `secrets` are not kept."""

    status: int
    data: Any = field(repr=False)
    secrets: tuple[str, ...] = ()
    is_replayed: bool = False


def checked(key: str | None, *, is_required: bool) -> str | None:
    """Raises KeyMissing, KeyInvalid."""
    if key is None:
        if is_required:
            raise KeyMissing(f"This call is done once for each {HEADER}: send one of your own making, such as a UUID.")
        return None
    if not 1 <= len(key) <= MOST_CHARACTERS or not all("!" <= character <= "~" for character in key):
        raise KeyInvalid(f"{HEADER} is 1 to {MOST_CHARACTERS} visible characters of ASCII, without spaces.")
    return key


def once(member: Member, key: str, *, route: str, asked: Any, now: datetime, call: Callable[[], Answer]) -> Answer:
    """Does the call, or tells what came of it before. Raises InFlight, Mismatch, and what the call raises: then nothing is done
    or kept. `route` is method and path, `asked` the body."""
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).digest()
    with transaction.atomic():
        if not _locked(member.pk, key):
            raise InFlight(f"The first call with this {HEADER} is running. Ask again when it has answered.")
        row = IdempotentCall.objects.filter(member=member, key=key).first()
        if row is not None and row.status is not None:
            if row.route != route or bytes(row.body_digest) != digest:
                raise Mismatch(f"This {HEADER} belongs to another call, {row.route}, or to another body. Send a new one.")
            return Answer(row.status, json.loads(row.answer), is_replayed=True)
        answer = call()
        IdempotentCall.objects.create(
            organization_id=member.organization_id,
            member=member,
            key=key,
            route=route[:200],
            body_digest=digest,
            status=answer.status,
            answer=json.dumps(_without(answer), cls=JSONEncoder),
            started_at=now,
        )
    return answer


def forget(*, now: datetime) -> int:
    """Forgets calls older than KEPT; returns how many. In the caller's scope."""
    deleted, _ = IdempotentCall.objects.filter(started_at__lt=now - KEPT).delete()
    return deleted


def _without(answer: Answer) -> Any:
    if not answer.secrets:
        return answer.data
    return {**answer.data, **dict.fromkeys(answer.secrets), "secret_note": ONLY_ONCE}


def _locked(member_id: int, key: str) -> bool:
    """Takes the lock of this key until the transaction ends; False while another transaction has it. Waits for nobody."""
    name = hashlib.sha256(f"api.idempotency:{member_id}:{key}".encode()).digest()[:8]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [int.from_bytes(name, "big", signed=True)])
        [found] = cursor.fetchone()
    return bool(found)
