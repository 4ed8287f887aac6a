"""Views: the question an admission puts to the engine, built from a snapshot for one key and one day.

A request is counted in the records of its organization, team, member and key, whether or not a limit looks at them, and draws on
one source: the member's seat, else the organization's subscription.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.translation import gettext

from config.snapshot import Snapshot
from quotas import charging, errors, records, windows
from quotas.engine import MOST, UNLIMITED
from quotas.records import Question, RecordView, Terms
from quotas.snapshots import FilterSnapshot, LimitSnapshot

METRICS = {
    "credits": records.CREDITS,
    "tokens": records.TOKENS,
    "requests": records.REQUESTS,
    "requests_per_second": records.PER_SECOND,
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
    amount: int
    """Boosts included."""
    is_starting: bool = False
    """Its filter is not filled yet: told, but nothing is refused by it."""
    seconds: int = 0
    """How long its window is (`windows.seconds`); 0 for rates and concurrency."""
    told: int | None = None
    """Where admit tells what it has used (`standing.Told`); None where it does not."""


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
    key_record: str
    member_record: str
    plan_record: str
    """The record of what the plan paid in a rolling window; "" where the plan has none."""
    is_plan_rolling: bool
    """Is the quota a rolling limit too, enforced by now?"""

    def holds_at(self, second: int) -> bool:
        return self.valid_from <= second < self.valid_until


def view_for(snapshot: Snapshot, key: Any, now_s: int, model: str | None = None) -> View:
    """The view of a key (a KeySnapshot) at a unix second; cached in the snapshot. `model` is what was asked for; None, as pages
    ask, shows the limits of every filter. Raises NoActivePlan."""
    filters = charging.matching(snapshot, model, now_s)
    name = ("quotas.view", key.key_id, tuple(one.filter_id for one in filters))
    cached: View | None = snapshot.memo.get(name)
    if cached is not None and cached.holds_at(now_s):
        return cached
    made = _build(snapshot, key, now_s, filters)
    snapshot.memo[name] = made
    return made


def source_of(subscription: Any) -> str:
    """`o`, or `m<id>` for a member's seat."""
    return "o" if subscription.member_id is None else f"m{subscription.member_id}"


def terms_of(subscription: Any, start_s: int) -> Terms:
    """What its period that began at a unix second grants."""
    start = datetime.fromtimestamp(start_s, UTC)
    now = subscription.at(start)
    return Terms(quota=now.quota_at(start), is_purchased_allowed=now.overage_policy == PURCHASED, overage_cap=now.overage_cap)


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
    now = datetime.fromtimestamp(now_s, UTC)
    period = subscription.at(now).period_at(now)
    return int(period.start.timestamp()), int(period.end.timestamp())


def two_periods(subscription: Any, now_s: int) -> tuple[int, int]:
    """The starts of its period at a unix second and of the one before."""
    current, _ = period_of(subscription, now_s)
    previous, _ = period_of(subscription, current - 1)
    return current, previous


def _subscription(snapshot: Snapshot, key: Any) -> Any:
    shared = None
    for subscription in snapshot.billing.subscriptions:
        if subscription.member_id == key.member_id:
            return subscription
        if subscription.member_id is None:
            shared = subscription
    if shared is None:
        raise _no_plan(gettext("Your organization has no active plan. Ask its owner to choose one."))
    return shared


def _no_plan(message: str) -> errors.NoActivePlan:
    return errors.NoActivePlan(
        message,
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


def _build(snapshot: Snapshot, key: Any, now_s: int, filters: tuple[FilterSnapshot, ...]) -> View:
    subscription = _subscription(snapshot, key).at(datetime.fromtimestamp(now_s, UTC))
    if subscription.is_suspended:
        if subscription.member_id is None:
            raise _no_plan(gettext("Your organization's plan is suspended. Ask your organization's owner."))
        raise _no_plan(gettext("Your seat is suspended. Ask your organization's owner."))
    zone = ZoneInfo(snapshot.accounts.timezone)
    day = windows.day_of(now_s, zone)
    period_start, period_end = organization_period(snapshot, now_s)
    fund_start, fund_end = period_of(subscription, now_s)
    base = charging.base_names(key.team_id, key.member_id, key.key_id)
    scopes: dict[str, tuple[str, int | None]] = {"o": ("organization", None), f"t{key.team_id}": ("team", key.team_id)}
    scopes |= {f"m{key.member_id}": ("member", key.member_id), f"k{key.key_id}": ("key", key.key_id)}
    parts: list[FilterSnapshot | None] = [None, *filters]

    views: list[RecordView] = []
    asked: list[Asked] = []
    told = 0
    edges = [windows.midnight(day, zone), period_start, fund_start, windows.midnight(day + 1, zone), period_end, fund_end]
    for one in parts:
        for name in base:
            scope, target_id = scopes[name]
            own = [
                limit
                for limit in snapshot.quotas.limits
                if limit.scope == scope
                and limit.target_id == target_id
                and limit.filter_id == (None if one is None else one.filter_id)
            ]
            record = name if one is None else charging.filtered(name, one.filter_id)
            codes = sorted({windows.code_of(limit.window, day) for limit in own if limit.window not in ("", "period")})
            questions: list[Question] = []
            for limit in own:
                ends_at, position, metric = None, 0, METRICS[limit.metric]
                if limit.window == "period":
                    ends_at = period_end
                elif limit.window:
                    position = codes.index(windows.code_of(limit.window, day)) + 1
                    ends_at = windows.ends_at(limit.window, day, zone)
                amount, is_starting = min(limit.amount_at(now_s), MOST), one is not None and not one.is_filled
                edges += limit.edges()
                if limit.is_exact:
                    # One that is starting asks for nothing, and keeps its log.
                    questions.append(Question(metric + records.BY_SECOND, position, UNLIMITED if is_starting else amount))
                elif not is_starting:
                    questions.append(Question(metric, position, amount))
                is_told = metric <= records.REQUESTS and (limit.is_exact or not is_starting)
                seconds = windows.seconds(limit.window, period_end - period_start)
                asked.append(
                    Asked(limit, record, metric, position, ends_at, amount, is_starting, seconds, told if is_told else None)
                )
                told += is_told
            views.append(RecordView(record, tuple(codes), tuple(questions)))
    plan_filter = charging.plan_filter(snapshot, source_of(subscription))
    plan_record, is_plan_rolling = "", False
    if plan_filter is not None:
        # Counted as long as the filter is there; asked once it is filled, if the plan still wants it.
        plan_record = charging.plan_record(plan_filter)
        plan_metric = records.PLAN_PAID + (records.BY_SECOND if subscription.quota_strategy == "sliding_log" else 0)
        is_plan_rolling = (
            plan_filter.is_filled
            and charging.is_rolling(subscription)
            and plan_filter.window == charging.PLAN_WINDOWS[subscription.reset_period]
        )
        plan_questions: tuple[Question, ...] = ()
        if is_plan_rolling:
            plan_questions = (Question(plan_metric, 1, 0),)
        elif plan_metric > records.BY_SECOND:
            plan_questions = (Question(records.CREDITS + records.BY_SECOND, 1, UNLIMITED),)
        views.append(RecordView(plan_record, (charging.plan_code(plan_filter),), plan_questions))

    # The day, the periods and the amounts all hold between two of these moments.
    valid_from = max(edge for edge in edges if edge <= now_s)
    valid_until = min(edge for edge in edges if edge > now_s)
    terms = terms_of(subscription, fund_start)
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
        key_record=base[-1],
        member_record=base[-2],
        plan_record=plan_record,
        is_plan_rolling=is_plan_rolling,
    )
