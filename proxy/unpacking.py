"""Content codings of request bodies, undone piece by piece: what a piece unpacks to is bounded, whatever it claims to hold."""

import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

import zstandard

SLICE_BYTES = 512
"""A piece given to zstd at once: four bytes can stand for 128 KiB, so a slice unpacks to 16 MiB at most before it is looked at."""
STEP_BYTES = 64 * 1024
WINDOW_BYTES = 8 * 1024 * 1024
"""The window that every reader of zstd should take (RFC 8878). A frame that names its size may need one of that size."""
MOST_FRAMES = 1000
"""Frames take a microsecond each even if nothing is in them; clients send one."""


class TooLarge(Exception):
    """More than the bound came out."""


class Corrupt(Exception):
    """Not this coding, or cut short."""


class Unpacker(Protocol):
    """One body in the coding `NAME`. `feed` and `end` raise TooLarge, Corrupt."""

    NAME: str

    def feed(self, part: bytes) -> None: ...

    def end(self) -> None:
        """Nothing more comes: it must be whole now."""

    def data(self) -> bytes: ...


class _Parts:
    def __init__(self, limit: int) -> None:
        self._parts: list[bytes] = []
        self._left = limit
        self._frames = 0

    def data(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _keep(self, part: bytes) -> None:
        if part:
            self._left -= len(part)
            if self._left < 0:
                self._parts.clear()
                raise TooLarge
            self._parts.append(part)

    def _count_frame(self) -> None:
        self._frames += 1
        if self._frames > MOST_FRAMES:
            raise Corrupt("too many frames")


class Zstd(_Parts):
    """Frames one after another; skippable ones are skipped."""

    NAME = "zstd"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=max(WINDOW_BYTES, limit))
        self._frame: zstandard.ZstdDecompressionObj | None = None

    def feed(self, part: bytes) -> None:
        view = memoryview(part)
        for at in range(0, len(view), SLICE_BYTES):
            rest: bytes | memoryview = view[at : at + SLICE_BYTES]
            while rest:
                if self._frame is None:
                    self._count_frame()
                    self._frame = self._decompressor.decompressobj()
                try:
                    self._keep(self._frame.decompress(rest))
                except zstandard.ZstdError as error:
                    raise Corrupt(str(error)) from error
                rest = b""
                if self._frame.eof:
                    rest, self._frame = self._frame.unused_data, None

    def end(self) -> None:
        if self._frame is not None or not self._frames:
            raise Corrupt("cut short")


class Gzip(_Parts):
    """Members one after another."""

    NAME = "gzip"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._member: zlib._Decompress | None = None

    def feed(self, part: bytes) -> None:
        rest, has_more = part, False
        while rest or has_more:
            if self._member is None:
                self._count_frame()
                self._member = zlib.decompressobj(wbits=31)
            try:
                step = self._member.decompress(rest, STEP_BYTES)
            except zlib.error as error:
                raise Corrupt(str(error)) from error
            self._keep(step)
            # A full step may leave output behind although it took all input.
            rest, has_more = self._member.unconsumed_tail, len(step) == STEP_BYTES
            if self._member.eof:
                rest, has_more, self._member = self._member.unused_data, False, None

    def end(self) -> None:
        if self._member is not None or not self._frames:
            raise Corrupt("cut short")


CODINGS: Mapping[str, Callable[[int], Unpacker]] = {"zstd": Zstd, "gzip": Gzip, "x-gzip": Gzip}
"""By what `content-encoding` says: what undoes it, up to so many bytes."""
