"""What may still be spent, in the order and words of the pages: My key, Overview and the live number share it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from accounts import display
from accounts.models import Member, Organization
from accounts.snapshots import KeySnapshot
from config import snapshot
from config.redis import RedisUnavailable, client, sync_client, translated
from config.snapshot import Snapshot
from quotas import admission, engine, views
from quotas import standing as standings
from quotas.errors import Degraded, Stale
from quotas.standing import LimitState, PlanState, Usage
from quotas.windows import ROLLING_SECONDS

T = TypeVar("T")

TRIES = 3
PIECE = 100

WINDOWS = {
    "5h": (gettext_lazy("Last 5 hours"), gettext_lazy("5-hour limit")),
    "1d": (gettext_lazy("Last 24 hours"), gettext_lazy("24-hour limit")),
    "7d": (gettext_lazy("Last 7 days"), gettext_lazy("7-day limit")),
    "30d": (gettext_lazy("Last 30 days"), gettext_lazy("30-day limit")),
    "day": (gettext_lazy("Today"), gettext_lazy("daily limit")),
    "week": (gettext_lazy("This week"), gettext_lazy("weekly limit")),
    "month": (gettext_lazy("This month"), gettext_lazy("monthly limit")),
    "period": (gettext_lazy("This plan period"), gettext_lazy("limit of this plan period")),
}
"""The title of a meter, and the name of the limit in a sentence."""
RATES = {
    "requests_per_second": (
        gettext_lazy("Requests per second"),
        gettext_lazy("limit of requests per second"),
        gettext_lazy("within a second"),
    ),
    "requests_per_minute": (
        gettext_lazy("Requests per minute"),
        gettext_lazy("limit of requests per minute"),
        gettext_lazy("within a minute"),
    ),
    "concurrent": (
        gettext_lazy("Requests at once"),
        gettext_lazy("limit of requests at once"),
        gettext_lazy("when a running one ends"),
    ),
}
"""Title, name in a sentence, and when there is more."""
SCOPES = {
    "organization": gettext_lazy("the organization’s %(limit)s"),
    "team": gettext_lazy("your team’s %(limit)s"),
    "member": gettext_lazy("your %(limit)s"),
    "key": gettext_lazy("this key’s %(limit)s"),
}
SOONER = {
    "day": gettext_lazy("today"),
    "week": gettext_lazy("this week"),
    "month": gettext_lazy("this month"),
    "period": gettext_lazy("in this plan period"),
}
_COUNTED = {
    "credits": gettext_lazy("Credits, %(window)s"),
    "tokens": gettext_lazy("Tokens, %(window)s"),
    "requests": gettext_lazy("Requests, %(window)s"),
}
_COUNTED_INSIDE = {
    "credits": gettext_lazy("credits, %(window)s"),
    "tokens": gettext_lazy("tokens, %(window)s"),
    "requests": gettext_lazy("requests, %(window)s"),
}
_UNIT_BEHIND = {"tokens": gettext_lazy("%(window)s, tokens"), "requests": gettext_lazy("%(window)s, requests")}
_UNIT_LIMITS = {"tokens": gettext_lazy("%(limit)s of tokens"), "requests": gettext_lazy("%(limit)s of requests")}


def small(text: str) -> str:
    """As it stands inside a sentence."""
    return text[:1].lower() + text[1:]


def title_of(metric: str, window: str) -> str:
    """A meter's: `Today`, `Last 7 days, tokens`, `Requests per minute`."""
    if metric in RATES:
        return str(RATES[metric][0])
    title = str(WINDOWS[window][0])
    return _UNIT_BEHIND[metric] % {"window": title} if metric in _UNIT_BEHIND else title


def limit_name(metric: str, window: str) -> str:
    """In a sentence: `daily limit`, `weekly limit of tokens`, `limit of requests per minute`."""
    if metric in RATES:
        return str(RATES[metric][1])
    name = str(WINDOWS[window][1])
    return _UNIT_LIMITS[metric] % {"limit": name} if metric in _UNIT_LIMITS else name


def for_models(name: str, models: object) -> str:
    """`daily limit for gpt-5*`; as it is without models."""
    return _("%(limit)s for %(models)s") % {"limit": name, "models": models} if models else name


