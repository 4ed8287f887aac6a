"""The usage log's table: partitions, and that nothing in it changes."""

from datetime import UTC, datetime

import pytest
from django.db import IntegrityError, connection, transaction

from billing import partitions, tasks, usage
from billing.models import UsageRecord
from tests import factories
from tests.billing.usage_events import event_for

pytestmark = pytest.mark.django_db


def tables() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'billing_usagerecord'::regclass")
        return {name for (name,) in cursor.fetchall()}


def table_of(request_id: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM billing_usagerecord WHERE request_id = %s", [request_id])
        return str(cursor.fetchone()[0])


def test_partitions_are_made_by_month_over_the_turn_of_the_year_and_once() -> None:
    now = datetime(2031, 12, 31, 23, 59, tzinfo=UTC)
    expected = [f"billing_usagerecord_{month}" for month in ("2031_10", "2031_11", "2031_12", "2032_01", "2032_02", "2032_03")]
    assert partitions.make_partitions(now) == expected
    assert partitions.make_partitions(now) == []
    assert set(expected) <= tables()


def test_the_migration_made_the_months_around_now_and_the_task_keeps_them_ahead() -> None:
    assert tasks.make_usage_partitions() == []
    assert f"billing_usagerecord_{datetime.now(UTC):%Y_%m}" in tables()
    assert partitions.DEFAULT in tables()


def test_rows_of_a_month_without_a_partition_move_into_it_when_it_is_made() -> None:
    organization = factories.organization()
    key = factories.api_key(factories.member(organization)).row
    event = event_for(key, admitted_at=datetime(2032, 6, 15, tzinfo=UTC))
    elsewhere = event_for(key, admitted_at=datetime(2033, 6, 15, tzinfo=UTC))
    usage.record(organization.pk, [event, elsewhere])
    before = UsageRecord.objects.get(request_id=event.request_id)
    assert table_of(event.request_id) == partitions.DEFAULT
    assert "billing_usagerecord_2032_06" in partitions.make_partitions(datetime(2032, 5, 1, tzinfo=UTC))
    assert table_of(event.request_id) == "billing_usagerecord_2032_06"
    assert table_of(elsewhere.request_id) == partitions.DEFAULT
    after = UsageRecord.objects.get(request_id=event.request_id)
    assert (after.pk, after.credits, after.stream_id) == (before.pk, before.credits, before.stream_id)
    assert usage.record(organization.pk, [event, elsewhere]) == 0
    usage.record(organization.pk, [event_for(key)])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE billing_usagerecord SET credits = 0 WHERE organization_id = {organization}",
        "DELETE FROM billing_usagerecord WHERE organization_id = {organization}",
        "UPDATE {partition} SET credits = 0 WHERE organization_id = {organization}",
        "DELETE FROM {partition} WHERE organization_id = {organization}",
        "TRUNCATE billing_usagerecord",
        "TRUNCATE {partition}",
        "TRUNCATE billing_usagerecord_default",
    ],
)
def test_the_usage_log_refuses_every_change(statement: str) -> None:
    organization = factories.organization()
    event = event_for(factories.api_key(factories.member(organization)).row, credits=7)
    usage.record(organization.pk, [event])
    partition = table_of(event.request_id)
    with (
        pytest.raises(IntegrityError, match=r"refused: rows of billing_usagerecord\w* are added, never changed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement.format(organization=organization.pk, partition=partition))
    assert UsageRecord.objects.get(request_id=event.request_id).credits == 7


def test_a_new_partition_refuses_changes_too() -> None:
    partitions.make_partitions(datetime(2031, 6, 1, tzinfo=UTC), months_ahead=0, months_back=0)
    with pytest.raises(IntegrityError, match="TRUNCATE refused"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("TRUNCATE billing_usagerecord_2031_06")
