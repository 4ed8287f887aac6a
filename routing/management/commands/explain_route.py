"""`manage.py explain_route`: where a request would go, and why. It takes no slot and holds nothing."""

import random
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from accounts import organizations
from accounts.snapshots import KeySnapshot
from config import snapshot
from config.clock import utc_now
from config.management.operator import OperatorCommand, text
from routing import explanation, selection, sticky

COLUMNS = ("order", "account", "score", "room", "held", "used_5h", "used_week", "resets_in_seconds", "why")


class Command(OperatorCommand):
    help = (
        "Prints which account a new turn would go to: every account of the pool, its estimated use, its score under the pool's "
        "strategy, its room in credits, and the rule that decided. Takes no slot. Under strategies that draw, each run draws anew."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="slug of the organization")
        parser.add_argument("--key", metavar="PUBLIC_ID", help="as this gateway key: its team's pool, its member's turns")
        parser.add_argument("--model", default="", metavar="MODEL", help="the model that is asked for")
        parser.add_argument("--effort", metavar="EFFORT", help="the reasoning effort that is asked for")
        parser.add_argument("--tier", metavar="TIER", help="the service tier that is asked for")
        parser.add_argument(
            "--dialect",
            choices=sorted(explanation.DIALECTS),
            default="responses",
            help="the API that the client speaks: responses (the default), chat, or messages, which is Anthropic's",
        )
        parser.add_argument("--session", metavar="SESSION", help="the client's session id, or its prompt_cache_key")

    def operate(self, **options: Any) -> Mapping[str, Any]:
        organization = organizations.find(options["organization"])
        config = snapshot.load(organization.pk)
        key = _key(config, options["key"]) if options["key"] else None
        now = utc_now()
        plan = explanation.plan_of(config, key.member_id if key is not None else None, now)
        pool = selection.pool_for(config, key or explanation.Nobody(), plan=plan)
        session = options["session"]
        session_key = sticky.session_key(organization.pk, {}, session, b"") if session else None
        state, now_ms = explanation.read(pool, session_key, key.member_id if key is not None else 0)
        model = config.billing.rates.upstream_name(options["model"], now) if options["model"] else ""
        told = explanation.explain(
            pool,
            state,
            model=model,
            effort=options["effort"],
            tier=options["tier"],
            kinds=explanation.DIALECTS[options["dialect"]],
            now_ms=now_ms,
            rng=random.random,
        )
        return asdict(told)

    def present(self, result: Mapping[str, Any]) -> None:
        rows = result["accounts"]
        self.stdout.write(f"pool {result['pool']}, strategy {result['strategy']}, a turn of about {result['turn']:g} credits")
        if rows:
            rows = [row | {"why": explanation.WHY_NOT.get(row["why"], row["why"])} for row in rows]
            table = [list(COLUMNS), *([_cell(row[name]) for name in COLUMNS] for row in rows)]
            widths = [max(len(line[at]) for line in table) for at in range(len(COLUMNS))]
            for line in table:
                self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        self.stdout.write(f"-> {result['account']} ({result['reason']})" if result["account"] else f"-> {result['refusal']}")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else text(value)


def _key(config: snapshot.Snapshot, public_id: str) -> KeySnapshot:
    key: KeySnapshot | None = config.accounts.keys.get(public_id)
    if key is None:
        raise CommandError(f"There is no key {public_id!r} in this organization.")
    return key