def counted(metric: str, window: str, *, is_head: bool = False) -> str:
    """What is counted, and in which time: `credits, last 7 days`; at the head of a row `Credits, last 7 days`."""
    return (_COUNTED if is_head else _COUNTED_INSIDE)[metric] % {"window": small(str(WINDOWS[window][0]))}


@dataclass(frozen=True, slots=True)
class Who:
    """A member, or an organization (member_id 0), in the place of a key: what would hold for a new one."""

    key_id: int
    member_id: int
    team_id: int | None
    member_name: str = ""
    team_name: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Meter:
    """One limit or the plan's quota. Micro-credits where `unit` is credits, else counts; `left` below 0 is an overdraft.

    `name` fits into a sentence ("your daily limit"). `resets_at` None: `comes_back` says when there is more, if anything can.
    `is_partial`: it holds some models only, or is not enforced yet, so what is left of it is not what is left.
    """

    id: str
    title: str
    name: str
    unit: str
    window: str
    left: int
    held: int
    used: int
    limit: int
    resets_at: datetime | None
    comes_back: str = ""
    is_partial: bool = False

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
        """What is held stands behind what is left, and never runs over the bar's end."""
        return display.share(min(self.held, max(0, self.limit - max(0, self.left))), self.limit)

    @property
    def is_rolling(self) -> bool:
        """What was used leaves bit by bit; nothing resets at one moment."""
        return self.window in ROLLING_SECONDS

    @property
    def sooner(self) -> str:
        """Until when `left` is meant: "today", "in this plan period"; "" for what rolls."""
        return str(SOONER.get(self.window, ""))

    @property
    def left_text(self) -> str:
        return self._amount(self.left)

    @property
    def held_text(self) -> str:
        return self._amount(self.held)

    @property
    def used_text(self) -> str:
        return self._amount(self.used)

    @property
    def limit_text(self) -> str:
        return self._amount(self.limit)

    def _amount(self, value: int) -> str:
        return amount(self.unit, value)


def amount(unit: str, value: int) -> str:
    """Credits as credits are written, counts in full."""
    return display.credits(value) if unit == "credits" else display.count(value)


@dataclass(frozen=True, slots=True)
class Standing:
    """How everything stands at `now` that a request of the member is counted in.

    `meters`: first the one that decides (`blocking`, else `spendable`), then by the share left, the least first.
    """

    meters: tuple[Meter, ...]
    plan: PlanState
    now: datetime

    @property
    def quota(self) -> Meter:
        return next(meter for meter in self.meters if meter.id == "plan")

    @property
    def spendable(self) -> Meter:
        """The meter that says how many credits can be spent now: the least of all that count credits."""
        return min(
            (meter for meter in self.meters if meter.unit == "credits" and not meter.is_partial),
            key=lambda meter: (meter.left, meter.id),
        )

    @property
    def blocking(self) -> Meter | None:
        """The last of the used-up meters to come back: until then the next request is refused. None while there is a way."""
        empty = [meter for meter in self.meters if meter.left <= 0 and not meter.is_partial]
        return max(empty, key=_comes_back_at, default=None)

    @property
    def pace(self) -> str:
        """The plan's quota against its time: `on`, `ahead` (more used than an even pace would have by over 5 points), `behind`."""
        span = self.plan.ends_at - self.plan.starts_at
        used = self.quota.limit - self.quota.left
        if span <= 0 or self.quota.limit <= 0:
            return "on"
        elapsed = min(max(0, _seconds(self.now) - self.plan.starts_at), span)
        points = used * 100 // self.quota.limit - elapsed * 100 // span
        return "ahead" if points > 5 else "behind" if points < -5 else "on"


def _comes_back_at(meter: Meter) -> tuple[int, float]:
    if meter.limit == 0:
        # Nothing is ever left of it.
        return 2, 0.0
    return (1, meter.resets_at.timestamp()) if meter.resets_at else (0, 0.0)


def standing(member: Member, *, now: datetime) -> Standing:
    """How the limits of the member and its keys stand. One snapshot, one read of the counters, and one for each key that
    has limits of its own. Raises NoActivePlan, Degraded, Stale."""

    def read(loaded: Snapshot) -> Standing:
        usage = admission.usage_sync(loaded, who(member), now_s=_seconds(now))
        limited = [(key, admission.usage_sync(loaded, key, now_s=_seconds(now))) for key in _limited_keys(loaded, member.pk)]
        return _standing(usage, limited, now)

    return with_newest(member.organization_id, read)


