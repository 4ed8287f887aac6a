"""The ledger: every movement of credits, once, double entry, never changed.

An entry moves `amount` from the account `credit` to the account `debit`. What is granted comes from `issued`; usage is paid from
`allowance`, `credits`, `receivable` (overage) or `overdraft`. So `credits` holds what is left of grants and purchases, and `usage`
holds what all requests cost.

Order of locks: the organization's row (where a change of grants raises its version), the ledger's lock, periods, lots.
"""

import logging
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import Organization, User
from billing import credits, lots
from billing.balances import Balance, Granted, Sums, balance, balances, granted, granted_of, spent, trial_balance
from billing.errors import CreditsRefused, NotEnoughCredits, OperatorsOnly, ReferenceReused
from billing.lots import organizations_due
from billing.models import CreditLot, LedgerEntry
from billing.models.ledger import SIDES
from billing.periods import day_start, start_day
from billing.posting import Entry, Kind, check_taken, insert, lock, post
from config import snapshot

__all__ = [
    "Balance", "Entry", "Expiry", "Granted", "Kind", "Sums", "adjust", "balance", "balances", "check_actor", "entry_of",
    "expire_due", "grant", "granted", "granted_of", "lock", "lock_grants", "open_lot", "organizations_due", "post",
     "post_usage", "spent", "take_back",
    "trial_balance",
]  # fmt: skip

logger = logging.getLogger(__name__)


class UsageRow(Protocol):
    """What `post_usage` reads of `billing.usage.Row`: an inserted row of the log and the period that it draws on."""

    @property
    def columns(self) -> dict[str, Any]: ...
    @property
    def period_id(self) -> int | None: ...


# --------------------------------------------------------------------------------------------------------------- usage


_FUNDS = (
    ("from_quota", Kind.USAGE_QUOTA.value, "quota"),
    ("from_overage", Kind.OVERAGE.value, "overage"),
    ("overdraft", Kind.OVERDRAFT.value, "overdraft"),
)


def post_usage(organization_id: int, rows: Sequence[UsageRow]) -> int:
    """Books rows that were just added to the log, each by its funding; how many entries. The caller holds the lock.

    The entries of a row sum to its credits. Purchased credits come from the lots; those that no lot covers are booked without one
    and told. What an amendment gives back goes to the lots that its request drew from. Raises IntegrityError for a row that has
    entries already.
    """
    purchased = sorted((row.columns for row in rows if row.columns["from_purchased"]), key=lambda columns: columns["part"])
    shelf = None
    if purchased:
        shelf = lots.shelf(organization_id, requests=[row["request_id"] for row in purchased if row["from_purchased"] < 0])
        parts = {id(row): _move_lots(shelf, row) for row in purchased}
    entries: list[dict[str, Any]] = []
    for row in rows:
        columns = row.columns
        stem = f"usage:{columns['request_id']}:{columns['part']}:"
        for name, kind, suffix in _FUNDS:
            if amount := columns[name]:
                entries.append(_usage_entry(row, kind, amount, stem + suffix))
        if columns["from_purchased"]:
            for lot, amount in parts[id(columns)]:
                entry = _usage_entry(row, Kind.USAGE_PURCHASED.value, amount, f"{stem}purchased:{lot.uuid if lot else 'none'}")
                if lot is None:
                    entry["reason"] = "No lot had anything left."
                else:
                    entry["lot_id"] = lot.lot_id
                entries.append(entry)
    if not entries:
        return 0
    added = insert(organization_id, entries)
    if added != len(entries):
        raise IntegrityError("ledger_once_per_reference: usage that was added to the log is in the ledger already")
    if shelf is not None:
        shelf.save()
        if shelf.owed > 0:
            logger.warning("credits drawn without a lot", extra={"organization_id": organization_id, "amount": shelf.owed})
    return added


