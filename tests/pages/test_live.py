"""The live socket: who may hear it, that numbers and marks move, and that it ends with the membership, the role and the session."""

import asyncio
import html
import json
import re
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
from accounts.models import ApiKey, AuditEvent, Member, User
from billing import events
from config import redis as weir_redis
from config import snapshot
from config.clock import utc_now
from quotas import admission, consumers, limits, live, remaining, requests, running
from quotas.admission import Amount
from quotas.alerts.models import Alert
from quotas.models import Limit, Refusal
from routing import live as routing_live
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
    # Once in the trail, as on a page (J5); who it is that asks without a session nobody knows.
    told = await in_thread(lambda: list(AuditEvent.objects.filter(actor=member.user, action="missing.asked")))
    assert [(event.organization_id, event.data) for event in told] == [(None, {"method": "GET", "route": "ws/o/<slug:slug>/live"})]


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


# --------------------------------------------------------------------------------------------------------- every page


@pytest.mark.parametrize(
    ("role", "page", "code"),
    [
        ("developer", "members", 4403),
        ("developer", "pool", 4403),
        ("finance", "requests", 4403),
        ("finance", "members", 4403),
        ("lead", "no-such-page", 4404),
    ],
)
async def test_a_page_that_is_not_the_roles_is_not_heard(role: str, page: str, code: int) -> None:
    member = await in_thread(make, role)
    communicator = await opened(socket(member, await in_thread(cookie, member), page=page))
    assert await closes(communicator) == code


@pytest.mark.parametrize("page", ["key", "overview", "members", "pool", "requests", "alerts", ""])
async def test_each_page_of_an_owner_is_told_its_marks_and_no_more_than_it_needs(page: str) -> None:
    member = await in_thread(make, "owner")
    communicator = await opened(socket(member, await in_thread(cookie, member), page=page))
    told = await heard(communicator)
    about_usage = {"usage", "refused", "running"}
    expected = {
        "key": {"config", "alerts", "asked", "deciding"} | about_usage,
        "overview": {"config", "alerts", "deciding"} | about_usage,
        "members": {"config", "alerts", "asked"} | about_usage,
        "pool": {"config", "alerts", "pool"},
        "requests": {"config", "alerts"} | about_usage,
        "alerts": {"config", "alerts"},
        "": {"config", "alerts"},
    }
    assert set(told["marks"]) == expected[page]
    assert ("left" in told) is (page in ("key", "overview"))
    assert ("running" in told) is (page in ("key", "overview", "members", "requests"))
    await communicator.disconnect()


async def test_finance_hears_of_usage_and_of_no_request() -> None:
    member = await in_thread(make, "finance")
    communicator = await opened(socket(member, await in_thread(cookie, member), page="overview"))
    told = await heard(communicator)
    assert set(told["marks"]) == {"config", "alerts", "deciding", "usage"}
    assert "running" not in told
    await communicator.disconnect()


@pytest.mark.parametrize("change", [{"role": "lead"}, {"role": "finance"}])
async def test_the_page_ends_with_the_role_it_was_made_for(change: dict[str, Any]) -> None:
    member = await in_thread(make)
    communicator = await opened(socket(member, await in_thread(cookie, member)))
    await heard(communicator)
    await in_thread(members.change, member, role=change["role"], team=None, by=None, now=utc_now())
    await in_thread(live.announce, member.organization_id)
    assert await closes(communicator) == (4403 if change["role"] == "finance" else 4409)


async def test_a_running_request_is_told_before_it_ends_to_who_may_see_it() -> None:
    """Its hold is in Redis only: nothing announces it, and no SQL finds it."""
    member = await in_thread(make)
    key = await in_thread(factories.api_key, member)
    other = await in_thread(factories.member, member.organization)
    mine = await opened(socket(member, await in_thread(cookie, member), page="requests"))
    theirs = await opened(socket(other, await in_thread(cookie, other), page="requests"))
    before = await heard(mine)
    assert (before["running"], (await heard(theirs))["running"]) == (0, 0)
    loaded = await snapshot.cache().get(member.organization_id)
    known = loaded.accounts.keys[key.row.public_id]
    about = events.encode_body(events.Body(member_id=member.pk, key_id=key.row.pk, model_asked="gpt-5.5"))
    hold = await admission.admit(
        weir_redis.client(), loaded, known, request_id="req_live0000000000000000001", need=Amount(made.CREDIT, 100), about=about
    )
    during = await heard(mine)
    assert during["running"] == 1
    assert during["marks"]["running"] != before["marks"]["running"]
    [row] = await in_thread(running.of, member.organization_id)
    assert (row.request_id, row.member_id, row.model, row.held) == (
        "req_live0000000000000000001",
        member.pk,
        "gpt-5.5",
        made.CREDIT,
    )
    page = await in_thread(lambda: made.signed_in(member).get(made.path(member, "requests")).content.decode())
    assert 'data-running-row="req_live0000000000000000001"' in page
    assert "1.00 held" in " ".join(page.split())
    assert await hears_nothing(theirs, 2.5)
    await admission.release(weir_redis.client(), hold.hold)
    assert (await heard(mine))["running"] == 0
    assert await in_thread(running.of, member.organization_id) == []
    await mine.disconnect()
    await theirs.disconnect()


