"""What a member may still spend, in the order and words of the pages: My key, Overview and the live number share it."""

from dataclasses import dataclass
from datetime import UTC, datetime

from accounts import display
from accounts.models import Member
from config import snapshot
from quotas import admission
from quotas.errors import Stale
from quotas.standing import Usage

TRIES = 3

WINDOWS = {
    "5h": "Last 5 hours",
    "1d": "Last 24 hours",
    "7d": "Last 7 days",
    "30d": "Last 30 days",
    "day": "Today",
    "week": "This week",
    "month": "This month",
    "period": "This plan period",
}
RATES = {"requests_per_minute": "Requests per minute", "concurrent": "Requests at once"}
SCOPES = {
    "organization": "the organization's limit",
    "team": "your team's limit",
    "member": "your limit",
    "key": "this key's limit",
}


@dataclass(frozen=True, slots=True)
class Who:
    """A member in the place of a key, for a page that shows what would hold for a new one."""

    key_id: int
    member_id: int
    team_id: int | None
    member_name: str = ""
    team_name: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Meter:
    """One limit or the plan's quota. Micro-credits where `unit` is credits, else counts; `left` below 0 is an overdraft."""

    title: str
    whose: str
    unit: str
    left: int
    held: int
    used: int
    limit: int
    resets_at: datetime | None

    @property
    def level(self) -> str:
        return display.level(self.left, self.limit)

    @property
    def percent(self) -> int:
        return display.percent_left(self.left, self.limit)

    @property
    def left_share(self) -> str:
        return display.share(self.left, self.limit)

    @property
    def held_share(self) -> str:
        return display.share(min(self.held, max(0, self.limit - self.left)), self.limit)

    def amount(self, value: int) -> str:
        return display.credits(value) if self.unit == "credits" else f"{value:,}"

    @property
    def left_text(self) -> str:
        return self.amount(self.left)

    @property
    def held_text(self) -> str:
        return self.amount(self.held)

    @property
    def used_text(self) -> str:
        return f"{self.amount(self.used)} of {self.amount(self.limit)}"


def of_member(member: Member, *, key_id: int | None = None, now: datetime) -> Usage:
    """How the limits of the member, and of one of its keys, stand. Raises NoActivePlan, Degraded."""
    who = Who(key_id=key_id or -member.pk, member_id=member.pk, team_id=member.team_id, member_name=str(member))
    for _ in range(TRIES):
        loaded = snapshot.load(member.organization_id)
        try:
            return admission.usage_sync(loaded, who, now_s=int(now.timestamp()))
        except Stale as stale:
            last = stale
    raise last


def meters(usage: Usage) -> list[Meter]:
    """The tightest first: least share left."""
    plan = usage.plan
    found = [
        Meter(
            title="Plan quota",
            whose=f"{plan.plan}: {'your seat' if plan.subject == 'member' else 'shared by the organization'}",
            unit="credits",
            left=plan.quota - plan.used - plan.held - plan.overdraft,
            held=plan.held,
            used=plan.used + plan.overdraft,
            limit=plan.quota,
            resets_at=datetime.fromtimestamp(plan.ends_at, UTC),
        )
    ]
    for limit in usage.limits:
        unit = "credits" if limit.metric == "credits" else "tokens" if limit.metric == "tokens" else "requests"
        title = WINDOWS.get(limit.window) or RATES[limit.metric]
        found.append(
            Meter(
                title=title if limit.metric not in ("tokens", "requests") else f"{title}, {unit}",
                whose=SCOPES[limit.scope],
                unit=unit,
                left=limit.limit - limit.used - limit.held,
                held=limit.held,
                used=limit.used,
                limit=limit.limit,
                resets_at=datetime.fromtimestamp(limit.resets_at, UTC) if limit.resets_at else None,
            )
        )
    return sorted(found, key=lambda meter: (meter.left * 10**6 // max(1, meter.limit), meter.title))


def spendable(found: list[Meter]) -> Meter:
    """The meter that decides how many credits can be spent now: the least credits left of all that count credits."""
    return min((meter for meter in found if meter.unit == "credits"), key=lambda meter: meter.left)
