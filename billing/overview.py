"""What the overview and My key show of the usage log: a month by day and model, and the newest rows. Bounded reads."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TypedDict
from zoneinfo import ZoneInfo

from django.db.models import Max, Q, Sum

from accounts.models import ApiKey, Member, Organization
from billing import periods, reports, rollups
from billing.models import UsageHour, UsageRecord
from billing.models.usage import UsageRecordQuerySet

MOST_DAYS = 31
MOST_ROWS = 20
MOST_SPENDERS = 10
SERIES = 5
"""A chart shows at most this many models; the smaller ones are summed as OTHER."""
OTHER = "other"

_CREDITS, _REQUESTS = rollups.AMOUNTS.index("credits"), rollups.AMOUNTS.index("requests")


class OfReports(TypedDict):
    """The arguments by which billing.reports knows whose usage it is."""

    members: list[int] | None
    team_id: int | None


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose usage is read: one member's, what was used in one team, or (neither given) the whole organization's."""

    organization: Organization
    member_id: int | None = None
    team_id: int | None = None

    def rows(self) -> UsageRecordQuerySet:
        """A team's are the rows of the time when their member was in it: who came from elsewhere does not bring them along."""
        rows = UsageRecord.objects.for_organization(self.organization)
        if self.member_id is not None:
            return rows.filter(member_id=self.member_id)
        return rows if self.team_id is None else rows.filter(team_id=self.team_id)

    def of_reports(self) -> OfReports:
        if self.member_id is not None:
            return {"members": [self.member_id], "team_id": None}
        return {"members": None, "team_id": self.team_id}


@dataclass(frozen=True, slots=True)
class Days:
    """Micro-credits per day of the organization's zone and model; `series` are (model, one amount a day), the largest first."""

    days: tuple[date, ...]
    series: tuple[tuple[str, tuple[int, ...]], ...]
    requests: tuple[int, ...]

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
    """The day's first instant."""
    return periods.day_start(day, zone)


def days_by_model(whose: Whose, *, until: date, count: int) -> Days:
    """The `count` days that end with `until`, at most MOST_DAYS, by the models that were paid for, as every report counts them.
    One query."""
    count = min(count, MOST_DAYS)
    zone = ZoneInfo(whose.organization.timezone)
    days = tuple(until - timedelta(days=count - 1 - index) for index in range(count))
    found = reports.sums(
        whose.organization,
        ("day", "model"),
        midnight(days[0], zone),
        midnight(until + timedelta(days=1), zone),
        **whose.of_reports(),
    )
    sums: dict[str, dict[date, int]] = {}
    requests = dict.fromkeys(days, 0)
    for (name, model), amounts in found.items():
        day = date.fromisoformat(str(name))
        sums.setdefault(str(model), {})[day] = amounts[_CREDITS]
        requests[day] += amounts[_REQUESTS]
    ranked = sorted(sums, key=lambda model: (-sum(sums[model].values()), model))
    shown = ranked if len(ranked) <= SERIES else ranked[: SERIES - 1]
    series = [(model, tuple(sums[model].get(day, 0) for day in days)) for model in shown]
    rest = ranked[len(shown) :]
    if rest:
        series.append((OTHER, tuple(sum(sums[model].get(day, 0) for model in rest) for day in days)))
    return Days(days, tuple(series), tuple(requests.values()))


def spenders(whose: Whose, *, start: datetime, end: datetime) -> list[Spender]:
    """Who used how much in [start, end), the most first, at most MOST_SPENDERS. The hour of `end` counts whole: it is now's.
    Two queries."""
    zone = ZoneInfo(whose.organization.timezone)
    found = reports.sums(whose.organization, ("member",), start, rollups.next_hour(end, zone), **whose.of_reports())
    ranked = sorted(((amounts[_CREDITS], int(str(pk))) for (pk,), amounts in found.items()), key=lambda pair: (-pair[0], pair[1]))
    most = ranked[:MOST_SPENDERS]
    members = Member.objects.for_organization(whose.organization).filter(pk__in=[member_id for _, member_id in most])
    names = {member.pk: str(member) for member in members.select_related("user")}
    return [Spender(member_id, names[member_id], credits) for credits, member_id in most]


def newest(whose: Whose, *, now: datetime, count: int = MOST_ROWS) -> list[UsageRecord]:
    """The newest requests of the last MOST_DAYS with who made them; `credits` of each includes its amendment. Two queries."""
    since = now - timedelta(days=MOST_DAYS)
    rows = list(
        whose.rows()
        .filter(part=0, admitted_at__gte=since)
        .select_related("member__user", "key")
        .order_by("-admitted_at", "-id")[: min(count, MOST_ROWS)]
    )
    # An orphan was booked at its observed amount; when its real end came later, the difference is a row of its own.
    amended = (
        whose.rows()
        .filter(part=1, admitted_at__gte=since, request_id__in=[row.request_id for row in rows])
        .order_by()
        .values_list("request_id")
        .annotate(Sum("credits"))
    )
    for request_id, credits in amended:
        for row in rows:
            if row.request_id == request_id:
                row.credits += int(credits)
    return rows


def last_used(keys: list[ApiKey], *, now: datetime) -> dict[int, datetime]:
    """When each key was last used within MOST_DAYS, by key id. Two queries: the sums name each key's last hour."""
    members = {key.member_id for key in keys}
    of_keys = UsageHour.objects.filter(member_id__in=members, key_id__in=[key.pk for key in keys])
    hours = dict(of_keys.filter(hour__gte=now - timedelta(days=MOST_DAYS)).order_by().values_list("key_id").annotate(Max("hour")))
    if not hours:
        return {}
    # The last hours of all, as few rows as there can be; each key's own is among them.
    within = Q(pk__in=[])
    for key_id, hour in hours.items():
        within |= Q(key_id=key_id, admitted_at__gte=hour, admitted_at__lt=hour + rollups.HOUR)
    rows = UsageRecord.objects.filter(within, member_id__in=members, admitted_at__gte=min(hours.values()))
    return dict(rows.order_by().values_list("key_id").annotate(Max("admitted_at")))


def newest_request_id(whose: Whose, *, now: datetime) -> str:
    """The id of the newest logged request, "" if there is none: moves when there is something new to show. One query."""
    rows = whose.rows().filter(part=0, admitted_at__gte=now - timedelta(days=MOST_DAYS))
    return rows.order_by("-admitted_at", "-id").values_list("request_id", flat=True).first() or ""
