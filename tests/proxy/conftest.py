"""A gateway in this process: the proxy's leaves on a real socket, on the test's event loop, before the scripted upstream."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from django.conf import settings
from django.test import override_settings

from billing.models import UsageRecord
from config import redis as weir_redis
from config import snapshot, tls
from proxy import catalog, estimate, exchange, lifespan, socket_server, sockets, told, usage
from proxy.asgi import Receive, Scope, Send
from proxy.dialects import chat, compact, messages, responses
from quotas import drain
from routing import credentials
from tests import ports
from tests.flows import tenants
from tests.flows.tenants import Tenant
from tests.upstream import ScriptedUpstream

_responses = exchange.app(responses)
_messages = exchange.app(messages)
_chat = exchange.app(chat)
_compact = exchange.app(compact)


async def leaves(scope: Scope, receive: Receive, send: Send) -> None:
    """The path table of `config.asgi`, proxied paths only."""
    path = scope["path"]
    if scope["type"] == "websocket":
        await sockets.app(scope, receive, send)
    elif path in ("/v1/responses", "/backend-api/codex/responses"):
        await _responses(scope, receive, send)
    elif path in ("/v1/responses/compact", "/backend-api/codex/responses/compact"):
        await _compact(scope, receive, send)
    elif path in ("/api/codex/usage", "/backend-api/wham/usage"):
        await told.usage_app(scope, receive, send)
    elif path in ("/api/codex/accounts/check", "/backend-api/wham/accounts/check"):
        await told.accounts_check_app(scope, receive, send)
    elif path == "/v1/chat/completions":
        await _chat(scope, receive, send)
    elif path == "/v1/messages":
        await _messages(scope, receive, send)
    elif path == "/v1/models":
        await catalog.openai_app(scope, receive, send)
    elif path == "/backend-api/codex/models":
        await catalog.codex_app(scope, receive, send)
    elif path == "/v1/usage":
        await usage.app(scope, receive, send)
    else:
        await catalog.not_found_app(scope, receive, send)


@dataclass
class Gateway:
    """The running gateway. `client` closes with it."""

    url: str
    client: httpx.AsyncClient = field(repr=False)

    @property
    def resources(self) -> lifespan.Resources:
        return lifespan.resources()

    async def post(self, tenant: Tenant, path: str = "/v1/responses", **fields: Any) -> httpx.Response:
        """A request of the Responses API; whole answer."""
        return await self.client.post(f"{self.url}{path}", headers=tenant.headers, content=tenants.body(**fields))

    def stream(self, tenant: Tenant, **fields: Any) -> Any:
        return self.client.stream("POST", f"{self.url}/v1/responses", headers=tenant.headers, content=tenants.body(**fields))

    async def get(self, tenant: Tenant, path: str) -> httpx.Response:
        return await self.client.get(f"{self.url}{path}", headers=tenant.headers)


@pytest.fixture
def gateway_settings() -> dict[str, Any]:
    """What a test may override before its gateway starts."""
    return {}


@pytest.fixture
async def gateway(upstream: ScriptedUpstream, gateway_settings: dict[str, Any], transactional_db: None) -> AsyncIterator[Gateway]:
    port = ports.free()
    changed = {
        "UPSTREAM_CHATGPT_URL": f"{upstream.url}/backend-api",
        "UPSTREAM_OPENAI_URL": f"{upstream.url}/v1",
        "UPSTREAM_ANTHROPIC_URL": f"{upstream.url}/v1",
        "UPSTREAM_AUTH_URL": upstream.url,
        "DISCONNECT_GRACE_SECONDS": 0.3,
        **gateway_settings,
    }
    with override_settings(**changed):
        estimate.learned.__init__()  # type: ignore[misc]
        credentials.forget()
        await lifespan.startup()
        config = uvicorn.Config(
            leaves,
            host="127.0.0.1",
            port=port,
            log_level="critical",
            lifespan="off",
            http="httptools",
            ws_max_size=socket_server.largest_frame(settings.PROXY_MAX_BODY_BYTES),
            **socket_server.OPTIONS,
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(server._serve())
        await eventually(lambda: server.started)
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(timeout=20, limits=limits, verify=tls.authorities(trusts_env=True)) as client:
            yield Gateway(f"http://127.0.0.1:{port}", client)
        server.should_exit = True
        await serving
        await lifespan.shutdown()
        snapshot.cache().forget()


@pytest.fixture
def tenant(upstream: ScriptedUpstream, gateway: Gateway) -> Callable[..., Any]:
    """`await tenant(account="chatgpt", ...)`: see `tests.flows.tenants.make`."""

    async def make(**fields: Any) -> Tenant:
        made = await tenants.in_thread(tenants.make, upstream=upstream, **fields)
        assert isinstance(made, Tenant)
        return made

    return make


async def set_limit(tenant: Tenant, *, scope: str, metric: str, window: str, amount: str) -> None:
    """See `quotas.limits.set_limit`."""
    await tenants.in_thread(tenant.set_limit, scope=scope, metric=metric, window=window, amount=amount)


async def logged(tenant: Tenant, count: int = 1) -> list[UsageRecord]:
    """The tenant's usage log, drained as the ledger process does, once it holds `count` rows; oldest first."""

    def drained() -> list[UsageRecord]:
        drain.drain(weir_redis.sync_client(), tenant.organization.pk)
        return tenant.log()

    deadline = asyncio.get_running_loop().time() + 5
    while len(rows := await tenants.in_thread(drained)) < count:
        assert asyncio.get_running_loop().time() < deadline, f"{len(rows)} rows of {count}"
        await asyncio.sleep(0.02)
    assert len(rows) == count
    found: list[UsageRecord] = rows
    return found


async def is_clean(tenant: Tenant) -> bool:
    """No hold lives and no slot is taken."""
    return await tenants.in_thread(lambda: tenant.live_holds() == 0 and tenant.slots() == 0)


async def check_counters(tenant: Tenant, rows: list[UsageRecord]) -> None:
    """Counters = log, to the micro-credit; nothing held."""
    usage = await tenants.in_thread(tenant.usage)
    assert (usage.credits, usage.tokens) == (sum(row.credits for row in rows), sum(row.counted_tokens for row in rows))
    assert (usage.live, usage.plan.held) == (0, 0)
    assert await is_clean(tenant)


async def eventually(check: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of `check()` (or of what it awaits to)."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        value = check()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert asyncio.get_running_loop().time() < deadline, "did not come true"
        await asyncio.sleep(0.01)
