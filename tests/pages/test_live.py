"""The live socket: who may hear it, that numbers and marks move, and that it ends with the membership, the role and the session."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from channels.auth import AuthMiddlewareStack
from channels.layers import channel_layers
from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from channels.testing import WebsocketCommunicator
from django.test import Client

from accounts import members
from accounts.models import Member, User
from config import redis as weir_redis
from config import snapshot
from config.clock import utc_now
from quotas import admission, consumers, limits, live, remaining
from quotas.admission import Amount
from tests import factories
from tests.flows.tenants import in_thread
from tests.pages import made

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    """Each test's loop closes what it opened."""
    yield
    await weir_redis.client().close()
    channel_layers.backends.clear()


def make(role: str = "developer") -> Member:
    organization = factories.organization()
    factories.member(organization, role="owner")
    return factories.member(organization, role=role)


def cookie(member: Member) -> str:
    return made.signed_in(member).cookies["sessionid"].value


def socket(
    member: Member, session: str, *, page: str = "key", origin: str = "http://testserver", slug: str | None = None
) -> WebsocketCommunicator:
    headers = [(b"cookie", f"sessionid={session}".encode()), (b"origin", origin.encode()), (b"host", b"testserver")]
    # As in config.asgi; made here, because the validator reads ALLOWED_HOSTS when it is made.
    front = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(consumers.websocket_urlpatterns)))
    return WebsocketCommunicator(front, f"o/{slug or member.organization.slug}/live?page={page}", headers=headers)


async def opened(communicator: WebsocketCommunicator) -> WebsocketCommunicator:
    connected, _ = await communicator.connect(timeout=5)
    assert connected
    return communicator


async def heard(communicator: WebsocketCommunicator, seconds: float = 5) -> dict[str, Any]:
    """What is told next; that nothing moved is no news."""
    while (told := json.loads(await communicator.receive_from(timeout=seconds))) == {"type": "still"}:
        pass
    return told


