"""Old months of the usage log go whole, and none that anything still needs. Months of 2034 on, which no other test has."""

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings

from accounts.models import Organization
from billing import partitions, reports, retention, rollups, tasks, usage
from billing.models import LedgerEntry, SubscriptionPeriod, UsageHour, UsageRecord
from tests import factories
from tests.billing.usage_events import event_for

pytestmark = pytest.mark.django_db

NOW = datetime(2034, 9, 15, 12, tzinfo=UTC)


def tables() -> set[str]:
    return {one.table.removeprefix("billing_usagerecord_") for one in partitions.months()}


@pytest.fixture(autouse=True)
def bare_log() -> None:
    """What other tests left in the log is out of the way until this one's transaction is taken back."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE billing_usagerecord DETACH PARTITION billing_usagerecord_default")
        cursor.execute("ALTER TABLE billing_usagerecord_default RENAME TO billing_usagerecord_before")
        for month in partitions.months():
            cursor.execute(f"DROP TABLE {month.table}")
    partitions.make_default()


@pytest.fixture
def organization() -> Organization:
    """Two credits in each month of 2034 up to now, whose earlier periods are closed."""
    made = factories.organization(timezone="Asia/Kolkata")
    key = factories.api_key(factories.member(made)).row
    for month in range(1, 10):
        moments = datetime(2034, month, 1, tzinfo=UTC), datetime(2034, month, 14, 9, 5, tzinfo=UTC)
        events = [event_for(key, admitted_at=at, credits=1_000_000) for at in moments]
        usage.record(made.pk, events)
    SubscriptionPeriod.objects.filter(ends_at__lte=NOW).update(closed_at=NOW)
    partitions.make_partitions(NOW, months_ahead=1, months_back=8)
    return made


def test_months_older_than_the_setting_are_dropped_whole(organization: Organization) -> None:
    before = tables()
    # Midnight in London is not the start of an hour in Kolkata.
    sums = reports.usage_by(organization, "day", datetime(2033, 12, 31, 18, 30, tzinfo=UTC), NOW)
    cut = datetime(2034, 4, 14, 9, 4, tzinfo=UTC)
    halves = [(datetime(2034, 1, 1, tzinfo=UTC), cut), (cut, NOW)]
    entries, hours = LedgerEntry.objects.count(), UsageHour.objects.count()
    dropped = retention.drop_old(NOW, 3)
    assert [name for name in dropped if "2034" in name] == [f"billing_usagerecord_2034_{month:02}" for month in range(1, 6)]
    assert {"2034_06", "2034_07", "2034_08", "2034_09", "2034_10"} <= tables() < before
    kept = UsageRecord.objects.filter(organization=organization)
    assert min(kept.values_list("admitted_at", flat=True)) == datetime(2034, 6, 1, tzinfo=UTC)
    # Sums and ledger stay as they were.
    assert (LedgerEntry.objects.count(), UsageHour.objects.count()) == (entries, hours)
    assert reports.usage_by(organization, "day", datetime(2033, 12, 31, 18, 30, tzinfo=UTC), NOW) == sums
    assert [sum(one.requests for one in reports.usage_by(organization, "model", *half)) for half in halves] == [7, 10]
    assert partitions.complete_since() == datetime(2034, 6, 1, tzinfo=UTC)
    assert retention.drop_old(NOW, 3) == []


def test_a_rebuild_leaves_the_sums_of_dropped_months_alone(organization: Organization) -> None:
    """Also the half hour of Kolkata's that reaches over the end of a UTC month."""
    retention.drop_old(NOW, 3)
    made = set(UsageHour.objects.filter(organization=organization).values_list(*rollups.GROUP, *rollups.AMOUNTS))
    rollups.rebuild(organization.pk, datetime(2034, 1, 1, tzinfo=UTC), NOW + timedelta(days=1))
    assert set(UsageHour.objects.filter(organization=organization).values_list(*rollups.GROUP, *rollups.AMOUNTS)) == made


