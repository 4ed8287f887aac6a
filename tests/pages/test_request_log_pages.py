"""The request log: its filters and sums, and pages of it in both directions."""

import re
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.models import Member
from billing import rollups, usage_log
from billing.models import UsageRecord
from config.clock import utc_now
from quotas import request_log
from tests import factories
from tests.pages import made
from tests.pages.request_rows import CREDIT, World, ask, line, link, listed, page, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return World()


# ------------------------------------------------------------------------------------------------------------- filters


def test_each_filter_leaves_its_rows(world: World) -> None:
    owner, now = world.member("owner"), utc_now()
    other, _ = factories.openai_account(world.organization, label="other")
    key = factories.api_key(world.developers["tomasz"], name="second").row
    late = made.used(key, CREDIT, at=now - timedelta(days=3), account_id=other.pk, status="failed", model="gpt-x")
    twice = made.used(
        key, 2 * CREDIT, at=now - timedelta(minutes=5), model="gpt-y", account_id=other.pk,
        lines=[line(world.account.pk, CREDIT, model="gpt-first"), line(other.pk, CREDIT, model="gpt-y")],
    )  # fmt: skip
    own, tomasz = world.rows["tomasz"].request_id, world.developers["tomasz"]
    refusal = str(world.refusals["tomasz"].uuid)
    for query, expected in {
        f"range=all&member={tomasz.uuid}": [own, refusal, twice.request_id, late.request_id],
        f"range=30d&team={world.quality.uuid}": [own, refusal, twice.request_id, late.request_id],
        f"range=all&key={key.uuid}": [twice.request_id, late.request_id],
        f"range=all&account={other.uuid}": [twice.request_id, late.request_id],
        f"range=all&account={world.account.uuid}&team={world.quality.uuid}": [own, twice.request_id],
        "range=all&model=gpt-x": [late.request_id],
        "range=all&model=gpt-first": [twice.request_id],
        "range=all&model=model-1": [own],
        f"range=all&model=gpt-6-astra&member={tomasz.uuid}": [refusal],
        "range=all&status=failed": [late.request_id],
        f"range=all&status=ok&member={tomasz.uuid}": [own, twice.request_id],
        f"range=all&status=refused&team={world.quality.uuid}": [refusal],
        f"range=hour&member={tomasz.uuid}": [own, refusal, twice.request_id],
        f"range=7d&member={tomasz.uuid}&status=failed": [late.request_id],
        f"range=all&member={world.developers['lena'].uuid}&team={world.quality.uuid}": [],
    }.items():
        assert listed(page(owner, f"?{query}")) == expected, query


def test_a_time_of_ones_own_is_half_open_and_local(world: World) -> None:
    owner, zone = world.member("owner"), ZoneInfo("Europe/Berlin")
    ids = [
        made.used(world.keys["lena"], CREDIT, at=datetime(2026, 3, 2, 14, minute, tzinfo=zone)).request_id
        for minute in (19, 20, 29, 30)
    ]
    assert listed(page(owner, "?from=2026-03-02T14:20&to=2026-03-02T14:30")) == [ids[2], ids[1]]
    assert listed(page(owner, "?range=custom&to=2026-03-02T14:20")) == [ids[0]]
    assert ask(owner, "?range=custom&from=2026-03-02T14:30&to=2026-03-02T14:30").status_code == 400


@pytest.mark.parametrize("name", ["member", "team", "key", "account"])
def test_a_foreign_id_is_as_a_missing_one(world: World, name: str) -> None:
    foreign = World()
    ids = {
        "member": foreign.developers["lena"].uuid, "team": foreign.quality.uuid, "key": foreign.keys["lena"].uuid,
        "account": foreign.account.uuid,
    }  # fmt: skip
    owner = world.member("owner")
    answers = [ask(owner, f"?{name}={one}") for one in (ids[name], "00000000-0000-4000-8000-000000000000", "x")]
    assert {one.status_code for one in answers} == {400}
    assert all(f"There is no such {name} here." in one.content.decode() for one in answers)


def test_keys_are_offered_of_the_chosen_member_and_of_oneself(world: World) -> None:
    assert "key of tomasz" not in page(world.member("owner"))
    assert "key of tomasz" in page(world.member("owner"), f"?range=7d&member={world.developers['tomasz'].uuid}")
    own = page(world.developers["tomasz"])
    assert "key of tomasz" in own
    assert "key of lena" not in own


