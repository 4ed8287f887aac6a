"""The door of payment providers: believed by its signature alone, booked once, and silent about secrets."""

import base64
import json
import logging
import secrets as random_secrets
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import connections
from django.http import HttpResponse
from django.test import Client

from billing import ledger, webhooks
from billing.models import LedgerEntry, Purchase
from config.clock import utc_now
from tests import factories, secrets
from tests.billing.credit_books import Books

pytestmark = pytest.mark.django_db

OLD, NEW = ("whsec_" + base64.b64encode(random_secrets.token_bytes(24)).decode() for _ in range(2))


@pytest.fixture(autouse=True)
def provider(settings: Any) -> None:
    for secret in (OLD, NEW):
        secrets.register(secret, "payment webhook secret")
    settings.PAYMENT_WEBHOOK_SECRETS = {"shop": (OLD, NEW), "other": (base64.b64encode(b"x" * 24).decode(),)}


@pytest.fixture
def books() -> Books:
    return Books()


def body_of(books: Books, payment: str, kind: str = "payment.succeeded", **fields: Any) -> bytes:
    data = {"payment_id": payment, "organization": books.organization.slug, "credits": "250", "amount": "10", "currency": "EUR"}
    return json.dumps({"type": kind, "timestamp": "2026-11-30T12:00:00Z", "data": {**data, **fields}}).encode()


def deliver(
    body: bytes,
    *,
    secret: str = OLD,
    event_id: str = "msg_1",
    age: float = 0,
    provider: str = "shop",
    signature: str | None = None,
    **headers: str,
) -> HttpResponse:
    timestamp = str(int((utc_now() - timedelta(seconds=age)).timestamp()))
    said = {
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": signature or webhooks.sign(secret, event_id, timestamp, body),
        **headers,
    }
    sent = {name: value for name, value in said.items() if value}
    client = Client(enforce_csrf_checks=True)
    answer = client.post(f"/webhooks/payments/{provider}/", body, content_type="application/json", headers=sent)
    assert not client.cookies
    return answer  # type: ignore[return-value]


def code_of(answer: HttpResponse) -> str:
    return str(json.loads(answer.content)["error"]["code"])


def nothing_happened(books: Books) -> bool:
    return not Purchase.objects.filter(organization=books.organization).exists() and books.version() == 0


