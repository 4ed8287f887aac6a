"""Signing in: attempts are limited by the client's real address, nobody signs up, a lost password comes back by e-mail."""

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import mail
from django.core.cache import cache
from django.core.mail.backends.base import BaseEmailBackend
from django.test import Client

from accounts import adapter, members
from accounts.models import User
from tests import factories

pytestmark = pytest.mark.django_db
LOGIN = "/accounts/login/"


@pytest.fixture(autouse=True)
def no_attempts_counted() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def person() -> tuple[str, str]:
    email, password = f"{factories.unique('ada')}@example.org", factories.password()
    members.add(factories.organization(plan=None), email, role="developer", by=None, password=password)
    return email, password


def sign_in(email: str, password: str, **options: Any) -> bool:
    client = Client(**options)
    client.post(LOGIN, {"login": email, "password": password})
    return "_auth_user_id" in client.session


def test_one_signs_in_by_e_mail_in_any_case(person: tuple[str, str]) -> None:
    email, password = person
    assert sign_in(email.upper(), password)
    assert not sign_in(email, password + "x")


def test_after_five_wrong_passwords_the_right_one_waits(person: tuple[str, str]) -> None:
    email, password = person
    for number in range(5):
        assert not sign_in(email, "wrong", REMOTE_ADDR=f"198.51.100.{number}")
    assert not sign_in(email, password, REMOTE_ADDR="198.51.100.99")


def test_a_forged_header_does_not_hide_who_is_guessing(person: tuple[str, str], settings: Any) -> None:
    """N71, J7: thirty attempts a minute from one address, whatever X-Forwarded-For says; a trusted proxy's word is taken."""
    settings.ACCOUNT_RATE_LIMITS = {"login": "3/m/ip"}
    email, password = person
    for number in range(3):
        sign_in("nobody@example.org", "wrong", REMOTE_ADDR="203.0.113.5", HTTP_X_FORWARDED_FOR=f"10.0.0.{number}")
    assert not sign_in(email, password, REMOTE_ADDR="203.0.113.5", HTTP_X_FORWARDED_FOR="10.0.0.77")
    settings.TRUSTED_PROXIES = ["203.0.113.0/24"]
    assert sign_in(email, password, REMOTE_ADDR="203.0.113.5", HTTP_X_FORWARDED_FOR="198.51.100.7")


def mailed() -> list[Any]:
    """What was sent, once it is."""
    adapter.mailing.submit(lambda: None).result(20)
    return mail.outbox


def test_nobody_signs_up() -> None:
    before = User.objects.count()
    answer = Client().post("/accounts/signup/", {"email": "new@example.org", "password1": "x" * 20, "password2": "x" * 20})
    assert "_auth_user_id" not in answer.client.session
    assert User.objects.count() == before


def test_a_lost_password_comes_back_by_a_link_below_the_public_url(person: tuple[str, str], settings: Any) -> None:
    settings.PUBLIC_URL = "https://weir.example"
    email, old = person
    answer = Client(headers={"host": "localhost"}).post("/accounts/password/reset/", {"email": email})
    assert answer.status_code == 302
    (message,) = mailed()
    assert message.to == [email]
    assert message.subject.startswith("Weir: ")
    found = re.search(r"https://weir\.example(/accounts/password/reset/key/\S+)", str(message.body))
    assert found is not None
    assert "localhost" not in str(message.body)
    client, new = Client(), factories.password()
    form = client.get(found[1], follow=True)
    assert form.status_code == 200
    client.post(form.request["PATH_INFO"], {"password1": new, "password2": new})
    assert sign_in(email, new)
    assert not sign_in(email, old)


def test_an_unknown_address_is_answered_the_same_and_gets_no_mail(person: tuple[str, str]) -> None:
    answers = [Client().post("/accounts/password/reset/", {"email": email}) for email in (person[0], "nobody@example.org")]
    assert [(answer.status_code, answer["Location"]) for answer in answers] == [(302, "/accounts/password/reset/done/")] * 2
    assert [message.to for message in mailed()] == [[person[0]]]


class Server(BaseEmailBackend):
    """A mail server that is asked, and after a while takes nothing."""

    asked, answers = threading.Event(), threading.Event()

    def send_messages(self, email_messages: Any) -> int:
        self.asked.set()
        assert self.answers.wait(20)
        raise ConnectionRefusedError


def test_a_mail_server_tells_nobody_who_signs_in_here(person: tuple[str, str], settings: Any) -> None:
    """Neither by the time it takes nor by its fault."""
    settings.EMAIL_BACKEND = f"{__name__}.Server"
    try:
        answers = [Client().post("/accounts/password/reset/", {"email": email}) for email in (person[0], "nobody@example.org")]
        assert [(answer.status_code, answer["Location"]) for answer in answers] == [(302, "/accounts/password/reset/done/")] * 2
        assert Server.asked.wait(20)
    finally:
        Server.answers.set()
    assert mailed() == []
