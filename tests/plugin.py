"""The services of a test run: starts a private PostgreSQL and Valkey unless DATABASE_URL / REDIS_URL name some.

Loaded by `-p tests.plugin` before pytest-django reads the settings. Workers of pytest-xdist inherit the addresses.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from config.launch import embedded, folders, secrets

_servers: list[embedded.Server] = []
_folder: Path | None = None


def start() -> None:
    global _folder
    for name, value in secrets.make().items():
        if name in ("SECRET_KEY", "ENCRYPTION_KEYS", "KEY_PEPPERS"):
            os.environ.setdefault(name, value)
    needs_postgres, needs_valkey = not os.environ.get("DATABASE_URL"), not os.environ.get("REDIS_URL")
    if not needs_postgres and not needs_valkey:
        return
    # In the system's temporary folder, which `nobody` can enter.
    _folder = Path(tempfile.mkdtemp(prefix="weir-test-"))
    if folders.server_user() is not None:
        _folder.chmod(0o711)
    os.environ.setdefault("WEIR_VAR", str(_folder / "var"))
    passwords = secrets.make()
    if needs_postgres:
        postgres = embedded.start_postgres(_folder, passwords, log=_folder / "postgres.log", durable=False)
        _servers.append(postgres)
        os.environ["DATABASE_URL"] = postgres.url
    if needs_valkey:
        valkey = embedded.start_valkey(_folder, passwords["REDIS_PASSWORD"], log=_folder / "valkey.log", durable=False)
        _servers.append(valkey)
        os.environ["REDIS_URL"] = valkey.url


def stop() -> None:
    while _servers:
        _servers.pop().stop()
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)


def pytest_unconfigure(config: Any) -> None:
    stop()


start()
