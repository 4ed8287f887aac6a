"""What a role may do: one table, asked by every door. Hiding a button is not permission; the doors ask too."""

from enum import Enum, StrEnum

from accounts.models import Member


class Action(StrEnum):
    """Something that a page, an API call or a live page does."""

    USE_KEYS = "use_keys"
    """Issue, see and revoke a key."""
    SEE_USAGE = "see_usage"
    """Sums of what was used."""
    SEE_REQUESTS = "see_requests"
    """Single requests, with their price."""
    SEE_MEMBERS = "see_members"
    MANAGE_MEMBERS = "manage_members"
    """Add and remove developers; other roles are an owner's to give (`may_give_role`)."""
    SET_LIMITS = "set_limits"
    GLANCE_AT_POOL = "glance_at_pool"
    """How the pool stands, without its accounts' names and persons: who sees the pool, and where the organization turned it on
    (`developers_see_pool`) its developers and leads of teams."""
    SEE_POOL = "see_pool"
    MANAGE_POOL = "manage_pool"
    SEE_ALERTS = "see_alerts"
    """What was told, and to whom. Finance sees what is about money alone (`quotas.alerts.audience`)."""
    SEE_MONEY = "see_money"
    """Ledger, invoices, exports."""
    MANAGE_ORGANIZATION = "manage_organization"
    """Plan, credits, sign-in policy, terms, webhooks."""


class Reach(Enum):
    """How far a role's right goes."""

    NONE = 0
    OWN = 1
    """What belongs to the member."""
    SCOPE = 2
    """The member's team, or the whole organization for who has no team."""
    WHOLE = 3
    """The organization, and only for who has no team."""


_NONE = dict.fromkeys(Action, Reach.NONE)

TABLE: dict[str, dict[Action, Reach]] = {
    Member.Role.DEVELOPER: {
        **_NONE,
        Action.USE_KEYS: Reach.OWN,
        Action.SEE_USAGE: Reach.OWN,
        Action.SEE_REQUESTS: Reach.OWN,
        Action.SEE_ALERTS: Reach.OWN,
    },
    Member.Role.LEAD: {
        **_NONE,
        Action.USE_KEYS: Reach.SCOPE,
        Action.SEE_USAGE: Reach.SCOPE,
        Action.SEE_REQUESTS: Reach.SCOPE,
        Action.SEE_MEMBERS: Reach.SCOPE,
        Action.MANAGE_MEMBERS: Reach.SCOPE,
        Action.SET_LIMITS: Reach.SCOPE,
        Action.GLANCE_AT_POOL: Reach.WHOLE,
        Action.SEE_POOL: Reach.WHOLE,
        Action.MANAGE_POOL: Reach.WHOLE,
        Action.SEE_ALERTS: Reach.SCOPE,
    },
    Member.Role.FINANCE: {
        **_NONE,
        Action.SEE_USAGE: Reach.SCOPE,
        Action.SEE_ALERTS: Reach.SCOPE,
        Action.SEE_MONEY: Reach.SCOPE,
    },
    Member.Role.OWNER: dict.fromkeys(Action, Reach.SCOPE),
}


def reach(member: Member, action: Action) -> Reach:
    """How far this member's right to the action goes; WHOLE and SCOPE come out as NONE, SCOPE or WHOLE of this very member."""
    given = TABLE[member.role][action]
    if action is Action.GLANCE_AT_POOL and _is_shown_pool(member):
        return Reach.WHOLE
    if given is Reach.WHOLE and member.team_id is not None:
        return Reach.NONE
    if given is Reach.SCOPE and member.team_id is None:
        return Reach.WHOLE
    return given


def _is_shown_pool(member: Member) -> bool:
    return member.role in (Member.Role.DEVELOPER, Member.Role.LEAD) and member.organization.developers_see_pool


def can(member: Member, action: Action, *, of: Member | None = None, team_id: int | None = None) -> bool:
    """May the member do this with what belongs to `of`, or to the team, or (neither given) to the organization?

    The caller has made sure that the object is of the member's organization: a foreign one is 404, never a question of rights.
    """
    how_far = reach(member, action)
    if member.removed_at is not None or how_far is Reach.NONE:
        return False
    if how_far is Reach.WHOLE:
        return True
    if of is not None and of.pk == member.pk:
        return True
    if how_far is Reach.OWN:
        return False
    touched = of.team_id if of is not None else team_id
    return touched is not None and touched == member.team_id


def may_give_role(member: Member, role: str, *, team_id: int | None) -> bool:
    """Owners give every role; leads add and remove developers of their scope."""
    if member.role == Member.Role.OWNER:
        return True
    return role == Member.Role.DEVELOPER and can(member, Action.MANAGE_MEMBERS, team_id=team_id)
