"""What may be taken back for a few seconds, kept in the session of who changed it: a toast on the page that follows."""

import secrets
import time
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from accounts.models import Member
from quotas.bulk import Undo

SHOWN_SECONDS = 10
KEPT_SECONDS = 60
"""Longer than it is shown, for who has no script that takes the toast away."""
_NAME = "undo"


@dataclass(frozen=True, slots=True)
class Offer:
    """`id` names it to the button; `row` is the limit or member that the page marks as saved."""

    id: str
    text: str
    row: str
    is_undoable: bool


def make(request: HttpRequest, member: Member, text: str, undo: Undo, *, row: str = "") -> None:
    """Said on the next page, with a way back where there is one."""
    request.session[_NAME] = {
        "id": secrets.token_urlsafe(9),
        "member": member.pk,
        "text": text,
        "steps": [list(step) for step in undo.steps],
        "row": row,
        "at": time.time(),
    }


def shown(request: HttpRequest, member: Member) -> Offer | None:
    """What a page of this membership says now."""
    kept = _kept(request, member, SHOWN_SECONDS)
    return None if kept is None else Offer(kept["id"], kept["text"], kept["row"], bool(kept["steps"]))


def take(request: HttpRequest, member: Member, offer_id: str) -> Undo | None:
    """The way back, once; None when it is another one by now, or too late."""
    kept = _kept(request, member, KEPT_SECONDS)
    if kept is None or not kept["steps"] or not secrets.compare_digest(kept["id"].encode(), offer_id.encode()):
        return None
    del request.session[_NAME]
    return Undo(tuple(tuple(step) for step in kept["steps"]))


def _kept(request: HttpRequest, member: Member, seconds: float) -> dict[str, Any] | None:
    kept = request.session.get(_NAME)
    if not isinstance(kept, dict) or kept.get("member") != member.pk or time.time() - kept["at"] > seconds:
        return None
    return kept
