"""Every secret that the test run makes, and where each may be seen.

Factories register what they make; the last test of the run searches logs, answers, queues, Redis and the database for all of it.
Where several workers run tests, each writes down what it knows, so that the one who runs the last test knows it, too.
"""

import base64
import json
import os
import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MIN_LENGTH = 16
"""Shorter texts would be found by chance."""


@dataclass(frozen=True, slots=True)
class Secret:
    kind: str
    value: str = field(repr=False)


@dataclass(slots=True)
class Seen:
    """What the tests of one process made and saw."""

    secrets: dict[str, Secret] = field(default_factory=dict, repr=False)
    answers: list[tuple[str, bytes]] = field(default_factory=list, repr=False)
    logs: list[Path] = field(default_factory=list)


_seen = Seen()
_shared: Path | None = None
_file = -1


def share(folder: Path, name: str) -> None:
    """From now on what is seen here is also written to `folder`, and what others wrote there is seen here."""
    global _shared, _file
    folder.mkdir(mode=0o700, exist_ok=True)
    _shared = folder
    _file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _write(*note: str) -> None:
    if _shared is not None:
        # One write, whole: threads may register at once.
        line = json.dumps(note).encode() + b"\n"
        assert os.write(_file, line) == len(line)


def register(value: str, kind: str) -> str:
    """Remembers a secret for the search and gives it back."""
    assert len(value) >= MIN_LENGTH, f"{kind} is too short to be searched for"
    _seen.secrets[value] = Secret(kind, value)
    _write("secret", kind, value)
    return value


def record_answer(where: str, content: bytes) -> None:
    """An answer that the product gave, head and body, to be searched."""
    _seen.answers.append((where, content))
    _write("answer", where, base64.b64encode(content).decode())


def record_logs(folder: Path) -> None:
    """A folder whose files *.log processes of the product write, to be searched."""
    _seen.logs.append(folder)
    _write("logs", str(folder))


def everything() -> dict[str, Seen]:
    """What each worker of the run made and saw, by its name; of a run without workers, one without a name."""
    if _shared is None:
        return {"": _seen}
    return {path.name: _read(path) for path in sorted(_shared.iterdir())}


def _read(path: Path) -> Seen:
    seen = Seen()
    for line in path.read_bytes().splitlines():
        what, *note = json.loads(line)
        if what == "secret":
            seen.secrets[note[1]] = Secret(*note)
        elif what == "answer":
            seen.answers.append((note[0], base64.b64decode(note[1])))
        else:
            seen.logs.append(Path(note[0]))
    return seen


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
