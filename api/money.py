"""Granted and bought credits, the ledger, invoices with their lines. Amounts are decimal text. The plan is in `api.plan`."""

from collections.abc import Sequence
from datetime import date
from typing import Any
from uuid import UUID

from django.urls import path

from accounts import api_tokens
from accounts.permissions import Action
from api.base import Call, Resource, operation
from api.fields import Choice, Day, Flag, ListOf, Moment, Query, Shape, Told, Uuid, Whole, iso
from billing import balances, credits, statement
from billing.labels import Labels
from billing.models import CreditLot, Invoice, InvoiceLine, LedgerEntry

TAG = "Money"


# -------------------------------------------------------------------------------------------------------------- shapes


class BalanceShape(Shape):
    """Granted and bought credits. `left` below 0: drawn before it was taken back."""

    granted = Told()
    drawn = Told()
    left = Told()
    expires_at = Moment(allow_null=True, help_text="When the next part of what is left expires.")
    expiring = Told(help_text="How much of it.")


class LotShape(Shape):
    """Credits that were granted or bought at once; the first to expire is drawn first."""

    id = Uuid()
    kind = Choice(choices=CreditLot.Kind.choices)
    amount = Told()
    drawn = Told()
    expired = Told(help_text="Taken back, too.")
    left = Told()
    expires_at = Moment(allow_null=True)
    note = Told(allow_null=True)
    created_at = Moment()


class LedgerEntryShape(Shape):
    """One movement of credits from one account to another. Entries are added, never changed."""

    id = Uuid()
    kind = Choice(choices=LedgerEntry.Kind.choices)
    debit = Choice(choices=LedgerEntry.Account.choices)
    credit = Choice(choices=LedgerEntry.Account.choices)
    amount = Told()
    used = Told(help_text="What it adds to what was used; over all entries that is the usage.")
    occurred_at = Moment()
    recorded_at = Moment()
    member_id = Uuid(allow_null=True)
    request_id = Told(allow_null=True)
    lot_id = Uuid(allow_null=True)
    corrects_id = Uuid(allow_null=True)
    reference = Told()
    reason = Told(allow_null=True)


class LedgerQuery(Query):
    with_usage = Flag(required=False, help_text="false: without what requests drew.")
    kind = Choice(choices=LedgerEntry.Kind.choices, required=False)


class InvoiceShape(Shape):
    """What is owed for a period, or a credit note that takes some of it back; frozen when it was issued."""

    id = Uuid()
    number = Told()
    kind = Choice(choices=Invoice.Kind.choices)
    corrects = Told(allow_null=True, help_text="The number of the invoice that a credit note takes back from.")
    customer = Told()
    issued_at = Moment()
    issued_on = Day(help_text="In the organization's zone of that time.")
    first_day = Day()
    last_day = Day()
    credits = Told()
    total = Told()
    currency = Told()
    reason = Told(allow_null=True)


class InvoiceLineShape(Shape):
    position = Whole()
    kind = Told()
    description = Told()
    first_day = Day()
    last_day = Day()
    credits = Told()
    quantity = Told()
    unit_price = Told()
    amount = Told()


class InvoiceOpened(InvoiceShape):
    lines = InvoiceLineShape(many=True)
    credit_notes = ListOf(child=Told(), help_text="Numbers of the credit notes of this invoice.")


class InvoiceQuery(Query):
    kind = Choice(choices=Invoice.Kind.choices, required=False)


# ------------------------------------------------------------------------------------------------------------- credits


class Credits(Resource):
    @operation(
        "getCredits",
        tag=TAG,
        summary="Get the balance of granted and bought credits",
        scope=api_tokens.MONEY_READ,
        action=Action.SEE_MONEY,
        answers=BalanceShape,
    )
    def get(self, call: Call) -> Any:
        call.demand(Action.SEE_MONEY)
        found = balances.balance(call.member.organization_id)
        return {
            **{name: credits.text(getattr(found, name)) for name in ("granted", "drawn", "left", "expiring")},
            "expires_at": iso(found.expires_at),
        }


class Lots(Resource):
    @operation(
        "listCreditLots",
        tag=TAG,
        summary="List granted and bought credits",
        description="The newest first.",
        scope=api_tokens.MONEY_READ,
        action=Action.SEE_MONEY,
        answers=LotShape,
        is_list=True,
    )
    def get(self, call: Call) -> Any:
        call.demand(Action.SEE_MONEY)
        return call.page(CreditLot.objects.filter(organization=call.member.organization), _lot, is_newest_first=True)


