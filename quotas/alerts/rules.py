"""What may be told: everything that holds of an organization now, by rule. One that cannot be asked leaves the others alone."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db.models import Count, Max, Q, Sum

from accounts.models import Organization
from billing import periods, reports
from billing.models import UsageRecord
from quotas.alerts import burning, lines
from quotas.alerts.found import Found
from quotas.alerts.models import Alert
from quotas.errors import Degraded, NoActivePlan, Stale
from quotas.models import Drift, Refusal

logger = logging.getLogger(__name__)

LOOK_BACK_DAYS = 2
"""What was written late, by a drain that stood still over midnight, is told too."""
MOST_MODELS = 20


@dataclass(frozen=True, slots=True)
class Trouble:
    """An upstream account that needs a person. `since`: when it was found out, another moment each time."""

    uuid: str
    label: str
    reason: str
    is_sign_in: bool
    since: datetime


@dataclass(slots=True)
class Holding:
    """What holds now, and of which kinds that is all there is: what could not be asked is not over."""

    found: list[Found] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)


_troubles: list[Callable[[int], Sequence[Trouble]]] = []


def register_troubles(find: Callable[[int], Sequence[Trouble]]) -> None:
    """Whom to ask for an organization's accounts that need a person; quotas does not know them."""
    _troubles[:] = [find]


def holding(organization: Organization, *, now: datetime, is_thorough: bool = True) -> Holding:
    """Everything that holds at `now`; without `is_thorough`, only what changes from one minute to the next."""
    holds = Holding()

    def ask(kinds: set[str], find: Callable[[], Sequence[Found]]) -> None:
        try:
            holds.found += find()
        except (Degraded, NoActivePlan, Stale) as error:
            logger.info("alerts not looked for", extra={"organization_id": organization.pk, "reason": error.code})
        else:
            holds.kinds |= kinds

    ask({Alert.Kind.LIMIT, Alert.Kind.QUOTA}, lambda: lines.find(organization, now=now))
    ask({Alert.Kind.ANOMALY}, lambda: burning.anomalies(organization, now=now))
    ask({Alert.Kind.IMPLAUSIBLE}, lambda: _implausible(organization, now))
    ask({Alert.Kind.DRIFT}, lambda: _drift(organization, now))
    ask({Alert.Kind.NO_ACCOUNT}, lambda: _unserved(organization, now))
    ask({Alert.Kind.ACCOUNT}, lambda: _accounts(organization))
    if is_thorough:
        ask({Alert.Kind.OVERAGE}, lambda: burning.overages(organization, now=now))
    return holds


def _days(organization: Organization, now: datetime) -> list[tuple[str, datetime, datetime]]:
    """The days that are looked back at, the oldest first: as a period, and [start, end)."""
    zone = ZoneInfo(organization.timezone)
    today = reports.day_of(now, zone)
    days = [today - timedelta(days=back) for back in range(LOOK_BACK_DAYS - 1, -1, -1)]
    ends = [periods.day_start(day + timedelta(days=1), zone) for day in days]
    return [(_day(day), periods.day_start(day, zone), end) for day, end in zip(days, ends, strict=True)]


def _day(day: date) -> str:
    return f"day:{day.toordinal()}"


def _implausible(organization: Organization, now: datetime) -> list[Found]:
    """Once a day: how many answers reported usage that cannot be. The booked amount is the hold's."""
    found = []
    for period, start, end in _days(organization, now):
        rows = UsageRecord.objects.for_organization(organization).filter(
            is_implausible=True, admitted_at__gte=start, admitted_at__lt=end
        )
        sums = rows.aggregate(requests=Count("pk"), credits=Sum("credits"))
        if sums["requests"]:
            found.append(Found(Alert.Kind.IMPLAUSIBLE, "usage", period, facts=sums))
    return found


def _drift(organization: Organization, now: datetime) -> list[Found]:
    """Once a day: what the reconciler found and stored."""
    found = []
    for period, start, end in _days(organization, now):
        rows = Drift.objects.filter(organization=organization, found_at__gte=start, found_at__lt=end)
        sums = rows.aggregate(differences=Count("pk"), standing=Count("pk", filter=Q(repaired_at=None)))
        if sums["differences"]:
            found.append(Found(Alert.Kind.DRIFT, "books", period, facts=sums))
    return found


def _unserved(organization: Organization, now: datetime) -> list[Found]:
    """Once a day and model: requests that no account of the pool can ever serve."""
    (_, start, _), *_ = _days(organization, now)
    zone = ZoneInfo(organization.timezone)
    rows = Refusal.objects.filter(organization=organization, code="no_account_available", last_at__gte=start)
    sums = (
        rows.order_by()
        .values("model")
        .annotate(refused=Sum("count"), last=Max("last_at"), message=Max("message"), members=Count("member_id", distinct=True))
    )
    return [
        Found(
            Alert.Kind.NO_ACCOUNT,
            f"model:{row['model']}",
            _day(reports.day_of(row["last"], zone)),
            facts={"model": row["model"], "refused": row["refused"], "members": row["members"], "reason": row["message"]},
        )
        for row in sums.order_by("-refused")[:MOST_MODELS]
    ]


def _accounts(organization: Organization) -> list[Found]:
    found = []
    for find in _troubles:
        for trouble in find(organization.pk):
            facts = {"account": trouble.uuid, "label": trouble.label, "reason": trouble.reason, "is_sign_in": trouble.is_sign_in}
            period = f"since:{trouble.since.timestamp():.6f}"
            found.append(Found(Alert.Kind.ACCOUNT, f"account:{trouble.uuid}", period, facts=facts))
    return found
