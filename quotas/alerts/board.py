"""What the alerts page shows: what is open, who was told, how each delivery went, which rules and endpoints there are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Count, Max, Prefetch, Q, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from accounts import display, locales, permissions
from accounts.models import Member, Organization
from accounts.permissions import Action, Reach
from billing import periods
from quotas import drawn, forecast, remaining
from quotas.alerts import audience, delivery, endpoints, lines, wording
from quotas.alerts.models import Alert, AlertDelivery, AlertQuerySet, AlertRule, WebhookEndpoint
from quotas.alerts.wording import Words
from quotas.errors import Degraded, NoActivePlan, Stale
from quotas.forecast import Outlook

MOST_OPEN = 100
EARLIER = 10
PAGE = 20
NAMED = 2
"""So many who were written to are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An alert in a reader's words. `told`: who was, in a sentence's middle."""

    row: Alert
    words: Words
    told: str
    may_acknowledge: bool

    @property
    def is_urgent(self) -> bool:
        return self.row.kind in wording.URGENT

    @property
    def tone(self) -> str:
        return "bad" if self.is_urgent or self.row.line == 100 else "warn"

    @property
    def end(self) -> str:
        """Why it is not open: acknowledged, or over."""
        if self.row.acknowledged_at is not None:
            return _("Acknowledged by %(name)s") % {"name": self.row.acknowledged_by or _("somebody")}
        return _("Over")


@dataclass(frozen=True, slots=True)
class Sent:
    """A delivery: what, to whom, and how it went."""

    row: AlertDelivery
    title: str
    to: str
    tone: str
    result: str
    note: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of alerts; `told`: how many this month, of those that the reader sees."""

    kind: str
    when: str
    subject: str
    emailed: str
    told: int
    is_on: bool


@dataclass(frozen=True, slots=True)
class Endpoint:
    row: WebhookEndpoint
    last_at: datetime | None
    failed: int
    """Deliveries that were given up, or fail now."""
    version: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """Does the organization's quota last? `trouble` says why nobody can tell."""

    outlook: Outlook | None
    left: int
    limit: int
    now: datetime
    resets_at: datetime | None
    trouble: str = ""

    @property
    def percent(self) -> int:
        return display.percent_left(self.left, self.limit)

    def _at(self, seconds: int | None) -> datetime | None:
        return None if seconds is None else datetime.fromtimestamp(self.now.timestamp() + seconds, UTC)

    @property
    def around(self) -> datetime | None:
        return self._at(self.outlook.around) if self.outlook else None

    @property
    def soonest(self) -> datetime | None:
        return self._at(self.outlook.soonest) if self.outlook else None

    @property
    def latest(self) -> datetime | None:
        """None: at the slowest pace it lasts."""
        return self._at(self.outlook.latest) if self.outlook else None


def alerts(reader: Member, *, now: datetime) -> tuple[list[Shown], list[Shown]]:
    """Open ones, what needs somebody first; and the newest that are not. Four queries."""
    rows = seen(reader)
    found = [shown(row, reader, now) for row in rows.open()[:MOST_OPEN]]
    found.sort(key=lambda one: (not one.is_urgent, -one.row.line, -one.row.told_at.timestamp()))
    over = rows.exclude(ended_at=None, acknowledged_at=None)[:EARLIER]
    return found, [shown(row, reader, now) for row in over]


def seen(reader: Member) -> AlertQuerySet:
    """The organization's alerts that the reader may know of, with what `shown` needs."""
    deliveries = AlertDelivery.objects.select_related("member__user", "endpoint").order_by("pk")
    return (
        Alert.objects.for_organization(reader.organization)
        .filter(audience.visible(reader))
        .select_related(*audience.RELATED, "acknowledged_by__user")
        .prefetch_related(Prefetch("deliveries", queryset=deliveries, to_attr="sent"))
    )


def shown(row: Alert, reader: Member, now: datetime) -> Shown:
    """Of a row of `seen`; asks nothing."""
    return Shown(row, wording.words(row, reader=reader, now=now), _told(row, reader), audience.may_acknowledge(reader, row))


def _told(row: Alert, reader: Member) -> str:
    """`e-mailed to you and 2 others · posted to chat-bridge`. Who sees only their own is told of themselves only."""
    sent: Sequence[AlertDelivery] = row.sent  # type: ignore[attr-defined]
    is_narrow = permissions.reach(reader, Action.SEE_ALERTS) is Reach.OWN
    mailed = [one.member for one in sent if one.member is not None and one.status != AlertDelivery.Status.DROPPED]
    names = [str(member) for member in mailed if member.pk != reader.pk]
    parts = [_("you")] * (len(names) < len(mailed))
    if not is_narrow:
        parts += names[: NAMED - len(parts)]
        if rest := len(mailed) - len(parts):
            parts.append(ngettext("%(count)s other", "%(count)s others", rest) % {"count": rest})
    told = [_("e-mailed to %(people)s") % {"people": _listed(parts)}] if parts else []
    posted = [] if is_narrow else [str(one.endpoint) for one in sent if one.endpoint is not None]
    if posted:
        told.append(_("posted to %(endpoints)s") % {"endpoints": _listed(posted)})
    return " · ".join(told) or _("told to nobody")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else _("%(names)s and %(last)s") % {"names": ", ".join(names[:-1]), "last": names[-1]}