def test_dropped_months_are_not_made_again_and_late_usage_is_kept(organization: Organization) -> None:
    retention.drop_old(NOW, 3)
    assert not {name for name in partitions.make_partitions(NOW, months_back=8) if name < "billing_usagerecord_2034_06"}
    key = factories.api_key(factories.member(organization)).row
    assert usage.record(organization.pk, [event_for(key, admitted_at=datetime(2034, 4, 2, tzinfo=UTC), credits=7)]) == 1
    assert UsageHour.objects.get(organization=organization, credits=7).requests == 1


def test_what_an_open_period_or_the_counters_need_stays(organization: Organization) -> None:
    assert retention.needed_since(NOW) <= NOW - timedelta(days=41)
    # Everything before 5 August could go, had August another month.
    assert retention.drop_old(NOW, 1)[-1] == "billing_usagerecord_2034_07"
    assert retention.due(NOW, 1) == []
    assert "2034_08" in tables()
    first = SubscriptionPeriod.objects.filter(
        subscription__organization=organization, starts_at__gte=datetime(2034, 6, 10, tzinfo=UTC)
    )
    oldest = first.order_by("starts_at")[0]
    SubscriptionPeriod.objects.filter(pk=oldest.pk).update(closed_at=None)
    assert retention.needed_since(NOW) == oldest.starts_at - timedelta(days=31)


def test_an_open_period_keeps_its_month(organization: Organization) -> None:
    oldest = SubscriptionPeriod.objects.filter(subscription__organization=organization).order_by("starts_at")
    march = next(period for period in oldest if period.starts_at >= datetime(2034, 3, 7, tzinfo=UTC))
    SubscriptionPeriod.objects.filter(pk=march.pk).update(closed_at=None)
    dropped = [name for name in retention.drop_old(NOW, 3) if "2034" in name]
    assert dropped == ["billing_usagerecord_2034_01"]


def test_a_month_whose_sums_differ_stays(organization: Organization) -> None:
    UsageHour.objects.filter(organization=organization, hour__lt=datetime(2034, 3, 20, tzinfo=UTC)).filter(
        hour__gt=datetime(2034, 3, 2, tzinfo=UTC)
    ).update(credits=1)
    dropped = [name for name in retention.drop_old(NOW, 3) if "2034" in name]
    assert dropped == ["billing_usagerecord_2034_01", "billing_usagerecord_2034_02"]
    assert "2034_03" in tables()


def test_a_dropped_months_default_rows_go_with_it() -> None:
    organization = factories.organization()
    key = factories.api_key(factories.member(organization)).row
    usage.record(organization.pk, [event_for(key, admitted_at=datetime(2034, 1, 5, tzinfo=UTC))])
    SubscriptionPeriod.objects.filter(ends_at__lte=NOW).update(closed_at=NOW)
    assert UsageRecord.objects.filter(organization=organization).exists()
    assert "billing_usagerecord_2034_01" in retention.drop_old(NOW, 3)
    assert not UsageRecord.objects.filter(organization=organization).exists()


def test_without_a_setting_everything_is_kept(organization: Organization) -> None:
    assert tasks.drop_old_usage() == []
    with pytest.raises(CommandError, match="kept for ever"):
        call_command("drop_old_usage")
    with pytest.raises(ValueError, match="at least one month"):
        retention.due(NOW, 0)


@override_settings(USAGE_RETENTION_MONTHS=2)
def test_the_command_says_what_would_go(organization: Organization) -> None:
    out = StringIO()
    before = tables()
    call_command("drop_old_usage", "--dry-run", "--json", stdout=out)
    answer: dict[str, Any] = json.loads(out.getvalue())
    assert answer["dropped"] == []
    assert tables() == before
    assert all(name.startswith("billing_usagerecord_2") for name in answer["due"])


def test_row_security_and_append_only_hold_in_new_months() -> None:
    partitions.make_partitions(datetime(2035, 6, 1, tzinfo=UTC), months_ahead=0, months_back=0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE relname = 'billing_usagerecord_2035_06'")
        assert cursor.fetchone() == (True, True)
