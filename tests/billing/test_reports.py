"""Sums and rows of the usage log, and the operator's `usage` command."""

import json
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.models import ApiKey, Organization
from billing import credits, overview, periods, reports, rollups, usage
from billing.models import UsageRecord
from billing.overview import Whose
from config.clock import utc_now
from tests import factories
from tests.billing.usage_events import event_for, line

pytestmark = pytest.mark.django_db

START = datetime(2026, 11, 20, tzinfo=UTC)
END = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture
def organization() -> Organization:
    return factories.organization()


@pytest.fixture
def key(organization: Organization) -> ApiKey:
    return factories.api_key(factories.member(organization, team=factories.team(organization, "Core"))).row


def command(organization: Organization, *arguments: str) -> dict[str, Any]:
    out = StringIO()
    call_command("usage", organization.slug, *arguments, "--json", stdout=out)
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def by(organization: Organization, grouping: str, start: datetime = START, end: datetime = END) -> dict[Any, int]:
    """Credits by group; days and weeks without use are left out here."""
    found = reports.usage_by(organization, grouping, start, end)
    return {one.group: one.credits for one in found if one.requests or one.credits}


def test_a_day_is_the_organizations_day_and_half_open() -> None:
    """E16: spend 1 on the 23rd and 2 on the 24th; the 24th alone is 2."""
    organization = factories.organization(timezone="Asia/Tokyo")
    key = factories.api_key(factories.member(organization)).row
    tokyo = ZoneInfo("Asia/Tokyo")
    moments = {
        datetime(2026, 11, 23, 23, 59, 59, tzinfo=tokyo): 1_000_000,
        datetime(2026, 11, 24, tzinfo=tokyo): 1_500_000,
        datetime(2026, 11, 24, 23, 59, 59, tzinfo=tokyo): 500_000,
        datetime(2026, 11, 25, tzinfo=tokyo): 4_000_000,
    }
    usage.record(organization.pk, [event_for(key, admitted_at=at, credits=amount) for at, amount in moments.items()])
    day = periods.day_start(date(2026, 11, 24), tokyo), periods.day_start(date(2026, 11, 25), tokyo)
    assert by(organization, "day", *day) == {"2026-11-24": 2_000_000}
    assert by(organization, "day") == {"2026-11-23": 1_000_000, "2026-11-24": 2_000_000, "2026-11-25": 4_000_000}
    answer = command(organization, "--from", "2026-11-24", "--to", "2026-11-24")
    assert (answer["from"], answer["to"]) == ("2026-11-24T00:00:00+09:00", "2026-11-25T00:00:00+09:00")
    assert [(row["day"], row["credits"]) for row in answer["rows"]] == [("2026-11-24", "2")]
    assert answer["total_credits"] == "2"


def test_every_grouping_adds_up_to_the_same(organization: Organization, key: ApiKey) -> None:
    """I3: three models with 1, 2 and 3; each line counts where it was spent, amendments and orphans too."""
    other = factories.api_key(factories.member(organization)).row
    at = datetime(2026, 11, 25, 12, tzinfo=UTC)
    orphan = event_for(key, state="O", credits=40, admitted_at=at, is_estimated=True, account_id=5)
    events = [
        event_for(
            key, credits=1_000_000, admitted_at=at, lines=(line("m-1", account_id=1, input=5, credits=1_000_000),), account_id=1
        ),
        event_for(
            other,
            credits=5_000_000,
            admitted_at=at + timedelta(days=1),
            model_served="m-3",
            account_id=2,
            lines=(
                line("m-2", account_id=1, input=10, output=1, credits=2_000_000),
                line("m-3", account_id=2, input=10, output=2, credits=3_000_000),
            ),
        ),
        orphan,
        event_for(
            key,
            part=1,
            request_id=orphan.request_id,
            admitted_at=at,
            credits=-15,
            requests=0,
            lines=(line("gpt-5.4", account_id=5, output=7, credits=25),),
            account_id=5,
        ),
    ]
    usage.record(organization.pk, events)
    sums = {grouping: reports.usage_by(organization, grouping, START, END) for grouping in reports.GROUPINGS}
    assert by(organization, "model") == {"m-3": 3_000_000, "m-2": 2_000_000, "m-1": 1_000_000, "gpt-5.4": 25}
    assert by(organization, "account") == {1: 3_000_000, 2: 3_000_000, 5: 25}
    assert by(organization, "member") == {other.member_id: 5_000_000, key.member_id: 1_000_025}
    assert by(organization, "key") == {other.pk: 5_000_000, key.pk: 1_000_025}
    assert by(organization, "team") == {None: 6_000_025}
    assert by(organization, "week") == {"2026-11-23": 6_000_025}
    assert by(organization, "day") == {"2026-11-25": 1_000_025, "2026-11-26": 5_000_000}
    for grouping, found in sums.items():
        assert sum(one.credits for one in found) == 6_000_025, grouping
        assert sum(one.input_tokens for one in found) == 25, grouping
        assert sum(one.output_tokens for one in found) == 10, grouping
        assert sum(one.requests for one in found) == 3, grouping


