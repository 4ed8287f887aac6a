"""Headless Chromium for the browser tests: the machine's, or Debian's where apt can bring it.

Outside CI a machine without one says "not run: reason"; in CI that is a failure.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from demo.chromium import FLAGS, find
from tests.clients.policy import not_run


def executable() -> str:
    """The browser's path; installs Debian's as root where apt is. Ends the test if there is none."""
    found = find()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]):
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode:
                not_run(f"{' '.join(command)} failed: {done.stderr[-300:]}")
        found = find()
    if found is None:
        not_run("there is no Chromium on PATH, and apt-get cannot bring it")
    assert found is not None
    return found


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """A browser of playwright's sync API. The ORM cannot be used inside: rows are made before and checked after."""
    from playwright.sync_api import sync_playwright

    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
