"""One change for many members: previewed, done for all of them or for none, and taken back where that is possible.

What is asked of one member is asked of the same functions as by any other door, so rights and bounds are the same too; a preview
does all of it in a transaction that is rolled back, so what it shows is what would happen.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils.translation import gettext as _

from accounts import managing, members
from accounts.models import Member, Team
from billing import credits, subscriptions
from config import snapshot
from config.errors import DomainError
from quotas import limits, remaining, requests, rights
from quotas.errors import BulkRefused
from quotas.models import Limit, LimitBoost

MOST = 200
"""Members at once."""


class Kind(StrEnum):
    LIMIT = "limit"
    BOOST = "boost"
    MOVE = "move"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Wish:
    """What every one of the members shall get, as people write it.

    LIMIT: an own limit of `metric` and `window` of `amount` ("none": none any more). BOOST: `extra` on top of that limit until
    `until`. MOVE: into `team` (None: the whole organization). REMOVE: nothing more.
    """

    kind: Kind
    metric: str = Limit.Metric.CREDITS
    window: str = ""
    amount: str = ""
    extra: str = ""
    until: datetime | None = None
    note: str = ""
    team: Team | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One member: how it is, and how it would be; or why not. `is_same`: it is so already."""

    member: Member
    before: str
    after: str
    refusal: str = ""
    is_same: bool = False


@dataclass(frozen=True, slots=True)
class Undo:
    """How to take a change back: steps as plain values, `["limit", uuid, was, now]`, `["lifted", member, metric, window, was]`,
    `["boost", uuid]`, `["team", member, was, now]`. Amounts as the database has them; "" is none."""

    steps: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    lines: tuple[Line, ...]
    undo: Undo = field(default_factory=Undo)

    @property
    def changed(self) -> int:
        return sum(not line.is_same for line in self.lines)


def preview(manager: Member, found: Sequence[Member], wish: Wish, *, now: datetime) -> tuple[Line, ...]:
    """What `apply` would do, refusals among it; nothing changes. Raises BulkRefused for a wish that nobody can be granted."""
    with transaction.atomic():
        done = _all(manager, found, wish, now)
        transaction.set_rollback(True)
    return done.lines


def apply(manager: Member, found: Sequence[Member], wish: Wish, *, now: datetime) -> Done:
    """Does it for all. Raises BulkRefused, whose `lines` name every refusal; then nothing has changed."""
    with transaction.atomic():
        done = _all(manager, found, wish, now)
        refused = [line for line in done.lines if line.refusal]
        if refused:
            first = f"{refused[0].member}: {refused[0].refusal}"
            raise BulkRefused(
                _("Nothing was changed: {refused} of {all} cannot be. {first}").format(
                    refused=len(refused), all=len(done.lines), first=first
                ),
                lines=done.lines,
            )
    if wish.kind is Kind.REMOVE:
        # By themselves, as in `joining.leave`: the ledger's writers wait for the organization's row.
        for line in done.lines:
            subscriptions.end_seat(line.member, by=manager.user, now=now)
    return done


def undo(manager: Member, undo: Undo, *, now: datetime) -> int:
    """Takes a change back, all of it or nothing; the number of members or limits that were. Raises BulkRefused where something has
    been changed since, and what the single changes raise."""
    with transaction.atomic():
        snapshot.bump(manager.organization_id)
        for step in undo.steps:
            _STEPS[step[0]](manager, step[1:], now)
    return len(undo.steps)


def undo_of_amount(limit: Limit, was: int) -> Undo:
    """Of a limit that had another amount before."""
    return Undo((("limit", str(limit.uuid), str(was), str(limit.amount)),))


def undo_of_team(member: Member, was: Team | None) -> Undo:
    """Of a member who was in another team before; nothing where it is the same one."""
    if (was and was.pk) == member.team_id:
        return Undo()
    return Undo((("team", str(member.uuid), str(was.uuid) if was else "", str(member.team.uuid) if member.team else ""),))


# ----------------------------------------------------------------------------------------------------------- doing


def _all(manager: Member, found: Sequence[Member], wish: Wish, now: datetime) -> Done:
    if not found:
        raise BulkRefused(_("Nobody is chosen. Choose members first."))
    if len(found) > MOST:
        raise BulkRefused(_("At most {most} members are changed at once; {count} are chosen.").format(most=MOST, count=len(found)))
    # The row's lock first: nobody else changes members or limits until this is over.
    snapshot.bump(manager.organization_id)
    lines: list[Line] = []
    steps: list[tuple[str, ...]] = []
    for member in found:
        line, own = _one(manager, member, wish, now)
        lines.append(line)
        steps += own
    return Done(tuple(lines), Undo(tuple(steps)))


def _one(manager: Member, member: Member, wish: Wish, now: datetime) -> tuple[Line, Iterable[tuple[str, ...]]]:
    before = _before(member, wish)
    try:
        with transaction.atomic():
            return _DO[wish.kind](manager, member, wish, now)
    except DomainError as error:
        return Line(member, before, before, refusal=error.message), ()
    except PermissionDenied:
        return Line(member, before, before, refusal=_("This is not yours to change.")), ()


def _before(member: Member, wish: Wish) -> str:
    if wish.kind in (Kind.LIMIT, Kind.BOOST):
        return _amount_of(_limit(member, wish))
    return _team_name(member.team) if wish.kind is Kind.MOVE else member.get_role_display()


def _limit(member: Member, wish: Wish) -> Limit | None:
    rows = Limit.objects.filter(organization_id=member.organization_id, scope=Limit.Scope.MEMBER, member=member)
    return rows.filter(metric=wish.metric, window=wish.window, model_filter=None).first()


def _amount_of(limit: Limit | None) -> str:
    return _("no limit") if limit is None else remaining.amount(limit.metric, limit.amount)


