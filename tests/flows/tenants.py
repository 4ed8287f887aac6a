"""Tenants for the flows: an organization with a developer, a key and an account at the scripted upstream, all committed."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from accounts.models import Member, Organization
from billing import credits
from billing.models import UsageRecord
from config import redis as weir_redis
from config import snapshot
from config.clock import utc_now
from quotas import admission, limits, remaining
from quotas.standing import Usage
from routing.models import PoolAccount
from tests import factories

MODEL = "gpt-5.5"


async def in_thread(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs ORM code in a thread and closes its connection."""

    def run() -> Any:
        from django.db import connections

        try:
            return call(*args, **kwargs)
        finally:
            connections.close_all()

    return await asyncio.to_thread(run)


def body(**fields: Any) -> bytes:
    """A streamed request of the Responses API."""
    return json.dumps({"model": MODEL, "stream": True, "input": "Tell me about weirs.", **fields}).encode()


@dataclass
class Tenant:
    organization: Organization
    member: Member
    key: factories.Key
    account: PoolAccount | None = None
    upstream_token: str = field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key.secret}", "content-type": "application/json"}

    def set_limit(self, *, scope: str, metric: str, window: str, amount: str) -> None:
        of = {"organization": None, "member": self.member.user and self.member.user.email, "key": self.key.row.public_id}[scope]
        limits.set_limit(self.organization, scope=scope, of=of, metric=metric, window=window, amount=amount, by=None)

    def log(self) -> list[UsageRecord]:
        """The usage log's rows of this tenant, oldest first."""
        return list(UsageRecord.objects.for_organization(self.organization).order_by("admitted_at", "id"))

    def usage(self) -> Usage:
        """What the counters say for the member and its key."""
        loaded = snapshot.load(self.organization.pk)
        who = remaining.who(self.member, self.key.row.pk)
        return admission.usage_sync(loaded, who, now_s=int(utc_now().timestamp()))

    def live_holds(self) -> int:
        """Holds that have not ended, counted in Redis."""
        import msgpack

        tag = weir_redis.shard(self.organization.pk)
        stored = weir_redis.sync_client().hgetall(f"quotas:{tag}:{self.organization.pk}:q")
        states = [next(iter(msgpack.Unpacker(_feed(value), raw=False))) for name, value in stored.items() if name.startswith(b"h:")]
        return states.count("L")

    def slots(self) -> int:
        """Account slots taken and not lapsed."""
        client = weir_redis.sync_client()
        now = client.time()[0] * 1000
        tag = weir_redis.shard(self.organization.pk)
        slots = list(client.scan_iter(f"routing:{tag}:p{self.account.pool_id}:slots:*")) if self.account else []
        return sum(int(client.zcount(key, now, "+inf")) for key in slots)


def _feed(value: bytes) -> Any:
    import io

    return io.BytesIO(value)


def make(
    *,
    plan: str = "plus",
    timezone: str = "UTC",
    account: str = "openai",
    upstream: Any = None,
    key_fields: dict[str, Any] | None = None,
) -> Tenant:
    """`account`: openai, anthropic, chatgpt (minted at `upstream`) or none."""
    organization = factories.organization(plan=plan, timezone=timezone)
    factories.member(organization, role="owner")
    developer = factories.member(organization)
    tenant = Tenant(organization, developer, factories.api_key(developer, **(key_fields or {})))
    if account == "openai":
        tenant.account, tenant.upstream_token = factories.openai_account(organization)
    elif account == "anthropic":
        tenant.account, tenant.upstream_token = factories.key_account(organization, kind="anthropic")
    elif account == "chatgpt":
        auth = upstream.mint()
        tenant.account = factories.chatgpt_account(organization, auth)
        tenant.upstream_token = auth["tokens"]["access_token"]
    return tenant


def cost(*, input: int = 0, cached: int = 0, output: int = 0) -> int:
    """Micro-credits at gpt-5.5's rates, 125 / 12.5 / 750 credits per million: written out, so that pricing is not its own judge."""
    per_million = input * 125_000_000 + cached * 12_500_000 + output * 750_000_000
    return (per_million + 500_000) // 1_000_000


def text(micro: int) -> str:
    return credits.text(micro)
