"""What is written to one connection, in its order, and no faster than the peer takes it where that is encrypted.

The buffer that TLS encrypts into grows to the largest write and what the socket did not take at once, and stays so large as long as
the connection lives: a request of 1 MB would cost 1.3 MB for the whole of its answer. So it gets small pieces, and waits between.
"""

import asyncio
from collections import deque

PIECE_BYTES = 8 * 1024
HIGH_WATER_BYTES = 16 * 1024


class Outflow:
    """Over one transport, whose protocol passes `pause` and `resume` on to this."""

    __slots__ = ("_is_secure", "_transport", "_waiting", "is_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_secure = transport.get_extra_info("sslcontext") is not None
        self.is_paused = False
        self._waiting: deque[memoryview] = deque()
        if self._is_secure:
            transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def write(self, data: bytes) -> None:
        """Takes all of it; what cannot be written now is written when the peer has taken the rest."""
        if not self._is_secure:
            self._transport.write(data)
            return
        self._waiting.append(memoryview(data))
        self._push()

    @property
    def is_drained(self) -> bool:
        """Has all of it been handed to the transport?"""
        return not self._waiting

    @property
    def unsent_bytes(self) -> int:
        """How much has not left for the socket."""
        return sum(len(view) for view in self._waiting) + self._transport.get_write_buffer_size()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._push()

    def _push(self) -> None:
        while self._waiting and not self.is_paused and not self._transport.is_closing():
            view = self._waiting.popleft()
            if len(view) > PIECE_BYTES:
                self._waiting.appendleft(view[PIECE_BYTES:])
                view = view[:PIECE_BYTES]
            # As bytes: what a transport cannot write at once it would copy anyway.
            self._transport.write(bytes(view))
