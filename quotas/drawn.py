"""What was drawn on a quota on each of the last complete days: what forecasts are made from."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from accounts.models import Organization
from billing import periods, reports
from billing.models import Subscription
from quotas import forecast


def by_day(organization: Organization, seat_member_id: int | None, *, now: datetime) -> list[int]:
    """Micro-credits of the last forecast.DAYS complete days, the oldest first: of one seat, or of all who have no seat."""
    zone = ZoneInfo(organization.timezone)
    today = reports.day_of(now, zone)
    start, end = periods.day_start(today - timedelta(days=forecast.DAYS), zone), periods.day_start(today, zone)
    return between(organization, seat_member_id, start, end)


def between(organization: Organization, seat_member_id: int | None, start: datetime, end: datetime) -> list[int]:
    """The same of each day that [start, end) touches."""

    def of(members: list[int] | None) -> list[int]:
        return [one.credits for one in reports.usage_by(organization, "day", start, end, members=members)]

    if seat_member_id is not None:
        return of([seat_member_id])
    theirs_alone = seated(organization)
    everybody = of(None)
    return [all_of - theirs for all_of, theirs in zip(everybody, of(theirs_alone), strict=True)] if theirs_alone else everybody


def seated(organization: Organization) -> list[int]:
    """Members who draw on a seat of their own. One query."""
    seats = Subscription.objects.for_organization(organization).active().exclude(member=None)
    return [pk for pk in seats.values_list("member_id", flat=True) if pk is not None]
