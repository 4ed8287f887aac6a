"""The request log: who sees which rows, what an opened one says, filters, pages of it in both directions."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.models import ApiKey, Member
from billing import rollups, usage_log
from billing.models import Rate, UsageRecord
from config.clock import utc_now
from quotas import request_log
from quotas.models import Refusal
from tests import factories
from tests.pages import made

pytestmark = pytest.mark.django_db
CREDIT = made.CREDIT
SECRET_LABEL = "Mira's secret Plus"


def refused(key: ApiKey, *, at: datetime | None = None, **fields: Any) -> Refusal:
    at = at or utc_now() - timedelta(minutes=1)
    return Refusal.objects.create(
        **{
            "organization": key.organization,
            "team_id": key.member.team_id,
            "member_id": key.member_id,
            "key_id": key.pk,
            "minute": at.replace(second=0, microsecond=0),
            "last_at": at,
            "code": "limit_reached",
            "scope": "member",
            "scope_name": str(key.member),
            "metric": "credits",
            "window": "day",
            "limit": 300 * CREDIT,
            "used": 28 * CREDIT,
            "held": 0,
            "need": 318 * CREDIT,
            "model": "gpt-6-astra",
            "message": "no",
            **fields,
        }
    )


class World:
    """Quality and Platform with a developer each, and one without a team; a request and a refusal of each."""

    def __init__(self) -> None:
        self.organization = factories.organization(timezone="Europe/Berlin")
        self.quality = factories.team(self.organization, "Quality")
        self.platform = factories.team(self.organization, "Platform")
        self.account, _ = factories.openai_account(self.organization, label=SECRET_LABEL)
        self.developers = {
            "tomasz": factories.member(self.organization, team=self.quality),
            "anselm": factories.member(self.organization, team=self.platform),
            "lena": factories.member(self.organization),
        }
        self.keys = {name: factories.api_key(member, name=f"key of {name}").row for name, member in self.developers.items()}
        now = utc_now()
        self.rows = {
            name: made.used(key, number * CREDIT, at=now - timedelta(seconds=number), model=f"model-{number}", **self.carried())
            for number, (name, key) in enumerate(self.keys.items(), start=1)
        }
        self.refusals = {
            name: refused(key, at=now - timedelta(seconds=10 + number)) for number, (name, key) in enumerate(self.keys.items())
        }

    def carried(self) -> dict[str, Any]:
        pk = self.account.pk
        return {"account_id": pk, "trace": [{"account_id": pk, "reason": "pace", "candidates": 3, "best": [[pk, 0.41, 240.5]]}]}

    def member(self, role: str, team: Any = None) -> Member:
        return factories.member(self.organization, role=role, team=team)

    def names(self, *people: str) -> set[str]:
        return {self.rows[name].request_id for name in people} | {str(self.refusals[name].uuid) for name in people}


@pytest.fixture
def world() -> World:
    return World()


def ask(member: Member, query: str = "?range=7d", **options: Any) -> Any:
    return made.signed_in(member).get(made.path(member, f"requests{query}"), **options)


def page(member: Member, query: str = "?range=7d") -> str:
    answered = ask(member, query)
    assert answered.status_code == 200
    return str(answered.content.decode())


def listed(text: str) -> list[str]:
    return re.findall(r'<tbody id="row-([^"]+)"', text)


def link(text: str, name: str) -> str:
    """The query string that Older or Newer leads to; "" where it is not there."""
    found = re.search(rf'<a class="btn small" href="[^"?]*([^"]*)" rel="{ {"Older": "next", "Newer": "prev"}[name] }"', text)
    return found[1].replace("&amp;", "&") if found else ""


# --------------------------------------------------------------------------------------------------------------- reach


def test_owner_and_lead_of_the_whole_see_everybodys(world: World) -> None:
    for role in ("owner", "lead"):
        text = page(world.member(role))
        assert set(listed(text)) == world.names("tomasz", "anselm", "lena")
        assert SECRET_LABEL.replace("'", "&#x27;") in text
        assert "3 requests · 6.00 credits · 3 refused" in text


def test_a_lead_with_a_team_sees_that_team_only(world: World) -> None:
    """What somebody used before they came stays with the team of that time."""
    Member.objects.filter(pk=world.developers["anselm"].pk).update(team=world.quality)
    text = page(world.member("lead", world.quality))
    assert set(listed(text)) == world.names("tomasz")
    assert "1 request · 1.00 credits · 1 refused" in text


def test_a_developer_sees_their_own_rows_whatever_the_parameters_say(world: World) -> None:
    """J1: the scope is the session's, not the client's."""
    lena, other = world.developers["lena"], world.developers["tomasz"]
    assert set(listed(page(lena))) == world.names("lena")
    for query in (
        f"?range=7d&member={other.uuid}",
        f"?team={world.quality.uuid}",
        f"?account={world.account.uuid}",
        f"?key={world.keys['tomasz'].uuid}",
    ):
        answered = ask(lena, query)
        assert answered.status_code == 400
        assert set(listed(answered.content.decode())) <= world.names("lena")
    for query in ("?range=all", "?user=", "?member=", f"?before={world.rows['tomasz'].request_id}", "?status=ok&model="):
        assert set(listed(page(lena, query))) <= world.names("lena")


def test_finance_sees_no_single_request(world: World) -> None:
    finance = world.member("finance")
    assert ask(finance).status_code == 403
    assert ask(finance, f"/{world.rows['lena'].request_id}").status_code == 403
    assert made.path(finance, "requests") not in made.signed_in(finance).get(made.path(finance, "usage")).content.decode()


def test_one_request_is_403_for_who_may_not_and_404_where_there_is_none(world: World) -> None:
    foreign = World()
    lead = world.member("lead", world.quality)
    for name in world.names("anselm"):
        assert ask(lead, f"/{name}").status_code == 403
        assert ask(world.developers["tomasz"], f"/{name}").status_code == 403
        assert ask(world.developers["anselm"], f"/{name}").status_code == 200
        assert ask(world.member("owner"), f"/{name}").status_code == 200
    missing = ask(lead, "/req_01AAAAAAAAAAAAAAAAAAAAAAAA")
    for name in foreign.names("anselm"):
        assert (ask(lead, f"/{name}").status_code, ask(lead, f"/{name}").content) == (404, missing.content)
        assert listed(page(world.member("owner"), f"?range=all&before={name}")) == listed(page(world.member("owner"), "?range=all"))
    for name in ("%00", "0" * 36, "x" * 3000, "req_", "00000000-0000-4000-8000-000000000000"):
        assert ask(lead, f"/{name}").status_code == 404


def test_no_upstream_account_is_told_to_who_has_no_pool(world: World) -> None:
    """J3: neither name nor id, neither score nor headroom nor how many there are, in list, page and row."""
    marks = [SECRET_LABEL.replace("'", "&#x27;"), SECRET_LABEL, str(world.account.uuid), "0.41", "240.5", "241", "in the running"]
    for reader in (world.developers["tomasz"], world.member("lead", world.quality)):
        name = world.rows["tomasz"].request_id
        for query, headers in (
            ("?range=7d", {}),
            (f"/{name}", {}),
            (f"/{name}", {"HX-Request": "true", "HX-Target": f"row-{name}"}),
        ):
            answered = ask(reader, query, headers=headers)
            assert answered.status_code == 200
            text = answered.content.decode()
            assert [mark for mark in marks if mark in text] == [], query
            assert query.startswith("?") or "Went to <strong>an account of the pool</strong>." in text
    owner = page(world.member("owner"), f"/{world.rows['tomasz'].request_id}")
    assert all(mark in owner for mark in ("0.41", "241", SECRET_LABEL.replace("'", "&#x27;")))


def test_a_shared_pools_account_has_no_label(world: World) -> None:
    made.used(world.keys["lena"], CREDIT, account_id=2**40, at=utc_now())
    text = page(world.member("owner"))
    assert text.count('hide-phone">–</td>') >= 1


# -------------------------------------------------------------------------------------------------------------- opened


def rated() -> Rate:
    return Rate.objects.select_related("card").get(model="gpt-6.1-sol", valid_to=None)


def line(account_id: int | None, credits: int, **fields: Any) -> dict[str, Any]:
    tokens = {"input": 61204, "cached_input": 412672, "cache_write": 0, "output": 8930, "reasoning": 1204}
    return {"model": "gpt-6.1-sol", "rate_id": rated().pk, "account_id": account_id, "credits": credits, **tokens, **fields}


def test_an_opened_row_tells_way_price_and_times(world: World) -> None:
    first, second = world.account.pk, factories.openai_account(world.organization, label="Halden Pro")[0].pk
    row = made.used(
        world.keys["lena"],
        6_324_380,
        model="gpt-6.1-sol",
        account_id=second,
        held=9_100_000,
        latency_ms=18_400,
        first_token_ms=1_300,
        tier_billed="standard",
        lines=[line(second, 6_324_380)],
        trace=[
            {
                "account_id": first, "reason": "sticky", "candidates": 1, "status": 429, "failure": "usage_limit",
                "asked": "gpt-6-astra",
            },
            {
                "account_id": second, "reason": "pace", "candidates": 3, "turn": 3.2, "status": 200,
                "best": [[second, 0.8123, 240.5], [first, None, None]],
            },
        ],
    )  # fmt: skip
    text = re.sub(r"<[^>]+>", "", page(world.member("owner"), f"/{row.request_id}"))
    for said in (
        "6.324380 credits for gpt-6.1-sol by",
        "OK after 18.4 s, the first token after 1.3 s.",
        "0 msAdmitted. 9.100000 credits held.",
        "gpt-6-astra was asked for. A rule of the organization lets gpt-6.1-sol serve in its place.",
        "try 1Went to Mira&#x27;s secret Plus. The session’s own account, with enough left. Answered 429: its usage limit was "
        "reached. Nothing had reached the client yet.",
        "try 2Moved to Halden Pro. Chosen by pace, of 3 in the running.",
        "1.3 sFirst token.",
        "18.4 sCompleted. 6.324380 charged, 2.775620 given back.",
        "Candidates of try 2: 3 in the running, for a turn of about 3.20 credits",
        "Halden Pro taken0.8123241",
        "Mira&#x27;s secret Plus–no bound",
        "Input, new61,204503.060200",
        "Input, cached412,6722.51.031680",
        "Output8,9302502.232500",
        "Charged, from plan quota6.324380",
        "(61,204 × 50 + 412,672 × 2.5 + 8,930 × 250) ÷ 1,000,000 = 6.324380",
        f"Rate card {rated().card.name}: gpt-6.1-sol from ",
        "standard tier · 1,204 of the output tokens were reasoning",
        "gpt-6.1-sol asked, gpt-6.1-sol served",
        "none asked, standard billed",
    ):
        assert said in text, said


def test_flags_and_funds_are_told_in_words(world: World) -> None:
    row = made.used(
        world.keys["lena"],
        9 * CREDIT,
        from_quota=5 * CREDIT,
        from_purchased=2 * CREDIT,
        from_overage=CREDIT,
        overdraft=CREDIT,
        is_estimated=True,
        is_implausible=True,
        is_clamped=True,
        status="client_closed",
        held=CREDIT,
        lines=[line(world.account.pk, 9 * CREDIT)],
    )
    text = page(world.member("owner"), f"/{row.request_id}")
    plain = re.sub(r"<[^>]+>", "", text)
    for said in (
        "From plan quota5.000000", "From purchased credits2.000000", "From overage, on the invoice1.000000",
        "From overdraft1.000000", "Charged9.000000", "The client left. 9.000000 charged, 8.000000 more than was held.",
        "Estimated. ", "Implausible. ", "Clamped. ", "Overdraft. ", "The upstream’s counts cannot be, so what was held is charged.",
    ):  # fmt: skip
        assert said in plain, said
    shown = page(world.member("owner")).split(f'id="row-{row.request_id}"')[1].split("</tbody>")[0]
    assert re.findall(r'<span class="muted small" title="[^"]+">(\w+)</span>', shown) == [
        "estimated", "implausible", "clamped", "overdraft",
    ]  # fmt: skip


def test_an_amended_orphan_is_one_row_with_its_parts(world: World) -> None:
    key, at = world.keys["lena"], utc_now() - timedelta(minutes=3)
    orphan = made.used(key, 2 * CREDIT, at=at, status="orphaned", is_estimated=True, input_tokens=10, output_tokens=0)
    made.used(
        key, -500_000, at=at, request_id=orphan.request_id, part=1, input_tokens=61194, output_tokens=8930,
        cached_input_tokens=409272, counted_requests=0, lines=[line(world.account.pk, 1_500_000)],
        trace=[{"account_id": world.account.pk, "reason": "turn", "candidates": 1, "status": 200}], latency_ms=4000,
    )  # fmt: skip
    owner = world.member("owner")
    assert listed(page(owner)).count(orphan.request_id) == 1
    shown = page(owner).split(f'id="row-{orphan.request_id}"')[1].split("</tbody>")[0]
    plain = re.sub(r"<[^>]+>", "|", shown)
    assert "1.50" in plain
    assert "Orphaned" in plain
    assert "amended" in plain
    assert all(f"|{tokens}|" in plain for tokens in ("61,204", "412,672", "8,930"))
    opened = re.sub(r"<[^>]+>", "", page(owner, f"/{orphan.request_id}"))
    for said in (
        "Booked as orphaned at what was seen by then: 2.000000. Its real end came later, 0.500000 less.",
        "The turn that runs goes on here.", "4.0 sCompleted. 1.500000 charged", "−0.500000", "Together1.500000",
    ):  # fmt: skip
        assert said in opened, said


def test_what_cost_nothing_says_why(world: World) -> None:
    failed = made.used(
        world.keys["lena"], 0, status="failed", model_served="", lines=[], first_token_ms=None,
        trace=[{"account_id": world.account.pk, "reason": "owner", "candidates": 1, "failure": "connect_failed"}],
    )  # fmt: skip
    text = re.sub(r"<[^>]+>", "", page(world.developers["lena"], f"/{failed.request_id}"))
    assert "It holds what the request continues. No connection came about." in text
    assert "Nothing of it ran at an upstream, so it cost nothing." in text
    assert "Charged0.000000" in text


def test_an_opened_refusal_has_its_reason(world: World) -> None:
    row = refused(world.keys["tomasz"], metric="requests_per_minute", window="", limit=60, used=60, need=1, count=12)
    text = page(world.member("owner"))
    assert "Refused: daily limit" in text
    assert "Refused: 60 / min" in text
    assert "12 times" in text
    own = page(world.developers["tomasz"], f"/{row.uuid}")
    assert "Your limit of requests per minute was reached" in own
    assert "It cost nothing." in own


def test_a_row_is_opened_in_place_and_closed_again(world: World) -> None:
    name = world.rows["lena"].request_id
    headers = {"HX-Request": "true", "HX-Target": f"row-{name}"}
    opened = ask(world.member("owner"), f"/{name}", headers=headers).content.decode()
    assert opened.startswith(f'<tbody id="row-{name}"')
    assert 'aria-expanded="true"' in opened
    assert "?closed=1" in opened
    assert "Routing" in opened
    closed = ask(world.member("owner"), f"/{name}?closed=1", headers=headers).content.decode()
    assert 'aria-expanded="false"' in closed
    assert "Routing" not in closed
    assert "Routing" in page(world.member("owner"), f"/{name}?closed=1")


def test_times_are_the_organizations(world: World) -> None:
    at = datetime(2026, 1, 5, 23, 30, 12, tzinfo=UTC)
    row = made.used(world.keys["lena"], CREDIT, at=at)
    text = page(world.member("owner"), f"/{row.request_id}")
    assert "Tue 6 Jan, 00:30:12" in re.sub(r"<[^>]+>", "", text).replace(", 2026", "").replace(" 2026", "")
    assert 'datetime="2026-01-05T23:30:12+00:00"' in text


def test_nothing_inline_and_every_control_has_a_label(world: World) -> None:
    text = page(world.member("owner")) + page(world.member("owner"), f"/{world.rows['lena'].request_id}")
    assert " style=" not in text
    assert not re.search(r"<script(?![^>]*src=)", text)
    assert not re.search(r"\son\w+=", text)
    controls = set(re.findall(r'<(?:select|input) id="([^"]+)"', text))
    assert controls <= set(re.findall(r'<label for="([^"]+)"', text))


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