class Ledger(Resource):
    @operation(
        "listLedgerEntries",
        tag=TAG,
        summary="List the ledger",
        description="The newest entry first.",
        scope=api_tokens.MONEY_READ,
        action=Action.SEE_MONEY,
        query=LedgerQuery,
        answers=LedgerEntryShape,
        is_list=True,
    )
    def get(self, call: Call) -> Any:
        call.demand(Action.SEE_MONEY)
        rows = statement.ledger_rows(call.member.organization, with_usage=call.query.get("with_usage", True))
        if "kind" in call.query:
            rows = rows.filter(kind=call.query["kind"])
        found = call.page(rows.select_related("corrects", "lot"), lambda row: row, is_newest_first=True)
        found["results"] = _entries(call, found["results"])
        return found


# ------------------------------------------------------------------------------------------------------------ invoices


class Invoices(Resource):
    @operation(
        "listInvoices",
        tag=TAG,
        summary="List invoices and credit notes",
        description="The newest first.",
        scope=api_tokens.MONEY_READ,
        action=Action.SEE_MONEY,
        query=InvoiceQuery,
        answers=InvoiceShape,
        is_list=True,
    )
    def get(self, call: Call) -> Any:
        call.demand(Action.SEE_MONEY)
        rows = Invoice.objects.for_organization(call.member.organization)
        if "kind" in call.query:
            rows = rows.filter(kind=call.query["kind"])
        return call.page(rows, _invoice, is_newest_first=True)


class OneInvoice(Resource):
    @operation(
        "getInvoice",
        tag=TAG,
        summary="Get an invoice with its lines",
        scope=api_tokens.MONEY_READ,
        action=Action.SEE_MONEY,
        answers=InvoiceOpened,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        found = call.owned(Invoice.objects.all(), uuid)
        call.demand(Action.SEE_MONEY)
        notes = found.credit_notes.order_by("number").values_list("frozen__number", flat=True)
        return {**_invoice(found), "lines": _lines(found), "credit_notes": list(notes)}


# ------------------------------------------------------------------------------------------------------------- telling


def _lot(row: CreditLot) -> dict[str, Any]:
    return {
        "id": str(row.uuid),
        "kind": row.kind,
        **{name: credits.text(getattr(row, name)) for name in ("amount", "drawn", "expired")},
        "left": credits.text(row.amount - row.drawn - row.expired),
        "expires_at": iso(row.expires_at),
        "note": row.note or None,
        "created_at": iso(row.created_at),
    }


def _entries(call: Call, rows: Sequence[LedgerEntry]) -> list[dict[str, Any]]:
    """One query more, for the members, however many entries there are."""
    members = Labels(call.member.organization).members(row.member_id for row in rows)
    return [
        {
            "id": str(row.uuid),
            "kind": row.kind,
            "debit": row.debit,
            "credit": row.credit,
            "amount": credits.text(row.amount),
            "used": credits.text(statement.used(row)),
            "occurred_at": iso(row.occurred_at),
            "recorded_at": iso(row.created_at),
            "member_id": str(members[row.member_id].uuid) if row.member_id is not None and row.member_id in members else None,
            "request_id": row.request_id or None,
            "lot_id": str(row.lot.uuid) if row.lot is not None else None,
            "corrects_id": str(row.corrects.uuid) if row.corrects is not None else None,
            "reference": row.reference,
            "reason": row.reason or None,
        }
        for row in rows
    ]


def _invoice(row: Invoice) -> dict[str, Any]:
    return {
        "id": str(row.uuid),
        "number": row.frozen["number"],
        "kind": row.kind,
        "corrects": row.frozen["corrects"] or None,
        "customer": row.customer_name,
        "issued_at": iso(row.issued_at),
        "issued_on": row.frozen["issued_on"],
        "first_day": row.frozen["first"],
        "last_day": row.frozen["last"],
        "credits": credits.text(row.credits),
        "total": str(row.total),
        "currency": row.currency,
        "reason": row.reason or None,
    }


def _lines(row: Invoice) -> list[dict[str, Any]]:
    lines: list[InvoiceLine] = list(row.lines.order_by("position"))
    spans: list[tuple[date, date]] = row.frozen["lines"]
    return [
        {
            "position": line.position,
            "kind": line.kind,
            "description": line.description,
            "first_day": first,
            "last_day": last,
            "credits": credits.text(line.credits),
            "quantity": f"{line.quantity.normalize():f}",
            "unit_price": f"{line.unit_price.normalize():f}",
            "amount": str(line.amount),
        }
        for line, (first, last) in zip(lines, spans, strict=True)
    ]


urls = [
    path("credits", Credits.as_view(), name="api_credits"),
    path("credit-lots", Lots.as_view(), name="api_credit_lots"),
    path("ledger", Ledger.as_view(), name="api_ledger"),
    path("invoices", Invoices.as_view(), name="api_invoices"),
    path("invoices/<uuid:uuid>", OneInvoice.as_view(), name="api_invoice"),
]
