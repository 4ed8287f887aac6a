"""Setting limits: the only writer of `Limit` and `LimitBoost` rows. A change holds on the very next request, on every process."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from accounts import audit, display, keys, members, teams
from accounts.models import ApiKey, Member, Organization, Team, User
from billing import credits
from config import snapshot
from config.clock import utc_now
from quotas import filters, logbook, remaining
from quotas.engine import MOST, MOST_LOGGED
from quotas.errors import AboveScope, LimitsError
from quotas.models import Limit, LimitBoost, LimitRequest
from quotas.windows import ROLLING_SECONDS

RATES = (Limit.Metric.REQUESTS_PER_SECOND, Limit.Metric.REQUESTS_PER_MINUTE, Limit.Metric.CONCURRENT)
"""Metrics without a window."""

Target = Team | Member | ApiKey | None

_NAMELESS = {
    "team": gettext_noop("Which team? A limit of that scope needs the team's name."),
    "member": gettext_noop("Which member? A limit of that scope needs the member's e-mail."),
    "key": gettext_noop("Which key? A limit of that scope needs the key's public id."),
}


def _target(organization: Organization, scope: str, of: str) -> Target:
    """The team, member or key that `of` names: a team's name, a member's e-mail, a key's public id.

    Raises LimitsError or accounts.errors.NotFound.
    """
    if scope == Limit.Scope.ORGANIZATION:
        if of:
            raise LimitsError(_("A limit of the organization names no team, member or key."))
        return None
    if not of:
        raise LimitsError(_(_NAMELESS[scope]))
    if scope == Limit.Scope.TEAM:
        return teams.find(organization, of)
    if scope == Limit.Scope.MEMBER:
        return members.find(organization, of)
    key = ApiKey.objects.for_organization(organization).unrevoked().filter(public_id=keys.parse_public_id(of)).first()
    if key is None:
        raise LimitsError(_("%(slug)s has no key with the public id %(of)r.") % {"slug": organization.slug, "of": of})
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
        raise LimitsError(_("%(text)r is not between 0 and the largest amount that can be counted.") % {"text": text})
    return int(amount)


def _count(text: str) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()):
        raise ValueError(_("%(text)r is not a whole number") % {"text": text})
    return int(stripped)


def set_limit(
    organization: Organization,
    *,
    scope: str,
    of: str | None,
    metric: str,
    window: str,
    amount: str,
    models: Sequence[str] = (),
    strategy: str | None = None,
    by: User | None = None,
    setter: Member | None = None,
) -> UUID | None:
    """Sets, replaces or (amount "none") removes the one limit of scope, metric, window and models; its uuid, or None if there was
    none.

    As people write it: `of` names the team, member (e-mail) or key (public id), `amount` is decimal credits or a count, 0 blocks;
    `window` is "" for rates and concurrent. With `models` it looks at requests for these only, and holds from when what they used
    before has been added (`filters`). `strategy` sliding_log counts a rolling window by the second; None leaves what is there.
    Raises LimitsError, or accounts.errors.NotFound for what `of` names; AboveScope if a `setter` is given (a member whose right
    to the scope was asked) and it would be above the limit of the setter's own scope.
    """
    for given, known, what in ((scope, Limit.Scope, "scope"), (metric, Limit.Metric, "metric"), (window, Limit.Window, "window")):
        if given not in known.values:
            raise LimitsError(
                _("There is no %(what)s %(given)r; there are %(values)s.")
                % {"what": what, "given": given, "values": ", ".join(name for name in known.values if name)}
            )
    if (metric in RATES) != (window == ""):
        if window:
            raise LimitsError(_("%(metric)s takes no window.") % {"metric": metric})
        raise LimitsError(
            _("%(metric)s needs a window: %(values)s.")
            % {"metric": metric, "values": ", ".join(name for name in Limit.Window.values if name)}
        )
    subject, value = _target(organization, scope, of or ""), _amount(metric, amount)
    if strategy is not None and strategy not in Limit.Strategy.values:
        raise LimitsError(
            _("There is no strategy %(strategy)r; there is %(sliding_log)s.")
            % {"strategy": strategy, "sliding_log": Limit.Strategy.SLIDING_LOG}
        )
    if strategy == Limit.Strategy.SLIDING_LOG and value is not None:
        _check_log(organization, subject, metric, window)
    which: dict[str, Any] = {
        "organization": organization,
        "scope": scope,
        "team": subject if isinstance(subject, Team) else None,
        "member": subject if isinstance(subject, Member) else None,
        "key": subject if isinstance(subject, ApiKey) else None,
        "metric": metric,
        "window": window,
        "model_filter": None,
    }
    with transaction.atomic():
        # The version first: its row lock puts changes of one organization in order.
        snapshot.bump(organization.pk)
        if models:
            which["model_filter"] = filters.ensure(organization, models, by=by, now=utc_now())
        held = Limit.objects.filter(**which).first()
        if held is None and value is None:
            return None
        held = held or Limit(**which)
        if strategy is not None:
            held.strategy = strategy
        return _put(held, value, by=by, setter=setter)


def _check_log(organization: Organization, subject: Target, metric: str, window: str) -> None:
    """May this window be counted by the second? Raises LimitsError."""
    if window not in ROLLING_SECONDS:
        rolling = ", ".join(ROLLING_SECONDS)
        raise LimitsError(
            _("Only rolling windows (%(rolling)s) can be counted by the second; %(value)s is exact as it is.")
            % {"rolling": rolling, "value": window or metric}
        )
    target: dict[str, Any] = {}
    if subject is not None:
        target = {{Team: "team", Member: "member", ApiKey: "key"}[type(subject)]: subject}
    since = utc_now() - timedelta(seconds=ROLLING_SECONDS[window])
    if logbook.entries(organization.pk, target, since, MOST_LOGGED) > MOST_LOGGED:
        raise LimitsError(
            _(
                "More than %(most_logged)s requests are in this window, too many to be counted by the second. "
                "The usual strategy counts at most one bucket too much."
            )
            % {"most_logged": display.count(MOST_LOGGED)}
        )


def change(limit: Limit, amount: str, *, by: User | None, setter: Member | None = None) -> UUID | None:
    """Gives a limit another amount, as people write it, or removes it ("none"). None if it was gone already.

    Raises LimitsError, AboveScope.
    """
    value = _amount(limit.metric, amount)
    with transaction.atomic():
        snapshot.bump(limit.organization_id)
        held = Limit.objects.select_related("organization").filter(pk=limit.pk).first()
        return None if held is None else _put(held, value, by=by, setter=setter)


def _put(limit: Limit, value: int | None, *, by: User | None, setter: Member | None) -> UUID:
    """Under the organization's lock."""
    was = None if limit.pk is None else limit.amount
    check_height(setter, limit, value)
    if value is None:
        _audit(limit.organization, limit, by, {"was": was, "amount": None})
        limit.delete()
        return limit.uuid
    limit.amount = value
    limit.save()
    _audit(limit.organization, limit, by, {"was": was, "amount": value})
    return limit.uuid


