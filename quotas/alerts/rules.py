"""What may be told: everything that holds of an organization now, by rule. One that cannot be asked leaves the others alone."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.db.models import Count, Max, Sum

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


def _since(organization: Organization, now: datetime) -> datetime:
    """The midnight that begins what is looked back at."""
    zone = ZoneInfo(organization.timezone)
    return periods.day_start(reports.day_of(now, zone) - timedelta(days=LOOK_BACK_DAYS - 1), zone)


def _day(organization: Organization, moment: datetime) -> str:
    return f"day:{reports.day_of(moment, ZoneInfo(organization.timezone)).toordinal()}"


def _implausible(organization: Organization, now: datetime) -> list[Found]:
    """Once a day: how many answers reported usage that cannot be. The booked amount is the hold's."""
    rows = UsageRecord.objects.for_organization(organization).filter(
        is_implausible=True, admitted_at__gte=_since(organization, now)
    )
    days: dict[str, list[int]] = {}
    for at, credits in rows.values_list("admitted_at", "credits"):
        counted = days.setdefault(_day(organization, at), [0, 0])
        counted[0] += 1
        counted[1] += credits
    return [
        Found(Alert.Kind.IMPLAUSIBLE, "usage", day, facts={"requests": count, "credits": credits})
        for day, (count, credits) in sorted(days.items())
    ]


def _drift(organization: Organization, now: datetime) -> list[Found]:
    """Once a day: what the reconciler found and stored."""
    rows = Drift.objects.filter(organization=organization, found_at__gte=_since(organization, now))
    days: dict[str, list[int]] = {}
    for at, repaired_at in rows.order_by().values_list("found_at", "repaired_at"):
        counted = days.setdefault(_day(organization, at), [0, 0])
        counted[0] += 1
        counted[1] += repaired_at is None
    return [
        Found(Alert.Kind.DRIFT, "books", day, facts={"differences": count, "standing": standing})
        for day, (count, standing) in sorted(days.items())
    ]


def _unserved(organization: Organization, now: datetime) -> list[Found]:
    """Once a day and model: requests that no account of the pool can ever serve."""
    rows = Refusal.objects.filter(organization=organization, code="no_account_available", last_at__gte=_since(organization, now))
    sums = (
        rows.order_by()
        .values("model")
        .annotate(refused=Sum("count"), last=Max("last_at"), message=Max("message"), members=Count("member_id", distinct=True))
    )
    return [
        Found(
            Alert.Kind.NO_ACCOUNT,
            f"model:{row['model']}",
            _day(organization, row["last"]),
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
