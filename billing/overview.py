"""What the overview and My key show of the usage log: a month by day and model, and the newest rows. Bounded reads."""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, TypedDict
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import Max, Q, Sum

from accounts.models import ApiKey, Member, Organization
from billing import periods, reports, rollups
from billing.models import UsageHour, UsageRecord
from billing.models.usage import UsageRecordQuerySet

MOST_DAYS = 31
MOST_TYPICAL = 500
MOST_CHOSEN = 40
"""No plan period is longer."""
MOST_ROWS = 20
MOST_SPENDERS = 10
SERIES = 5
"""A chart shows at most this many models; the smaller ones are summed as OTHER."""
OTHER = "other"

_CREDITS = rollups.AMOUNTS.index("credits")


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
        amounts=("credits", "requests"),
    )
    sums: dict[str, dict[date, int]] = {}
    requests = dict.fromkeys(days, 0)
    for (name, model), (credits, count_of) in found.items():
        day = date.fromisoformat(str(name))
        sums.setdefault(str(model), {})[day] = credits
        requests[day] += count_of
    return _days(days, sums, tuple(requests.values()))


def _days(days: tuple[date, ...], sums: Mapping[str, Mapping[date, int]], requests: tuple[int, ...]) -> Days:
    ranked = sorted(sums, key=lambda model: (-sum(sums[model].values()), model))
    shown = ranked if len(ranked) <= SERIES else ranked[: SERIES - 1]
    series = [(model, tuple(sums[model].get(day, 0) for day in days)) for model in shown]
    rest = ranked[len(shown) :]
    if rest:
        series.append((OTHER, tuple(sum(sums[model].get(day, 0) for model in rest) for day in days)))
    return Days(days, tuple(series), requests)


@dataclass(frozen=True, slots=True)
class Look:
    """What the overview shows of the rollups: `days` and `spenders` of the time that was chosen; `drawn`: micro-credits by day of
    all days looked at, of members without a seat."""

    days: Days
    spenders: tuple[Spender, ...]
    drawn: dict[date, int]
    recent: tuple[int, ...]
    """What all used on each of the last days that are looked at."""
    today_requests: int

    @property
    def today(self) -> int:
        return self.recent[-1]


def look(whose: Whose, chosen: Sequence[date], *, since: date, until: date, recent: int, seated: Collection[int] = ()) -> Look:
    """Days of the organization's calendar: `chosen` are shown, [since, until] is looked at, both included, with the `recent` last
    of them told by themselves. Two queries: the sums of all days are read once, however much is shown of them, and only the columns
    that are shown."""
    zone = ZoneInfo(whose.organization.timezone)
    first, last = min([since, *chosen]), max([until, *chosen])
    calendar = [first + timedelta(days=index) for index in range((last - first).days + 1)]
    bounds = [midnight(day, zone) for day in calendar]
    shown = [midnight(chosen[0], zone), midnight(chosen[-1] + timedelta(days=1), zone)]
    where = "organization_id = %s AND hour >= %s AND hour < %s"
    values: list[Any] = [whose.organization.pk, bounds[0], midnight(last + timedelta(days=1), zone)]
    for column, value in (("member_id", whose.member_id), ("team_id", whose.team_id)):
        if value is not None:
            where, values = f"{where} AND {column} = %s", [*values, value]
    own, seats = ("SUM(credits) FILTER (WHERE member_id <> ALL(%s::bigint[]))", [list(seated)]) if seated else ("SUM(credits)", [])
    # By hour, not by day: an hour is a column, its day would have to be reckoned for every row.
    statement = f"""
        SELECT hour, model, member_id, SUM(credits)::bigint, SUM(requests)::bigint, ({own})::bigint,
            (SUM(credits) FILTER (WHERE hour >= %s AND hour < %s))::bigint
        FROM billing_usagehour WHERE {where}
        GROUP BY GROUPING SETS ((hour, model), (member_id))
    """  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(statement, [*seats, *shown, *values])
        rows = cursor.fetchall()
    sums: dict[str, dict[date, int]] = {}
    requests, drawn = dict.fromkeys(chosen, 0), dict.fromkeys(calendar, 0)
    totals, calls = dict.fromkeys(calendar, 0), 0
    used: dict[int, int] = {}
    for hour, model, member_id, credits, count, drew, in_shown in rows:
        if model is None:
            if in_shown is not None:
                used[member_id] = in_shown
            continue
        day = calendar[bisect_right(bounds, hour) - 1]
        drawn[day] += drew or 0
        totals[day] += credits
        calls += count if day == until else 0
        if day in requests:
            kept = sums.setdefault(model, {})
            kept[day] = kept.get(day, 0) + credits
            requests[day] += count
    lately = tuple(totals[until - timedelta(days=recent - 1 - index)] for index in range(recent))
    return Look(_days(tuple(chosen), sums, tuple(requests.values())), _spenders(whose, used), drawn, lately, calls)


def spenders(whose: Whose, *, start: datetime, end: datetime) -> list[Spender]:
    """Who used how much in [start, end), the most first, at most MOST_SPENDERS. The hour of `end` counts whole: it is now's.
    Two queries."""
    zone = ZoneInfo(whose.organization.timezone)
    found = reports.sums(whose.organization, ("member",), start, rollups.next_hour(end, zone), **whose.of_reports())
    return list(_spenders(whose, {int(str(pk)): amounts[_CREDITS] for (pk,), amounts in found.items()}))


def _spenders(whose: Whose, used: Mapping[int, int]) -> tuple[Spender, ...]:
    most = sorted(((credits, pk) for pk, credits in used.items()), key=lambda pair: (-pair[0], pair[1]))[:MOST_SPENDERS]
    members = Member.objects.for_organization(whose.organization).filter(pk__in=[member_id for _, member_id in most])
    names = {member.pk: str(member) for member in members.select_related("user")}
    return tuple(Spender(member_id, names[member_id], credits) for credits, member_id in most)


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


@dataclass(frozen=True, slots=True)
class Typical:
    """What a request of a model costs: half of them at most `median`, nine of ten at most `ninth`, micro-credits."""

    model: str
    median: int
    ninth: int
    requests: int


def typical(whose: Whose, *, now: datetime) -> list[Typical]:
    """From the newest MOST_TYPICAL requests that ended well in MOST_DAYS, the most used model first. One query."""
    rows = whose.rows().filter(part=0, admitted_at__gte=now - timedelta(days=MOST_DAYS), status=UsageRecord.Status.OK)
    newest = rows.order_by("-admitted_at", "-id").values_list("model_served", "model_asked", "credits")[:MOST_TYPICAL]
    found: dict[str, list[int]] = {}
    for served, asked, credits in newest:
        found.setdefault(served or asked, []).append(credits)
    told = []
    for model, amounts in found.items():
        amounts.sort()
        count = len(amounts)
        told.append(Typical(model, amounts[(count - 1) // 2], amounts[-(-count * 9 // 10) - 1], count))
    return sorted(told, key=lambda one: (-one.requests, one.model))


def used_by_key(member_id: int, organization: Organization, *, now: datetime) -> dict[int, int]:
    """Micro-credits of each key of a member in the last MOST_DAYS days. One query."""
    zone = ZoneInfo(organization.timezone)
    start = midnight(now.astimezone(zone).date() - timedelta(days=MOST_DAYS - 1), zone)
    found = reports.sums(organization, ("key",), start, rollups.next_hour(now, zone), members=[member_id])
    return {int(str(key)): amounts[_CREDITS] for (key,), amounts in found.items() if key is not None}


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
