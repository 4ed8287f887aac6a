"""Usage events become rows and move the periods, once."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from accounts.models import ApiKey, Organization
from billing import books, ledger, subscriptions, usage
from billing.events import UsageEvent
from billing.models import Plan, SubscriptionPeriod, UsageRecord
from config.clock import utc_now
from tests import factories
from tests.billing.credit_books import assert_books_agree
from tests.billing.usage_events import event_for, line

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization() -> Organization:
    return factories.organization()


@pytest.fixture
def key(organization: Organization) -> ApiKey:
    return factories.api_key(factories.member(organization, team=factories.team(organization))).row


def drawn(organization: Organization) -> tuple[int, ...]:
    """Of the organization's newest period: from quota, purchased, overage, overdraft, tokens, requests."""
    period = SubscriptionPeriod.objects.filter(subscription__organization=organization, subscription__member=None).first()
    assert period is not None
    return (
        period.used_from_quota,
        period.used_from_purchased,
        period.overage,
        period.overdraft,
        period.tokens,
        period.requests,
    )


def parts(event: UsageEvent) -> list[tuple[int, str, int, int, int]]:
    rows = UsageRecord.objects.filter(request_id=event.request_id).order_by("part")
    return list(rows.values_list("part", "status", "credits", "counted_tokens", "counted_requests"))


def test_a_row_says_everything_that_the_event_does(organization: Organization, key: ApiKey) -> None:
    at = utc_now().replace(microsecond=0)
    lines = (
        line("gpt-5.5", rate_id=9, account_id=70, input=80, cached_input=20, output=9, reasoning=4, credits=1_000),
        line("gpt-5.4", rate_id=7, account_id=71, input=100, cached_input=1920, cache_write=5, output=300, credits=500),
    )
    event = event_for(
        key,
        admitted_at=at,
        credits=1_500,
        tokens=2_434,
        funds=(900, 300, 200, 100),
        lines=lines,
        team_id=key.member.team_id,
        session="s" * 64,
        account_id=71,
        response_id="resp_1",
        model_asked="gpt-5.4-2026-03-05",
        model_served="gpt-5.4",
        tier_asked="priority",
        tier_billed="fast",
        status="incomplete",
        is_clamped=True,
        latency_ms=2500,
        first_token_ms=400,
        trace=({"account_id": 70, "reason": "failover"},),
        raw_usage={"input_tokens": 2026},
    )
    assert usage.record(organization.pk, [event]) == 1
    row = UsageRecord.objects.get(request_id=event.request_id)
    assert (row.organization_id, row.team_id, row.member_id, row.key_id) == (
        organization.pk,
        key.member.team_id,
        key.member_id,
        key.pk,
    )
    assert (row.part, row.admitted_at, row.ended_at) == (0, at, at + timedelta(milliseconds=1234))
    assert (row.input_tokens, row.cached_input_tokens, row.cache_write_tokens) == (180, 1940, 5)
    assert (row.output_tokens, row.reasoning_tokens, row.counted_tokens, row.counted_requests) == (309, 4, 2_434, 1)
    assert (row.credits, row.from_quota, row.from_purchased, row.from_overage, row.overdraft) == (1_500, 900, 300, 200, 100)
    assert (row.session, row.account_id, row.response_id, row.stream_id) == ("s" * 64, 71, "resp_1", event.stream_id)
    assert (row.model_asked, row.model_served, row.rate_id) == ("gpt-5.4-2026-03-05", "gpt-5.4", 7)
    assert (row.tier_asked, row.tier_billed, row.status) == ("priority", "fast", "incomplete")
    assert (row.is_estimated, row.is_implausible, row.is_clamped) == (False, False, True)
    assert (row.latency_ms, row.first_token_ms) == (2500, 400)
    assert (row.trace, row.raw_usage) == ([{"account_id": 70, "reason": "failover"}], {"input_tokens": 2026})
    assert [(one["model"], one["rate_id"], one["credits"], one["output"]) for one in row.lines] == [
        ("gpt-5.5", 9, 1_000, 9),
        ("gpt-5.4", 7, 500, 300),
    ]
    assert drawn(organization) == (900, 300, 200, 100, 2_434, 1)