def test_the_sums_are_those_of_the_report(world: World) -> None:
    for query, said in {
        f"range=7d&member={world.developers['anselm'].uuid}": "1 request · 2.00 credits · 1 refused",
        f"range=7d&account={world.account.uuid}": "3 requests · 6.00 credits",
        "range=7d&model=model-3": "1 request · 3.00 credits",
        f"range=7d&key={world.keys['tomasz'].uuid}": "1 request · 1.00 credits · 1 refused",
    }.items():
        shown = re.search(r'id="sums"[^>]*>([^<]+)<', page(world.member("owner"), f"?{query}"))
        assert shown
        assert shown[1] == said, query


def test_a_request_is_found_by_its_id_or_its_responses(world: World) -> None:
    owner, lead = world.member("owner"), world.member("lead", world.quality)
    row = made.used(world.keys["lena"], CREDIT, response_id="resp_0123")
    for sought in (row.request_id, "resp_0123", f" {row.request_id} "):
        answered = ask(owner, f"?q={sought}")
        assert (answered.status_code, answered["location"]) == (302, made.path(owner, f"requests/{row.request_id}"))
    for sought in (row.request_id, "resp_0123", "nothing"):
        text = page(lead, f"?q={sought}")
        assert f"No request here has the id {sought}." in text


# --------------------------------------------------------------------------------------------------------------- pages


def walk(member: Member, query: str, *, name: str = "Older") -> list[list[str]]:
    pages, seen = [], 0
    while query and seen < 30:
        text = page(member, query)
        pages.append(listed(text))
        query, seen = link(text, name), seen + 1
    return pages


