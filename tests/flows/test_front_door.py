"""The route walker before Django: every path that `config.asgi` routes itself, as a stranger with a session and with a key."""

from collections.abc import Iterator
from typing import Any

import pytest
import websockets

from accounts.models import Member
from config import asgi
from tests import factories
from tests.flows import tenants
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, body, in_thread
from tests.pages import made

pytestmark = pytest.mark.stack

# What stands for each route of the table; a new row needs a rule here.
HTTP_RULES = {
    asgi.RESPONSES: [("POST", "/v1/responses"), ("POST", "/backend-api/codex/responses")],
    r"^v1/models$": [("GET", "/v1/models")],
    r"^backend-api/codex/models$": [("GET", "/backend-api/codex/models?client_version=0.171.0")],
    r"^v1/usage$": [("GET", "/v1/usage")],
    r"^(?:v1|backend-api/codex)/responses/compact$": [
        ("POST", "/v1/responses/compact"),
        ("POST", "/backend-api/codex/responses/compact"),
    ],
    r"^(?:api/codex|backend-api/wham)/usage$": [("GET", "/api/codex/usage"), ("GET", "/backend-api/wham/usage")],
    r"^(?:api/codex|backend-api/wham)/accounts/check$": [
        ("GET", "/api/codex/accounts/check"),
        ("GET", "/backend-api/wham/accounts/check"),
    ],
    r"^(?:v1|backend-api|api/codex)(?:/|$)": [
        ("GET", "/v1/nothing"),
        ("GET", "/backend-api/wham/settings/user"),
        ("GET", "/api/codex/settings/user"),
    ],
    r"": [],  # Django's: walked in test_routes.
}
WEBSOCKET_RULES = {asgi.RESPONSES: "/v1/responses", r"^ws/": "/ws/o/{slug}/key", r"": "/elsewhere"}


def patterns(kind: str) -> Iterator[str]:
    router: Any = asgi.application.application_mapping[kind]
    yield from (route.pattern.regex.pattern for route in router.routes)


def test_every_row_of_the_front_door_has_a_rule() -> None:
    assert set(patterns("http")) == set(HTTP_RULES)
    assert set(patterns("websocket")) == set(WEBSOCKET_RULES)


def marks(tenant: Tenant) -> list[bytes]:
    assert tenant.account is not None
    assert tenant.member.user is not None
    names = [tenant.organization.name, tenant.organization.slug, tenant.member.user.email, tenant.key.row.public_id]
    return [name.encode() for name in (*names, tenant.account.label, str(tenant.account.uuid), str(tenant.organization.uuid))]


@pytest.mark.parametrize("role", Member.Role.values)
async def test_a_strangers_session_opens_no_proxied_path(stack: Stack, tenant: Tenant, role: str) -> None:
    """Sessions do not authenticate proxied paths; a 401 names nobody."""
    session = await in_thread(session_of, role)
    async with stack.client(cookies={"sessionid": session}) as client:
        for targets in HTTP_RULES.values():
            for method, path in targets:
                answer = await client.request(method, f"{stack.url}{path}", content=body() if method == "POST" else None)
                assert answer.status_code in (401, 404), f"{role} {path}: {answer.status_code}"
                assert not [mark for mark in marks(tenant) if mark in answer.content]
    assert stack.upstream.received(token=tenant.upstream_token) == []


async def test_a_strangers_key_reaches_only_what_is_its_own(stack: Stack, tenant: Tenant) -> None:
    """J3 in part: its own accounts carry it, its own numbers are told, and no account is named."""
    stranger = await in_thread(tenants.make)
    own = [stranger.account.label.encode()] if stranger.account else []
    async with stack.client() as client:
        for targets in HTTP_RULES.values():
            for method, path in targets:
                content = body(stream="compact" not in path) if method == "POST" else None
                answer = await client.request(method, f"{stack.url}{path}", headers=stranger.headers, content=content)
                assert answer.status_code in (200, 404), f"{path}: {answer.status_code}"
                assert not [mark for mark in (*marks(tenant), *own) if mark in answer.content]
    assert stack.upstream.received(token=tenant.upstream_token) == []
    assert len(stack.upstream.received(token=stranger.upstream_token)) == 4


@pytest.mark.parametrize("role", [*Member.Role.values, "nobody"])
async def test_a_strangers_socket_is_closed_without_a_word(stack: Stack, tenant: Tenant, role: str) -> None:
    """The live number of a foreign organization: closed as for a missing one, and nothing was sent."""
    headers = {} if role == "nobody" else {"Cookie": f"sessionid={await in_thread(session_of, role)}"}
    url = stack.url.replace("http://", "ws://")
    codes = []
    for slug in (tenant.organization.slug, "no-such-organization"):
        path = WEBSOCKET_RULES[r"^ws/"].format(slug=slug)
        async with websockets.connect(f"{url}{path}", additional_headers=headers, origin=stack.url) as socket:  # type: ignore[arg-type]
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await socket.recv()
            codes.append(closed.value.rcvd and closed.value.rcvd.code)
    assert codes == [4404, 4404]


@pytest.mark.parametrize("path", ["/v1/responses", "/backend-api/codex/responses", "/elsewhere"])
async def test_other_sockets_are_declined_so_that_clients_fall_back(stack: Stack, tenant: Tenant, path: str) -> None:
    """426 is what makes Codex use HTTP for the session at once."""
    url = stack.url.replace("http://", "ws://")
    with pytest.raises(websockets.InvalidStatus) as declined:
        await websockets.connect(f"{url}{path}", additional_headers={"Authorization": tenant.headers["authorization"]})
    assert declined.value.response.status_code == 426


def session_of(role: str) -> str:
    stranger = factories.member(factories.organization(), role=role)
    return made.signed_in(stranger).cookies["sessionid"].value
