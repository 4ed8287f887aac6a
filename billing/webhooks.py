"""The door of payment providers: POST /webhooks/payments/<provider>/, signed by the Standard Webhooks scheme.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md: the headers `webhook-id`,
`webhook-timestamp` and `webhook-signature`; the signature is `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`.
Nothing of a body is believed, parsed or logged before its signature holds.

A body is `{"type", "data": {"payment_id", "organization", "credits", "amount", "currency"}}`: the organization by slug, credits and
amount as decimal strings. Whatever a provider sends twice, in whatever kind of event, is one payment.
"""

import base64
import hashlib
import hmac
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from accounts.models import Organization
from billing import credits, purchases
from billing.errors import EventRefused, OrganizationUnknown, PaymentRefused, SignatureRefused
from config import scope
from config.clock import utc_now
from config.errors import DomainError

logger = logging.getLogger(__name__)

TOLERANCE = timedelta(minutes=5)
MOST_BYTES = 64 * 1024
PAID = frozenset({"payment.succeeded", "payment.completed", "checkout.completed", "order.paid"})
REFUNDED = frozenset({"payment.refunded", "order.refunded"})
_MONEY = re.compile(r"\d{1,10}(\.\d{1,2})?", re.ASCII)


class Data(msgspec.Struct, frozen=True):
    """What an event says of its payment."""

    payment_id: str
    organization: str = ""
    credits: str = ""
    amount: str = "0"
    currency: str = ""


class Refund(msgspec.Struct, frozen=True):
    """What an event may say besides of a payment that is taken back. It is taken back whole or not at all."""

    organization: str | None = None
    credits: str | None = None
    amount: str | None = None
    currency: str | None = None


class Event(msgspec.Struct, frozen=True):
    type: str
    data: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True)
class Signed:
    """The three headers."""

    event_id: str
    timestamp: str
    signatures: str


@csrf_exempt
@require_POST
def payments(request: HttpRequest, provider: str) -> HttpResponse:
    """200 once the event is booked (or was before), 202 for a kind of event that says nothing to us, 4xx with nothing changed."""
    secrets: Sequence[str] = settings.PAYMENT_WEBHOOK_SECRETS.get(provider, ())
    if not secrets:
        return _answer("provider_unknown", "No secret is set for this payment provider.", 404)
    now = utc_now()
    body = request.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        return _answer("payload_too_large", f"An event has at most {MOST_BYTES} bytes.", 413)
    try:
        signed = Signed(*(request.headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature")))
        verify(signed, body, secrets, now=now)
        outcome = book(provider, signed.event_id, body, now=now)
    except DomainError as error:
        logger.warning("payment event refused", extra={"provider": provider, "code": error.code})
        return _answer(error.code, error.message, error.status)
    return JsonResponse({"status": outcome}, status=202 if outcome == "ignored" else 200)


def verify(signed: Signed, body: bytes, secrets: Sequence[str], *, now: datetime) -> None:
    """Any of the secrets may have signed it, so that they can be rotated; compared in constant time. Raises SignatureRefused."""
    if not signed.event_id or not signed.timestamp.isascii() or not signed.timestamp.isdigit() or len(signed.timestamp) > 12:
        raise SignatureRefused("The signature is missing or wrong.")
    if abs(int(now.timestamp()) - int(signed.timestamp)) > TOLERANCE.total_seconds():
        raise SignatureRefused("The signature is too old, or from the future.")
    expected = [sign(secret, signed.event_id, signed.timestamp, body) for secret in secrets]
    given = [part.encode() for part in signed.signatures.split(" ")[:16]]
    # No early end: the time taken must not tell which one was close.
    matches = [hmac.compare_digest(one, wanted.encode()) for one in given for wanted in expected]
    if not any(matches):
        raise SignatureRefused("The signature is missing or wrong.")


def sign(secret: str, event_id: str, timestamp: str, body: bytes) -> str:
    """`v1,<base64>`. The secret is base64, with or without the scheme's prefix `whsec_`."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{event_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def book(provider: str, event_id: str, body: bytes, *, now: datetime) -> str:
    """What the event came to: "paid", "refunded" or "ignored". Raises EventRefused, OrganizationUnknown, what purchases raise."""
    try:
        event = msgspec.json.decode(body, type=Event)
        if event.type not in PAID | REFUNDED:
            return "ignored"
        data = msgspec.json.decode(event.data, type=Data)
        if event.type in REFUNDED:
            purchases.refund(provider, data.payment_id, now=now, actor_label=f"webhook {provider}", told=_told_of(event.data))
            return "refunded"
        facts: dict[str, Any] = {"amount": credits.parse(data.credits), "price": _money(data.amount), "currency": data.currency}
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, InvalidOperation) as error:
        raise EventRefused("The event cannot be read: it needs type, and data with payment_id, organization, credits.") from error
    with scope.everything():
        organization = Organization.objects.filter(slug=data.organization).first() if data.organization.isprintable() else None
    if organization is None:
        raise OrganizationUnknown("No organization has this slug.", payment_id=data.payment_id[:120])
    # Only what is named above is kept: a provider's event may hold a card's or a person's data.
    kept = {"event": event_id[:120], "type": event.type, "credits": data.credits, "amount": data.amount, "currency": data.currency}
    purchase = purchases.complete(
        provider, data.payment_id, organization=organization, now=now, actor_label=f"webhook {provider}", payload=kept, **facts
    )
    return str(purchase.status)


def _told_of(raw: msgspec.Raw) -> purchases.Told:
    """What a refund says of the payment that it takes back, as far as it says it."""
    said = msgspec.json.decode(raw, type=Refund)
    return purchases.Told(
        organization=said.organization,
        amount=None if said.credits is None else credits.parse(said.credits),
        price=None if said.amount is None else _money(said.amount),
        currency=said.currency,
    )


def _money(text: str) -> Decimal:
    """Plain digits, at most two behind a point; exponents, `1_0` and other scripts' digits, which `Decimal` takes, are refused."""
    amount = Decimal(text)
    if not _MONEY.fullmatch(text):
        raise PaymentRefused("The amount paid must be a number with at most two decimal places.")
    return amount


def _answer(code: str, message: str, status: int) -> JsonResponse:
    return JsonResponse({"error": {"code": code, "message": message}}, status=status)
