"""What an event of the audit trail says to people: who did what, as a sentence, and the values beside it."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Model
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from accounts import audit, display
from accounts.models import ApiKey, ApiToken, AuditEvent, IdentityProvider, Member, Organization, Team
from quotas import pool_door
from quotas.alerts.models import WebhookEndpoint
from quotas.models import Limit

LONGEST = 160
"""Characters of one value; the CSV has all of it."""

PHRASES: Mapping[str, str] = {
    "account.added": gettext_noop("added the account %(object)s to the pool"),
    "account.changed": gettext_noop("changed the account %(object)s"),
    "account.models_set": gettext_noop("said which models the account %(object)s serves"),
    "account.moved": gettext_noop("moved the account %(object)s to another pool"),
    "account.needs_sign_in": gettext_noop("found that the account %(object)s needs sign-in"),
    "account.paused": gettext_noop("paused the account %(object)s"),
    "account.plan_changed": gettext_noop("read another plan from the account %(object)s"),
    "account.removed": gettext_noop("removed the account %(object)s"),
    "account.renewed": gettext_noop("signed the account %(object)s in again"),
    "account.resumed": gettext_noop("let the account %(object)s serve again"),
    "account.withdrawal_link_made": gettext_noop("made a withdrawal link of the account %(object)s"),
    "account.withdrawn": gettext_noop("withdrew the account %(object)s from the pool"),
    "admin.changed": gettext_noop("changed %(object)s in the operators’ pages"),
    "alert.acknowledged": gettext_noop("acknowledged an alert"),
    "alert.delivery_retried": gettext_noop("sent an alert’s message again"),
    "alert.rule_set": gettext_noop("changed an alert rule"),
    "api_token.issued": gettext_noop("issued the API token %(object)s"),
    "api_token.revoked": gettext_noop("revoked the API token %(object)s"),
    "credits.adjusted": gettext_noop("adjusted the purchased credits"),
    "credits.granted": gettext_noop("granted credits"),
    "fallback.removed": gettext_noop("took away the fallbacks of %(object)s"),
    "fallback.set": gettext_noop("set the fallbacks of %(object)s"),
    "filter.active": gettext_noop("filled a model filter: its limits hold from now on"),
    "filter.dropped": gettext_noop("dropped a model filter that no limit uses"),
    "filter.made": gettext_noop("made a model filter"),
    "identity_provider.changed": gettext_noop("changed the sign-in provider %(object)s"),
    "identity_provider.removed": gettext_noop("removed the sign-in provider"),
    "identity_provider.set": gettext_noop("set up the sign-in provider %(object)s"),
    "invitation.accepted": gettext_noop("opened an invitation"),
    "invitation.made": gettext_noop("made an invitation"),
    "invitation.withdrawn": gettext_noop("withdrew an invitation"),
    "invoice.credited": gettext_noop("wrote a credit note"),
    "job.fetched": gettext_noop("fetched a file that was exported"),
    "job.started": gettext_noop("started long work"),
    "job.stopped": gettext_noop("stopped long work"),
    "key.issued": gettext_noop("issued the key %(object)s"),
    "key.revoked": gettext_noop("revoked the key %(object)s"),
    "key.rotated": gettext_noop("gave the key %(object)s a new secret"),
    "limit.boost_ended": gettext_noop("ended a boost"),
    "limit.boosted": gettext_noop("boosted a limit of %(object)s"),
    "limit.removed": gettext_noop("removed a limit of %(object)s"),
    "limit.set": gettext_noop("set a limit of %(object)s"),
    "limit_request.approved": gettext_noop("approved a request for more"),
    "limit_request.denied": gettext_noop("denied a request for more"),
    "limit_request.made": gettext_noop("asked for more"),
    "limit_request.withdrawn": gettext_noop("took back a request for more"),
    "member.added": gettext_noop("added %(object)s"),
    "member.changed": gettext_noop("changed the role or team of %(object)s"),
    "member.fast_mode_allowed": gettext_noop("allowed fast mode to %(object)s"),
    "member.fast_mode_forbidden": gettext_noop("forbade fast mode to %(object)s"),
    "member.invited": gettext_noop("invited %(object)s"),
    "member.kept_owner": gettext_noop("kept %(object)s as the last owner, whatever the provider says"),
    "member.linked": gettext_noop("linked %(object)s to the sign-in provider"),
    "member.removed": gettext_noop("removed %(object)s"),
    "missing.asked": gettext_noop("asked for something that is not there: %(object)s"),
    "monthly_export.changed": gettext_noop("changed the monthly export to finance"),
    "organization.created": gettext_noop("made the organization"),
    "organization.developers_see_pool": gettext_noop("changed whether developers see the pool"),
    "organization.first_run_put_away": gettext_noop("put the list of first steps away"),
    "organization.renamed": gettext_noop("renamed the organization"),
    "organization.resumed": gettext_noop("resumed the organization"),
    "organization.second_factor_changed": gettext_noop("changed of whom a second factor is required"),
    "organization.sign_in_terms_accepted": gettext_noop("accepted the terms for sign-in accounts"),
    "organization.sign_in_terms_withdrawn": gettext_noop("withdrew the terms for sign-in accounts"),
    "organization.suspended": gettext_noop("suspended the organization"),
    "organization.unpriced_models": gettext_noop("changed what becomes of models without a rate"),
    "organization.zone_changed": gettext_noop("changed the time zone"),
    "override.ended": gettext_noop("ended an own price"),
    "override.set": gettext_noop("set an own price"),
    "plan.changed": gettext_noop("changed the plan"),
    "pool.changed": gettext_noop("changed the pool %(object)s"),
    "pool.created": gettext_noop("made the pool %(object)s"),
    "pool.strategy_set": gettext_noop("changed how the pool %(object)s chooses"),
    "purchase.completed": gettext_noop("booked a purchase of credits"),
    "purchase.refunded": gettext_noop("refunded a purchase of credits"),
    "seat.added": gettext_noop("gave a member a seat"),
    "seat.ended": gettext_noop("ended a member’s seat"),
    "second_factor.added": gettext_noop("added a second factor"),
    "second_factor.removed": gettext_noop("removed a second factor"),
    "second_factor.reset": gettext_noop("reset a person’s second factors"),
    "session.ended": gettext_noop("ended a session"),
    "subscription.next_plan": gettext_noop("chose a plan for the next period"),
    "subscription.overage_cap": gettext_noop("changed the cap of a period’s overage"),
    "subscription.plan_changed": gettext_noop("changed the plan"),
    "subscription.plan_taken_over": gettext_noop("took over the plan that had been chosen"),
    "subscription.renewed": gettext_noop("renewed the plan"),
    "subscription.resumed": gettext_noop("resumed the plan"),
    "subscription.suspended": gettext_noop("suspended the plan"),
    "team.created": gettext_noop("made the team %(object)s"),
    "team.renamed": gettext_noop("renamed the team %(object)s"),
    "webhook_endpoint.added": gettext_noop("added the webhook %(object)s"),
    "webhook_endpoint.disabled": gettext_noop("stopped posting to the webhook %(object)s"),
    "webhook_endpoint.removed": gettext_noop("removed the webhook %(object)s"),
    "webhook_endpoint.resumed": gettext_noop("uses the webhook %(object)s again"),
    "webhook_endpoint.rotated": gettext_noop("gave the webhook %(object)s a new secret"),
}

_NAMED: Mapping[str, tuple[type[Model], tuple[str, ...]]] = {
    "member": (Member, ("user",)),
    "team": (Team, ()),
    "api_key": (ApiKey, ()),
    "api_token": (ApiToken, ()),
    "identity_provider": (IdentityProvider, ()),
    "webhook_endpoint": (WebhookEndpoint, ()),
    "limit": (Limit, ("team", "member__user", "key")),
}
"""Types of objects that have names: their rows, and what naming them needs."""
_POOLS = frozenset({"pool", "pool_account"})
"""Types of objects that routing names."""
_POINTS_TO = {"member": "member", "team": "team", "limit": "limit"}
"""Values of `data` that are uuids, by the type of what they point to."""
_AMOUNTS = ("amount", "before", "extra")
"""Values of `data` that are micro-credits where they are about a limit of credits."""


@dataclass(frozen=True, slots=True)
class Told:
    """`sentence` begins with the verb; `details`: names and values, to be read beside it."""

    event: AuditEvent
    actor: str
    sentence: str
    details: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Known:
    """`names`: by type and uuid. `of_credits`: uuids of limits that count credits."""

    names: Mapping[tuple[str, str], str]
    of_credits: frozenset[str]
    zone: ZoneInfo
    now: datetime


def told(organization: Organization, events: Sequence[AuditEvent], *, now: datetime) -> list[Told]:
    """One query for each type of object that is named, at most."""
    known = _known(organization, events, now)
    return [_told(organization, event, known) for event in events]


def _told(organization: Organization, event: AuditEvent, known: _Known) -> Told:
    data: Mapping[str, Any] = event.data if isinstance(event.data, dict) else {}
    name = known.names.get((event.object_type, event.object_id)) or str(data.get("name") or data.get("label") or "")
    if not name:
        name = str(organization) if event.object_type == "organization" else event.object_id
    phrase = PHRASES.get(event.action)
    if phrase is not None:
        sentence = _(phrase) % {"object": name}
    else:
        sentence = f"{event.action.replace('_', ' ').replace('.', ': ')} {name}"
    return Told(event, event.actor_label, sentence, tuple(_details(event, data, name, known)))


def _details(event: AuditEvent, data: Mapping[str, Any], named: str, known: _Known) -> Iterable[tuple[str, str]]:
    """What the sentence does not say: no ids of rows, moments in the organization's zone, credits as credits."""
    if set(data) == {"before", "after"}:
        yield "", f"{_value(data['before'], known)} → {_value(data['after'], known)}"
        return
    is_credits = data.get("metric") == "credits" or bool(known.of_credits & {event.object_id, str(data.get("limit"))})
    for key, value in data.items():
        if key in _POINTS_TO and isinstance(value, str):
            if found := known.names.get((_POINTS_TO[key], value)):
                yield _("of") if key == "limit" else key, found
        elif isinstance(value, int) and not isinstance(value, bool) and key in _AMOUNTS:
            yield key, display.credits(value) if is_credits else display.count(value)
        elif value not in (None, "", [], {}, named) and not (isinstance(value, str) and _uuid(value)):
            yield key.replace("_", " "), _value(value, known)


