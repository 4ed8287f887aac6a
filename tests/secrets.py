"""Every secret that the test run makes, and where each may be seen.

Factories register what they make; the last test of the run searches logs, answers, queues, Redis and the database for all of it.
"""

import base64
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field

MIN_LENGTH = 16
"""Shorter texts would be found by chance."""


@dataclass(frozen=True, slots=True)
class Secret:
    kind: str
    value: str = field(repr=False)


_secrets: dict[str, Secret] = {}
_answers: list[tuple[str, bytes]] = []


def register(value: str, kind: str) -> str:
    """Remembers a secret for the search and gives it back."""
    assert len(value) >= MIN_LENGTH, f"{kind} is too short to be searched for"
    _secrets[value] = Secret(kind, value)
    return value


def registered() -> tuple[Secret, ...]:
    return tuple(_secrets.values())


def record_answer(where: str, content: bytes) -> None:
    """An answer that the product gave, head and body, to be searched."""
    _answers.append((where, content))


def answers() -> tuple[tuple[str, bytes], ...]:
    return tuple(_answers)


def spellings(secret: Secret) -> Iterator[bytes]:
    """Raw, URL-encoded, and base64 at each of the three alignments (without the characters that a neighbour changes)."""
    raw = secret.value.encode()
    yield raw
    quoted = urllib.parse.quote(secret.value, safe="").encode()
    if quoted != raw:
        yield quoted
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw)
        inner = encoded[4 if shift else 0 : -4]
        yield inner
        urlsafe = inner.replace(b"+", b"-").replace(b"/", b"_")
        if urlsafe != inner:
            yield urlsafe
