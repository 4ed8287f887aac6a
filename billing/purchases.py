"""Purchases: a payment for credits is marked and granted in one transaction, once, however often and in whatever form it is told.

A refund takes back what is left of the payment's own credits, and no more: what was drawn has been used, and stays booked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import Organization, User
from billing import credits, ledger
from billing.errors import PaymentRefused
from billing.models import CreditLot, Purchase
from config import scope


@dataclass(frozen=True, slots=True)
class Told:
    """What a refund says of its payment; None: nothing."""

    organization: str | None = None
    amount: int | None = None
    price: Decimal | None = None
    currency: str | None = None

    def fits(self, purchase: Purchase) -> bool:
        own = (purchase.organization.slug, purchase.credits, purchase.amount, purchase.currency)
        said = (self.organization, self.amount, self.price, None if self.currency is None else self.currency.upper())
        return all(one is None or one == other for one, other in zip(said, own, strict=True))


NOTHING_TOLD = Told()


def complete(
    provider: str,
    payment_id: str,
    *,
    organization: Organization,
    amount: int,
    price: Decimal,
    currency: str,
    now: datetime,
    actor: User | None = None,
    actor_label: str = audit.OPERATOR_LABEL,
    payload: Mapping[str, Any] | None = None,
) -> Purchase:
    """The purchase, paid: its credits (`amount`, micro) are granted for 12 months, and the next request may use them.

    Safe to repeat and to race: whoever comes later finds it done, also after a refund. Raises PaymentRefused where the payment was
    told of with another organization, amount, price or currency; CreditsRefused, OperatorsOnly; then nothing is marked or granted.
    """
    ledger.check_actor(actor)
    _check(payment_id, amount, price, currency)
    told = (organization.pk, amount, price, currency.upper())
    # A payment's id is unique across organizations, so another one's purchase must be seen here.
    with scope.everything(), transaction.atomic():
        ledger.lock_grants(organization.pk)
        Purchase.objects.bulk_create(
            [
                Purchase(
                    organization=organization,
                    provider=provider,
                    payment_id=payment_id,
                    credits=amount,
                    amount=price,
                    currency=currency.upper(),
                    payload=dict(payload or {}),
                )
            ],
            ignore_conflicts=True,
        )
        purchase = Purchase.objects.select_for_update(of=("self",), no_key=True).get(provider=provider, payment_id=payment_id)
        if (purchase.organization_id, purchase.credits, purchase.amount, purchase.currency) != told:
            raise PaymentRefused(
                _("This payment is known with another organization, amount or currency."), payment_id=payment_id, provider=provider
            )
        if purchase.status != Purchase.Status.PENDING:
            return purchase
        purchase.lot, _is_new = ledger.open_lot(
            organization,
            CreditLot.Kind.PURCHASE,
            amount,
            reference=_reference(purchase),
            note=f"Payment {payment_id} at {provider}"[:200],
            actor=actor,
            now=now,
        )
        purchase.status, purchase.paid_at = Purchase.Status.PAID, now
        purchase.save(update_fields=["lot", "status", "paid_at"])
        _audit(purchase, "purchase.completed", actor, actor_label, credits=credits.text(amount))
    return purchase


def refund(
    provider: str,
    payment_id: str,
    *,
    now: datetime,
    reason: str = "The payment was refunded.",
    actor: User | None = None,
    actor_label: str = audit.OPERATOR_LABEL,
    told: Told = NOTHING_TOLD,
) -> Purchase:
    """Takes back what is left of the payment's credits, by an adjustment; a repeat changes nothing.

    What was drawn is not taken back and not charged again; the audit trail says how much it was. Raises PaymentRefused for a
    payment that is not known, or not paid, or `told` of as another: a part of one is an operator's to adjust.
    """
    ledger.check_actor(actor)
    _check_id(payment_id)
    with scope.everything(), transaction.atomic():
        found = Purchase.objects.filter(provider=provider, payment_id=payment_id).values_list("organization_id", flat=True).first()
        if found is None:
            raise PaymentRefused(_("No such payment is known."), payment_id=payment_id, provider=provider)
        ledger.lock_grants(found)
        purchase = (
            Purchase.objects.select_for_update(of=("self",), no_key=True)
            .select_related("organization", "lot")
            .get(provider=provider, payment_id=payment_id)
        )
        if not told.fits(purchase):
            raise PaymentRefused(
                _("This payment is known with another organization, amount or currency, and is refunded whole."),
                payment_id=payment_id,
                provider=provider,
            )
        if purchase.status == Purchase.Status.REFUNDED:
            return purchase
        if purchase.lot is None:
            raise PaymentRefused(_("This payment was not completed."), payment_id=payment_id, provider=provider)
        taken = ledger.take_back(
            purchase.organization,
            purchase.credits,
            reference=f"refund:{purchase.uuid}",
            reason=reason,
            actor=actor,
            now=now,
            lot_id=purchase.lot.pk,
            at_most=True,
            corrects=ledger.entry_of(purchase.lot),
        )
        purchase.status = Purchase.Status.REFUNDED
        purchase.save(update_fields=["status"])
        _audit(
            purchase,
            "purchase.refunded",
            actor,
            actor_label,
            taken_back=credits.text(taken),
            kept=credits.text(purchase.credits - taken),
            reason=reason,
        )
    return purchase


def _reference(purchase: Purchase) -> str:
    return f"purchase:{purchase.uuid}"


def _check_id(payment_id: str) -> None:
    if not payment_id or len(payment_id) > 120 or not payment_id.isprintable():
        raise PaymentRefused(_("A payment needs an id of at most 120 printable characters."), payment_id=payment_id[:120])


def _check(payment_id: str, amount: int, price: Decimal, currency: str) -> None:
    _check_id(payment_id)
    if amount <= 0:
        raise PaymentRefused(_("A payment must be for more than 0 credits."), payment_id=payment_id)
    if not price.is_finite() or not 0 <= price < 10**10 or price != round(price, 2):
        raise PaymentRefused(_("The amount paid must be a number with at most two decimal places."), payment_id=payment_id)
    if len(currency) != 3 or not currency.isascii() or not currency.isalpha():
        raise PaymentRefused(_("The currency must be a code of three letters."), payment_id=payment_id)


def _audit(purchase: Purchase, action: str, actor: User | None, actor_label: str, **data: str) -> None:
    audit.record(
        purchase.organization,
        actor=actor,
        actor_label=actor_label,
        action=action,
        object_type="purchase",
        object_id=str(purchase.uuid),
        data={"provider": purchase.provider, "payment_id": purchase.payment_id, **data},
    )
