"""Operators grant, adjust, complete and refund by pages; ledger, lots and purchases themselves are only read."""

import uuid
from typing import Any

import pytest
from django.db import models
from django.test import Client
from django.urls import reverse

from accounts.models import User
from billing import ledger
from billing.models import CreditLot, LedgerEntry, Purchase
from tests import factories
from tests.billing.credit_books import Books, assert_books_agree

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> User:
    return User.objects.create_superuser(f"{factories.unique('operator')}@weir.example", factories.password())


@pytest.fixture
def site(operator: User) -> Client:
    client = Client()
    client.force_login(operator)
    return client


@pytest.fixture
def books() -> Books:
    return Books()


def where(model: type[models.Model], page: str, *args: Any) -> str:
    return reverse(f"admin:billing_{model._meta.model_name}_{page}", args=args)


def said(books: Books, **fields: Any) -> dict[str, Any]:
    return {"organization": books.pk, "how_many": "12.5", "reason": "Welcome", "reference": str(uuid.uuid4()), **fields}


def test_an_operator_grants_credits_once_however_often_the_form_is_sent(site: Client, operator: User, books: Books) -> None:
    page = site.get(where(CreditLot, "add"))
    assert page.status_code == 200
    assert uuid.UUID(page.context["adminform"].form["reference"].value())
    form = said(books, never_expires="on")
    for _ in range(2):
        assert site.post(where(CreditLot, "add"), form).status_code == 302
    lot = CreditLot.objects.get(organization=books.organization)
    assert (lot.kind, lot.amount, lot.expires_at, lot.note) == ("grant", 12_500_000, None, "Welcome")
    entry = LedgerEntry.objects.get(organization=books.organization, lot=lot)
    assert (entry.actor, entry.reason) == (operator, "Welcome")
    assert books.version() == 1
    assert_books_agree(books.pk)


def test_an_operator_adjusts_and_names_the_entry_that_was_wrong(site: Client, books: Books) -> None:
    wrong = ledger.entry_of(books.grant(20_000_000))
    answer = site.post(where(LedgerEntry, "add"), said(books, how_many="-12.5", corrects=str(wrong.uuid)))
    assert answer.status_code == 302
    entry = LedgerEntry.objects.get(organization=books.organization, kind="adjustment")
    assert (entry.amount, entry.corrects, ledger.balance(books.pk).left) == (12_500_000, wrong, 7_500_000)
    assert_books_agree(books.pk)


@pytest.mark.parametrize(
    "fields", [{"how_many": "a lot"}, {"how_many": "1e3"}, {"reason": ""}, {"organization": 0}, {"reference": ""}]
)
def test_a_form_that_cannot_be_read_moves_nothing(site: Client, books: Books, fields: dict[str, Any]) -> None:
    for model in (CreditLot, LedgerEntry):
        assert site.post(where(model, "add"), said(books, **fields)).status_code == 200
    assert site.post(where(LedgerEntry, "add"), said(books, corrects=str(uuid.uuid4()))).status_code == 200
    assert (books.lots(), books.version()) == ([], 0)


def test_what_the_domain_refuses_is_said(site: Client, books: Books) -> None:
    for model, amount in ((CreditLot, "-1"), (CreditLot, "0"), (LedgerEntry, "-1"), (LedgerEntry, "0")):
        answer = site.post(where(model, "add"), said(books, how_many=amount), follow=True)
        assert [message.level_tag for message in answer.context["messages"]] == ["error"]
    assert (books.lots(), books.version()) == ([], 0)


def test_rows_of_money_are_read_only(site: Client, books: Books) -> None:
    lot = books.grant(5)
    rows: list[models.Model] = [lot, ledger.entry_of(lot)]
    for row in rows:
        for page in (where(type(row), "changelist"), where(type(row), "change", row.pk)):
            assert site.get(page).status_code == 200
        assert site.post(where(type(row), "change", row.pk), said(books)).status_code == 403
        assert site.post(where(type(row), "delete", row.pk), {"post": "yes"}).status_code == 403
    assert site.get(where(Purchase, "add")).status_code == 403
    assert books.lots() == [(5, 0, 0)]


def test_an_operator_completes_and_refunds_a_purchase(site: Client, books: Books) -> None:
    purchase = Purchase.objects.create(
        organization=books.organization, provider="bank", payment_id=factories.unique("pay"), credits=70, amount="5", currency="EUR"
    )
    for action, left in (("complete", 70), ("complete", 70), ("refund", 0), ("refund", 0)):
        answer = site.post(where(Purchase, "changelist"), {"action": action, "_selected_action": [purchase.pk]}, follow=True)
        assert [message.level_tag for message in answer.context["messages"]] == ["success"]
        assert ledger.balance(books.pk).left == left
    assert LedgerEntry.objects.filter(organization=books.organization, kind="purchase").count() == 1
    assert_books_agree(books.pk)


@pytest.mark.parametrize(("role", "seen"), [("owner", 200), ("lead", 403), ("finance", 302)])
def test_nobody_else_moves_credits(books: Books, role: str, seen: int) -> None:
    """An owner looks at their organization's; who may not see money does not."""
    user = factories.member(books.organization, role=role).user
    assert user is not None
    client = Client()
    client.force_login(user)
    for model in (CreditLot, LedgerEntry, Purchase):
        assert client.get(where(model, "changelist")).status_code == seen
        assert client.post(where(model, "add"), said(books)).status_code in (302, 403)
        assert client.get(where(model, "add")).status_code in (302, 403)
    assert books.lots() == []
