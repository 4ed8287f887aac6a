"""Every secret that the test run makes, and where each may be seen.

Factories register what they make; the last test of the run searches logs, answers, queues, Redis and the database for all of it.
"""

import base64
import re
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


class Finder:
    """Looks for all spellings of many secrets at once: the runs of characters that a secret may hold, each run once, each of its
    positions in a table of beginnings. A spelling with other characters is searched for by itself.
    """

    WIDTH = 14
    RUN = re.compile(rb"[A-Za-z0-9+/_.%=~-]{14,}")

    def __init__(self, made: tuple[Secret, ...]) -> None:
        self._beginnings: dict[bytes, list[tuple[bytes, str]]] = {}
        self._odd: list[tuple[bytes, str]] = []
        for secret in made:
            for needle in spellings(secret):
                if self.RUN.fullmatch(needle):
                    self._beginnings.setdefault(needle[: self.WIDTH], []).append((needle, secret.kind))
                else:
                    self._odd.append((needle, secret.kind))
        self._clean: set[bytes] = set()

    def kinds_in(self, content: bytes) -> list[str]:
        """The kinds of the secrets that stand in it."""
        found = [kind for needle, kind in self._odd if needle in content]
        for run in set(self.RUN.findall(content)) - self._clean:
            hits = [
                kind
                for at in range(len(run) - self.WIDTH + 1)
                for needle, kind in self._beginnings.get(run[at : at + self.WIDTH], ())
                if run.startswith(needle, at)
            ]
            found += hits
            if not hits:
                self._clean.add(run)
        return found
