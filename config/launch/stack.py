"""`manage.py demo` and `manage.py up`: every process of the product on one machine."""

import argparse
import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from config.launch import embedded, folders, runtime, secrets
from config.launch.supervisor import Child, Supervisor

READY_SECONDS = 60.0


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
    """Runs until a signal. 0 after a clean stop, 1 when something could not start or a server ended, 2 for wrong arguments."""
    options = parser(command).parse_args(arguments)
    var = folders.var_for(command)
    folders.make_private(var)
    supervisor = Supervisor(var / "log")
    try:
        with (var / "stack.lock").open("a") as lock:
            _lock(lock, var)
            (var / "demo.json").unlink(missing_ok=True)
            runtime.remove(var)
            supervisor.catch_signals()
            try:
                _check_ports(options)
                _start(command, options, var, supervisor)
                return supervisor.watch()
            finally:
                (var / "demo.json").unlink(missing_ok=True)
                supervisor.stop()
                runtime.remove(var)
    except (Refused, embedded.CannotStart) as error:
        print(f"manage.py {command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _lock(handle: Any, var: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused(f"another run is using {var}. Stop it, or name another folder by --var DIR.") from None


def _check_ports(options: argparse.Namespace) -> None:
    if options.port + options.gateways - 1 > 65535:
        raise Refused(f"{options.gateways} web processes from port {options.port} on need ports above 65535.")
    for port in range(options.port, options.port + options.gateways):
        with socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((options.host, port))
            except OSError as error:
                raise Refused(f"cannot listen on {options.host} port {port}: {error.strerror}. Name another by --port.") from None


def _start(command: str, options: argparse.Namespace, var: Path, supervisor: Supervisor) -> None:
    started = time.monotonic()
    shown = f"[{options.host}]" if ":" in options.host else options.host
    base_url = f"http://{'127.0.0.1' if options.host in ('0.0.0.0', '::') else shown}:{options.port}"  # noqa: S104
    environ = _environment(var, base_url)
    _start_services(var, environ, supervisor)
    upstream_url = ""
    if command == "demo":
        port = embedded.free_port()
        upstream_url = f"http://127.0.0.1:{port}"
        environ |= {
            "UPSTREAM_CHATGPT_URL": f"{upstream_url}/backend-api",
            "UPSTREAM_OPENAI_URL": f"{upstream_url}/v1",
            "UPSTREAM_AUTH_URL": upstream_url,
        }
        upstream = [sys.executable, "-m", "uvicorn", "demo.upstream:app", "--host", "127.0.0.1", "--port", str(port)]
        supervisor.add("upstream", [*upstream, "--no-access-log", "--log-level", "warning"], environ)
    os.environ.update(environ)
    _migrate()
    _start_processes(options, var, environ, supervisor)
    if command == "demo":
        _wait_for(f"{upstream_url}/control/health", supervisor)
        from demo import seed

        organizations = seed.run(upstream_url=upstream_url, var_dir=var)
    for port in range(options.port, options.port + options.gateways):
        _wait_for(f"http://{_probe_host(options.host)}:{port}/health/ready", supervisor)
    runtime.write(var, environ=environ, base_url=base_url)
    if command == "demo":
        from demo import tour

        tour.show(base_url=base_url, upstream_url=upstream_url, organizations=organizations, var=var)
        described = {"base_url": base_url, "upstream_url": upstream_url, "organizations": organizations}
        secrets.write_private(var / "demo.json", json.dumps(described, indent=1, ensure_ascii=False))
    else:
        _invite(base_url)
    print(f"\nReady on {base_url}/ after {time.monotonic() - started:.1f} s. Logs: {supervisor.folder}. Ctrl-C stops.", flush=True)


def _probe_host(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104


def _environment(var: Path, base_url: str) -> dict[str, str]:
    """The children's environment: what is given wins, the rest is generated once for this folder."""
    made = secrets.load_or_make(var)
    environ = dict(os.environ)
    for name in ("SECRET_KEY", "ENCRYPTION_KEYS", "KEY_PEPPERS"):
        environ.setdefault(name, made[name])
    environ.setdefault("PUBLIC_URL", base_url)
    environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.dev")
    environ["WEIR_VAR"] = str(var)
    environ["PYTHONUNBUFFERED"] = "1"
    # Celery's warning about root is about pickle; only JSON is accepted here.
    environ["C_FORCE_ROOT"] = "1"
    environ["PYTHONPATH"] = str(folders.PROJECT)
    return environ


def _start_services(var: Path, environ: dict[str, str], supervisor: Supervisor) -> None:
    """Each service is judged alone: one that is given by its URL is used as it is."""
    made = secrets.load_or_make(var)
    folder = folders.service_folder(var)
    if not environ.get("DATABASE_URL"):
        postgres = embedded.start_postgres(folder, made, log=supervisor.folder / "postgres.log")
        supervisor.servers.append(postgres)
        environ["DATABASE_URL"] = postgres.url
    if not environ.get("REDIS_URL"):
        valkey = embedded.start_valkey(folder, made["REDIS_PASSWORD"], log=supervisor.folder / "valkey.log")
        supervisor.servers.append(valkey)
        environ["REDIS_URL"] = valkey.url


def _migrate() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("check")
    call_command("migrate", verbosity=0, interactive=False)


def _start_processes(options: argparse.Namespace, var: Path, environ: dict[str, str], supervisor: Supervisor) -> list[Child]:
    python = sys.executable
    manage = [python, str(folders.PROJECT / "manage.py")]
    celery = [python, "-m", "celery", "-A", "config.celery", "--workdir", str(folders.PROJECT)]
    queues = "default,tokens,periods,reports,alerts"
    children = [
        supervisor.add(f"web-{number}", [*manage, "serve", "--host", options.host, "--port", str(options.port + number)], environ)
        for number in range(options.gateways)
    ]
    children.append(supervisor.add("ledger", [*manage, "ledger"], environ))
    children.append(
        supervisor.add("worker", [*celery, "worker", "-Q", queues, "-c", "1", "-l", "INFO", "--without-gossip"], environ)
    )
    schedule = var / "beat-schedule"
    children.append(supervisor.add("beat", [*celery, "beat", "-l", "INFO", "-s", str(schedule), "--pidfile="], environ))
    return children


def _wait_for(url: str, supervisor: Supervisor) -> None:
    import httpx

    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        for child in supervisor.children:
            if not child.is_running():
                raise Refused(f"{child.name} ended while starting; {child.log} says why:\n{_tail(child.log)}")
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise Refused(f"{url} did not become ready within {READY_SECONDS:.0f} s; see {supervisor.folder}.")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _invite(base_url: str) -> None:
    from accounts import invitations

    link = invitations.first_owner_link(base_url=base_url)
    if link:
        print(f"\nNo organization yet. This link creates its owner, once:\n\n    {link}\n", flush=True)
