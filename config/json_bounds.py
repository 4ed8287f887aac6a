"""How much there is in a piece of JSON, told before it is read.

A megabyte holds 300,000 empty lists. Making objects of them takes a second in which a process serves nobody, and many megabytes;
walking over them takes milliseconds.
"""

import re
from itertools import islice

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