def _move_lots(shelf: lots.Shelf, columns: dict[str, Any]) -> list[lots.Draw]:
    amount, request_id = columns["from_purchased"], columns["request_id"]
    return shelf.draw(amount, request_id) if amount > 0 else shelf.give_back(-amount, request_id)


def _usage_entry(row: UsageRow, kind: str, amount: int, reference: str) -> dict[str, Any]:
    columns = row.columns
    debit, credit = SIDES[kind] if amount > 0 else reversed(SIDES[kind])
    return {
        "kind": kind,
        "debit": debit,
        "credit": credit,
        "amount": abs(amount),
        "reference": reference,
        "occurred_at": columns["admitted_at"],
        "period_id": row.period_id,
        "member_id": columns["member_id"],
        "request_id": columns["request_id"],
        "reason": "",
    }


# --------------------------------------------------------------------------------------------------- credits that are given


class Expiry(Enum):
    """Stands for "as usual" where a time of expiry is asked for."""

    DEFAULT = "in 12 months"
    """At the end of the organization's day, 12 months later."""


def grant(
    organization: Organization,
    amount: int,
    *,
    reason: str,
    actor: User | None,
    now: datetime,
    expires_at: datetime | Expiry | None = Expiry.DEFAULT,
    reference: str | None = None,
) -> CreditLot:
    """Gives credits (micro, above 0); the next request may use them. `expires_at` None: never.

    A repeat with the same `reference` changes nothing. Raises OperatorsOnly, CreditsRefused, ReferenceReused.
    """
    check_actor(actor)
    with transaction.atomic():
        lot, is_new = open_lot(
            organization,
            CreditLot.Kind.GRANT,
            amount,
            reference=reference or f"grant:{uuid.uuid4()}",
            note=reason,
            actor=actor,
            now=now,
            expires_at=expires_at,
        )
        if is_new:
            _audit(organization, actor, "credits.granted", lot, amount, reason)
    return lot


def adjust(
    organization: Organization,
    amount: int,
    *,
    reason: str,
    actor: User | None,
    now: datetime,
    corrects: LedgerEntry | None = None,
    expires_at: datetime | Expiry | None = Expiry.DEFAULT,
    reference: str | None = None,
) -> int:
    """Puts credits right: adds a lot, or (negative) takes from what is left of the lots, in the order they would be drawn.

    `corrects` names the entry that was wrong; if that entry made a lot, a negative amount comes out of this lot. A repeat with
    the same `reference` changes nothing. The amount moved. Raises OperatorsOnly, CreditsRefused, NotEnoughCredits,
    ReferenceReused; an entry of another organization is a ValueError.
    """
    check_actor(actor)
    if corrects is not None and corrects.organization_id != organization.pk:
        raise ValueError("the entry is of another organization")
    reference = reference or f"adjustment:{uuid.uuid4()}"
    with transaction.atomic():
        if amount > 0:
            lot, is_new = open_lot(
                organization,
                CreditLot.Kind.ADJUSTMENT,
                amount,
                reference=reference,
                note=reason,
                actor=actor,
                now=now,
                expires_at=expires_at,
                corrects=corrects,
            )
            if is_new:
                _audit(organization, actor, "credits.adjusted", lot, amount, reason, corrects)
            return amount if is_new else 0
        only = corrects.lot_id if corrects is not None else None
        taken = take_back(
            organization, -amount, reference=reference, reason=reason, actor=actor, now=now, lot_id=only, corrects=corrects
        )
        if taken:
            _audit(organization, actor, "credits.adjusted", None, -taken, reason, corrects)
        return -taken


def open_lot(
    organization: Organization,
    kind: str,
    amount: int,
    *,
    reference: str,
    note: str,
    actor: User | None,
    now: datetime,
    expires_at: datetime | Expiry | None = Expiry.DEFAULT,
    corrects: LedgerEntry | None = None,
) -> tuple[CreditLot, bool]:
    """A lot with its entry, published on commit, and whether it is new; for `grant`, `adjust` and purchases.

    What was drawn without a lot is drawn from this one now. Raises CreditsRefused, ReferenceReused.
    """
    if amount <= 0:
        raise CreditsRefused(_("The amount must be above 0."), amount=credits.text(amount))
    _check_reason(note)
    expiry = _default_expiry(organization, now) if isinstance(expires_at, Expiry) else expires_at
    if expiry is not None and expiry <= now:
        raise CreditsRefused(_("Credits must expire in the future."), expires_at=expiry.isoformat())
    with transaction.atomic():
        lock_grants(organization.pk)
        found = CreditLot.objects.filter(organization=organization, reference=reference).first()
        if found is not None:
            if (found.kind, found.amount) != (kind, amount):
                raise ReferenceReused(
                    _("The reference %(reference)s stands for another lot.") % {"reference": reference}, reference=reference
                )
            return found, False
        if granted(organization.pk).total + amount > credits.UNLIMITED:
            raise CreditsRefused(_("That is more than counters can hold."), amount=credits.text(amount))
        covered = min(amount, max(0, lots.without_lot(organization.pk)))
        lot = CreditLot.objects.create(
            organization=organization,
            kind=kind,
            amount=amount,
            drawn=covered,
            expires_at=expiry,
            reference=reference,
            note=note,
            created_at=now,
        )
        entry = Entry(
            kind=kind,
            amount=amount,
            reference=reference,
            occurred_at=now,
            lot_id=lot.pk,
            corrects_id=corrects.pk if corrects is not None else None,
            actor_id=actor.pk if actor is not None else None,
            reason=note,
        )
        if post(organization.pk, [entry, *_cover(lot, covered, now)]) != (3 if covered else 1):
            raise ReferenceReused(
                _("The reference %(reference)s stands for another entry.") % {"reference": reference}, reference=reference
            )
        snapshot.bump_grants(organization.pk)
    return lot, True


def _cover(lot: CreditLot, amount: int, now: datetime) -> list[Entry]:
    """Moves what was drawn without a lot to this one: a pair of entries that leaves all balances as they are."""
    kind, reason = Kind.USAGE_PURCHASED.value, "Drawn while no lot had anything left."
    return [
        Entry(kind=kind, amount=-amount, reference=f"cover:{lot.uuid}:none", occurred_at=now, reason=reason),
        Entry(kind=kind, amount=amount, reference=f"cover:{lot.uuid}", occurred_at=now, lot_id=lot.pk, reason=reason),
    ]


# ------------------------------------------------------------------------------------------------ credits that are taken back


def take_back(
    organization: Organization,
    amount: int,
    *,
    reference: str,
    reason: str,
    actor: User | None,
    now: datetime,
    lot_id: int | None = None,
    at_most: bool = False,
    corrects: LedgerEntry | None = None,
) -> int:
    """Takes `amount` (above 0) of what is left, of one lot or of all in drawing order; how much was taken, 0 for a repeat.

    What was drawn is never taken back. Raises NotEnoughCredits if less is left, unless `at_most`; CreditsRefused, ReferenceReused.
    """
    if amount <= 0:
        raise CreditsRefused(_("The amount must not be 0."))
    _check_reason(reason)
    with transaction.atomic():
        lock_grants(organization.pk)
        if LedgerEntry.objects.filter(organization=organization, reference=reference).exists():
            check_taken(organization.pk, amount, reference, at_most=at_most)
            return 0
        shelf = lots.shelf(organization.pk)
        left = sum(lot.left for lot in shelf.lots if lot_id in (None, lot.lot_id))
        if left < amount and not at_most:
            raise NotEnoughCredits(
                _("Only %(left)s credits are left of %(asked)s; what was used is not taken back.")
                % {"left": credits.text(left), "asked": credits.text(amount)},
                left=credits.text(left),
                asked=credits.text(amount),
            )
        parts = shelf.take_away(min(amount, left), lot_id)
        entries = [
            Entry(
                kind=Kind.ADJUSTMENT.value,
                amount=-part,
                reference=reference if not index else f"{reference}:{index + 1}",
                occurred_at=now,
                lot_id=lot.lot_id if lot is not None else None,
                corrects_id=corrects.pk if corrects is not None else None,
                actor_id=actor.pk if actor is not None else None,
                reason=reason,
            )
            for index, (lot, part) in enumerate(parts)
        ]
        if entries:
            post(organization.pk, entries)
            shelf.save()
            snapshot.bump_grants(organization.pk)
    return sum(part for _, part in parts)


