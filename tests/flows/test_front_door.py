"""The route walker before Django: every path that `config.asgi` routes itself, as a stranger with a session and with a key."""

import json
from typing import Any

import pytest
import websockets

from accounts.models import Member
from config import asgi
from tests import factories
from tests.flows import tenants
from tests.flows.conftest import Stack
from tests.flows.tenants import MODEL, Tenant, body, in_thread
from tests.pages import made

pytestmark = pytest.mark.stack

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
# What is asked of each path of the table, and what of each pattern behind it; a new row needs a rule here.
PATHS: dict[str, tuple[str, str, bytes | None]] = {
    **{path: ("POST", path, body(stream=True)) for path in asgi.RESPONSES_PATHS},
    **{f"{path}/compact": ("POST", f"{path}/compact", body(stream=False)) for path in asgi.RESPONSES_PATHS},
    "/v1/chat/completions": ("POST", "/v1/chat/completions", json.dumps(CHAT).encode()),
    "/v1/messages": ("POST", "/v1/messages", json.dumps(CHAT | {"max_tokens": 100}).encode()),
    "/v1/models": ("GET", "/v1/models", None),
    "/backend-api/codex/models": ("GET", "/backend-api/codex/models?client_version=0.171.0", None),
    **{
        path: ("GET", path, None)
        for path in (
            "/v1/usage",
            "/api/codex/usage",
            "/backend-api/wham/usage",
            "/api/codex/accounts/check",
            "/backend-api/wham/accounts/check",
        )
    },
}
HTTP_RULES: dict[str, list[tuple[str, str, bytes | None]]] = {
    r"^(?:v1|backend-api|api/codex)(?:/|$)": [
        ("GET", "/v1/nothing", None),
        ("GET", "/backend-api/wham/settings/user", None),
        ("GET", "/api/codex/settings/user", None),
    ],
    r"": [],  # Django's: walked in test_routes.
}
HTTP = [*PATHS.values(), *(one for asked in HTTP_RULES.values() for one in asked)]
WEBSOCKET_RULES = {
    r"^(?:v1|backend-api/codex)/responses$": "/v1/responses",
    r"^ws/": "/ws/o/{slug}/live?page=key",
    r"": "/elsewhere",
}


def patterns(router: Any) -> set[str]:
    return {route.pattern.regex.pattern for route in router.routes}


def test_every_row_of_the_front_door_has_a_rule() -> None:
    assert set(asgi.PROXIED) == set(PATHS)
    assert patterns(asgi.other_http) == set(HTTP_RULES)
    assert patterns(asgi.application.application_mapping["websocket"]) == set(WEBSOCKET_RULES)


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
        for method, path, content in HTTP:
            answer = await client.request(method, f"{stack.url}{path}", content=content)
            assert answer.status_code in (401, 404), f"{role} {path}: {answer.status_code}"
            assert not [mark for mark in marks(tenant) if mark in answer.content]
    assert stack.upstream.received(token=tenant.upstream_token) == []


async def test_a_strangers_key_reaches_only_what_is_its_own(stack: Stack, tenant: Tenant) -> None:
    """J3 in part: its own accounts carry it, its own numbers are told, and no account is named."""
    stranger = await in_thread(tenants.make)
    own = [stranger.account.label.encode()] if stranger.account else []
    async with stack.client() as client:
        for method, path, content in HTTP:
            answer = await client.request(method, f"{stack.url}{path}", headers=stranger.headers, content=content)
            # Its pool has no account that speaks Anthropic's protocol.
            assert answer.status_code in ((400,) if path == "/v1/messages" else (200, 404)), f"{path}: {answer.text}"
            assert not [mark for mark in (*marks(tenant), *own) if mark in answer.content]
    assert stack.upstream.received(token=tenant.upstream_token) == []
    assert len(stack.upstream.received(token=stranger.upstream_token)) == 5


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


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [("/v1/responses", "wr_none", 401), ("/backend-api/codex/responses", "wr_none", 401), ("/elsewhere", "", 426)],
)
async def test_a_socket_without_a_key_or_a_place_is_declined(
    stack: Stack, tenant: Tenant, path: str, key: str, status: int
) -> None:
    """426 is what makes Codex use HTTP for the session at once."""
    url = stack.url.replace("http://", "ws://")
    with pytest.raises(websockets.InvalidStatus) as declined:
        await websockets.connect(f"{url}{path}", additional_headers={"Authorization": f"Bearer {key}"})
    assert declined.value.response.status_code == status


@pytest.mark.parametrize("path", asgi.RESPONSES_PATHS)
async def test_a_strangers_key_opens_a_socket_to_what_is_its_own(stack: Stack, tenant: Tenant, path: str) -> None:
    """J3 in part: its turn is carried by its own account."""
    stranger = await in_thread(tenants.make)
    headers = {"Authorization": stranger.headers["authorization"]}
    async with websockets.connect(f"{stack.url.replace('http', 'ws', 1)}{path}", additional_headers=headers) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": "hi"}))
        frames = [str(await socket.recv())]
        while json.loads(frames[-1])["type"] != "response.completed":
            frames.append(str(await socket.recv()))
    assert not [mark for mark in marks(tenant) if mark in "".join(frames).encode()]
    assert stack.upstream.received(token=tenant.upstream_token) == []
    assert len(stack.upstream.received(token=stranger.upstream_token)) == 2


def session_of(role: str) -> str:
    stranger = factories.member(factories.organization(), role=role)
    return made.signed_in(stranger).cookies["sessionid"].value
