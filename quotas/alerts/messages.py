"""What is sent: e-mails, signed webhooks (Standard Webhooks, https://www.standardwebhooks.com), and Slack's `{"text": …}`."""

import json
from datetime import UTC, datetime
from email.utils import parseaddr
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.template.loader import render_to_string
from standardwebhooks import Webhook

from accounts.models import Member, Organization
from billing import credits
from quotas.alerts import audience, endpoints, wording
from quotas.alerts.models import Alert, AlertDelivery, WebhookEndpoint
from quotas.alerts.posting import Post

_JSON = {"content-type": "application/json"}


def post(row: AlertDelivery, endpoint: WebhookEndpoint, now: datetime) -> Post:
    """The delivery as its endpoint wants it. Raises config.sealing.Broken."""
    url = endpoints.unsealed(endpoint, "url")
    if endpoint.format == WebhookEndpoint.Format.SLACK:
        return Post(url, _json(slack(row, now)), _JSON)
    body = _json(webhook(row, now))
    return Post(url, body, {**_JSON, **signed(row, endpoint, body, now)})


def email(row: AlertDelivery, member: Member, alert: Alert, now: datetime) -> EmailMessage:
    """To a member who has an address; its Message-ID is the same in every try."""
    assert member.user is not None
    said = wording.words(alert, reader=member, now=now, is_zone_named=True)
    holder = audience.holder(alert)
    about = {
        "said": said,
        "alert": alert,
        "organization": alert.organization,
        "is_own": holder is not None and holder.pk == member.pk,
        "alerts_url": _page(alert.organization),
    }
    domain = parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2] or "weir.invalid"
    return EmailMessage(
        subject=" ".join(f"{said.title} · {alert.organization.name}".split()),
        body=render_to_string("emails/alert.txt", about),
        to=[member.user.email],
        headers={"Message-ID": f"<{row.uuid}@{domain}>", "Auto-Submitted": "auto-generated"},
    )


def signed(row: AlertDelivery, endpoint: WebhookEndpoint, body: bytes, now: datetime) -> dict[str, str]:
    """The headers of Standard Webhooks; with two signatures while a rotated secret still holds. Raises config.sealing.Broken."""
    secrets = [endpoints.unsealed(endpoint, "secret")]
    if endpoint.previous_until is not None and now < endpoint.previous_until:
        secrets.append(endpoints.unsealed(endpoint, "previous_secret"))
    message_id, at = f"msg_{row.uuid.hex}", now.astimezone(UTC)
    text = body.decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(Webhook(secret).sign(message_id, at, text) for secret in secrets),
    }


def webhook(row: AlertDelivery, now: datetime) -> dict[str, Any]:
    """The body of a signed webhook. Credits are decimal text; who and what are public ids."""
    organization, alert = row.organization, row.alert
    if alert is None:
        title = "A test: this endpoint receives the alerts"
        data: dict[str, Any] = {"organization": organization.slug, "title": title, "url": _page(organization)}
        return {"type": "alert.test", "timestamp": row.created_at.isoformat(), "data": data}
    said = wording.words(alert, reader=None, now=now, is_zone_named=True)
    holder = audience.holder(alert)
    facts = alert.facts
    data = {
        "id": str(alert.uuid),
        "organization": organization.slug,
        "kind": alert.kind,
        "line": alert.line or None,
        "title": said.title,
        "detail": said.detail,
        "next_step": said.step,
        "url": said.link,
        "team": str(alert.team.uuid) if alert.team is not None else None,
        "member": str(holder.uuid) if holder is not None else None,
        "key": str(alert.key.uuid) if alert.key is not None else None,
        "limit": str(alert.limit_uuid) if alert.limit_uuid is not None else None,
    }
    if alert.kind in (Alert.Kind.LIMIT, Alert.Kind.QUOTA):
        unit = facts.get("metric", "credits")
        shown = {name: credits.text(facts[name]) if unit == "credits" else facts[name] for name in ("used", "limit")}
        resets = facts["resets_at"]
        data |= {
            "metric": unit,
            "window": facts.get("window", "period"),
            "amount_used": shown["used"],
            "amount_limit": shown["limit"],
            "resets_at": datetime.fromtimestamp(resets, UTC).isoformat() if resets else None,
        }
    return {"type": f"alert.{alert.kind}", "timestamp": alert.told_at.isoformat(), "data": data}


def slack(row: AlertDelivery, now: datetime) -> dict[str, str]:
    """`{"text": …}`, as Slack, Mattermost and many others take it."""
    if row.alert is None:
        return {"text": f"*A test of {_escaped(row.organization.name)}*: this channel receives the alerts."}
    said = wording.words(row.alert, reader=None, now=now, is_zone_named=True)
    head = f"*{_escaped(said.title)}* ({_escaped(row.organization.name)})"
    return {"text": f"{head}\n{_escaped(said.detail)}\n<{said.link}|{_escaped(said.step)}>"}


def _escaped(text: str) -> str:
    """Slack's three escapes: without them a name could write a link or call everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _page(organization: Organization) -> str:
    return f"{settings.PUBLIC_URL.rstrip('/')}/o/{organization.slug}/alerts"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
