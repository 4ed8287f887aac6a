"""What the overview and My key show of the usage log: a month by day and model, and the newest rows. Bounded reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import Q

from accounts.models import Member, Organization
from billing.models import UsageRecord

MOST_DAYS = 31
SERIES = 5
"""A chart shows at most this many models; the smaller ones are summed as OTHER."""
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Days:
    """Micro-credits per day of the organization's zone and model; `series` are (model, one amount a day), the largest first."""

    days: tuple[date, ...]
    series: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def totals(self) -> tuple[int, ...]:
        return tuple(sum(amounts[index] for _, amounts in self.series) for index in range(len(self.days)))

    @property
    def total(self) -> int:
        return sum(self.totals)


@dataclass(frozen=True, slots=True)
class Spender:
    """What one member used in a time, micro-credits."""

    member_id: int
    name: str
    credits: int


def midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time(), zone)


def days_by_model(organization: Organization, *, until: date, count: int, members: Sequence[int] | None = None) -> Days:
    """The `count` days that end with `until`, by model. One query. `members` None: everybody's."""
    count = min(count, MOST_DAYS)
    zone = ZoneInfo(organization.timezone)
    days = tuple(until - timedelta(days=count - 1 - index) for index in range(count))
    sums: dict[str, dict[date, int]] = {}
    start, end = midnight(days[0], zone), midnight(until + timedelta(days=1), zone)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT (admitted_at AT TIME ZONE %s)::date, model_served, SUM(credits)::bigint
            FROM billing_usagerecord
            WHERE organization_id = %s AND admitted_at >= %s AND admitted_at < %s AND (%s::bigint[] IS NULL OR member_id = ANY(%s))
            GROUP BY 1, 2
            """,
            [organization.timezone, organization.pk, start, end, _ids(members), _ids(members)],
        )
        for day, model, credits in cursor.fetchall():
            sums.setdefault(model or "unknown", {})[day] = int(credits)
    ranked = sorted(sums, key=lambda model: (-sum(sums[model].values()), model))
    shown = ranked if len(ranked) <= SERIES else ranked[: SERIES - 1]
    series = [(model, tuple(sums[model].get(day, 0) for day in days)) for model in shown]
    if len(shown) < len(ranked):
        rest = ranked[len(shown) :]
        series.append((OTHER, tuple(sum(sums[model].get(day, 0) for model in rest) for day in days)))
    return Days(days, tuple(series))


def _ids(members: Sequence[int] | None) -> list[int] | None:
    return None if members is None else list(members)


def spenders(organization: Organization, *, start: datetime, end: datetime, members: Sequence[int] | None = None) -> list[Spender]:
    """Who used how much in [start, end), the most first. Two queries."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT member_id, SUM(credits)::bigint
            FROM billing_usagerecord
            WHERE organization_id = %s AND admitted_at >= %s AND admitted_at < %s AND (%s::bigint[] IS NULL OR member_id = ANY(%s))
            GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 10
            """,
            [organization.pk, start, end, _ids(members), _ids(members)],
        )
        sums = [(int(member), int(credits)) for member, credits in cursor.fetchall()]
    names = {one.pk: str(one) for one in Member.objects.filter(pk__in=[member for member, _ in sums]).select_related("user")}
    return [Spender(member, names[member], credits) for member, credits in sums]


def newest(organization: Organization, *, members: Sequence[int] | None = None, count: int = 20) -> list[UsageRecord]:
    """The newest ends of holds, with who made them. One query."""
    wanted = Q() if members is None else Q(member_id__in=list(members))
    rows = UsageRecord.objects.for_organization(organization).filter(wanted, admitted_at__gte=_horizon())
    return list(rows.select_related("member__user", "key").order_by("-admitted_at", "-id")[:count])


def _horizon() -> datetime:
    # Keeps the read within the newest partitions.
    return datetime.now(UTC) - timedelta(days=MOST_DAYS + 1)
