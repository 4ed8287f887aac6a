"""What a fuzz run needs: a tenant with something of everything, a web process of its own, and the scripted upstream beside it."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import httpx
from django.conf import settings
from django.db import connection

from accounts import api_tokens, keys, members, organizations, teams
from accounts.models import ApiKey, Member, Organization
from billing import subscriptions, usage
from billing.models import Plan
from config import snapshot, tls
from config.clock import utc_now
from config.launch.embedded import dies_with_parent, free_port
from demo import history
from quotas import limits, requests
from quotas.models import Limit, Refusal
from routing import accounts as pool_accounts
from routing.models import PoolAccount

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 60.0
DAYS = 3
"""Of use that is told of."""


class Failed(Exception):
    """A process did not start; the text says what it printed."""


@dataclass(frozen=True)
class Tenant:
    """`spared`: ids without which no call would work any more."""

    organization: Organization
    spared: frozenset[str]
    secret: str = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}


def seed() -> Tenant:
    """An organization with people, keys, an account, use, limits, requests for more, refusals; an owner's token for everything."""
    now = utc_now()
    organization = organizations.create(f"Fuzz {secrets.token_hex(5)}", by=None)
    subscriptions.start(organization, Plan.objects.get(slug="plus"), now=now - timedelta(days=40))
    domain = f"{organization.slug}.example"
    owner = members.add(organization, f"owner@{domain}", role=Member.Role.OWNER, by=None)
    team = teams.named(organization, "Core", by=None)
    account = pool_accounts.add_key(organization, "sk-" + secrets.token_urlsafe(32), label="Main key", by=None, now=now)
    held: list[ApiKey] = []
    for number in range(3):
        email = f"dev{number}@{domain}"
        member = members.add(organization, email, role=Member.Role.DEVELOPER, by=None, team=team)
        held.append(keys.issue(member, name="laptop", by=None, now=now).key)
        made = limits.set_limit(organization, scope="member", of=email, metric="credits", window="day", amount="50")
        assert made is not None
        limit = Limit.objects.get(uuid=made)
        requests.ask(member, limit, extra="5", until=now + timedelta(days=2), by=None, now=now)
        _refuse(held[-1], limit, now)
    _use(organization, held, account, now)
    issued = api_tokens.issue(owner, name="fuzz", by=None, now=now, scopes=api_tokens.SCOPES)
    return Tenant(organization, frozenset({str(issued.token.uuid), str(owner.uuid)}), issued.secret)


def _refuse(key: ApiKey, limit: Limit, now: datetime) -> None:
    Refusal.objects.create(
        organization_id=key.organization_id,
        team_id=key.member.team_id,
        member_id=key.member_id,
        key_id=key.pk,
        minute=now.replace(second=0, microsecond=0),
        last_at=now,
        code="limit_reached",
        scope=limit.scope,
        scope_name=str(limit.member),
        metric=limit.metric,
        window=limit.window,
        limit_uuid=limit.uuid,
        limit=limit.amount,
        used=limit.amount,
        held=0,
        need=900_000,
        message="The daily limit would be passed.",
    )


def _use(organization: Organization, held: list[ApiKey], account: PoolAccount, now: datetime) -> None:
    """Use as the demo invents it."""
    loaded, zone = snapshot.load(organization.pk), ZoneInfo(organization.timezone)
    subscription = next(one for one in loaded.billing.subscriptions if one.member_id is None)
    carriers = [history.Carrier(account.pk, account.kind, 1)]
    events = [
        event
        for day in history.days_until(now, zone, None)[-DAYS:]
        for key in held
        for event in history.events(
            history.Worker(f"{key.member.uuid}", key.member_id, key.pk, key.member.team_id, 60),
            day,
            zone=zone,
            until=now,
            carriers=carriers,
            rates=loaded.billing.rates,
            subscription=subscription,
        )
    ]
    usage.record(organization.pk, sorted(events, key=lambda event: (event.admitted_at, event.request_id)))


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A web process of this code on the services of this process, with the scripted upstream; its address. Raises Failed."""
    upstream, port = free_port(), free_port()
    url, upstream_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{upstream}"
    environ = _environment(url, upstream_url)
    with (
        _process("demo.upstream:app", upstream, os.environ, f"{upstream_url}/control/health"),
        _process("config.asgi:application", port, environ, f"{url}/health/ready"),
    ):
        yield url


@contextlib.contextmanager
def _process(app: str, port: int, environ: Mapping[str, str], health: str) -> Iterator[None]:
    command = [
        sys.executable, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port), "--ws", "none", "--no-access-log",
        "--no-proxy-headers", "--timeout-graceful-shutdown", "2",
    ]  # fmt: skip
    preparation = dies_with_parent(signal.SIGTERM)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=dict(environ), stdout=log, stderr=subprocess.STDOUT, preexec_fn=preparation
        )
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not _answers(health):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise Failed(log.read()[-3000:].decode(errors="replace"))
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment(url: str, upstream_url: str) -> dict[str, str]:
    """This process's settings, on the database that it really uses, with nobody held back and nobody else to talk to."""
    database = connection.settings_dict
    return {
        **os.environ,
        "DATABASE_URL": "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**database),
        "REDIS_URL": settings.REDIS_URL,
        "PUBLIC_URL": url,
        "EMAIL_URL": "dummymail://",
        "UPSTREAM_CHATGPT_URL": f"{upstream_url}/backend-api",
        "UPSTREAM_OPENAI_URL": f"{upstream_url}/v1",
        "UPSTREAM_ANTHROPIC_URL": f"{upstream_url}/v1",
        "UPSTREAM_AUTH_URL": upstream_url,
        "API_REQUESTS_PER_MINUTE": "0",
    }


def _answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=5, verify=tls.authorities(trusts_env=True)).status_code == 200
    except httpx.TransportError:
        return False
