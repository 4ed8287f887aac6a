"""Request ids: `req_` + ULID, from the server's time and a random block of this process."""

import os
import secrets
import time

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in ALPHABET for b in ALPHABET]
_BLOCK = 1 << 20


class Sequence:
    """Ids of one process: 60 random bits that are its own, 20 that count; unique without asking the system each time."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._process = "".join(secrets.choice(ALPHABET) for _ in range(12))
        self._next = secrets.randbelow(_BLOCK // 2)

    def next(self) -> str:
        """26 characters in Crockford's base32 after `req_`; later ones of a process sort behind, to the millisecond."""
        number = self._next
        if number >= _BLOCK:
            self._renew()
            number = self._next
        self._next = number + 1
        ms = time.time_ns() // 1_000_000
        pairs = _PAIRS
        return (
            f"req_{pairs[ms >> 40]}{pairs[ms >> 30 & 1023]}{pairs[ms >> 20 & 1023]}{pairs[ms >> 10 & 1023]}{pairs[ms & 1023]}"
            f"{self._process}{pairs[number >> 10]}{pairs[number & 1023]}"
        )


_sequence = Sequence()
# A forked process must not repeat its parent's ids.
os.register_at_fork(after_in_child=_sequence._renew)

new = _sequence.next
