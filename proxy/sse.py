"""Bytes to events, incrementally: what a stream carries, found without parsing what nobody needs.

Linear in the bytes however they are split, whatever the events' sizes; holds at most the event that is wanted. An event ends
at an empty line; lines end in LF or CRLF (a lone CR, which the standard also allows, no upstream sends).
"""

import contextlib
import re
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import msgspec

HEAD_BYTES = 512
"""By then an event has told its name: in its first line, or as the first key of its data. Else it is kept whole to be parsed."""
MOST_LINES = 20_000
"""Of one event; one with more is passed on unread. All that is known to be sent are in one line of data."""
ENVELOPE_BYTES = 200
"""About what surrounds the text of a delta."""


class Want(IntEnum):
    """What to do with events of a name."""

    COUNT = 0
    """Nothing but to know that it was there."""
    DELTA = 1
    """Measure its text."""
    WHOLE = 2
    """Keep it and hand it out."""


class Event(NamedTuple):
    """One event. `data` is None unless it was wanted whole; `delta_bytes` is the text of a delta, as JSON spells it.

    A tuple because there is one for each event of each stream.
    """

    name: str
    size: int
    delta_bytes: int = 0
    data: bytes | None = None


class _Typed(msgspec.Struct):
    type: str = ""


_typed = msgspec.json.Decoder(_Typed)
# Only as the first key: further behind it may be the type of something inside. What the event line says beside it is the same.
_TYPE = re.compile(rb'(?:event:[^\r\n]*\r?\n)?data:\s*\{\s*"type"\s*:\s*"([^"\\]{1,80})"')
_DELTA = re.compile(rb'"delta"\s*:\s*"')
_BLANK = re.compile(rb"[\r\n]+")
_BACKSLASH = 0x5C
_NAMED = b"event: response."
_COUNT, _DELTAS, _WHOLE = Want.COUNT, Want.DELTA, Want.WHOLE


class Scanner:
    """Feeds on chunks, gives events. `want(name)` is asked once per name."""

    def __init__(self, want: Callable[[str], Want], *, largest: int) -> None:
        self._want = want
        self._largest = largest
        self._wants: dict[bytes, tuple[str, Want]] = {}
        self._parts: list[bytes] = []
        self._size = 0
        self._named: tuple[str, Want] | None = None
        self._head = b""
        self._delta_bytes = 0
        self._edge = b""

    @property
    def unfinished_bytes(self) -> int:
        """How much of an event without its end has been fed."""
        return self._size

    def feed(self, chunk: bytes) -> tuple[list[Event], int]:
        """The events that `chunk` completed, and the position in it after the last of them (0: it completed none)."""
        events: list[Event] = []
        start = 0
        length = len(chunk)
        if self._size:
            end = self._straddling_end(chunk)
            if end < 0:
                end = _end(chunk, 0)
            if end < 0:
                self._collect(chunk)
                return events, 0
            self._collect(chunk[:end])
            event = self._finish()
            if event is not None:
                events.append(event)
            start = end
        crlf = chunk.find(b"\n\r\n", start)
        while start < length:
            end = chunk.find(b"\n\n", start)
            if crlf >= 0 and crlf < start:
                crlf = chunk.find(b"\n\r\n", start)
            if crlf >= 0 and (end < 0 or crlf < end):
                end = crlf + 3
            elif end >= 0:
                end += 2
            else:
                self._collect(chunk[start:] if start else chunk)
                return events, start
            event = self._whole(chunk, start, end)
            if event is not None:
                events.append(event)
            elif chunk[start] in b"\r\n" and (blank := _BLANK.match(chunk, end)):
                end = blank.end()
            start = end
        return events, start

    def end(self) -> list[Event]:
        """What is left when the stream has ended without its last empty line."""
        if not self._size:
            return []
        event = self._finish()
        return [] if event is None else [event]

    # -- an event inside one chunk

    def _whole(self, chunk: bytes, start: int, end: int) -> Event | None:
        named = self._wants.get(chunk[start + 7 : chunk.find(b"\n", start, end)]) if chunk.startswith(_NAMED, start) else None
        if named is None:
            named = self._name(chunk, start, end)
            if named is None:
                return None
        name, want = named
        if want is _DELTAS:
            return Event(name, end - start, _delta_length(chunk, start, end))
        if want is _COUNT:
            return Event(name, end - start)
        return Event(name, end - start, 0, _data(chunk[start:end]))

    def _name(self, data: bytes, start: int, end: int) -> tuple[str, Want] | None:
        """The name and what is wanted of it; None for what is no event: blank lines and comments."""
        found = None
        if data.startswith(_NAMED, start):
            stop = data.find(b"\n", start, end)
            raw = data[start + 7 : stop if stop >= 0 else end].rstrip()
        elif (found := _TYPE.match(data, start, end)) is not None:
            raw = found.group(1)
        else:
            return self._odd_name(data[start:end])
        known = self._wants.get(raw)
        if known is None:
            name = raw.decode("latin-1")
            known = (name, self._want(name))
            if len(self._wants) < 1000:
                self._wants[raw] = known
        return known

    def _odd_name(self, event: bytes) -> tuple[str, Want] | None:
        """An event that names itself in neither of the usual places: keys in another order, a comment in front, other names."""
        if event.count(b"\n") + event.count(b"\r") > MOST_LINES:
            return "", self._want("")
        lines = [line for line in event.splitlines() if line and not line.startswith(b":")]
        if not lines:
            return None
        name = ""
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            name = _typed.decode(_data(event)).type
        if not name:
            name = next((line[6:].strip().decode("latin-1") for line in lines if line.startswith(b"event:")), "")
        return name, self._want(name)

    # -- an event over several chunks

    def _straddling_end(self, chunk: bytes) -> int:
        """Where the unfinished event ends if the empty line began before this chunk; -1 if it did not."""
        edge = self._edge + chunk[:2]
        known = len(self._edge)
        for marker in (b"\n\n", b"\n\r\n"):
            at = edge.find(marker)
            if at >= 0 and at < known < at + len(marker):
                return at + len(marker) - known
        return -1

    def _collect(self, part: bytes) -> None:
        """Adds to the unfinished event, keeping of it what its name asks for."""
        self._size += len(part)
        self._edge = (self._edge + part)[-2:] if len(part) < 2 else part[-2:]
        if self._named is None:
            self._parts.append(part)
            if self._size < HEAD_BYTES:
                return
            self._head = b"".join(self._parts)
            self._parts = [self._head]
            if not self._is_named_by_head():
                # Wanted or not is known only at its end.
                self._named = ("", Want.WHOLE)
                return
            self._named = self._name(self._head, 0, len(self._head))
            return
        if self._named[1] is Want.WHOLE and self._size <= self._largest:
            self._parts.append(part)
        elif self._named[1] is Want.WHOLE:
            # Too large to be kept: forgotten, and known by its size alone.
            self._parts = [self._head]

    def _is_named_by_head(self) -> bool:
        return self._head.startswith(_NAMED) or _TYPE.match(self._head) is not None

    def _finish(self) -> Event | None:
        named, size, parts = self._named, self._size, self._parts
        self._named, self._size, self._parts, self._edge, self._head = None, 0, [], b"", b""
        if named is None:
            whole = b"".join(parts)
            return self._whole(whole, 0, len(whole))
        name, want = named
        if want is Want.WHOLE and size <= self._largest:
            whole = b"".join(parts)
            if name:
                return Event(name, size, 0, _data(whole))
            odd = self._odd_name(whole)
            if odd is None:
                return None
            return Event(odd[0], size, 0, _data(whole) if odd[1] is Want.WHOLE else None)
        if want is Want.DELTA:
            return Event(name, size, max(0, size - ENVELOPE_BYTES))
        return Event(name, size)