async def test_a_changed_limit_and_an_alert_move_their_marks() -> None:
    member = await in_thread(make, "owner")
    communicator = await opened(socket(member, await in_thread(cookie, member), page="members"))
    first = await heard(communicator)
    assert member.user is not None
    await in_thread(
        limits.set_limit, member.organization, scope="member", of=member.user.email, metric="credits", window="day", amount="12.5"
    )
    await in_thread(live.announce, member.organization_id)
    changed = await heard(communicator)
    assert changed["marks"]["config"] != first["marks"]["config"]
    page = await in_thread(lambda: made.signed_in(member).get(made.path(member, "members")).content.decode())
    assert changed["marks"]["config"] in page

    def alert() -> None:
        Alert.objects.create(
            organization=member.organization, kind="drift", scope="drift", period="p", told_at=utc_now(), facts={"repaired": 0}
        )

    await in_thread(alert)
    await in_thread(live.announce, member.organization_id)
    told = await heard(communicator)
    assert (first["alerts"], told["alerts"]) == (0, 1)
    assert told["marks"]["alerts"] != first["marks"]["alerts"]
    await communicator.disconnect()


async def test_a_pool_that_moves_is_told_without_an_announcement() -> None:
    member = await in_thread(make, "owner")
    account, _ = await in_thread(factories.openai_account, member.organization)
    communicator = await opened(socket(member, await in_thread(cookie, member), page="pool"))
    first = await heard(communicator)
    key = routing_live.pool_live_key(account.pool_id, member.organization_id)
    await in_thread(weir_redis.sync_client().hset, key, f"{account.pk}:c", "99999999999999")
    told = await heard(communicator)
    assert told["marks"]["pool"] != first["marks"]["pool"]
    assert told["marks"]["config"] == first["marks"]["config"]
    await communicator.disconnect()


def carried(member: Member, page: str) -> Any:
    """The marks that the page is made with."""
    found = re.search(r'data-seen="([^"]+)"', made.signed_in(member).get(made.path(member, page)).content.decode())
    assert found is not None
    return json.loads(html.unescape(found[1]))


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("owner", "requests"),
        ("owner", "members"),
        ("owner", "key"),
        ("owner", "overview"),
        ("owner", "alerts"),
        ("developer", "key"),
        ("developer", "overview"),
        ("finance", "overview"),
    ],
)
def test_a_page_that_lists_carries_each_mark_it_hears_of(role: str, name: str) -> None:
    """What is logged between the page and its socket's first word would be taken for shown already."""
    reader = make(role)
    made.used(factories.api_key(factories.member(reader.organization)).row, 1)
    marks = carried(reader, name)
    # A member, a key and the use of one are newer than what this test holds of the organization.
    reader.organization.refresh_from_db()
    heard = live.stored(reader, name, now=utc_now()).marks
    shows_alerts = name in ("overview", "alerts")
    assert marks == {mark: value for mark, value in heard.items() if mark != "alerts" or shows_alerts}


@pytest.mark.parametrize(("page", "moved"), [("key", {"refused", "asked"}), ("overview", {"refused", "alerts"})])
async def test_what_comes_between_the_page_and_its_socket_is_another_mark(page: str, moved: set[str]) -> None:
    """A refusal, a request for more and an alert that come while the browser still opens the socket are fetched, not missed."""
    member = await in_thread(make, "owner")
    session = await in_thread(cookie, member)

    def before() -> tuple[ApiKey, Limit, Any]:
        key = factories.api_key(member).row
        assert member.user is not None
        limit = limits.set_limit(
            member.organization, scope="member", of=member.user.email, metric="credits", window="day", amount="12.5", by=None
        )
        assert limit is not None
        return key, Limit.objects.get(uuid=limit), carried(member, page)

    key, limit, marks = await in_thread(before)

    def between() -> None:
        now = utc_now()
        Refusal.objects.create(
            organization=member.organization, member_id=member.pk, key_id=key.pk, minute=now, last_at=now, code="limit_reached",
            scope="member", metric="credits", window="day", limit=1, used=1, held=0, need=1, message="Your daily limit is used up.",
        )  # fmt: skip
        requests.ask(member, limit, extra="1", until=now + timedelta(days=2), by=member.user, now=now)
        Alert.objects.create(
            organization=member.organization, kind="drift", scope="drift", period="p", told_at=now, facts={"repaired": 0}
        )

    await in_thread(between)
    communicator = await opened(socket(member, session, page=page))
    told = (await heard(communicator))["marks"]
    assert {mark for mark, value in marks.items() if told[mark] != value} == moved
    assert set(told) - set(marks) == {"deciding", "running"} | ({"alerts"} - moved)
    await communicator.disconnect()
