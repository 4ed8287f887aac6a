"""Usage that was logged before there were a ledger and hourly sums: the migration books and sums it, once."""

from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.db import connection

from billing import books as all_books
from billing import funding, ledger, subscriptions, usage
from billing.models import LedgerEntry, Plan, UsageHour
from tests import factories
from tests.billing.credit_books import NOW, Books, assert_books_agree
from tests.billing.usage_events import event_for, line

pytestmark = pytest.mark.django_db

migration: Any = import_module("billing.migrations.0015_book_old_usage")


def write_as_before(books: Books, *events: Any) -> None:
    """The log and its periods, as the drain kept them when there was nothing else."""
    rows = usage._insert([usage._row(books.pk, event) for event in events])
    paying = funding.periods(books.pk, events)
    for row in rows:
        period = paying[funding.source_of(row.event)]
        with connection.cursor() as cursor:
            drawn = [[row.columns[name]] for name in usage._DRAWN]
            cursor.execute(usage.UPDATE_PERIODS, [[period.pk], [0], *drawn])


def days(books: Books) -> list[all_books.Mismatch]:
    return all_books.mismatches(books.organization, NOW - timedelta(days=30), NOW + timedelta(days=1))


def old_log() -> Books:
    """Two weeks with an orphan that was amended, overage, overdraft and a request of two models; and a member with a seat."""
    books = Books()
    at = NOW + timedelta(minutes=1)
    orphan = event_for(books.key, credits=50, admitted_at=at, state="O", tokens=10)
    amended = event_for(books.key, credits=-20, tokens=-4, requests=0, admitted_at=at, part=1, request_id=orphan.request_id)
    two = (line("gpt-5.4-mini", input=5, credits=3, account_id=4), line("gpt-5.4", output=6, credits=4, account_id=4))
    early = event_for(books.key, credits=900, admitted_at=at - timedelta(days=9))
    seat = subscriptions.start(books.organization, Plan.objects.get(slug="pro"), now=at, member=books.key.member)
    own: dict[str, Any] = {"source": f"m{books.key.member_id}", "period_start": seat.periods.get().starts_at}
    write_as_before(
        books,
        orphan,
        amended,
        early,
        event_for(books.key, credits=7, admitted_at=at, lines=two),
        event_for(books.key, credits=100, funds=(60, 0, 30, 10), admitted_at=at),
        event_for(books.key, credits=11, admitted_at=at, **own),
    )
    return books


def test_old_usage_is_booked_by_its_funding_and_summed_by_the_hour() -> None:
    books = old_log()
    assert {one.kind for one in days(books)} == {"rollup"}
    assert migration.book(books.pk) == 8
    assert days(books) == []
    assert_books_agree(books.pk)
    assert {(kind, debit, credit) for kind, debit, credit, _ in books.entries(kind="usage_quota")} == {
        ("usage_quota", "usage", "allowance"),
        ("usage_quota", "allowance", "usage"),
    }
    seat = books.organization.subscriptions.exclude(member=None).get().periods.get()
    assert ledger.balances(books.pk, period_id=seat.pk)["usage"] == 11
    assert sum(UsageHour.objects.filter(organization_id=books.pk).values_list("credits", flat=True)) == 50 - 20 + 7 + 900 + 100 + 11


def test_the_migration_runs_again_without_harm_and_leaves_new_usage_alone() -> None:
    books = old_log()
    books.grant(500)
    books.use(3, 40)
    owed = books.use(0, 2, at=NOW + timedelta(minutes=2))
    before = len(books.entries())
    assert migration.book(books.pk) == 8
    assert migration.book(books.pk) == 0
    assert len(books.entries()) == before + 8
    assert LedgerEntry.objects.filter(organization_id=books.pk, request_id=owed).count() == 1
    assert days(books) == []
    assert_books_agree(books.pk)


def test_what_an_old_row_drew_of_purchased_credits_is_owed() -> None:
    books = Books()
    write_as_before(books, event_for(books.key, credits=9, funds=(0, 9, 0, 0), admitted_at=NOW))
    assert migration.book(books.pk) == 1
    assert migration.book(books.pk) == 0
    assert ledger.balance(books.pk).left == -9
    books.grant(100)
    assert books.lots() == [(100, 9, 0)]
    assert_books_agree(books.pk)


def test_an_organization_without_usage_is_left_as_it_is() -> None:
    organization = factories.organization()
    before = LedgerEntry.objects.for_organization(organization).count()
    assert migration.book(organization.pk) == 0
    assert LedgerEntry.objects.for_organization(organization).count() == before