def name_of(event: bytes) -> str | None:
    """The name of one whole event, its empty line included; None if it is none."""
    found = Scanner(lambda _: Want.COUNT, largest=len(event)).feed(event)[0]
    return found[0].name if found else None


def _end(chunk: bytes, start: int) -> int:
    """The position after the first empty line; -1 if there is none."""
    plain = chunk.find(b"\n\n", start)
    carriage = chunk.find(b"\n\r\n", start, plain + 1 if plain >= 0 else len(chunk))
    if carriage >= 0:
        return carriage + 3
    return plain + 2 if plain >= 0 else -1


def _data(event: bytes) -> bytes:
    """The `data` lines of an event, joined by LF as the standard says; b"" for too many."""
    if event.count(b"\n") > MOST_LINES:
        return b""
    lines = []
    at = 0
    while at < len(event):
        stop = event.find(b"\n", at)
        if stop < 0:
            stop = len(event)
        if event.startswith(b"data:", at):
            start = at + 6 if event.startswith(b" ", at + 5) else at + 5
            lines.append(event[start : stop - 1 if event.startswith(b"\r", stop - 1) else stop])
        at = stop + 1
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def delta_bytes(data: bytes) -> int:
    """Bytes of the text of a delta whose data is at hand, as JSON spells it."""
    return _delta_length(data, 0, len(data))


def _delta_length(chunk: bytes, start: int, end: int) -> int:
    begin = chunk.find(b'"delta":"', start, end) + 9
    if begin == 8:
        found = _DELTA.search(chunk, start, end)
        if found is None:
            return 0
        begin = found.end()
    at = begin
    while (at := chunk.find(b'"', at, end)) >= 0:
        if chunk[at - 1] != _BACKSLASH:
            return at - begin
        slashes = 1
        while chunk[at - 1 - slashes] == _BACKSLASH:
            slashes += 1
        if slashes % 2 == 0:
            return at - begin
        at += 1
    return end - begin