@pytest.mark.parametrize("scope", ["everything", "team", "developer", "refused"])
def test_every_entry_stands_on_one_page_going_back_and_coming_again(world: World, scope: str) -> None:
    start, expected = utc_now() - timedelta(days=40), set(world.names("tomasz"))
    key = world.keys["tomasz"]
    for number in range(75):
        # Three of each second, and a refusal of the same moment.
        at = start.replace(microsecond=0) + timedelta(hours=number // 3)
        expected.add(made.used(key, CREDIT, at=at).request_id)
        if number % 3 == 0:
            expected.add(str(refused(key, at=at).uuid))
    reader, query = {
        "everything": (world.member("owner"), "?range=all"),
        "team": (world.member("lead", world.quality), "?range=all"),
        "developer": (world.developers["tomasz"], "?range=all"),
        "refused": (world.member("owner"), f"?range=all&status=refused&member={world.developers['tomasz'].uuid}"),
    }[scope]
    if scope == "everything":
        expected |= world.names("anselm", "lena")
    if scope == "refused":
        expected = {name for name in expected if not name.startswith("req_")}
    back = walk(reader, query)
    flat = [name for names in back for name in names]
    assert len(flat) == len(set(flat))
    assert set(flat) == expected
    assert all(len(names) == request_log.PAGE for names in back[:-1])
    last = f"{query}&before={back[-2][-1]}" if len(back) > 1 else query
    again = walk(reader, last, name="Newer")
    assert [name for names in reversed(again) for name in names][-len(back[-1]) :] == back[-1]
    assert set(flat) == {name for names in again for name in names}
    assert again[-1] == back[0]


def test_what_is_rare_is_found_hour_by_hour(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the hourly sums lead to a few hours at a time, and where there is more in one hour than is looked into."""
    owner, start = world.member("owner"), utc_now().replace(minute=0, second=0, microsecond=0) - timedelta(days=20)
    expected = []
    for number in range(130):
        made.used(world.keys["lena"], CREDIT, at=start + timedelta(hours=number), model="common")
        if number % 2 == 0:
            row = made.used(world.keys["anselm"], CREDIT, at=start + timedelta(hours=number, minutes=30), model="rare")
            expected.append(row.request_id)
    expected.reverse()
    for most in (usage_log.MOST_SPOTS, 3):
        monkeypatch.setattr(usage_log, "MOST_SPOTS", most)
        assert [name for names in walk(owner, "?range=all&model=rare") for name in names] == expected
        newest_again = walk(owner, f"?range=all&model=rare&before={expected[-2]}", name="Newer")
        assert {name for names in newest_again for name in names} == set(expected)


def test_two_priced_lines_of_one_request_do_not_hide_older_ones(world: World) -> None:
    """The sums name the request twice, so what they promise is less than a page; the way goes on nevertheless."""
    owner, at = world.member("owner"), utc_now().replace(minute=0, second=0, microsecond=0) - timedelta(days=9)
    expected = []
    for number in range(60):
        lines = [line(world.account.pk, CREDIT, model="twin"), line(world.account.pk + number, CREDIT, model="twin")]
        expected.append(made.used(world.keys["lena"], 2 * CREDIT, at=at - timedelta(hours=number), lines=lines).request_id)
    assert [name for names in walk(owner, "?range=all&model=twin") for name in names] == expected


def test_an_empty_time_says_where_there_is_something(world: World) -> None:
    quiet = factories.organization()
    owner = factories.member(quiet, role="owner")
    assert "The first request appears here a few seconds after it ends." in page(owner, "?range=all")
    key = factories.api_key(owner).row
    old = made.used(key, CREDIT, at=utc_now() - timedelta(days=3))
    text = page(owner, "?range=hour")
    assert "No requests in this time" in text
    assert f"/requests/{old.request_id}" in text
    assert listed(page(owner, "?range=all")) == [old.request_id]


@pytest.mark.parametrize(
    "query", ["?range=7d", "?range=all&status=ok", "?range=all&team={team}", "?range=7d&member={member}", "/{name}"]
)
def test_the_number_of_queries_does_not_grow(world: World, query: str) -> None:
    """H6: fifty rows of as many members, keys, teams and accounts cost what one does."""
    owner = world.member("owner")
    client = made.signed_in(owner)
    url = made.path(owner, "requests") + query.format(
        team=world.quality.uuid, member=world.developers["tomasz"].uuid, name=world.rows["tomasz"].request_id
    )
    client.get(url)
    with CaptureQueriesContext(connection) as few:
        assert client.get(url).status_code == 200
    now = utc_now()
    for number in range(50):
        member = factories.member(world.organization, team=world.quality if number % 2 else factories.team(world.organization))
        account, _ = factories.openai_account(world.organization)
        carried: dict[str, Any] = {
            "account_id": account.pk,
            "trace": [{"account_id": account.pk, "reason": "pace", "candidates": 9}],
        }
        for key in (factories.api_key(member).row, world.keys["tomasz"]):
            row = made.used(key, CREDIT, at=now - timedelta(seconds=number), **carried)
            if number % 10 == 0:
                made.used(key, -5, at=row.admitted_at, request_id=row.request_id, part=1, counted_requests=0)
                refused(key, at=now - timedelta(hours=1, minutes=number))
    with CaptureQueriesContext(connection) as many:
        text = client.get(url).content.decode()
    assert query.startswith("/") or len(listed(text)) == 50
    assert len(many) == len(few)


def test_a_year_of_two_hundred_members_is_shown(world: World) -> None:
    """H7: the newest page, the oldest page, and any filter over all of it, in the same few queries."""
    owner, now = world.member("owner"), utc_now().replace(microsecond=0)
    keys = [factories.api_key(factories.member(world.organization, team=world.platform)).row for _ in range(200)]
    rows = [
        UsageRecord(
            request_id=f"req_YEAR{week:02d}{number:04d}",
            part=0,
            admitted_at=now - timedelta(weeks=week, seconds=number),
            ended_at=now - timedelta(weeks=week),
            organization=world.organization,
            team=world.platform,
            member=key.member,
            key=key,
            model_asked="gpt-5.5",
            model_served="gpt-5.5",
            credits=CREDIT,
            from_quota=CREDIT,
            source="o",
            period_starts_at=now - timedelta(weeks=week),
            status="ok" if number else "failed",
            stream_id="0-0",
        )
        for week in range(52)
        for number, key in enumerate(keys)
    ]
    UsageRecord.objects.bulk_create(rows)
    rollups.rebuild(world.organization.pk, now - timedelta(days=370), now + timedelta(hours=1))
    client = made.signed_in(owner)

    def queries(query: str) -> tuple[list[str], int]:
        with CaptureQueriesContext(connection) as asked:
            text = client.get(made.path(owner, f"requests{query}")).content.decode()
        return listed(text), len(asked)

    newest, first = queries("?range=all")
    assert len(newest) == 50
    oldest, _ = queries(f"?range=all&before={rows[-10].request_id}")
    assert oldest == [row.request_id for row in rows[-9:]]
    failed, _ = queries("?range=all&status=failed")
    assert failed == [f"req_YEAR{week:02d}0000" for week in range(50)]
    of_team, narrowed = queries(f"?range=all&team={world.platform.uuid}&before={rows[199].request_id}")
    assert of_team == [row.request_id for row in rows[200:250]]
    assert max(first, narrowed) <= 24