def boost(
    limit: Limit,
    *,
    extra: int,
    until: datetime,
    reason: str,
    by: User | None,
    setter: Member | None = None,
    request: LimitRequest | None = None,
    now: datetime | None = None,
) -> LimitBoost:
    """Adds `extra` (micro-credits for credits, else a count) to the limit from now until `until`. Boosts add up.

    Raises LimitsError, AboveScope.
    """
    now = now or utc_now()
    if extra <= 0:
        raise LimitsError(_("How much more? The amount must be above 0."))
    if until <= now:
        raise LimitsError(_("Until when? That moment has passed."))
    with transaction.atomic():
        snapshot.bump(limit.organization_id)
        held = Limit.objects.select_related("organization").filter(pk=limit.pk).first()
        if held is None:
            raise LimitsError(_("The limit is not there any more, so it holds nobody."))
        given = LimitBoost.objects.filter(limit=held, revoked_at=None, ends_at__gt=now)
        total = held.amount + extra + sum(given.values_list("extra", flat=True))
        if total > MOST:
            raise LimitsError(_("That is more than can be counted."))
        check_height(setter, held, total)
        made = LimitBoost.objects.create(
            organization_id=held.organization_id,
            limit=held,
            extra=extra,
            starts_at=now,
            ends_at=until,
            reason=reason[:200],
            granted_by=by,
            request=request,
        )
        audit.record(
            held.organization,
            actor=by,
            action="limit.boosted",
            object_type="limit",
            object_id=str(held.uuid),
            data={"boost": str(made.uuid), "extra": extra, "until": until.isoformat()},
        )
    return made


def end_boost(given: LimitBoost, *, by: User | None, now: datetime) -> LimitBoost:
    """Ends a boost before its time. A second time changes nothing."""
    with transaction.atomic():
        snapshot.bump(given.organization_id)
        given = LimitBoost.objects.select_related("organization", "limit").get(pk=given.pk)
        if given.revoked_at is None:
            given.revoked_at = now
            given.save(update_fields=["revoked_at"])
            audit.record(
                given.organization,
                actor=by,
                action="limit.boost_ended",
                object_type="limit",
                object_id=str(given.limit.uuid),
                data={"boost": str(given.uuid)},
            )
    return given


def check_height(setter: Member | None, limit: Limit, value: int | None) -> None:
    """Raises AboveScope where a lead would set `limit` to `value` (None: remove it) above what holds the lead's own scope.

    Compared with the limit of that scope that asks the same question (metric, window, models), boosts not counted. Lifting a limit
    below it is no raise, for it still holds; lifting the scope's own is. Owners and operators are not bound.
    """
    if setter is None or setter.role == Member.Role.OWNER:
        return
    scope = (
        {"scope": Limit.Scope.ORGANIZATION} if setter.team_id is None else {"scope": Limit.Scope.TEAM, "team_id": setter.team_id}
    )
    same = {"metric": limit.metric, "window": limit.window, "model_filter_id": limit.model_filter_id}
    bound = Limit.objects.filter(organization_id=limit.organization_id, **scope, **same).first()
    if bound is None or (value is None and bound.pk != limit.pk):
        return
    if value is None or value > bound.amount:
        if value is None:
            done = _("Leads do not remove the limit of their own scope: %(whose)s may use %(amount)s. Ask an owner.")
        elif bound.pk == limit.pk:
            done = _("Leads do not raise the limit of their own scope: %(whose)s may use %(amount)s. Ask an owner.")
        else:
            done = _("Leads do not go above the limit of their own scope: %(whose)s may use %(amount)s. Ask an owner.")
        whose = _("the organization") if setter.team is None else _("the %(team)s team") % {"team": setter.team.name}
        raise AboveScope(done % {"whose": whose, "amount": remaining.amount(limit.metric, bound.amount)})


def _audit(organization: Organization, limit: Limit, by: User | None, change: dict[str, int | None]) -> None:
    models = [] if limit.model_filter is None else list(limit.model_filter.model_names)
    audit.record(
        organization,
        actor=by,
        action="limit.set" if change["amount"] is not None else "limit.removed",
        object_type="limit",
        object_id=str(limit.uuid),
        data={
            "scope": limit.scope,
            "metric": limit.metric,
            "window": limit.window,
            "models": models,
            "strategy": limit.strategy,
            **change,
        },
    )
