"""The runtime file: how commands beside a running stack find its services."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from config.launch import folders, secrets

FILE = "run.json"
LOCK = "stack.lock"
NEEDED = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "ENCRYPTION_KEYS", "KEY_PEPPERS")


class NothingRuns(Exception):
    """No stack, or more than one, could be the one that a command means; the text says what to do."""


class InUse(Exception):
    """Another stack runs in this data folder."""


@dataclass(frozen=True, slots=True)
class Running:
    """A stack whose launcher is alive: `environ` is what its processes read their settings from, `processes` name -> pid."""

    var: Path
    pid: int
    base_url: str
    processes: Mapping[str, int]
    environ: Mapping[str, str] = field(repr=False)


def write(var: Path, *, environ: Mapping[str, str], base_url: str, processes: Mapping[str, int]) -> None:
    """Of the environment only our settings. They hold secrets, so 0600. Removed when the stack stops."""
    from config.settings.env import VARIABLES

    names = {variable.name for variable in VARIABLES} | {"DJANGO_SETTINGS_MODULE"}
    kept = {name: value for name, value in sorted(environ.items()) if name in names}
    found = {"pid": os.getpid(), "base_url": base_url, "processes": dict(processes), "environ": kept}
    secrets.write_private(var / FILE, json.dumps(found, indent=1))


def remove(var: Path) -> None:
    (var / FILE).unlink(missing_ok=True)


def read(var: Path) -> Running | None:
    """The stack of this data folder, or None. Raises NothingRuns when it is another user's."""
    try:
        with (var / LOCK).open() as lock:
            if _is_free(lock):
                return None
        found: dict[str, Any] = json.loads((var / FILE).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise NothingRuns(f"the stack in {var} belongs to another user.") from None
    return Running(var, int(found["pid"]), found["base_url"], found["processes"], found["environ"])


def _is_free(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def alone_in(var: Path) -> Iterator[None]:
    """One stack per data folder: the lock ends with the process that holds it. Raises InUse."""
    with (var / LOCK).open("a") as lock:
        deadline = time.monotonic() + 0.3
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # A command that looks whether a stack runs holds it for a moment.
                if time.monotonic() > deadline:
                    raise InUse(f"another run is using {var}. Stop it, or name another folder by --var DIR.") from None
                time.sleep(0.02)
        yield


def adopt(*, join: bool) -> None:
    """Puts the settings of a running stack under this process.

    A stack in the folder that --var or WEIR_VAR names goes before the environment, for it was asked for by name. Otherwise a
    complete environment is used as it is, and what it lacks is taken from the one stack that runs in a default folder; with `join`
    false not even that (a command that serves must not slip into somebody's stack). Raises NothingRuns with what to do.
    """
    given = folders.given_var()
    named = read(given) if given else None
    if named:
        os.environ.update(named.environ)
        return
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if not missing:
        return
    if not join:
        raise NothingRuns(f"set {', '.join(missing)}. (`manage.py up` starts services of its own.)")
    candidates = folders.running_candidates()
    running = [found for var in candidates if (found := read(var))]
    if not running:
        places = " or ".join(str(var) for var in candidates)
        raise NothingRuns(
            f"no stack runs in {places}. Start `manage.py up` or `manage.py demo`, name its folder by --var DIR, "
            f"or set {', '.join(missing)}."
        )
    if len(running) > 1:
        raise NothingRuns("two stacks run. Name one: " + " or ".join(f"--var {one.var}" for one in running))
    for name, value in running[0].environ.items():
        os.environ.setdefault(name, value)


def pretend() -> None:
    """Settings that are enough for a command that connects to nothing, such as one that prints its help."""
    for name, value in {
        **secrets.make(),
        "DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "REDIS_URL": "redis://127.0.0.1:1",
    }.items():
        os.environ.setdefault(name, value)
