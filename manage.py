#!/usr/bin/env python3
"""The way in: `demo`, `up`, `test` and `bench` prepare a virtual environment and run in it; every other command only runs in it.

Standard library only, for it must run on a machine that has nothing but Python, and parse under older ones to say so.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
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
PREPARING = ("demo", "up", "test", "bench")
OLDEST = (3, 11)
CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class Unusable(Exception):
    """The command cannot run here; the text says why and what to do."""


def home() -> Path:
    """Where the virtual environment lives: the project, or where this user's data go if the project cannot be written."""
    if os.access(PROJECT, os.W_OK):
        return PROJECT
    name = "weir-" + hashlib.sha256(str(PROJECT).encode()).hexdigest()[:10]
    return (Path("/var/lib") if os.geteuid() == 0 else Path.home() / ".local" / "share") / name


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def is_inside(folder: Path) -> bool:
    return Path(sys.prefix).resolve() == folder.resolve()


@contextlib.contextmanager
def alone(path: Path) -> "Iterator[None]":
    """One installation at a time; a second one waits and then finds it done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def wanted_stamp() -> str:
    """Changes with the lock, and with the Python that the environment was made by."""
    return f"{hashlib.sha256(LOCK.read_bytes()).hexdigest()} python{sys.version_info[0]}.{sys.version_info[1]}\n"


def prepare(folder: Path) -> None:
    """Makes the environment and installs the lock, unless the stamp says that this was done."""
    stamp = folder / "requirements.sha256"
    with alone(folder.with_name(folder.name + ".lock")):
        if stamp.exists() and stamp.read_text() == wanted_stamp() and python_of(folder).exists():
            return
        started = time.monotonic()
        print("Installing what requirements.lock pins ...", flush=True)
        stamp.unlink(missing_ok=True)
        packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        if not packages.exists() or not python_of(folder).exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        install(folder)
        stamp.write_text(wanted_stamp())
        print(f"Installed in {time.monotonic() - started:.0f} s.", flush=True)


def install(folder: Path) -> None:
    """By uv where it can be had (seconds), else by pip alone (half a minute)."""
    environ = network_environment()
    pip = [*pip_for(folder, environ), "install", "--require-hashes"]
    uv = folder / "bin" / "uv"
    if uv.exists() or not subprocess.run([*pip, "-r", str(UV_LOCK)], env=environ, check=False).returncode:
        # Compiling to bytecode is left to the first import: most modules are never imported.
        command = [str(uv), "pip", "install", "--quiet", "--no-config", "--python", str(python_of(folder)), "--require-hashes"]
        if not subprocess.run([*command, "-r", str(LOCK)], cwd=folder, env=uv_environment(environ, pip), check=False).returncode:
            return
    print("Without uv; pip alone takes half a minute ...", flush=True)
    if subprocess.run([*pip, "--no-compile", "-r", str(LOCK)], env=environ, check=False).returncode:
        raise Unusable("the packages of requirements.lock could not be installed; the lines above say why.")


def network_environment() -> "dict[str, str]":
    """The environment, with the certificates that one tool is told of named for the others too."""
    environ = dict(os.environ)
    given = next((environ[name] for name in CERTIFICATES if environ.get(name)), None)
    if given:
        for name in ("SSL_CERT_FILE", "PIP_CERT"):
            environ[name] = environ.get(name) or given
    environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return environ


def uv_environment(environ: "dict[str, str]", pip: "list[str]") -> "dict[str, str]":
    """uv reads none of pip's configuration: where that replaces the public index, uv is told of it.

    By a variable and not by an argument, which other users of the machine could read.
    """
    made = dict(environ)
    asked = [*pip[: pip.index("pip") + 1], "config", "list"]
    configured = subprocess.run(asked, env=environ, capture_output=True, text=True, check=False).stdout
    index = re.search(r"^[^.\n]*\.index-url='(.*)'$", configured, flags=re.MULTILINE)
    if index:
        made.setdefault("UV_DEFAULT_INDEX", index.group(1))
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    existing = next(part for part in (cache, *cache.parents) if part.exists())
    if not os.access(existing, os.W_OK):
        made.setdefault("UV_NO_CACHE", "1")
    return made


def pip_for(folder: Path, environ: "dict[str, str]") -> "list[str]":
    """The command line of a pip that installs into `folder`: this Python's, its base's, or one that ensurepip unpacks there."""
    python = str(python_of(folder))
    for interpreter in (sys.executable, getattr(sys, "_base_executable", sys.executable)):
        pip = [interpreter, "-m", "pip"]
        if not subprocess.run([*pip, "--version"], env=environ, capture_output=True, check=False).returncode:
            return [*pip, "--quiet", "--python", python]
    if not subprocess.run([python, "-m", "ensurepip"], env=environ, capture_output=True, check=False).returncode:
        return [python, "-m", "pip", "--quiet"]
    raise Unusable("this Python has no pip. Install it (Debian: apt-get install python3-pip) and run the command again.")


def take_var(arguments: "list[str]") -> "list[str]":
    """Takes `--var DIR` (or --var=DIR) out of the arguments, for every command alike, and sets WEIR_VAR."""
    rest: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument == "--":
            return [*rest, argument, *left]
        if argument == "--var" or argument.startswith("--var="):
            value = argument[len("--var=") :] if "=" in argument else next(left, "")
            if not value or value.startswith("-"):
                raise Unusable("--var needs a folder.")
            os.environ["WEIR_VAR"] = str(Path(value).expanduser().absolute())
        else:
            rest.append(argument)
    return rest


def main() -> None:
    if sys.version_info < OLDEST:
        needed = ".".join(str(part) for part in OLDEST)
        raise Unusable(f"Python {needed} or newer is needed; this is {sys.version.split()[0]} ({sys.executable}).")
    arguments = take_var(sys.argv[1:])
    command = arguments[0] if arguments else "help"
    folder = home() / ".venv"
    if not is_inside(folder):
        if command in PREPARING:
            prepare(folder)
        if python_of(folder).exists():
            os.execv(python_of(folder), [str(python_of(folder)), str(PROJECT / "manage.py"), *arguments])  # noqa: S606
        # An image of one's own has the packages in its own Python.
        if importlib.util.find_spec("django") is None:
            choices = ", ".join(f"`python3 manage.py {name}`" for name in PREPARING)
            raise Unusable(f"nothing is installed yet. Run one of {choices} first.")
    from config.launch import entry

    entry.main(command, arguments)


if __name__ == "__main__":
    try:
        main()
    except Unusable as error:
        sys.exit(f"manage.py: {error}")
