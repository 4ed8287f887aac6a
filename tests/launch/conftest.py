"""Folders that the servers' user can reach, and the environment of somebody who has set nothing."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from config.settings.env import VARIABLES
from tests.launch.launching import MANAGE, Stack


@pytest.fixture
def folder() -> Iterator[Path]:
    """Empty and short-lived; `nobody` may pass through it (pytest's own temporary folders are closed to others)."""
    made = Path(tempfile.mkdtemp(prefix="weir-launch-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment without our settings, as the launcher meets it on a fresh machine."""
    ours = {variable.name for variable in VARIABLES} | {"DJANGO_SETTINGS_MODULE"}
    return {name: text for name, text in os.environ.items() if name not in ours}


@pytest.fixture
def launch(folder: Path, environ: dict[str, str]) -> Iterator[Callable[..., Stack]]:
    with ExitStack() as started:

        def start(command: str, port: int, *, gateways: int = 1, given: dict[str, str] | None = None) -> Stack:
            output = folder / "output"
            arguments = [command, "--var", str(folder / "var"), "--port", str(port), "--gateways", str(gateways)]
            with output.open("wb") as out:
                process = subprocess.Popen(
                    [*MANAGE, *arguments], env={**environ, **(given or {})}, stdout=out, stderr=out, start_new_session=True
                )
            stack = Stack(folder / "var", port, process, output)
            started.callback(stack.end)
            return stack

        yield start