def of_organization(organization: Organization, *, now: datetime) -> Standing:
    """The organization's plan and limits, whoever looks. Raises NoActivePlan, Degraded, Stale."""
    nobody = Who(key_id=0, member_id=0, team_id=None)

    def read(loaded: Snapshot) -> Standing:
        return _standing(admission.usage_sync(loaded, nobody, now_s=_seconds(now)), [], now)

    return with_newest(organization.pk, read)


async def live_standing(member: Member, *, now: datetime, is_whole: bool = False) -> Standing:
    """As `standing`, or with `is_whole` as `of_organization`, from the event loop's shared snapshots: no SQL while the
    configuration stays. Raises the same."""
    asked = Who(key_id=0, member_id=0, team_id=None) if is_whole else who(member)
    redis, cache = client(), snapshot.cache()
    loaded = await cache.get(member.organization_id)
    for attempt in range(TRIES):
        try:
            usage = await admission.usage(redis, loaded, asked)
            keys = [] if is_whole else _limited_keys(loaded, member.pk)
            limited = [(key, await admission.usage(redis, loaded, key)) for key in keys]
            return _standing(usage, limited, now)
        except Stale as stale:
            if attempt + 1 == TRIES:
                raise
            loaded = await cache.get(member.organization_id, at_least=stale.version)
    raise AssertionError


@dataclass(frozen=True, slots=True)
class Everybody:
    """How the limits of many stand at once: `meters` by the limit's uuid, `used` in the plan period by member (micro-credits)."""

    plan: Meter
    meters: Mapping[str, Meter]
    used: Mapping[int, int]


def of_everybody(organization: Organization, *, members: Sequence[Member], team_ids: Iterable[int], now: datetime) -> Everybody:
    """The limits of the organization, of these teams and members and of their keys, and what the members used.

    One snapshot and one read of the counters for each 100 of them. Raises NoActivePlan, Degraded, Stale.
    """

    def read(loaded: Snapshot) -> Everybody:
        limited = {limit.target_id for limit in loaded.quotas.limits if limit.scope == "key"}
        ids = {member.pk for member in members}
        keys = [key for key in loaded.accounts.keys.values() if key.member_id in ids and key.key_id in limited]
        # Ids of their own: views are remembered by them.
        nobodies = [Who(key_id=-(2**40) - team, member_id=0, team_id=team) for team in team_ids]
        asked: list[Any] = [Who(key_id=0, member_id=0, team_id=None), *nobodies, *map(who, members), *keys]
        usages = usages_of(loaded, asked, _seconds(now))
        first = 1 + len(nobodies)
        used = {member.pk: usage.member_credits for member, usage in zip(members, usages[first:], strict=False)}
        names = {key.key_id: key for key in keys}
        meters: dict[str, Meter] = {}
        for one, usage in zip(asked, usages, strict=True):
            key = names.get(one.key_id)
            for limit in usage.limits:
                meters.setdefault(limit.uuid, _meter(limit, key if limit.scope == "key" else None))
        return Everybody(_quota(usages[0].plan), meters, used)

    return with_newest(organization.pk, read)


def usages_of(loaded: Snapshot, asked: Sequence[Any], now_s: int) -> list[Usage]:
    """`admission.usage_sync` of many keys, in pipelines of PIECE. What is not answered at once is asked again singly."""
    usages: list[Usage] = []
    for start in range(0, len(asked), PIECE):
        piece = asked[start : start + PIECE]
        questions = [views.view_for(loaded, key, now_s) for key in piece]
        try:
            with translated():
                pipeline = sync_client().pipeline(transaction=False)
                queue: Callable[..., Any] = pipeline.execute_command
                for view in questions:
                    queue(*engine.PEEK.command(engine.keys(loaded.organization_id), ("", view.packed)))
                replies = pipeline.execute(raise_on_error=False)
        except RedisUnavailable as error:
            raise Degraded("redis") from error
        for key, view, reply in zip(piece, questions, replies, strict=True):
            is_told = not isinstance(reply, Exception) and reply[0] == b"OK"
            usages.append(standings.read(loaded, view, reply) if is_told else admission.usage_sync(loaded, key, now_s=now_s))
    return usages


