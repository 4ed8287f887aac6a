#!/usr/bin/env python3
"""The way in: `demo`, `up` and `test` prepare a virtual environment and run inside it; every other command only runs inside it.

Standard library only, for it must run on a machine that has nothing but Python.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent
LOCK = PROJECT / "requirements.lock"
UV_LOCK = PROJECT / "requirements-uv.lock"
PREPARING = ("demo", "up", "test")
OLDEST = (3, 11)


def fail(message: str) -> "None":
    sys.exit(f"manage.py: {message}")


def home() -> Path:
    """Where the virtual environment lives: the project, or a folder of this user's where the project cannot be written."""
    if os.access(PROJECT, os.W_OK):
        return PROJECT
    mark = hashlib.sha256(str(PROJECT).encode()).hexdigest()[:10]
    return Path.home() / ".local" / "share" / f"weir-{mark}"


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def is_inside(folder: Path) -> bool:
    return Path(sys.prefix).resolve() == folder.resolve()


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """One installation at a time; a second one waits and then finds it done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def wanted_stamp() -> str:
    text = LOCK.read_bytes() + f"{sys.version_info[:3]} {sys.executable}".encode()
    return hashlib.sha256(text).hexdigest()


def prepare(folder: Path) -> None:
    """Makes the environment and installs the lock, unless the stamp says that this was done."""
    stamp = folder / "weir-lock.sha256"
    with alone(folder.with_name(folder.name + ".lock")):
        if stamp.exists() and stamp.read_text() == wanted_stamp() and python_of(folder).exists():
            return
        started = time.monotonic()
        print("Installing what requirements.lock pins ...", flush=True)
        stamp.unlink(missing_ok=True)
        if not python_of(folder).exists() or subprocess.run([python_of(folder), "-c", ""], check=False).returncode:
            shutil.rmtree(folder, ignore_errors=True)
            venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        install(folder)
        stamp.write_text(wanted_stamp())
        print(f"Installed in {time.monotonic() - started:.0f} s.", flush=True)


def install(folder: Path) -> None:
    """By uv where it can be had (seconds), else by pip alone (half a minute)."""
    python = str(python_of(folder))
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        fail("this Python has no pip. Install it (Debian: apt-get install python3-pip) and run the command again.")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python, "install", "--require-hashes"]
    uv = folder / "bin" / "uv"
    has_uv = uv.exists() or not subprocess.run([*pip, "-r", str(UV_LOCK)], check=False).returncode
    if has_uv:
        command = [str(uv), "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", str(LOCK)]
        if not subprocess.run(command, cwd=folder, check=False).returncode:
            return
        print("uv could not install; trying pip ...", flush=True)
    if subprocess.run([*pip, "-r", str(LOCK)], check=False).returncode:
        fail("the packages of requirements.lock could not be installed; the lines above say why.")


def take_var(arguments: list[str]) -> list[str]:
    """Takes `--var DIR` (or --var=DIR) out of the arguments, for every command alike, and sets WEIR_VAR."""
    rest: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument == "--":
            return [*rest, argument, *left]
        if argument == "--var":
            value = next(left, "")
            if not value or value.startswith("-"):
                fail("--var needs a folder.")
            os.environ["WEIR_VAR"] = str(Path(value).expanduser().absolute())
        elif argument.startswith("--var="):
            os.environ["WEIR_VAR"] = str(Path(argument.removeprefix("--var=")).expanduser().absolute())
        else:
            rest.append(argument)
    return rest


def main() -> None:
    if sys.version_info < OLDEST:
        fail(f"Python {'.'.join(map(str, OLDEST))} or newer is needed; this is {sys.version.split()[0]} ({sys.executable}).")
    arguments = sys.argv[1:]
    command = arguments[0] if arguments else "help"
    folder = home() / ".venv"
    if not is_inside(folder):
        if command in PREPARING:
            prepare(folder)
        elif not python_of(folder).exists():
            fail(f"nothing is installed yet: run `python3 manage.py {'`, `python3 manage.py '.join(PREPARING)}` first.")
        os.execv(python_of(folder), [str(python_of(folder)), str(PROJECT / "manage.py"), *arguments])  # noqa: S606
    from config.launch import entry

    entry.main(command, take_var(arguments) if command != "test" else arguments)


if __name__ == "__main__":
    main()
