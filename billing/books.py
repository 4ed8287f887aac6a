"""Whether log, ledger, periods and hourly sums say the same. Reads; run it in one snapshot of the database."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db import connection

from accounts.models import Organization
from billing import reports, rollups
from billing.models import SubscriptionPeriod

FUNDS = ("from_quota", "from_purchased", "from_overage", "overdraft")
_PERIOD = ("used_from_quota", "used_from_purchased", "overage", "overdraft", "tokens", "requests")
_KINDS = {"usage_quota": 0, "usage_purchased": 1, "overage": 2, "overdraft": 3}

LOG_BY_PERIOD = f"""
    SELECT source, period_starts_at, {", ".join(f"SUM({name})::bigint" for name in FUNDS)},
        SUM(counted_tokens)::bigint, SUM(counted_requests)::bigint
    FROM billing_usagerecord WHERE organization_id = %s AND admitted_at >= %s GROUP BY source, period_starts_at
"""  # noqa: S608
LEDGER_BY_PERIOD = """
    SELECT period_id, kind, SUM(CASE WHEN debit = 'usage' THEN amount ELSE -amount END)::bigint
    FROM billing_ledgerentry WHERE organization_id = %s AND period_id = ANY(%s) AND kind = ANY(%s)
    GROUP BY period_id, kind
"""
_LOGGED = ("counted_requests", *rollups.AMOUNTS[1:])
LOG_BY_DAY = f"""
    SELECT width_bucket(admitted_at, %s::timestamptz[]), {", ".join(f"SUM({name})::bigint" for name in _LOGGED)}
    FROM billing_usagerecord WHERE organization_id = %s AND admitted_at >= %s GROUP BY 1
"""  # noqa: S608
SUMS_BY_DAY = f"""
    SELECT width_bucket(hour, %s::timestamptz[]), {", ".join(f"SUM({name})::bigint" for name in rollups.AMOUNTS)}
    FROM billing_usagehour WHERE organization_id = %s AND hour >= %s GROUP BY 1
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Mismatch:
    """`kind`: which of them (period, ledger, rollup) says `found` where the log says `expected`. `where` names a period or day."""

    kind: str
    where: str
    field: str
    expected: int
    found: int


def mismatches(organization: Organization, since: datetime, until: datetime) -> list[Mismatch]:
    """For every period that began, and every local day, in [since, until). Micro-credits, tokens, requests. Six queries.

    Where no usage was ever booked in the organization's ledger, the log is not held against it: it is older, or made for a test.
    """
    return [*_of_periods(organization, since), *_of_days(organization, since, until)]


def _of_periods(organization: Organization, since: datetime) -> list[Mismatch]:
    logged: dict[tuple[str, datetime], Sequence[int]] = {}
    with connection.cursor() as cursor:
        cursor.execute(LOG_BY_PERIOD, [organization.pk, since])
        for source, start, *sums in cursor.fetchall():
            logged[(source, start)] = sums
    periods: dict[tuple[str, datetime], list[SubscriptionPeriod]] = defaultdict(list)
    rows = SubscriptionPeriod.objects.filter(subscription__organization=organization, starts_at__gte=since)
    for row in rows.select_related("subscription"):
        member_id = row.subscription.member_id
        periods[("o" if member_id is None else f"m{member_id}", row.starts_at)].append(row)
    booked = _ledger(organization, [row.pk for own in periods.values() for row in own])
    found = []
    for key, own in periods.items():
        expected = logged.get(key, [0] * len(_PERIOD))
        where = f"{key[0]} {key[1]:%Y-%m-%dT%H:%M:%SZ}"
        kept = [sum(getattr(row, name) for row in own) for name in _PERIOD]
        found += _differences("period", where, _PERIOD, expected, kept)
        if booked is not None:
            entries = [sum(booked[row.pk][index] for row in own) for index in range(len(FUNDS))]
            found += _differences("ledger", where, FUNDS, expected[: len(FUNDS)], entries)
    for (source, start), sums in logged.items():
        if start >= since and (source, start) not in periods and any(sums):
            found += _differences("period", f"{source} {start:%Y-%m-%dT%H:%M:%SZ}", _PERIOD, sums, [0] * len(_PERIOD))
    return found


def _ledger(organization: Organization, period_ids: Sequence[int]) -> Mapping[int, list[int]] | None:
    """What the ledger's entries of each period say of its FUNDS; None if no usage was ever booked here."""
    sums: dict[int, list[int]] = defaultdict(lambda: [0] * len(FUNDS))
    with connection.cursor() as cursor:
        cursor.execute(LEDGER_BY_PERIOD, [organization.pk, list(period_ids), list(_KINDS)])
        for period_id, kind, amount in cursor.fetchall():
            sums[period_id][_KINDS[kind]] = amount
        if not sums:
            cursor.execute(
                "SELECT EXISTS (SELECT FROM billing_ledgerentry WHERE organization_id = %s AND kind = ANY(%s))",
                [organization.pk, list(_KINDS)],
            )
            if not cursor.fetchone()[0]:
                return None
    return sums


def _of_days(organization: Organization, since: datetime, until: datetime) -> list[Mismatch]:
    zone = ZoneInfo(organization.timezone)
    days = reports.calendar("day", since, until + timedelta(days=1), zone)
    edges = [begins for begins, _ in days]
    found = []
    sums: list[dict[int, Any]] = []
    for statement in (LOG_BY_DAY, SUMS_BY_DAY):
        with connection.cursor() as cursor:
            cursor.execute(statement, [edges, organization.pk, edges[0]])
            sums.append({number: row for number, *row in cursor.fetchall()})
    empty = [0] * len(rollups.AMOUNTS)
    for number in sums[0].keys() | sums[1].keys():
        found += _differences(
            "rollup", days[number - 1][1], rollups.AMOUNTS, sums[0].get(number, empty), sums[1].get(number, empty)
        )
    return found


def _differences(kind: str, where: str, names: Sequence[str], expected: Sequence[int], found: Sequence[int]) -> list[Mismatch]:
    return [
        Mismatch(kind, where, name, one, other) for name, one, other in zip(names, expected, found, strict=True) if one != other
    ]
