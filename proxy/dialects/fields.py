"""The top level of a JSON object, as bytes: where each field stands, and how one is changed while all other bytes stay.

A request body goes on as it came (N56); parsing it and writing it anew would change spacing, escapes, numbers, the order of keys.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from config.json_bounds import has_too_many
from proxy.errors import InvalidJson

_BLANK = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_raw = msgspec.json.Decoder(dict[str, msgspec.Raw])

REMOVED = None
"""In changes: the field is to go."""
MOST_FIELDS = 1000
LONGEST_NAME = 1000
"""Walking fields takes a microsecond each, in which no other request moves; no protocol has a tenth of them."""


@dataclass(frozen=True, slots=True)
class Span:
    """A field of an object: where its key begins, and its value begins and ends."""

    key: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Fields:
    """A body and its top-level fields in order; names are unique."""

    body: bytes = field(repr=False)
    spans: Mapping[str, Span] = field(repr=False)

    def raw(self, name: str) -> bytes | None:
        """The value's bytes, or None if the field is not there."""
        span = self.spans.get(name)
        return None if span is None else self.body[span.start : span.end]

    def value(self, name: str) -> object:
        """The value decoded, or None. Raises InvalidJson for a number beyond all bounds, and for more values than are read."""
        raw = self.raw(name)
        if raw is None:
            return None
        if has_too_many(raw):
            raise InvalidJson(f"The field {name!r} of the request body holds too many values.", param=name)
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidJson(f"The field {name!r} of the request body cannot be read.", param=name) from error


def scan(body: bytes) -> Fields:
    """Finds the fields. Raises InvalidJson for what is not one JSON object in UTF-8, and for a name that stands there twice.

    Two readers of a doubled name may see different values: one prices, the other one serves.
    """
    try:
        if not body.isascii():
            body.decode()
        values = _raw.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJson("The request body is not a valid JSON object.") from error
    if len(values) > MOST_FIELDS or any(len(name) > LONGEST_NAME for name in values):
        raise InvalidJson("The request body has too many fields, or one with too long a name.")
    spans: dict[str, Span] = {}
    # The decoder has checked the syntax and tells each value's length; walking the keys in its order shows where they stand,
    # and does not come out even if a name is there twice.
    at = _skip(body, body.index(b"{") + 1)
    for name, raw in values.items():
        plain = b'"%s"' % name.encode()
        if body.startswith(plain, at):
            after = at + len(plain)
        else:
            key = _STRING.match(body, at)
            if key is None or msgspec.json.decode(key.group()) != name:
                raise InvalidJson("A field of the request body is there twice.")
            after = key.end()
        start = _skip(body, _skip(body, after) + 1)
        # A copy for the moment: comparing views, or looking for one, costs ten times as much.
        value = bytes(raw)
        end = start + len(value)
        if not body.startswith(value, start):
            raise InvalidJson(f"The field {name!r} of the request body is there twice.", param=name)
        spans[name] = Span(at, start, end)
        at = _skip(body, end)
        if body[at] == 0x2C:
            at = _skip(body, at + 1)
    if body[at] != 0x7D:
        raise InvalidJson("A field of the request body is there twice.")
    return Fields(body, spans)


def _skip(body: bytes, at: int) -> int:
    if body[at] > 0x20:
        return at
    found = _BLANK.match(body, at)
    assert found is not None
    return found.end()


def edit(fields: Fields, changes: Mapping[str, object]) -> bytes:
    """The body with `changes` made: a value (`msgspec.Raw`: as it is spelt) replaces the field's or is added at the end, REMOVED
    takes the field out.

    Every other byte stays. A change to what is there already changes nothing.
    """
    body = fields.body
    names = list(fields.spans)
    removed = [name for name in names if name in changes and changes[name] is REMOVED]
    kept = [name for name in names if name not in removed]
    patches = [_removal(fields, names, name, is_any_kept_before=_is_any_before(names, name, kept)) for name in removed]
    added: list[bytes] = []
    for name, value in changes.items():
        if value is REMOVED:
            continue
        text = bytes(value) if isinstance(value, msgspec.Raw) else json.dumps(value, ensure_ascii=False).encode()
        span = fields.spans.get(name)
        if span is None:
            added.append(json.dumps(name).encode() + b":" + text)
        elif fields.value(name) != value or type(fields.value(name)) is not type(value):
            patches.append((span.start, span.end, text))
    if added:
        end = body.rindex(b"}")
        patches.append((end, end, (b"," if kept else b"") + b",".join(added)))
    if not patches:
        return body
    parts: list[bytes] = []
    at = 0
    for start, end, text in sorted(patches):
        parts += (body[at:start], text)
        at = end
    parts.append(body[at:])
    return b"".join(parts)


def _is_any_before(names: list[str], name: str, kept: list[str]) -> bool:
    return any(other in kept for other in names[: names.index(name)])


def _removal(fields: Fields, names: list[str], name: str, *, is_any_kept_before: bool) -> tuple[int, int, bytes]:
    """Takes out a field with one of the commas around it: the one before it if a kept field stands before, else the one after."""
    position = names.index(name)
    span = fields.spans[name]
    if is_any_kept_before:
        return fields.spans[names[position - 1]].end, span.end, b""
    if position + 1 < len(names):
        return span.key, fields.spans[names[position + 1]].key, b""
    return span.key, span.end, b""
