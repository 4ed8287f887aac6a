"""`manage.py test`: the whole of the README's test command, or pytest with the arguments given."""

import os
import subprocess
import sys
import time

from config.launch import folders

BEFORE = (
    ("ruff check", ["ruff", "check", "."]),
    ("ruff format", ["ruff", "format", "--check", "."]),
    ("import contracts", ["importlinter.cli", "lint"]),
    ("migrations", ["django", "makemigrations", "--check", "--dry-run"]),
)
# Last, because it is slow on an empty cache and the tests tell more.
AFTER = (("types", ["mypy"]),)


def run(title: str, command: list[str], environ: dict[str, str]) -> int:
    print(f"\n== {title}", flush=True)
    started = time.monotonic()
    code = subprocess.run(command, cwd=folders.PROJECT, env=environ, check=False).returncode
    print(f"== {title}: {'ok' if code == 0 else f'failed ({code})'} in {time.monotonic() - started:.1f} s", flush=True)
    return code


def module(arguments: list[str]) -> list[str]:
    if arguments[0] == "importlinter.cli":
        return [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    return [sys.executable, "-m", *arguments]


def main(arguments: list[str]) -> int:
    """With arguments, only pytest. The exit code is that of the first part that failed."""
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings.test", "PYTHONPATH": str(folders.PROJECT)}
    if arguments:
        return run("pytest", [sys.executable, "-m", "pytest", *arguments], environ)
    # The services start once for all parts.
    os.environ.update(environ)
    from tests import plugin

    environ = {**os.environ}
    try:
        for title, command in BEFORE:
            if code := run(title, module(command), environ):
                return code
        code = run("pytest", [sys.executable, "-m", "pytest"], environ)
        for title, command in AFTER:
            code = run(title, module(command), environ) or code
        return code
    finally:
        plugin.stop()
