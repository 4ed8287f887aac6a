"""Sums and rows of usage. Sums come from the hourly rollups; every grouping of the same time adds up to the same credits."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db import connection

from accounts.models import ApiKey, Member, Organization, Team
from billing import credits, partitions, periods, rollups
from billing.models import UsageRecord

GROUPINGS = ("day", "week", "team", "member", "key", "model", "account")
CREDIT_COLUMNS = ("credits", "from_quota", "from_purchased", "from_overage", "overdraft")

_CALENDAR = ("day", "week")
_COLUMNS = {"team": "team_id", "member": "member_id", "key": "key_id", "model": "model", "account": "account_id"}

Groups = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True)
class UsageSum:
    """What one day (ISO date), week (that of its Monday), team, member, key, account (id; None: no team, no account) or model
    used. Credits are micro-credits; the four funds sum to `credits`."""

    group: str | int | None
    requests: int
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    counted_tokens: int
    credits: int
    from_quota: int
    from_purchased: int
    from_overage: int
    overdraft: int


def usage_by(
    organization: Organization,
    by: str,
    start: datetime,
    end: datetime,
    *,
    members: Sequence[int] | None = None,
    team_id: int | None = None,
) -> list[UsageSum]:
    """Sums over what was admitted in [start, end), of all or of some members, of all or of one team. ValueError: other grouping.

    Days and weeks are those of the organization's zone, and every one that [start, end) touches is there, in order, with zeros if
    nothing was used. Teams, members, keys, models and accounts are those with use, the ones with the most credits first. A team's
    are the requests made while their member was in it. How a request with several priced lines counts: billing.rollups.

    One query; a few more for an hour that `start` or `end` cuts, which is read from the log. Where retention has dropped the log,
    such an hour counts whole in the time that its first second lies in.
    """
    if by not in GROUPINGS:
        raise ValueError(f"usage is summed by {', '.join(GROUPINGS)}, not by {by!r}")
    found = sums(organization, (by,), start, end, members=members, team_id=team_id)
    if by in _CALENDAR:
        zone = ZoneInfo(organization.timezone)
        empty = [0] * len(rollups.AMOUNTS)
        return [UsageSum(name, *found.get((name,), empty)) for _, name in calendar(by, start, end, zone)]
    rows = [UsageSum(group, *amounts) for (group,), amounts in found.items()]
    return sorted(rows, key=lambda one: (-one.credits, str(one.group)))


def sums(
    organization: Organization,
    by: Sequence[str],
    start: datetime,
    end: datetime,
    *,
    members: Sequence[int] | None = None,
    team_id: int | None = None,
    amounts: Sequence[str] = rollups.AMOUNTS,
) -> dict[Groups, list[int]]:
    """These of rollups.AMOUNTS by each combination of groups that has any, as `usage_by` counts them. Fewer are summed quicker."""
    zone = ZoneInfo(organization.timezone)
    whole_start, whole_end = rollups.next_hour(start, zone), rollups.hour_of(end, zone)
    if start < whole_start or whole_end < end:
        # Where retention took the log, a cut hour counts whole, in the time that its first second lies in.
        since = partitions.complete_since()
        if start < since:
            start = whole_start
        if whole_end < end and whole_end < since:
            whole_end = end = rollups.next_hour(end, zone)
    calendars = {name: calendar(name, start, end, zone) for name in by if name in _CALENDAR}
    found: dict[Groups, list[int]] = defaultdict(lambda: [0] * len(amounts))
    if whole_start < whole_end:
        for row in _of_buckets(organization, by, whole_start, whole_end, calendars, members, team_id, amounts):
            found[_named(row[: len(by)], by, calendars)] = list(row[len(by) :])
    places = [rollups.AMOUNTS.index(name) for name in amounts]
    cut = [(start, min(end, whole_start)), (max(start, whole_end), end)] if whole_start <= whole_end else [(start, end)]
    for cut_start, cut_end in cut:
        if cut_start >= cut_end:
            continue
        for group, logged in rollups.of_log(organization.pk, cut_start, cut_end).items():
            values = dict(zip(rollups.GROUP, group, strict=True))
            if (members is not None and values["member_id"] not in members) or team_id not in (None, values["team_id"]):
                continue
            kept = found[_named([_value(name, values, calendars, cut_start) for name in by], by, calendars)]
            for index, place in enumerate(places):
                kept[index] += logged[place]
    return {group: summed for group, summed in found.items() if any(summed)}


Calendar = Sequence[tuple[datetime, str]]


def _of_buckets(
    organization: Organization,
    by: Sequence[str],
    start: datetime,
    end: datetime,
    calendars: Mapping[str, Calendar],
    members: Sequence[int] | None,
    team_id: int | None,
    amounts: Sequence[str],
) -> list[tuple[Any, ...]]:
    groups = ", ".join("width_bucket(hour, %s::timestamptz[]) - 1" if name in _CALENDAR else _COLUMNS[name] for name in by)
    parameters: list[Any] = [[begins for begins, _ in calendars[name]] for name in by if name in _CALENDAR]
    where = "organization_id = %s AND hour >= %s AND hour < %s"
    values: list[Any] = [organization.pk, start, end]
    if members is not None:
        where, values = f"{where} AND member_id = ANY(%s::bigint[])", [*values, list(members)]
    if team_id is not None:
        where, values = f"{where} AND team_id = %s", [*values, team_id]
    rows_of = f"billing_usagehour WHERE {where}"
    if calendars and not {"member", "key"} & set(by):
        # The day of an hour is dear to find: once for an hour and group, not for every row. With members there are too many groups.
        within = ", ".join(["hour", *(_COLUMNS[name] for name in by if name not in _CALENDAR)])
        parts = ", ".join(f"SUM({name}) AS {name}" for name in amounts)
        rows_of = f"(SELECT {within}, {parts} FROM {rows_of} GROUP BY {within}) AS hours"  # noqa: S608
    sums_of = ", ".join(f"SUM({name})::bigint" for name in amounts)
    statement = f"""
        SELECT {groups}, {sums_of} FROM {rows_of}
        GROUP BY {", ".join(str(number + 1) for number in range(len(by)))}
    """  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(statement, [*parameters, *values])
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _value(name: str, values: Mapping[str, Any], calendars: Mapping[str, Calendar], at: datetime) -> Any:
    if name not in _CALENDAR:
        return values[_COLUMNS[name]]
    return bisect_right([begins for begins, _ in calendars[name]], at) - 1


def _named(values: Sequence[Any], by: Sequence[str], calendars: Mapping[str, Calendar]) -> Groups:
    """A bucket stores 0 for no team and for no account."""
    return tuple(
        calendars[name][value][1] if name in _CALENDAR else (value or None) for name, value in zip(by, values, strict=True)
    )


def calendar(by: str, start: datetime, end: datetime, zone: ZoneInfo) -> Calendar:
    """The days or weeks that [start, end) touches: first instant and ISO date (a week's is its Monday's)."""
    day, step = day_of(start, zone), timedelta(days=1)
    if by == "week":
        day, step = day - timedelta(days=day.weekday()), timedelta(days=7)
    found = []
    while (begins := periods.day_start(day, zone)) < end:
        found.append((begins, day.isoformat()))
        day += step
    return found


def day_of(moment: datetime, zone: ZoneInfo) -> date:
    """The organization's day that had begun last. Not always the date on its clock: that may be turned back over midnight."""
    day = moment.astimezone(zone).date()
    while moment < periods.day_start(day, zone):
        day -= timedelta(days=1)
    while moment >= periods.day_start(day + timedelta(days=1), zone):
        day += timedelta(days=1)
    return day


