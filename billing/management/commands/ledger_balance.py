"""ledger_balance ORG"""

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from accounts import organizations
from billing import books, credits, ledger
from config.clock import utc_now
from config.management.operator import OperatorCommand, text

LONGEST_PERIOD = timedelta(days=31)


class Command(OperatorCommand):
    help = "Shows the balance of every account of an organization's ledger, its credits, and whether log, ledger and periods agree."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")

    def operate(self, *, organization: str, **options: Any) -> Mapping[str, Any]:
        of = organizations.find(organization)
        sums = ledger.trial_balance(of.pk)
        balance = ledger.balance(of.pk)
        return {
            "slug": of.slug,
            "accounts": {
                account: {
                    "debits": credits.text(one.debits),
                    "credits": credits.text(one.credits),
                    "balance": credits.text(one.balance),
                }
                for account, one in sums.items()
            },
            "debits": credits.text(sum(one.debits for one in sums.values())),
            "credits": credits.text(sum(one.credits for one in sums.values())),
            "granted": credits.text(balance.granted),
            "drawn": credits.text(balance.drawn),
            "left": credits.text(balance.left),
            "expiring": credits.text(balance.expiring),
            "expires_at": balance.expires_at,
            "differences": [asdict(one) for one in books.mismatches(of, of.created_at - LONGEST_PERIOD, utc_now())],
        }

    def present(self, result: Mapping[str, Any]) -> None:
        width = max([len("account"), *map(len, result["accounts"])])
        self.stdout.write(f"{'account':<{width}} {'debits':>24} {'credits':>24} {'balance':>24}")
        for account, one in result["accounts"].items():
            self.stdout.write(f"{account:<{width}} {one['debits']:>24} {one['credits']:>24} {one['balance']:>24}")
        self.stdout.write(f"{'':<{width}} {result['debits']:>24} {result['credits']:>24}")
        names = ("granted", "drawn", "left", "expiring", "expires_at")
        super().present({name: result[name] for name in names})
        if result["differences"]:
            self.stdout.writelines(f"{text(one)}\n" for one in result["differences"])
        else:
            self.stdout.write("Log, ledger, periods and hourly sums agree.")
