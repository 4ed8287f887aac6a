"""Lists in pieces: opaque cursors that name a place in the order, so rows that come meanwhile move nothing.

A cursor holds for one organization, one path and one set of filters; any other one, or a forged one, is refused. It is encrypted:
a place is a row's id, and the ids of an install count everybody's rows.
"""

import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.conf import settings
from django.db.models import Model, Q, QuerySet
from django.utils.encoding import force_bytes
from rest_framework.request import Request

from api.errors import CursorInvalid

M = TypeVar("M", bound=Model)

DEFAULT_LIMIT, MOST_LIMIT = 50, 200
CURSOR, LIMIT = "cursor", "limit"
_SALT = "api.paging"
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page begins: after (or, `is_back`, before) the row with these values of what it is ordered by."""

    values: tuple[Any, ...]
    is_back: bool


def place(request: Request, organization_id: int) -> Place | None:
    """What the `cursor` of the call says; None for the first page. Raises CursorInvalid."""
    text = request.query_params.get(CURSOR)
    if text is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        is_back, values = json.loads(_opened(raw, _about(request, organization_id)))
        is_spelt_so = _spelt(raw) == text
    except (InvalidTag, ValueError):
        is_spelt_so = False
    if not is_spelt_so:
        raise CursorInvalid("This cursor was not given out for this list. Begin without one.", param=CURSOR)
    return Place(tuple(values), bool(is_back))


def cursor(request: Request, organization_id: int, values: Sequence[Any], *, is_back: bool) -> str:
    """The text of a place. `values` are what JSON can hold."""
    raw = json.dumps([int(is_back), list(values)], separators=(",", ":")).encode()
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return _spelt(nonce + AESGCM(_key(settings.SECRET_KEY)).encrypt(nonce, raw, _about(request, organization_id)))


def link(request: Request, text: str) -> str:
    """The address of the call with another cursor."""
    query = {name: value for name, value in request.query_params.items() if name != CURSOR}
    return request.build_absolute_uri(f"{request.path}?{urlencode({**query, CURSOR: text})}")


def page(
    request: Request,
    organization_id: int,
    rows: QuerySet[M],
    shown: Callable[[M], dict[str, Any]] | None = None,
    *,
    together: Callable[[Sequence[M]], list[dict[str, Any]]] | None = None,
    limit: int,
    is_newest_first: bool = False,
) -> dict[str, Any]:
    """`{"results", "next", "previous"}` of rows in the order of their ids. One query beside what `shown`, or `together` for all of
    the page at once, asks."""
    at = place(request, organization_id)
    is_back = at is not None and at.is_back
    is_descending = is_newest_first != is_back
    if at is not None:
        [pk] = at.values
        rows = rows.filter(Q(pk__lt=pk) if is_descending else Q(pk__gt=pk))
    found = list(rows.order_by("-pk" if is_descending else "pk")[: limit + 1])
    has_more, found = len(found) > limit, found[:limit]
    if is_back:
        found.reverse()
    has_next = has_more if not is_back else True
    has_previous = at is not None if not is_back else has_more

    def to(row: M, *, back: bool) -> str:
        return link(request, cursor(request, organization_id, [row.pk], is_back=back))

    if together is None:
        assert shown is not None
        results = [shown(row) for row in found]
    else:
        results = together(found)
    return {
        "results": results,
        "next": to(found[-1], back=False) if found and has_next else None,
        "previous": to(found[0], back=True) if found and has_previous else None,
    }


def _about(request: Request, organization_id: int) -> bytes:
    """What a cursor is bound to."""
    filters = sorted((name, value) for name, value in request.query_params.items() if name not in (CURSOR, LIMIT))
    return json.dumps([_SALT, organization_id, request.path, filters]).encode()


def _opened(raw: bytes, about: bytes) -> bytes:
    """Raises InvalidTag, ValueError."""
    for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        try:
            return AESGCM(_key(secret)).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], about)
        except InvalidTag:
            continue
    raise InvalidTag


def _key(secret: str | bytes) -> bytes:
    return hashlib.sha256(f"{_SALT}:".encode() + force_bytes(secret)).digest()


def _spelt(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
