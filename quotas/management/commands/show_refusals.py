"""show_refusals ORG [--member EMAIL] [--count N]"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import members, organizations
from accounts.models import Member
from config.management.operator import OperatorCommand
from quotas import refusals
from quotas.models import Refusal


class Command(OperatorCommand):
    help = "The newest refusals of an organization or of one member: whose limit, how much was used and needed, when there is room."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("--member", default=None, metavar="EMAIL", help="only this member's")
        parser.add_argument("--count", type=int, default=20, metavar="N", help="how many rows; 20")

    def operate(self, *, organization: str, member: str | None, count: int, **options: Any) -> Mapping[str, Any]:
        found = organizations.find(organization)
        rows = Refusal.objects.filter(organization=found)
        if member is not None:
            rows = rows.filter(member_id=members.find(found, member).pk)
        shown = list(rows[: max(1, min(count, 1000))])
        people = Member.objects.for_organization(found).filter(pk__in={row.member_id for row in shown}).select_related("user")
        names = {one.pk: str(one) for one in people}
        return {"refusals": [_row(row, names.get(row.member_id, "")) for row in shown]}

    def present(self, result: Mapping[str, Any]) -> None:
        for row in result["refusals"]:
            self.stdout.write(f"{row['last_at']}  {row['member']}  {row['code']}  {row['count']}x  {row['message']}")
        if not result["refusals"]:
            self.stdout.write("No request was refused in 30 days.")


def _row(row: Refusal, member: str) -> dict[str, Any]:
    amounts = {
        name: None if (value := getattr(row, name)) is None else refusals.shown(row.metric, value)
        for name in ("limit", "used", "held", "need")
    }
    return {
        "last_at": row.last_at.isoformat(timespec="seconds"),
        "member": member,
        "code": row.code,
        "count": row.count,
        "scope": row.scope,
        "scope_name": row.scope_name,
        "metric": row.metric,
        "window": row.window,
        **amounts,
        "resets_at": None if row.resets_at is None else row.resets_at.isoformat(),
        "model": row.model,
        "message": row.message,
    }
