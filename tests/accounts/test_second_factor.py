"""Second factors: set up, asked for, used once, told of, sealed, taken away."""

import base64
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.core import mail
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.test import Client

from accounts import factors, invitations, mfa_adapter
from accounts.models import AuditEvent, Member, User
from config.clock import utc_now
from routing import rotation
from tests import factories, secrets
from tests.accounts import signing_in
from tests.accounts.signing_in import ACTIVATE, CODES, SECURITY

pytestmark = pytest.mark.django_db(transaction=True)
SECOND_STEP = "/accounts/2fa/authenticate/"


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


def is_in(client: Client) -> bool:
    return client.get(SECURITY).status_code == 200


def events(member: Member) -> list[tuple[str, Any]]:
    rows = AuditEvent.objects.filter(organization=member.organization, actor=member.user).order_by("pk")
    return [(row.action, row.data) for row in rows]


def test_an_app_is_set_up_and_asked_for_from_then_on(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.entered(one, password)
    asked = client.get(ACTIVATE)
    assert asked["location"] == f"/accounts/reauthenticate/?next={ACTIVATE.replace('/', '%2F')}"
    secret = signing_in.with_app(client, password)
    codes = signing_in.codes_shown(client)
    assert (len(codes), len(set(codes))) == (10, 10)
    assert {len(code) for code in codes} == {8}

    again = signing_in.entered(one, password)
    assert not is_in(again)
    assert again.get("/")["location"] == "/accounts/login/?next=/"
    answer = again.post(SECOND_STEP, {"code": signing_in.code_of(secret)})
    assert (answer.status_code, answer["location"]) == (302, "/")
    assert is_in(again)
    assert events(one) == [
        ("second_factor.added", {"kind": "totp", "sessions_ended": 0}),
        ("recovery_codes.made", {}),
    ]
    assert [message.subject for message in mail.outbox] == ["Weir: Authenticator app added"]
    assert [message.to for message in mail.outbox] == [[user_of(one).email]]
    assert "An authenticator app was added" in str(mail.outbox[0].body)
    assert secret not in str(mail.outbox[0].body)


def test_a_code_works_once(member: tuple[Member, str]) -> None:
    """A code that was looked over somebody's shoulder is worth nothing: neither the one of setting up nor one of signing in."""
    one, password = member
    client = signing_in.entered(one, password)
    secret = signing_in.with_app(client, password)
    first = signing_in.entered(one, password)
    refused = first.post(SECOND_STEP, {"code": signing_in.code_of(secret, steps=-1)})
    assert "That code does not fit." in refused.content.decode()
    assert not is_in(first)
    code = signing_in.code_of(secret)
    assert first.post(SECOND_STEP, {"code": code}).status_code == 302
    second = signing_in.entered(one, password)
    assert "That code does not fit." in second.post(SECOND_STEP, {"code": f"{code[:3]} {code[3:]}"}).content.decode()
    assert not is_in(second)


def test_a_recovery_code_works_once_and_is_shown_once(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.entered(one, password)
    signing_in.with_app(client, password)
    shown = client.get(CODES).content.decode()
    file = re.search(r'href="data:text/plain;charset=utf-8,([^"]+)"', shown)
    assert file is not None
    codes = re.findall(r"\d{8}", file[1])
    assert len(codes) == 10
    hidden = client.get(CODES).content.decode()
    assert "Recovery codes are shown once" in hidden
    assert not any(code in hidden for code in codes)
    assert client.get(f"{CODES}download/").status_code == 403

    lost = signing_in.entered(one, password)
    assert lost.post(SECOND_STEP, {"code": f"{codes[3][:4]} {codes[3][4:]}"}).status_code == 302
    assert is_in(lost)
    assert "9 of 10 left" in lost.get(SECURITY).content.decode()
    again = signing_in.entered(one, password)
    assert "That code does not fit." in again.post(SECOND_STEP, {"code": codes[3]}).content.decode()
    assert not is_in(again)


def test_new_recovery_codes_end_the_old_ones(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.entered(one, password)
    signing_in.with_app(client, password)
    old = signing_in.codes_shown(client)
    assert "The 10 codes that are left stop working." in client.get(f"{CODES}generate/").content.decode()
    assert client.post(f"{CODES}generate/")["location"] == CODES
    new = signing_in.codes_shown(client)
    assert not set(old) & set(new)
    other = signing_in.entered(one, password)
    assert other.post(SECOND_STEP, {"code": old[0]}).status_code == 200
    assert other.post(SECOND_STEP, {"code": new[0]}).status_code == 302
    assert events(one)[-1] == ("recovery_codes.made", {})
    assert mail.outbox[-1].subject == "Weir: New recovery codes"


def test_five_wrong_codes_bring_a_pause(member: tuple[Member, str]) -> None:
    one, password = member
    secret = signing_in.with_app(signing_in.entered(one, password), password)
    client = signing_in.entered(one, password, REMOTE_ADDR="203.0.113.40")
    for _ in range(5):
        assert "That code does not fit." in client.post(SECOND_STEP, {"code": "000000"}).content.decode()
    paused = client.post(SECOND_STEP, {"code": signing_in.code_of(secret)}).content.decode()
    assert "Too many wrong tries. Wait five minutes, then try again." in paused
    # From elsewhere it is the same pause.
    other = signing_in.entered(one, password, REMOTE_ADDR="203.0.113.41")
    assert other.post(SECOND_STEP, {"code": signing_in.code_of(secret)}).status_code == 200
    assert not is_in(other)


def test_a_wrong_code_sets_nothing_up_and_the_key_stays_the_same(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.confirmed(signing_in.entered(one, password), password)
    first = re.search(r'data-text="([A-Z2-7]{32})"', client.get(ACTIVATE).content.decode())
    refused = client.post(ACTIVATE, {"code": "000000"}).content.decode()
    assert "That code does not fit." in refused
    again = re.search(r'data-text="([A-Z2-7]{32})"', client.get(ACTIVATE).content.decode())
    assert first is not None
    assert again is not None
    assert first[1] == again[1]
    assert not Authenticator.objects.filter(user=one.user).exists()
    assert events(one) == []


def test_the_code_to_scan_passes_the_content_policy(member: tuple[Member, str]) -> None:
    one, password = member
    answer = signing_in.confirmed(signing_in.entered(one, password), password).get(ACTIVATE)
    page = answer.content.decode()
    assert {"default-src 'self'", "img-src 'self' data:"} <= set(answer["content-security-policy"].split("; "))
    image = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert image is not None
    assert b"<svg" in base64.b64decode(image[1])
    assert " style=" not in page
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)


def test_secrets_are_sealed_at_rest_also_while_they_wait(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.confirmed(signing_in.entered(one, password), password)
    found = re.search(r'data-text="([A-Z2-7]{32})"', client.get(ACTIVATE).content.decode())
    assert found is not None
    assert found[1] not in json.dumps(dict(client.session.items()))
    client.post(ACTIVATE, {"code": signing_in.code_of(found[1])})
    rows = {row.type: row.data for row in Authenticator.objects.filter(user=one.user)}
    assert found[1] not in json.dumps(rows)
    adapter = mfa_adapter.MFAAdapter()
    assert adapter.decrypt(rows["totp"]["secret"]) == found[1]
    assert len(adapter.decrypt(rows["recovery_codes"]["seed"])) == 80


def test_the_first_factor_signs_out_all_others(member: tuple[Member, str]) -> None:
    one, password = member
    other = signing_in.entered(one, password, HTTP_USER_AGENT="somebody who knows the password")
    client = signing_in.entered(one, password)
    assert is_in(other)
    signing_in.with_app(client, password)
    assert not is_in(other)
    assert is_in(client)
    assert events(one)[0] == ("second_factor.added", {"kind": "totp", "sessions_ended": 1})


def test_a_changed_password_signs_out_all_others(member: tuple[Member, str]) -> None:
    one, password = member
    other, client = signing_in.entered(one, password), signing_in.entered(one, password)
    assert (is_in(other), is_in(client)) == (True, True)
    new = factories.password()
    change = {"oldpassword": password, "password1": new, "password2": new}
    assert client.post("/accounts/password/change/", change)["location"] == SECURITY
    assert (is_in(other), is_in(client)) == (False, True)
    assert UserSession.objects.filter(user=one.user).count() == 1
    assert events(one) == [("password.changed", {"sessions_ended": 1})]
    assert mail.outbox[-1].subject == "Weir: Password changed"


def test_a_factor_is_removed_after_the_password_and_told(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.entered(one, password)
    signing_in.with_app(client, password)
    path = "/accounts/2fa/totp/deactivate/"
    later = signing_in.entered(one, password)
    assert later.post(path)["location"].startswith("/accounts/login/")
    assert client.post(path).status_code == 302
    assert not Authenticator.objects.filter(user=one.user).exists()
    assert [action for action, _ in events(one)][-2:] == ["second_factor.removed", "recovery_codes.removed"]
    assert mail.outbox[-1].subject == "Weir: Authenticator app removed"
    assert is_in(signing_in.entered(one, password))


def test_a_change_needs_the_password_again(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.entered(one, password)
    signing_in.with_app(client, password)
    client = Client()
    client.force_login(user_of(one))
    for path in (ACTIVATE, "/accounts/2fa/totp/deactivate/", f"{CODES}generate/", CODES, "/accounts/2fa/webauthn/add/"):
        for method in (client.get, client.post):
            answer = method(path)
            if path == CODES and method == client.post:
                assert answer.status_code == 405
                continue
            assert answer.status_code == 302, path
            assert answer["location"].startswith(("/accounts/reauthenticate/", "/accounts/2fa/totp/deactivate/")), path
    assert factors.has_one(user_of(one).pk)


def test_a_mail_that_cannot_be_sent_undoes_nothing(member: tuple[Member, str], settings: Any) -> None:
    settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = "django.core.mail.backends.smtp.EmailBackend", "127.0.0.1", 1
    one, password = member
    signing_in.with_app(signing_in.entered(one, password), password)
    assert factors.has_one(user_of(one).pk)


def test_a_link_to_join_asks_for_the_second_factor_too(member: tuple[Member, str]) -> None:
    """Whoever makes a link for somebody's address and knows the password is not let in by it."""
    one, password = member
    secret = signing_in.with_app(signing_in.entered(one, password), password)
    other = factories.organization(plan=None)
    link = invitations.create_owner_link(other, user_of(one).email, now=utc_now())
    token = secrets.register(link.url.rsplit("/", 1)[1], "one-time link")
    client = Client()
    answer = client.post(f"/join/{token}", {"password": password})
    assert (answer.status_code, answer["location"]) == (302, SECOND_STEP)
    assert not is_in(client)
    answer = client.post(SECOND_STEP, {"code": signing_in.code_of(secret)})
    assert answer["location"] == f"/o/{other.slug}/"
    assert is_in(client)


@pytest.mark.parametrize(
    "credential",
    ["", "nothing", "[]", "1", "null", '"x"', "{}", '{"id": 1}', '{"id": "x", "rawId": "x", "type": "public-key", "response": {}}',
     '{"id": "AA", "rawId": "AA", "type": "public-key", "response": {"clientDataJSON": "AA", "attestationObject": "AA"}}',
     '{"id": "AA", "rawId": "AA", "type": "public-key", "response": {"clientDataJSON": "e30", "authenticatorData": "AA",'
     ' "signature": "AA", "userHandle": "AA"}}',
     '{"id": "AA", "rawId": "AA", "type": "public-key", "response": {"userHandle": 7}}'],
)  # fmt: skip
def test_what_is_no_passkey_is_refused_in_a_sentence(member: tuple[Member, str], credential: str) -> None:
    one, password = member
    client = Client()
    client.get("/accounts/2fa/webauthn/login/", headers={"accept": "application/json"})
    answer = client.post("/accounts/2fa/webauthn/login/", {"credential": credential}, follow=True)
    assert answer.redirect_chain == [("/accounts/login/", 302)]
    assert not is_in(client)
    client = signing_in.entered(one, password)
    signing_in.confirmed(client, password)
    assert client.get("/accounts/2fa/webauthn/add/").status_code == 200
    answer = client.post("/accounts/2fa/webauthn/add/", {"credential": credential, "name": "x"})
    assert answer.status_code == 200
    assert 'role="alert">' in answer.content.decode()
    assert not Authenticator.objects.filter(user=one.user).exists()


def test_an_operator_takes_the_factors_of_somebody_who_lost_them(member: tuple[Member, str]) -> None:
    one, password = member
    client = signing_in.entered(one, password)
    signing_in.with_app(client, password)
    assert is_in(client)
    mail.outbox.clear()
    out = io.StringIO()
    call_command("reset_second_factor", user_of(one).email.upper(), "--json", stdout=out)
    assert json.loads(out.getvalue()) == {"email": user_of(one).email, "factors_removed": 1, "sessions_ended": 1}
    assert not Authenticator.objects.filter(user=one.user).exists()
    assert not is_in(client)
    assert is_in(signing_in.entered(one, password))
    (event,) = AuditEvent.objects.filter(organization=one.organization, action="second_factor.reset")
    assert (event.actor_label, event.data) == ("operator", {"kinds": ["recovery_codes", "totp"], "sessions_ended": 1})
    assert event.object_id == str(one.uuid)
    (message,) = mail.outbox
    assert message.to == [user_of(one).email]
    assert "/accounts/security/" in str(message.body)
    with pytest.raises(CommandError, match="Nobody signs in as"):
        call_command("reset_second_factor", "nobody@example.org")


def test_a_rotated_key_seals_factors_anew(member: tuple[Member, str], settings: Any) -> None:
    """`rotate_encryption_keys` reaches what lies within JSON, too: an old key is not called free while a factor needs it."""
    one, password = member
    Authenticator.objects.all().delete()
    client = signing_in.entered(one, password)
    secret = signing_in.with_app(client, password)
    old = next(iter(settings.ENCRYPTION_KEYS))
    fresh = base64.urlsafe_b64encode(b"another key of thirty-two bytes!").decode()
    settings.ENCRYPTION_KEYS = {"fresh": fresh, **settings.ENCRYPTION_KEYS}
    found = rotation.Rotation(newest="fresh")
    rotation._reseal_factors(found, 500)
    assert (found.resealed, found.moved) == (2, 0)
    assert found.keys[old] == 0
    settings.ENCRYPTION_KEYS = {"fresh": fresh}
    again = signing_in.entered(one, password)
    assert again.post(SECOND_STEP, {"code": signing_in.code_of(secret)}).status_code == 302
    repeated = rotation.Rotation(newest="fresh")
    rotation._reseal_factors(repeated, 1)
    assert (repeated.resealed, repeated.current, repeated.broken) == (0, 2, [])
    Authenticator.objects.all().delete()
