"""The request log: who sees which rows, what a row says when opened, filters, pages of it in both directions."""

import re
from datetime import timedelta
from typing import Any

import pytest

from accounts.models import Member
from config.clock import utc_now
from quotas.models import Refusal
from tests import factories
from tests.pages import made

pytestmark = pytest.mark.django_db
CREDIT = made.CREDIT


def page(member: Member, query: str = "") -> str:
    answered = made.signed_in(member).get(made.path(member, f"requests{query}"))
    assert answered.status_code == 200
    return answered.content.decode()


def listed(text: str) -> list[str]:
    return re.findall(r'<tbody id="row-([^"]+)"', text)


def test_smoke() -> None:
    organization = factories.organization()
    developer = factories.member(organization)
    key = factories.api_key(developer).row
    rows = [made.used(key, CREDIT * n, at=utc_now() - timedelta(minutes=n)) for n in range(1, 4)]
    owner = factories.member(organization, role="owner")
    text = page(owner, "?range=all")
    assert listed(text) == [row.request_id for row in rows]
