"""Limits as Members & limits shows them: by level, each with how it stands, its boosts and whether the reader may change it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from accounts import permissions
from accounts.models import ApiKey, Member, Organization, Team
from accounts.permissions import Action, Reach
from quotas import remaining, rights
from quotas.boost_forms import describe
from quotas.errors import Degraded, NoActivePlan, Stale
from quotas.models import Limit, LimitBoost, LimitRequest
from quotas.remaining import RATES, SCOPES, Everybody, Meter, for_models, limit_name, small

TROUBLE = gettext_lazy(
    "The counters do not answer. New requests are refused until they do; running answers finish and are metered."
)


_AMOUNTS = {
    "credits": gettext_lazy("%(amount)s credits"),
    "tokens": gettext_lazy("%(amount)s tokens"),
    "requests": gettext_lazy("%(amount)s requests"),
}
LOOSE = (True, 10**9)
"""How tight it is where there is no limit at all."""


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One limit. `meter` is None while the counters cannot be read; `name` stands at the head of a sentence."""

    limit: Limit
    level: str
    name: str
    meter: Meter | None
    boosts: tuple[LimitBoost, ...]
    may_change: bool

    @property
    def what(self) -> str:
        return describe(self.limit)

    @property
    def id(self) -> str:
        return str(self.limit.uuid)

    @property
    def amount_text(self) -> str:
        """What was set, without boosts."""
        return remaining.amount(self.limit.metric, self.limit.amount)

    @property
    def unit(self) -> str:
        return "requests" if self.limit.metric in RATES else self.limit.metric

    @property
    def name_in_sentence(self) -> str:
        """`the Quality team’s weekly limit`; a person's name stays as it is."""
        return self.name if self.limit.member_id is not None else small(self.name)

    @property
    def given(self) -> list["Given"]:
        """The boosts, the first to end first."""
        return [Given(boost, remaining.amount(self.limit.metric, boost.extra)) for boost in self.boosts]


@dataclass(frozen=True, slots=True)
class Given:
    """A boost and what it adds, as text."""

    row: LimitBoost
    extra: str


@dataclass(frozen=True, slots=True)
class Person:
    """One member with the limits of its own and of its keys, the tightest first; `used` in this plan period, micro-credits."""

    member: Member
    keys: int
    limits: tuple[LimitRow, ...]
    used: int | None

    @property
    def tightest(self) -> LimitRow | None:
        return self.limits[0] if self.limits else None

    @property
    def is_low(self) -> bool:
        """Of what does not come back within a minute."""
        row = self.tightest
        return row is not None and row.limit.metric not in RATES and row.meter is not None and bool(row.meter.level)


@dataclass(frozen=True, slots=True)
class Scope:
    """What the reader looks after. `trouble` says why there are no numbers."""

    is_whole: bool
    teams: tuple[Team, ...]
    people: tuple[Person, ...]
    levels: tuple[LimitRow, ...]
    sizes: dict[int, int]
    counters: Everybody | None
    trouble: str = ""
    missing: tuple[Team, ...] = field(default=())
    """Teams without a limit."""

    @property
    def used(self) -> int | None:
        amounts = [one.used for one in self.people]
        return None if None in amounts else sum(amount or 0 for amount in amounts)


def of_scope(reader: Member, *, now: datetime) -> Scope:
    """Everybody and everything that the reader may see on the page; a fixed number of queries however many there are."""
    organization = reader.organization
    is_whole = permissions.reach(reader, Action.SEE_MEMBERS) is Reach.WHOLE
    members = Member.objects.for_organization(organization).current().select_related("user", "team").order_by("pk")
    teams = Team.objects.filter(organization=organization)
    if not is_whole:
        members, teams = members.filter(team=reader.team), teams.filter(members=reader)
    found, groups = tuple(members), tuple(teams)
    keys = _keys(organization, found)
    counters, trouble = _counters(organization, found, [team.pk for team in groups], now)
    rows = _limits(reader, now=now, counters=counters)
    sizes: dict[int, int] = {}
    for member in found:
        if member.team_id is not None:
            sizes[member.team_id] = sizes.get(member.team_id, 0) + 1
    ids = {team.pk for team in groups}
    levels = [row for row in rows if row.limit.scope == Limit.Scope.ORGANIZATION or row.limit.team_id in ids]
    levels.sort(key=lambda row: (row.limit.team.name if row.limit.team else "", row.limit.pk))
    limited = {row.limit.team_id for row in levels}
    return Scope(
        is_whole=is_whole,
        teams=groups,
        people=tuple(_people(found, keys, rows, counters)),
        levels=tuple(levels),
        sizes=sizes,
        counters=counters,
        trouble=trouble,
        missing=tuple(team for team in groups if team.pk not in limited),
    )


def of_member(reader: Member, member: Member, *, now: datetime) -> tuple[tuple[LimitRow, ...], Everybody | None, str]:
    """All limits that hold the member, its own first, then its keys', its team's, the organization's; the counters, or why not."""
    teams = [member.team_id] if member.team_id is not None else []
    counters, trouble = _counters(member.organization, [member], teams, now)
    order = [Limit.Scope.MEMBER, Limit.Scope.KEY, Limit.Scope.TEAM, Limit.Scope.ORGANIZATION]
    rows = [row for row in _limits(reader, now=now, counters=counters) if holds(row.limit, member)]
    rows.sort(key=lambda row: (order.index(Limit.Scope(row.limit.scope)), row.limit.pk))
    return tuple(rows), counters, trouble


