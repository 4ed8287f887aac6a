"""The services of a test run: starts a private PostgreSQL and Valkey unless DATABASE_URL / REDIS_URL name some.

Loaded by `-p tests.plugin` before pytest-django reads the settings. Workers of pytest-xdist use the controller's PostgreSQL, with a
database each, and a Valkey of their own: its keys hold row ids, and those are the same in every worker's database.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config.launch import embedded, folders, secrets

PREFIX = "weir-test-"
OWN_VALKEY = "WEIR_TEST_OWN_VALKEY"
"""Set by a controller that started Valkey itself, so that its workers do, too."""
MARKER = "weir:tests"
"""The key by which a server that was given is known as one for tests, whose keys may be thrown away."""

_servers: list[embedded.Server] = []
_folder: Path | None = None
_given_redis: str | None = None
_may_empty = False


def start() -> None:
    global _given_redis
    made = secrets.make()
    for name in ("SECRET_KEY", "ENCRYPTION_KEYS", "KEY_PEPPERS"):
        os.environ.setdefault(name, made[name])
    os.environ.update(folders.loopback_without_proxy(os.environ))
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    needs_postgres = not os.environ.get("DATABASE_URL")
    needs_valkey = not os.environ.get("REDIS_URL") or (is_worker and OWN_VALKEY in os.environ)
    if not needs_valkey and not is_worker and OWN_VALKEY not in os.environ:
        _given_redis = os.environ["REDIS_URL"]
    if not needs_postgres and not needs_valkey and os.environ.get("WEIR_VAR"):
        return
    folder = _make_folder()
    os.environ.setdefault("WEIR_VAR", str(folder / "var"))
    if needs_postgres:
        postgres = embedded.start_postgres(folder, made, log=folder / "postgres.log", durable=False)
        _servers.append(postgres)
        os.environ["DATABASE_URL"] = postgres.url
    if needs_valkey:
        valkey = embedded.start_valkey(folder, made["REDIS_PASSWORD"], log=folder / "valkey.log", durable=False)
        _servers.append(valkey)
        os.environ["REDIS_URL"] = valkey.url
        os.environ[OWN_VALKEY] = "1"


def _make_folder() -> Path:
    """A temporary folder that the servers' user can reach; those of runs that were killed are removed."""
    global _folder
    user = folders.server_user()
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108
    place = next((place for place in places if user is None or folders.can_enter(place, user.pw_uid)), places[0])
    for left in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (left / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    _folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    if user is not None:
        _folder.chmod(0o711)
    # Held until this process ends.
    fcntl.flock(os.open(_folder / "lock", os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)
    return _folder


def stop() -> None:
    while _servers:
        _servers.pop().stop()
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)


@contextlib.contextmanager
def _given() -> Iterator[Any]:
    import redis

    with redis.Redis.from_url(_given_redis or "") as client:
        yield client


def pytest_configure(config: pytest.Config) -> None:
    """Tests empty the Redis they use. One that was given must be empty, or known from an earlier run of the tests."""
    global _may_empty
    if not hasattr(config, "workerinput"):
        # As Ctrl-C does: the services are stopped and their folder is removed.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if _given_redis is None:
        return
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("with several workers leave REDIS_URL unset: each needs a server of its own.")
    with _given() as client:
        if client.dbsize() and not client.exists(MARKER):
            raise pytest.UsageError("REDIS_URL names a server that holds keys. Tests empty theirs: name an empty one, or none.")
        client.set(MARKER, 1)
    _may_empty = True


def pytest_unconfigure(config: pytest.Config) -> None:
    if _may_empty:
        # A test may have emptied it.
        with _given() as client:
            client.set(MARKER, 1)
    stop()


start()