def test_an_event_that_comes_again_changes_nothing(organization: Organization, key: ApiKey) -> None:
    """C20: one row per request, however often and in whatever company its event comes."""
    first, second = event_for(key, credits=100, tokens=10), event_for(key, credits=30, tokens=3)
    assert usage.record(organization.pk, [first, first]) == 1
    assert usage.record(organization.pk, [first, second]) == 1
    assert usage.record(organization.pk, [second, first]) == 0
    assert usage.record(organization.pk, []) == 0
    assert UsageRecord.objects.for_organization(organization).count() == 2
    assert drawn(organization) == (130, 0, 0, 0, 13, 2)


def test_an_orphan_and_its_amendment_add_up_to_what_was_owed(organization: Organization, key: ApiKey) -> None:
    """A15: the orphan at what was observed, the amendment as the difference, in the worked vector's numbers."""
    orphan = event_for(key, state="O", credits=120, tokens=3, is_estimated=True)
    settled = replace(orphan, part=1, state="S", credits=290, tokens=6, requests=0, from_quota=290, stream_id="1-2")
    settled = replace(settled, body=event_for(key, lines=(line(input=5, output=4, credits=410),)).body)
    assert usage.record(organization.pk, [orphan, settled]) == 2
    assert usage.record(organization.pk, [settled, orphan]) == 0
    assert parts(orphan) == [(0, "orphaned", 120, 3, 1), (1, "ok", 290, 6, 0)]
    assert drawn(organization) == (410, 0, 0, 0, 9, 1)


def test_an_amendment_may_give_back(organization: Organization, key: ApiKey) -> None:
    orphan = event_for(key, state="O", credits=120, tokens=3)
    given_back = replace(orphan, part=1, state="S", credits=-20, tokens=-1, requests=0, from_quota=-20)
    usage.record(organization.pk, [orphan])
    usage.record(organization.pk, [given_back])
    assert drawn(organization) == (100, 0, 0, 0, 2, 1)


def test_a_settlement_that_meets_its_orphan_is_stored_as_the_difference_once(organization: Organization, key: ApiKey) -> None:
    """A15: the counters were lost between the sweep and the settlement, so both come as part 0."""
    orphan = event_for(key, state="O", credits=120, tokens=3)
    settled = event_for(
        key,
        request_id=orphan.request_id,
        admitted_at=datetime.fromtimestamp(orphan.admitted_at, UTC),
        credits=410,
        tokens=9,
        lines=(line(input=5, output=4, credits=410),),
        outcome="LOGGED",
    )
    usage.record(organization.pk, [orphan])
    assert usage.record(organization.pk, [settled]) == 1
    assert usage.record(organization.pk, [settled, orphan, settled]) == 0
    assert parts(orphan) == [(0, "orphaned", 120, 3, 1), (1, "ok", 290, 6, 0)]
    assert drawn(organization) == (410, 0, 0, 0, 9, 1)


def test_so_is_one_in_the_same_batch_or_one_whose_funds_the_engine_knew(organization: Organization, key: ApiKey) -> None:
    orphan = event_for(key, state="O", credits=120, tokens=3)
    settled = replace(orphan, state="S", credits=410, tokens=9, from_quota=400, overdraft=10, stream_id="2-2")
    assert usage.record(organization.pk, [orphan, settled]) == 2
    assert [row[0] for row in parts(orphan)] == [0, 1]
    assert drawn(organization) == (400, 0, 0, 10, 9, 1)


def test_a_settlement_without_a_status_is_no_orphan(organization: Organization, key: ApiKey) -> None:
    event = event_for(key, status="orphaned")
    usage.record(organization.pk, [event])
    assert usage.record(organization.pk, [event]) == 0
    assert [row[:2] for row in parts(event)] == [(0, "failed")]


