"""Pages give up on a statement that takes too long; what is not a page does not."""

import time

import pytest
from django.db import OperationalError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from psycopg.errors import QueryCanceled

from config import patience, scope
from config.middleware import PatienceMiddleware
from tests import factories
from tests.pages import made

pytestmark = pytest.mark.django_db


def shown(name: str = "statement_timeout") -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW {name}")
        return str(cursor.fetchone()[0])


def test_every_page_has_a_limit_and_nothing_else_has() -> None:
    """H5: the statement timeout is set in one place, for pages, the API and the admin alike."""
    before = shown()
    seen: list[str] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(shown())
        with scope.everything():
            seen.append(shown())
        return HttpResponse()

    PatienceMiddleware(view)(RequestFactory().get("/"))
    assert seen == [f"{patience.PAGE_SECONDS:g}s"] * 2
    assert shown() == before
    with patience.statements_within(0.25):
        assert shown() == "250ms"
        with pytest.raises(OperationalError) as caught, transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(5)")
        assert isinstance(caught.value.__cause__, QueryCanceled)
        # The setting outlives the rollback.
        assert shown() == "250ms"
    assert shown() == before


def test_a_page_takes_one_core_of_the_server() -> None:
    """H5: other statements take as many as the server gives them, also on a connection that a page had."""
    before = shown("max_parallel_workers_per_gather")
    assert before != "0"
    with patience.statements_within(patience.PAGE_SECONDS):
        assert shown("max_parallel_workers_per_gather") == "0"
        with patience.unlimited():
            assert shown("max_parallel_workers_per_gather") == before
    assert shown("max_parallel_workers_per_gather") == before


@pytest.mark.django_db(transaction=True)
def test_a_page_that_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """H5: within seconds, with a page that says what to do; the next page is there again."""
    member = factories.member(factories.organization(), role="owner")
    page = made.signed_in(member)
    monkeypatch.setattr(patience, "PAGE_SECONDS", 0.3)
    busy = connection.copy()
    try:
        with scope.everything(), busy.cursor() as cursor:
            # Whoever reads the sums waits for this.
            cursor.execute("BEGIN")
            cursor.execute("LOCK TABLE billing_usagehour IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        answer = page.get(made.path(member, "overview"))
        assert time.monotonic() - began < 4
    finally:
        busy.close()
    assert answer.status_code == 503
    assert b"shorter time" in answer.content
    assert page.get(made.path(member, "overview")).status_code == 200
