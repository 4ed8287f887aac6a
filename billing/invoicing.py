"""Closes periods and issues invoices and credit notes: gapless numbers, frozen, lines that sum to the ledger.

Everything of one organization happens under its ledger's lock, so the newest entry there is a cut: what has a smaller id is there,
what comes later has a larger one. An invoice counts all entries of the periods it closes, and of periods that were closed before
those that came after the last invoice's cut, each with its own day. So nothing is counted twice, and nothing is lost.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import cast
from zoneinfo import ZoneInfo

from django.db import connection, transaction
from django.db.models import Case, Count, F, Max, QuerySet, Sum, When
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import Organization, User
from billing import changes, ledger, subscriptions
from billing.errors import CreditNoteRefused, InvoiceUnknown
from billing.models import Invoice, InvoiceLine, InvoiceSeries, LedgerEntry, SubscriptionPeriod
from billing.periods import day_start
from billing.proration import CENT, Terms, money
from config import scope, snapshot

Kind = LedgerEntry.Kind

PLAN, CREDIT, CARRIED = "plan", "credit", "carried"
"""Kinds of lines besides the ledger's. `carried`: what would make a total negative, above 0 where it leaves an invoice and below 0
on the one that it comes to."""
USAGE = {
    Kind.USAGE_QUOTA.value: "Credits from the plan quota",
    Kind.USAGE_PURCHASED.value: "Purchased credits",
    Kind.OVERAGE.value: "Overage",
    Kind.OVERDRAFT.value: "Overdraft, not charged",
}
"""What usage is booked as, in the order of the lines."""
MICRO = Decimal(1_000_000)

_GROUPS = """
    SELECT entry.period_id, entry.kind, (entry.occurred_at AT TIME ZONE %(zone)s)::date,
        SUM(CASE WHEN entry.debit = 'usage' THEN entry.amount ELSE -entry.amount END)
    FROM billing_ledgerentry AS entry
    WHERE entry.organization_id = %(organization)s AND entry.kind = ANY(%(kinds)s) AND {which}
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
_CLOSED_NOW = "entry.period_id = ANY(%(closed)s) AND entry.id <= %(cut)s"
_LATE = """entry.id > %(since)s AND entry.id <= %(cut)s AND NOT COALESCE(entry.period_id = ANY(%(closed)s), false)
    AND (entry.period_id IS NULL OR EXISTS (
        SELECT 1 FROM billing_subscriptionperiod AS period WHERE period.id = entry.period_id AND period.closed_at IS NOT NULL))"""


