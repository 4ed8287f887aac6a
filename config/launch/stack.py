"""`manage.py demo` and `manage.py up`: every process of the product on one machine."""

import argparse
import contextlib
import io
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from config.launch import embedded, folders, runtime, secrets
from config.launch.supervisor import Supervisor

READY_SECONDS = 60.0
QUEUES, LONG = "default,tokens,periods,alerts", "reports"
# Stopped from the highest down: nothing new comes in, then what was used is drained, then what all of them lean on.
UPSTREAM, BACKGROUND, WEB = 1, 2, 3


class Refused(Exception):
    """The stack cannot start; the text says why and what to do."""


def parser(command: str) -> argparse.ArgumentParser:
    about = {
        "demo": "Run the product with two invented organizations, a scripted upstream and 30 days of usage.",
        "up": "Run the product for your own data. On an empty database it prints a one-time link that creates the owner.",
    }[command]
    made = argparse.ArgumentParser(prog=f"manage.py {command}", description=about)
    made.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    made.add_argument("--port", type=_port, default=8000, help="port of the first web process (8000)")
    made.add_argument("--gateways", type=_count, default=1, metavar="N", help="web processes, on PORT, PORT+1, ... (1)")
    made.add_argument("--var", metavar="DIR", help="data folder; several stacks may run side by side, each with its own")
    return made


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes from 1 to 64")
    return int(text)


def main(command: str, arguments: list[str]) -> int:
    """Runs until a signal. 0 after a clean stop, 1 when something could not start or a server was lost, 2 for wrong arguments."""
    options = parser(command).parse_args(arguments)
    var = folders.var_for(command)
    try:
        folders.make(var)
        with runtime.alone_in(var):
            (var / "demo.json").unlink(missing_ok=True)
            runtime.remove(var)
            return _run(command, options, var)
    except (Refused, runtime.InUse, embedded.CannotStart) as error:
        problem = str(error)
    except OSError as error:
        problem = f"cannot use the data folder {var}: {error.strerror}. Name another by --var DIR."
    print(f"manage.py {command}: {problem}", file=sys.stderr)
    return 1


def _run(command: str, options: argparse.Namespace, var: Path) -> int:
    supervisor = Supervisor(var / "log")
    with supervisor.catching_signals():
        try:
            _start(command, options, var, supervisor)
            return supervisor.watch()
        except KeyboardInterrupt:
            return 0
        finally:
            (var / "demo.json").unlink(missing_ok=True)
            _say_that_it_stops(supervisor)
            supervisor.stop()
            runtime.remove(var)


def _say_that_it_stops(supervisor: Supervisor) -> None:
    """What runs may take DRAIN_SECONDS to end, and nothing else would be seen meanwhile. The terminal may be gone (SIGHUP)."""
    if supervisor.children:
        with contextlib.suppress(OSError):
            print("Stopping: what runs may end first. Ctrl-C once more cuts it.", flush=True)


def _start(command: str, options: argparse.Namespace, var: Path, supervisor: Supervisor) -> None:
    started = time.monotonic()
    base_url = f"http://{_reachable(options.host)}:{options.port}"
    environ = _environment(var, options.host, base_url)
    with _ports_held(options):
        _start_services(var, environ, supervisor)
        upstream_url = _start_upstream(var, environ, supervisor) if command == "demo" else ""
    os.environ.update(environ)
    _migrate()
    _start_processes(options, var, environ, supervisor)
    # Who starts the stack is its operator: what is shown here may be of any organization.
    from config import scope

    with scope.everything():
        _show(command, options, var, environ, supervisor, base_url=base_url, upstream_url=upstream_url)
    _let_go()
    print(f"\nReady on {base_url}/ after {time.monotonic() - started:.1f} s. Logs: {supervisor.folder}. Ctrl-C stops.", flush=True)


def _show(
    command: str,
    options: argparse.Namespace,
    var: Path,
    environ: dict[str, str],
    supervisor: Supervisor,
    *,
    base_url: str,
    upstream_url: str,
) -> None:
    """Seeds the demo, waits for the web processes, and says where to look."""
    if command == "demo":
        _wait_for(f"{upstream_url}/control/health", supervisor)
        from demo import seed

        organizations = seed.run(upstream_url=upstream_url, var_dir=var)
    for port in range(options.port, options.port + options.gateways):
        _wait_for(f"http://{_reachable(options.host)}:{port}/health/ready", supervisor)

    def describe() -> None:
        runtime.write(var, environ=environ, base_url=base_url, processes=supervisor.processes())

    describe()
    supervisor.changed = describe
    if command == "demo":
        from demo import tour

        try:
            tour.show(base_url=base_url, upstream_url=upstream_url, organizations=organizations, var=var)
        except tour.NotShown as error:
            raise Refused(f"{error}. The logs in {supervisor.folder} say why.") from None
        described = {"base_url": base_url, "upstream_url": upstream_url, "organizations": organizations}
        secrets.write_private(var / "demo.json", json.dumps(described, indent=1, ensure_ascii=False))
    else:
        _invite(base_url)


