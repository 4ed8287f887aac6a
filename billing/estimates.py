"""How good the estimates were by which requests were held: read from the usage log, by model."""

from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from accounts.models import Organization

# Real counts only: an estimate of an estimate says nothing. Free requests have nothing to be wrong by.
QUERY = """
    SELECT model_asked, count(*), count(*) FILTER (WHERE held < credits),
        percentile_disc(ARRAY[0.5, 0.9, 0.99]) WITHIN GROUP (ORDER BY held * 1000 / credits),
        COALESCE(sum(credits - held) FILTER (WHERE held < credits), 0), sum(credits), sum(held)
    FROM billing_usagerecord
    WHERE organization_id = %s AND admitted_at >= %s AND admitted_at < %s
        AND part = 0 AND held IS NOT NULL AND credits > 0 AND NOT is_estimated AND NOT is_implausible
    GROUP BY model_asked ORDER BY sum(credits) DESC, model_asked
"""


@dataclass(frozen=True, slots=True)
class EstimateError:
    """Of one model. `ratio_thousandths`: held over cost at the 50th, 90th and 99th percentile; 1000 is exact.

    `short` requests cost more than was held, by `short_credits` micro-credits together: what limits may be passed by.
    """

    model: str
    requests: int
    short: int
    ratio_thousandths: tuple[int, int, int]
    short_credits: int
    credits: int
    held: int


def errors(organization: Organization, start: datetime, end: datetime) -> list[EstimateError]:
    """For requests admitted in [start, end), the dearest model first."""
    with connection.cursor() as cursor:
        cursor.execute(QUERY, [organization.pk, start, end])
        return [
            EstimateError(model, requests, short, (ratios[0], ratios[1], ratios[2]), int(over), int(cost), int(held))
            for model, requests, short, ratios, over, cost, held in cursor.fetchall()
        ]
