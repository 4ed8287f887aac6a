"""What the ids in reports and exports are called: names for people, public UUIDs for machines. Nothing secret is among it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar
from uuid import UUID

from accounts import permissions
from accounts.models import ApiKey, Member, Organization, Team
from accounts.permissions import Action, Reach
from billing.overview import Whose

T = TypeVar("T")


class Accounts(Enum):
    """What somebody is told of the upstream accounts that carried requests."""

    NOTHING = 0
    IDS = 1
    LABELS = 2


@dataclass(frozen=True, slots=True)
class Sight:
    """What somebody sees of usage: whose, single requests or sums only, public ids of keys, upstream accounts."""

    whose: Whose
    sees_rows: bool
    sees_key_ids: bool
    accounts: Accounts


def sight(member: Member) -> Sight:
    """By the member's role and team. Raises nothing: the door has asked for SEE_USAGE.

    Who sees the pool sees its accounts' labels; who sees the money sees their ids, so that every grouping adds up; others nothing
    of them. Finance exports single requests, but holds no keys: their names stand there, their public ids do not.
    """
    return Sight(
        whose=whose(member),
        sees_rows=any(_reaches(member, action) for action in (Action.SEE_REQUESTS, Action.SEE_MONEY)),
        sees_key_ids=_reaches(member, Action.USE_KEYS),
        accounts=(
            Accounts.LABELS
            if _reaches(member, Action.SEE_POOL)
            else Accounts.IDS
            if _reaches(member, Action.SEE_MONEY)
            else Accounts.NOTHING
        ),
    )


def own_sight(member: Member) -> Sight:
    """Their own usage only, whatever the role: what one of their gateway keys stands for."""
    return Sight(Whose(member.organization, member_id=member.pk), True, True, Accounts.NOTHING)


def operators_sight(organization: Organization) -> Sight:
    return Sight(Whose(organization), True, True, Accounts.LABELS)


def whose(member: Member) -> Whose:
    """The usage in the member's reach: their own, their team's, or the organization's."""
    reach = permissions.reach(member, Action.SEE_USAGE)
    if reach is Reach.WHOLE:
        return Whose(member.organization)
    if reach is Reach.SCOPE:
        return Whose(member.organization, team_id=member.team_id)
    return Whose(member.organization, member_id=member.pk)


def _reaches(member: Member, action: Action) -> bool:
    return permissions.reach(member, action) is not Reach.NONE


@dataclass(frozen=True, slots=True)
class TeamLabel:
    uuid: UUID
    name: str


@dataclass(frozen=True, slots=True)
class MemberLabel:
    """`email` is empty for a former member."""

    uuid: UUID
    name: str
    email: str


@dataclass(frozen=True, slots=True)
class KeyLabel:
    uuid: UUID
    name: str
    public_id: str
    member_id: int


@dataclass(frozen=True, slots=True)
class AccountLabel:
    """`name` is empty for an account that is not the organization's own."""

    uuid: UUID
    name: str


FindAccounts = Callable[[int, Iterable[int] | None], Mapping[int, AccountLabel]]
_find_accounts: list[FindAccounts] = []


def register_accounts(find: FindAccounts) -> None:
    """`find(organization_id, ids)` names upstream accounts, with None all of its own: billing itself does not know routing."""
    _find_accounts[:] = [find]


class Labels:
    """The labels of one organization, looked up when they are first asked for: a query for each kind and call with new ids."""

    def __init__(self, organization: Organization) -> None:
        self.organization = organization
        self._teams: dict[int, TeamLabel] = {}
        self._members: dict[int, MemberLabel] = {}
        self._keys: dict[int, KeyLabel] = {}
        self._accounts: dict[int, AccountLabel] = {}
        self._gone: set[int] = set()
        """Accounts that were asked for and are not there any more: a file of a million requests asks for them once."""

    def teams(self, ids: Iterable[int | None]) -> Mapping[int, TeamLabel]:
        if missing := _missing(ids, self._teams):
            rows = Team.objects.filter(organization=self.organization, pk__in=missing)
            self._teams.update((row.pk, TeamLabel(row.uuid, row.name)) for row in rows)
        return self._teams

    def members(self, ids: Iterable[int | None]) -> Mapping[int, MemberLabel]:
        if missing := _missing(ids, self._members):
            rows = Member.objects.for_organization(self.organization).filter(pk__in=missing).select_related("user")
            rows = rows.only("uuid", "display_name", "user__email")
            self._members.update((row.pk, MemberLabel(row.uuid, str(row), row.user.email if row.user else "")) for row in rows)
        return self._members

    def keys(self, ids: Iterable[int | None]) -> Mapping[int, KeyLabel]:
        if missing := _missing(ids, self._keys):
            rows = (
                ApiKey.objects.for_organization(self.organization)
                .filter(pk__in=missing)
                .only("uuid", "name", "public_id", "member")
            )
            self._keys.update((row.pk, KeyLabel(row.uuid, row.name, row.public_id, row.member_id)) for row in rows)
        return self._keys

    def accounts(self, ids: Iterable[int | None]) -> Mapping[int, AccountLabel]:
        if (missing := _missing(ids, self._accounts) - self._gone) and _find_accounts:
            self._accounts.update(_find_accounts[0](self.organization.pk, missing))
            self._gone |= missing - self._accounts.keys()
        return self._accounts

    def own_accounts(self) -> Mapping[int, AccountLabel]:
        """All of the organization's pools."""
        own = dict(_find_accounts[0](self.organization.pk, None)) if _find_accounts else {}
        self._accounts.update(own)
        return own


def _missing(ids: Iterable[int | None], known: Mapping[int, T]) -> set[int]:
    return {one for one in ids if one is not None} - known.keys()