def test_reports_hold_nothing_of_others(organization: Organization, key: ApiKey) -> None:
    stranger = factories.organization()
    theirs = factories.api_key(factories.member(stranger)).row
    at = datetime(2026, 11, 25, tzinfo=UTC)
    usage.record(stranger.pk, [event_for(theirs, admitted_at=at)])
    usage.record(organization.pk, [event_for(key, admitted_at=at, credits=3)])
    assert [by(organization, grouping) for grouping in ("day", "key")] == [{"2026-11-25": 3}, {key.pk: 3}]
    assert [row["key"] for row in reports.rows(organization, START, END)] == [key.public_id]
    assert reports.usage_by(organization, "member", START, END, members=[theirs.member_id]) == []
    assert list(reports.rows(organization, START, END, members=[])) == []


def test_every_day_of_the_time_is_a_row() -> None:
    """I5: seven days, use on three: seven rows, in the report and on the overview alike; the days of a clock change are whole."""
    organization = factories.organization(timezone="Europe/Berlin")
    key = factories.api_key(factories.member(organization)).row
    berlin = ZoneInfo("Europe/Berlin")
    first = date(2026, 10, 22)
    used = {date(2026, 10, 22): 3, date(2026, 10, 25): 5, date(2026, 10, 28): 7}
    for day, amount in used.items():
        begins, ends = periods.day_start(day, berlin), periods.day_start(day + timedelta(days=1), berlin)
        moments = [begins, ends - timedelta(seconds=1)]
        usage.record(organization.pk, [event_for(key, admitted_at=at, credits=amount) for at in moments])
    assert periods.day_start(date(2026, 10, 26), berlin) - periods.day_start(date(2026, 10, 25), berlin) == timedelta(hours=25)
    bounds = periods.day_start(first, berlin), periods.day_start(first + timedelta(days=7), berlin)
    expected = [(first + timedelta(days=number), 2 * used.get(first + timedelta(days=number), 0)) for number in range(7)]
    rows = reports.usage_by(organization, "day", *bounds)
    assert [(row.group, row.credits) for row in rows] == [(day.isoformat(), amount) for day, amount in expected]
    seen = overview.days_by_model(Whose(organization), until=first + timedelta(days=6), count=7)
    assert list(zip(seen.days, seen.totals, strict=True)) == expected
    assert seen.requests == tuple(row.requests for row in rows)
    weeks = reports.usage_by(organization, "week", *bounds)
    assert [(row.group, row.credits) for row in weeks] == [("2026-10-19", 16), ("2026-10-26", 14)]


