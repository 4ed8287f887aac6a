"""`manage.py reconcile [--organization ORG] [--repair]`."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import organizations
from accounts.models import Organization
from config.errors import DomainError
from config.management.operator import OperatorCommand
from quotas import reconcile


class Command(OperatorCommand):
    help = (
        "Compares counters, usage log, ledger, periods and hourly sums, of one organization or of all. Amounts are micro-credits, "
        "tokens and requests. With --repair, counters and hourly sums are put right by the log while traffic goes on; the ledger "
        "and the periods' sums are never changed by this."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--organization", metavar="ORG", help="the organization's slug (all organizations)")
        parser.add_argument("--repair", action="store_true", help="put right what differs")

    def operate(self, *, organization: str | None, repair: bool, **options: Any) -> Mapping[str, Any]:
        found = [organizations.find(organization)] if organization else Organization.objects.order_by("pk").iterator(chunk_size=500)
        compared, cold, repaired, failed, drift = 0, 0, 0, [], []
        for one in found:
            try:
                report = reconcile.reconcile(one.pk, repair=repair)
            except DomainError as error:
                if organization:
                    raise
                failed.append(f"{one.slug}: {error.message}")
                continue
            compared += 1
            cold += report.is_cold
            repaired += bool(report.repair_id)
            drift += [
                {
                    "organization": one.slug,
                    "kind": each.kind,
                    "record": each.record,
                    "field": each.field,
                    "expected": each.expected,
                    "counted": each.counted,
                }
                for each in report.differences
            ]
        return {
            "organizations": compared,
            "without_counters": cold,
            "not_compared": failed,
            "differences": len(drift),
            "repaired": repaired,
            "drift": drift,
        }

    def present(self, result: Mapping[str, Any]) -> None:
        for each in result["drift"]:
            self.stdout.write(
                "{organization} {kind} {record} {field}: {counted} in place of {expected}".format(**each),
            )
        super().present({name: value for name, value in result.items() if name != "drift"})
