"""Millions of usage rows for measurements: made by PostgreSQL itself, the same rows for the same seed.

In the shape of what the drain writes: working days from eight to six in the organization's zone, a few members who use much and
many who use little, half an hour's requests of one person with one model and one account, one request in a hundred with two priced
lines. Each UTC month is filled apart, without indexes, and then takes the place of the month's table with the rows that were
there: row by row into the log would take several times as long. Then the periods' sums and, if asked, the ledger's entries; hourly
sums and counters are made by who calls this.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db import connection, transaction

from accounts import keys, members, organizations, teams
from accounts.models import ApiKey, Member, Organization, Team
from billing import partitions, periods, subscriptions
from billing.models import Plan, Subscription
from config import snapshot

TEAMS = 8
ACCOUNTS = 8
"""Accounts are numbers that stand for none."""
MODELS = {"gpt-5.5": 9, "gpt-6.1-sol": 6, "gpt-5.6-sol": 3, "gpt-5.4": 2, "gpt-5.4-mini": 3, "gpt-6-luna": 1}
"""Shares of the traffic; what has no rate on a day is left out on it."""
OPENS, OPEN = timedelta(hours=8), timedelta(hours=10)
WEEKEND = 10
"""A weekend's day has a tenth of a working day's requests."""

INSERT = """
WITH drawn AS (
    SELECT n,
        hashint8extended(n, %(seed)s) & 9007199254740991 AS a,
        hashint8extended(n, %(seed)s + 1) & 9007199254740991 AS b,
        hashint8extended(n, %(seed)s + 2) & 9007199254740991 AS c
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
), placed AS (
    SELECT *,
        -- The square makes some use much more than others.
        1 + floor(power((a %% 100003) / 100003.0, 2) * %(people)s)::int AS person,
        (a / 100003 %% %(seconds)s)::int AS second
    FROM drawn
), in_session AS (
    -- Half an hour's requests of one person are a session: one model, one account.
    SELECT *, hashint8extended(person * 1000::bigint + second / 1800, %(day)s) & 9007199254740991 AS session FROM placed
), chosen AS (
    SELECT n, a, b, c, person, session,
        1 + (session %% %(slots)s)::int AS slot,
        1 + (session / 1009 %% %(accounts)s)::int AS account,
        %(opens)s::timestamptz + make_interval(secs => second) AS admitted_at,
        (500 + b / 1000 %% 14000) AS input, (b / 7919 %% 600) * 128 AS cached, (40 + c / 1000 %% 3000) AS output,
        b %% 100 = 0 AS is_double, c %% 97 AS fate
    FROM in_session
), priced AS (
    SELECT *,
        (%(keys)s::bigint[])[person] AS key_id, (%(members)s::bigint[])[person] AS member_id,
        (%(teams)s::bigint[])[person] AS team_id, (%(models)s::text[])[slot] AS model, (%(rates)s::bigint[])[slot] AS rate_id,
        (input * (%(input_rates)s::bigint[])[slot] + cached * (%(cached_rates)s::bigint[])[slot]
            + output * (%(output_rates)s::bigint[])[slot] + 500000) / 1000000 AS credits
    FROM chosen
)
INSERT INTO {table} (
    id, request_id, part, admitted_at, ended_at, organization_id, team_id, member_id, key_id, session, account_id, response_id,
    model_asked, model_served, tier_asked, tier_billed, input_tokens, cached_input_tokens, cache_write_tokens, output_tokens,
    reasoning_tokens, counted_tokens, counted_requests, credits, from_quota, from_purchased, from_overage, overdraft, source,
    period_starts_at, rate_id, status, is_estimated, is_implausible, is_clamped, latency_ms, first_token_ms, trace, lines,
    raw_usage, stream_id
)
SELECT
    nextval(pg_get_serial_sequence('billing_usagerecord', 'id')),
    -- In the form of a ULID: the time first.
    'req_' || upper(lpad(to_hex((extract(epoch FROM admitted_at) * 1000)::bigint), 12, '0')
        || substr(md5(%(organization)s || ':' || %(seed)s || ':' || n), 1, 14)),
    0, admitted_at, admitted_at + make_interval(secs => (900 + output * 11) / 1000.0), %(organization)s, team_id, member_id, key_id,
    lpad(to_hex(session), 32, '0'), account, 'resp_' || md5('response' || %(seed)s || ':' || n),
    model, model, '', 'standard', input, cached, 0, output, output / 3, input + cached + output, 1,
    credits, credits, 0, 0, 0, 'o', %(period)s, rate_id,
    CASE WHEN fate = 0 THEN 'client_closed' WHEN fate = 1 THEN 'incomplete' ELSE 'ok' END, fate = 0, false, false,
    900 + output * 11, 420 + (a %% 900)::int,
    jsonb_build_array(jsonb_build_object('account_id', account, 'reason', 'pace', 'candidates', %(accounts)s, 'status', 200)),
    CASE WHEN is_double THEN jsonb_build_array(
        jsonb_build_object('model', %(fallback)s, 'rate_id', rate_id, 'account_id', 1, 'input', input / 2, 'cached_input', 0,
            'cache_write', 0, 'output', 0, 'reasoning', 0, 'credits', credits / 3),
        jsonb_build_object('model', model, 'rate_id', rate_id, 'account_id', account, 'input', input - input / 2,
            'cached_input', cached, 'cache_write', 0, 'output', output, 'reasoning', output / 3, 'credits', credits - credits / 3))
    ELSE jsonb_build_array(
        jsonb_build_object('model', model, 'rate_id', rate_id, 'account_id', account, 'input', input, 'cached_input', cached,
            'cache_write', 0, 'output', output, 'reasoning', output / 3, 'credits', credits)) END,
    jsonb_build_object('input_tokens', input + cached, 'output_tokens', output, 'total_tokens', input + cached + output,
        'input_tokens_details', jsonb_build_object('cached_tokens', cached)),
    '0-0'