@pytest.mark.parametrize("grouping", reports.GROUPINGS)
def test_a_time_that_cuts_hours_is_summed_to_the_second(organization: Organization, key: ApiKey, grouping: str) -> None:
    at = datetime(2026, 11, 25, 10, 30, tzinfo=UTC)
    other = factories.api_key(factories.member(organization)).row
    events = [event_for(key, admitted_at=at + timedelta(seconds=second), credits=1) for second in range(0, 9000, 60)]
    events += [event_for(other, admitted_at=at + timedelta(seconds=second), credits=1000) for second in range(0, 9000, 60)]
    usage.record(organization.pk, events)

    def total(start: datetime, end: datetime, **whose: Any) -> int:
        return sum(one.credits for one in reports.usage_by(organization, grouping, start, end, **whose))

    minute = timedelta(minutes=1)
    assert total(at, at + 150 * minute) == 150_150
    assert total(at + minute, at + 149 * minute) == 148_148
    assert total(at + minute, at + 2 * minute) == 1001
    assert total(at + 30 * minute, at + 31 * minute) == 1001
    assert total(at + 29 * minute, at + 31 * minute, members=[key.member_id]) == 2
    assert total(at + minute, at + minute + timedelta(seconds=1)) == 1001
    assert total(at + minute + timedelta(seconds=1), at + 2 * minute) == 0


def test_a_teams_use_is_that_of_the_time_when_its_members_were_in_it(organization: Organization, key: ApiKey) -> None:
    team_id = key.member.team_id
    stray = factories.api_key(factories.member(organization)).row
    at = datetime(2026, 11, 25, tzinfo=UTC)
    usage.record(
        organization.pk,
        [
            event_for(key, admitted_at=at, credits=3, team_id=team_id),
            event_for(key, admitted_at=at, credits=5),
            event_for(stray, admitted_at=at, credits=9, team_id=team_id),
        ],
    )
    assert by(organization, "team") == {team_id: 12, None: 5}
    found = reports.usage_by(organization, "member", START, END, team_id=team_id)
    assert [(one.group, one.credits) for one in found] == [(stray.member_id, 9), (key.member_id, 3)]
    assert reports.team_names(organization) == {team_id: "Core"}


def test_an_unknown_grouping_is_an_error(organization: Organization) -> None:
    with pytest.raises(ValueError, match="not by 'weather'"):
        reports.usage_by(organization, "weather", START, END)


@pytest.mark.parametrize("grouping", reports.GROUPINGS)
def test_a_sum_is_one_query(organization: Organization, key: ApiKey, grouping: str) -> None:
    usage.record(organization.pk, [event_for(key, credits=1) for _ in range(20)])
    with CaptureQueriesContext(connection) as queries:
        reports.usage_by(organization, grouping, START, END + timedelta(days=3650))
    assert len(queries) == 1


def test_some_amounts_are_those_of_all_in_the_order_asked_for(organization: Organization, key: ApiKey) -> None:
    """Also of an hour that the time cuts, which is read from the log."""
    at = START + timedelta(hours=9, minutes=50)
    events = [event_for(key, admitted_at=at + timedelta(minutes=20 * number), credits=number + 1) for number in range(4)]
    usage.record(organization.pk, events)
    until = at + timedelta(minutes=50)
    for by in (("day",), ("member",), ("model", "day")):
        every = reports.sums(organization, by, at, until)
        some = reports.sums(organization, by, at, until, amounts=("credits", "requests"))
        place = [rollups.AMOUNTS.index(name) for name in ("credits", "requests")]
        assert some == {group: [amounts[index] for index in place] for group, amounts in every.items()}
        assert list(some.values()) == [[6, 3]]


