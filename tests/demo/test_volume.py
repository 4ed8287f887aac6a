"""Seeded usage is what the drain would have written, and reports and pages over it keep to their time."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import Sum

from accounts.models import Organization
from billing import rollups
from billing.models import LedgerEntry, SubscriptionPeriod, UsageHour, UsageRecord
from config.redis import sync_client
from quotas import engine, reconcile
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


def run(name: str, *arguments: str) -> dict[str, Any]:
    out = StringIO()
    call_command(name, *arguments, "--json", stdout=out)
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


@pytest.fixture(scope="module")
def slug() -> str:
    return factories.unique("volume")


def test_seeded_usage_agrees_with_everything_that_is_made_of_it(slug: str) -> None:
    """Counters, log, ledger, periods and hourly sums are one; a second run adds nothing."""
    others = UsageRecord.objects.count()
    options = ["--organization", slug, "--members", "6", "--seed", "7", "--ledger"]
    answer = run("seed_usage", "--rows", "4000", *options)
    assert (answer["rows"], answer["ledger_entries"]) == (4000, 4000)
    organization = Organization.objects.get(slug=slug)
    rows = UsageRecord.objects.filter(organization=organization)
    assert rows.count() == 4000
    assert rows.values("request_id").distinct().count() == 4000
    assert rows.values("member_id").distinct().count() > 1
    assert UsageRecord.objects.count() == others + 4000
    assert len([row for row in rows.only("lines") if len(row.lines) == 2]) > 10
    names = ("counted_requests", *rollups.AMOUNTS[1:])
    logged = list(rows.aggregate(*(Sum(name) for name in names)).values())
    hours = UsageHour.objects.filter(organization=organization)
    assert list(hours.aggregate(*(Sum(name) for name in rollups.AMOUNTS)).values()) == logged
    periods = SubscriptionPeriod.objects.filter(organization=organization).aggregate(Sum("used_from_quota"), Sum("requests"))
    assert periods == {"used_from_quota__sum": logged[7], "requests__sum": 4000}
    entries = LedgerEntry.objects.filter(organization=organization, kind="usage_quota")
    assert entries.aggregate(Sum("amount"))["amount__sum"] == logged[7]
    assert sync_client().exists(engine.counters_key(organization.pk))
    assert reconcile.reconcile(organization.pk).differences == ()
    made = set(rows.values_list("request_id", "admitted_at", "credits"))
    again = run("seed_usage", "--rows", "4000", *options)
    assert (again["rows"], again["ledger_entries"]) == (0, 0)
    assert set(rows.values_list("request_id", "admitted_at", "credits")) == made


def test_the_months_tables_are_as_they_were(slug: str) -> None:
    """The tables that took the months' places are protected, indexed and checked like all."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(DISTINCT (relrowsecurity, relforcerowsecurity)), bool_and(relrowsecurity AND relforcerowsecurity), "
            "count(DISTINCT (SELECT count(*) FROM pg_index WHERE indrelid = part.oid)), "
            "count(DISTINCT (SELECT count(*) FROM pg_constraint WHERE conrelid = part.oid AND contype IN ('f', 'u', 'p'))), "
            "count(DISTINCT (SELECT count(*) FROM pg_trigger WHERE tgrelid = part.oid)) "
            "FROM pg_inherits JOIN pg_class AS part ON part.oid = inhrelid WHERE inhparent = 'billing_usagerecord'::regclass"
        )
        assert cursor.fetchone() == (1, True, 1, 1, 1)


@pytest.mark.alone
def test_reports_and_pages_keep_to_their_time(tmp_path: Path) -> None:
    """H5: pages and reports of a month come from hourly sums; what they read of the log is bounded."""
    slug = factories.unique("volume")
    run("seed_usage", "--rows", "4000", "--organization", slug, "--members", "6")
    plans = tmp_path / "plans.md"
    answer = run("measure_reports", "--organization", slug, "--runs", "3", "--rows", "1000", "--plans", str(plans))
    measured = {one["name"]: one for one in answer["measured"]}
    assert {"month by day", "month by account", "member: my key", "owner: overview", "CSV of requests"} <= measured.keys()
    assert measured["CSV of requests"]["rows"] >= 1000
    assert measured["CSV of requests"]["met"]
    # On a machine that does other things besides: a second, where the command's own target is a fifth of it.
    assert {name: one["p50_ms"] for name, one in measured.items() if one.get("p50_ms", 0) >= 1000} == {}
    sections = plans.read_text().split("\n## ")
    for section in sections[1:]:
        if section.startswith("month by"):
            assert "billing_usagehour" in section
            assert "billing_usagerecord" not in section


def test_every_page_takes_as_many_queries_for_many_members_and_requests_as_for_few() -> None:
    """H5: of the pages that are measured, which are all."""
    taken = []
    for members, rows in ((3, 200), (15, 1500)):
        slug = factories.unique("volume")
        run("seed_usage", "--rows", str(rows), "--organization", slug, "--members", str(members))
        answer = run("measure_reports", "--organization", slug, "--runs", "1", "--rows", "0")
        taken.append({one["name"]: one["queries"] for one in answer["measured"] if "queries" in one})
    few, many = taken
    assert len(few) > 40
    assert many == few


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("seed_usage", "--rows", "0"), "at least one row"), (("measure_reports", "--runs", "0"), "at least one run")],
)
def test_wrong_numbers_are_refused(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        call_command(*arguments)
