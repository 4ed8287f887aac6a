"""The usage report: what page, API and CSV of one time and grouping share, so that they show one sum."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from accounts.models import Member, Organization
from billing import periods, reports, subscriptions
from billing.errors import GroupingForbidden, GroupingUnknown, RangeInvalid
from billing.labels import Accounts, Labels, Sight
from billing.models import Subscription
from billing.reports import UsageSum

GROUPINGS = ("day", "team", "member", "key", "model", "account")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "day": ("day",),
    "team": ("team", "team_id"),
    "member": ("member", "member_email", "member_id"),
    "key": ("key_name", "key_public_id", "key_id", "member", "member_email", "member_id"),
    "model": ("model",),
    "account": ("account", "account_id"),
}
"""What names a group, in CSV and API; the first is what people read."""
AMOUNTS = (
    "requests",
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "credits",
    "from_quota",
    "from_purchased",
    "from_overage",
    "overdraft",
)
CREDITS = frozenset(AMOUNTS[6:])
MOST_DAYS = 1830
_FIRST, _LAST = date(2000, 1, 1), date(2199, 12, 31)


@dataclass(frozen=True, slots=True)
class Range:
    """[start, end), aware UTC; `first_day` and `last_day` are those of the organization that it touches."""

    start: datetime
    end: datetime
    first_day: date
    last_day: date


@dataclass(frozen=True, slots=True)
class Line:
    """One group. `names` stand under the grouping's COLUMNS, empty where there is nothing to tell."""

    names: tuple[str, ...]
    sums: UsageSum


@dataclass(frozen=True, slots=True)
class Report:
    """Every group with its sums, and their total. Days of the range that have begun are all there, also without use (I5)."""

    by: str
    range: Range
    lines: tuple[Line, ...]
    total: UsageSum


def report(sight: Sight, by: str, chosen: Range, *, now: datetime, labels: Labels | None = None) -> Report:
    """The sums that `sight` allows. A handful of queries, however long the range. Raises GroupingUnknown, GroupingForbidden."""
    check_grouping(sight, by)
    whose = sight.whose
    members = None if whose.member_id is None else [whose.member_id]
    sums = reports.usage_by(whose.organization, by, chosen.start, chosen.end, members=members, team_id=whose.team_id)
    if by == "day":
        today = reports.day_of(now, ZoneInfo(whose.organization.timezone)).isoformat()
        sums = [one for one in sums if str(one.group) <= today or one.requests or one.credits]
    amounts = {name: sum(getattr(one, name) for one in sums) for name in _SUMMED}
    return Report(by, chosen, tuple(_lines(sight, by, sums, labels or Labels(whose.organization))), UsageSum(None, **amounts))


def check_grouping(sight: Sight, by: str) -> None:
    """Raises GroupingUnknown, or GroupingForbidden for one that others may ask for."""
    if by not in groupings(sight):
        refusal = GroupingForbidden if by in GROUPINGS else GroupingUnknown
        raise refusal(
            _("Usage is summed here by %(groupings)s, not by %(by)r.") % {"groupings": ", ".join(groupings(sight)), "by": by[:40]},
            by=by[:40],
        )


def groupings(sight: Sight) -> tuple[str, ...]:
    return GROUPINGS if sight.accounts is not Accounts.NOTHING else GROUPINGS[:-1]


_SUMMED = tuple(field.name for field in fields(UsageSum) if field.name != "group")


def _lines(sight: Sight, by: str, sums: list[UsageSum], labels: Labels) -> list[Line]:
    ids = [one.group for one in sums if isinstance(one.group, int)]
    if by == "key":
        labels.members(key.member_id for key in labels.keys(ids).values())
    names = {"team": labels.teams, "member": labels.members, "key": labels.keys, "account": labels.accounts}
    if by in names:
        names[by](ids)
    return [Line(_names(sight, by, one.group, labels), one) for one in sums]


def _names(sight: Sight, by: str, group: str | int | None, labels: Labels) -> tuple[str, ...]:
    if not isinstance(group, int):
        return (str(group), *[""] * (len(COLUMNS[by]) - 1)) if group is not None else ("",) * len(COLUMNS[by])
    if by == "team":
        team = labels.teams([group])[group]
        return (team.name, str(team.uuid))
    if by == "member":
        return member_names(labels, group)
    if by == "key":
        key = labels.keys([group])[group]
        return (key.name, key.public_id if sight.sees_key_ids else "", str(key.uuid), *member_names(labels, key.member_id))
    return account_names(sight, labels, group)


def member_names(labels: Labels, member_id: int) -> tuple[str, str, str]:
    """Name, e-mail, public id."""
    member = labels.members([member_id])[member_id]
    return (member.name, member.email, str(member.uuid))


