"""An organization whose alerts are looked at, use that is counted, and a receiver of webhooks on loopback."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from accounts.models import Member, Organization
from config import scope, snapshot
from config.clock import utc_now
from config.redis import client
from quotas import admission, limits
from quotas.alerts import telling, wording
from quotas.alerts.models import Alert, AlertDelivery
from quotas.models import Limit
from tests import factories
from tests.quotas.tenancy import Tenant, credits_of, request_id


class World(Tenant):
    """A developer of the team Quality with a key; its lead, another team's lead, a lead of all, finance and an owner."""

    def __init__(self, *, plan: str | None = "plus", timezone: str = "Europe/Berlin") -> None:
        organization: Organization = factories.organization(plan=plan, timezone=timezone)
        quality, platform = factories.team(organization, "Quality"), factories.team(organization, "Platform")
        member = factories.member(organization, team=quality)
        Member.objects.filter(pk=member.pk).update(display_name="Tomasz Wrona")
        member = Member.objects.select_related("organization", "user", "team").get(pk=member.pk)
        super().__init__(organization, member, factories.api_key(member))
        self.team = quality
        self.people = {
            "developer": member,
            "colleague": factories.member(organization, team=quality),
            "team lead": factories.member(organization, role="lead", team=quality),
            "other lead": factories.member(organization, role="lead", team=platform),
            "lead": factories.member(organization, role="lead"),
            "finance": factories.member(organization, role="finance"),
            "owner": factories.member(organization, role="owner"),
        }

    def __getitem__(self, name: str) -> Member:
        return self.people[name]

    def limit(self, amount: str, *, scope: str = "member", metric: str = "credits", window: str = "day") -> Limit:
        assert self.member.user is not None
        names = {"organization": None, "team": "Quality", "member": self.member.user.email, "key": self.key.row.public_id}
        made = limits.set_limit(
            self.organization, scope=scope, of=names[scope], metric=metric, window=window, amount=amount, by=None
        )
        return Limit.objects.get(uuid=made)

    def spend(self, amount: float, *, times: int = 1) -> None:
        """Requests that were admitted and have ended, of so many credits each."""
        loaded = snapshot.load(self.organization.pk)
        key = self.key_of(loaded)

        async def run() -> None:
            redis = client()
            for _ in range(times):
                admitted = await admission.admit(
                    redis, loaded, key, request_id=request_id(), need=credits_of(amount), about=self.about
                )
                await admission.settle(redis, admitted.hold, amount=credits_of(amount), body=self.body())
            await admission.finish(redis, timeout_seconds=2)
            await redis.close()

        asyncio.run(run())

    def look(self, *, now: datetime | None = None, is_thorough: bool = True) -> list[Alert]:
        with scope.organization(self.organization.pk):
            return telling.look(self.organization.pk, now=now or utc_now(), is_thorough=is_thorough)

    def alerts(self, **about: Any) -> list[Alert]:
        return list(Alert.objects.filter(organization=self.organization, **about).order_by("pk"))

    def told(self, alert: Alert) -> set[str]:
        """By what they are called here, and the names of endpoints."""
        names = {member.pk: name for name, member in self.people.items()}
        rows = AlertDelivery.objects.filter(alert=alert).select_related("endpoint")
        return {names[row.member_id] if row.member_id else str(row.endpoint) for row in rows}


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """Answers every POST with the next of `statuses`, the last one again and again; `before` runs first."""

    port: int = 0
    statuses: list[int] = field(default_factory=lambda: [204])
    received: list[Received] = field(default_factory=list)
    before: Callable[[], None] = lambda: None
    location: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/secret-place?token=t1"


@contextmanager
def receiver() -> Iterator[Receiver]:
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.received.append(Received(self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            made.before()
            self.send_response(made.statuses.pop(0) if len(made.statuses) > 1 else made.statuses[0])
            if made.location:
                self.send_header("location", made.location)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def said(world: World, alert: Alert, who: str | None = "owner") -> tuple[str, str, str]:
    """Title, details and next step, as somebody reads them."""
    row = Alert.objects.select_related(*telling.audience.RELATED).get(pk=alert.pk)
    found = wording.words(row, reader=world[who] if who else None, now=utc_now())
    return found.title, found.detail, f"{found.step} {found.path.replace(f'/o/{world.organization.slug}', '')}"
