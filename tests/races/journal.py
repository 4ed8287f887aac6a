"""What a worker did and was told, a line for each, written before and after; what is written survives a kill -9."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, request: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "request": request, "at": time.time(), **facts})
        os.write(self._file, line.encode() + b"\n")


@dataclass
class Told:
    """Everything the journals say of one request id. Amounts are (micro-credits, tokens)."""

    request: str
    organization: int = 0
    public_id: str = ""
    need: tuple[int, int] = (0, 0)
    ack: int | None = None
    """The server's ms of the answer that admitted it; None: nobody heard one."""
    is_refused: bool = False
    endings: list[tuple[str, int, int]] = field(default_factory=list)
    """`S` or `R` with its amounts, as they were sent."""
    answers: list[tuple[str, str]] = field(default_factory=list)
    """`S` or `R` and the outcome, as they were answered."""
    observed: set[tuple[int, int]] = field(default_factory=lambda: {(0, 0)})
    facts: dict[str, Any] = field(default_factory=dict)


def read(folder: Path) -> dict[str, Told]:
    """All journals of a run, by request id."""
    told: dict[str, Told] = {}
    for line in _lines(folder):
        one = told.setdefault(line["request"], Told(line["request"]))
        what = line["what"]
        if what == "try":
            one.organization, one.public_id, one.need = line["organization"], line["key"], tuple(line["need"])
        elif what == "admitted":
            one.ack = line["ack"]
        elif what == "refused":
            one.is_refused, one.facts = True, line["facts"]
        elif what == "observed":
            one.observed.add(tuple(line["amount"]))
        elif what == "ending":
            one.endings.append((line["state"], *line["amount"]))
        elif what == "ended":
            one.answers.append((line["state"], line["outcome"]))
    return told


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.journal")):
        for raw in path.read_bytes().split(b"\n"):
            if raw.endswith(b"}"):
                yield json.loads(raw)
