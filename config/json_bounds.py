"""How much there is in a piece of JSON, told before it is read.

A megabyte holds 300,000 empty lists. Making objects of them takes a second in which a process serves nobody, and many megabytes;
walking over them takes milliseconds.
"""

import re
from itertools import islice
from typing import Any

import msgspec

SMALL_BYTES = 256 * 1024
"""What is smaller is read without being looked at first."""
MOST_VALUES = 200_000
"""A conversation that fills the largest context there is has a tenth of them."""

# Possessive: nothing is kept to go back to, however long a string is. A string that does not end ends the search.
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,]', re.DOTALL)


def has_too_many(data: bytes) -> bool:
    """Whether reading `data` would make more than MOST_VALUES objects. Never raises, whatever it is."""
    if len(data) <= SMALL_BYTES or data.count(b",") + data.count(b"[") + data.count(b"{") <= MOST_VALUES:
        return False
    # Of the marks only those outside of strings count: text is full of commas.
    count = 0
    for mark in islice(_MARK.finditer(data), 2 * MOST_VALUES):
        if data[mark.start()] != 0x22:
            count += 1
            if count > MOST_VALUES:
                return True
    # Either all was looked at, or a value stands behind each second string.
    return next(islice(_MARK.finditer(data), 2 * MOST_VALUES, None), None) is not None


MOST_FIELD_BYTES = 64 * 1024
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class Outline:
    """Some fields of an object that holds too many values: found without making anything of the rest; also where half a surrogate
    pair in its texts keeps strict readers out."""

    def __init__(self, *names: str) -> None:
        self._names = names
        outline = msgspec.defstruct("Outline", [(name, msgspec.Raw, msgspec.Raw(b"null")) for name in names])
        self._decoder = msgspec.json.Decoder(outline)

    def raw(self, data: bytes) -> dict[str, bytes]:
        """The fields as they are spelt, `null` where one is not there; {} for what is no object."""
        for is_mended in (False, True):
            try:
                found = self._decoder.decode(_HALF.sub(rb"\\ufffd", data) if is_mended else data)
            except (msgspec.DecodeError, RecursionError):
                continue
            return {name: bytes(getattr(found, name)) for name in self._names}
        return {}

    def read(self, data: bytes) -> dict[str, Any]:
        """The values of those that are small enough to be read."""
        small = {name: raw for name, raw in self.raw(data).items() if len(raw) <= MOST_FIELD_BYTES}
        return {name: msgspec.json.decode(raw) for name, raw in small.items()}
