"""Content codings undone: whole, bounded, and refused where they are not what they say."""

import gzip
import io
import random
import struct
import tracemalloc
from collections.abc import Callable

import pytest
import zstandard

from proxy.unpacking import CODINGS, MOST_FRAMES, Corrupt, TooLarge, Unpacker

LIMIT = 1024 * 1024
BOMB_LIMIT = 16 * 1024 * 1024
PACK: dict[str, Callable[[bytes], bytes]] = {"zstd": zstandard.ZstdCompressor().compress, "gzip": gzip.compress}
CODED = pytest.mark.parametrize("coding", ["zstd", "gzip"])


def unpacked(unpacker: Unpacker, data: bytes, step: int = 1000) -> bytes:
    for at in range(0, len(data), step):
        unpacker.feed(data[at : at + step])
    unpacker.end()
    return unpacker.data()


def text(size: int) -> bytes:
    return random.Random(size).randbytes(size // 4).hex().encode()[:size].ljust(size, b" ")


@CODED
@pytest.mark.parametrize("size", [1, 65_535, 65_536, 131_072, 262_144, 300_001, LIMIT])
@pytest.mark.parametrize("step", [1, 7, 1000, 10**9])
def test_what_comes_out_is_what_went_in_however_it_is_cut(coding: str, size: int, step: int) -> None:
    plain = text(size)
    packed = PACK[coding](plain)
    if step == 1:
        packed = PACK[coding](plain[:3000])
        plain = plain[:3000]
    assert unpacked(CODINGS[coding](LIMIT), packed, step) == plain


@CODED
def test_zeros_that_fill_whole_steps_come_out_whole(coding: str) -> None:
    for size in (65_536, 65_536 * 3, 131_072 * 2, 131_072 * 2 + 1):
        assert unpacked(CODINGS[coding](LIMIT), PACK[coding](bytes(size))) == bytes(size)


@CODED
def test_frames_one_after_another_are_one_body(coding: str) -> None:
    plain = [text(3000), b"", text(70_000), b"end"]
    packed = b"".join(PACK[coding](part) for part in plain)
    for step in (1, 1000, 10**9):
        assert unpacked(CODINGS[coding](LIMIT), packed, step) == b"".join(plain)


def test_skippable_frames_and_frames_without_their_size_are_read() -> None:
    skipped = struct.pack("<II", 0x184D2A50, 5) + b"12345"
    streamed = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(b"plain")
    assert unpacked(CODINGS["zstd"](LIMIT), skipped + streamed + skipped) == b"plain"


@CODED
def test_the_limit_is_of_what_comes_out_to_the_byte(coding: str) -> None:
    assert len(unpacked(CODINGS[coding](5000), PACK[coding](bytes(5000)))) == 5000
    with pytest.raises(TooLarge):
        unpacked(CODINGS[coding](5000), PACK[coding](bytes(5001)))


@CODED
def test_what_is_cut_short_or_has_no_frame_is_corrupt(coding: str) -> None:
    packed = PACK[coding](text(3000))
    for cut in (0, 1, 3, 10, len(packed) // 2, len(packed) - 1):
        with pytest.raises(Corrupt):
            unpacked(CODINGS[coding](LIMIT), packed[:cut])


@CODED
def test_what_is_damaged_or_followed_by_something_else_is_corrupt(coding: str) -> None:
    packed = PACK[coding](text(3000))
    for bad in (b"\0" + packed, b'{"model":1}', packed + b"x", packed + bytes(4), packed + packed[:-3]):
        with pytest.raises(Corrupt):
            unpacked(CODINGS[coding](LIMIT), bad)


def test_a_checksum_that_does_not_fit_is_corrupt() -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(text(3000)))
    packed[-1] ^= 1
    with pytest.raises(Corrupt):
        unpacked(CODINGS["zstd"](LIMIT), bytes(packed))
    zipped = bytearray(gzip.compress(text(3000)))
    zipped[-5] ^= 1
    with pytest.raises(Corrupt):
        unpacked(CODINGS["gzip"](LIMIT), bytes(zipped))


def test_a_window_larger_than_any_body_is_not_made_room_for() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = compressor.compress(b"x" * 100) + compressor.flush()
    with pytest.raises(Corrupt, match="memory"):
        unpacked(CODINGS["zstd"](LIMIT), packed)


@CODED
def test_empty_frames_without_end_are_refused(coding: str) -> None:
    empty = PACK[coding](b"")
    assert unpacked(CODINGS[coding](LIMIT), empty * MOST_FRAMES) == b""
    with pytest.raises(Corrupt):
        unpacked(CODINGS[coding](LIMIT), empty * (MOST_FRAMES + 1))


def zstd_bomb() -> bytes:
    """1 MiB that unpacks to 4 GiB and more: blocks of one byte repeated 128 KiB times."""
    head = struct.pack("<IBB", 0xFD2FB528, 0, 0x68)
    block = struct.pack("<I", (131_072 << 3) | 0b010)[:3] + b"\0"
    return head + block * (1024 * 1024 // len(block))


def gzip_bomb() -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9) as packed:
        for _ in range(64):
            packed.write(bytes(1024 * 1024))
    return out.getvalue()


@pytest.mark.parametrize(("coding", "bomb"), [("zstd", zstd_bomb), ("gzip", gzip_bomb)])
def test_a_bomb_is_refused_at_the_limit_with_memory_flat(coding: str, bomb: Callable[[], bytes]) -> None:
    """N70: 1 MiB of zstd that unpacks to 4 GiB."""
    packed = bomb()
    assert coding == "gzip" or (len(packed) >= 1024 * 1024 and len(packed) // 4 * 131_072 >= 4 * 1024**3)
    unpacker = CODINGS[coding](BOMB_LIMIT)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            unpacked(unpacker, packed, 65_536)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * BOMB_LIMIT
    assert unpacker.data() == b""
