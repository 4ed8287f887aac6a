"""Who burns much faster than usual, and quotas that will probably not last: from the hourly sums and the log."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from accounts.models import Member, Organization
from billing import active_hours, periods, reports
from config.snapshot import Snapshot
from quotas import drawn, forecast, remaining, views
from quotas.alerts import lines
from quotas.alerts.found import Found
from quotas.alerts.models import Alert
from quotas.remaining import Who
from quotas.standing import PlanState

HOUR = timedelta(hours=1)
DAYS = 14
TIMES = 4
"""So many times the usual hour is told."""
FEWEST_HOURS = 5
"""Below so many active hours nobody knows what is usual."""


def anomalies(organization: Organization, *, now: datetime) -> list[Found]:
    """Members whose last hour cost at least TIMES the median of their active hours of DAYS, and at least 1 % of the tightest limit.

    Two reads of the sums and two of members and limits; nothing more where nobody used anything in the last hour.
    """
    last = active_hours.spent(organization, now - HOUR, now)
    if not last:
        return []
    usual = active_hours.by_member(organization, now - timedelta(days=DAYS), now - HOUR, members=sorted(last))
    suspects = {
        member_id: hours
        for member_id, hours in usual.items()
        if len(hours) >= FEWEST_HOURS and 2 * last[member_id] >= TIMES * doubled_median(hours)
    }
    if not suspects:
        return []
    tightest = _tightest(organization, now)
    people = Member.objects.for_organization(organization).current().filter(pk__in=suspects)
    period = f"day:{reports.day_of(now, ZoneInfo(organization.timezone)).toordinal()}"
    found = []
    for member_id, team_id in people.order_by("pk").values_list("pk", "team_id"):
        least = min((tightest[one] for one in (0, team_id and -team_id, member_id) if one in tightest), default=0)
        if last[member_id] * 100 < least:
            continue
        twice = doubled_median(suspects[member_id])
        facts = {
            "credits": last[member_id],
            "usual": (twice + 1) // 2,
            # In tenths, rounded down: never said to be more than it was.
            "tenths": last[member_id] * 20 // twice,
            "hours": len(suspects[member_id]),
        }
        found.append(Found(Alert.Kind.ANOMALY, f"member:{member_id}", period, member_id=member_id, facts=facts))
    return found


def doubled_median(amounts: list[int]) -> int:
    """Twice the median of amounts above zero, which is an integer."""
    ranked = sorted(amounts)
    middle = len(ranked) // 2
    return ranked[middle] * 2 if len(ranked) % 2 else ranked[middle - 1] + ranked[middle]


def _tightest(organization: Organization, now: datetime) -> Mapping[int | None, int]:
    """The smallest limit of credits above 0: of the organization (0; its plan's quota counts too), a team (its id, negative), a
    member (its id). In micro-credits."""

    def read(loaded: Snapshot) -> dict[int | None, int]:
        second = int(now.timestamp())
        found: dict[int | None, int] = {}

        def add(who: int, amount: int) -> None:
            if amount > 0:
                found[who] = min(amount, found.get(who, amount))

        for limit in loaded.quotas.limits:
            if limit.metric == "credits" and limit.filter_id is None and limit.scope != "key":
                who = 0 if limit.target_id is None else -limit.target_id if limit.scope == "team" else limit.target_id
                add(who, limit.amount_at(second))
        for subscription in loaded.billing.subscriptions:
            start, _ = views.period_of(subscription, second)
            add(subscription.member_id or 0, views.terms_of(subscription, start).quota)
        return found

    return remaining.with_newest(organization.pk, read)


def overages(organization: Organization, *, now: datetime) -> list[Found]:
    """Quotas that the last days' burn uses up before the period ends; nothing while data is thin, and once nothing is left.

    Raises NoActivePlan, Degraded, Stale.
    """

    def read(loaded: Snapshot) -> list[tuple[int, PlanState]]:
        seats = [one.member_id for one in loaded.billing.subscriptions if one.member_id is not None]
        asked = [Who(key_id=0, member_id=0, team_id=None)]
        asked += [Who(key_id=-(2**41) - member_id, member_id=member_id, team_id=None) for member_id in seats]
        usages = remaining.usages_of(loaded, asked, int(now.timestamp()))
        return [(who.member_id, usage.plan) for who, usage in zip(asked, usages, strict=True)]

    plans = remaining.with_newest(organization.pk, read)
    seats = _seats_by_day(organization, [member_id for member_id, _ in plans if member_id], now)
    found = []
    for member_id, plan in plans:
        used = lines.quota_used(plan)
        if used >= plan.quota:
            continue
        days = forecast.since_first_use(seats[member_id] if member_id else drawn.by_day(organization, None, now=now))
        left_seconds = plan.ends_at - int(now.timestamp())
        over = forecast.overage(days, used=used, quota=plan.quota, seconds_left=left_seconds)
        if over is None or not over.expected:
            continue
        outlook = forecast.outlook(days, used=used, quota=plan.quota, seconds_left=left_seconds)
        facts = {
            "low": over.low,
            "expected": over.expected,
            "high": over.high,
            "limit": plan.quota,
            "used": used,
            "resets_at": plan.ends_at,
            "days": len(days),
            "runs_out_at": None if outlook.around is None else int(now.timestamp()) + outlook.around,
        }
        scope = lines.quota_scope(plan, member_id)
        found.append(Found(Alert.Kind.OVERAGE, scope, f"period:{plan.starts_at}", member_id=member_id or None, facts=facts))
    return found


def _seats_by_day(organization: Organization, members: list[int], now: datetime) -> Mapping[int, list[int]]:
    """What each used on each of the last complete days, as `drawn.by_day`; one query for all."""
    if not members:
        return {}
    zone = ZoneInfo(organization.timezone)
    today = reports.day_of(now, zone)
    start, end = periods.day_start(today - timedelta(days=forecast.DAYS), zone), periods.day_start(today, zone)
    sums = reports.sums(organization, ("member", "day"), start, end, members=members, amounts=("credits",))
    days = [day for _, day in reports.calendar("day", start, end, zone)]
    return {member: [sums.get((member, day), [0])[0] for day in days] for member in members}
