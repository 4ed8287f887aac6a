"""Telling once: what holds becomes alerts with their deliveries, each by a unique row; what is over ends."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, connection, transaction
from django.db.models import Q

from accounts import audit
from accounts.models import Member, Organization, User
from quotas.alerts import audience, rules
from quotas.alerts.found import STATES, Found
from quotas.alerts.models import Alert, AlertDelivery, AlertRule, WebhookEndpoint
from quotas.alerts.rules import Holding

LOCK = 0x77656978
"""First key of the advisory lock; the second is the organization."""
EVENT_DAYS = 7
"""So long something that happened stays open if nobody acknowledges it."""
KEPT_DAYS = 400
"""More than any period is long: a row must be there as long as it says that something was told."""


def look(organization_id: int, *, now: datetime, is_thorough: bool = True) -> list[Alert]:
    """Looks at everything of one organization and tells what is new; the new alerts. In the organization's scope.

    Any number of workers may do so at once.
    """
    organization = Organization.objects.get(pk=organization_id)
    if not organization.is_active:
        return []
    return tell(organization, rules.holding(organization, now=now, is_thorough=is_thorough), now=now)


def tell(organization: Organization, holds: Holding, *, now: datetime) -> list[Alert]:
    """Adds what was not told yet and ends what is over, in one transaction; the alerts that were added.

    One look at a time gets through, so that a slower one cannot tell a lower line after a higher one; the unique row would let
    each be told once without it too.
    """
    wanted = [one for one in holds.found if one.kind not in _off(organization)]
    scopes = {one.scope for one in wanted}
    if not wanted and not Alert.objects.filter(organization=organization, ended_at=None).exists():
        return []
    with transaction.atomic():
        _lock(organization.pk)
        known = list(
            Alert.objects.filter(organization=organization).filter(
                Q(ended_at=None) | Q(scope__in=scopes, period__in={one.period for one in wanted})
            )
        )
        told = [alert for one in wanted if not _is_told(one, known) for alert in [_add(organization, one, now)] if alert]
        _end(known, told, holds, now)
        _reopen(known, wanted)
        _address(organization, told, now)
    return told


def _off(organization: Organization) -> set[str]:
    return set(AlertRule.objects.filter(organization=organization, is_on=False).values_list("kind", flat=True))


def _lock(organization_id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [LOCK, organization_id % 2**31])


def _is_same(one: Found, alert: Alert) -> bool:
    """Is the alert about the same, in the same period? What rolls is, as long as it stands."""
    if (alert.kind, alert.scope) != (one.kind, one.scope):
        return False
    return alert.period == one.period or (one.is_rolling and alert.ended_at is None)


def _is_told(one: Found, known: Sequence[Alert]) -> bool:
    """This line, or a higher one."""
    return any(alert.line >= one.line and _is_same(one, alert) for alert in known)


def _add(organization: Organization, one: Found, now: datetime) -> Alert | None:
    """None if another worker was faster."""
    try:
        with transaction.atomic():
            return Alert.objects.create(
                organization=organization,
                kind=one.kind,
                line=one.line,
                scope=one.scope,
                period=one.period,
                team_id=one.team_id,
                member_id=one.member_id,
                key_id=one.key_id,
                limit_uuid=one.limit_uuid,
                facts=dict(one.facts),
                told_at=now,
            )
    except IntegrityError:
        return None


def _end(known: Sequence[Alert], told: Sequence[Alert], holds: Holding, now: datetime) -> None:
    """A state ends when it does not hold any more, or a higher line of it is told; an event after EVENT_DAYS."""
    over = []
    for alert in known:
        # What was told after this look began is not this look's to judge.
        if alert.ended_at is not None or alert.told_at > now:
            continue
        if alert.kind in STATES:
            if alert.kind not in holds.kinds:
                continue
            is_over = not any(_is_same(one, alert) for one in holds.found)
            is_over = is_over or any((new.kind, new.scope) == (alert.kind, alert.scope) for new in told)
        else:
            is_over = alert.told_at <= now - timedelta(days=EVENT_DAYS)
        if is_over:
            over.append(alert.pk)
    if over:
        Alert.objects.filter(pk__in=over).update(ended_at=now)


def _reopen(known: Sequence[Alert], wanted: Sequence[Found]) -> None:
    """What ended and holds again in the same period is open again, and told to nobody."""
    standing = {(alert.kind, alert.scope) for alert in known if alert.ended_at is None}
    again = [
        alert.pk
        for one in wanted
        for alert in known
        if alert.kind in STATES
        and alert.ended_at is not None
        and (alert.kind, alert.scope) not in standing
        and (one.kind, one.scope, one.period, one.line) == (alert.kind, alert.scope, alert.period, alert.line)
    ]
    if again:
        Alert.objects.filter(pk__in=again).update(ended_at=None)


def _address(organization: Organization, told: Iterable[Alert], now: datetime) -> None:
    """A delivery to each who is told, due at once; written with the alerts, so that none is told without them."""
    alerts = list(Alert.objects.select_related(*audience.RELATED).filter(pk__in=[alert.pk for alert in told]))
    if not alerts:
        return
    members = audience.of_organization(organization)
    endpoints = [one for one in WebhookEndpoint.objects.for_organization(organization).present() if one.is_working]
    made: list[AlertDelivery] = []
    for alert in alerts:
        email = AlertDelivery.Channel.EMAIL
        made += [_delivery(alert, now, channel=email, member=member) for member in audience.recipients(alert, members)]
        made += [_delivery(alert, now, channel=endpoint.channel, endpoint=endpoint) for endpoint in endpoints]
    AlertDelivery.objects.bulk_create(made)


def _delivery(
    alert: Alert, now: datetime, *, channel: str, member: Member | None = None, endpoint: WebhookEndpoint | None = None
) -> AlertDelivery:
    return AlertDelivery(
        organization_id=alert.organization_id,
        alert=alert,
        channel=channel,
        member=member,
        endpoint=endpoint,
        created_at=now,
        next_try_at=now,
    )


def acknowledge(alert: Alert, *, by: Member, now: datetime) -> bool:
    """Takes it from the open ones; False if it had been already. It is not told again in its period either way."""
    with transaction.atomic():
        changed = Alert.objects.filter(pk=alert.pk, acknowledged_at=None).update(acknowledged_at=now, acknowledged_by=by)
        if changed:
            audit.record(
                alert.organization,
                actor=by.user,
                action="alert.acknowledged",
                object_type="alert",
                object_id=str(alert.uuid),
                data={"kind": alert.kind, "line": alert.line},
            )
    return bool(changed)


def set_rule(organization: Organization, kind: str, *, is_on: bool, by: User | None) -> None:
    """Whether alerts of a kind are told from now on; what was told stays as it is."""
    with transaction.atomic():
        AlertRule.objects.update_or_create(organization=organization, kind=kind, defaults={"is_on": is_on})
        audit.record(
            organization, actor=by, action="alert.rule_set", object_type="alert_rule", object_id=kind, data={"is_on": is_on}
        )


def forget_old(*, now: datetime) -> int:
    """Alerts and deliveries of more than KEPT_DAYS; how many alerts went. In the scope of everything."""
    before = now - timedelta(days=KEPT_DAYS)
    AlertDelivery.objects.filter(alert=None, created_at__lt=before).delete()
    _, by_model = Alert.objects.filter(told_at__lt=before).exclude(ended_at=None).delete()
    return by_model.get("quotas.Alert", 0)