FROM priced WHERE admitted_at >= %(from)s AND admitted_at < %(until)s ORDER BY admitted_at
"""
SUM_PERIODS = """
    UPDATE billing_subscriptionperiod AS period SET
        quota = GREATEST(period.quota, logged.credits), used_from_quota = logged.credits, tokens = logged.tokens,
        requests = logged.requests
    FROM (
        SELECT period_starts_at, SUM(credits)::bigint AS credits, SUM(counted_tokens)::bigint AS tokens,
            SUM(counted_requests)::bigint AS requests
        FROM billing_usagerecord WHERE organization_id = %s AND source = 'o' GROUP BY period_starts_at
    ) AS logged
    WHERE period.subscription_id = %s AND period.starts_at = logged.period_starts_at
"""
BOOK = """
    INSERT INTO billing_ledgerentry
        (uuid, organization_id, kind, debit, credit, amount, reference, occurred_at, created_at, period_id, member_id, request_id,
         reason)
    SELECT gen_random_uuid(), record.organization_id, 'usage_quota', 'usage', 'allowance', credits,
        'usage:' || request_id || ':0:quota', admitted_at, now(), period.id, member_id, request_id, ''
    FROM billing_usagerecord AS record
    JOIN billing_subscriptionperiod AS period ON period.subscription_id = %s AND period.starts_at = record.period_starts_at
    WHERE record.organization_id = %s AND admitted_at >= %s AND admitted_at < %s AND credits > 0
    ON CONFLICT (organization_id, reference) DO NOTHING
"""


IS_THERE = """
    SELECT EXISTS (
        SELECT FROM billing_usagerecord
        WHERE organization_id = %s AND admitted_at >= %s AND admitted_at < %s
            AND response_id = 'resp_' || md5('response' || %s || ':' || %s)
    )
