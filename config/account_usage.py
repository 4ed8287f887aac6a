"""What upstream accounts carried, for the pool's page: here, because routing does not know billing."""

from collections import defaultdict
from datetime import date, timedelta
from zoneinfo import ZoneInfo

from accounts.models import Organization
from billing import periods, reports
from routing.carried import ByDay


def find(organization: Organization, first: date, last: date) -> ByDay:
    """Micro-credits by account id and day, of what was admitted on these days, both included. One query."""
    zone = ZoneInfo(organization.timezone)
    start, end = periods.day_start(first, zone), periods.day_start(last + timedelta(days=1), zone)
    found: dict[int, dict[date, int]] = defaultdict(dict)
    for (account, day), (credits,) in reports.sums(organization, ("account", "day"), start, end, amounts=("credits",)).items():
        if account is not None:
            found[int(account)][date.fromisoformat(str(day))] = credits
    return found