def holds(limit: Limit, member: Member) -> bool:
    """Is the member held by it, directly or with others?"""
    if limit.scope == Limit.Scope.ORGANIZATION:
        return True
    if limit.team_id is not None:
        return limit.team_id == member.team_id
    return limit.member_id == member.pk or (limit.key is not None and limit.key.member_id == member.pk)


def _counters(
    organization: Organization, members: Sequence[Member], team_ids: Iterable[int], now: datetime
) -> tuple[Everybody | None, str]:
    try:
        return remaining.of_everybody(organization, members=members, team_ids=team_ids, now=now), ""
    except NoActivePlan as error:
        return None, error.message
    except (Degraded, Stale):
        return None, str(TROUBLE)


def _keys(organization: Organization, members: Sequence[Member]) -> dict[int, int]:
    """How many keys each has that are not revoked."""
    counts: dict[int, int] = {}
    keys = ApiKey.objects.for_organization(organization).unrevoked().filter(member__in=[member.pk for member in members])
    for member_id in keys.order_by().values_list("member_id", flat=True):
        counts[member_id] = counts.get(member_id, 0) + 1
    return counts


def _limits(reader: Member, *, now: datetime, counters: Everybody | None) -> list[LimitRow]:
    """Every limit of the organization whose subject is still there, with the boosts that hold or will."""
    related = ("organization", "team", "member__user", "member__team", "key__member__user", "key__member__team", "model_filter")
    limits = Limit.objects.for_organization(reader.organization).select_related(*related).order_by("pk")
    boosts: dict[int, list[LimitBoost]] = {}
    given = LimitBoost.objects.filter(organization=reader.organization, revoked_at=None, ends_at__gt=now)
    for boost in given.select_related("granted_by").order_by("ends_at"):
        boosts.setdefault(boost.limit_id, []).append(boost)
    return [
        _row(reader, limit, counters.meters.get(str(limit.uuid)) if counters else None, boosts.get(limit.pk, []))
        for limit in limits
        if not (limit.key is not None and limit.key.revoked_at is not None)
        and not (limit.member is not None and limit.member.removed_at is not None)
    ]


def _row(reader: Member, limit: Limit, meter: Meter | None, boosts: Sequence[LimitBoost]) -> LimitRow:
    level = str(rights.subject_of(limit) or limit.organization.name)
    if limit.key is not None:
        level = limit.key.name
    return LimitRow(limit, level, named(limit), meter, tuple(boosts), rights.may_change(reader, limit))


def named(limit: Limit) -> str:
    """Whose limit it is and which, at the head of a sentence: `Ada Byron’s daily limit`, `The Quality team’s weekly limit`."""
    about = {"limit": limit_name(limit.metric, limit.window)}
    if limit.team is not None:
        name = _("The %(name)s team’s %(limit)s") % {**about, "name": limit.team.name}
    elif limit.member is not None:
        name = _("%(name)s’s %(limit)s") % {**about, "name": limit.member}
    elif limit.key is not None:
        name = _("The key %(name)s’s %(limit)s") % {**about, "name": limit.key.name}
    else:
        name = _("The organization’s %(limit)s") % about
    return for_models(name, limit.model_filter)


def own(limit: Limit) -> str:
    """As `named`, to whom it holds: `Your daily limit`, `Your team’s weekly limit`."""
    if limit.scope == Limit.Scope.KEY:
        return named(limit)
    name = SCOPES[limit.scope] % {"limit": limit_name(limit.metric, limit.window)}
    return for_models(f"{name[0].upper()}{name[1:]}", limit.model_filter)


def amount_text(limit: Limit) -> str:
    """`3,000 credits`, `60`."""
    return _with_unit(limit.metric, limit.amount)


def extra_text(request: LimitRequest) -> str:
    """What a request asks for: `500 credits`."""
    return _with_unit(request.metric, request.asked_amount)


def _with_unit(metric: str, number: int) -> str:
    text = remaining.amount(metric, number)
    return _AMOUNTS[metric] % {"amount": text} if metric in _AMOUNTS else text


def tightness(row: LimitRow) -> tuple[bool, int]:
    """Millionths left; rates, which are back within a minute, stand behind amounts, and what is not known behind what is."""
    return row.limit.metric in RATES, 10**8 if row.meter is None else row.meter.left * 10**6 // max(1, row.meter.limit)


def first_to_hold(rows: Sequence[LimitRow]) -> LimitRow | None:
    """The limit that stops a member first, as *My key* says it: of those that count credits of all models the one with the fewest
    left; without any, the one with the least share left. What is used up comes first. None without limits that can be told."""
    known = [row for row in rows if row.meter is not None]
    used_up = [row for row in known if row.meter is not None and row.meter.left <= 0 and not row.meter.is_partial]
    credits = [row for row in known if row.meter is not None and row.meter.unit == "credits" and not row.meter.is_partial]
    if used_up or not credits:
        return min(used_up or known, key=tightness, default=None)
    return min(credits, key=lambda row: row.meter.left if row.meter is not None else 0)


def _people(
    members: Sequence[Member], keys: dict[int, int], rows: Sequence[LimitRow], counters: Everybody | None
) -> Iterable[Person]:
    """The one with the least share left first, then those without limits, in the order they joined."""
    own: dict[int, list[LimitRow]] = {}
    for row in rows:
        holder = row.limit.member_id or (row.limit.key.member_id if row.limit.key else None)
        if holder is not None:
            own.setdefault(holder, []).append(row)
    people = []
    for member in members:
        limits = sorted(own.get(member.pk, []), key=tightness)
        used = counters.used.get(member.pk) if counters else None
        people.append(Person(member, keys.get(member.pk, 0), tuple(limits), used))
    return sorted(people, key=lambda person: (tightness(person.tightest) if person.tightest else LOOSE, person.member.pk))
