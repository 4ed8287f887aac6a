"""80, 95 and 100 % of every limit and of every quota that is drawn on, from the counters.

What running requests hold is not counted: a line that was told must not turn out to be wrong. Rates and requests at once are no
amounts that are used up, and are left out.
"""

from collections.abc import Iterator
from datetime import datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from accounts.models import ApiKey, Member, Organization
from config.snapshot import Snapshot
from quotas import remaining, views, windows
from quotas.alerts.found import Found, line_of
from quotas.alerts.models import Alert
from quotas.remaining import RATES, Who
from quotas.standing import LimitState, PlanState, Usage
from quotas.windows import ROLLING_SECONDS


def find(organization: Organization, *, now: datetime) -> list[Found]:
    """Every limit and quota that is at a line or beyond. One snapshot, one pipeline for each 100 scopes that have a limit, and
    two queries. Raises NoActivePlan, Degraded, Stale."""

    def read(loaded: Snapshot) -> list[Found]:
        asked = list(_asked(loaded))
        usages = remaining.usages_of(loaded, asked, int(now.timestamp()))
        return list(_limits(loaded, asked, usages, now)) + list(_quotas(asked, usages))

    return _current(organization, remaining.with_newest(organization.pk, read))


def _asked(loaded: Snapshot) -> Iterator[Who]:
    """The organization, and one question for each team, member and key with a limit and each member with a seat; no more."""
    yield Who(key_id=0, member_id=0, team_id=None)
    targets: dict[str, set[int]] = {"team": set(), "member": set(), "key": set()}
    for limit in loaded.quotas.limits:
        if limit.target_id is not None:
            targets[limit.scope].add(limit.target_id)
    # Ids of their own: views are remembered by them.
    for team_id in sorted(targets["team"]):
        yield Who(key_id=-(2**40) - team_id, member_id=0, team_id=team_id)
    seats = {one.member_id for one in loaded.billing.subscriptions if one.member_id is not None}
    for member_id in sorted(targets["member"] | seats):
        yield Who(key_id=-(2**41) - member_id, member_id=member_id, team_id=None)
    for key in loaded.accounts.keys.values():
        if key.key_id in targets["key"]:
            yield Who(key_id=key.key_id, member_id=key.member_id, team_id=key.team_id)


def _limits(loaded: Snapshot, asked: list[Who], usages: list[Usage], now: datetime) -> Iterator[Found]:
    second = int(now.timestamp())
    day = windows.day_of(second, ZoneInfo(loaded.accounts.timezone))
    period_start, _ = views.organization_period(loaded, second)
    targets = {limit.uuid: limit for limit in loaded.quotas.limits}
    seen: set[str] = set()
    for _, usage in zip(asked, usages, strict=True):
        for state in usage.limits:
            if state.uuid in seen:
                continue
            seen.add(state.uuid)
            line = line_of(state.used, state.limit)
            if state.metric in RATES or state.is_starting or not line:
                continue
            yield Found(
                kind=Alert.Kind.LIMIT,
                line=line,
                scope=f"limit:{state.uuid}",
                period=_period(state, day, period_start, second),
                is_rolling=state.window in ROLLING_SECONDS,
                limit_uuid=UUID(state.uuid),
                facts=_facts(state),
                **{f"{state.scope}_id": targets[state.uuid].target_id} if state.scope != "organization" else {},
            )


def _period(state: LimitState, day: int, period_start: int, second: int) -> str:
    """The time in which a line of it is told once: the calendar window, the plan period, or a slice as long as the window."""
    if state.window in ROLLING_SECONDS:
        return f"{state.window}:{second // ROLLING_SECONDS[state.window]}"
    if state.window == "period":
        return f"period:{period_start}"
    return f"{state.window}:{windows.first_day(state.window, day)}"


def _facts(state: LimitState) -> dict[str, object]:
    return {
        "level": state.scope,
        "metric": state.metric,
        "window": state.window,
        "models": state.models,
        "used": state.used,
        "limit": state.limit,
        "resets_at": None if state.window in ROLLING_SECONDS else state.resets_at,
    }


def _quotas(asked: list[Who], usages: list[Usage]) -> Iterator[Found]:
    """The organization's plan, and each seat."""
    for who, usage in zip(asked, usages, strict=True):
        plan = usage.plan
        is_seat = plan.subject == "member"
        if who.member_id and not is_seat:
            continue
        if not is_seat and who.key_id != 0:
            continue
        used = quota_used(plan)
        line = line_of(used, plan.quota)
        if line:
            yield Found(
                kind=Alert.Kind.QUOTA,
                line=line,
                scope=quota_scope(plan, who.member_id),
                period=f"period:{plan.starts_at}",
                member_id=who.member_id if is_seat else None,
                facts={
                    "plan": plan.plan,
                    "used": used,
                    "limit": plan.quota,
                    "resets_at": plan.ends_at,
                    "purchased": plan.purchased,
                    "overage": plan.overage,
                },
            )


def quota_scope(plan: PlanState, member_id: int) -> str:
    return f"plan:m{member_id}" if plan.subject == "member" else "plan:o"


def quota_used(plan: PlanState) -> int:
    """What was settled, in the period or, if that is more, in the rolling window of its length; micro-credits."""
    return max(plan.used + plan.overdraft, (plan.rolled or 0) - plan.held)


def _current(organization: Organization, found: list[Found]) -> list[Found]:
    """Without limits of who has left and of keys that do not work any more: nobody waits for those."""
    members = {one.member_id for one in found if one.member_id is not None}
    keys = {one.key_id for one in found if one.key_id is not None}
    gone: set[int] = set()
    if members:
        left = Member.objects.for_organization(organization).filter(pk__in=members).exclude(removed_at=None)
        gone = set(left.values_list("pk", flat=True))
    ended: set[int] = set()
    if keys:
        dead = ApiKey.objects.for_organization(organization).filter(pk__in=keys).exclude(revoked_at=None)
        ended = set(dead.values_list("pk", flat=True))
    return [one for one in found if one.member_id not in gone and one.key_id not in ended]
