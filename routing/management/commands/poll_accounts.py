"""`manage.py poll_accounts`: asks the sign-in accounts of an organization for their use, now; or shows what is known of them."""

from argparse import ArgumentParser
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from django.db import connection

from accounts import organizations
from config.management.operator import OperatorCommand, text
from routing import live, polls
from routing.errors import AccountError
from routing.models import PoolAccount

COLUMNS = ("account", "plan", "status", "windows", "blocked_until", "polled_at", "outcome")


class Command(OperatorCommand):
    help = "Asks the upstreams of an organization's sign-in accounts for their use, by their own tokens; never an inference."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="slug of the organization")
        parser.add_argument("--account", metavar="ACCOUNT", help="id or label of one account")
        parser.add_argument("--show", action="store_true", help="ask nobody: show what the last polls and answers said")

    def operate(self, *, organization: str, account: str | None = None, show: bool = False, **options: Any) -> Mapping[str, Any]:
        rows = PoolAccount.objects.for_organization(organizations.find(organization)).without_secrets()
        found = [row for row in rows.filter(kind=PoolAccount.Kind.CHATGPT) if account in (None, str(row.uuid), row.label)]
        if account is not None and not found:
            raise AccountError(f"No sign-in account is called {account!r}.")
        outcomes: dict[int, str] = {}
        if not show and found:
            with ThreadPoolExecutor(max_workers=min(polls.SIDE_BY_SIDE, len(found))) as threads:
                outcomes = {polled.account_id: polled.outcome for polled in threads.map(_poll, (row.pk for row in found))}
        now = datetime.now(UTC)
        again = rows.select_related("pool").filter(pk__in=[row.pk for row in found]).order_by("pk")
        return {"accounts": [_facts(row, outcomes.get(row.pk, row.poll_outcome), now) for row in again]}

    def present(self, result: Mapping[str, Any]) -> None:
        self.stdout.write("  ".join(COLUMNS))
        for row in result["accounts"]:
            windows = ", ".join(f"{name} {told}" for name, told in row["windows"].items()) or "-"
            self.stdout.write("  ".join(windows if name == "windows" else text(row[name]) for name in COLUMNS))


def _poll(account_id: int) -> polls.Polled:
    try:
        return polls.poll(account_id)
    finally:
        connection.close()


def _used(window: live.Window, now_ms: int) -> str:
    """One whose reset has passed says nothing until it is reported again."""
    return "unknown" if window.is_over(now_ms) else f"{window.used_percent:g} %"


def _facts(row: PoolAccount, outcome: str, now: datetime) -> dict[str, Any]:
    now_ms = round(now.timestamp() * 1000)
    state = live.state_of(live.pool_live_key(row.pool_id, row.pool.organization_id), row.pk)
    blocked = state.blocked_until_ms(now_ms)
    return {
        "account": row.label,
        "id": str(row.uuid),
        "plan": row.plan_type or None,
        "status": row.status,
        "windows": {
            window.name(): "unknown" if window.is_over(now_ms) else f"{window.used_percent:g} %"
            for window in state.windows.values()
        },
        "blocked_until": datetime.fromtimestamp(blocked / 1000, UTC).isoformat(timespec="seconds") if blocked else None,
        "polled_at": row.polled_at.isoformat(timespec="seconds") if row.polled_at else None,
        "outcome": outcome or None,
    }
