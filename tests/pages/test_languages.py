"""Languages: the person's choice holds, else the browser's; the API speaks English."""

import re
import unicodedata

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse
from django.utils import translation

from accounts import languages
from accounts.models import User
from billing import price_lines
from quotas import remaining, request_told
from quotas.models import Refusal
from tests import factories

pytestmark = pytest.mark.django_db


def test_a_stranger_is_spoken_to_as_the_browser_asks() -> None:
    answer = Client().get("/accounts/login/", headers={"accept-language": "ru,en;q=0.5"})
    assert '<html lang="ru">' in answer.text
    assert "accept-language" in answer["Vary"].lower()
    assert '<html lang="en">' in Client().get("/accounts/login/", headers={"accept-language": "fr"}).text


@pytest.mark.parametrize("spoken", ["en", "ru", "vi"])
def test_each_language_is_offered_by_its_own_name(spoken: str) -> None:
    text = Client().get("/accounts/login/", headers={"accept-language": spoken}).text
    # Django writes the marks of its letters apart.
    composed = unicodedata.normalize("NFC", text)
    offered = re.findall(r'name="language" value="(\w+)" lang="\w+"(?: aria-current="true")?>([^<]+)<', composed)
    assert offered == [("en", "English"), ("ru", "Русский"), ("vi", "Tiếng Việt")]


def test_a_choice_holds_before_and_after_the_sign_in_and_on_other_devices() -> None:
    client, member = Client(), factories.member(factories.organization(plan="free"))
    there = reverse("key", kwargs={"slug": member.organization.slug})
    answer = client.post("/language", {"language": "vi", "next": "/accounts/login/"})
    assert (answer.status_code, answer["Location"]) == (302, "/accounts/login/")
    assert '<html lang="vi">' in client.get("/accounts/login/").text

    assert member.user is not None
    client.force_login(member.user)
    assert client.post("/language", {"language": "ru", "next": there})["Location"] == there
    assert User.objects.get(pk=member.user.pk).language == "ru"
    elsewhere = Client()
    elsewhere.force_login(User.objects.get(pk=member.user.pk))
    assert '<html lang="ru">' in elsewhere.get(there, headers={"accept-language": "en"}).text


@pytest.mark.parametrize("there", ["https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)", ""])
def test_the_way_back_leads_nowhere_else(there: str) -> None:
    assert Client().post("/language", {"language": "ru", "next": there})["Location"] == "/"


def test_an_unknown_language_changes_nothing() -> None:
    answer = Client().post("/language", {"language": "xx", "next": "/accounts/login/"})
    assert answer.status_code == 302
    assert not answer.cookies


def test_the_api_speaks_english() -> None:
    answer = Client().get("/api/v1/status", headers={"accept-language": "ru"})
    assert answer.status_code == 401
    assert answer.json()["error"]["message"] == "Authentication credentials were not provided."


@pytest.mark.parametrize(
    ("own", "cookie", "header", "spoken"),
    [("vi", "ru", b"en", "vi"), ("", "ru", b"en", "ru"), ("", "", b"ru,en;q=0.5", "ru"), ("", "xx", b"fr", "en")],
)
def test_a_socket_speaks_as_its_page(own: str, cookie: str, header: bytes, spoken: str) -> None:
    scope = {"cookies": {settings.LANGUAGE_COOKIE_NAME: cookie}, "headers": [(b"accept-language", header)]}
    assert languages.of_socket(scope, User(language=own)) == spoken
    assert languages.of_socket({}, None) == "en"


def test_what_the_code_says_is_written_as_the_page_is() -> None:
    """Numbers of sentences follow the language, and come back with it; what is kept of a limit does not."""
    row = Refusal(code="rate_limit_exceeded", scope="member", metric="requests_per_minute", limit=1234)
    assert request_told.refused_briefly(row) == "1,234 / min"
    with translation.override("ru"):
        assert "1\N{NO-BREAK SPACE}234" in request_told.refused_briefly(row)
        assert remaining.amount("requests", -1234) == "−1\N{NO-BREAK SPACE}234"
        assert price_lines.thousandths(2500) == "2,5"
    assert price_lines.thousandths(2500) == "2.5"