def rows(
    organization: Organization, start: datetime, end: datetime, *, members: Sequence[int] | None = None
) -> Iterator[dict[str, Any]]:
    """The usage log's rows of [start, end), oldest first, under the columns' names; credits as decimal strings, times as ISO 8601.

    Beside the ids stand readable names: `organization` (slug), `team` (name), `member` (e-mail, or the name that is left of a
    former one), `key` (public id). Read in pages, however many there are.
    """
    found = UsageRecord.objects.for_organization(organization).filter(admitted_at__gte=start, admitted_at__lt=end)
    if members is not None:
        found = found.filter(member_id__in=list(members))
    teams = team_names(organization)
    names, public_ids = member_names(organization), key_public_ids(organization)
    for values in found.order_by("admitted_at", "id").values().iterator(chunk_size=2000):
        row: dict[str, Any] = dict(values)
        row.update((name, credits.text(row[name])) for name in CREDIT_COLUMNS)
        row["lines"] = [{**line, "credits": credits.text(line["credits"])} for line in row["lines"]]
        row.update((name, value.isoformat()) for name, value in row.items() if isinstance(value, datetime))
        row["organization"] = organization.slug
        row["team"] = teams.get(row["team_id"])
        row["member"] = names[row["member_id"]]
        row["key"] = public_ids[row["key_id"]]
        yield row


def team_names(organization: Organization) -> Mapping[int, str]:
    """Name by team id."""
    return dict(Team.objects.filter(organization=organization).values_list("pk", "name"))


def member_names(organization: Organization) -> Mapping[int, str]:
    """E-mail by member id; of a former member the name that is left."""
    members = Member.objects.for_organization(organization).select_related("user")
    return {member.pk: member.user.email if member.user is not None else str(member) for member in members}


def key_public_ids(organization: Organization) -> Mapping[int, str]:
    """Public id by key id."""
    return dict(ApiKey.objects.for_organization(organization).values_list("pk", "public_id"))