def sent(reader: Member, *, before: str, now: datetime) -> tuple[list[Sent], str]:
    """The newest deliveries that the reader may know of, older than the one with the uuid `before`; the uuid that the next page
    is before, "" if this is the last. Nothing for who sees only their own. Three queries at most."""
    rows = deliveries(reader)
    page = rows.order_by("-pk")
    try:
        marked = rows.filter(uuid=UUID(before)).values("pk") if before else None
    except ValueError:
        marked = None
    if marked is not None:
        page = page.filter(pk__lt=marked)
    found = list(page[: PAGE + 1])
    after = str(found[PAGE - 1].uuid) if len(found) > PAGE else ""
    return [shown_delivery(row, reader, now) for row in found[:PAGE]], after


def deliveries(reader: Member) -> QuerySet[AlertDelivery]:
    """Those that the reader may know of, with what `shown_delivery` needs; none for who sees only their own alerts."""
    if permissions.reach(reader, Action.SEE_ALERTS) is Reach.OWN:
        return AlertDelivery.objects.none()
    about = Q(alert__in=Alert.objects.for_organization(reader.organization).filter(audience.visible(reader)))
    if permissions.can(reader, Action.MANAGE_ORGANIZATION):
        about |= Q(alert=None)
    related = ("member__user", "endpoint", *(f"alert__{name}" for name in audience.RELATED))
    return AlertDelivery.objects.filter(about, organization=reader.organization).select_related(*related)


def shown_delivery(row: AlertDelivery, reader: Member, now: datetime) -> Sent:
    """Of a row of `deliveries`; asks nothing."""
    title = _("A test") if row.alert is None else wording.words(row.alert, reader=reader, now=now).title
    is_mail = row.channel == AlertDelivery.Channel.EMAIL
    to = row.member if row.member is not None else row.endpoint
    tone, result = {
        AlertDelivery.Status.SENT: ("ok", _("Sent") if is_mail else _("Delivered")),
        AlertDelivery.Status.FAILED: ("bad", _("Gave up") if row.alert_id else _("Not taken")),
        AlertDelivery.Status.DROPPED: ("", _("Not sent")),
        AlertDelivery.Status.PENDING: ("", _("Waiting")),
    }[AlertDelivery.Status(row.status)]
    if row.status == AlertDelivery.Status.PENDING and row.tried_at is not None and row.next_try_at is not None:
        wait = display.duration(row.next_try_at - now) if row.next_try_at > now else ""
        about = {"number": row.attempts + 1, "tries": delivery.TRIES, "wait": wait}
        tone = "warn"
        result = (_("Retry %(number)s of %(tries)s, in %(wait)s") if wait else _("Retry %(number)s of %(tries)s, now")) % about
    notes = [str(row.response_code)] if row.response_code and row.status != AlertDelivery.Status.SENT else []
    notes += [row.error] if row.error else []
    notes += (
        [f"{row.duration_ms} {locales.current().milliseconds}"]
        if row.duration_ms is not None and not is_mail and not row.error
        else []
    )
    return Sent(row, title, str(to), tone, result, " · ".join(notes))


def rules(reader: Member, *, now: datetime) -> list[Rule]:
    """By kind, with how many were told this month. Two queries."""
    zone = ZoneInfo(reader.organization.timezone)
    month = periods.day_start(now.astimezone(zone).date().replace(day=1), zone)
    lately = Alert.objects.for_organization(reader.organization).filter(audience.visible(reader), told_at__gte=month)
    told: Mapping[str, int] = dict(lately.order_by().values_list("kind").annotate(Count("pk")))
    off = set(AlertRule.objects.filter(organization=reader.organization, is_on=False).values_list("kind", flat=True))
    return [
        Rule(kind, str(when), str(subject), str(emailed), told.get(kind, 0), kind not in off)
        for kind, (when, subject, emailed) in wording.RULES.items()
    ]


def endpoints_of(reader: Member) -> list[Endpoint]:
    """The organization's endpoints, for who may manage them. One query."""
    if not permissions.can(reader, Action.MANAGE_ORGANIZATION):
        return []
    found: Iterable[Any] = endpoint_rows(reader.organization).order_by("pk")
    return [Endpoint(row, row.last_at, row.failed, endpoints.version(row)) for row in found]


def endpoint_rows(organization: Organization) -> QuerySet[WebhookEndpoint]:
    """Those that were not removed, without what is sealed; each with `last_at`, when it took one last, and `failed`, how many
    deliveries were given up or fail now."""
    bad = Q(deliveries__status=AlertDelivery.Status.FAILED) | Q(
        deliveries__status=AlertDelivery.Status.PENDING, deliveries__attempts__gt=0
    )
    rows = WebhookEndpoint.objects.for_organization(organization).present().defer("url", "secret", "previous_secret")
    taken = Max("deliveries__tried_at", filter=Q(deliveries__status=AlertDelivery.Status.SENT))
    return rows.annotate(last_at=taken, failed=Count("deliveries", filter=bad))


def outlook(reader: Member, *, now: datetime) -> Forecast | None:
    """Whether the organization's quota lasts; None for who does not see the whole of it."""
    if permissions.reach(reader, Action.SEE_ALERTS) is not Reach.WHOLE:
        return None
    try:
        plan = remaining.of_organization(reader.organization, now=now).plan
    except NoActivePlan as error:
        return Forecast(None, 0, 0, now, None, error.message)
    except (Degraded, Stale):
        return Forecast(None, 0, 0, now, None, _("The counters do not answer. Requests are refused until they do."))
    used = lines.quota_used(plan)
    days = forecast.since_first_use(drawn.by_day(reader.organization, None, now=now))
    found = forecast.outlook(days, used=used, quota=plan.quota, seconds_left=plan.ends_at - int(now.timestamp()))
    return Forecast(found, plan.quota - used, plan.quota, now, datetime.fromtimestamp(plan.ends_at, UTC))
