"""What finance looks at: the plan and its period, lots of credits, the ledger line by line, and its files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import Max, QuerySet

from accounts.models import Member, Organization
from billing import credits, csvfile, ledger, subscriptions
from billing.models import CreditLot, Invoice, LedgerEntry, Subscription, SubscriptionPeriod
from billing.usage_report import Range

PAGE = 50
FILE_PAGE = 2000
_UTC = ZoneInfo("UTC")
USAGE = ("usage_quota", "usage_purchased", "overage", "overdraft")


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """Entries, the newest first; `older` names where the next page begins, None on the last."""

    entries: Sequence[LedgerEntry]
    older: UUID | None


def ledger_page(organization: Organization, *, before: UUID | None = None, with_usage: bool = True) -> LedgerPage:
    """PAGE entries older than `before` (None: the newest). An entry that is not the organization's is the beginning."""
    rows = ledger_rows(organization, with_usage=with_usage).order_by("-id")
    if before is not None:
        start = LedgerEntry.objects.for_organization(organization).filter(uuid=before).values_list("id", flat=True).first()
        rows = rows.filter(id__lt=start) if start is not None else rows
    found = list(rows[: PAGE + 1])
    return LedgerPage(found[:PAGE], found[PAGE - 1].uuid if len(found) > PAGE else None)


def ledger_rows(organization: Organization, *, with_usage: bool = True) -> QuerySet[LedgerEntry]:
    """The organization's entries, with or without what requests drew."""
    rows = LedgerEntry.objects.for_organization(organization)
    return rows if with_usage else rows.exclude(kind__in=USAGE)


def used(entry: LedgerEntry) -> int:
    """What an entry adds to what was used, in micro-credits: 0 for what is no usage, below 0 where it is given back."""
    if entry.kind not in USAGE:
        return 0
    return entry.amount if entry.debit == LedgerEntry.Account.USAGE else -entry.amount


def lots(organization: Organization) -> list[CreditLot]:
    """Those that have something left, the first to expire first, and after them the newest others."""
    rows = list(CreditLot.objects.filter(organization=organization).order_by("-id")[:200])
    live = [lot for lot in rows if lot.amount > lot.drawn + lot.expired]
    live.sort(key=lambda lot: (lot.expires_at is None, lot.expires_at or lot.created_at))
    return [*live, *(lot for lot in rows if lot not in live)][:PAGE]


def subscription_of(organization: Organization) -> Subscription | None:
    """The organization's own active subscription."""
    rows = Subscription.objects.for_organization(organization).active().filter(member=None)
    return rows.select_related("organization", "plan", "next_plan").first()


def current_period(subscription: Subscription, now: datetime) -> SubscriptionPeriod:
    """The period of `now`: its row, or, where nobody has opened it yet, one that is not stored."""
    row = subscription.periods.filter(starts_at__lte=now, ends_at__gt=now).select_related("plan").first()
    if row is not None:
        return row
    period = subscriptions.period_of(subscription, now)
    columns = subscriptions.new_row(subscription, subscriptions.plan_at(subscription, now)[0], period)
    return SubscriptionPeriod(subscription=subscription, starts_at=period.start, **columns)


def seats(organization: Organization, now: datetime) -> list[SubscriptionPeriod]:
    """The current periods of active seats, by the member, at most 500."""
    return list(seat_rows(organization, now).order_by("subscription__member_id")[:500])


def seat_rows(organization: Organization, now: datetime) -> QuerySet[SubscriptionPeriod]:
    """The current periods of active seats, with member and plan."""
    rows = SubscriptionPeriod.objects.filter(
        organization=organization, starts_at__lte=now, ends_at__gt=now, subscription__ended_at=None
    ).exclude(subscription__member=None)
    return rows.select_related("plan", "subscription__member__user", "subscription__plan")


# --------------------------------------------------------------------------------------------------------------- files

LEDGER_COLUMNS = (
    "record", "rows", "occurred_at", "recorded_at", "entry_id", "kind", "debit", "credit", "credits", "used", "member_id",
    "request_id", "corrects_id", "reference", "reason", "occurred_at_utc", "recorded_at_utc",
)  # fmt: skip
INVOICE_COLUMNS = (
    "record", "rows", "invoice", "kind", "issued_on", "position", "line", "description", "first_day", "last_day", "credits",
    "quantity", "unit_price", "amount", "currency",
)  # fmt: skip


