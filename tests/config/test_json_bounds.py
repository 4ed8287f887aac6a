"""What is too much to be read is told without reading it."""

import pytest

from config.json_bounds import MOST_VALUES, SMALL_BYTES, has_too_many

LISTS = b"[" + b"[]," * MOST_VALUES + b"1]"


@pytest.mark.parametrize(
    "data",
    [
        LISTS,
        b"[" + b'{"a":1},' * MOST_VALUES + b"1]",
        b"[" + b'"",' * MOST_VALUES + b"1]",
        b"[" + b"1," * MOST_VALUES + b"1]",
        b"[" + (b"[" * 500 + b"]" * 500 + b",") * (MOST_VALUES // 500) + b"1]",
        b'{"text":"' + b"\\\\" * 100_000 + b'","rest":' + LISTS + b"}",
        b'{"text":"\\"' + b"," * 100_000 + b'","rest":' + LISTS + b"}",
    ],
)
def test_more_values_than_are_read_are_too_many(data: bytes) -> None:
    assert has_too_many(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[" + b"[]," * (SMALL_BYTES // 4) + b"1]",
        b"[" + b"1," * (MOST_VALUES - 10) + b"1]",
        b'["' + b"a,b{c[" * MOST_VALUES + b'"]',
        b'["' + b'\\",' * MOST_VALUES + b'"]',
        b'["' + b"\\\\" * MOST_VALUES + b'"]',
        b'"' + b"," * MOST_VALUES * 2,
        b"[" + b'{"role":"user","content":"' + b"one, two, [three], {four}. " * 100_000 + b'"}]',
    ],
)
def test_long_text_is_not(data: bytes) -> None:
    assert not has_too_many(data)
