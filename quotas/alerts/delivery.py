"""Sending: what is due goes out by e-mail and webhook, at least once, under an id that stays the same over all tries.

A try is claimed by moving its next one behind it, so two workers do not send the same; a worker that dies is followed by another
when the claim has passed.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import uniform

from django.db import transaction
from django.utils import translation
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import Member, Organization, User
from config import sealing
from quotas.alerts import audience, endpoints, messages, posting
from quotas.alerts.models import AlertDelivery, WebhookEndpoint
from quotas.alerts.posting import Outcome, Post
from quotas.errors import EndpointRefused

logger = logging.getLogger(__name__)

TRY_SECONDS = (30, 240, 1200, 3600, 3 * 3600, 6 * 3600, 10 * 3600)
"""Until the next try, after the first, the second, …: eight tries in about a day."""
TRIES = len(TRY_SECONDS) + 1
CLAIM_SECONDS = 300
"""Longer than a batch can take."""
BATCH = 20
GONE = 410
UNMADE = "the message could not be made"
_RELATED = (
    "organization",
    "member__user",
    "member__team",
    "endpoint__organization",
    *(f"alert__{name}" for name in audience.RELATED),
)
Status = AlertDelivery.Status


@dataclass(frozen=True, slots=True)
class Told:
    """What became of a try: the status that the delivery has now, if it is another one, and what was answered."""

    status: str | None
    error: str = ""
    response_code: int | None = None
    duration_ms: int | None = None


def deliver(organization: Organization, *, now: datetime, most: int = BATCH) -> int:
    """Tries what is due of the organization, up to `most`; how many were tried. In the organization's scope."""
    claimed = _claim(organization, now, most)
    if not claimed:
        return 0
    posts = [row for row in claimed if row.channel != AlertDelivery.Channel.EMAIL]
    for row in claimed:
        if row.channel == AlertDelivery.Channel.EMAIL:
            _record(row, _mail(row, now), now)
    for row, told in zip(posts, _post_all(posts, now), strict=True):
        _record(row, told, now)
    return len(claimed)


def test(endpoint: WebhookEndpoint, *, now: datetime) -> AlertDelivery:
    """Posts a message that is no alert, once and now; the delivery with what came of it. Raises EndpointRefused if removed."""
    if endpoint.removed_at is not None:
        raise EndpointRefused(_("The endpoint has been removed."), field="name")
    row = AlertDelivery.objects.create(
        organization=endpoint.organization,
        channel=endpoint.channel,
        endpoint=endpoint,
        attempts=1,
        created_at=now,
        next_try_at=now + timedelta(seconds=CLAIM_SECONDS),
    )
    # What is posted and kept is English, whatever the page speaks.
    with translation.override("en"):
        [told] = _post_all([row], now)
    _record(row, told, now)
    row.refresh_from_db()
    return row


def retry(row: AlertDelivery, *, by: User | None, now: datetime) -> bool:
    """Begins anew with a delivery that was given up; False for one that was not. The next round of the worker tries it.

    Raises EndpointRefused for an endpoint that nothing is posted to.
    """
    with transaction.atomic():
        rows = AlertDelivery.objects.select_for_update(of=("self",), no_key=True).select_related("organization", "endpoint")
        row = rows.get(pk=row.pk)
        if row.status != Status.FAILED or row.alert_id is None:
            return False
        if row.endpoint is not None and not row.endpoint.is_working:
            raise EndpointRefused(_("Nothing is posted to this endpoint. Resume it first."), field="name")
        row.status, row.attempts, row.next_try_at = Status.PENDING, 0, now
        row.save(update_fields=["status", "attempts", "next_try_at"])
        audit.record(
            row.organization,
            actor=by,
            action="alert.delivery_retried",
            object_type="alert_delivery",
            object_id=str(row.uuid),
            data={"channel": row.channel},
        )
    return True


def due(now: datetime, *, after: int = 0, count: int = 500) -> list[int]:
    """Ids of organizations that something is due of, from `after` on, in order. In the scope of everything."""
    rows = AlertDelivery.objects.filter(status=Status.PENDING, next_try_at__lte=now, organization_id__gt=after)
    return list(rows.order_by("organization_id").values_list("organization_id", flat=True).distinct()[:count])


# ------------------------------------------------------------------------------------------------------------- claiming