def test_the_signature_is_the_schemes_own() -> None:
    """The specification's example, https://github.com/standard-webhooks/standard-webhooks."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    assert webhooks.sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body) == (
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_a_paid_event_grants_its_credits(books: Books) -> None:
    payment_id = factories.unique("pay")
    sessions = Session.objects.count()
    answer = deliver(body_of(books, payment_id, card={"number": "4242"}))
    assert (answer.status_code, json.loads(answer.content)) == (200, {"status": "paid"})
    purchase = Purchase.objects.get(provider="shop", payment_id=payment_id)
    assert (purchase.organization, purchase.credits, str(purchase.amount)) == (books.organization, 250_000_000, "10.00")
    assert purchase.payload == {
        "event": "msg_1", "type": "payment.succeeded", "credits": "250", "amount": "10", "currency": "EUR",
    }  # fmt: skip
    assert ledger.granted(books.pk) == ledger.Granted(version=1, total=250_000_000)
    assert Session.objects.count() == sessions


def test_one_payment_is_granted_once_however_it_is_told(books: Books) -> None:
    """M4: the same event three times, and other kinds of event for the same payment: one grant."""
    payment_id = factories.unique("pay")
    for _ in range(3):
        assert deliver(body_of(books, payment_id)).status_code == 200
    for number, kind in enumerate(sorted(webhooks.PAID)):
        assert deliver(body_of(books, payment_id, kind), event_id=f"msg_{number + 2}").status_code == 200
    assert ledger.granted(books.pk) == ledger.Granted(version=1, total=250_000_000)
    assert LedgerEntry.objects.filter(organization=books.organization, kind="purchase").count() == 1


@pytest.mark.django_db(transaction=True)
def test_deliveries_at_once_grant_once() -> None:
    """M7: success events milliseconds apart."""
    books = Books()
    payment_id = factories.unique("pay")
    barrier = threading.Barrier(6)
    statuses: list[int] = []

    def send(number: int) -> None:
        try:
            barrier.wait(20)
            kind = sorted(webhooks.PAID)[number % len(webhooks.PAID)]
            statuses.append(deliver(body_of(books, payment_id, kind), event_id=f"msg_{number}").status_code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses == [200] * 6
    assert ledger.granted(books.pk) == ledger.Granted(version=1, total=250_000_000)


def test_a_refund_takes_back_what_is_left(books: Books) -> None:
    payment_id = factories.unique("pay")
    deliver(body_of(books, payment_id))
    books.use(0, 50_000_000)
    for kind in sorted(webhooks.REFUNDED):
        answer = deliver(json.dumps({"type": kind, "data": {"payment_id": payment_id}}).encode())
        assert json.loads(answer.content) == {"status": "refunded"}
    assert ledger.balance(books.pk).left == 0
    assert books.lots() == [(250_000_000, 50_000_000, 200_000_000)]
    assert json.loads(deliver(body_of(books, payment_id)).content) == {"status": "refunded"}


def test_either_secret_signs_while_they_are_rotated(books: Books) -> None:
    assert deliver(body_of(books, factories.unique("pay")), secret=NEW).status_code == 200
    body, timestamp = body_of(books, factories.unique("pay")), str(int(utc_now().timestamp()))
    both = "v1a,eA== v1,eA== " + webhooks.sign(OLD, "msg_1", timestamp, body)
    assert deliver(body, signature=both).status_code == 200
    assert ledger.granted(books.pk).total == 500_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": base64.b64encode(b"y" * 24).decode()},
        {"age": 301},
        {"age": -302},
        {"signature": "v1,"},
        {"signature": "v1,é"},
        {"signature": "nonsense"},
        {"webhook-id": ""},
        {"webhook-id": "msg_2"},
        {"webhook-timestamp": ""},
        {"webhook-timestamp": "now"},
        {"webhook-timestamp": "9" * 40},
        {"webhook-signature": ""},
    ],
    ids=str,
)
def test_an_event_that_is_not_signed_as_it_must_be_changes_nothing(books: Books, wrong: dict[str, Any]) -> None:
    answer = deliver(body_of(books, factories.unique("pay")), **wrong)
    assert (answer.status_code, code_of(answer)) == (401, "signature_invalid")
    assert nothing_happened(books)


def test_a_body_that_was_changed_on_the_way_is_refused(books: Books) -> None:
    body, timestamp = body_of(books, factories.unique("pay")), str(int(utc_now().timestamp()))
    signature = webhooks.sign(OLD, "msg_1", timestamp, body)
    assert deliver(body.replace(b"250", b"999"), signature=signature).status_code == 401
    assert deliver(body, signature=signature, provider="other").status_code == 401
    assert nothing_happened(books)


def test_a_provider_without_a_secret_is_unknown(books: Books) -> None:
    answer = deliver(body_of(books, factories.unique("pay")), provider="nobody")
    assert (answer.status_code, code_of(answer)) == (404, "provider_unknown")
    assert nothing_happened(books)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"type": 1}',
        b'{"type": "payment.succeeded"}',
        b'{"type": "payment.succeeded", "data": []}',
        b'{"type": "payment.succeeded", "data": {"payment_id": 7}}',
        b'{"type": "payment.succeeded", "data": {"payment_id": "p", "organization": "%s", "credits": "1e3", "currency": "EUR"}}',
        b'{"type": "payment.succeeded", "data": {"payment_id": "p", "organization": "%s", "credits": 5, "currency": "EUR"}}',
        b'{"type": "payment.succeeded", "data": {"payment_id": "p", "organization": "%s", "credits": "1", "amount": "x"}}',
        b'\xff{"type": "payment.succeeded"}',
    ],
)
def test_a_signed_event_that_cannot_be_read_is_refused(books: Books, body: bytes) -> None:
    answer = deliver(body.replace(b"%s", books.organization.slug.encode()))
    assert (answer.status_code, code_of(answer)) == (400, "event_invalid")
    assert nothing_happened(books)


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"organization": "no-such-organization"}, 404, "organization_unknown"),
        ({"organization": "a\0b"}, 404, "organization_unknown"),
        ({"credits": "0"}, 409, "payment_refused"),
        ({"credits": "-5"}, 409, "payment_refused"),
        ({"amount": "1.234"}, 409, "payment_refused"),
        ({"amount": "NaN"}, 409, "payment_refused"),
        ({"currency": ""}, 409, "payment_refused"),
        ({"payment_id": "a\0b"}, 409, "payment_refused"),
    ],
)
def test_an_event_that_names_what_cannot_be_is_refused(books: Books, fields: dict[str, str], status: int, code: str) -> None:
    answer = deliver(body_of(books, factories.unique("pay"), **fields))
    assert (answer.status_code, code_of(answer)) == (status, code)
    assert nothing_happened(books)


def test_a_kind_of_event_that_says_nothing_to_us_is_taken_and_ignored(books: Books) -> None:
    answer = deliver(body_of(books, factories.unique("pay"), "customer.updated"))
    assert (answer.status_code, json.loads(answer.content)) == (202, {"status": "ignored"})
    assert nothing_happened(books)


def test_a_body_beyond_the_bound_is_refused_unread(books: Books) -> None:
    answer = deliver(body_of(books, factories.unique("pay"), filler="x" * webhooks.MOST_BYTES))
    assert (answer.status_code, code_of(answer)) == (413, "payload_too_large")
    assert nothing_happened(books)


def test_only_posts_are_served() -> None:
    assert Client().get("/webhooks/payments/shop/").status_code == 405


def test_neither_bodies_nor_signatures_are_logged(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    marked = "a-card-number-4242"
    deliver(body_of(books, factories.unique("pay"), card=marked))
    deliver(body_of(books, factories.unique("pay"), card=marked), signature="v1,wrong")
    deliver(body_of(books, factories.unique("pay"), card=marked, organization="nobody"))
    mine = [record for record in caplog.records if record.name.startswith(("billing", "config", "accounts"))]
    assert [record.__dict__["code"] for record in mine if record.name == "billing.webhooks"] == [
        "signature_invalid",
        "organization_unknown",
    ]
    told = "".join(str(record.__dict__) for record in mine)
    assert marked not in told
    assert "v1," not in told
    assert OLD not in told


@pytest.mark.parametrize("amount", ["1_0", "1E1", "\u0661\u0662", "NaN", "-1", "1.005", " 1", "1e-999999999", "9" * 11])
def test_an_amount_paid_is_plain_digits(books: Books, amount: str) -> None:
    assert deliver(body_of(books, "odd", amount=amount)).status_code == 409
    assert not Purchase.objects.filter(organization_id=books.pk).exists()


@pytest.mark.parametrize(
    "said",
    [{"credits": "25"}, {"amount": "1"}, {"currency": "USD"}, {"organization": "another"}, {"credits": "x"}, {"amount": "1e1"}],
)
def test_a_refund_that_tells_of_another_payment_or_of_a_part_takes_nothing_back(books: Books, said: dict[str, str]) -> None:
    """What a provider paid back in part is not all of the credits: it is an operator's to adjust."""
    assert deliver(body_of(books, "partly")).status_code == 200
    answer = deliver(body_of(books, "partly", "payment.refunded", **said), event_id="msg_2")
    assert answer.status_code in (400, 409)
    assert Purchase.objects.get(organization_id=books.pk).status == "paid"
    assert books.lots() == [(250_000_000, 0, 0)]


def test_a_refund_may_name_its_payment_alone(books: Books) -> None:
    assert deliver(body_of(books, "alone")).status_code == 200
    body = json.dumps({"type": "payment.refunded", "data": {"payment_id": "alone"}}).encode()
    assert deliver(body, event_id="msg_2").status_code == 200
    assert books.lots() == [(250_000_000, 0, 250_000_000)]
