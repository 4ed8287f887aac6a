"""A pytest plugin for `test_plugin`: says that the services run, then waits to be killed."""

import tempfile
import time
from pathlib import Path


def pytest_configure() -> None:
    (Path(tempfile.gettempdir()) / "lingering").touch()
    time.sleep(60)
