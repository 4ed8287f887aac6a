"""Usage rows, signed-in clients and sockets for the tests of this folder."""

import itertools
from datetime import datetime, timedelta
from typing import Any

from django.test import Client

from accounts.models import ApiKey, Member
from billing import rollups
from billing.models import UsageRecord
from config.clock import utc_now

CREDIT = 1_000_000
_numbers = itertools.count(1)


def used(key: ApiKey, credits: int, *, at: datetime | None = None, model: str = "gpt-5.5", **fields: Any) -> UsageRecord:
    """A logged request of the key's member, of `credits` micro-credits, a minute ago."""
    at = at or utc_now() - timedelta(minutes=1)
    number = next(_numbers)
    row = UsageRecord.objects.create(
        **{
            "request_id": f"req_{key.public_id}{number:06d}",
            "part": 0,
            "admitted_at": at,
            "ended_at": at + timedelta(seconds=3),
            "organization": key.organization,
            "team": key.member.team,
            "member": key.member,
            "key": key,
            "model_asked": model,
            "model_served": model,
            "input_tokens": 1200,
            "cached_input_tokens": 3400,
            "output_tokens": 56,
            "credits": credits,
            "from_quota": credits,
            "source": "o",
            "period_starts_at": at,
            "status": "ok",
            "stream_id": f"{number}-0",
            **fields,
        }
    )
    rollups.rebuild(key.organization_id, at, at + timedelta(seconds=1))
    return row


def signed_in(member: Member, **options: Any) -> Client:
    assert member.user is not None
    client = Client(**options)
    client.force_login(member.user)
    return client


def path(member: Member, page: str = "key") -> str:
    return f"/o/{member.organization.slug}/{page}"
