"""What of a request, or of an answer, names state that one upstream account holds (`routing.anchors`). Pure.

Most requests name none, and may be megabytes: they are searched for a few words, and read only where one is found. Within JSON's
strings quotes are escaped, so a name between bare quotes is one of JSON's own.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from config.json_bounds import has_too_many
from proxy.dialects.fields import Fields, Span
from proxy.dialects.inspection import Inspection
from proxy.turns import TURN_STATE_HEADER
from routing.anchors import Anchor, Kind

MOST_FILES = 16
MOST_MENTIONS = 1000
"""Of files, the same ones mostly, that are looked at."""
MOST_ITEMS = 16
"""The newest; of an answer's items the last."""
MOST_COMPACTIONS = 4
TAIL = 4096
LONGEST_ID = 512
"""Longer ones are none; they are hashed where they are kept."""

_FILE = b'"file_id'
_REFERENCE = b'"item_reference"'
_COMPACTION = b'"compaction'
_FILE_ID = re.compile(rb'"file_id"\s*:\s*("(?:[^"\\]|\\.){1,512}")')
_FILE_IDS = re.compile(rb'"file_ids"\s*:\s*\[([^\[\]{}]{1,16384})\]')
_TEXT = re.compile(rb'"(?:[^"\\]|\\.){1,512}"')
_COMPACTIONS = frozenset({"compaction", "compaction_summary"})


class _Item(msgspec.Struct):
    """What is read of an item of the input or the output."""

    type: Any = None
    id: Any = None
    encrypted_content: Any = None


class _Done(msgspec.Struct):
    item: _Item


class _Answer(msgspec.Struct):
    output: list[_Item] = []


class _Terminal(msgspec.Struct):
    response: _Answer


_items = msgspec.json.Decoder(list[_Item])
_done = msgspec.json.Decoder(_Done)
_answer = msgspec.json.Decoder(_Answer)
_terminal = msgspec.json.Decoder(_Terminal)


def anchors_of(inspection: Inspection, headers: Mapping[str, str]) -> tuple[Anchor, ...]:
    """The request's anchors, each once. `headers` have lower-case names."""
    found: list[Anchor] = []
    if inspection.previous_response_id:
        found.append(Anchor(Kind.RESPONSE, inspection.previous_response_id))
    token = headers.get(TURN_STATE_HEADER)
    if token:
        found.append(Anchor(Kind.TURN, token))
    fields = inspection.fields
    if "conversation" in fields.spans:
        found += _conversation(fields)
    found += _files(fields)
    span = fields.spans.get("input")
    # Items are referred to only where responses are stored, which Codex' never are.
    if span is not None and (
        fields.body.find(_COMPACTION, span.start, span.end) >= 0
        or (inspection.store is not False and fields.body.find(_REFERENCE, span.start, span.end) >= 0)
    ):
        found += _of_items(fields.body[span.start : span.end])
    return tuple(dict.fromkeys(found))


def may_compact(inspection: Inspection) -> bool:
    """May the answer hold a compacted history? Then its items are to be read (`made_by_item`). The wish stands at the input's end,
    or is a field of its own."""
    fields = inspection.fields
    span = fields.spans.get("input")
    if span is None:
        return False
    return "context_management" in fields.spans or fields.body.find(_COMPACTION, max(span.start, span.end - TAIL), span.end) >= 0


def made_by_item(data: bytes) -> list[Anchor]:
    """The anchors that an event's data brings into the world: the compacted history in `response.output_item.done`."""
    if _COMPACTION not in data or has_too_many(data):
        return []
    try:
        return list(_compactions([_done.decode(data).item]))
    except (msgspec.DecodeError, RecursionError):
        return []


def made_by_answer(data: bytes, *, is_stored: bool) -> list[Anchor]:
    """The same of a whole answer; and where it was stored its items, which can be referred to."""
    return _made(data, _answer.decode, is_stored=is_stored)


def made_by_end(data: bytes, *, is_stored: bool) -> list[Anchor]:
    """The same of a terminal event's data."""
    return _made(data, lambda data: _terminal.decode(data).response, is_stored=is_stored)


def _made(data: bytes, read: Callable[[bytes], _Answer], *, is_stored: bool) -> list[Anchor]:
    if (not is_stored and _COMPACTION not in data) or has_too_many(data):
        return []
    try:
        output = read(data).output
    except (msgspec.DecodeError, RecursionError):
        return []
    found = list(_compactions(output))
    if is_stored:
        found += [Anchor(Kind.ITEM, item.id) for item in output[-MOST_ITEMS:] if _is_id(item.id)]
    return found


def turn_of(headers: Mapping[str, str]) -> list[Anchor]:
    """The turn-state token that an upstream's head issues."""
    token = headers.get(TURN_STATE_HEADER)
    return [Anchor(Kind.TURN, token)] if token else []


def _conversation(fields: Fields) -> list[Anchor]:
    value = fields.value("conversation")
    if isinstance(value, dict):
        value = value.get("id")
    return [Anchor(Kind.CONVERSATION, value)] if _is_id(value) and isinstance(value, str) else []


def _files(fields: Fields) -> list[Anchor]:
    """File ids of the input (or of another dialect's messages), and of the containers that tools run in."""
    body = fields.body
    found: dict[str, None] = {}
    for span in (fields.spans.get("input") or fields.spans.get("messages"), fields.spans.get("tools")):
        if span is None or body.find(_FILE, span.start, span.end) < 0:
            continue
        for text in islice(_file_texts(body, span), MOST_MENTIONS):
            name = _text(text)
            if name:
                found[name] = None
            if len(found) >= MOST_FILES:
                return [Anchor(Kind.FILE, name) for name in found]
    return [Anchor(Kind.FILE, name) for name in found]


def _file_texts(body: bytes, span: Span) -> Iterator[bytes]:
    for match in _FILE_ID.finditer(body, span.start, span.end):
        yield match[1]
    for match in _FILE_IDS.finditer(body, span.start, span.end):
        yield from (text[0] for text in _TEXT.finditer(match[1]))


def _of_items(raw: bytes) -> list[Anchor]:
    """The newest items that are kept by one account; [] where the input is no list of items, or one that nobody could read."""
    if has_too_many(raw):
        return []
    try:
        items = _items.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return []
    referred = [item.id for item in items if item.type == "item_reference" and _is_id(item.id)]
    return [*_compactions(items), *(Anchor(Kind.ITEM, name) for name in referred[-MOST_ITEMS:])]


def _compactions(items: Iterable[_Item]) -> list[Anchor]:
    sealed = [item.encrypted_content for item in items if isinstance(item.type, str) and item.type in _COMPACTIONS]
    return [Anchor(Kind.COMPACTION, _hash(text)) for text in sealed[-MOST_COMPACTIONS:] if isinstance(text, str) and text]


def _hash(sealed: str) -> str:
    return hashlib.blake2b(sealed.encode(), digest_size=16).hexdigest()


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_ID


def _text(raw: bytes) -> str:
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return ""
    return value if isinstance(value, str) else ""
