"""A payment is marked and granted together, once; a refund takes back what is left."""

import threading
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connections

from accounts.models import AuditEvent
from billing import ledger, purchases
from billing.errors import CreditsRefused, OperatorsOnly, PaymentRefused
from billing.models import CreditLot, LedgerEntry, Purchase
from tests import factories
from tests.billing.credit_books import NOW, Books, assert_books_agree

pytestmark = pytest.mark.django_db


@pytest.fixture
def books() -> Books:
    return Books()


def complete(books: Books, payment_id: str, **fields: Any) -> Purchase:
    said = {"amount": 100, "price": Decimal("12.50"), "currency": "EUR", "now": NOW, **fields}
    return purchases.complete("shop", payment_id, **{"organization": books.organization, **said})


def test_a_payment_grants_its_credits_for_twelve_months(books: Books) -> None:
    payment_id = factories.unique("pay")
    purchase = complete(books, payment_id, currency="eur", payload={"event": "1"})
    assert (purchase.status, purchase.paid_at, purchase.credits, purchase.amount) == ("paid", NOW, 100, Decimal("12.50"))
    assert (purchase.currency, purchase.payload) == ("EUR", {"event": "1"})
    lot = purchase.lot
    assert lot is not None
    assert (lot.kind, lot.amount, lot.reference) == ("purchase", 100, f"purchase:{purchase.uuid}")
    assert lot.expires_at is not None
    assert lot.expires_at.date().isoformat() == "2027-12-01"
    assert books.entries(lot=lot) == [("purchase", "credits", "issued", 100)]
    assert ledger.granted(books.pk) == ledger.Granted(version=1, total=100)
    event = AuditEvent.objects.get(organization=books.organization, action="purchase.completed")
    assert event.data == {"provider": "shop", "payment_id": payment_id, "credits": "0.0001"}
    assert_books_agree(books.pk)


def test_a_payment_that_is_told_again_grants_nothing(books: Books) -> None:
    """M4: the same payment three times."""
    payment_id = factories.unique("pay")
    first = complete(books, payment_id)
    assert [complete(books, payment_id).pk for _ in range(2)] == [first.pk, first.pk]
    assert ledger.granted(books.pk) == ledger.Granted(version=1, total=100)
    assert AuditEvent.objects.filter(organization=books.organization, action="purchase.completed").count() == 1


def test_a_pending_purchase_is_completed(books: Books) -> None:
    payment_id = factories.unique("pay")
    pending = Purchase.objects.create(
        organization=books.organization, provider="shop", payment_id=payment_id, credits=100, amount="12.50", currency="EUR"
    )
    assert complete(books, payment_id).pk == pending.pk
    assert ledger.granted(books.pk).total == 100


@pytest.mark.parametrize(
    "fields", [{"amount": 101}, {"price": Decimal("12.51")}, {"currency": "USD"}, {"organization": None}], ids=str
)
def test_a_payment_that_is_told_in_two_ways_is_refused(books: Books, fields: dict[str, Any]) -> None:
    payment_id = factories.unique("pay")
    complete(books, payment_id)
    if "organization" in fields:
        fields = {"organization": Books().organization}
    with pytest.raises(PaymentRefused):
        complete(books, payment_id, **fields)
    assert ledger.granted(books.pk) == ledger.Granted(version=1, total=100)
    assert Purchase.objects.filter(payment_id=payment_id).count() == 1


@pytest.mark.parametrize(
    ("payment_id", "fields"),
    [
        ("", {}),
        ("x" * 121, {}),
        ("a\0b", {}),
        ("ok", {"amount": 0}),
        ("ok", {"amount": 10**15 + 1}),
        ("ok", {"price": Decimal("-1")}),
        ("ok", {"price": Decimal("NaN")}),
        ("ok", {"price": Decimal("Infinity")}),
        ("ok", {"price": Decimal("1e400")}),
        ("ok", {"price": Decimal("1.001")}),
        ("ok", {"currency": "euro"}),
        ("ok", {"currency": "€€€"}),
    ],
)
def test_a_payment_that_makes_no_sense_leaves_nothing_behind(books: Books, payment_id: str, fields: dict[str, Any]) -> None:
    with pytest.raises((PaymentRefused, CreditsRefused)):
        complete(books, payment_id, **fields)
    assert not Purchase.objects.filter(organization=books.organization).exists()
    assert ledger.granted(books.pk) == ledger.Granted(version=0, total=0)


