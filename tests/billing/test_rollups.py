"""Hourly sums: equal to the log however its rows came, and whole local days in every zone."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db.models import Sum

from accounts.models import ApiKey, Organization
from billing import periods, rollups, usage
from billing.events import UsageEvent
from billing.models import UsageHour, UsageRecord
from tests import factories
from tests.billing.usage_events import event_for, line

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


def buckets(organization: Organization) -> set[tuple[Any, ...]]:
    return set(UsageHour.objects.filter(organization=organization).values_list(*rollups.GROUP, *rollups.AMOUNTS))


def key_of(zone: str = "UTC") -> tuple[Organization, ApiKey]:
    organization = factories.organization(timezone=zone)
    return organization, factories.api_key(factories.member(organization, team=factories.team(organization, "Core"))).row


def record(organization: Organization, events: Sequence[UsageEvent]) -> None:
    usage.record(organization.pk, events)


def rebuilt(organization: Organization) -> set[tuple[Any, ...]]:
    rollups.rebuild(organization.pk, datetime(2020, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC))
    return buckets(organization)


def by_model(organization: Organization) -> dict[tuple[str, int], tuple[int, ...]]:
    rows = UsageHour.objects.filter(organization=organization)
    return {
        (row.model, row.account_id): (row.requests, row.input_tokens, row.output_tokens, row.counted_tokens, row.credits)
        for row in rows
    }


def test_each_line_counts_under_its_own_model_and_the_request_with_the_last() -> None:
    organization, key = key_of()
    event = event_for(
        key,
        credits=5_000_003,
        tokens=25,
        funds=(2_500_000, 1_000_000, 1_500_000, 3),
        admitted_at=NOON,
        model_served="m-3-2026-03-05",
        account_id=2,
        lines=(
            line("m-2", account_id=1, input=10, output=1, credits=2_000_000),
            line("m-3", account_id=2, input=10, output=2, credits=3_000_000),
        ),
    )
    record(organization, [event])
    # Two tokens and three micro-credits that no line explains go with the last one.
    assert by_model(organization) == {("m-2", 1): (0, 10, 1, 11, 2_000_000), ("m-3", 2): (1, 10, 2, 14, 3_000_003)}
    first, last = UsageHour.objects.filter(organization=organization).order_by("model")
    assert (first.from_quota, first.from_purchased, first.from_overage, first.overdraft) == (2_000_000, 0, 0, 0)
    assert (last.from_quota, last.from_purchased, last.from_overage, last.overdraft) == (500_000, 1_000_000, 1_500_000, 3)
    made = buckets(organization)
    assert rebuilt(organization) == made


def test_an_amendment_moves_what_its_orphan_was_booked_under() -> None:
    organization, key = key_of()
    orphan = event_for(key, state="O", credits=40, tokens=9, admitted_at=NOON, model_asked="asked")
    record(organization, [orphan])
    assert by_model(organization) == {("asked", 0): (1, 0, 0, 9, 40)}
    amendment = event_for(
        key,
        part=1,
        request_id=orphan.request_id,
        admitted_at=NOON,
        credits=-15,
        tokens=3,
        requests=0,
        model_asked="asked",
        lines=(line("served", account_id=5, input=5, output=7, credits=25),),
        account_id=5,
    )
    record(organization, [amendment])
    assert by_model(organization) == {("served", 5): (1, 5, 7, 12, 25)}
    made = buckets(organization)
    record(organization, [amendment, orphan])
    assert buckets(organization) == made
    assert rebuilt(organization) == made


@pytest.mark.parametrize("together", [True, False])
def test_an_amendment_may_come_before_its_orphan(together: bool) -> None:
    organization, key = key_of()
    orphan = event_for(key, state="O", credits=40, tokens=9, admitted_at=NOON)
    served = (line("served", account_id=5, output=7, credits=60),)
    amendment = event_for(
        key, part=1, request_id=orphan.request_id, admitted_at=NOON, credits=20, tokens=-2, requests=0, lines=served, account_id=5
    )
    for events in [[amendment, orphan]] if together else [[amendment], [orphan]]:
        record(organization, events)
    assert by_model(organization) == {("served", 5): (1, 0, 7, 7, 60)}
    made = buckets(organization)
    assert rebuilt(organization) == made


def test_an_orphan_that_was_released_leaves_no_bucket() -> None:
    organization, key = key_of()
    orphan = event_for(key, state="O", credits=40, tokens=9, admitted_at=NOON)
    gone = event_for(key, part=1, request_id=orphan.request_id, admitted_at=NOON, credits=-40, tokens=-9, requests=-1)
    record(organization, [orphan, gone])
    assert buckets(organization) == set()
    assert rebuilt(organization) == set()


def test_an_implausible_request_counts_at_what_was_held() -> None:
    """D5: the record's credits are the hold's; so are the bucket's."""
    organization, key = key_of()
    held = (line("gpt-5.4", account_id=1, input=100, output=20, credits=777),)
    record(organization, [event_for(key, credits=777, tokens=120, admitted_at=NOON, lines=held, is_implausible=True)])
    assert by_model(organization) == {("gpt-5.4", 1): (1, 100, 20, 120, 777)}


@dataclass(frozen=True)
class Change:
    zone: str
    at: datetime


