"""What the address of the request log asks for, and what its form offers. Only what the reader's role may filter by."""

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop

from accounts.models import ApiKey, Member, Team
from billing import overview, reports
from billing.labels import Accounts, Labels, Sight
from billing.models import Rate, RateOverride, UsageRecord
from billing.snapshots import FALLBACK_MODEL
from billing.usage_log import Wanted
from quotas import request_log
from quotas.errors import FilterForbidden, FilterMissing, FilterRefused

HOUR, TODAY, WEEK, MONTH, ALL, CUSTOM = "hour", "today", "7d", "30d", "all", "custom"
PRESETS = (
    (HOUR, gettext_lazy("Hour")),
    (TODAY, gettext_lazy("Today")),
    (WEEK, gettext_lazy("7 d")),
    (MONTH, gettext_lazy("30 d")),
    (ALL, gettext_lazy("All")),
)
STATUSES = (*UsageRecord.Status.choices, (request_log.REFUSED, gettext_lazy("Refused")))
NAMES = ("member", "team", "key", "model", "account", "status")
_FIRST, _LAST = date(2000, 1, 1), date(2199, 12, 31)


@dataclass(frozen=True, slots=True)
class Option:
    value: str
    name: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Chosen:
    """`query` holds the parameters that ask for the same again, without a place in the list."""

    wanted: Wanted
    range: str
    query: dict[str, str]
    values: dict[str, str] = field(default_factory=dict)
    """What stands in the form's fields."""

    @property
    def is_filtered(self) -> bool:
        return any(name in self.query for name in NAMES)

    def url(self, **place: str) -> str:
        """The query string that asks for the same, at a place of the list."""
        return f"?{urlencode({**self.query, **place})}"

    def in_range(self, name: str) -> str:
        """The same of another time."""
        return f"?{urlencode({**{kept: text for kept, text in self.query.items() if kept not in ('from', 'to')}, 'range': name})}"


def default(sight: Sight, zone: ZoneInfo, now: datetime) -> Chosen:
    return Chosen(Wanted(start=_start(TODAY, zone, now)), TODAY, {"range": TODAY})


def chosen(sight: Sight, query: Any, zone: ZoneInfo, now: datetime) -> Chosen:
    """By the request's parameters. A query for each row that is named. Raises FilterRefused: for what there is not, what is not
    the organization's, and what the role may not look by."""
    kind = query.get("range", "") or (CUSTOM if query.get("from") or query.get("to") else TODAY)
    kept: dict[str, str] = {"range": kind}
    start, end = None, None
    if kind == CUSTOM:
        start, end = _moment(query.get("from", ""), zone), _moment(query.get("to", ""), zone)
        if start is not None and end is not None and end <= start:
            raise FilterRefused(_("The time ends before it begins."))
        kept |= {name: query[name] for name in ("from", "to") if query.get(name)}
    elif kind in dict(PRESETS):
        start = _start(kind, zone, now)
    else:
        raise FilterRefused(_("%(kind)r is no time: %(dict)s or custom.") % {"kind": kind[:40], "dict": ", ".join(dict(PRESETS))})
    ids: dict[str, int] = {}
    for name in ("member", "team", "key", "account"):
        if text := query.get(name, ""):
            ids[f"{name}_id"] = _id_of(sight, name, text)
            kept[name] = text
    status, model = query.get("status", ""), query.get("model", "").strip()
    if status:
        if status not in dict(STATUSES):
            raise FilterRefused(_("%(status)r is no status.") % {"status": status[:40]})
        kept["status"] = status
    if model:
        if len(model) > 120 or not model.isprintable():
            raise FilterRefused(_("That is no model’s name."))
        kept["model"] = model
    values = {name: query.get(name, "") for name in ("from", "to")}
    return Chosen(Wanted(**ids, model=model, status=status, start=start, end=end), kind, kept, values)


def _start(kind: str, zone: ZoneInfo, now: datetime) -> datetime | None:
    if kind == ALL:
        return None
    if kind == HOUR:
        return now - timedelta(hours=1)
    days = {TODAY: 1, WEEK: 7, MONTH: 30}[kind]
    return overview.midnight(reports.day_of(now, zone) - timedelta(days=days - 1), zone)


