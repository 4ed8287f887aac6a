"""`manage.py test`: the whole of the README's test command, or pytest with the arguments given."""

import os
import signal
import subprocess
import sys
import time

from config.launch import embedded, folders

BEFORE = (
    ("ruff check", ["ruff", "check", "."]),
    ("ruff format", ["ruff", "format", "--check", "."]),
    ("import contracts", ["importlinter.cli", "lint"]),
    ("migrations", ["django", "makemigrations", "--check", "--dry-run"]),
)
# Last, because it is slow on an empty cache and the tests tell more.
AFTER = (("types", ["mypy"]),)
MOST_WORKERS = 4
"""Each has a database, a Valkey and a running stack of its own."""


def run(title: str, command: list[str], environ: dict[str, str]) -> int:
    print(f"\n== {title}", flush=True)
    started = time.monotonic()
    # Ends with this process, so that a run that is cut does not go on unseen.
    ends_along = embedded.dies_with_parent(signal.SIGTERM)
    with subprocess.Popen(command, cwd=folders.PROJECT, env=environ, preexec_fn=ends_along) as process:
        try:
            code = process.wait()
        except SystemExit:
            process.terminate()
            process.wait()
            raise
    print(f"== {title}: {'ok' if code == 0 else f'failed ({code})'} in {time.monotonic() - started:.1f} s", flush=True)
    return code


def module(arguments: list[str]) -> list[str]:
    if arguments[0] == "importlinter.cli":
        return [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    return [sys.executable, "-m", *arguments]


def main(arguments: list[str]) -> int:
    """With arguments, only pytest. The exit code is that of the first part that failed."""
    # What was started is stopped and removed then, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # Each of the many processes that tests start would else compile all it imports anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ |= {"DJANGO_SETTINGS_MODULE": "config.settings.test", "PYTHONPATH": str(folders.PROJECT)}
    try:
        if arguments:
            return run("pytest", [sys.executable, "-m", "pytest", *arguments], dict(os.environ))
        return everything()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def beside_each_other(environ: dict[str, str]) -> list[str]:
    """pytest's arguments for several workers: two more than cores, for tests often wait.

    None with services that were given: workers need some of their own.
    """
    from tests import plugin

    if plugin.OWN not in environ:
        return []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores + 2, MOST_WORKERS)
    # In the order that tests/conftest.py makes, to the workers that tests/spreading.py chooses.
    return ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]


def everything() -> int:
    # The services start once for all parts.
    from tests import plugin

    environ = dict(os.environ)
    try:
        for title, command in BEFORE:
            if code := run(title, module(command), environ):
                return code
        code = run("pytest", [sys.executable, "-m", "pytest", *beside_each_other(environ)], environ)
        for title, command in AFTER:
            code = code or run(title, module(command), environ)
        return code
    finally:
        plugin.stop()
