"""Fuzzing the API: every operation of its schema against a server of its own, with an owner's token of a tenant made for it.

What is asked comes from the schema (what fits it and what does not), and so does what may be answered. Nothing leaves the machine:
the server's upstreams are a port that nobody listens on, its mail goes nowhere.
"""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings
from django.db import connection

from accounts import api_tokens, keys, members, organizations, teams
from accounts.models import Member, Organization
from billing import subscriptions
from billing.models import Plan
from config import scope
from config.clock import utc_now
from config.settings import env as environment
from quotas import limits, requests
from quotas.models import Limit

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 60.0
NOBODY = "http://127.0.0.1:9"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
    "ignored_auth",
)
"""Not `positive_data_acceptance`: what fits the schema may still be refused by a rule of the domain, in a sentence (400)."""


class Failed(Exception):
    """The server did not start; the text says what it printed."""


@dataclass
class Found:
    """What came of one operation."""

    label: str
    calls: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """By title: the first one's message."""

    @property
    def line(self) -> str:
        told = " ".join(f"{status}x{count}" for status, count in sorted(self.statuses.items()))
        return f"{'FAILED' if self.failures else 'ok':6}  {self.label:60}  {self.calls:5} calls  {told}"


@dataclass(frozen=True)
class Tenant:
    organization: Organization
    token_id: str
    secret: str = field(repr=False)


def run(*, examples: int, seed: int, only: str, say: Callable[[str], None]) -> int:
    """Fuzzes every operation (or those whose id holds `only`) and says a line for each; returns how many findings there are."""
    with scope.everything():
        tenant = seed_tenant()
    with server() as url:
        found = fuzz(url, tenant, examples=examples, seed=seed, only=only, say=say)
    for one in found:
        for title, message in one.failures.items():
            say(f"\n{one.label}: {title}\n{message}")
    findings = sum(len(one.failures) for one in found)
    calls = sum(one.calls for one in found)
    say(f"\n{len(found)} operations, {calls} calls, {findings} findings (seed {seed}).")
    return findings


def seed_tenant() -> Tenant:
    """An organization with people, keys, limits and requests for more, and an owner's token for everything."""
    name = f"Fuzz {secrets.token_hex(5)}"
    organization = organizations.create(name, by=None)
    subscriptions.start(organization, Plan.objects.get(slug="plus"), now=utc_now())
    domain = f"{organization.slug}.example"
    owner = members.add(organization, f"owner@{domain}", role=Member.Role.OWNER, by=None)
    team = teams.named(organization, "Core", by=None)
    now = utc_now()
    for number in range(3):
        member = members.add(organization, f"dev{number}@{domain}", role=Member.Role.DEVELOPER, by=None, team=team)
        keys.issue(member, name="laptop", by=None, now=now)
        made = limits.set_limit(
            organization, scope="member", of=f"dev{number}@{domain}", metric="credits", window="day", amount="50"
        )
        assert made is not None
        limit = Limit.objects.get(uuid=made)
        requests.ask(member, limit, extra="5", until=now + timedelta(days=2), by=None, now=now)
    issued = api_tokens.issue(owner, name="fuzz", by=None, now=now, scopes=api_tokens.SCOPES)
    return Tenant(organization, str(issued.token.uuid), issued.secret)


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A web process of this code on the services of this process; its address. Raises Failed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "uvicorn", "config.asgi:application", "--host", "127.0.0.1", "--port", str(port), "--loop", "uvloop",
        "--http", "httptools", "--ws", "none", "--no-access-log", "--no-proxy-headers", "--lifespan", "on",
        "--timeout-graceful-shutdown", "2",
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=ROOT, env=_environment(url), stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not _is_ready(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise Failed(log.read()[-3000:].decode(errors="replace"))
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment(url: str) -> dict[str, str]:
    """This process's settings, on the database that it really uses, with nobody held back and nobody else to talk to."""
    names = {variable.name for variable in environment.VARIABLES}
    ours = {name: value for name, value in os.environ.items() if name in names}
    database = connection.settings_dict
    return {
        **os.environ,
        **ours,
        "DATABASE_URL": "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**database),
        "REDIS_URL": settings.REDIS_URL,
        "PUBLIC_URL": url,
        "EMAIL_URL": "dummymail://",
        "UPSTREAM_CHATGPT_URL": f"{NOBODY}/backend-api",
        "UPSTREAM_OPENAI_URL": f"{NOBODY}/v1",
        "UPSTREAM_ANTHROPIC_URL": f"{NOBODY}/v1",
        "UPSTREAM_AUTH_URL": NOBODY,
        "API_REQUESTS_PER_MINUTE": "0",
    }


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def fuzz(url: str, tenant: Tenant, *, examples: int, seed: int, only: str, say: Callable[[str], None]) -> list[Found]:
    """What came of each operation, in the order of the schema."""
    import schemathesis
    from schemathesis.engine import events, from_schema

    raw = httpx.get(f"{url}/api/v1/schema", timeout=30).json()
    config = schemathesis.Config.from_dict(
        {
            "seed": seed,
            "suppress-health-check": ["all"],
            "base-url": url,
            "headers": {"Authorization": f"Bearer {tenant.secret}"},
            "continue-on-failure": True,
            "request-timeout": 30,
            "max-redirects": 0,
            "workers": 1,
            "generation": {"max-examples": examples, "no-shrink": True, "database": "none", "deterministic": False},
            "phases": {"stateful": {"enabled": False}, "coverage": {"enabled": True}, "examples": {"enabled": True}},
            "checks": {"enabled": False, **{name: {"enabled": True} for name in CHECKS}},
        }
    )
    schema = schemathesis.openapi.from_dict(raw, config=config)

    @schemathesis.hook("before_call")
    def spare(context: Any, case: Any, kwargs: Any) -> None:
        """The token that all calls need is not to be revoked by one of them."""
        if case.path_parameters and tenant.token_id in map(str, case.path_parameters.values()):
            case.path_parameters = dict.fromkeys(case.path_parameters, "00000000-0000-4000-8000-000000000000")

    chosen = schema.include(operation_id_regex=only) if only else schema
    found: dict[str, Found] = {}
    for event in from_schema(chosen).execute():
        if isinstance(event, events.ScenarioFinished):
            one = found.setdefault(event.recorder.label, Found(event.recorder.label))
            for interaction in event.recorder.interactions.values():
                one.calls += 1
                if interaction.response is not None:
                    status = interaction.response.status_code
                    one.statuses[status] = one.statuses.get(status, 0) + 1
            for checks in event.recorder.checks.values():
                for check in checks:
                    if check.failure_info is not None:
                        failure = check.failure_info.failure
                        one.failures.setdefault(f"{check.name}: {failure.title}", _told(failure, check.failure_info.code_sample))
        elif isinstance(event, events.NonFatalError | events.FatalError):
            label = getattr(event, "label", "the run")
            error = getattr(event, "value", None) or getattr(event, "exception", None)
            found.setdefault(label, Found(label)).failures.setdefault(type(error).__name__, str(error)[:2000])
    for one in found.values():
        say(one.line)
    return list(found.values())


def _told(failure: Any, code_sample: str) -> str:
    return f"{failure.message}\n{code_sample}"[:3000]
