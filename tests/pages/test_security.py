"""Security: which factors one has, who is signed in as oneself; nobody else's of either."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import devices, factors
from accounts.models import AuditEvent, Member, User
from config.clock import utc_now
from tests import factories
from tests.accounts import signing_in
from tests.accounts.signing_in import SECURITY
from tests.pages import made

pytestmark = pytest.mark.django_db
END, END_OTHERS = "/accounts/security/sessions/end", "/accounts/security/sessions/end-others"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@pytest.fixture(autouse=True)
def no_attempts_counted() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def member() -> tuple[Member, str]:
    return signing_in.person()


def user_of(member: Member) -> User:
    assert member.user is not None
    return member.user


def text_of(client: Client) -> str:
    page = client.get(SECURITY).content.decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def with_passkey(member: Member, name: str = "Laptop", **result: Any) -> Authenticator:
    credential = {"clientExtensionResults": {"credProps": result}}
    row: Authenticator = Authenticator.objects.create(
        user=member.user, type=Authenticator.Type.WEBAUTHN, data={"name": name, "credential": credential}
    )
    return row


def test_the_first_sentence_says_what_lets_one_in_and_who_is_in(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.entered(one, password)
    assert "Your password alone lets you in. Only this browser is signed in as you." in text_of(client)
    signing_in.given_app(one)
    assert "Beside your password, a code of your authenticator app is asked for. Only this browser" in text_of(client)
    with_passkey(one, rk=True)
    made.signed_in(one, HTTP_USER_AGENT=FIREFOX).get(SECURITY)
    said = text_of(client)
    assert (
        "Beside your password, your authenticator app or a passkey is asked for. A passkey alone lets you in, too. 2 browsers"
        in said
    )
    assert "Laptop Signs in without a password" in said


def test_it_is_in_the_frame_of_the_organization_and_in_a_plain_one_without(member: tuple[Member, str]) -> None:
    one, password = member
    page = signing_in.entered(one, password).get(SECURITY).content.decode()
    assert 'aria-label="Main"' in page
    assert f'href="{SECURITY}"' in signing_in.entered(one, password).get(made.path(one)).content.decode()
    alone = User.objects.create_user(f"{factories.unique('alone')}@example.com", factories.password())
    client = Client()
    client.force_login(alone)
    plain = client.get(SECURITY).content.decode()
    assert 'aria-label="Main"' not in plain
    assert "Your password alone lets you in." in plain


def test_each_session_tells_its_browser_its_address_and_when(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.entered(one, password)
    other = signing_in.entered(one, password, REMOTE_ADDR="203.0.113.9", HTTP_USER_AGENT=FIREFOX)
    UserSession.objects.filter(ip="203.0.113.9").update(last_seen_at=utc_now() - timedelta(minutes=90))
    page = client.get(SECURITY).content.decode()
    rows = re.findall(r'<tr data-session="\w+">(.*?)</tr>', page)
    assert len(rows) == 2
    assert "This browser" in rows[0]
    assert "Sign out" not in rows[0]
    assert "Firefox · Linux" in rows[1]
    assert "203.0.113.9" in rows[1]
    assert f'<time datetime="{utc_now() - timedelta(minutes=90):%Y-%m-%dT%H:%M}' in rows[1]
    assert 'aria-label="Sign out Firefox · Linux at 203.0.113.9"' in rows[1]
    keys = [client.session.session_key, other.session.session_key]
    assert not any(str(key) in page for key in keys)


def test_a_session_is_ended_at_once_and_leaves_the_others(member: tuple[Member, str]) -> None:
    one, password = member
    client, other, third = (signing_in.entered(one, password) for _ in range(3))
    other.get(SECURITY, HTTP_USER_AGENT=FIREFOX)
    row = re.search(r'data-session="(\w+)"><th scope="row">Firefox', client.get(SECURITY).content.decode())
    assert row is not None
    assert client.post(END, {"session": row[1]})["location"] == SECURITY
    assert [each.get(SECURITY).status_code for each in (client, other, third)] == [200, 302, 200]
    events = AuditEvent.objects.filter(organization=one.organization, action="session.ended")
    assert [(event.actor, event.data) for event in events] == [(one.user, {"sessions_ended": 1})]
    client.post(END, {"session": row[1]})
    assert "That session had ended already." in text_of(client)
    client.post(END_OTHERS)
    assert [each.get(SECURITY).status_code for each in (client, third)] == [200, 302]
    assert UserSession.objects.filter(user=one.user).count() == 1
    assert events.all().count() == 2


def test_nobody_elses_session_is_ended(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.entered(one, password)
    client.get(SECURITY)
    row = re.search(r'data-session="(\w+)"', client.get(SECURITY).content.decode())
    assert row is not None
    stranger, strange_password = signing_in.person("owner")
    intruder = signing_in.entered(stranger, strange_password)
    for path, data in ((END, {"session": row[1]}), (END, {"session": str(client.session.session_key)}), (END_OTHERS, {})):
        assert intruder.post(path, data).status_code == 302
    assert client.get(SECURITY).status_code == 200
    strict = signing_in.entered(one, password)
    strict.handler.enforce_csrf_checks = True
    assert strict.post(END_OTHERS).status_code == 403
    assert client.get(SECURITY).status_code == 200


def test_a_passkey_is_renamed_and_removed_by_its_own_person_only(member: tuple[Member, str]) -> None:
    one, password = member
    row = with_passkey(one)
    base = f"/accounts/security/passkeys/{factors.name_of(row)}"
    stranger, strange_password = signing_in.person("owner")
    intruder = signing_in.confirmed(signing_in.entered(stranger, strange_password), strange_password)
    for path in (f"{base}/rename", f"{base}/remove", "/accounts/security/passkeys/nothing/remove"):
        assert intruder.get(path).status_code == 404
        assert intruder.post(path, {"name": "Mine"}).status_code == 404
    row.refresh_from_db()
    assert row.data["name"] == "Laptop"
    for path in (f"/accounts/2fa/webauthn/keys/{row.pk}/remove/", f"/accounts/2fa/webauthn/keys/{row.pk}/edit/"):
        assert intruder.post(path).status_code == 404

    client = made.signed_in(one)
    signing_in.confirmed(client, password)
    for path in (f"/accounts/2fa/webauthn/keys/{row.pk}/remove/", f"/accounts/2fa/webauthn/keys/{row.pk}/edit/"):
        assert client.post(path, {"name": "x"}).status_code == 404
    long = client.post(f"{base}/rename", {"name": "n" * 81})
    assert "at most 80 characters" in long.content.decode()
    assert client.post(f"{base}/rename", {"name": "Work laptop"})["location"] == SECURITY
    assert "Work laptop" in text_of(client)
    assert "Remove Work laptop" in client.get(f"{base}/remove").content.decode()
    assert client.post(f"{base}/remove")["location"] == SECURITY
    assert not Authenticator.objects.filter(pk=row.pk).exists()


def test_the_last_passkey_stays_while_a_factor_is_required() -> None:
    one, password = signing_in.person("owner", second_factor="leads")
    row = with_passkey(one)
    path = f"/accounts/security/passkeys/{factors.name_of(row)}/remove"
    client = signing_in.confirmed(made.signed_in(one), password)
    assert "This is your only second factor, and one is required of you." in client.get(path).content.decode()
    refused = client.post(path)
    assert (refused.status_code, Authenticator.objects.filter(pk=row.pk).exists()) == (409, True)
    signing_in.given_app(one)
    assert client.post(path).status_code == 302


@pytest.mark.parametrize("path", ["2fa/", "2fa/webauthn/", "sessions/"])
def test_allauths_own_overviews_lead_here(member: tuple[Member, str], path: str) -> None:
    client = made.signed_in(member[0])
    assert client.get(f"/accounts/{path}")["location"] == SECURITY
    assert client.post(f"/accounts/{path}")["location"] == SECURITY


def test_queries_do_not_grow_with_sessions_or_passkeys(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.entered(one, password)
    client.get(SECURITY)
    signing_in.given_app(one)
    with CaptureQueriesContext(connection) as few:
        client.get(SECURITY)
    for number in range(8):
        with_passkey(one, name=f"Key {number}")
        made.signed_in(one, HTTP_USER_AGENT=FIREFOX).get(SECURITY)
    with CaptureQueriesContext(connection) as many:
        page = client.get(SECURITY).content.decode()
    assert page.count("data-session=") == 9
    assert len(many) == len(few) <= 14


def test_a_page_costs_one_query_to_know_when_a_session_was_seen(member: tuple[Member, str]) -> None:
    client = made.signed_in(member[0])
    client.get("/accounts/password/reset/done/")
    with CaptureQueriesContext(connection) as queries:
        client.get("/accounts/password/reset/done/")
    assert len([query for query in queries if "usersessions" in query["sql"]]) == 1
    UserSession.objects.update(last_seen_at=utc_now() - timedelta(minutes=2))
    client.get("/accounts/password/reset/done/")
    row = UserSession.objects.get(user=member[0].user)
    assert utc_now() - row.last_seen_at < timedelta(seconds=30)


def test_passkeys_are_not_offered_at_an_address_in_numbers(member: tuple[Member, str]) -> None:
    client = made.signed_in(member[0])
    for host, is_offered in (("localhost", True), ("localhost:8000", True), ("127.0.0.1:8000", False), ("[::1]:8000", False)):
        page = client.get(SECURITY, headers={"host": host}).content.decode()
        assert ("Add passkey" in page) is is_offered, host
        assert ("Browsers make passkeys for a host name only." in page) is not is_offered, host


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (FIREFOX, "Firefox · Linux"),
        ("Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0", "Edge · Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Mobile/15E148 Safari/604.1", "Safari · iPhone"),
        ("Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 Chrome/140.0 Mobile Safari/537.36", "Chrome · Android"),
        ("curl/8.0", "curl"),
        ("a browser of one's own", "a browser of one's own"),
        ("", "–"),
    ],
)
def test_a_browser_is_told_in_words(agent: str, said: str) -> None:
    assert devices.described(agent) == said
