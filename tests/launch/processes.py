"""Watching processes that are not our children."""

import os
import time
from collections.abc import Iterable
from pathlib import Path


def is_alive(pid: int) -> bool:
    """A zombie is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def still_alive(pids: Iterable[int], *, within: float) -> list[int]:
    """Those that are still there after `within` seconds; returns at once when none is."""
    deadline = time.monotonic() + within
    watched = list(pids)
    while (left := [pid for pid in watched if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, however deep."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def owner(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid
