"""adjust_credits ORG CREDITS --reason TEXT [--corrects ENTRY] [--expires DATE|never] [--reference TEXT]"""

import uuid
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError

from accounts import organizations
from accounts.models import Organization
from billing import credits, ledger
from billing.management import amounts
from billing.models import LedgerEntry
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = "Puts an organization's credits right: adds some, or takes back what is left of them. What was used is not taken back."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("credits", metavar="CREDITS", help="e.g. 500; -500 takes back")
        parser.add_argument("--reason", required=True, metavar="TEXT", help="stands in the ledger")
        parser.add_argument("--corrects", metavar="ENTRY", help="the id of the ledger entry that was wrong")
        parser.add_argument("--expires", metavar="DATE", help="of added credits: a day or an instant, or `never` (12 months)")
        parser.add_argument("--reference", metavar="TEXT", help="a repeat with the same reference changes nothing")

    def operate(
        self,
        *,
        organization: str,
        reason: str,
        corrects: str | None,
        expires: str | None,
        reference: str | None,
        **options: Any,
    ) -> Mapping[str, Any]:
        to = organizations.find(organization)
        moved = ledger.adjust(
            to,
            amounts.credits(options["credits"]),
            reason=reason,
            actor=None,
            now=utc_now(),
            corrects=None if corrects is None else _entry(to, corrects),
            expires_at=amounts.expiry(expires),
            reference=None if reference is None else f"adjustment:{reference}",
        )
        left = ledger.balance(to.pk).left
        return {"slug": to.slug, "moved": credits.text(moved), "credits_left": credits.text(left)}


def _entry(organization: Organization, text: str) -> LedgerEntry:
    try:
        wanted = uuid.UUID(text)
    except ValueError as error:
        raise CommandError(f"{text!r} is not the id of an entry.") from error
    entry = LedgerEntry.objects.for_organization(organization).filter(uuid=wanted).first()
    if entry is None:
        raise CommandError(f"{organization.slug} has no ledger entry {text}.")
    return entry
