"""Which Chromium of this machine is driven, and how it is started."""

import shutil

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """The path of the first that is there; None without one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)
