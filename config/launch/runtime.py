"""The runtime file: how commands beside a running stack find its services."""

import json
import os
from pathlib import Path
from typing import Any

from config.launch import secrets

FILE = "run.json"
NEEDED = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "ENCRYPTION_KEYS", "KEY_PEPPERS")


class NothingRuns(Exception):
    """No stack, or more than one, could be the one that a command means."""


def write(var: Path, *, environ: dict[str, str], base_url: str) -> None:
    """Holds secrets, so 0600. Removed when the stack stops."""
    secrets.write_private(var / FILE, json.dumps({"pid": os.getpid(), "base_url": base_url, "environ": environ}))


def remove(var: Path) -> None:
    (var / FILE).unlink(missing_ok=True)


def read(var: Path) -> dict[str, Any] | None:
    """The file of a stack whose launcher is alive, else None."""
    try:
        found: dict[str, Any] = json.loads((var / FILE).read_text())
        os.kill(int(found["pid"]), 0)
    except (FileNotFoundError, ProcessLookupError, json.JSONDecodeError):
        return None
    except PermissionError:
        raise NothingRuns(f"the stack in {var} belongs to another user.") from None
    return found


def adopt(candidates: list[Path]) -> None:
    """Puts a running stack's environment under this process, unless the environment names everything itself.

    Raises NothingRuns with what to do.
    """
    if all(os.environ.get(name) for name in NEEDED):
        return
    running = [(var, found) for var in candidates if (found := read(var))]
    if not running:
        places = ", ".join(str(var) for var in candidates)
        raise NothingRuns(
            f"no stack runs in {places}. Start `manage.py up` or `manage.py demo`, name another by --var DIR, "
            f"or set {', '.join(NEEDED)}."
        )
    if len(running) > 1:
        raise NothingRuns("several stacks run: name one by --var DIR: " + ", ".join(str(var) for var, _ in running))
    for name, value in running[0][1]["environ"].items():
        os.environ.setdefault(name, value)


def pretend() -> None:
    """Settings that are enough to print a help text; nothing connects."""
    for name, value in {
        **secrets.make(),
        "DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "REDIS_URL": "redis://127.0.0.1:1",
    }.items():
        os.environ.setdefault(name, value)