def test_two_payments_of_one_id_at_two_providers_are_two(books: Books) -> None:
    payment_id = factories.unique("pay")
    complete(books, payment_id)
    purchases.complete("other", payment_id, organization=books.organization, amount=5, price=Decimal(1), currency="EUR", now=NOW)
    assert ledger.granted(books.pk).total == 105


def test_a_refund_takes_back_what_is_left_and_never_what_was_drawn(books: Books) -> None:
    books.grant(30)
    payment_id = factories.unique("pay")
    purchase = complete(books, payment_id)
    books.use(0, 60)
    for _ in range(2):
        assert purchases.refund("shop", payment_id, now=NOW).status == "refunded"
    # The purchase expires first, so the 60 came out of it.
    assert books.lots() == [(30, 0, 0), (100, 60, 40)]
    assert ledger.balance(books.pk).left == 30
    correction = LedgerEntry.objects.get(organization=books.organization, kind="adjustment")
    assert (correction.amount, correction.debit, correction.reference) == (40, "issued", f"refund:{purchase.uuid}")
    assert correction.corrects == LedgerEntry.objects.get(organization=books.organization, kind="purchase")
    event = AuditEvent.objects.get(organization=books.organization, action="purchase.refunded")
    assert (event.data["taken_back"], event.data["kept"]) == ("0.00004", "0.00006")
    assert complete(books, payment_id).status == "refunded"
    assert ledger.granted(books.pk).total == 90
    assert_books_agree(books.pk)


def test_a_refund_of_what_is_used_up_takes_nothing(books: Books) -> None:
    payment_id = factories.unique("pay")
    complete(books, payment_id)
    books.use(0, 100)
    assert purchases.refund("shop", payment_id, now=NOW).status == "refunded"
    assert (books.lots(), books.version()) == ([(100, 100, 0)], 1)
    assert not LedgerEntry.objects.filter(organization=books.organization, kind="adjustment").exists()


def test_a_refund_of_a_payment_that_was_not_made_is_refused(books: Books) -> None:
    pending = Purchase.objects.create(
        organization=books.organization, provider="shop", payment_id=factories.unique("pay"), credits=1, amount=1, currency="EUR"
    )
    for payment_id in (pending.payment_id, "no such payment", ""):
        with pytest.raises(PaymentRefused):
            purchases.refund("shop", payment_id, now=NOW)
    pending.refresh_from_db()
    assert pending.status == "pending"
    assert books.version() == 0


def test_only_operators_complete_and_refund_by_hand(books: Books) -> None:
    owner = factories.member(books.organization, role="owner").user
    payment_id = factories.unique("pay")
    with pytest.raises(OperatorsOnly):
        complete(books, payment_id, actor=owner)
    complete(books, payment_id)
    with pytest.raises(OperatorsOnly):
        purchases.refund("shop", payment_id, now=NOW, actor=owner)
    assert (books.lots(), books.version()) == ([(100, 0, 0)], 1)


def test_the_database_knows_no_paid_purchase_without_a_lot(books: Books) -> None:
    with pytest.raises(IntegrityError, match="purchase_paid_has_lot"):
        Purchase.objects.create(
            organization=books.organization, provider="p", payment_id="p", credits=1, amount=1, currency="EUR", status="paid"
        )


@pytest.mark.django_db(transaction=True)
def test_rivals_complete_one_payment_once() -> None:
    """M7: deliveries at once, and a refund among them: one grant."""
    books = Books()
    payment_id = factories.unique("pay")
    barrier = threading.Barrier(8)
    results: list[str] = []
    failures: list[BaseException] = []

    def deliver(number: int) -> None:
        try:
            barrier.wait(20)
            if number == 7:
                purchases.refund("shop", payment_id, now=NOW)
            else:
                results.append(complete(books, payment_id).status)
        except PaymentRefused:
            results.append("too early to refund")
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=deliver, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert CreditLot.objects.filter(organization_id=books.pk).count() == 1
    assert LedgerEntry.objects.filter(organization_id=books.pk, kind="purchase").count() == 1
    refunded = Purchase.objects.get(payment_id=payment_id).status == "refunded"
    assert ledger.granted(books.pk).total == (0 if refunded else 100)
    assert_books_agree(books.pk)
