"""What the overview tells besides usage: what was refused, and how close the ones who use most are to a limit of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

from django.db.models import Sum
from django.db.models.functions import TruncDate

from accounts.models import Member, Organization
from billing import overview
from billing.overview import Spender, Whose
from quotas import remaining, request_log, request_told
from quotas.errors import Degraded, NoActivePlan, Stale
from quotas.models import Limit, Refusal
from quotas.remaining import RATES, Meter

TOP = 2


@dataclass(frozen=True, slots=True)
class RefusedToday:
    """`days`: requests refused on each day, the last is today. `reasons`: today's largest, `20 by 60 / min`."""

    days: Sequence[int]
    reasons: Sequence[str]

    @property
    def today(self) -> int:
        return self.days[-1]


def refused_today(whose: Whose, days: Sequence[date], zone: ZoneInfo) -> RefusedToday:
    """In the reach of `whose`. Two queries."""
    rows = request_log.refusals(whose).order_by()
    since = overview.midnight(days[0], zone)
    by_day = dict(
        rows.filter(last_at__gte=since)
        .annotate(day=TruncDate("last_at", tzinfo=zone))
        .values_list("day")
        .annotate(count=Sum("count"))
    )
    facts = ("code", "scope", "metric", "window", "limit")
    today = rows.filter(last_at__gte=overview.midnight(days[-1], zone)).values(*facts).annotate(refused=Sum("count"))
    reasons: dict[str, int] = {}
    for group in today:
        said = request_told.refused_briefly(Refusal(**{name: group[name] for name in facts}))
        reasons[said] = reasons.get(said, 0) + group["refused"]
    top = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))[:TOP]
    return RefusedToday([int(by_day.get(day) or 0) for day in days], [f"{count:,} by {said}" for said, count in top])


def tightest(organization: Organization, spenders: Sequence[Spender], *, now: datetime) -> Mapping[int, Meter]:
    """By member id the limit of their own with the least share left, of those that do not come back within a minute. Two queries
    and a few reads of the counters; nothing while these cannot be read."""
    ids = [one.member_id for one in spenders]
    limits = Limit.objects.filter(organization=organization, scope=Limit.Scope.MEMBER, member_id__in=ids).exclude(metric__in=RATES)
    owners = {str(limit.uuid): limit.member_id for limit in limits}
    if not owners:
        return {}
    members = Member.objects.for_organization(organization).filter(pk__in=set(owners.values())).select_related("user", "team")
    try:
        meters = remaining.of_everybody(organization, members=list(members), team_ids=(), now=now).meters
    except (NoActivePlan, Degraded, Stale):
        return {}
    found: dict[int, Meter] = {}
    for uuid, member_id in owners.items():
        meter = meters.get(uuid)
        if meter is None or member_id is None:
            continue
        held = found.get(member_id)
        if held is None or _share(meter) < _share(held):
            found[member_id] = meter
    return found


def _share(meter: Meter) -> int:
    return meter.left * 10**6 // max(1, meter.limit)
