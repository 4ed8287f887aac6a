"""PostgreSQL is restarted under a process: its pool has connections that work again as soon as the server is back."""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from psycopg_pool import PoolTimeout

from config.database.base import DatabaseWrapper
from config.launch import embedded, folders, secrets

ALIAS = "restarted"
SOON = 2.0
"""Seconds on a busy machine."""


class Postgres:
    """A server that is nobody else's, and connections to it as the product makes them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weir-database-", dir="/tmp" if folders.server_user() else None))  # noqa: S108
        # PostgreSQL runs as another user under root.
        self.folder.chmod(0o711)
        self._secrets = secrets.make()
        self.server = self._start(None)

    def _start(self, port: int | None) -> embedded.Server:
        return embedded.start_postgres(self.folder, self._secrets, log=self.folder / "postgres.log", port=port)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.server.process.pid, signal.SIGKILL)
        self.server.process.wait(10)

    def start(self) -> None:
        self.server = self._start(self.server.port)

    def stop(self) -> None:
        DatabaseWrapper._connection_pools.pop(ALIAS).close()  # type: ignore[attr-defined]
        self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def connection(self, **pool: Any) -> DatabaseWrapper:
        """A thread's connection. `pool`: options of the pool, from the first one on."""
        settings = dict(connection.settings_dict)
        settings |= {"HOST": "127.0.0.1", "PORT": self.server.port, "USER": "weir", "NAME": "weir"}
        settings["PASSWORD"] = self._secrets["DATABASE_PASSWORD"]
        settings["OPTIONS"] = {**settings["OPTIONS"], "pool": {**settings["OPTIONS"]["pool"], **pool}}
        made = DatabaseWrapper(settings, alias=ALIAS)
        made.inc_thread_sharing()
        return made


@pytest.fixture
def postgres(django_db_blocker: Any) -> Iterator[Postgres]:
    running = Postgres()
    try:
        with django_db_blocker.unblock():
            yield running
    finally:
        running.stop()


def ask(one: DatabaseWrapper) -> float:
    """Seconds until a statement was answered; the connection is back in the pool."""
    began = time.monotonic()
    with one.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
    one.close()
    return time.monotonic() - began


def fill(postgres: Postgres, count: int) -> list[DatabaseWrapper]:
    """So many connections, used and given back."""
    made = [postgres.connection() for _ in range(count)]
    for one in made:
        one.ensure_connection()
    for one in made:
        one.close()
    return made


def test_connections_that_died_with_the_server_are_replaced_at_once(postgres: Postgres) -> None:
    """However many lie in the pool: the first request after a restart is answered."""
    made = fill(postgres, 8)
    postgres.kill()
    postgres.start()
    # Whoever tries them with growing pauses has failed after ten seconds.
    assert ask(made[0]) < SOON
    for one in made:
        one.ensure_connection()
    for one in made:
        assert ask(one) < SOON


def test_who_waits_for_the_server_is_answered_when_it_is_back(postgres: Postgres) -> None:
    """It is tried every second, not ever more seldom."""
    made = fill(postgres, 4)
    postgres.kill()
    answered: list[float] = []

    def wait() -> None:
        ask(made[0])
        answered.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    # Attempts after 1, 3 and 7 seconds would leave it waiting.
    time.sleep(3.2)
    assert not answered
    postgres.start()
    back = time.monotonic()
    assert ask(made[1]) < SOON
    waiting.join(SOON)
    assert answered
    assert answered[0] - back < SOON


def test_who_asks_after_a_long_outage_is_answered(postgres: Postgres) -> None:
    """Whoever asked during it was told so in time, and left nothing behind that others wait for."""
    first = postgres.connection(timeout=1.1)
    ask(first)
    postgres.kill()
    # An attempt that goes on would come after 1, 3 and 7 seconds.
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(OperationalError) as caught:
            ask(first)
        assert isinstance(caught.value.__cause__, PoolTimeout)
        assert time.monotonic() - began < 1.1 + SOON
    postgres.start()
    assert ask(first) < 1.1