def test_funds_that_the_engine_did_not_know_are_split_by_what_the_quota_leaves(organization: Organization, key: ApiKey) -> None:
    """A3: the quota never goes below zero; the rest is overdraft."""
    SubscriptionPeriod.objects.filter(subscription__organization=organization).update(quota=250)
    events = [event_for(key, credits=credits, outcome="LOGGED") for credits in (100, 200, 50)]
    assert usage.record(organization.pk, events) == 3
    assert drawn(organization) == (250, 0, 0, 100, 150, 3)
    assert list(UsageRecord.objects.for_organization(organization).order_by("id").values_list("from_quota", "overdraft")) == [
        (100, 0),
        (150, 50),
        (0, 50),
    ]


def test_the_period_follows_a_plan_that_grew(organization: Organization, key: ApiKey) -> None:
    SubscriptionPeriod.objects.filter(subscription__organization=organization).update(quota=250)
    usage.record(organization.pk, [event_for(key, credits=300)])
    assert SubscriptionPeriod.objects.get(subscription__organization=organization).quota == 300
    assert drawn(organization)[0] == 300


def test_usage_counts_in_the_period_it_was_admitted_in(organization: Organization, key: ApiKey) -> None:
    """E12: by the event's own period start, made if it is missing; whatever the time is now."""
    subscription = organization.subscriptions.get()
    period = subscription.periods.get()
    late = event_for(key, credits=7, admitted_at=period.starts_at - timedelta(seconds=1))
    next_one = event_for(key, credits=9, admitted_at=period.ends_at)
    usage.record(organization.pk, [late, event_for(key, credits=1), next_one])
    found = subscription.periods.order_by("starts_at").values_list("starts_at", "ends_at", "used_from_quota", "quota")
    week = timedelta(days=7)
    assert list(found) == [
        (period.starts_at - week, period.starts_at, 7, period.quota),
        (period.starts_at, period.ends_at, 1, period.quota),
        (period.ends_at, period.ends_at + week, 9, period.quota),
    ]


def test_a_seat_pays_from_its_own_period(organization: Organization, key: ApiKey) -> None:
    seat = subscriptions.start(organization, Plan.objects.get(slug="pro"), now=utc_now(), member=key.member)
    usage.record(organization.pk, [event_for(key, credits=5, source=f"m{key.member_id}"), event_for(key, credits=3)])
    assert seat.periods.get().used_from_quota == 5
    assert drawn(organization)[0] == 3


def test_of_two_subscriptions_of_one_day_the_one_that_was_active_pays(organization: Organization, key: ApiKey) -> None:
    first = organization.subscriptions.get()
    noon = first.started_at + timedelta(hours=3)
    before = event_for(key, credits=2, admitted_at=noon - timedelta(seconds=1))
    subscriptions.end(first, now=noon)
    second = subscriptions.start(organization, Plan.objects.get(slug="pro"), now=noon, anchor=first.anchor)
    after = event_for(key, credits=4, admitted_at=noon)
    usage.record(organization.pk, [before, after])
    assert [one.periods.get().used_from_quota for one in (first, second)] == [2, 4]


def test_usage_without_a_subscription_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    organization = factories.organization(plan=None)
    key = factories.api_key(factories.member(organization)).row
    events = [event_for(key, period_start=datetime(2026, 11, 30, tzinfo=UTC)) for _ in range(3)]
    assert usage.record(organization.pk, events) == 3
    assert [record.message for record in caplog.records] == ["usage without a subscription"]
    assert not SubscriptionPeriod.objects.filter(subscription__organization=organization).exists()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"funds": (50, 0, 0, 0)}, "usage_funding_sums_to_credits"),
        ({"credits": -5}, "usage_end_not_negative"),
        ({"part": 2}, "usage_part_is_end_or_amendment"),
        ({"member_id": 10**12}, "member_id_fkey"),
    ],
)
def test_an_event_that_cannot_be_is_refused_and_takes_the_batch_with_it(
    organization: Organization, key: ApiKey, fields: dict[str, Any], name: str
) -> None:
    """D5: an end of a hold never costs less than nothing."""
    with pytest.raises(IntegrityError, match=name), transaction.atomic():
        usage.record(organization.pk, [event_for(key), event_for(key, **fields)])
    assert not UsageRecord.objects.for_organization(organization).exists()
    assert drawn(organization) == (0, 0, 0, 0, 0, 0)


