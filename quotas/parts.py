"""Ends of requests and their amendments, each by itself: as rows of the log, and as events that are not in it yet."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from billing.events import decode_body
from billing.models import UsageRecord
from quotas import charging
from quotas.records import Event

AT_ONCE = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Key = tuple[str, int]
"""Request id and part."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an ended request. `second`: of its admission. `base`: its records without those of filters. Micro-credits."""

    request_id: str
    part: int
    is_orphan: bool
    second: int
    ended_ms: int
    source: str
    fund_start: int
    amounts: tuple[int, int, int]
    funding: tuple[int, int, int, int]
    base: tuple[str, ...]
    model: str
    """What was asked for."""


def logged(organization_id: int, request_ids: Iterable[str], *, since: int) -> dict[Key, Part]:
    """What the log has of requests that were admitted from the second `since` on."""
    found: dict[Key, Part] = {}
    columns = ("request_id", "part", "status", "admitted_at", "ended_at", "source", "period_starts_at", "credits", "counted_tokens",
               "counted_requests", "from_quota", "from_purchased", "from_overage", "overdraft", "team_id", "member_id", "key_id",
               "model_asked")  # fmt: skip
    rows = UsageRecord.objects.filter(organization_id=organization_id, admitted_at__gte=datetime.fromtimestamp(since, UTC))
    ids = sorted(set(request_ids))
    for start in range(0, len(ids), AT_ONCE):
        for row in rows.filter(request_id__in=ids[start : start + AT_ONCE]).order_by().values_list(*columns):
            request_id, part, status, admitted, ended, source, fund_start, *amounts, team_id, member_id, key_id, model = row
            found[(request_id, part)] = Part(
                request_id=request_id,
                part=part,
                is_orphan=part == 0 and status == UsageRecord.Status.ORPHANED,
                second=int(admitted.timestamp()),
                ended_ms=(ended - _EPOCH) // timedelta(milliseconds=1),
                source=source,
                fund_start=int(fund_start.timestamp()),
                amounts=(amounts[0], amounts[1], amounts[2]),
                funding=(amounts[3], amounts[4], amounts[5], amounts[6]),
                base=charging.base_names(team_id, member_id, key_id),
                model=model,
            )
    return found


def undrained(events: Iterable[Event], known: dict[Key, Part]) -> list[Part]:
    """What the log will have more once these events are drained, in their order; each part once. They are added to `known`, which
    is what the log has of their requests."""
    added: list[Part] = []
    for event in events:
        one = _of_event(event)
        first = known.get((one.request_id, 0))
        if one.part == 0 and not one.is_orphan and first is not None and first.is_orphan:
            # A settlement that was only logged meets its orphan: the drain stores the difference.
            one = _amendment(one, first)
        key = (one.request_id, one.part)
        if key not in known:
            known[key] = one
            added.append(one)
    return added


def _of_event(event: Event) -> Part:
    """Counted where its row will say, also if it was admitted before a filter was made."""
    try:
        model: str = decode_body(event.body).model_asked
    except msgspec.MsgspecError:
        model = ""
    return Part(
        request_id=event.request_id,
        part=event.part,
        is_orphan=event.part == 0 and event.state == "O",
        second=event.admitted_s,
        ended_ms=event.ended_ms,
        source=event.source,
        fund_start=event.fund_start,
        amounts=(event.credits, event.tokens, event.requests),
        funding=(event.plan, event.purchased, event.overage, event.overdraft),
        base=tuple(name for name in event.records if "~" not in name),
        model=model[:120],
    )


def _amendment(settled: Part, orphan: Part) -> Part:
    c, t, n = (one - other for one, other in zip(settled.amounts, orphan.amounts, strict=True))
    plan, purchased, overage, overdraft = (one - other for one, other in zip(settled.funding, orphan.funding, strict=True))
    return replace(settled, part=1, amounts=(c, t, n), funding=(plan, purchased, overage, overdraft))