@dataclass(frozen=True, slots=True)
class Closed:
    """What one closing did. `invoices`: one in each currency; none where there was nothing to put on it."""

    periods: int
    invoices: tuple[Invoice, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    """A line before it has a place. `credits` in micro-credits; the amount is rounded here, once."""

    kind: str
    description: str
    period: SubscriptionPeriod | None
    currency: str
    first: date
    last: date
    credits: int = 0
    quantity: Decimal = Decimal(1)
    unit_price: Decimal = Decimal(0)

    @property
    def amount(self) -> Decimal:
        return money(self.quantity * self.unit_price)


def close(period: SubscriptionPeriod, *, now: datetime) -> Invoice | None:
    """Closes a period that is over, and invoices it with what came late for others. A second call changes nothing.

    None where it was closed already, or where there is nothing to invoice. A period that still runs is a ValueError.
    """
    if period.ends_at > now:
        raise ValueError("the period is not over")
    closed = _close(period.organization_id, now, only=period.pk)
    return closed.invoices[0] if closed.invoices else None


def close_due(organization_id: int, *, now: datetime, grace: timedelta = timedelta(0)) -> Closed:
    """Closes all periods that have been over for `grace`, on one invoice (in each currency), in one transaction."""
    return _close(organization_id, now, grace)


def find(number: str) -> Invoice:
    """By its printed number. Raises InvoiceUnknown."""
    found = Invoice.objects.filter(frozen__number=number.upper()).select_related("organization", "corrects", "period").first()
    if found is None:
        raise InvoiceUnknown(f"There is no invoice {number!r}.")
    return found


def credit_note(invoice: Invoice, *, reason: str, by: User | None, now: datetime, amount: Decimal | None = None) -> Invoice:
    """Takes back `amount` of an invoice (None: what is left of it). All its notes together take back at most its total.

    Raises CreditNoteRefused: above that, not above 0, more than two digits, without a reason, or of a note.
    """
    if not reason.strip():
        raise CreditNoteRefused(_("A credit note says why."), left="")
    with scope.organization(invoice.organization_id), transaction.atomic():
        ledger.lock(invoice.organization_id)
        taken = invoice.credit_notes.aggregate(sum=Sum("total"))["sum"] or Decimal(0)
        left = invoice.total - taken
        amount = left if amount is None else amount
        if invoice.kind != Invoice.Kind.INVOICE or not 0 < amount <= left or amount != money(amount):
            raise CreditNoteRefused(
                _("Of %(invoice)s %(left)s %(currency)s are left to take back.")
                % {"invoice": invoice.frozen["number"], "left": left, "currency": invoice.currency},
                left=str(left),
            )
        organization = invoice.organization
        today = subscriptions.local_day(organization, now)
        line = _Line(CREDIT, reason.strip()[:200], invoice.period, invoice.currency, today, today, unit_price=amount)
        note = _issue(organization, [line], now=now, cut=None, corrects=invoice, reason=line.description)
        audit.record(
            organization,
            actor=by,
            action="invoice.credited",
            object_type="invoice",
            object_id=str(note.uuid),
            data={"invoice": str(invoice.uuid), "amount": str(amount), "currency": invoice.currency, "reason": line.description},
        )
    return note


# ------------------------------------------------------------------------------------------------------------- closing


def _close(organization_id: int, now: datetime, grace: timedelta = timedelta(0), *, only: int | None = None) -> Closed:
    with scope.organization(organization_id), transaction.atomic():
        due = SubscriptionPeriod.objects.filter(organization_id=organization_id, closed_at=None, ends_at__lte=now - grace)
        if only is not None:
            due = due.filter(pk=only)
        if due.exclude(terms__until=None).exists():
            # What they pass on changes the period that followed, and the organization's row comes before the ledger's lock.
            snapshot.bump(organization_id)
        ledger.lock(organization_id)
        organization = Organization.objects.get(pk=organization_id)
        rows = _with_names(due)
        if not rows:
            return Closed(0, ())
        changes.carry_over([row for row in rows if row.terms.get("until") is not None])
        _balance(organization_id, rows)
        SubscriptionPeriod.objects.filter(pk__in=[row.pk for row in rows]).update(closed_at=now)
        return Closed(len(rows), tuple(_invoice(organization, rows, now)))


def _with_names(rows: QuerySet[SubscriptionPeriod]) -> list[SubscriptionPeriod]:
    """Locked, in the order of their ids; those that somebody else holds wait for the next time."""
    return list(
        rows.select_related("plan", "subscription__plan", "subscription__organization")
        .select_for_update(of=("self",), no_key=True, skip_locked=True)
        .order_by("pk")
    )


def _balance(organization_id: int, rows: Sequence[SubscriptionPeriod]) -> None:
    """After a period nothing of its allowance is left: the ledger has all of it, and what was not used has expired."""
    subscriptions.grant(organization_id, rows)
    ids = [row.pk for row in rows]
    signed = Case(When(debit=LedgerEntry.Account.EXPIRED, then=F("amount")), default=-F("amount"))
    posted = {
        period_id: (int(amount), count)
        for period_id, amount, count in LedgerEntry.objects.filter(period_id__in=ids, kind=Kind.EXPIRY)
        .order_by()
        .values_list("period_id")
        .annotate(sum=Sum(signed), count=Count("pk"))
    }
    entries = []
    for row in rows:
        amount, count = posted.get(row.pk, (0, 0))
        entries.append(
            ledger.Entry(
                kind=Kind.EXPIRY.value,
                debit=LedgerEntry.Account.EXPIRED.value,
                credit=LedgerEntry.Account.ALLOWANCE.value,
                amount=row.quota - row.used_from_quota - amount,
                reference=f"expiry:{row.uuid}" + (f":{count}" if count else ""),
                occurred_at=row.ends_at,
                period_id=row.pk,
                member_id=row.subscription.member_id,
                reason="Late usage" if count else "",
            )
        )
    ledger.post(organization_id, entries)


def _invoice(organization: Organization, closed: Sequence[SubscriptionPeriod], now: datetime) -> list[Invoice]:
    cut = LedgerEntry.objects.filter(organization=organization).aggregate(newest=Max("id"))["newest"] or 0
    since = InvoiceLine.objects.filter(organization=organization).aggregate(cut=Max("through_entry_id"))["cut"] or 0
    values = {
        "organization": organization.pk,
        "zone": organization.timezone,
        "kinds": list(USAGE),
        "closed": [row.pk for row in closed],
        "since": since,
        "cut": cut,
    }
    own: dict[int, dict[str, dict[date, int]]] = defaultdict(lambda: defaultdict(dict))
    with connection.cursor() as cursor:
        cursor.execute(_GROUPS.format(which=_CLOSED_NOW), values)
        for period_id, kind, day, amount in cursor.fetchall():
            own[period_id][kind][day] = int(amount)
        cursor.execute(_GROUPS.format(which=_LATE), values)
        late = [
            (cast("int | None", period_id), str(kind), cast(date, day), int(amount))
            for period_id, kind, day, amount in cursor.fetchall()
        ]
    lines: list[_Line] = []
    # Locked in the order of their ids; billed in the order of their time.
    for row in sorted(closed, key=lambda row: (row.starts_at, row.pk)):
        lines += _period_lines(row, own.get(row.pk, {}))
    lines += _late_lines(organization, late, lines[0].currency if lines else "USD")
    groups: dict[str, list[_Line]] = {}
    for line in lines:
        groups.setdefault(line.currency, []).append(line)
    return [_issue(organization, _carried(organization, group), now=now, cut=cut) for group in groups.values()]


def _carried(organization: Organization, lines: Sequence[_Line]) -> list[_Line]:
    """The lines of one currency and, where late usage gave back more than they come to, what the next invoice takes off."""
    total, last = sum((line.amount for line in lines), Decimal(0)), lines[-1]
    moved = InvoiceLine.objects.filter(organization=organization, kind=CARRIED, invoice__currency=last.currency)
    waiting: Decimal = moved.aggregate(sum=Sum("amount"))["sum"] or Decimal(0)
    if total < 0:
        return [
            *lines,
            _Line(CARRIED, "Carried over to the next invoice", None, last.currency, last.last, last.last, unit_price=-total),
        ]
    if taken := min(waiting, total):
        text = "Carried over from an earlier invoice"
        return [*lines, _Line(CARRIED, text, None, last.currency, last.last, last.last, unit_price=-taken)]
    return list(lines)


# --------------------------------------------------------------------------------------------------------------- lines


def _period_lines(row: SubscriptionPeriod, usage: dict[str, dict[date, int]]) -> list[_Line]:
    """The plans' prices by days, then the credits of each kind. Overage is priced by the terms of its day."""
    terms = subscriptions.terms_of(row)
    zone = ZoneInfo(row.subscription.organization.timezone)
    first = row.starts_at.astimezone(zone).date()
    last = max(first, day_before(row.ends_at, zone))
    whose = _whose(row)
    blank = _Line(PLAN, "", row, terms.newest.currency, first, last)
    lines = []
    for price in terms.prices():
        part = "" if price.days == price.of_days else f", {price.days} of {price.of_days} days"
        begins = max(price.segment.day, first)
        ends = min(last, price.segment.day + timedelta(days=price.days - 1))
        text = f"{whose}{price.segment.name}{part}"
        currency = price.segment.currency
        lines.append(
            replace(blank, description=text, currency=currency, first=begins, last=max(begins, ends), unit_price=price.amount)
        )
    for kind, name in USAGE.items():
        days = usage.get(kind, {})
        if kind != Kind.OVERAGE:
            if total := sum(days.values()):
                lines.append(replace(blank, kind=kind, description=f"{whose}{name}", credits=total, quantity=total / MICRO))
            continue
        by_price: dict[Decimal | None, int] = defaultdict(int)
        for day, amount in days.items():
            by_price[overage_price_on(terms, day)] += amount
        for each, total in by_price.items():
            if total:
                lines.append(_overage(replace(blank, kind=kind, credits=total), f"{whose}{name}", each))
    return lines


def _late_lines(organization: Organization, late: Sequence[tuple[int | None, str, date, int]], currency: str) -> list[_Line]:
    """Usage of periods that were closed before, a line for each day; their allowance and what expired are put right."""
    ids = sorted({period_id for period_id, _, _, _ in late if period_id is not None})
    rows = {row.pk: row for row in _with_names(SubscriptionPeriod.objects.filter(pk__in=ids))} if ids else {}
    missing = set(ids) - rows.keys()
    if missing:
        # Locked by somebody who does not keep to the order of locks; they are read all the same.
        others = SubscriptionPeriod.objects.select_related("plan", "subscription__plan", "subscription__organization")
        rows |= {row.pk: row for row in others.filter(pk__in=missing)}
    _balance(organization.pk, [row for row in rows.values() if row.pk not in missing])
    lines = []
    for period_id, kind, day, amount in late:
        if not amount:
            continue
        row = rows.get(period_id) if period_id is not None else None
        terms = subscriptions.terms_of(row) if row is not None else None
        line = _Line(
            kind=kind,
            description=f"{_whose(row)}{USAGE[kind]}, of an earlier period",
            period=row,
            currency=terms.newest.currency if terms is not None else currency,
            first=day,
            last=day,
            credits=amount,
            quantity=amount / MICRO,
        )
        if kind == Kind.OVERAGE:
            line = _overage(line, line.description, overage_price_on(terms, day) if terms is not None else None)
        lines.append(line)
    return lines


def _overage(line: _Line, description: str, price: Decimal | None) -> _Line:
    """Credits times the price of one. Without a price (the plan lost it) the line says so, and costs nothing."""
    text = description if price is not None else f"{description}, without a price"
    return replace(line, description=text, quantity=line.credits / MICRO, unit_price=price or Decimal(0))


def overage_price_on(terms: Terms, day: date) -> Decimal | None:
    """The price of a credit on invoice by the terms of a local day."""
    held = [segment for segment in terms.segments if segment.day <= day] or [terms.segments[0]]
    return held[-1].overage_price


def day_before(moment: datetime, zone: ZoneInfo) -> date:
    """The last local day of what ends at `moment` (excluded)."""
    day = moment.astimezone(zone).date()
    return day if day_start(day, zone) != moment else day - timedelta(days=1)


def _whose(row: SubscriptionPeriod | None) -> str:
    """Seats are named by the subscription's id: a person's name would outlive them here."""
    if row is None or row.subscription.member_id is None:
        return ""
    return f"Seat {row.subscription.uuid.hex[:8]}: "


# ------------------------------------------------------------------------------------------------------------- issuing


def _issue(
    organization: Organization,
    lines: Sequence[_Line],
    *,
    now: datetime,
    cut: int | None,
    corrects: Invoice | None = None,
    reason: str = "",
) -> Invoice:
    """Takes the next number of the organization's series and writes what is printed. Rolled back, the number is free again."""
    name = organization.uuid.hex[:20]
    InvoiceSeries.objects.get_or_create(name=name)
    series = InvoiceSeries.objects.select_for_update(no_key=True).get(name=name)
    number = series.next_number
    InvoiceSeries.objects.filter(pk=series.pk).update(next_number=number + 1)
    periods = {line.period.pk: line.period for line in lines if line.period is not None}
    only = next(iter(periods.values())) if len(periods) == 1 else None
    invoice = Invoice.objects.create(
        organization=organization,
        series=series,
        number=number,
        kind=Invoice.Kind.INVOICE if corrects is None else Invoice.Kind.CREDIT_NOTE,
        corrects=corrects,
        subscription=only.subscription if only is not None else None,
        period=only,
        currency=lines[0].currency,
        total=sum((line.amount for line in lines), Decimal(0)).quantize(CENT, ROUND_HALF_UP),
        credits=sum(line.credits for line in lines),
        issued_at=now,
        customer_name=organization.name,
        reason=reason,
        frozen={
            "number": f"{organization.slug.upper()}-{number:06d}",
            "corrects": corrects.frozen["number"] if corrects is not None else "",
            "slug": organization.slug,
            "timezone": organization.timezone,
            "issued_on": subscriptions.local_day(organization, now).isoformat(),
            "first": min(line.first for line in lines).isoformat(),
            "last": max(line.last for line in lines).isoformat(),
            "lines": [[line.first.isoformat(), line.last.isoformat()] for line in lines],
        },
    )
    InvoiceLine.objects.bulk_create(
        [
            InvoiceLine(
                organization=organization,
                invoice=invoice,
                position=position,
                kind=line.kind,
                description=line.description[:200],
                period=line.period,
                credits=line.credits,
                quantity=line.quantity,
                unit_price=line.unit_price,
                amount=line.amount,
                through_entry_id=cut,
            )
            for position, line in enumerate(lines, start=1)
        ],
        batch_size=1000,
    )
    return invoice
