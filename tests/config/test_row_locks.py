"""Rows that the log and the ledger refer to are locked so that the drain can go on inserting beside the lock."""

import re
import threading
from pathlib import Path

import pytest
from django.db import connection, transaction

from accounts.models import ApiKey, Organization
from billing import usage
from billing.events import Body, UsageEvent
from config.clock import utc_now
from tests import factories

ROOT = Path(__file__).resolve().parents[2]


def test_no_lock_excludes_those_who_only_refer_to_the_row() -> None:
    """FOR UPDATE would: two writers that lock a key and an organization in different order would then wait for each other."""
    found = [
        f"{path.relative_to(ROOT)}: {call}"
        for folder in ("accounts", "billing", "quotas", "routing", "config")
        for path in (ROOT / folder).rglob("*.py")
        for call in re.findall(r"select_for_update\([^)]*\)?[^)]*\)", path.read_text())
        if "no_key=True" not in call
    ]
    assert found == []


@pytest.mark.django_db(transaction=True)
def test_usage_is_booked_while_a_change_holds_the_rows_it_names() -> None:
    organization = factories.organization()
    member = factories.member(organization)
    key = factories.api_key(member)
    at = int(utc_now().timestamp())
    event = UsageEvent(
        request_id=factories.unique("req"),
        part=0,
        state="S",
        admitted_at=at,
        ended_ms=at * 1000,
        credits=5,
        tokens=1,
        requests=1,
        from_quota=5,
        from_purchased=0,
        from_overage=0,
        overdraft=0,
        source="o",
        period_start=at - at % 86400,
        stream_id="1-1",
        body=Body(member_id=member.pk, key_id=key.row.pk, model_asked="gpt-5.5", status="ok"),
    )
    booked: list[int] = []

    def book() -> None:
        try:
            booked.append(usage.record(organization.pk, [event]))
        finally:
            connection.close()

    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        ApiKey.objects.select_for_update(no_key=True).get(pk=key.row.pk)
        writer = threading.Thread(target=book)
        writer.start()
        writer.join(10)
        assert booked == [1]
    writer.join()