def test_rows_are_the_columns_of_the_log_with_readable_names(organization: Organization, key: ApiKey) -> None:
    """D1: credits are decimal strings, never floats."""
    account, _ = factories.openai_account(organization, label="Main key")
    at = utc_now().replace(microsecond=0)
    event = event_for(
        key,
        admitted_at=at,
        credits=300_000,
        funds=(100_000, 0, 0, 200_000),
        team_id=key.member.team_id,
        account_id=account.pk,
        lines=(line(account_id=account.pk, input=5, credits=300_000),),
    )
    usage.record(organization.pk, [event])
    answer = command(organization, "--rows")
    (row,) = answer["rows"]
    columns = {field.attname for field in UsageRecord._meta.concrete_fields}
    assert set(row) == columns | {"organization", "team", "member", "key", "account"}
    assert key.member.user is not None
    assert (row["organization"], row["team"], row["member"]) == (organization.slug, "Core", key.member.user.email)
    assert (row["key"], row["account"], row["account_id"]) == (key.public_id, "Main key", account.pk)
    assert (row["credits"], row["from_quota"], row["from_purchased"], row["overdraft"]) == ("0.3", "0.1", "0", "0.2")
    assert (row["lines"][0]["credits"], row["lines"][0]["input"], row["input_tokens"]) == ("0.3", 5, 5)
    assert row["admitted_at"] == at.isoformat()
    assert (answer["by"], answer["total_credits"]) == ("day", "0.3")


def test_the_command_names_what_it_sums_by(organization: Organization, key: ApiKey) -> None:
    account, _ = factories.openai_account(organization, label="Main key")
    usage.record(
        organization.pk,
        [event_for(key, credits=4, lines=(line("gpt-5.4", account_id=account.pk, input=9, credits=4),), account_id=account.pk)],
    )
    assert key.member.user is not None
    names = {"member": key.member.user.email, "key": key.public_id, "model": "gpt-5.4", "account": "Main key"}
    for grouping, name in names.items():
        answer = command(organization, "--by", grouping)
        assert [(row[grouping], row["requests"], row["input_tokens"], row["credits"]) for row in answer["rows"]] == [
            (name, 1, 9, "0.000004")
        ]
        assert answer["total_credits"] == "0.000004"


def test_without_bounds_it_shows_the_current_period(organization: Organization, key: ApiKey) -> None:
    period = organization.subscriptions.get().periods.get()
    before = event_for(key, credits=5, admitted_at=period.starts_at - timedelta(seconds=1))
    usage.record(organization.pk, [before, event_for(key, credits=7, admitted_at=period.starts_at)])
    answer = command(organization)
    assert answer["from"] == period.starts_at.isoformat()
    assert answer["total_credits"] == credits.text(7)


def test_without_a_subscription_it_shows_the_month() -> None:
    answer = command(factories.organization(plan=None))
    assert answer["from"] == utc_now().replace(day=1, hour=0, minute=0, second=0, microsecond=0).isoformat()
    assert {row["credits"] for row in answer["rows"]} == {"0"}
    assert (len(answer["rows"]), answer["total_credits"]) == (utc_now().day, "0")


def test_the_table_for_people_ends_with_the_total(organization: Organization, key: ApiKey) -> None:
    usage.record(organization.pk, [event_for(key, credits=1_250_000)])
    out = StringIO()
    call_command("usage", organization.slug, "--by", "key", stdout=out)
    lines = out.getvalue().splitlines()
    assert lines[1].split()[:3] == ["key", "key_id", "requests"]
    assert lines[2].split()[0] == key.public_id
    assert lines[-1] == "total: 1.25 credits"


def test_the_log_for_people_says_that_it_is_row_by_row_and_nests_json(organization: Organization, key: ApiKey) -> None:
    usage.record(organization.pk, [event_for(key, credits=1_250_000)])
    out = StringIO()
    call_command("usage", organization.slug, "--rows", stdout=out)
    lines = out.getvalue().splitlines()
    assert lines[0].endswith(", row by row")
    assert "request_id" in lines[1].split()
    assert "'" not in lines[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "yesterday"], "--from 'yesterday' is neither a day"),
        (["--from", "2026-11-31"], "neither a day"),
        (["--to", "2026-11-24T12:00:00"], "needs a zone"),
        (["--from", "2026-11-24", "--to", "2026-11-23"], "is not before --to"),
        (["--by", "weather"], "invalid choice"),
    ],
)
def test_a_wrong_argument_is_a_clear_error(organization: Organization, arguments: list[str], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        call_command("usage", organization.slug, *arguments)


def test_an_unknown_organization_is_a_clear_error() -> None:
    with pytest.raises(CommandError, match="nowhere"):
        call_command("usage", "nowhere")
