"""Which settings a command runs under, and what it says when no stack runs."""

import os
import subprocess
import sys
from pathlib import Path

from config.launch import folders, runtime


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """With nothing set but the data folder."""
    unset = {*runtime.NEEDED, "DJANGO_SETTINGS_MODULE"}
    environ = {name: value for name, value in os.environ.items() if name not in unset} | {"WEIR_VAR": str(folder)}
    command = [sys.executable, str(folders.PROJECT / "manage.py"), *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


def test_a_misspelled_command_is_told_so_and_not_to_start_a_stack(folder: Path) -> None:
    done = run(folder, "add_membr")
    assert done.returncode == 1
    assert done.stderr.startswith("Unknown command: 'add_membr'")
    assert "no stack runs" not in done.stderr


def test_a_command_without_a_stack_says_what_to_start(folder: Path) -> None:
    done = run(folder, "usage", "acme")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"manage.py usage: no stack runs in {folder}. Start `manage.py up`")


def test_collectstatic_collects_for_a_server_without_being_told_the_settings(folder: Path) -> None:
    done = run(folder, "collectstatic", "--no-input", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"static files copied to '{folder / 'static'}'" in done.stdout
