"""Usage events as the engine makes them."""

from datetime import UTC, datetime
from itertools import count
from typing import Any

from accounts.models import ApiKey, Organization
from billing.events import Body, PriceLine, UsageEvent
from billing.models import Subscription
from billing.subscriptions import period_of
from config.clock import utc_now
from tests.factories import unique

_numbers = count(1)


def line(model: str = "gpt-5.4", **fields: Any) -> PriceLine:
    return PriceLine(model=model, **fields)


def event_for(
    key: ApiKey,
    *,
    credits: int = 100,
    tokens: int = 50,
    requests: int = 1,
    part: int = 0,
    state: str = "S",
    admitted_at: datetime | None = None,
    request_id: str | None = None,
    funds: tuple[int, int, int, int] | None = None,
    source: str = "o",
    period_start: datetime | None = None,
    outcome: str = "OK",
    **body: Any,
) -> UsageEvent:
    """An event of `key`, by default settled from the quota of the organization's current period."""
    at = admitted_at or utc_now()
    if period_start is None:
        subscription = (
            Subscription.objects.for_organization(Organization.objects.get(pk=key.organization_id)).active().get(member=None)
        )
        period_start = period_of(subscription, at).start
    number = next(_numbers)
    quota, purchased, overage, overdraft = funds or (credits, 0, 0, 0)
    fields: dict[str, Any] = {
        "member_id": key.member_id,
        "key_id": key.pk,
        "model_asked": "gpt-5.4",
        "status": "orphaned" if state == "O" else "ok",
    }
    return UsageEvent(
        request_id=request_id or unique("req"),
        part=part,
        state=state,
        admitted_at=int(at.timestamp()),
        ended_ms=int(at.timestamp()) * 1000 + 1234,
        credits=credits,
        tokens=tokens,
        requests=requests,
        from_quota=quota,
        from_purchased=purchased,
        from_overage=overage,
        overdraft=overdraft,
        source=source,
        period_start=int(period_start.astimezone(UTC).timestamp()),
        stream_id=f"{int(at.timestamp()) * 1000}-{number}",
        body=Body(**{**fields, **body}),
        outcome=outcome,
    )