@dataclass(slots=True)
class LedgerFile:
    """The ledger as CSV, the oldest entry first, as it stands when the first piece is asked for; `chosen`: of that time.

    `used` sums to what was used, whichever fund paid; the closing record tells how many entries there are, and that sum.
    """

    organization: Organization
    with_bom: bool = False
    chosen: Range | None = None
    _last: int = field(default=0, init=False)
    _cut: int | None = field(default=None, init=False)
    _rows: int = field(default=0, init=False)
    _used: int = field(default=0, init=False)
    _is_done: bool = field(default=False, init=False)

    @property
    def count(self) -> int:
        """Records so far, without the closing one."""
        return self._rows

    def next_piece(self) -> str | None:
        if self._is_done:
            return None
        head = ""
        if self._cut is None:
            head = (csvfile.BOM if self.with_bom else "") + csvfile.line(LEDGER_COLUMNS)
            with transaction.atomic():
                # Who holds the lock sees every entry with a smaller id.
                ledger.lock(self.organization.pk)
                newest = LedgerEntry.objects.for_organization(self.organization).aggregate(newest=Max("id"))["newest"]
                self._cut = int(newest or 0)
        rows = LedgerEntry.objects.for_organization(self.organization).filter(id__gt=self._last, id__lte=self._cut)
        if self.chosen is not None:
            rows = rows.filter(occurred_at__gte=self.chosen.start, occurred_at__lt=self.chosen.end)
        entries = list(rows.select_related("corrects").order_by("id")[:FILE_PAGE])
        if entries:
            self._last = entries[-1].pk
        else:
            self._is_done = True
            cells = ["total", str(self._rows), *[""] * 7, credits.text(self._used), *[""] * 7]
            return head + csvfile.line(cells)
        return head + "".join(self._lines(entries))

    def _lines(self, entries: Sequence[LedgerEntry]) -> list[str]:
        zone = ZoneInfo(self.organization.timezone)
        members = dict(
            Member.objects.filter(organization=self.organization, pk__in={entry.member_id for entry in entries}).values_list(
                "pk", "uuid"
            )
        )
        lines = []
        for entry in entries:
            self._rows += 1
            self._used += used(entry)
            cells = (
                "entry", "1", csvfile.moment(entry.occurred_at, zone), csvfile.moment(entry.created_at, zone), str(entry.uuid),
                entry.kind, entry.debit, entry.credit, credits.text(entry.amount),
                credits.text(used(entry)) if entry.kind in USAGE else "",
                str(members.get(entry.member_id or 0, "")), csvfile.text(entry.request_id),
                str(entry.corrects.uuid) if entry.corrects is not None else "",
                csvfile.text(entry.reference), csvfile.text(entry.reason),
                csvfile.moment(entry.occurred_at, _UTC), csvfile.moment(entry.created_at, _UTC),
            )  # fmt: skip
            lines.append(csvfile.line(cells))
        return lines


def invoice_csv(invoice: Invoice, *, with_bom: bool = False) -> str:
    """An invoice's lines and its total, as they were issued."""
    number = csvfile.text(invoice.frozen["number"])
    issued, spans = invoice.frozen["issued_on"], invoice.frozen["lines"]
    text = [csvfile.BOM if with_bom else "", csvfile.line(INVOICE_COLUMNS)]
    rows = list(invoice.lines.order_by("position"))
    for line, (first, last) in zip(rows, spans, strict=True):
        cells = (
            "line", "1", number, invoice.kind, issued, str(line.position), line.kind, csvfile.text(line.description), first, last,
            credits.text(line.credits), f"{line.quantity.normalize():f}", f"{line.unit_price.normalize():f}", str(line.amount),
            csvfile.text(invoice.currency),
        )  # fmt: skip
        text.append(csvfile.line(cells))
    cells = (
        "total", str(len(rows)), number, invoice.kind, issued, "", "", "", invoice.frozen["first"], invoice.frozen["last"],
        credits.text(invoice.credits), "", "", str(invoice.total), csvfile.text(invoice.currency),
    )  # fmt: skip
    text.append(csvfile.line(cells))
    return "".join(text)
