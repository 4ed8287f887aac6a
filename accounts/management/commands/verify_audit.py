"""verify_audit [--organization ORG [--noted NUMBER:DIGEST]]"""

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.management.base import CommandError

from accounts import audit, organizations
from accounts.audit import Head, Verdict
from accounts.models import Organization
from config.management.operator import OperatorCommand

INSTALL = "(install)"
"""How the chain of events that are no organization's is called; no slug looks like that."""


class Command(OperatorCommand):
    _is_broken = False
    help = "Walks the audit trail's chains and says of each whether it is whole, and its head, to be noted down elsewhere."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--organization", metavar="ORG", help="the organization's slug (all, and the install's own chain)")
        parser.add_argument("--noted", metavar="NUMBER:DIGEST", help="a head of this organization that was noted down before")

    def operate(self, *, organization: str | None, noted: str | None, **options: Any) -> Mapping[str, Any]:
        if noted is not None and organization is None:
            raise CommandError("--noted is of one chain: name its --organization.")
        head = Head.parsed(noted) if noted is not None else None
        found = {name: audit.verify(whose, noted=head) for name, whose in _chains(organization)}
        self._is_broken = not all(verdict.is_whole for verdict in found.values())
        return {"chains": {name: _told(verdict) for name, verdict in found.items()}}

    def handle(self, *args: Any, **options: Any) -> None:
        """Ends with status 1 where a chain is broken."""
        super().handle(*args, **options)
        if self._is_broken:
            raise CommandError("The audit trail is not what was written.")

    def present(self, result: Mapping[str, Any]) -> None:
        for name, one in result["chains"].items():
            count = f"{one['events']:,} event{'' if one['events'] == 1 else 's'}"
            if one["whole"]:
                self.stdout.write(f"{name}: {count}, chain whole, head {one['head']}")
            else:
                self.stdout.write(f"{name}: {count}, chain broken")
                self.stdout.writelines(f"  {fault}\n" for fault in one["faults"])


def _chains(slug: str | None) -> Iterator[tuple[str, Organization | None]]:
    if slug is not None:
        yield slug, organizations.find(slug)
        return
    yield INSTALL, None
    for organization in Organization.objects.order_by("slug").iterator(chunk_size=500):
        yield organization.slug, organization


def _told(verdict: Verdict) -> dict[str, Any]:
    return {"events": verdict.events, "whole": verdict.is_whole, "head": verdict.head.text, "faults": list(verdict.faults)}
