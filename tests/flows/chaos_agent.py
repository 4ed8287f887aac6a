"""Asks and changes the chaos stack's own database, in a process of its own: the test process is connected to another one.

A line of JSON in, a line of JSON out: `{"call": name, ...}`. Run as `python -m tests.flows.chaos_agent`.
"""

import json
import os
import sys
from typing import Any

import django

TOTALS = ("credits", "counted_tokens", "counted_requests", "from_quota", "overdraft")


def make() -> dict[str, Any]:
    """A tenant with an account by API key."""
    from tests.flows import tenants

    made = tenants.make()
    return {"organization": made.organization.pk, "secret": made.key.secret, "token": made.upstream_token}


def log(organization: int) -> list[dict[str, Any]]:
    from billing.models import UsageRecord

    names = ("request_id", "part", "response_id", "status", *TOTALS)
    return list(UsageRecord.objects.filter(organization_id=organization).order_by("request_id", "part").values(*names))


def unfinished(organization: int) -> dict[str, int]:
    """Live holds and entries that are not drained; empty if there are none."""
    from accounts.models import Organization
    from tests.races.stage import Tenant, unfinished

    return unfinished(Tenant("rough", Organization.objects.get(pk=organization)))


def epoch(organization: int) -> int | None:
    """Of the counters; None if they are gone."""
    from config.redis import sync_client
    from quotas import engine, records

    raw: Any = sync_client().hget(engine.counters_key(organization), "$")
    return None if raw is None else int(records.unpack(raw)[0])


def audit(organization: int) -> dict[str, Any]:
    """Counters = log = periods = ledger = hourly sums, and no hold; what differs, or nothing."""
    from accounts.models import Organization
    from tests.races import audit
    from tests.races.stage import Tenant

    tenant = Tenant("rough", Organization.objects.get(pk=organization))
    try:
        audit.check_sums(tenant)
    except AssertionError as error:
        return {"differs": str(error)[:4000] or "a sum"}
    return {}


def repair(organization: int) -> int:
    """What the reconciler finds and puts right; how many differences it found."""
    from quotas import reconcile

    return len(reconcile.reconcile(organization, repair=True).differences)


CALLS = {call.__name__: call for call in (make, log, unfinished, epoch, audit, repair)}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.test")
    django.setup()
    from django.db import connections

    from config import scope

    for line in sys.stdin:
        asked = json.loads(line)
        with scope.everything():
            try:
                answer = {"is": CALLS[asked.pop("call")](**asked)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            connections.close_all()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