"""


@dataclass(frozen=True, slots=True)
class Day:
    """A local day and its share of the rows: numbers [first, last]."""

    day: date
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class People:
    """Parallel: a key, its member and their team."""

    keys: list[int]
    members: list[int]
    teams: list[int | None]


def organization(slug: str, *, people: int, since: datetime) -> Organization:
    """The organization of this slug, made on the plan `business` if there is none, with at least so many members with a key."""
    found = Organization.objects.filter(slug=slug).first()
    if found is None:
        found = organizations.create(slug, by=None)
        subscriptions.start(found, Plan.objects.get(slug="business"), now=since)
    missing = people - ApiKey.objects.for_organization(found).unrevoked().count()
    if missing > 0:
        groups = [teams.named(found, f"Team {number + 1}", by=None) for number in range(TEAMS)]
        begin = Member.objects.for_organization(found).count()
        with transaction.atomic():
            for number in range(begin, begin + missing):
                _person(found, groups, number, since)
    return Organization.objects.get(pk=found.pk)


def _person(found: Organization, groups: Sequence[Team], number: int, since: datetime) -> None:
    team = groups[number % len(groups)]
    member = members.add(found, f"person{number:05d}@{found.slug}.example", role="developer", team=team, by=None)
    keys.issue(member, name="laptop", by=None, now=since)


def people_of(found: Organization) -> People:
    rows = ApiKey.objects.for_organization(found).unrevoked().order_by("pk").values_list("pk", "member_id", "member__team_id")
    key_ids, member_ids, team_ids = (list(column) for column in zip(*rows, strict=True))
    return People(key_ids, member_ids, team_ids)


def days(rows: int, *, zone: ZoneInfo, since: date, until: date) -> Iterator[Day]:
    """So many rows over the days [since, until)."""
    every = [since + timedelta(days=number) for number in range((until - since).days)]
    weights = [1 if day.weekday() >= 5 else WEEKEND for day in every]
    total, done, first = sum(weights), 0, 0
    for day, weight in zip(every, weights, strict=True):
        done += weight
        last = rows * done // total
        if last > first:
            yield Day(day, first, last - 1)
        first = last


def fill(found: Organization, subscription: Subscription, every: Sequence[Day], people: People, *, seed: int) -> int:
    """Writes the rows of these days, a month at a time; how many were new. A month that has one of them has all of them."""
    zone = ZoneInfo(found.timezone)
    opening = [(one, periods.day_start(one.day, zone) + OPENS) for one in every]
    added = 0
    month = partitions.month(opening[0][1], 0)
    while month < opening[-1][1] + OPEN:
        following = partitions.month(month, 1)
        own = [(one, opens) for one, opens in opening if opens < following and opens + OPEN > month]
        if own and not _is_there(found, own[0], own[-1], seed):
            added += _fill_month(found, subscription, own, people, seed, month, following)
        month = following
    return added


def _is_there(found: Organization, first: tuple[Day, datetime], last: tuple[Day, datetime], seed: int) -> bool:
    with connection.cursor() as cursor:
        for one, opens in (first, last):
            cursor.execute(IS_THERE, [found.pk, opens, opens + OPEN, seed, one.first])
            if cursor.fetchone()[0]:
                return True
    return False


def _fill_month(
    found: Organization,
    subscription: Subscription,
    own: Sequence[tuple[Day, datetime]],
    people: People,
    seed: int,
    month: datetime,
    following: datetime,
) -> int:
    table = f"{partitions.TABLE}_filled_{month:%Y_%m}"
    partitions.make_partitions(month, months_ahead=0, months_back=0)
    added = 0
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {table}")
        cursor.execute(
            f"CREATE TABLE {table} (LIKE {partitions.TABLE} INCLUDING DEFAULTS INCLUDING CONSTRAINTS) "
            "WITH (autovacuum_enabled = false)"
        )
        for one, opens in own:
            subscriptions.open_period(subscription, opens)
            parameters = _parameters(found, subscription, one, opens, people, seed)
            cursor.execute(INSERT.format(table=table), {**parameters, "from": month, "until": following})
            added += int(cursor.rowcount)
    partitions.replace(month, table)
    return added


def _parameters(
    found: Organization, subscription: Subscription, one: Day, opens: datetime, people: People, seed: int
) -> dict[str, Any]:
    rates = snapshot.load(found.pk).billing.rates
    offered = rates.models_at(opens)
    slots = [rates.rate_for(model, opens) for model, share in MODELS.items() if model in offered for _ in range(share)]
    return {
        "seed": seed,
        "first": one.first,
        "last": one.last,
        "people": len(people.keys),
        "keys": people.keys,
        "members": people.members,
        "teams": people.teams,
        "slots": len(slots),
        "models": [rate.model for rate in slots],
        "rates": [rate.rate_id for rate in slots],
        "input_rates": [rate.input for rate in slots],
        "cached_rates": [rate.cached_input for rate in slots],
        "output_rates": [rate.output for rate in slots],
        "fallback": slots[0].model,
        "accounts": ACCOUNTS,
        "opens": opens,
        "day": one.day.toordinal(),
        "seconds": int(OPEN.total_seconds()),
        "organization": found.pk,
        "period": subscriptions.period_of(subscription, opens).start,
    }


def sum_periods(found: Organization, subscription: Subscription) -> None:
    """The periods' read model, as if each row had come through the drain."""
    with connection.cursor() as cursor:
        cursor.execute(SUM_PERIODS, [found.pk, subscription.pk])


def book(found: Organization, subscription: Subscription, one: Day) -> int:
    """The ledger's entries of a day; how many were new."""
    zone = ZoneInfo(found.timezone)
    bounds = periods.day_start(one.day, zone), periods.day_start(one.day + timedelta(days=1), zone)
    with connection.cursor() as cursor:
        cursor.execute(BOOK, [subscription.pk, found.pk, *bounds])
        return int(cursor.rowcount)
