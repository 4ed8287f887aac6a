"""Which lots a draw takes, what comes back to them, and when they expire."""

import logging
from datetime import timedelta

import pytest

from billing import ledger, lots
from billing.models import CreditLot, LedgerEntry
from tests import factories
from tests.billing.credit_books import NOW, Books, assert_books_agree

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


@pytest.fixture
def books() -> Books:
    return Books()


def stream_id(seconds_after: float) -> str:
    return f"{int((NOW.timestamp() + seconds_after) * 1000)}-0"


def test_the_lot_that_expires_first_is_drawn_first_then_the_oldest_and_last_what_never_expires(books: Books) -> None:
    books.grant(10)
    books.grant(10, expires_at=NOW + 9 * DAY)
    books.grant(10, expires_at=NOW + 3 * DAY)
    books.grant(10, expires_at=NOW + 3 * DAY, now=NOW - DAY)
    drawn = []
    for _ in range(8):
        books.use(0, 5)
        drawn.append([taken for _, taken, _ in books.lots()])
    assert drawn == [
        [0, 0, 0, 5],
        [0, 0, 0, 10],
        [0, 0, 5, 10],
        [0, 0, 10, 10],
        [0, 5, 10, 10],
        [0, 10, 10, 10],
        [5, 10, 10, 10],
        [10, 10, 10, 10],
    ]
    assert_books_agree(books.pk)


def test_one_draw_may_take_several_lots(books: Books) -> None:
    books.grant(10, expires_at=NOW + DAY)
    books.grant(10)
    request_id = books.use(0, 15)
    assert [amount for *_, amount in books.entries(request_id=request_id)] == [10, 5]
    assert books.lots() == [(10, 10, 0), (10, 5, 0)]


def test_a_draw_that_no_lot_covers_is_booked_and_told(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    """What was granted was taken back while the request ran."""
    books.grant(100)
    books.adjust(-90)
    caplog.set_level(logging.WARNING, "billing.ledger")
    request_id = books.use(0, 30)
    assert books.lots() == [(100, 10, 90)]
    without = LedgerEntry.objects.get(reference=f"usage:{request_id}:0:purchased:none")
    assert (without.amount, without.lot, without.reason) == (20, None, "No lot had anything left.")
    assert [(record.message, record.__dict__["amount"]) for record in caplog.records] == [("credits drawn without a lot", 20)]
    assert ledger.balance(books.pk).left == -20
    assert_books_agree(books.pk)


def test_the_next_lot_covers_what_was_drawn_without_one(books: Books) -> None:
    books.use(0, 30)
    books.grant(20)
    assert (books.lots(), ledger.balance(books.pk).left) == ([(20, 20, 0)], -10)
    books.grant(50)
    assert (books.lots(), ledger.balance(books.pk).left) == ([(20, 20, 0), (50, 10, 0)], 40)
    assert lots.without_lot(books.pk) == 0
    lot = CreditLot.objects.filter(organization_id=books.pk).last()
    assert lot is not None
    assert books.entries(reference__startswith=f"cover:{lot.uuid}") == [
        ("usage_purchased", "credits", "usage", 10),
        ("usage_purchased", "usage", "credits", 10),
    ]
    assert_books_agree(books.pk)


def test_an_amendment_gives_back_to_the_lots_that_its_request_drew_from_the_last_first(books: Books) -> None:
    first = books.grant(10, expires_at=NOW + DAY)
    books.grant(10, expires_at=NOW + 2 * DAY)
    request_id = books.use(0, 15, state="O")
    books.use(0, 5)
    assert books.lots() == [(10, 10, 0), (10, 10, 0)]
    books.use(0, -8, request_id=request_id, part=1)
    assert books.lots() == [(10, 7, 0), (10, 5, 0)]
    given = LedgerEntry.objects.filter(request_id=request_id, debit="credits").order_by("amount")
    assert [(entry.amount, entry.lot == first) for entry in given] == [(3, True), (5, False)]
    assert_books_agree(books.pk)


def test_an_amendment_that_comes_before_its_request_is_made_up_by_it(books: Books) -> None:
    books.grant(100)
    books.use(0, 40)
    early = books.use(0, -20, request_id=factories.unique("req"), part=1)
    assert (books.lots(), ledger.balance(books.pk).left) == ([(100, 40, 0)], 80)
    books.use(0, 50, request_id=early, state="O")
    assert (books.lots(), ledger.balance(books.pk).left) == ([(100, 70, 0)], 30)
    assert_books_agree(books.pk)


def test_what_was_drawn_without_a_lot_is_given_back_first(books: Books) -> None:
    books.grant(10)
    request_id = books.use(0, 25, state="O")
    books.use(0, -20, request_id=request_id, part=1)
    assert (books.lots(), lots.without_lot(books.pk)) == ([(10, 5, 0)], 0)
    assert_books_agree(books.pk)


def test_an_amendment_may_draw_more(books: Books) -> None:
    books.grant(10)
    books.grant(10)
    request_id = books.use(0, 8, state="O")
    books.use(0, 6, request_id=request_id, part=1)
    assert books.lots() == [(10, 10, 0), (10, 4, 0)]
    assert_books_agree(books.pk)


def test_a_lot_expires_only_once_the_drain_has_passed_its_expiry(books: Books) -> None:
    books.grant(10, expires_at=NOW + DAY)
    books.grant(10)
    version = books.version()
    later = NOW + 2 * DAY
    for drained in ("0-0", stream_id(0), stream_id(86400)):
        assert ledger.expire_due(books.pk, later, drained) == 0
    assert ledger.expire_due(books.pk, NOW, stream_id(10**6)) == 0
    # In time, but drained late: it is drawn from the lot that was there.
    books.use(0, 4)
    assert ledger.expire_due(books.pk, later, stream_id(86400.001)) == 6
    assert books.lots() == [(10, 4, 6), (10, 0, 0)]
    assert books.entries(kind="expiry", lot__isnull=False) == [("expiry", "expired", "credits", 6)]
    assert LedgerEntry.objects.get(organization=books.organization, kind="expiry").occurred_at == NOW + DAY
    assert ledger.granted(books.pk) == ledger.Granted(version=version + 1, total=14)
    assert ledger.expire_due(books.pk, later, stream_id(10**6)) == 0
    assert books.version() == version + 1
    assert_books_agree(books.pk)


def test_what_comes_back_to_a_lot_after_it_expired_expires_too(books: Books) -> None:
    books.grant(10, expires_at=NOW + DAY)
    request_id = books.use(0, 8, state="O")
    later, drained = NOW + 2 * DAY, stream_id(10**6)
    assert ledger.expire_due(books.pk, later, drained) == 2
    books.use(0, -5, request_id=request_id, part=1)
    assert ledger.expire_due(books.pk, later, drained) == 5
    assert books.lots() == [(10, 3, 7)]
    assert_books_agree(books.pk)


def test_the_balance_tells_what_expires_next(books: Books) -> None:
    soon = NOW + DAY
    for expires_at in (None, soon + DAY, soon, soon):
        books.grant(10, expires_at=expires_at)
    books.use(0, 5)
    assert ledger.balance(books.pk) == ledger.Balance(granted=40, drawn=5, expires_at=soon, expiring=15)


def test_one_organizations_lots_are_not_anothers(books: Books) -> None:
    other = Books()
    other.grant(100)
    books.use(0, 7)
    assert (books.lots(), other.lots(), ledger.balance(books.pk).left) == ([], [(100, 0, 0)], -7)