CHANGES = [
    Change("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    Change("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    Change("Asia/Kathmandu", datetime(2026, 5, 5, 18, 15, tzinfo=UTC)),
    Change("Asia/Kolkata", datetime(2026, 5, 5, 18, 30, tzinfo=UTC)),
    Change("Pacific/Chatham", datetime(2026, 4, 4, 14, tzinfo=UTC)),
    Change("Pacific/Chatham", datetime(2026, 9, 26, 14, tzinfo=UTC)),
    Change("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    Change("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    # At midnight itself: forwards there is no 0:00, backwards two days share an hour.
    Change("Africa/Cairo", datetime(2026, 4, 23, 22, tzinfo=UTC)),
    Change("America/Havana", datetime(2026, 11, 1, 5, tzinfo=UTC)),
    Change("America/Santiago", datetime(2026, 9, 6, 4, tzinfo=UTC)),
    Change("America/Sao_Paulo", datetime(2018, 2, 18, 2, tzinfo=UTC)),
    # Half an hour over midnight.
    Change("Asia/Pyongyang", datetime(2018, 5, 4, 15, tzinfo=UTC)),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.zone}-{change.at:%m-%d}")
def test_buckets_are_local_hours_that_part_local_days_exactly(change: Change) -> None:
    """A second before and at every quarter of an hour around the change: in its own day's bucket, and in the hour it shows."""
    zone = ZoneInfo(change.zone)
    seen: list[datetime] = []
    for quarter in range(-200, 200):
        for second in (-1, 0, 1):
            moment = change.at + timedelta(minutes=15 * quarter, seconds=second)
            bucket = rollups.hour_of(moment, zone)
            local = moment.astimezone(zone)
            assert bucket <= moment < bucket + timedelta(hours=1)
            assert bucket.astimezone(zone).utcoffset() == local.utcoffset()
            assert bucket.astimezone(zone).hour == local.hour
            day = local.date()
            for start in (periods.day_start(day + timedelta(days=number), zone) for number in (-1, 0, 1, 2)):
                assert (bucket < start) == (moment < start)
            seen.append(bucket)
            assert rollups.hour_of(bucket, zone) == bucket
    assert seen == sorted(seen)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.zone}-{change.at:%m-%d}")
def test_the_database_cuts_hours_where_we_do(change: Change) -> None:
    organization, key = key_of(change.zone)
    events = [
        event_for(key, admitted_at=change.at + timedelta(minutes=15 * quarter, seconds=second), credits=1)
        for quarter in range(-12, 12)
        for second in (-1, 0, 1)
    ]
    record(organization, events)
    made = buckets(organization)
    assert rebuilt(organization) == made
    assert sum(row[rollups.GROUP.__len__()] for row in made) == len(events)


def test_a_rebuild_of_some_hours_leaves_the_others() -> None:
    organization, key = key_of("Asia/Kathmandu")
    record(
        organization, [event_for(key, admitted_at=NOON + timedelta(minutes=20 * number), credits=number) for number in range(30)]
    )
    made = buckets(organization)
    start, end = NOON + timedelta(hours=2, minutes=7), NOON + timedelta(hours=3, minutes=1)
    UsageHour.objects.filter(organization=organization, hour__gte=start - timedelta(hours=1), hour__lt=end).delete()
    assert rollups.rebuild(organization.pk, start, end) == 2
    assert buckets(organization) == made
    assert rollups.rebuild(organization.pk, end, start) == 0
    assert buckets(organization) == made


@pytest.mark.parametrize("seed", range(12))
def test_what_was_added_is_what_a_rebuild_makes(seed: int) -> None:
    """Random requests: several lines, orphans, amendments before and after, repeats, in random batches over a clock change."""
    rng = random.Random(seed)
    organization, key = key_of(rng.choice(["Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "America/Santiago"]))
    other = factories.api_key(factories.member(organization)).row
    around = datetime(2026, rng.choice([3, 4, 9, 10]), 26, tzinfo=UTC)
    events: list[UsageEvent] = []
    for _ in range(60):
        whose = rng.choice([key, other])
        at = around + timedelta(seconds=rng.randint(-200_000, 400_000))
        lines = tuple(
            line(
                rng.choice(["m-1", "m-2", "m-3"]),
                account_id=rng.choice([None, 1, 2]),
                input=rng.randint(0, 50),
                output=rng.randint(0, 9),
                credits=rng.randint(0, 1000),
            )
            for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))
        )
        credits = max(0, sum(one.credits for one in lines) + rng.choice([0, 0, 0, 7, -3]))
        asked: dict[str, Any] = {
            "model_asked": rng.choice(["m-1", "m-4"]),
            "account_id": rng.choice([None, 1]),
            "team_id": whose.member.team_id,
        }
        if rng.random() < 0.25:
            observed = rng.randint(0, 900)
            orphan = event_for(whose, state="O", admitted_at=at, credits=observed, tokens=rng.randint(0, 60), **asked)
            events.append(orphan)
            if rng.random() < 0.8:
                amended = event_for(
                    whose,
                    part=1,
                    request_id=orphan.request_id,
                    admitted_at=at,
                    credits=credits - observed,
                    tokens=rng.randint(-5, 90),
                    requests=rng.choice([0, 0, -1]),
                    lines=lines,
                    **asked,
                )
                events.append(amended)
        else:
            quota = rng.randint(0, credits)
            events.append(
                event_for(
                    whose, admitted_at=at, credits=credits, funds=(quota, 0, 0, credits - quota), tokens=60, lines=lines, **asked
                )
            )
    events += rng.sample(events, 10)
    rng.shuffle(events)
    while events:
        size = rng.randint(1, 20)
        record(organization, events[:size])
        events = events[size:]
    made = buckets(organization)
    assert rebuilt(organization) == made
    totals = UsageHour.objects.filter(organization=organization).aggregate(*(Sum(name) for name in rollups.AMOUNTS))
    logged = UsageRecord.objects.for_organization(organization).aggregate(
        *(Sum(name) for name in ("counted_requests", *rollups.AMOUNTS[1:]))
    )
    assert list(totals.values()) == list(logged.values())
    for row in UsageHour.objects.filter(organization=organization):
        assert row.from_quota + row.from_purchased + row.from_overage + row.overdraft == row.credits
