"""The operator's commands of credits, as they are typed."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from billing import ledger
from billing.models import CreditLot, LedgerEntry
from tests import factories
from tests.billing.credit_books import Books, assert_books_agree

pytestmark = pytest.mark.django_db


@pytest.fixture
def books() -> Books:
    return Books()


def run(*args: str, as_json: bool = True) -> Any:
    out = StringIO()
    call_command(*args, *(["--json"] if as_json else []), stdout=out)
    return json.loads(out.getvalue()) if as_json else out.getvalue()


def test_credits_are_granted_for_a_time_or_for_ever_and_once_by_reference(books: Books) -> None:
    slug = books.organization.slug
    for expires, kept in (("never", None), ("2031-05-06", "2031-05-06 00:00:00+00:00")):
        made = run("grant_credits", slug, "0.25", "--reason", "Welcome", "--expires", expires)
        assert made["expires_at"] == kept
    for _ in range(2):
        made = run("grant_credits", slug, "1", "--reason", "Welcome", "--reference", "once")
    assert (made["slug"], made["credits_left"]) == (slug, "1.5")
    assert CreditLot.objects.filter(organization=books.organization, note="Welcome", expires_at=None).count() == 1
    assert_books_agree(books.pk)


def test_credits_are_adjusted_up_down_and_by_the_entry_that_was_wrong(books: Books) -> None:
    slug = books.organization.slug
    run("grant_credits", slug, "10", "--reason", "Wrong")
    wrong = LedgerEntry.objects.get(organization=books.organization, kind="grant")
    assert run("adjust_credits", slug, "2", "--reason", "More") == {"slug": slug, "moved": "2", "credits_left": "12"}
    taken = run("adjust_credits", slug, "-9.5", "--reason", "Too much", "--corrects", str(wrong.uuid))
    assert taken == {"slug": slug, "moved": "-9.5", "credits_left": "2.5"}
    with pytest.raises(CommandError, match=r"Only 2\.5 credits are left of 3"):
        run("adjust_credits", slug, "-3", "--reason", "Too much")
    assert_books_agree(books.pk)


def test_a_payment_is_completed_by_hand_once(books: Books) -> None:
    said = ("--provider", "bank", "--payment", factories.unique("pay"), "--amount", "12.50", "--currency", "eur")
    for _ in range(2):
        made = run("complete_purchase", books.organization.slug, *said, "--credits", "40")
    assert (made["status"], made["credits_left"]) == ("paid", "40")
    with pytest.raises(CommandError, match="another organization, amount or currency"):
        run("complete_purchase", books.organization.slug, *said, "--credits", "41")
    assert books.lots() == [(40_000_000, 0, 0)]


@pytest.mark.parametrize(
    "said",
    [
        ("grant_credits", "{}", "lots", "--reason", "x"),
        ("grant_credits", "{}", "0", "--reason", "x"),
        ("grant_credits", "{}", "1", "--reason", " "),
        ("grant_credits", "{}", "1", "--reason", "x", "--expires", "tomorrow"),
        ("grant_credits", "{}", "1", "--reason", "x", "--expires", "2020-01-01"),
        ("grant_credits", "no-such-organization", "1", "--reason", "x"),
        ("adjust_credits", "{}", "0", "--reason", "x"),
        ("adjust_credits", "{}", "1", "--reason", "x", "--corrects", "no-uuid"),
        ("adjust_credits", "{}", "1", "--reason", "x", "--corrects", "6f1c0f3e-0b1e-4b60-9d0a-6d9d2b5d0b0a"),
        ("complete_purchase", "{}", "--provider", "b", "--payment", "p", "--credits", "1", "--amount", "x", "--currency", "EUR"),
    ],
)
def test_what_makes_no_sense_is_said_and_moves_nothing(books: Books, said: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        run(*(part.replace("{}", books.organization.slug) for part in said))
    assert (books.lots(), books.version(), ledger.balance(books.pk).left) == ([], 0, 0)


def test_the_ledgers_balance_is_shown_with_what_does_not_agree(books: Books) -> None:
    books.grant(30_000_000)
    books.use(5_000_000, 20_000_000)
    shown = run("ledger_balance", books.organization.slug)
    assert shown["accounts"]["credits"] == {"debits": "30", "credits": "20", "balance": "10"}
    assert shown["accounts"]["usage"] == {"debits": "25", "credits": "0", "balance": "25"}
    assert shown["debits"] == shown["credits"]
    assert (shown["granted"], shown["drawn"], shown["left"], shown["expiring"], shown["expires_at"]) == (
        "30",
        "20",
        "10",
        "0",
        None,
    )
    assert shown["differences"] == []
    assert "Log, ledger, periods and hourly sums agree." in run("ledger_balance", books.organization.slug, as_json=False)
    books.subscription.periods.update(used_from_purchased=1)
    (difference,) = run("ledger_balance", books.organization.slug)["differences"]
    assert (difference["field"], difference["expected"], difference["found"]) == ("used_from_purchased", 20_000_000, 1)