def _value(value: Any, known: _Known) -> str:
    if value is None:
        return display.NOTHING
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, str) and (moment := _moment(value)) is not None:
        return display.full_moment(moment, known.zone, known.now)
    if isinstance(value, list) and not any(isinstance(one, list | dict) for one in value):
        text = ", ".join(str(one) for one in value) or display.NOTHING
    elif isinstance(value, dict):
        text = ", ".join(f"{key.replace('_', ' ')} {_value(one, known)}" for key, one in value.items())
    else:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _known(organization: Organization, events: Sequence[AuditEvent], now: datetime) -> _Known:
    wanted: dict[str, set[UUID]] = defaultdict(set)
    for event in events:
        pairs = [(event.object_type, event.object_id)]
        if isinstance(event.data, dict):
            pairs += [(kind, str(event.data[key])) for key, kind in _POINTS_TO.items() if event.data.get(key)]
        for kind, text in pairs:
            if kind in {*_NAMED, *_POOLS} and (uuid := _uuid(text)) is not None:
                wanted[kind].add(uuid)
    names: dict[tuple[str, str], str] = {}
    of_credits = set()
    for kind, uuids in wanted.items():
        if kind in _POOLS:
            found = pool_door.routing().names(organization, kind, uuids)
            names |= {(kind, uuid): name for uuid, name in found.items()}
            continue
        model, related = _NAMED[kind]
        rows: Any = model._default_manager.filter(organization=organization, uuid__in=uuids)
        for row in rows.select_related(*related) if related else rows:
            names[(kind, str(row.uuid))] = _name_of(row, organization)
            if isinstance(row, Limit) and row.metric == Limit.Metric.CREDITS:
                of_credits.add(str(row.uuid))
    return _Known(names, frozenset(of_credits), ZoneInfo(organization.timezone), now)


def _name_of(row: Any, organization: Organization) -> str:
    if isinstance(row, Limit):
        return str(row.team or row.member or row.key or organization)
    return str(row.name) if hasattr(row, "name") else str(row)


def _moment(text: str) -> datetime | None:
    """Of an aware ISO text with a time."""
    if "T" not in text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def actors(organization: Organization) -> list[str]:
    """Whom the form offers: the members, and who else acts."""
    people = Member.objects.for_organization(organization).current().exclude(user=None).order_by("user__email")
    return [*people.values_list("user__email", flat=True)[:200], audit.OPERATOR_LABEL]