def _reachable(host: str) -> str:
    """How this machine reaches what listens on `host`, as it stands in a URL."""
    known = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104
    return known.get(host) or (f"[{host}]" if ":" in host else host)


@contextlib.contextmanager
def _ports_held(options: argparse.Namespace) -> Iterator[None]:
    """Raises Refused unless all of the web processes' ports are free; keeps our own servers from taking them meanwhile."""
    if options.port + options.gateways - 1 > 65535:
        raise Refused(f"{options.gateways} web processes from port {options.port} on need ports above 65535.")
    with contextlib.ExitStack() as held:
        for port in range(options.port, options.port + options.gateways):
            try:
                family, kind, _, _, address = socket.getaddrinfo(options.host, port, type=socket.SOCK_STREAM)[0]
                probe = held.enter_context(socket.socket(family, kind))
                # A connection that ended a moment ago does not keep a server from listening.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
            except OSError as error:
                raise Refused(f"cannot listen on {options.host} port {port}: {error.strerror}. Name another by --port.") from None
        yield


def _environment(var: Path, host: str, base_url: str) -> dict[str, str]:
    """The children's environment: what is given wins, the rest is generated once for this folder. Raises Refused."""
    made = secrets.load_or_make(var)
    environ = dict(os.environ)
    for name in ("SECRET_KEY", "ENCRYPTION_KEYS", "KEY_PEPPERS"):
        environ[name] = environ.get(name) or made[name]
    environ.setdefault("PUBLIC_URL", base_url)
    environ.setdefault("ALLOWED_HOSTS", ",".join(_own_names(host)))
    environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.dev")
    environ["WEIR_VAR"] = str(var)
    environ["PYTHONUNBUFFERED"] = "1"
    environ["PYTHONPATH"] = str(folders.PROJECT)
    environ |= folders.loopback_without_proxy(environ)
    _check_settings(environ)
    return environ


def _own_names(host: str) -> list[str]:
    """The names that pages answer to: this machine's, and for --host 0.0.0.0 each of its addresses."""
    names = ["127.0.0.1", "localhost", "[::1]"]
    if host in ("0.0.0.0", "::"):  # noqa: S104
        names.append(socket.gethostname())
        with contextlib.suppress(OSError):
            names += [_reachable(str(found[4][0])) for found in socket.getaddrinfo(socket.gethostname(), None)]
    elif _reachable(host) not in names:
        names.append(_reachable(host))
    return list(dict.fromkeys(names))


def _check_settings(environ: dict[str, str]) -> None:
    """Names what is wrong before anything is started. The services' addresses are not known yet."""
    from django.core.exceptions import ImproperlyConfigured

    from config.settings import env

    unknown = {"DATABASE_URL": "postgresql://127.0.0.1/weir", "REDIS_URL": "redis://127.0.0.1"}
    try:
        env.read({**environ, **{name: environ.get(name) or text for name, text in unknown.items()}})
    except ImproperlyConfigured as error:
        raise Refused(str(error)) from None


def _start_services(var: Path, environ: dict[str, str], supervisor: Supervisor) -> None:
    """Each service is judged alone: one that is given by its URL is used as it is. Raises Refused if that does not answer."""
    made = secrets.load_or_make(var)
    folder = folders.service_folder(var)
    if environ.get("DATABASE_URL"):
        _check_database(environ["DATABASE_URL"])
    else:
        log = supervisor.folder / "postgres.log"
        environ["DATABASE_URL"] = supervisor.serve(lambda port: embedded.start_postgres(folder, made, log=log, port=port))
    if environ.get("REDIS_URL"):
        _check_redis(environ["REDIS_URL"])
    else:
        log = supervisor.folder / "valkey.log"
        password = made["REDIS_PASSWORD"]
        environ["REDIS_URL"] = supervisor.serve(lambda port: embedded.start_valkey(folder, password, log=log, port=port))


def _check_database(url: str) -> None:
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.Error as error:
        raise Refused(f"DATABASE_URL is set, but cannot be used: {str(error).strip()}") from None


