"""Folders that the servers' user can reach, and the environment of somebody who has set nothing."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.settings.env import VARIABLES


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
