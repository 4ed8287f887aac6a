"""The services of a test run: starts a private PostgreSQL and Valkey unless DATABASE_URL / REDIS_URL name some.

Loaded by `-p tests.plugin` before pytest-django reads the settings. Workers of pytest-xdist share the run's PostgreSQL, with a
database each, and have a Valkey each: its keys hold row ids, and those are the same in every worker's database. All of them belong
to the run, not to the worker: the last test (`last`) searches what every worker left in them.

Tests marked `alone` measure time or memory: no other worker runs a test meanwhile. Which worker takes which tests is told by
tests/spreading.py.
"""

import contextlib
import fcntl
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from config import collector
from config.launch import embedded, folders, secrets
from tests import secrets as test_secrets
from tests import spreading

PREFIX = "weir-test-"
OWN = "WEIR_TEST_OWN"
"""The folder of a run that started both services itself; set for its workers and for the runs that share them."""
VALKEYS = "WEIR_TEST_VALKEYS"
"""The URLs of the workers' Valkeys, by number."""
WORKER = "PYTEST_XDIST_WORKER"
MARKER = "weir:tests"
"""The key by which a server that was given is known as one for tests, whose keys may be thrown away."""

_servers: list[embedded.Server] = []
_folder: Path | None = None
_made: dict[str, str] = {}
_given_redis: str | None = None
_may_empty = False


def start() -> None:
    global _given_redis
    _made.update(secrets.make())
    for name in ("SECRET_KEY", "ENCRYPTION_KEYS", "KEY_PEPPERS"):
        os.environ.setdefault(name, _made[name])
    os.environ.update(folders.loopback_without_proxy(os.environ))
    if WORKER in os.environ and OWN in os.environ:
        _take_valkey(int(os.environ[WORKER].removeprefix("gw")))
        return
    needs_postgres = not os.environ.get("DATABASE_URL")
    needs_valkey = not os.environ.get("REDIS_URL")
    if not needs_valkey and OWN not in os.environ:
        _given_redis = os.environ["REDIS_URL"]
    if not needs_postgres and not needs_valkey and os.environ.get("WEIR_VAR"):
        return
    folder = _make_folder()
    os.environ.setdefault("WEIR_VAR", str(folder / "var"))
    if needs_postgres:
        postgres = embedded.start_postgres(folder, _made, log=folder / "postgres.log", durable=False)
        _servers.append(postgres)
        os.environ["DATABASE_URL"] = postgres.url
    if needs_valkey:
        os.environ["REDIS_URL"] = _start_valkey(folder)
    if needs_postgres and needs_valkey:
        os.environ[OWN] = str(folder)


def _start_valkey(folder: Path) -> str:
    """Its URL."""
    folder.mkdir(exist_ok=True)
    valkey = embedded.start_valkey(folder, _made["REDIS_PASSWORD"], log=folder / "valkey.log", durable=False)
    _servers.append(valkey)
    return valkey.url


def _take_valkey(number: int) -> None:
    """The one of this worker. One that takes a crashed worker's place starts its own."""
    urls = os.environ.get(VALKEYS, "").split()
    os.environ["REDIS_URL"] = urls[number] if number < len(urls) else _start_valkey(Path(os.environ[OWN]) / f"gw{number}")


def valkeys() -> list[str]:
    """The URLs of all that the tests of this run write to."""
    return os.environ.get(VALKEYS, "").split() or [os.environ["REDIS_URL"]]


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
    global _may_empty
    if hasattr(config, "workerinput"):
        _begin_work(config.workerinput["workerid"])
        return
    # As Ctrl-C does: the services are stopped and their folder is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    workers = 0 if config.option.collectonly else len(getattr(config.option, "tx", None) or ())
    if workers:
        if OWN not in os.environ:
            raise pytest.UsageError("with several workers leave DATABASE_URL and REDIS_URL unset: they need servers of their own.")
        os.environ[VALKEYS] = " ".join(_start_valkey(Path(os.environ[OWN]) / f"gw{number}") for number in range(workers))
    if _given_redis is None:
        return
    # Tests empty the Redis they use. One that was given must be empty, or known from an earlier run of the tests.
    with _given() as client:
        if client.dbsize() and not client.exists(MARKER):
            raise pytest.UsageError("REDIS_URL names a server that holds keys. Tests empty theirs: name an empty one, or none.")
        client.set(MARKER, 1)
    _may_empty = True


def pytest_unconfigure(config: pytest.Config) -> None:
    if _working is not None:
        os.close(_working)
    if _may_empty:
        # A test may have emptied it.
        with _given() as client:
            client.set(MARKER, 1)
    stop()


# ------------------------------------------------------------------------------------------- workers beside each other

_working: int | None = None
"""Locked until this worker has run its last test."""


def _begin_work(worker: str) -> None:
    global _working
    _working = _open_lock(f"{worker}.working")
    fcntl.flock(_working, fcntl.LOCK_EX)
    test_secrets.share(Path(os.environ[OWN]) / "seen", worker)


_room: contextlib.ExitStack | None = None
"""What the worker that runs the tests to be alone holds, from its collection to the last of them: nobody else is in the room."""


def _empty_room() -> contextlib.ExitStack:
    with contextlib.ExitStack() as held:
        held.enter_context(locked("room"))
        return held.pop_all()


def _is_alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that must be alone come first."""
    items.sort(key=lambda item: not _is_alone(item))


# Before the collection is told, after which tests may begin.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    global _room
    gc.enable()
    collector.spare()
    if _working is None:
        return
    alone = [item.nodeid for item in session.items if _is_alone(item)]
    worker = os.environ[WORKER]
    spreading.note_alone(Path(os.environ[OWN]), worker, alone)
    if alone and worker == spreading.WORKER_OF_ALONE:
        # No worker runs a test before all have collected theirs.
        _room = _empty_room()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> spreading.Spreading:
    return spreading.Spreading(config, log, Path(os.environ[OWN]))


def _open_lock(name: str) -> int:
    return os.open(Path(os.environ[OWN]) / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def locked(name: str, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Holds a lock of the run, which its workers share."""
    lock = _open_lock(name)
    try:
        fcntl.flock(lock, kind)
        yield
    finally:
        os.close(lock)


# Around everything else, the timeout of the test included.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    global _room
    if _working is None:
        return (yield)
    if item.get_closest_marker("last"):
        for others in sorted(Path(os.environ[OWN]).glob("gw*.working")):
            if others.name != f"{os.environ[WORKER]}.working":
                with locked(others.name, fcntl.LOCK_SH):
                    pass
    if _is_alone(item):
        # It is free here only where another worker has crashed and left its tests.
        _room = _room or _empty_room()
        try:
            return (yield)
        finally:
            if not _is_alone(nextitem):
                _room.close()
                _room = None
    with locked("room", fcntl.LOCK_SH):
        return (yield)


# Nothing that imports and the collection of tests make is garbage.
gc.disable()
start()
