"""Refusals in the words of the pages: whose limit it was, how much of it was used, when there is room, what to do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from accounts import permissions
from accounts.models import ApiKey, Member, Organization
from accounts.permissions import Action, Reach
from quotas.models import Limit, LimitRequest, Refusal
from quotas.remaining import RATES, amount, counted, limit_name, small, title_of
from quotas.requests import askable

SHOWN = 10
_TITLES = {
    "pool_exhausted": gettext_lazy("Every account of the pool was used up"),
    "pool_busy": gettext_lazy("The pool’s accounts were cooling down"),
    "concurrency_limit": gettext_lazy("Every account of the pool was busy"),
    "no_account_available": gettext_lazy("No account of the pool could serve it"),
    "model_not_found": gettext_lazy("The model is not known here"),
    "model_unpriced": gettext_lazy("The model has no price"),
    "model_not_allowed": gettext_lazy("The model is not allowed"),
    "reasoning_effort_not_allowed": gettext_lazy("The reasoning effort is not allowed"),
    "fast_mode_not_allowed": gettext_lazy("Fast mode is not allowed"),
    "invalid_json": gettext_lazy("The request was not understood"),
    "payload_too_large": gettext_lazy("The request was too large"),
    "invalid_encoding": gettext_lazy("The request came in an encoding that is not taken"),
    "previous_response_not_found": gettext_lazy("The response it continues is gone"),
    "invalid_api_key": gettext_lazy("The key does not hold any more"),
    "draining": gettext_lazy("The gateway was being restarted"),
    "degraded": gettext_lazy("The gateway could not count usage"),
    "upstream_unavailable": gettext_lazy("The upstream could not be reached"),
}
_ADVICE = {
    "pool_exhausted": gettext_lazy("It comes back by itself; a lead may add an account to the pool."),
    "pool_busy": gettext_lazy("Try again: this passes within a minute."),
    "concurrency_limit": gettext_lazy("Try again: this passes when a running request ends."),
    "no_account_available": gettext_lazy("Ask a lead: the pool needs an account that serves this."),
    "model_not_found": gettext_lazy("Check the name in your client’s configuration."),
    "model_unpriced": gettext_lazy("Use another model, or ask an owner to have it priced."),
    "model_not_allowed": gettext_lazy("Use a model that is allowed, or ask a lead to allow this one."),
    "reasoning_effort_not_allowed": gettext_lazy("Use a lower effort, or ask a lead."),
    "fast_mode_not_allowed": gettext_lazy("Leave fast mode off, or ask a lead."),
    "payload_too_large": gettext_lazy("Start a new session, or send less at once."),
    "previous_response_not_found": gettext_lazy(
        "Your client sends the whole conversation again by itself; if not, start a new session."
    ),
    "invalid_api_key": gettext_lazy("Put the current secret into your client, or issue a new key."),
    "draining": gettext_lazy("Try again: this passes within seconds."),
    "degraded": gettext_lazy("Try again in a few seconds."),
    "upstream_unavailable": gettext_lazy("Try again shortly."),
}


@dataclass(frozen=True, slots=True)
class Told:
    """One refusal as a page tells it. `who` is "" where the reader is the one who was refused.

    `ask_for`: the limit that the reader may ask more of; `is_asked`: that was done already.
    """

    row: Refusal
    who: str
    key_name: str
    ask_for: Limit | None = None
    is_asked: bool = False

    @property
    def title(self) -> str:
        row = self.row
        if row.limit is None or not row.metric:
            return str(_TITLES[row.code]) if row.code in _TITLES else _("The request was refused")
        if row.scope == "plan":
            if not row.limit and not row.scope_name:
                return _("There is no plan to draw on")
            return _("The plan’s quota would have been passed")
        if row.metric in RATES:
            return _("%(limit)s was reached") % {"limit": self._whose}
        return _("%(limit)s would have been passed") % {"limit": self._whose}

    @property
    def _whose(self) -> str:
        """Which limit it was, at the head of a sentence."""
        row = self.row
        about = {"limit": limit_name(row.metric, row.window), "name": row.scope_name}
        if row.scope == "key":
            return _("The key %(name)s’s %(limit)s") % about
        if row.scope == "organization":
            return _("The organization’s %(limit)s") % about
        if self.who:
            return (_("%(name)s’s %(limit)s") if row.scope == "member" else _("The %(name)s team’s %(limit)s")) % about
        return (_("Your %(limit)s") if row.scope == "member" else _("Your team’s %(limit)s")) % about

    @property
    def advice(self) -> str:
        """What to do besides asking for more."""
        if self.row.limit is None or not self.row.metric:
            return str(_ADVICE.get(self.row.code, ""))
        if self.row.scope == "plan":
            return _("An owner can change the plan or buy credits.")
        return _("The limit is 0: it blocks.") if self.row.limit == 0 else ""

    @property
    def level(self) -> str:
        """Whose limit it was and what it counts: `Team Quality · credits, last 7 days`."""
        row = self.row
        known = {Limit.Scope(scope).value: str(Limit.Scope(scope).label) for scope in Limit.Scope.values}
        name = f"{known.get(row.scope, _('Plan') if row.scope == 'plan' else row.scope.capitalize())} {row.scope_name}".strip()
        if row.scope == "plan":
            return _("%(level)s · credits of this plan period") % {"level": name}
        return f"{name} · {small(title_of(row.metric, '')) if row.metric in RATES else counted(row.metric, row.window)}"

    @property
    def has_numbers(self) -> bool:
        return self.row.limit is not None and bool(self.row.metric)

    @property
    def left(self) -> int:
        """Below zero is an overdraft: pages show it (L7)."""
        return (self.row.limit or 0) - (self.row.used or 0) - (self.row.held or 0)

    @property
    def never_fits(self) -> bool:
        """More was needed than the whole limit gives."""
        return self.has_numbers and (self.row.need or 0) > (self.row.limit or 0)

    @property
    def left_text(self) -> str:
        return amount(self.row.metric, self.left)

    @property
    def need_text(self) -> str:
        return amount(self.row.metric, self.row.need or 0)

    @property
    def used_text(self) -> str:
        return amount(self.row.metric, self.row.used or 0)

    @property
    def held_text(self) -> str:
        return amount(self.row.metric, self.row.held or 0)

    @property
    def limit_text(self) -> str:
        return amount(self.row.metric, self.row.limit or 0)


def own(member: Member, *, count: int = SHOWN) -> list[Told]:
    """The member's newest refusals, with what more may be asked of. Five queries at most."""
    rows = list(Refusal.objects.filter(organization=member.organization, member_id=member.pk)[:count])
    wanted = {row.limit_uuid for row in rows if row.limit_uuid is not None}
    limits = {limit.uuid: limit for limit in askable(member).filter(uuid__in=wanted)} if wanted else {}
    pending = set(pending_limits(member)) if limits else set()
    keys = _key_names(member.organization, rows)
    return [
        Told(row, "", keys.get(row.key_id, ""), limit, is_asked=limit is not None and limit.pk in pending)
        for row in rows
        for limit in [limits.get(row.limit_uuid) if row.limit_uuid is not None else None]
    ]