def _moment(text: str, zone: ZoneInfo) -> datetime | None:
    """As a browser's date-and-time field says it, in the organization's zone."""
    if not text:
        return None
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        raise FilterRefused(_("%(text)r is no date and time, such as 2026-11-18T14:20.") % {"text": text[:40]}) from None
    if not _FIRST <= local.date() <= _LAST:
        raise FilterRefused(
            _("%(text)r is not between %(first)s and %(last)s.") % {"text": text[:40], "first": _FIRST, "last": _LAST}
        )
    return local.replace(tzinfo=zone) if local.tzinfo is None else local


_MODELS = {"member": Member, "team": Team, "key": ApiKey}
_MISSING = {
    "member": gettext_noop("There is no such member here."),
    "team": gettext_noop("There is no such team here."),
    "key": gettext_noop("There is no such key here."),
    "account": gettext_noop("There is no such account here."),
}


def _id_of(sight: Sight, name: str, text: str) -> int:
    """The row's id. A foreign one is as a missing one."""
    if name not in filters(sight):
        raise FilterForbidden(_("Requests are not looked for by %(filter)s here.") % {"filter": name})
    uuid, organization = request_log.as_uuid(text), sight.whose.organization
    found = None
    if uuid is not None and name == "account":
        found = next((pk for pk, label in Labels(organization).own_accounts().items() if label.uuid == uuid), None)
    elif uuid is not None:
        rows = _MODELS[name].objects.filter(organization=organization, uuid=uuid)  # type: ignore[attr-defined]
        if name == "key" and sight.whose.member_id is not None:
            rows = rows.filter(member_id=sight.whose.member_id)
        found = rows.values_list("pk", flat=True).first()
    if found is None:
        raise FilterMissing(_(_MISSING[name]))
    return int(found)


def filters(sight: Sight) -> tuple[str, ...]:
    """What the reader may look by, besides time, model and status."""
    if sight.whose.member_id is not None:
        return ("key",)
    team = ("team",) if sight.whose.team_id is None else ()
    account = ("account",) if sight.accounts is Accounts.LABELS else ()
    return ("member", *team, "key", *account)


def options(sight: Sight, now_chosen: Chosen, labels: Labels, *, models_seen: set[str]) -> dict[str, list[Option]]:
    """What the form offers, by filter. Keys are offered once their member is chosen. A query for each at most."""
    whose, query = sight.whose, now_chosen.query
    offered: dict[str, list[tuple[str, str]]] = {}
    asked = filters(sight)
    if "member" in asked:
        rows = (
            Member.objects.for_organization(whose.organization).select_related("user").only("uuid", "display_name", "user__email")
        )
        people = rows if whose.team_id is None else rows.filter(team_id=whose.team_id)
        offered["member"] = sorted(((str(row.uuid), str(row)) for row in people), key=lambda one: one[1].casefold())
    if "team" in asked:
        teams = Team.objects.filter(organization=whose.organization).order_by("name")
        offered["team"] = [(str(row.uuid), row.name) for row in teams]
    member_id, key_id = whose.member_id or now_chosen.wanted.member_id, now_chosen.wanted.key_id
    keys = ApiKey.objects.for_organization(whose.organization).order_by("name", "pk")
    if member_id is not None or key_id is not None:
        keys = keys.filter(member_id=member_id) if member_id is not None else keys.filter(pk=key_id or 0)
        offered["key"] = [
            (str(row.uuid), _("%(name)s (revoked)") % {"name": row.name} if row.revoked_at else row.name) for row in keys
        ]
    if "account" in asked:
        accounts = sorted(labels.own_accounts().values(), key=lambda one: one.name.casefold())
        offered["account"] = [(str(one.uuid), one.name) for one in accounts]
    names = set(Rate.objects.order_by().values_list("model", flat=True).distinct())
    names |= set(RateOverride.objects.filter(organization=whose.organization).values_list("model", flat=True))
    models = (names | models_seen | ({query["model"]} if "model" in query else set())) - {FALLBACK_MODEL, ""}
    offered["model"] = [(name, name) for name in sorted(models)]
    offered["status"] = [(value, str(text)) for value, text in STATUSES]
    return {name: [Option(value, str(text), value == query.get(name)) for value, text in found] for name, found in offered.items()}
