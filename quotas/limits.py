"""Setting limits: the only writer of `Limit` rows. A change holds on the very next request, on every process."""

from uuid import UUID

from django.db import transaction

from accounts import audit, keys, members, teams
from accounts.models import ApiKey, Member, Organization, Team, User
from billing import credits
from config import snapshot
from quotas.engine import MOST
from quotas.errors import LimitsError
from quotas.models import Limit

Target = Team | Member | ApiKey | None


def _target(organization: Organization, scope: str, of: str) -> Target:
    """The team, member or key that `of` names: a team's name, a member's e-mail, a key's public id.

    Raises LimitsError or accounts.errors.NotFound.
    """
    if scope == Limit.Scope.ORGANIZATION:
        if of:
            raise LimitsError("A limit of the organization names no team, member or key.")
        return None
    if not of:
        names = {"team": "the team's name", "member": "the member's e-mail", "key": "the key's public id"}
        raise LimitsError(f"Which {scope}? A limit of that scope needs {names[scope]}.")
    if scope == Limit.Scope.TEAM:
        return teams.find(organization, of)
    if scope == Limit.Scope.MEMBER:
        return members.find(organization, of)
    key = ApiKey.objects.for_organization(organization).unrevoked().filter(public_id=keys.parse_public_id(of)).first()
    if key is None:
        raise LimitsError(f"{organization.slug} has no key with the public id {of!r}.")
    return key


def _amount(metric: str, text: str) -> int | None:
    """What an operator typed: decimal credits, or a count; `none` is None. Raises LimitsError."""
    if text.strip().lower() == "none":
        return None
    try:
        amount = credits.parse(text) if metric == Limit.Metric.CREDITS else _count(text)
    except ValueError as error:
        raise LimitsError(f"{error}.") from error
    if not 0 <= amount <= MOST:
        raise LimitsError(f"{text!r} is not between 0 and the largest amount that can be counted.")
    return int(amount)


def _count(text: str) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(stripped)


def set_limit(
    organization: Organization,
    *,
    scope: str,
    of: str | None,
    metric: str,
    window: str,
    amount: str,
    by: User | None = None,
) -> UUID | None:
    """Sets, replaces or (amount "none") removes the one limit of scope, metric and window; its uuid, or None if there was none.

    As people write it: `of` names the team, member (e-mail) or key (public id), `amount` is decimal credits or a count, 0 blocks;
    `window` is "" for requests_per_minute and concurrent. Raises LimitsError, or accounts.errors.NotFound for what `of` names.
    """
    for given, known, what in ((scope, Limit.Scope, "scope"), (metric, Limit.Metric, "metric"), (window, Limit.Window, "window")):
        if given not in known.values:
            raise LimitsError(f"There is no {what} {given!r}; there are {', '.join(name for name in known.values if name)}.")
    if (metric in (Limit.Metric.REQUESTS_PER_MINUTE, Limit.Metric.CONCURRENT)) != (window == ""):
        if window:
            raise LimitsError(f"{metric} takes no window.")
        raise LimitsError(f"{metric} needs a window: {', '.join(name for name in Limit.Window.values if name)}.")
    subject, value = _target(organization, scope, of or ""), _amount(metric, amount)
    which = {
        "organization": organization,
        "scope": scope,
        "team": subject if isinstance(subject, Team) else None,
        "member": subject if isinstance(subject, Member) else None,
        "key": subject if isinstance(subject, ApiKey) else None,
        "metric": metric,
        "window": window,
    }
    with transaction.atomic():
        # The version first: its row lock puts changes of one organization in order.
        snapshot.bump(organization.pk)
        held = Limit.objects.filter(**which).first()
        if value is None:
            if held is None:
                return None
            _audit(organization, held, by, {"was": held.amount, "amount": None})
            held.delete()
            return held.uuid
        was = None if held is None else held.amount
        if held is None:
            held = Limit(**which)
        held.amount = value
        held.save()
        _audit(organization, held, by, {"was": was, "amount": value})
        return held.uuid


def _audit(organization: Organization, limit: Limit, by: User | None, change: dict[str, int | None]) -> None:
    audit.record(
        organization,
        actor=by,
        action="limit.set" if change["amount"] is not None else "limit.removed",
        object_type="limit",
        object_id=str(limit.uuid),
        data={"scope": limit.scope, "metric": limit.metric, "window": limit.window, **change},
    )