def pending_limits(member: Member) -> QuerySet[LimitRequest, int | None]:
    """Ids of the limits that a request of the member waits for."""
    rows = LimitRequest.objects.filter(organization=member.organization, member=member, status=LimitRequest.Status.PENDING)
    return rows.values_list("limit_id", flat=True)


def of_scope(reader: Member, *, of: Member | None = None, count: int = SHOWN) -> list[Told]:
    """The newest refusals of one member, or of everybody, in the reader's scope. Three queries.

    Of a team, what was refused while the member was in it, as with the request log.
    """
    rows = Refusal.objects.filter(organization=reader.organization)
    if permissions.reach(reader, Action.SEE_REQUESTS) is not Reach.WHOLE:
        rows = rows.filter(team_id=reader.team_id)
    if of is not None:
        rows = rows.filter(member_id=of.pk)
    found = list(rows[:count])
    members = Member.objects.for_organization(reader.organization).filter(pk__in={row.member_id for row in found})
    names = {member.pk: str(member) for member in members.select_related("user")}
    keys = _key_names(reader.organization, found)
    return [Told(row, names.get(row.member_id, _("somebody")), keys.get(row.key_id, "")) for row in found]


def _key_names(organization: Organization, rows: Iterable[Refusal]) -> Mapping[int, str]:
    keys = ApiKey.objects.for_organization(organization).filter(pk__in={row.key_id for row in rows})
    return dict(keys.values_list("pk", "name"))