async def hears_nothing(communicator: WebsocketCommunicator, seconds: float) -> bool:
    """Nothing new within a time; that nothing moved may be said."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not await communicator.receive_nothing(timeout=max(0.05, until - loop.time())):
        if json.loads(await communicator.receive_from()) != {"type": "still"}:
            return False
    return True


async def closes(communicator: WebsocketCommunicator, seconds: float = 5) -> int:
    message = await communicator.receive_output(timeout=seconds)
    assert message["type"] == "websocket.close"
    return int(message["code"])


async def test_the_number_is_told_at_once_and_again_when_usage_is_announced() -> None:
    member = await in_thread(make)
    key = await in_thread(factories.api_key, member)
    session = await in_thread(cookie, member)
    communicator = await opened(socket(member, session))
    first = await heard(communicator)
    assert (first["type"], first["left"], first["deciding"], first["running"]) == ("live", "1,000,000", "plan", 0)
    assert first["marks"]["usage"] == live.usage_mark("")
    assert first["meters"] == [
        {
            "id": "plan",
            "left": "1,000,000",
            "held": "0",
            "used": "0",
            "percent": 100,
            "left_share": "100.0%",
            "held_share": "0.0%",
            "level": "",
        }
    ]

    loaded = await snapshot.cache().get(member.organization_id)
    known = loaded.accounts.keys[key.row.public_id]
    hold = await admission.admit(
        weir_redis.client(), loaded, known, request_id="req_live0000000000000000000", need=Amount(250 * made.CREDIT, 100), about=b""
    )
    await in_thread(live.announce, member.organization_id)
    held = await heard(communicator)
    assert (held["left"], held["meters"][0]["held"], held["meters"][0]["used"]) == ("999,750", "250", "0")
    assert held["marks"]["usage"] == live.usage_mark("")
    await admission.release(weir_redis.client(), hold.hold)
    await in_thread(live.announce, member.organization_id)
    assert (await heard(communicator))["left"] == "1,000,000"

    row = await in_thread(made.used, key.row, made.CREDIT, at=utc_now() - timedelta(seconds=1))
    await in_thread(live.announce, member.organization_id)
    assert (await heard(communicator))["marks"]["usage"] == live.usage_mark(row.request_id)
    await communicator.disconnect()


async def test_a_new_limit_is_told_as_the_one_that_decides() -> None:
    member = await in_thread(make)
    session = await in_thread(cookie, member)
    communicator = await opened(socket(member, session))
    await heard(communicator)
    assert member.user is not None
    await in_thread(
        limits.set_limit, member.organization, scope="member", of=member.user.email, metric="credits", window="day", amount="12.5"
    )
    await in_thread(live.announce, member.organization_id)
    told = await heard(communicator)
    assert (told["left"], told["deciding"]) == ("12.50", "member-credits-day")
    assert [meter["id"] for meter in told["meters"]] == ["member-credits-day", "plan"]
    await communicator.disconnect()


async def test_many_announcements_are_told_once_a_second_at_most() -> None:
    member = await in_thread(make)
    session = await in_thread(cookie, member)
    communicator = await opened(socket(member, session))
    await heard(communicator)
    key = (await in_thread(factories.api_key, member)).row
    for _ in range(5):
        await in_thread(made.used, key, made.CREDIT)
        await in_thread(live.announce, member.organization_id)
    last = await in_thread(made.used, key, made.CREDIT, at=utc_now())
    await in_thread(live.announce, member.organization_id)
    told = await heard(communicator)
    if told["marks"]["usage"] != live.usage_mark(last.request_id):
        told = await heard(communicator)
    assert told["marks"]["usage"] == live.usage_mark(last.request_id)
    assert await hears_nothing(communicator, 1.5)
    await communicator.disconnect()


async def test_another_organizations_usage_is_not_heard() -> None:
    member, other = await in_thread(make), await in_thread(make)
    session = await in_thread(cookie, member)
    communicator = await opened(socket(member, session))
    await heard(communicator)
    await in_thread(made.used, (await in_thread(factories.api_key, other)).row, made.CREDIT)
    await in_thread(live.announce, other.organization_id)
    assert await hears_nothing(communicator, 1.5)
    await communicator.disconnect()


async def test_a_foreign_organization_closes_with_4404_as_a_missing_one() -> None:
    member, other = await in_thread(make), await in_thread(make)
    session = await in_thread(cookie, member)
    for slug in (other.organization.slug, "no-such-organization"):
        communicator = await opened(socket(member, session, slug=slug))
        assert await closes(communicator) == 4404
    nobody = await opened(socket(member, "no-such-session"))
    assert await closes(nobody) == 4404


async def test_finance_has_no_key_page_to_be_live() -> None:
    member = await in_thread(make, "finance")
    communicator = await opened(socket(member, await in_thread(cookie, member)))
    assert await closes(communicator) == 4403


async def test_a_page_of_another_origin_is_refused() -> None:
    member = await in_thread(make)
    communicator = socket(member, await in_thread(cookie, member), origin="https://evil.example")
    connected, _ = await communicator.connect()
    assert not connected


async def test_the_page_ends_with_the_membership() -> None:
    member = await in_thread(make)
    communicator = await opened(socket(member, await in_thread(cookie, member)))
    await heard(communicator)
    await in_thread(members.remove, member, by=None, now=utc_now())
    await in_thread(live.announce, member.organization_id)
    assert await closes(communicator) == 4404


async def test_the_page_ends_with_the_session() -> None:
    member = await in_thread(make)

    def session_of_a_client() -> tuple[Client, str]:
        client = made.signed_in(member)
        return client, client.cookies["sessionid"].value

    client, session = await in_thread(session_of_a_client)
    communicator = await opened(socket(member, session))
    await heard(communicator)
    await in_thread(client.post, "/accounts/logout/")
    await in_thread(live.announce, member.organization_id)
    assert await closes(communicator) == 4404


@pytest.mark.parametrize("change", [{"is_active": False}, {"password": "changed elsewhere"}])
async def test_the_page_ends_with_the_account_and_with_its_password(change: dict[str, Any]) -> None:
    """As any page: who is barred, or signed out everywhere by a new password, hears no more."""
    member = await in_thread(make)
    session = await in_thread(cookie, member)
    communicator = await opened(socket(member, session))
    await heard(communicator)
    await in_thread(User.objects.filter(pk=member.user_id).update, **change)
    await in_thread(live.announce, member.organization_id)
    assert await closes(communicator) == 4404


async def test_what_a_page_sends_is_ignored() -> None:
    member = await in_thread(make)
    communicator = await opened(socket(member, await in_thread(cookie, member)))
    await heard(communicator)
    await communicator.send_to(text_data='{"type": "usage.moved"}')
    assert await hears_nothing(communicator, 1.2)
    await communicator.disconnect()


async def test_announcing_never_raises(settings: Any) -> None:
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": ["redis://127.0.0.1:1/0"]}}
    }
    channel_layers.backends.clear()
    await asyncio.to_thread(live.announce, 1)


async def test_page_and_socket_say_the_same() -> None:
    member = await in_thread(make)
    now = utc_now()
    told = await remaining.live_standing(member, now=now)
    assert told == await in_thread(remaining.standing, member, now=now)
