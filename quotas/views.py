"""Views: the question an admission puts to the engine, built from a snapshot for one key and one day.

A request is counted in the records of its organization, team, member and key, whether or not a limit looks at them, and draws on
one source: the member's seat, else the organization's subscription.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from config.snapshot import Snapshot
from quotas import errors, records, windows
from quotas.records import Question, RecordView, Terms
from quotas.snapshots import LimitSnapshot

METRICS = {
    "credits": records.CREDITS,
    "tokens": records.TOKENS,
    "requests": records.REQUESTS,
    "requests_per_minute": records.PER_MINUTE,
    "concurrent": records.CONCURRENT,
}
METRIC_NAMES = {number: name for name, number in METRICS.items()}
POSTPAID = "postpaid"
PURCHASED = "purchased"


@dataclass(frozen=True, slots=True)
class Asked:
    """A limit of the view: its record and where the record's answer stands."""

    limit: LimitSnapshot
    record: str
    metric: int
    position: int
    ends_at: int | None
    """When its calendar window or the plan period ends (unix seconds); None for rolling windows, rates, concurrency."""


@dataclass(frozen=True, slots=True)
class View:
    """What admit is asked, for `valid_from <= second < valid_until`; seconds are unix seconds, amounts micro-credits."""

    packed: bytes = field(repr=False)
    valid_from: int
    valid_until: int
    source: str
    subject: str
    """Whose plan it is: "organization" or "member"."""
    plan: str
    fund_start: int
    fund_end: int
    terms: Terms
    is_postpaid: bool
    period_start: int
    period_end: int
    names: tuple[str, ...]
    asked: tuple[Asked, ...]

    def holds_at(self, second: int) -> bool:
        return self.valid_from <= second < self.valid_until


def view_for(snapshot: Snapshot, key: Any, now_s: int) -> View:
    """The view of a key (a KeySnapshot) at a unix second; cached in the snapshot. Raises NoActivePlan."""
    cached: View | None = snapshot.memo.get(("quotas.view", key.key_id))
    if cached is not None and cached.holds_at(now_s):
        return cached
    made = _build(snapshot, key, now_s)
    snapshot.memo[("quotas.view", key.key_id)] = made
    return made


def source_of(subscription: Any) -> str:
    """`o`, or `m<id>` for a member's seat."""
    return "o" if subscription.member_id is None else f"m{subscription.member_id}"


def terms_of(subscription: Any) -> Terms:
    """What a period of it grants. Overage by invoice has no cap yet, so none is granted."""
    return Terms(quota=subscription.quota, is_purchased_allowed=subscription.overage_policy == PURCHASED)


def organization_period(snapshot: Snapshot, now_s: int) -> tuple[int, int]:
    """The plan period that records are totalled by: the organization's subscription's, else the calendar month.

    Not the seat's: the organization's record is shared by members with different seats.
    """
    for subscription in snapshot.billing.subscriptions:
        if subscription.member_id is None:
            return period_of(subscription, now_s)
    zone = ZoneInfo(snapshot.accounts.timezone)
    today = windows.day_of(now_s, zone)
    return windows.midnight(windows.first_day("month", today), zone), windows.midnight(windows.next_day("month", today), zone)


def period_of(subscription: Any, now_s: int) -> tuple[int, int]:
    """[start, end) of its period at a unix second, in unix seconds."""
    period = subscription.period_at(datetime.fromtimestamp(now_s, UTC))
    return int(period.start.timestamp()), int(period.end.timestamp())


def _subscription(snapshot: Snapshot, key: Any) -> Any:
    shared = None
    for subscription in snapshot.billing.subscriptions:
        if subscription.member_id == key.member_id:
            return subscription
        if subscription.member_id is None:
            shared = subscription
    if shared is None:
        raise errors.NoActivePlan(
            "Your organization has no active plan. Ask its owner to choose one.",
            scope="plan",
            scope_name="",
            metric="credits",
            window="period",
            limit=0,
            used=0,
            held=0,
            need=0,
            resets_at=None,
            retry_after=60,
            shown={"limit": "0", "used": "0", "held": "0"},
        )
    return shared


def _build(snapshot: Snapshot, key: Any, now_s: int) -> View:
    subscription = _subscription(snapshot, key)
    zone = ZoneInfo(snapshot.accounts.timezone)
    day = windows.day_of(now_s, zone)
    period_start, period_end = organization_period(snapshot, now_s)
    fund_start, fund_end = period_of(subscription, now_s)
    targets: list[tuple[str, str, int | None]] = [("o", "organization", None)]
    if key.team_id is not None:
        targets.append((f"t{key.team_id}", "team", key.team_id))
    targets += [(f"m{key.member_id}", "member", key.member_id), (f"k{key.key_id}", "key", key.key_id)]

    views: list[RecordView] = []
    asked: list[Asked] = []
    for name, scope, target_id in targets:
        own = [limit for limit in snapshot.quotas.limits if limit.scope == scope and limit.target_id == target_id]
        codes = sorted({windows.code_of(limit.window, day) for limit in own if limit.window not in ("", "period")})
        questions: list[Question] = []
        for limit in own:
            ends_at, position = None, 0
            if limit.window == "period":
                ends_at = period_end
            elif limit.window:
                position = codes.index(windows.code_of(limit.window, day)) + 1
                ends_at = windows.ends_at(limit.window, day, zone)
            questions.append(Question(METRICS[limit.metric], position, limit.amount))
            asked.append(Asked(limit, name, METRICS[limit.metric], position, ends_at))
        views.append(RecordView(name, tuple(codes), tuple(questions)))

    valid_from = max(windows.midnight(day, zone), period_start, fund_start)
    valid_until = min(windows.midnight(day + 1, zone), period_end, fund_end)
    terms = terms_of(subscription)
    packed = records.pack_view(
        version=snapshot.version,
        day=day,
        valid_from=valid_from,
        valid_until=valid_until,
        period_start=period_start,
        source=source_of(subscription),
        fund_start=fund_start,
        terms=terms,
        records=views,
    )
    return View(
        packed=packed,
        valid_from=valid_from,
        valid_until=valid_until,
        source=source_of(subscription),
        subject="organization" if subscription.member_id is None else "member",
        plan=subscription.plan_slug,
        fund_start=fund_start,
        fund_end=fund_end,
        terms=terms,
        is_postpaid=subscription.charging_mode == POSTPAID,
        period_start=period_start,
        period_end=period_end,
        names=tuple(view.name for view in views),
        asked=tuple(asked),
    )
