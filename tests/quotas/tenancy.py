"""A committed tenant for the tests of this folder: its snapshot, its key, its counters."""

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

from django.db import connections

from accounts.models import Member, Organization
from accounts.snapshots import KeySnapshot
from billing import events
from billing.models import UsageRecord
from config import snapshot
from config.clock import utc_now
from config.redis import sync_client
from config.snapshot import Snapshot
from quotas import admission, drain, engine, limits
from quotas.admission import Amount
from quotas.standing import Usage
from tests import factories
from tests.quotas.engine_probe import Probe

CREDIT = 1_000_000


async def in_thread(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """ORM code, in a thread whose connection is closed afterwards."""

    def run() -> Any:
        try:
            return call(*args, **kwargs)
        finally:
            connections.close_all()

    return await asyncio.to_thread(run)


def request_id() -> str:
    return "req_" + secrets.token_hex(12)


@dataclass
class Tenant:
    organization: Organization
    member: Member
    key: factories.Key

    def snapshot(self) -> Snapshot:
        return snapshot.load(self.organization.pk)

    def key_of(self, loaded: Snapshot) -> KeySnapshot:
        found: KeySnapshot = loaded.accounts.keys[self.key.row.public_id]
        return found

    def set_limit(self, amount: str, *, scope: str = "member", metric: str = "credits", window: str = "day") -> Any:
        user = self.member.user
        assert user is not None
        of = {"organization": None, "member": user.email, "key": self.key.row.public_id}[scope]
        return limits.set_limit(self.organization, scope=scope, of=of, metric=metric, window=window, amount=amount)

    def body(self, **fields: Any) -> bytes:
        about = {"member_id": self.member.pk, "team_id": self.member.team_id, "key_id": self.key.row.pk, "status": "ok"}
        return events.encode_body(events.Body(**{"model_asked": "gpt-5.5", **about, **fields}))

    @property
    def about(self) -> bytes:
        return self.body(status="orphaned")

    def usage(self) -> Usage:
        loaded = self.snapshot()
        return admission.usage_sync(loaded, self.key_of(loaded), now_s=int(utc_now().timestamp()))

    @property
    def probe(self) -> Probe:
        return Probe(organization=self.organization.pk)

    def drain(self) -> int:
        done = 0
        while moved := drain.drain(sync_client(), self.organization.pk):
            done += moved
        return done

    def log(self) -> list[UsageRecord]:
        return list(UsageRecord.objects.for_organization(self.organization).order_by("admitted_at", "request_id", "part"))

    def lose_everything(self) -> None:
        """Every key of the organization is deleted."""
        sync_client().delete(*engine.keys(self.organization.pk)[:4])


def make(
    *, plan: str | None = "plus", timezone: str = "UTC", team: bool = False, role: str = "developer", anchor: date | None = None
) -> Tenant:
    organization = factories.organization(plan=plan, timezone=timezone, anchor=anchor)
    member = factories.member(organization, role=role, team=factories.team(organization) if team else None)
    return Tenant(organization, member, factories.api_key(member))


def credits_of(amount: float) -> Amount:
    """So many credits, and a token for each thousandth."""
    return Amount(round(amount * CREDIT), round(amount * 1000))


def shown(error: Any) -> dict[str, Any]:
    """An error's facts, as JSON would carry them."""
    return dict(json.loads(json.dumps(error.facts)))
