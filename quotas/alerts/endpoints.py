"""Webhook endpoints: added, tested, given another secret, and removed by owners. Secrets are shown once and kept sealed."""

import base64
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from accounts import audit, display, names
from accounts.errors import NameInvalid
from accounts.models import Organization, User
from config import addresses, sealing
from quotas.alerts.models import AlertDelivery, WebhookEndpoint
from quotas.errors import EndpointRefused

PREFIX = "whsec_"
SECRET_BYTES = 32
LONGEST_URL = 2000
MOST = 20
"""Endpoints of an organization: every alert is posted to each."""
NAME = gettext_lazy("A webhook’s URL")
MARKS = "#\\\x7f"
"""What a URL must not hold beside blanks; a query is part of many a chat's webhook."""


@dataclass(frozen=True, slots=True)
class Made:
    """An endpoint and its secret, to be shown this one time; "" where messages are not signed."""

    endpoint: WebhookEndpoint
    secret: str = field(repr=False)


def add(organization: Organization, *, name: str, url: str, format: str, by: User | None, now: datetime) -> Made:
    """Alerts told from now on are posted to it too. Looks the host up. Raises EndpointRefused."""
    name, url = _checked_name(name), checked_url(url)
    if format not in WebhookEndpoint.Format.values:
        raise EndpointRefused(_("Choose a format."), field="format")
    secret = _new_secret() if format == WebhookEndpoint.Format.STANDARD else ""
    try:
        with transaction.atomic():
            Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
            if WebhookEndpoint.objects.for_organization(organization).present().count() >= MOST:
                raise EndpointRefused(
                    _("There are %(most)s endpoints already, which is the most. Remove one first.") % {"most": MOST}, field="name"
                )
            endpoint = WebhookEndpoint(organization=organization, name=name, format=format, origin=_origin(url))
            endpoint.url = _sealed(endpoint, "url", url)
            endpoint.secret = _sealed(endpoint, "secret", secret)
            endpoint.save()
            _audit(endpoint, by, "added")
    except IntegrityError:
        raise EndpointRefused(_("There is an endpoint %(name)s already.") % {"name": name}, field="name") from None
    return Made(endpoint, secret)


def rotate(endpoint: WebhookEndpoint, *, by: User | None, now: datetime, seen: str | None = None) -> Made:
    """A new secret; for KEY_ROTATION_GRACE_SECONDS messages are signed with the old one too. Raises EndpointRefused.

    `seen`: `version` of the secret that was to be replaced: a form sent twice rotates once.
    """
    with transaction.atomic():
        endpoint = _locked(endpoint)
        if endpoint.format != WebhookEndpoint.Format.STANDARD:
            raise EndpointRefused(_("Messages to a chat are not signed, so there is no secret."), field="format")
        if seen is not None and seen != version(endpoint):
            raise EndpointRefused(_("The secret was rotated a moment ago; this was not done again."), field="secret")
        secret = _new_secret()
        endpoint.previous_secret = _sealed(endpoint, "previous_secret", unsealed(endpoint, "secret"))
        endpoint.previous_until = now + timedelta(seconds=settings.KEY_ROTATION_GRACE_SECONDS)
        endpoint.secret = _sealed(endpoint, "secret", secret)
        endpoint.save(update_fields=["secret", "previous_secret", "previous_until"])
        _audit(endpoint, by, "secret_rotated")
    return Made(endpoint, secret)


def version(endpoint: WebhookEndpoint) -> str:
    """Another one after each rotation; says nothing of the secret."""
    return str(int(endpoint.previous_until.timestamp())) if endpoint.previous_until else "0"


def resume(endpoint: WebhookEndpoint, *, by: User | None) -> bool:
    """Posts to it again from now on; False if it was not disabled. Raises EndpointRefused."""
    with transaction.atomic():
        endpoint = _locked(endpoint)
        if endpoint.disabled_at is None:
            return False
        endpoint.disabled_at, endpoint.disabled_reason = None, ""
        endpoint.save(update_fields=["disabled_at", "disabled_reason"])
        _audit(endpoint, by, "resumed")
    return True


def disable(endpoint: WebhookEndpoint, *, reason: str, now: datetime) -> bool:
    """Posts nothing more to it, and drops what waits; False if it was disabled or removed already."""
    with transaction.atomic():
        rows = WebhookEndpoint.objects.present().filter(pk=endpoint.pk, disabled_at=None)
        if not rows.update(disabled_at=now, disabled_reason=reason[:200]):
            return False
        _drop(endpoint, "the endpoint is disabled")
        _audit(endpoint, None, "disabled", reason=reason)
    return True


def remove(endpoint: WebhookEndpoint, *, by: User | None, now: datetime) -> None:
    """Takes it away with its secrets; the log of what was sent to it stays. Raises EndpointRefused."""
    with transaction.atomic():
        endpoint = _locked(endpoint)
        endpoint.removed_at = now
        endpoint.url = endpoint.secret = endpoint.previous_secret = ""
        endpoint.save(update_fields=["removed_at", "url", "secret", "previous_secret"])
        _drop(endpoint, "the endpoint was removed")
        _audit(endpoint, by, "removed")


def unsealed(endpoint: WebhookEndpoint, field: str) -> str:
    """The URL or a secret. Raises config.sealing.Broken."""
    return sealing.unseal(getattr(endpoint, field), row=endpoint.uuid, field=field)


def checked_url(url: str) -> str:
    """Judged by `config.addresses`; plain http only inside networks that the operator allowed. Raises EndpointRefused."""
    url = url.strip()
    if len(url) > LONGEST_URL:
        raise EndpointRefused(
            _("%(name)s has at most %(longest_url)s characters.") % {"name": NAME, "longest_url": display.count(LONGEST_URL)},
            field="url",
        )
    try:
        found = addresses.judged(url, name=str(NAME), marks=MARKS)
    except addresses.Refused as error:
        raise EndpointRefused(error.message, field="url") from None
    if urlsplit(url).scheme != "https" and any(addresses.is_public(address) for address in found):
        raise EndpointRefused(
            _("%(name)s begins with https://: what is posted tells who used how much.") % {"name": NAME}, field="url"
        )
    return url


def _checked_name(name: str) -> str:
    try:
        return names.checked(name, what=_("The name"), longest=80)
    except NameInvalid as error:
        raise EndpointRefused(error.message, field="name") from None


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"[:300]


def _new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def _sealed(endpoint: WebhookEndpoint, field: str, value: str) -> str:
    return sealing.seal(value, row=endpoint.uuid, field=field)


def _locked(endpoint: WebhookEndpoint) -> WebhookEndpoint:
    row = WebhookEndpoint.objects.select_for_update(of=("self",), no_key=True).select_related("organization").get(pk=endpoint.pk)
    if row.removed_at is not None:
        raise EndpointRefused(_("The endpoint has been removed."), field="name")
    return row


def _drop(endpoint: WebhookEndpoint, why: str) -> None:
    waiting = AlertDelivery.objects.filter(endpoint=endpoint, status=AlertDelivery.Status.PENDING)
    waiting.update(status=AlertDelivery.Status.DROPPED, next_try_at=None, error=why)


def _audit(endpoint: WebhookEndpoint, by: User | None, what: str, **data: str) -> None:
    audit.record(
        endpoint.organization,
        actor=by,
        action=f"webhook_endpoint.{what}",
        object_type="webhook_endpoint",
        object_id=str(endpoint.uuid),
        data={"name": endpoint.name, "format": endpoint.format, "origin": endpoint.origin, **data},
        actor_label="system" if what == "disabled" else audit.OPERATOR_LABEL,
    )