def who(member: Member, key_id: int | None = None) -> Who:
    return Who(key_id=key_id or -member.pk, member_id=member.pk, team_id=member.team_id, member_name=str(member))


def with_newest(organization_id: int, read: Callable[[Snapshot], T]) -> T:
    """What `read` makes of the organization's snapshot, with a newer one where it turns out to be old. Raises Stale at last."""
    for attempt in range(TRIES):
        try:
            return read(snapshot.current(organization_id))
        except Stale:
            if attempt + 1 == TRIES:
                raise
    raise AssertionError


def _limited_keys(loaded: Snapshot, member_id: int) -> list[KeySnapshot]:
    limited = {limit.target_id for limit in loaded.quotas.limits if limit.scope == "key"}
    return [key for key in loaded.accounts.keys.values() if key.member_id == member_id and key.key_id in limited]


def _seconds(now: datetime) -> int:
    return int(now.timestamp())


def _standing(usage: Usage, limited: Iterable[tuple[KeySnapshot, Usage]], now: datetime) -> Standing:
    meters = [_quota(usage.plan), *_rolling(usage.plan), *(_meter(limit) for limit in usage.limits)]
    for key, of_key in limited:
        meters += [_meter(limit, key) for limit in of_key.limits if limit.scope == "key"]
    meters.sort(key=lambda meter: (meter.left * 10**6 // max(1, meter.limit), meter.id))
    found = Standing(tuple(meters), usage.plan, now)
    first = found.blocking or found.spendable
    return Standing((first, *(meter for meter in meters if meter is not first)), usage.plan, now)


def _quota(plan: PlanState) -> Meter:
    return Meter(
        id="plan",
        title=_("Plan quota"),
        name=_("your seat’s quota") if plan.subject == "member" else _("the organization’s plan quota"),
        unit="credits",
        window="period",
        left=plan.quota - plan.used - plan.held - plan.overdraft,
        held=plan.held,
        used=plan.used + plan.overdraft,
        limit=plan.quota,
        resets_at=datetime.fromtimestamp(plan.ends_at, UTC),
    )


def _rolling(plan: PlanState) -> list[Meter]:
    """The same quota as a rolling limit of the period's length, where the plan has one; `rolled` includes what is held."""
    if plan.rolled is None:
        return []
    window = "7d" if plan.ends_at - plan.starts_at <= 8 * 86400 else "30d"
    return [
        Meter(
            id="plan-rolling",
            title=_("Plan quota, %(window)s") % {"window": small(str(WINDOWS[window][0]))},
            name=_("the plan’s rolling quota"),
            unit="credits",
            window=window,
            left=plan.quota - plan.rolled,
            held=plan.held,
            used=max(0, plan.rolled - plan.held),
            limit=plan.quota,
            resets_at=None,
            comes_back=_("bit by bit"),
        )
    ]


def _meter(limit: LimitState, key: KeySnapshot | None = None) -> Meter:
    unit = limit.metric if limit.metric in ("credits", "tokens") else "requests"
    comes_back = str(RATES[limit.metric][2]) if limit.metric in RATES else ""
    title = title_of(limit.metric, limit.window)
    if limit.models:
        title = f"{title} · {limit.models}"
    name = for_models(limit_name(limit.metric, limit.window), limit.models)
    target = limit.scope if key is None else key.public_id
    return Meter(
        id=f"{target}-{limit.metric}-{limit.window or 'now'}" + (f"-{limit.uuid}" if limit.models else ""),
        title=title,
        name=SCOPES[limit.scope] % {"limit": name}
        if key is None
        else _("the key %(key)s’s %(limit)s") % {"key": key.name, "limit": name},
        unit=unit,
        window=limit.window,
        left=limit.limit - limit.used - limit.held,
        held=limit.held,
        used=limit.used,
        limit=limit.limit,
        resets_at=datetime.fromtimestamp(limit.resets_at, UTC) if limit.resets_at and limit.limit else None,
        comes_back=_("never: the limit is 0") if limit.limit == 0 else comes_back,
        is_partial=bool(limit.models) or limit.is_starting,
    )
