"""What members used lately, and in each hour in which they used anything. Micro-credits; from the hourly sums, and the log where
an hour is cut."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from django.db.models import Sum

from accounts.models import Organization
from billing import reports, rollups
from billing.models import UsageHour


def spent(organization: Organization, start: datetime, end: datetime) -> Mapping[int, int]:
    """What each member used in [start, end), for those who used anything that cost."""
    sums = reports.sums(organization, ("member",), start, end, amounts=("credits",))
    return {int(member or 0): credits for (member,), (credits,) in sums.items() if credits > 0}


def by_member(organization: Organization, start: datetime, end: datetime, *, members: Sequence[int]) -> Mapping[int, list[int]]:
    """The active hours of each, as the organization's clock cuts them, that begin in [start, end) and end by `end`; in order."""
    last = rollups.hour_of(end, ZoneInfo(organization.timezone))
    rows = (
        UsageHour.objects.filter(organization=organization, member_id__in=members, hour__gte=start, hour__lt=last)
        .order_by("member_id", "hour")
        .values("member_id", "hour")
        .annotate(spent=Sum("credits"))
    )
    found: dict[int, list[int]] = {}
    for row in rows:
        if row["spent"] > 0:
            found.setdefault(row["member_id"], []).append(row["spent"])
    return found