def _claim(organization: Organization, now: datetime, most: int) -> list[AlertDelivery]:
    with transaction.atomic():
        waiting = AlertDelivery.objects.filter(organization=organization, status=Status.PENDING, next_try_at__lte=now)
        locked = waiting.select_for_update(skip_locked=True, no_key=True).order_by("next_try_at", "pk")
        ids = list(locked.values_list("pk", flat=True)[:most])
        rows = list(AlertDelivery.objects.filter(pk__in=ids).select_related(*_RELATED).order_by("pk"))
        for row in rows:
            row.attempts += 1
            row.next_try_at = now + timedelta(seconds=CLAIM_SECONDS)
        AlertDelivery.objects.bulk_update(rows, ["attempts", "next_try_at"])
    return rows


def _record(row: AlertDelivery, told: Told, now: datetime) -> None:
    """Only while the try is still ours. A delivery of an alert that was not taken is tried again, up to TRIES times."""
    status, next_try_at = told.status, None
    if status is None:
        if row.alert_id is None or row.attempts >= TRIES:
            status = Status.FAILED
        else:
            status = Status.PENDING
            wait = TRY_SECONDS[row.attempts - 1]
            # Spread, so that what failed together does not come back together.
            next_try_at = now + timedelta(seconds=wait * uniform(1.0, 1.1))  # noqa: S311
    ours = AlertDelivery.objects.filter(pk=row.pk, attempts=row.attempts, status=Status.PENDING)
    ours.update(
        status=status,
        next_try_at=next_try_at,
        tried_at=now,
        error=told.error[:200],
        response_code=told.response_code,
        duration_ms=told.duration_ms,
    )
    if status == Status.FAILED:
        logger.warning(
            "alert not delivered",
            extra={"organization_id": row.organization_id, "delivery": str(row.uuid), "error": told.error},
        )


# ---------------------------------------------------------------------------------------------------------------- mail


def _mail(row: AlertDelivery, now: datetime) -> Told:
    member, alert = row.member, row.alert
    assert member is not None
    assert alert is not None
    if not _is_there(member):
        return Told(Status.DROPPED, "the member has left")
    if not audience.may_see(member, alert):
        return Told(Status.DROPPED, "the member may not see it any more")
    started = time.monotonic()
    try:
        messages.email(row, member, alert, now).send()
    except OSError as error:
        # smtplib's own errors too. Its text may quote the server, the address or a password.
        return Told(None, f"mail server: {type(error).__name__}")
    except Exception:
        # Whatever it is that one message cannot be made or sent for: those behind it are sent.
        logger.exception("a message could not be made", extra={"delivery": str(row.uuid)})
        return Told(None, UNMADE)
    return Told(Status.SENT, duration_ms=int((time.monotonic() - started) * 1000))


def _is_there(member: Member) -> bool:
    return member.removed_at is None and not member.is_awaited and member.user is not None and member.user.is_active


# ------------------------------------------------------------------------------------------------------------- webhooks


def _post_all(rows: Sequence[AlertDelivery], now: datetime) -> list[Told]:
    """In order. What answers 410 is gone for good: nothing more is posted to it."""
    made: list[Post | Told] = [_post_of(row, now) for row in rows]
    outcomes = iter(posting.send([one for one in made if isinstance(one, Post)]) if made else [])
    told = []
    for row, one in zip(rows, made, strict=True):
        told.append(one if isinstance(one, Told) else _judged(row, next(outcomes), now))
    return told


def _judged(row: AlertDelivery, outcome: Outcome, now: datetime) -> Told:
    endpoint = row.endpoint
    assert endpoint is not None
    if outcome.is_taken:
        return Told(Status.SENT, response_code=outcome.status, duration_ms=outcome.duration_ms)
    if outcome.status == GONE:
        # This one first: what waits is dropped with the endpoint.
        told = Told(Status.FAILED, error="the endpoint is gone", response_code=GONE, duration_ms=outcome.duration_ms)
        _record(row, told, now)
        endpoints.disable(endpoint, reason="It answered 410: gone.", now=now)
        return told
    return Told(None, outcome.error, outcome.status, outcome.duration_ms)


def _post_of(row: AlertDelivery, now: datetime) -> Post | Told:
    endpoint = row.endpoint
    assert endpoint is not None
    if row.alert is not None and not endpoint.is_working:
        return Told(Status.DROPPED, "the endpoint is disabled" if endpoint.removed_at is None else "the endpoint was removed")
    try:
        return messages.post(row, endpoint, now)
    except sealing.Broken:
        return Told(None, "its address or secret cannot be decrypted")
    except Exception:
        logger.exception("a message could not be made", extra={"delivery": str(row.uuid)})
        return Told(None, UNMADE)