def _team_name(team: Team | None) -> str:
    return _("whole organization") if team is None else team.name


Did = tuple[Line, Iterable[tuple[str, ...]]]


def _set_limit(manager: Member, member: Member, wish: Wish, now: datetime) -> Did:
    _demand(rights.may_set(manager, member))
    held = _limit(member, wish)
    was = None if held is None else held.amount
    assert member.user is not None
    limits.set_limit(
        member.organization,
        scope=Limit.Scope.MEMBER,
        of=member.user.email,
        metric=wish.metric,
        window=wish.window,
        amount=wish.amount,
        by=manager.user,
        setter=manager,
    )
    now_is = _limit(member, wish)
    before = _("no limit") if was is None else remaining.amount(wish.metric, was)
    line = Line(member, before, _amount_of(now_is), is_same=was == (None if now_is is None else now_is.amount))
    if line.is_same:
        return line, ()
    if now_is is None:
        return line, [("lifted", str(member.uuid), wish.metric, wish.window, str(was))]
    return line, [("limit", str(now_is.uuid), "" if was is None else str(was), str(now_is.amount))]


def _boost(manager: Member, member: Member, wish: Wish, now: datetime) -> Did:
    _demand(rights.may_set(manager, member))
    held = _limit(member, wish)
    if held is None:
        raise BulkRefused(_("There is no such limit of {member} to give more of.").format(member=member))
    assert wish.until is not None
    extra = requests.extra_of(held, wish.extra)
    made = limits.boost(
        held,
        extra=extra,
        until=requests.checked_until(wish.until, now=now, zone=ZoneInfo(member.organization.timezone)),
        reason=requests.checked_note(wish.note),
        by=manager.user,
        setter=manager,
        now=now,
    )
    before = _amount_of(held)
    return Line(member, before, f"{before} + {remaining.amount(held.metric, extra)}"), [("boost", str(made.uuid))]


def _move(manager: Member, member: Member, wish: Wish, now: datetime) -> Did:
    was = member.team
    line = Line(member, _team_name(was), _team_name(wish.team), is_same=member.team_id == (wish.team and wish.team.pk))
    moved = managing.change(manager, member, team=wish.team, has_team=True, now=now)
    if line.is_same:
        return line, ()
    return replace(line, member=moved), undo_of_team(moved, was).steps


def _remove(manager: Member, member: Member, wish: Wish, now: datetime) -> Did:
    if member.pk == manager.pk:
        raise BulkRefused(_("You are among them. Take yourself out of the choice."))
    if not managing.may_manage(manager, member):
        raise BulkRefused(
            _("{member} is {role}, and only an owner removes one.").format(member=member, role=member.get_role_display().lower())
        )
    before = member.get_role_display()
    removed = members.remove(member, by=manager.user, now=now)
    keys = removed.keys_revoked
    after = _("removed, {count} keys end").format(count=keys) if keys != 1 else _("removed, one key ends")
    # Who it was is told, not the name that is left of it.
    return Line(member, before, after), ()


def _demand(is_allowed: bool) -> None:
    if not is_allowed:
        raise PermissionDenied


_DO: dict[Kind, Callable[[Member, Member, Wish, datetime], Did]] = {
    Kind.LIMIT: _set_limit,
    Kind.BOOST: _boost,
    Kind.MOVE: _move,
    Kind.REMOVE: _remove,
}


# ----------------------------------------------------------------------------------------------------- taking back


def _text(metric: str, amount: str) -> str:
    """An amount as `limits` reads it."""
    return credits.text(int(amount)) if metric == Limit.Metric.CREDITS else amount


def _changed_since(what: object) -> BulkRefused:
    return BulkRefused(_("{what} was changed again since then. Nothing was undone.").format(what=what))


def _undo_limit(manager: Member, values: Sequence[str], now: datetime) -> None:
    uuid, was, is_now = values
    limit = Limit.objects.select_related(*rights.RELATED).filter(organization=manager.organization, uuid=uuid).first()
    if limit is None or str(limit.amount) != is_now:
        raise _changed_since(_("The limit") if limit is None else rights.subject_of(limit) or limit.organization)
    _demand(rights.may_change(manager, limit))
    limits.change(limit, _text(limit.metric, was) if was else "none", by=manager.user, setter=manager)


def _undo_lifted(manager: Member, values: Sequence[str], now: datetime) -> None:
    uuid, metric, window, was = values
    member = managing.find(manager, uuid)
    if _limit(member, Wish(Kind.LIMIT, metric=metric, window=window)) is not None:
        raise _changed_since(member)
    wish = Wish(Kind.LIMIT, metric=metric, window=window, amount=_text(metric, was))
    _set_limit(manager, member, wish, now)


def _undo_boost(manager: Member, values: Sequence[str], now: datetime) -> None:
    rows = LimitBoost.objects.select_related(*(f"limit__{name}" for name in rights.RELATED))
    given = rows.filter(organization=manager.organization, uuid=values[0], revoked_at=None).first()
    if given is None:
        raise _changed_since(_("What was given"))
    _demand(rights.may_change(manager, given.limit))
    limits.end_boost(given, by=manager.user, now=now)


def _undo_team(manager: Member, values: Sequence[str], now: datetime) -> None:
    uuid, was, is_now = values
    member = managing.find(manager, uuid)
    if str(member.team.uuid if member.team is not None else "") != is_now:
        raise _changed_since(member)
    team = managing.team(manager, UUID(was)) if was else None
    managing.change(manager, member, team=team, has_team=True, now=now)


_STEPS: dict[str, Callable[[Member, Sequence[str], datetime], Any]] = {
    "limit": _undo_limit,
    "lifted": _undo_lifted,
    "boost": _undo_boost,
    "team": _undo_team,
}