def expire_due(organization_id: int, now: datetime, drained_id: str) -> int:
    """Takes what is left of the lots that expired; how much. Safe to repeat.

    `drained_id` is the newest stream entry that the log holds (`<ms>-<n>`): a lot waits until the drain has passed its expiry, so
    that what was drawn in time is drawn from it.
    """
    drained = datetime.fromtimestamp(0, now.tzinfo) + timedelta(milliseconds=int(drained_id.partition("-")[0]) - 1)
    before = min(now, drained)
    if not lots.due(organization_id, before):
        return 0
    with transaction.atomic():
        lock_grants(organization_id)
        due = lots.due(organization_id, before)
        entries = [_expiry(lot, now) for lot in due]
        post(organization_id, entries)
        CreditLot.objects.filter(pk__in=[lot.pk for lot in due]).update(expired=F("amount") - F("drawn"))
        if due:
            snapshot.bump_grants(organization_id)
    return sum(entry.amount for entry in entries)


def _expiry(lot: CreditLot, now: datetime) -> Entry:
    # What comes back to a lot after it expired expires again, so the reference says how much had by then.
    return Entry(
        kind=Kind.EXPIRY.value,
        amount=lot.amount - lot.drawn - lot.expired,
        reference=f"expiry:{lot.uuid}:{lot.amount - lot.drawn}",
        occurred_at=lot.expires_at or now,
        lot_id=lot.pk,
    )


# ---------------------------------------------------------------------------------------------------------------- checks


def entry_of(lot: CreditLot) -> LedgerEntry:
    """The entry that made the lot; a correction names it."""
    return LedgerEntry.objects.get(organization_id=lot.organization_id, reference=lot.reference)


def lock_grants(organization_id: int) -> None:
    """The organization's row, then the ledger: in this order everywhere. Raises LookupError for an unknown organization."""
    found: Iterable[int] = (
        Organization.objects.select_for_update(no_key=True).filter(pk=organization_id).values_list("pk", flat=True)
    )
    if not list(found):
        raise LookupError(f"organization {organization_id} does not exist")
    lock(organization_id)


def _default_expiry(organization: Organization, now: datetime) -> datetime:
    zone = ZoneInfo(organization.timezone)
    return day_start(start_day(now.astimezone(zone).date(), "monthly", 12) + timedelta(days=1), zone)


def check_actor(actor: User | None) -> None:
    """Nobody signed in stands for the operator at the command line, or for a payment provider."""
    if actor is not None and not actor.is_superuser:
        raise OperatorsOnly(_("Only an operator may give or take credits."))


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise CreditsRefused(_("Give a reason: it stands in the ledger."))
    if len(reason) > 200:
        raise CreditsRefused(_("A reason has at most 200 characters."))


def _audit(
    organization: Organization,
    actor: User | None,
    action: str,
    lot: CreditLot | None,
    amount: int,
    reason: str,
    corrects: LedgerEntry | None = None,
) -> None:
    audit.record(
        organization,
        actor=actor,
        action=action,
        object_type="creditlot" if lot is not None else "organization",
        object_id=str(lot.uuid if lot is not None else organization.uuid),
        data={
            "credits": credits.text(amount),
            "reason": reason,
            **({"corrects": str(corrects.uuid)} if corrects is not None else {}),
        },
    )