def test_text_that_postgres_does_not_take_is_made_fit(organization: Organization, key: ApiKey) -> None:
    event = event_for(
        key,
        session="a\0b" + "x" * 80,
        response_id="r" * 200,
        model_asked="m" * 200,
        tier_asked="t" * 30,
        raw_usage={"no\0te": ["\0", {"é": "\\u0000"}]},
    )
    usage.record(organization.pk, [event])
    row = UsageRecord.objects.get(request_id=event.request_id)
    assert (row.session, len(row.response_id), len(row.model_asked), len(row.tier_asked)) == ("a\ufffdb" + "x" * 61, 128, 120, 20)
    assert row.raw_usage == {"no\ufffdte": ["\ufffd", {"é": "\\u0000"}]}


@pytest.mark.alone
def test_a_full_batch_takes_a_handful_of_statements_and_little_time(organization: Organization, key: ApiKey) -> None:
    def batch() -> list[UsageEvent]:
        lines = (line(rate_id=7, account_id=3, input=1000, cached_input=20_000, output=400, credits=100),)
        return [event_for(key, period_start=start, lines=lines, trace=({"account_id": 3},), session="s" * 40) for _ in range(500)]

    start = organization.subscriptions.get().periods.get().starts_at
    usage.record(organization.pk, batch())
    took = []
    for _ in range(3):
        events = batch()
        began = time.perf_counter()
        with CaptureQueriesContext(connection) as queries:
            assert usage.record(organization.pk, events) == 500
        took.append(time.perf_counter() - began)
        # Savepoint, lock, insert, subscriptions, period, update, ledger; hourly sums: lock, zone, upsert; release.
        assert len(queries) == 11
    assert drawn(organization)[5] == 2000
    assert min(took) < 0.25


# --------------------------------------------------------------------------------------------- parts in an unexpected order


def test_an_amendment_that_gives_back_may_come_before_its_orphan(organization: Organization, key: ApiKey) -> None:
    """Batches apart: it is stored and booked at once, and the sums are right when its orphan has come."""
    ledger.grant(organization, 500, reason="A gift", actor=None, now=utc_now(), expires_at=None)
    orphan = event_for(key, credits=30, funds=(5, 20, 3, 2), tokens=9, state="O")
    amendment = event_for(
        key,
        credits=-18,
        funds=(-2, -12, -3, -1),
        tokens=-4,
        requests=0,
        part=1,
        request_id=orphan.request_id,
        admitted_at=datetime.fromtimestamp(orphan.admitted_at, UTC),
    )
    assert usage.record(organization.pk, [amendment]) == 1
    assert drawn(organization) == (-2, -12, -3, -1, -4, 0)
    assert_books_agree(organization.pk)
    assert usage.record(organization.pk, [orphan]) == 1
    assert drawn(organization) == (3, 8, 0, 1, 5, 1)
    assert usage.record(organization.pk, [amendment, orphan]) == 0
    assert_books_agree(organization.pk)
    at = orphan.admitted_at
    moment = datetime.fromtimestamp(at, UTC)
    assert books.mismatches(organization, moment - timedelta(days=8), moment + timedelta(hours=1)) == []


def test_usage_of_the_second_in_which_a_subscription_follows_stays_with_its_period(organization: Organization, key: ApiKey) -> None:
    """What drew on the first one's period in that second does not open a period of the second one before it began."""
    first = organization.subscriptions.get()
    period = first.periods.get()
    second_of = (first.started_at + timedelta(hours=30)).replace(microsecond=0)
    subscriptions.end(first, now=second_of + timedelta(microseconds=200_000))
    following = subscriptions.start(organization, Plan.objects.get(slug="pro"), now=second_of + timedelta(microseconds=600_000))
    usage.record(organization.pk, [event_for(key, credits=4, admitted_at=second_of, period_start=period.starts_at)])
    assert first.periods.get().used_from_quota == 4
    assert [one.used_from_quota for one in following.periods.all()] == [0]