def _check_redis(url: str) -> None:
    import redis

    try:
        with redis.Redis.from_url(url, socket_connect_timeout=5, socket_timeout=5) as client:
            client.ping()
    except redis.exceptions.RedisError as error:
        raise Refused(f"REDIS_URL is set, but cannot be used: {error}") from None


def _start_upstream(var: Path, environ: dict[str, str], supervisor: Supervisor) -> str:
    """Starts the scripted upstream, on the port it had in this folder before if that is free; its URL."""
    remembered = var / "upstream-port"
    port = embedded.free_port()
    with contextlib.suppress(OSError, ValueError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", int(remembered.read_text())))
        port = int(probe.getsockname()[1])
    remembered.write_text(str(port))
    url = f"http://127.0.0.1:{port}"
    environ |= {"UPSTREAM_CHATGPT_URL": f"{url}/backend-api", "UPSTREAM_OPENAI_URL": f"{url}/v1"}
    environ |= {"UPSTREAM_ANTHROPIC_URL": f"{url}/v1", "UPSTREAM_AUTH_URL": url}
    command = [sys.executable, "-m", "uvicorn", "demo.upstream:app", "--host", "127.0.0.1", "--port", str(port)]
    quiet = ["--no-access-log", "--log-level", "warning", "--timeout-graceful-shutdown", "1"]
    # As large as what a gateway may send; its own bound decides.
    quiet += ["--ws", "websockets-sansio", "--ws-per-message-deflate", "false", "--ws-max-size", "67108864"]
    supervisor.add("upstream", command + quiet, environ, stage=UPSTREAM)
    return url


def _migrate() -> None:
    import django
    from django.core.management import CommandError, call_command

    django.setup()
    try:
        call_command("check", stdout=io.StringIO())
        call_command("migrate", verbosity=0, interactive=False)
    except CommandError as error:
        raise Refused(str(error)) from None


def _start_processes(options: argparse.Namespace, var: Path, environ: dict[str, str], supervisor: Supervisor) -> None:
    manage = [sys.executable, str(folders.PROJECT / "manage.py")]
    celery = [sys.executable, "-m", "celery", "-A", "config.celery", "--workdir", str(folders.PROJECT)]
    # Running streams may finish; a second Ctrl-C cuts them. Those that last too long are ended and settled after that time.
    patience = float(environ.get("DRAIN_SECONDS") or 30) + 10
    for number in range(options.gateways):
        serve = [*manage, "serve", "--host", options.host, "--port", str(options.port + number)]
        supervisor.add(f"web-{number}", serve, environ, stage=WEB, patience_seconds=patience)
    supervisor.add("ledger", [*manage, "ledger"], environ, stage=BACKGROUND)
    # It warns about root because of pickle; only JSON is accepted here.
    quiet = {"PYTHONWARNINGS": "ignore:You're running the worker with superuser privileges"}
    # Long exports have a worker of their own: no token's refresh and no period's end waits for them.
    for name, queues in (("worker", QUEUES), ("reports", LONG)):
        worker = [
            *celery,
            "worker",
            "-n",
            f"{name}@%h",
            "-Q",
            queues,
            "-c",
            "1",
            "-l",
            "INFO",
            "--without-gossip",
            "--without-mingle",
        ]
        supervisor.add(name, worker, {**quiet, **environ}, stage=BACKGROUND)
    beat = [*celery, "beat", "-l", "INFO", "-S", "config.beat:LockedScheduler", "-s", str(var / "beat-schedule"), "--pidfile="]
    supervisor.add("beat", beat, environ, stage=BACKGROUND)


def _wait_for(url: str, supervisor: Supervisor) -> None:
    import httpx

    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client(timeout=5, trust_env=False) as client:
        while time.monotonic() < deadline:
            for child in supervisor.children:
                if not child.is_running():
                    raise Refused(f"{child.name} ended while it started. {child.log} ends with\n{child.last_lines()}")
            with contextlib.suppress(httpx.TransportError):
                if client.get(url).status_code == 200:
                    return
            time.sleep(0.05)
    raise Refused(f"{url} did not become ready within {READY_SECONDS:.0f} s. The logs in {supervisor.folder} say why.")


def _invite(base_url: str) -> None:
    from accounts import invitations

    link = invitations.first_owner_link(base_url=base_url)
    if link:
        print(f"\nNo organization yet. This link creates its owner, once:\n\n    {link}\n", flush=True)


def _let_go() -> None:
    """The launcher only watches from now on: no connections, and none of the pool's threads beside its forks."""
    from django.db import connections

    for connection in connections.all():
        connection.close()
        connection.close_pool()  # type: ignore[attr-defined]
