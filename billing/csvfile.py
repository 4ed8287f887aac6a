"""CSV that a spreadsheet opens without running anything in it, and that reads back as what was written (RFC 4180, UTF-8).

Text cells are quoted, and a text that a spreadsheet could take for a formula gets an apostrophe in front. Where a spreadsheet
expects another separator than the comma, it takes a cell apart at a semicolon in spite of the quotes: what stands behind a
separator inside a text is guarded like a beginning. `unguarded` takes off exactly what was put on. Numbers, times and words of our
own stand bare, and a minus in front of a number stays one: only text is guarded.
"""

import re
import unicodedata
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

BOM = "\ufeff"
"""In front of the file, it tells Excel that the text is UTF-8 (I7)."""
END = "\r\n"
GUARD = "'"
_SEPARATORS = re.compile(r"([;|\t\r\n])")
_SIGNS = frozenset("=+-@\u2212")
"""What a formula begins with; U+2212 is what the small and raised minus signs stand for."""
_CONTROLS = frozenset({"Cc", "Zl", "Zp"})
_SKIPPED = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
"""Categories that a spreadsheet may drop in front of a formula: controls, invisible marks, spaces of all kinds."""


def is_formula(value: str) -> bool:
    """Could a spreadsheet take this for a formula?

    It begins with = + - @ in any width or size, also behind spaces, invisible characters, quotes and apostrophes; or with a tab,
    a line break or another control.
    """
    start = value.lstrip(GUARD)[:1]
    if start and unicodedata.category(start) in _CONTROLS:
        return True
    for character in value:
        if character in "'\"" or unicodedata.category(character) in _SKIPPED:
            continue
        return unicodedata.normalize("NFKC", character)[0] in _SIGNS
    return False


@lru_cache(maxsize=8192)
def text(value: str | None) -> str:
    """The cell of a text: quoted, guarded; the empty cell for None. A NUL, which no reader takes, becomes U+FFFD."""
    return "" if value is None else encoded(value)


def encoded(value: str) -> str:
    """As `text`, for texts that do not come twice."""
    value = guarded(value.replace("\0", "\ufffd")).replace('"', '""')
    return f'"{value}"'


def guarded(value: str) -> str:
    first, *rest = _SEPARATORS.split(value)
    return "".join(
        (
            GUARD + first if is_formula(value) else first,
            *(GUARD + part if is_formula(part) and not _SEPARATORS.fullmatch(part) else part for part in rest),
        )
    )


def unguarded(value: str) -> str:
    """The text that was written, of the text that was read: exact, whatever it began with."""
    first, *rest = _SEPARATORS.split(value)
    if first.startswith(GUARD) and is_formula(value[1:]):
        first = first[1:]
    return "".join((first, *(part[1:] if part.startswith(GUARD) and is_formula(part[1:]) else part for part in rest)))


def number(value: int | None) -> str:
    return "" if value is None else str(value)


def flag(value: bool) -> str:
    return "true" if value else "false"


def moment(at: datetime, zone: ZoneInfo) -> str:
    """To the second, with the zone's offset of that moment: 2026-11-24T14:20:03+01:00."""
    return at.astimezone(zone).isoformat(timespec="seconds")


def line(cells: Iterable[str]) -> str:
    """One record of cells that are encoded already."""
    return ",".join(cells) + END


def file_name(*parts: str) -> str:
    """A name for the download that no header and no file system reads otherwise: ASCII letters, digits, dots and hyphens."""
    kept = ["".join(character if character.isascii() and character.isalnum() else "-" for character in part) for part in parts]
    return "-".join(part.strip("-") for part in kept if part.strip("-"))[:120] + ".csv"