def account_names(sight: Sight, labels: Labels, account_id: int | None) -> tuple[str, str]:
    """Label and public id, as far as `sight` is told of them; empty for none and for one that is there no more."""
    if account_id is None or sight.accounts is Accounts.NOTHING:
        return ("", "")
    account = labels.accounts([account_id]).get(account_id)
    if account is None:
        return ("", "")
    return (account.name if sight.accounts is Accounts.LABELS else "", str(account.uuid))


# -------------------------------------------------------------------------------------------------------------- ranges


def of_days(first: date, last: date, zone: ZoneInfo) -> Range:
    """The organization's days from `first` to `last`, both included. Raises RangeInvalid."""
    if first < _FIRST or last > _LAST:
        raise RangeInvalid(_("Days lie between %(first)s and %(last)s.") % {"first": _FIRST.isoformat(), "last": _LAST.isoformat()})
    return between(periods.day_start(first, zone), periods.day_start(last + timedelta(days=1), zone), zone)


def between(start: datetime, end: datetime, zone: ZoneInfo) -> Range:
    """[start, end). Raises RangeInvalid for an empty one and for one of over MOST_DAYS days."""
    if start >= end:
        raise RangeInvalid(_("The range is empty: its start is not before its end."))
    if end - start > timedelta(days=MOST_DAYS, hours=1):
        raise RangeInvalid(_("A report covers at most %(most_days)s days.") % {"most_days": MOST_DAYS}, most_days=MOST_DAYS)
    last = reports.day_of(end - timedelta(microseconds=1), zone)
    return Range(start.astimezone(UTC), end.astimezone(UTC), reports.day_of(start, zone), last)


def month(text: str, zone: ZoneInfo) -> Range:
    """Of 2026-10. Raises RangeInvalid."""
    if not re.fullmatch(r"\d{4}-\d{2}", text, re.ASCII):
        raise RangeInvalid(_("%(text)r is not a month such as 2026-10.") % {"text": text[:40]})
    first = _day(f"{text}-01", "month")
    return of_days(first, (first + timedelta(days=31)).replace(day=1) - timedelta(days=1), zone)


def parsed(start: str, end: str, zone: ZoneInfo, *, names: tuple[str, str] = ("start", "end")) -> Range:
    """Days such as 2026-11-24, both included, or instants with a zone such as 2026-11-24T12:00:00Z, `end` excluded.

    Raises RangeInvalid, which names the text that is neither.
    """
    return between(_moment(start, names[0], zone, is_end=False), _moment(end, names[1], zone, is_end=True), zone)


def _moment(given: str, name: str, zone: ZoneInfo, *, is_end: bool) -> datetime:
    if len(given) <= len("2026-11-24"):
        day = _day(given, name)
        return periods.day_start(day + timedelta(days=1) if is_end else day, zone)
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(given[:40])
        if moment.tzinfo is not None and _FIRST <= moment.date() <= _LAST:
            return moment.astimezone(UTC)
    raise RangeInvalid(
        _("%(name)s %(given)r is neither a day such as 2026-11-24 nor an instant such as 2026-11-24T12:00:00Z.")
        % {"name": name, "given": given[:40]}
    )


def _day(given: str, name: str) -> date:
    with suppress(ValueError):
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", given, re.ASCII) and _FIRST <= (day := date.fromisoformat(given)) <= _LAST:
            return day
    raise RangeInvalid(_("%(name)s %(given)r is not a day such as 2026-11-24.") % {"name": name, "given": given[:40]})


def this_period(sight: Sight, member: Member | None, now: datetime) -> Range:
    """The current period of what the sums are about: of the member's own seat for who sees their own use only, else of the
    organization's plan; without a plan, the month."""
    organization = sight.whose.organization
    is_own = member is not None and sight.whose.member_id == member.pk
    subscription = _subscription(organization, member if is_own else None)
    zone = ZoneInfo(organization.timezone)
    if subscription is None:
        return month(f"{reports.day_of(now, zone):%Y-%m}", zone)
    period = subscriptions.period_of(subscription, now)
    return between(period.start, period.end, zone)


def last_period(sight: Sight, member: Member, now: datetime) -> Range:
    """The one before."""
    return this_period(sight, member, this_period(sight, member, now).start - timedelta(seconds=1))


def _subscription(organization: Organization, member: Member | None) -> Subscription | None:
    found = Subscription.objects.for_organization(organization).active().select_related("organization", "plan")
    seat = found.filter(member=member).first() if member is not None else None
    return seat or found.filter(member=None).first()
