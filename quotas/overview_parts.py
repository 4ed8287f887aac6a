"""What the overview tells besides usage: what was refused, and how close the ones who use most are to a limit of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db.models import Sum
from django.db.models.functions import TruncDate
from django.utils.translation import gettext as _

from accounts import display, permissions
from accounts.models import Member, Organization
from accounts.permissions import Action, Reach
from billing import overview, reports
from billing.models import SubscriptionPeriod
from billing.overview import Spender, Whose
from quotas import remaining, request_log, request_told
from quotas.alerts import audience, wording
from quotas.alerts.board import MOST_OPEN
from quotas.alerts.models import Alert
from quotas.alerts.wording import Words
from quotas.errors import Degraded, NoActivePlan, Stale
from quotas.models import Limit, Refusal
from quotas.remaining import RATES, Meter
from quotas.standing import PlanState

TOP = 2
PERIOD, LAST, MONTH = "period", "last", "30d"
MONTH_DAYS = 30
SHOWN_RESETS = 5


@dataclass(frozen=True, slots=True)
class Chosen:
    """The time that is shown: days of the organization's calendar, both included. `offered` are the names to choose from."""

    name: str
    days: Sequence[date]
    offered: Sequence[tuple[str, str]]


def chosen(wanted: str, organization: Organization, plan: PlanState | None, zone: ZoneInfo, now: datetime) -> Chosen:
    """By the name in the address; what is not offered is the last 30 days. One query, where there is a plan."""
    today = reports.day_of(now, zone)
    month = [today - timedelta(days=MONTH_DAYS - 1 - index) for index in range(MONTH_DAYS)]
    spans: dict[str, tuple[date, date]] = {}
    if plan is not None:
        start = datetime.fromtimestamp(plan.starts_at, UTC)
        spans[PERIOD] = (reports.day_of(start, zone), today)
        rows = SubscriptionPeriod.objects.filter(organization=organization, subscription__member=None, ends_at__lte=start)
        before = rows.order_by("-starts_at").values_list("starts_at", "ends_at").first()
        if before is not None:
            last = reports.day_of(before[1] - timedelta(seconds=1), zone)
            spans[LAST] = (reports.day_of(before[0], zone), last)
    names = {PERIOD: _("This period"), LAST: _("Last period"), MONTH: _("30 days")}
    offered = [(name, names[name]) for name in (*spans, MONTH)]
    if wanted not in spans:
        return Chosen(MONTH, month, offered)
    first, last = spans[wanted]
    count = min((last - first).days + 1, overview.MOST_CHOSEN)
    return Chosen(wanted, [last - timedelta(days=count - 1 - index) for index in range(count)], offered)


@dataclass(frozen=True, slots=True)
class PoolReset:
    """A weekly window that comes back: whose, when, what is left of it, and micro-credits that come back."""

    label: str
    at: datetime
    percent: int
    back: int


@dataclass(frozen=True, slots=True)
class PoolLook:
    """Micro-credits of the pool's weekly windows, as plans are taken to carry. `is_known` False: nobody can say now."""

    left: int
    size: int
    resets: Sequence[PoolReset]
    is_known: bool

    @property
    def percent(self) -> int:
        return display.percent_left(self.left, self.size)

    @property
    def level(self) -> str:
        return display.level(self.left, self.size)

    @property
    def share(self) -> str:
        return display.share(self.left, self.size)


FindPool = Callable[[int, datetime], PoolLook | None]
_find_pool: list[FindPool] = []


def register_pool(find: FindPool) -> None:
    """`find(organization_id, now)` says how the organization's own pool stands; routing knows, and quotas does not know routing."""
    _find_pool[:] = [find]


def pool(reader: Member, *, now: datetime) -> PoolLook | None:
    """For who sees the pool."""
    if permissions.reach(reader, Action.SEE_POOL) is Reach.NONE or not _find_pool:
        return None
    return _find_pool[0](reader.organization_id, now)


@dataclass(frozen=True, slots=True)
class Strip:
    """What is open, the worst of it in words."""

    count: int
    words: Words
    is_urgent: bool
    told_at: datetime


def strip(reader: Member, *, now: datetime) -> Strip | None:
    """One query; None where nothing is open."""
    if permissions.reach(reader, Action.SEE_ALERTS) is Reach.NONE:
        return None
    rows = Alert.objects.for_organization(reader.organization).filter(audience.visible(reader)).select_related(*audience.RELATED)
    found = list(rows.open()[:MOST_OPEN])
    if not found:
        return None
    worst = min(found, key=lambda row: (row.kind not in wording.URGENT, -row.line, -row.told_at.timestamp()))
    return Strip(len(found), wording.words(worst, reader=reader, now=now), worst.kind in wording.URGENT, worst.told_at)


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
    return RefusedToday(
        [int(by_day.get(day) or 0) for day in days],
        [_("%(count)s by %(reason)s") % {"count": display.count(count), "reason": said} for said, count in top],
    )


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
