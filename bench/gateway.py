"""The gateway under test: its own PostgreSQL and Valkey, one web process, one ledger process, limits at every level."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from config.launch import embedded, folders, secrets

TICKS = os.sysconf("SC_CLK_TCK")
READY_SECONDS = 60.0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all below it, in seconds."""
    total = 0.0
    for one in _tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15]) / TICKS
    return total


def rss_megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _tree(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


@dataclass
class Bench:
    """Everything that runs. Ports and process ids of what is measured; `key` is the tenant's gateway key."""

    stack: ExitStack
    environ: dict[str, str] = field(repr=False)
    folder: Path
    pids: dict[str, int] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    key: str = field(default="", repr=False)
    organization_id: int = 0

    def spawn(self, name: str, *command: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=folders.PROJECT,
                env=self.environ,
                stdout=log,
                stderr=log,
                preexec_fn=embedded.dies_with_parent(signal.SIGTERM),
            )
        self.stack.callback(end, process)
        self.pids[name] = process.pid
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]


def end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL if that is not heard. Doing it twice changes nothing."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start(stack: ExitStack) -> Bench:
    """Starts all of it; `stack` ends it. Raises embedded.CannotStart, TimeoutError."""
    bench = services(stack)
    upstream, relay = str(bench.ports["upstream"]), str(bench.ports["relay"])
    bench.spawn("upstream", "-m", "bench.wire", "upstream", upstream)
    bench.spawn("relay", "-m", "bench.wire", "relay", relay, upstream)
    bench.spawn("gateway", "manage.py", "serve", "--port", str(bench.ports["gateway"]))
    bench.spawn("ledger", "manage.py", "ledger")
    wait(bench)
    return bench


def services(stack: ExitStack) -> Bench:
    """Starts the servers that the gateway needs, and puts its tenant there. Raises embedded.CannotStart."""
    user = folders.server_user()
    place = next(
        one for one in (Path(tempfile.gettempdir()), Path("/var/tmp")) if user is None or folders.can_enter(one, user.pw_uid)
    )
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-bench-", dir=place, ignore_cleanup_errors=True)))
    if user is not None:
        folder.chmod(0o711)
    made = secrets.make()
    environ = dict(os.environ)
    environ |= {name: made[name] for name in ("SECRET_KEY", "ENCRYPTION_KEYS", "KEY_PEPPERS")}
    environ |= folders.loopback_without_proxy(environ)
    bench = Bench(stack, environ, folder)
    postgres = embedded.start_postgres(folder, made, log=folder / "postgres.log", durable=False)
    stack.callback(postgres.stop)
    valkey = embedded.start_valkey(folder, made["REDIS_PASSWORD"], log=folder / "valkey.log", durable=False)
    stack.callback(valkey.stop)
    bench.pids |= {"postgres": postgres.process.pid, "valkey": valkey.process.pid}
    bench.ports = {name: embedded.free_port() for name in ("upstream", "relay", "gateway")}
    environ |= {
        "DATABASE_URL": postgres.url,
        "REDIS_URL": valkey.url,
        "WEIR_VAR": str(folder / "var"),
        "DJANGO_SETTINGS_MODULE": "config.settings.dev",
        "UPSTREAM_OPENAI_URL": f"http://127.0.0.1:{bench.ports['upstream']}/v1",
        "PYTHONPATH": str(folders.PROJECT),
    }
    os.environ.update(environ)
    _prepare(bench)
    return bench


def _prepare(bench: Bench) -> None:
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    from accounts import keys, members, organizations, teams
    from billing import subscriptions
    from billing.models import Plan
    from config import scope
    from config.clock import utc_now
    from quotas import limits
    from routing import accounts

    call_command("migrate", verbosity=0, interactive=False)
    now = utc_now()
    with scope.everything():
        organization = organizations.create("Bench", by=None, timezone="UTC")
        subscriptions.start(organization, Plan.objects.get(slug="business"), now=now)
        team = teams.named(organization, "Team", by=None)
        member = members.add(organization, "dev@bench.example", role="developer", by=None, team=team)
        issued = keys.issue(member, name="bench", by=None, now=now)
        accounts.add_key(organization, "sk-bench", label="Bench", base_url=None, by=None, now=now)
        wanted: tuple[tuple[str, str, str, str, str], ...] = (
            ("organization", "", "credits", "month", "40000000"),
            ("team", team.name, "credits", "7d", "30000000"),
            ("team", team.name, "tokens", "day", "900000000000"),
            ("member", "dev@bench.example", "credits", "5h", "20000000"),
            ("member", "dev@bench.example", "requests", "day", "100000000"),
            ("key", issued.key.public_id, "credits", "30d", "30000000"),
        )
        for scope_name, of, metric, window, amount in wanted:
            limits.set_limit(organization, scope=scope_name, of=of, metric=metric, window=window, amount=amount)
    bench.key, bench.organization_id = issued.secret, organization.pk
    connection.close()


def wait(bench: Bench) -> None:
    """Until the gateway is ready. Raises TimeoutError."""
    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client(timeout=5, trust_env=False) as client:
        while time.monotonic() < deadline:
            try:
                if client.get(f"http://127.0.0.1:{bench.ports['gateway']}/health/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
    raise TimeoutError(f"the gateway did not become ready:\n{bench.log('gateway')}")


def logged(bench: Bench) -> dict[str, Any]:
    """What the log holds of the tenant: rows, how many of them are not plain answers, and their micro-credits."""
    from django.db import connection
    from django.db.models import Sum

    from billing.models import UsageRecord
    from config import scope

    with scope.organization(bench.organization_id):
        rows = UsageRecord.objects.filter(organization_id=bench.organization_id)
        found = {"rows": rows.count(), "odd": rows.exclude(status="ok", is_estimated=False, part=0).count()}
        found["credits"] = rows.aggregate(sum=Sum("credits"))["sum"] or 0
    connection.close()
    return found
